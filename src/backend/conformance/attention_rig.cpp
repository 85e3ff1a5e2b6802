#include "backend/conformance/attention_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace spate::conformance {

int64_t AttentionShape::num_tokens() const {
  int64_t sum = 0;
  for (const SeqShape& seq : seqs) sum += seq.query_len;
  return sum;
}

KvLayerDesc AttentionShape::kv_desc() const {
  return {.kind = window > 0 ? KvKind::kWindow : KvKind::kFull,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .kv_block_size = kv_block_size,
          .dtype = kv_dtype};
}

std::string AttentionShape::label() const {
  std::string text = fmt::format("{} heads over {}, head_dim {}, blocks of {}, window {}, seqs", num_heads(), num_kv_heads,
                                 head_dim, kv_block_size, window);
  for (const SeqShape& seq : seqs) text += fmt::format(" {}/{}", seq.query_len, seq.seq_len);
  return text;
}

AttentionData make_attention_data(const AttentionShape& shape, uint64_t seed) {
  AttentionData data;
  data.shape = shape;
  Rng rng(test_seed(), seed);
  const auto num_seqs = static_cast<int64_t>(shape.seqs.size());
  int64_t num_keys = 0, max_blocks = 1;
  for (const SeqShape& seq : shape.seqs) {
    num_keys += seq.seq_len;
    const int64_t blocks = (seq.seq_len + shape.kv_block_size - 1) / shape.kv_block_size;
    max_blocks = std::max(max_blocks, blocks);
    data.num_blocks += blocks;
  }
  data.num_blocks += 3;
  data.q = random_tensor(rng, shape.act, {shape.num_tokens(), shape.num_heads() * shape.head_dim}, shape.q_magnitude);
  data.k = random_tensor(rng, shape.act, {num_keys, shape.num_kv_heads * shape.head_dim}, shape.k_magnitude);
  const int64_t width = shape.num_kv_heads * shape.head_dim;
  data.v = random_tensor(rng, shape.act, {num_keys, width}, shape.v_magnitude);
  if (shape.v_octaves > 0) {
    int64_t row = 0;
    for (const SeqShape& seq : shape.seqs) {
      for (int64_t i = 0; i < seq.seq_len; ++i, ++row) {
        const auto octaves = static_cast<int>((seq.seq_len - 1 - i) * shape.v_octaves / seq.seq_len);
        const HostTensor v = random_tensor(rng, shape.act, {1, width}, std::ldexp(shape.v_magnitude, -octaves));
        std::memcpy(data.v.view().rows(row, row + 1).raw(), v.view().raw(), static_cast<size_t>(v.view().num_bytes()));
      }
    }
  }

  std::vector<int32_t> blocks(static_cast<size_t>(data.num_blocks));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  for (size_t i = blocks.size() - 1; i > 0; --i) std::swap(blocks[i], blocks[rng.below(i + 1)]);
  const int64_t state_rows = num_seqs + 2;
  data.block_table = poisoned_tensor(DType::kI32, {state_rows, max_blocks});
  data.slots = HostTensor(DType::kI32, {num_keys});
  data.seq_rows = HostTensor(DType::kI32, {num_seqs});
  data.seq_lens = HostTensor(DType::kI32, {num_seqs});
  data.cu_seqlens_q = HostTensor(DType::kI32, {num_seqs + 1});
  size_t next_block = 0, key = 0;
  for (int64_t s = 0; s < num_seqs; ++s) {
    const SeqShape& seq = shape.seqs[static_cast<size_t>(s)];
    const int64_t row = state_rows - 1 - s;
    data.seq_rows.span<int32_t>()[static_cast<size_t>(s)] = static_cast<int32_t>(row);
    data.seq_lens.span<int32_t>()[static_cast<size_t>(s)] = static_cast<int32_t>(seq.seq_len);
    data.cu_seqlens_q.span<int32_t>()[static_cast<size_t>(s + 1)] =
        data.cu_seqlens_q.span<int32_t>()[static_cast<size_t>(s)] + static_cast<int32_t>(seq.query_len);
    int32_t* table = data.block_table.span<int32_t>().data() + row * max_blocks;
    for (int64_t p = 0; p < seq.seq_len; ++p) {
      if (p % shape.kv_block_size == 0) table[p / shape.kv_block_size] = blocks[next_block++];
      data.slots.span<int32_t>()[key++] =
          static_cast<int32_t>(table[p / shape.kv_block_size] * shape.kv_block_size + p % shape.kv_block_size);
    }
  }
  return data;
}

