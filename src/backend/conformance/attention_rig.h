// A paged cache and a batch of sequences over it, for the cases of attention.
#pragma once

#include "backend/conformance/rig.h"

namespace spate::conformance {

struct SeqShape {
  int64_t seq_len, query_len;
};

struct AttentionShape {
  DType act = DType::kBf16, kv_dtype = DType::kBf16;
  int64_t num_kv_heads = 1, group_size = 1, head_dim = 64, kv_block_size = 16;
  int window = 0;
  std::vector<SeqShape> seqs;
  float q_magnitude = 1;  // times as large: scores of 24 lie far apart
  float k_magnitude = 1, v_magnitude = 1;
  int v_octaves = 0;  // so much smaller than the last value of a sequence is the first: 2^-v_octaves

  int64_t num_heads() const { return num_kv_heads * group_size; }
  int64_t num_tokens() const;
  KvLayerDesc kv_desc() const;
  std::string label() const;
};

// Host data of a batch: q of this step's tokens, k and v of all tokens of all sequences, block tables of random blocks.
struct AttentionData {
  AttentionShape shape;
  HostTensor q;             // [num_tokens, num_heads * head_dim]
  HostTensor k, v;          // [sum of seq_len, num_kv_heads * head_dim]
  HostTensor slots;         // [sum of seq_len]
  HostTensor block_table;   // [rows of the state, max_blocks_per_seq]
  HostTensor seq_rows, cu_seqlens_q, seq_lens;
  int64_t num_blocks = 0;
};

AttentionData make_attention_data(const AttentionShape& shape, uint64_t seed);

// Writes all k and v to a new cache full of NaN, runs attention, returns the output, [num_tokens, num_heads * head_dim] inside poison.
// chunk > 0: runs each sequence's queries in chunks of that many, in as many calls.
HostTensor run_attention(Side& side, const AttentionData& data, int64_t chunk = 0);

}  // namespace spate::conformance
