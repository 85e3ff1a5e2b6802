#include "speculative/draft_kv_map.h"

#include <algorithm>

#include "base/check.h"

namespace spate {

void TokenChain::set_known(std::span<const int32_t> token_ids) {
  CHECK(token_ids.size() >= num_known_, "{} tokens are known, {} were before", token_ids.size(), num_known_);
  hashes_.resize(std::min(hashes_.size(), 1 + num_known_ / kv_block_size_));  // behind it they are of drafts
  token_ids_.resize(num_known_);
  token_ids_.insert(token_ids_.end(), token_ids.begin() + static_cast<ptrdiff_t>(num_known_), token_ids.end());
  num_known_ = token_ids.size();
  extend_hashes();
}

void TokenChain::append_draft(int32_t token_id) {
  token_ids_.push_back(token_id);
  extend_hashes();
}

void TokenChain::extend_hashes() {
  while (hashes_.size() * kv_block_size_ <= token_ids_.size()) {
    uint64_t hash = hashes_.back();
    for (size_t i = (hashes_.size() - 1) * kv_block_size_; i < hashes_.size() * kv_block_size_; ++i) {
      hash = (hash ^ static_cast<uint32_t>(token_ids_[i])) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    hashes_.push_back(hash);
  }
}

DraftKvMap::DraftKvMap(int num_blocks, int kv_block_size, bool reads_next_tokens, int num_layers)
    : kv_block_size_(kv_block_size),
      reads_next_tokens_(reads_next_tokens),
      num_layers_(num_layers),
      blocks_(static_cast<size_t>(num_blocks)),
      token_ids_(static_cast<size_t>(num_blocks) * static_cast<size_t>(kv_block_size)) {}

int DraftKvMap::num_held(const TokenChain& chain, std::span<const int32_t> block_ids) const {
  int num_held = 0;
  for (int i = 0; i < std::ssize(block_ids) && i * kv_block_size_ < chain.size(); ++i) {
    const auto block_id = static_cast<size_t>(block_ids[static_cast<size_t>(i)]);
    const Block& block = blocks_[block_id];
    if (block.num_tokens == 0 || block.hash_before != chain.hash_before_block(i)) break;
    const int32_t* held = token_ids_.data() + block_id * static_cast<size_t>(kv_block_size_);
    const int end = std::min(chain.size(), i * kv_block_size_ + block.num_tokens);
    const int num_checked = kv_block_size_ - (reads_next_tokens_ ? 1 : 0);  // of the block's tokens
    const auto is_held = [&](int offset) {
      const int last = std::min({offset + num_layers_, num_checked, chain.size() - i * kv_block_size_});
      for (int o = offset; o < last; ++o) {
        if (held[o] != chain[i * kv_block_size_ + o]) return false;
      }
      return true;
    };
    while (num_held < end && is_held(num_held - i * kv_block_size_)) ++num_held;
    if (num_held < (i + 1) * kv_block_size_) break;
  }
  return num_held;
}

void DraftKvMap::write(const TokenChain& chain, std::span<const int32_t> block_ids, int begin, int end) {
  for (int position = begin; position < end; ++position) {
    const int block_idx = position / kv_block_size_, offset = position % kv_block_size_;
    if (block_idx >= std::ssize(block_ids)) return;
    const auto block_id = static_cast<size_t>(block_ids[static_cast<size_t>(block_idx)]);
    Block& block = blocks_[block_id];
    if (offset == 0) block.hash_before = chain.hash_before_block(block_idx);
    block.num_tokens = offset + 1;
    const int num_read = std::min({num_layers_, kv_block_size_ - offset, chain.size() - position});
    for (int i = 0; i < num_read; ++i) {
      token_ids_[block_id * static_cast<size_t>(kv_block_size_) + static_cast<size_t>(offset + i)] = chain[position + i];
    }
  }
}

void DraftKvMap::forget(std::span<const int32_t> block_ids, int position) {
  const int block_idx = position / kv_block_size_;
  if (block_idx >= std::ssize(block_ids)) return;
  Block& block = blocks_[static_cast<size_t>(block_ids[static_cast<size_t>(block_idx)])];
  block.num_tokens = std::min(block.num_tokens, position % kv_block_size_);
}

}  // namespace spate