namespace {

void write_all(Side& side, const AttentionData& data, const KvView& kv) {
  const AttentionShape& shape = data.shape;
  const int64_t num_keys = data.slots.view().dim(0), width = shape.num_kv_heads * shape.head_dim;
  // k and v are columns of one row, as in qkv; the tokens come in two calls, and rubbish with a slot of -1 is skipped.
  const auto k = side.put_padded(data.k, width, 0), v = side.put_padded(data.v, 0, 2 * width);
  const Tensor slots = side.put(data.slots);
  const Tensor k_heads = k.view.split_last(shape.num_kv_heads, shape.head_dim);
  const Tensor v_heads = v.view.split_last(shape.num_kv_heads, shape.head_dim);
  const int64_t half = num_keys / 2;
  for (const auto& [begin, end] : {std::pair{half, num_keys}, std::pair{int64_t{0}, half}}) {
    side.ops().kv_write(side.stream(),
                        {.k = k_heads.rows(begin, end), .v = v_heads.rows(begin, end), .slot_mapping = slots.rows(begin, end), .kv = kv});
  }
  HostTensor skipped(DType::kI32, {num_keys});
  std::fill_n(skipped.span<int32_t>().begin(), num_keys, -1);
  side.ops().kv_write(side.stream(), {.k = v_heads, .v = k_heads, .slot_mapping = side.put(skipped), .kv = kv});
}

}  // namespace

HostTensor run_attention(Side& side, const AttentionData& data, int64_t chunk) {
  const AttentionShape& shape = data.shape;
  const KvView kv = side.put_kv(shape.kv_desc(), data.num_blocks);
  write_all(side, data, kv);
  const int64_t num_tokens = shape.num_tokens(), width = shape.num_heads() * shape.head_dim;
  const auto q = side.put_padded(data.q, 0, 2 * shape.num_kv_heads * shape.head_dim);
  const auto out = side.put_padded(poisoned_tensor(shape.act, {num_tokens, width}), shape.head_dim, 0);
  const Tensor block_table = side.put(data.block_table);
  const auto call = [&](const Tensor& q_rows, const Tensor& out_rows, const HostTensor& rows, const HostTensor& cu_seqlens,
                        const HostTensor& lens) {
    int max_query_len = 0, max_seq_len = 0;
    for (int64_t s = 0; s < lens.view().dim(0); ++s) {
      const int32_t* cu = cu_seqlens.view().data<int32_t>();
      max_query_len = std::max(max_query_len, cu[s + 1] - cu[s]);
      max_seq_len = std::max(max_seq_len, lens.view().data<int32_t>()[s]);
    }
    side.ops().attention_paged(side.stream(), {.q = q_rows.split_last(shape.num_heads(), shape.head_dim),
                                               .kv = kv,
                                               .block_table = block_table,
                                               .seq_rows = side.put(rows),
                                               .cu_seqlens_q = side.put(cu_seqlens),
                                               .seq_lens = side.put(lens),
                                               .max_query_len = max_query_len,
                                               .max_seq_len = max_seq_len,
                                               .softmax_scale = 1 / std::sqrt(static_cast<float>(shape.head_dim)),
                                               .window = shape.window,
                                               .out = out_rows.split_last(shape.num_heads(), shape.head_dim)});
  };
  if (chunk == 0) {
    call(q.view, out.view, data.seq_rows, data.cu_seqlens_q, data.seq_lens);
    return side.get(out.whole);
  }
  int64_t token = 0;
  for (size_t s = 0; s < shape.seqs.size(); ++s) {
    const SeqShape& seq = shape.seqs[s];
    for (int64_t first = 0; first < seq.query_len; first += chunk) {
      const int64_t count = std::min(chunk, seq.query_len - first);
      HostTensor row(DType::kI32, {1}), cu_seqlens(DType::kI32, {2}), len(DType::kI32, {1});
      row.span<int32_t>()[0] = data.seq_rows.view().data<int32_t>()[s];
      cu_seqlens.span<int32_t>()[1] = static_cast<int32_t>(count);
      len.span<int32_t>()[0] = static_cast<int32_t>(seq.seq_len - seq.query_len + first + count);
      call(q.view.rows(token, token + count), out.view.rows(token, token + count), row, cu_seqlens, len);
      token += count;
    }
  }
  return side.get(out.whole);
}

}  // namespace spate::conformance
