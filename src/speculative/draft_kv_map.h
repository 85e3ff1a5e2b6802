// DraftKvMap: whose keys and values the blocks of a draft model's cache hold.
//
// A block has a place in the target's cache and one in the draft's. The target's is written by every step; the draft's
// only when drafts are proposed. So a sequence may have blocks, by prefix or from an earlier owner, that the draft
// never wrote, or wrote for other tokens. The map knows the tokens behind each block's contents; the draft computes
// what is missing. Nobody needs to tell it of preemptions, forks, evictions or rejected drafts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spate {

// The tokens of one sequence, drafts behind the known ones included, with a hash of all tokens before each block.
class TokenChain {
 public:
  explicit TokenChain(int kv_block_size) : kv_block_size_(static_cast<size_t>(kv_block_size)) {}
  // Known tokens only grow. Drops the drafts.
  void set_known(std::span<const int32_t> token_ids);
  void append_draft(int32_t token_id);
  int size() const { return static_cast<int>(token_ids_.size()); }
  int32_t operator[](int position) const { return token_ids_[static_cast<size_t>(position)]; }
  uint64_t hash_before_block(int block_idx) const { return hashes_[static_cast<size_t>(block_idx)]; }

 private:
  void extend_hashes();
  size_t kv_block_size_;
  size_t num_known_ = 0;
  std::vector<int32_t> token_ids_;
  std::vector<uint64_t> hashes_{0x243f6a8885a308d3u};  // of the tokens before block i, for all blocks that are begun
};

//
// With reads_next_tokens a place holds the keys and values of its token joined with the token behind it (multi-token
// prediction): the chain is then of the tokens behind the places, the row's without the first. The last place of a block
// depends on the first token of the next block, in which sequences that share the block may differ. There any token counts
// as held: a wrong one costs less than to write the block again and again. Of several layers the next one's place joins
// the token one further on: what a place holds then depends on as many tokens of the chain, its own first.
class DraftKvMap {
 public:
  DraftKvMap(int num_blocks, int kv_block_size, bool reads_next_tokens = false, int num_layers = 1);
  // How many tokens from the chain's start on are in these blocks.
  int num_held(const TokenChain& chain, std::span<const int32_t> block_ids) const;
  // Tokens [begin, end) of the chain are written to its blocks, all before them are held. Positions that have no block
  // in block_ids are passed over: they are written elsewhere. With several layers the chain goes on behind `end`.
  void write(const TokenChain& chain, std::span<const int32_t> block_ids, int begin, int end);
  // Something that is not to be held was written at this position.
  void forget(std::span<const int32_t> block_ids, int position);

 private:
  struct Block {
    uint64_t hash_before = 0;
    int num_tokens = 0;
  };
  const int kv_block_size_;
  const bool reads_next_tokens_;
  const int num_layers_;
  std::vector<Block> blocks_;
  // [num_blocks, kv_block_size]; behind a block's num_tokens those that the layers at its last place have read.
  std::vector<int32_t> token_ids_;
};

}  // namespace spate
