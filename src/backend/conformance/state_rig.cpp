#include "backend/conformance/state_rig.h"

#include <algorithm>
#include <cstring>

namespace spate::conformance {

HostState poisoned_state(const StateSizes& sizes) {
  const int64_t rows = sizes.max_num_seqs;
  HostState host;
  host.token_ids = poisoned_tensor(DType::kI32, {rows, sizes.max_model_len});
  host.num_tokens = poisoned_tensor(DType::kI32, {rows});
  host.num_computed_tokens = poisoned_tensor(DType::kI32, {rows});
  host.block_table = poisoned_tensor(DType::kI32, {rows, sizes.max_blocks_per_seq});
  host.sampling = poisoned_tensor(DType::kU8, {rows, static_cast<int64_t>(sizeof(RowSampling))});
  host.bias_ids = poisoned_tensor(DType::kI32, {rows, kMaxLogitBias});
  host.bias_values = poisoned_tensor(DType::kF32, {rows, kMaxLogitBias});
  host.stop_ids = poisoned_tensor(DType::kI32, {rows, kMaxStopIds});
  return host;
}

RowState put_state(Side& side, const HostState& host) {
  return {.token_ids = side.put(host.token_ids),
          .num_tokens = side.put(host.num_tokens),
          .num_computed_tokens = side.put(host.num_computed_tokens),
          .block_table = side.put(host.block_table),
          .sampling = side.put(host.sampling),
          .bias_ids = side.put(host.bias_ids),
          .bias_values = side.put(host.bias_values),
          .stop_ids = side.put(host.stop_ids)};
}

DeviceState put_state(Side& side, const StateSizes& sizes) { return {put_state(side, poisoned_state(sizes))}; }

Outputs DeviceState::read(Side& side) const {
  Outputs outputs;
  const auto add = [&](const char* name, const Tensor& tensor) { outputs.push_back({name, side.get(tensor), {}}); };
  add("token_ids", state.token_ids);
  add("num_tokens", state.num_tokens);
  add("num_computed_tokens", state.num_computed_tokens);
  add("block_table", state.block_table);
  add("sampling", state.sampling);
  add("bias_ids", state.bias_ids);
  add("bias_values", state.bias_values);
  add("stop_ids", state.stop_ids);
  return outputs;
}

uint32_t PlanParts::add_data(const std::vector<int32_t>& values) {
  const auto begin = static_cast<uint32_t>(data.size());
  data.insert(data.end(), values.begin(), values.end());
  return begin;
}

std::vector<uint64_t> PlanParts::image() const {
  StepPlanHeader header;
  header.step_id = 1;
  uint32_t bytes = sizeof(StepPlanHeader);
  const auto reserve = [&bytes](size_t size) {
    const uint32_t offset = bytes;
    bytes += static_cast<uint32_t>((size + 7) / 8 * 8);
    return offset;
  };
  header.num_row_updates = static_cast<int32_t>(row_updates.size());
  header.num_block_updates = static_cast<int32_t>(block_updates.size());
  header.num_seqs = static_cast<int32_t>(seqs.size());
  header.num_data = static_cast<uint32_t>(data.size());
  header.row_updates_offset = reserve(row_updates.size() * sizeof(RowUpdate));
  header.block_updates_offset = reserve(block_updates.size() * sizeof(BlockUpdate));
  header.block_copies_offset = reserve(0);
  header.seqs_offset = reserve(seqs.size() * sizeof(SeqStep));
  header.data_offset = reserve(data.size() * sizeof(int32_t));
  header.masks_offset = reserve(masks.size() * sizeof(uint32_t));
  header.mask_words = mask_words;
  header.num_masks = mask_words > 0 ? static_cast<int32_t>(masks.size()) / mask_words : 0;
  header.total_bytes = bytes;
  for (const SeqStep& seq : seqs) {
    header.num_tokens += seq.query_len;
    header.num_sampled += (seq.flags & kSample) != 0;
    header.num_logits += num_logits_of(seq);
    header.max_query_len = std::max(header.max_query_len, seq.query_len);
    header.max_seq_len = std::max(header.max_seq_len, seq.num_computed_tokens + seq.query_len);
  }
  std::vector<uint64_t> image(bytes / 8);
  char* out = reinterpret_cast<char*>(image.data());
  const auto copy = [out](uint32_t offset, const auto& values) {
    if (!values.empty()) std::memcpy(out + offset, values.data(), values.size() * sizeof(values[0]));
  };
  std::memcpy(out, &header, sizeof header);
  copy(header.row_updates_offset, row_updates);
  copy(header.block_updates_offset, block_updates);
  copy(header.seqs_offset, seqs);
  copy(header.data_offset, data);
  copy(header.masks_offset, masks);
  return image;
}

StepInputs put_inputs(Side& side, const LaunchCounts& counts) {
  const auto ints = [&](int64_t n) { return side.put(poisoned_tensor(DType::kI32, {n})); };
  return {.token_ids = ints(counts.num_tokens),
          .positions = ints(counts.num_tokens),
          .slot_mapping = ints(counts.num_tokens),
          .seq_rows = ints(counts.num_seqs),
          .cu_seqlens_q = ints(counts.num_seqs + 1),
          .seq_lens = ints(counts.num_seqs),
          .sample_token_idxs = ints(counts.num_logits),
          .sample_state_rows = ints(counts.num_logits),
          .sample_offsets = ints(counts.num_logits),
          .sample_masks = ints(counts.num_logits),
          .sample_drafts = ints(counts.num_logits)};
}

}  // namespace spate::conformance
