#include "kv_cache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <functional>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"

namespace spate {

PrefixIndex::PrefixIndex(int num_blocks, int kv_block_size, uint64_t hash_mask)
    : kv_block_size_(kv_block_size),
      hash_mask_(hash_mask),
      entries_(num_blocks),
      token_ids_(static_cast<size_t>(num_blocks) * kv_block_size),
      buckets_(std::bit_ceil(static_cast<size_t>(num_blocks)), kNoBlock) {}

uint64_t PrefixIndex::hash_key(int32_t parent_block_id, std::span<const int32_t> token_ids,
                               std::string_view reuse_scope) const {
  const uint64_t seed = parent_block_id == kNoBlock ? XXH3_64bits(reuse_scope.data(), reuse_scope.size())
                                                    : static_cast<uint64_t>(parent_block_id) + 1;
  return XXH3_64bits_withSeed(token_ids.data(), token_ids.size_bytes(), seed) & hash_mask_;
}

std::span<const int32_t> PrefixIndex::block_tokens(int32_t block_id) const {
  return std::span(token_ids_).subspan(static_cast<size_t>(block_id) * kv_block_size_, kv_block_size_);
}

int32_t PrefixIndex::find(int32_t parent_block_id, std::span<const int32_t> token_ids,
                          std::string_view reuse_scope) const {
  DCHECK(token_ids.size() == static_cast<size_t>(kv_block_size_));
  const uint64_t hash = hash_key(parent_block_id, token_ids, reuse_scope);
  for (int32_t block_id = buckets_[bucket_of(hash)]; block_id != kNoBlock;
       block_id = entries_[block_id].next_in_bucket) {
    const Entry& entry = entries_[block_id];
    if (entry.hash == hash && entry.parent_block_id == parent_block_id &&
        std::ranges::equal(block_tokens(block_id), token_ids) &&
        (parent_block_id != kNoBlock || entry.reuse_scope == reuse_scope)) {
      return block_id;
    }
  }
  return kNoBlock;
}

void PrefixIndex::insert(int32_t block_id, int32_t parent_block_id, std::span<const int32_t> token_ids,
                         std::string_view reuse_scope) {
  Entry& entry = entries_[block_id];
  CHECK(!entry.present, "block {} is in the prefix index already", block_id);
  CHECK(token_ids.size() == static_cast<size_t>(kv_block_size_));
  DCHECK(find(parent_block_id, token_ids, reuse_scope) == kNoBlock);
  entry.hash = hash_key(parent_block_id, token_ids, reuse_scope);
  entry.parent_block_id = parent_block_id;
  entry.present = true;
  if (parent_block_id == kNoBlock) {
    entry.reuse_scope = reuse_scope;
  } else {
    CHECK(entries_[parent_block_id].present, "parent {} of block {} is not in the prefix index", parent_block_id,
          block_id);
    ++entries_[parent_block_id].num_children;
  }
  std::ranges::copy(token_ids, token_ids_.begin() + static_cast<ptrdiff_t>(block_id) * kv_block_size_);
  int32_t& first = buckets_[bucket_of(entry.hash)];
  entry.next_in_bucket = first;
  first = block_id;
  ++size_;
}

void PrefixIndex::erase(int32_t block_id) {
  Entry& entry = entries_[block_id];
  CHECK(entry.present && entry.num_children == 0, "block {} is continued by {} blocks", block_id, entry.num_children);
  int32_t* link = &buckets_[bucket_of(entry.hash)];
  while (*link != block_id) link = &entries_[*link].next_in_bucket;
  *link = entry.next_in_bucket;
  if (entry.parent_block_id != kNoBlock) --entries_[entry.parent_block_id].num_children;
  entry.present = false;
  entry.reuse_scope.clear();
  --size_;
}

std::vector<int32_t> PrefixIndex::subtree(int32_t block_id) const {
  constexpr int kOutside = -1, kUnknown = -2;
  std::vector<int> depths(entries_.size(), kUnknown);  // below block_id
  depths[block_id] = 0;
  std::vector<int32_t> path, found;
  for (int32_t start = 0; start < static_cast<int32_t>(entries_.size()); ++start) {
    if (!entries_[start].present) continue;
    path.clear();
    int32_t ancestor = start;
    for (; ancestor != kNoBlock && depths[ancestor] == kUnknown; ancestor = entries_[ancestor].parent_block_id) {
      path.push_back(ancestor);
    }
    int depth = ancestor == kNoBlock ? kOutside : depths[ancestor];
    for (; !path.empty(); path.pop_back()) depths[path.back()] = depth == kOutside ? kOutside : ++depth;
    if (depths[start] != kOutside) found.push_back(start);
  }
  std::ranges::sort(found, std::greater(), [&](int32_t id) { return depths[id]; });
  return found;
}

void PrefixIndex::check_integrity() const {
  thread_local std::vector<int32_t> num_children;
  num_children.assign(entries_.size(), 0);
  int num_present = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!entry.present) continue;
    ++num_present;
    const auto block_id = static_cast<int32_t>(i);
    CHECK(find(entry.parent_block_id, block_tokens(block_id), entry.reuse_scope) == block_id,
          "block {} is not found under its own key", block_id);
    if (entry.parent_block_id != kNoBlock) {
      CHECK(entries_[entry.parent_block_id].present, "parent {} of block {} is gone", entry.parent_block_id, block_id);
      ++num_children[entry.parent_block_id];
    }
  }
  CHECK(num_present == size_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    CHECK(!entries_[i].present || entries_[i].num_children == num_children[i], "block {} counts {} children, has {}", i,
          entries_[i].num_children, num_children[i]);
  }
}

}  // namespace spate
