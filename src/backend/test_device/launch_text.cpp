#include "backend/test_device/launch_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <string_view>
#include <type_traits>

namespace spate {
namespace {

template <typename T>
requires std::is_arithmetic_v<T> || std::is_enum_v<T> std::string text_of(T value) {
  if constexpr (std::is_enum_v<T>) {
    return fmt::format("{}", static_cast<int>(value));
  } else {
    return fmt::format("{}", value);
  }
}

std::string text_of(const void* pointer) { return fmt::format("{}", pointer); }

std::string text_of(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string strides;
  for (int i = 0; i < tensor.rank(); ++i) strides += fmt::format(" {}", tensor.stride(i));
  return fmt::format("{} {} {} strides{}", fmt::ptr(tensor.raw()), dtype_name(tensor.dtype()), tensor.shape_string(),
                     strides);
}

std::string text_of(const KvLayerDesc& desc);
std::string text_of(const KvView& kv);
std::string text_of(const RowState& state);
std::string text_of(const StepInputs& inputs);
std::string text_of(const ExpertRouting& routing);
std::string text_of(const LongPrompts& prompts);
std::string text_of(const AddRmsNormParams& p) { return launch_text(p); }
std::string text_of(const ExpertMlpParams& p) { return launch_text(p); }
std::string text_of(const QkNormRopeKvWriteParams& p) { return launch_text(p); }
std::string text_of(const AttentionPagedParams& p) { return launch_text(p); }

// "op(a: 1, b: 2)"; `names` is "a, b".
template <typename... Fields>
std::string join(std::string_view op, std::string_view names, const Fields&... fields) {
  std::string text(op);
  std::string_view separator = "(";
  const auto add = [&](const std::string& field) {
    const size_t length = std::min(names.find(','), names.size());
    text += fmt::format("{}{}: {}", separator, names.substr(0, length), field);
    names.remove_prefix(std::min(length + 2, names.size()));
    separator = ", ";
  };
  (add(text_of(fields)), ...);
  return text + ")";
}

// Names every member of `params`, in order: one too few or too many does not compile.
#define SPATE_TEXT(op, params, ...)     \
  const auto& [__VA_ARGS__] = (params); \
  return join(op, #__VA_ARGS__, __VA_ARGS__)

std::string text_of(const KvLayerDesc& desc) {
  SPATE_TEXT("", desc, kind, num_kv_heads, head_dim, kv_lora_rank, qk_rope_head_dim, kv_block_size, dtype);
}
std::string text_of(const KvView& kv) { SPATE_TEXT("", kv, desc, data, block_bytes, num_blocks); }
std::string text_of(const RowState& state) {
  SPATE_TEXT("", state, token_ids, num_tokens, num_computed_tokens, block_table, sampling, bias_ids, bias_values,
             stop_ids);
}
std::string text_of(const ExpertRouting& routing) {
  SPATE_TEXT("", routing, scores, group_scores, num_groups, num_chosen_groups, normalises, min_sum, scale);
}
std::string text_of(const LongPrompts& prompts) {
  SPATE_TEXT("", prompts, first_seq, num_seqs, first_token, num_tokens, num_keys, max_query_len_before);
}
std::string text_of(const StepInputs& inputs) {
  SPATE_TEXT("", inputs, token_ids, positions, slot_mapping, seq_rows, cu_seqlens_q, seq_lens, sample_token_idxs,
             sample_state_rows, sample_offsets, sample_masks, sample_drafts);
}

}  // namespace

std::string launch_text(const EmbeddingParams& p) { SPATE_TEXT("embedding", p, token_ids, table, first_row, out); }
std::string launch_text(const LinearParams& p) { SPATE_TEXT("linear", p, x, weight, bias, out, matrix_idx); }
std::string launch_text(const RmsNormParams& p) { SPATE_TEXT("rms_norm", p, x, weight, eps, out); }
std::string launch_text(const AddParams& p) { SPATE_TEXT("add", p, a, b, out); }
std::string launch_text(const SiluAndMulParams& p) { SPATE_TEXT("silu_and_mul", p, gate_up, out, reader); }
std::string launch_text(const RopeParams& p) { SPATE_TEXT("rope", p, positions, cos_sin, x, interleaved); }
std::string launch_text(const KvWriteParams& p) { SPATE_TEXT("kv_write", p, k, v, slot_mapping, kv); }
std::string launch_text(const AttentionPagedParams& p) {
  SPATE_TEXT("attention_paged", p, q, kv, block_table, seq_rows, cu_seqlens_q, seq_lens, max_query_len, max_seq_len,
             softmax_scale, window, out);
}
std::string launch_text(const GatherRowsParams& p) { SPATE_TEXT("gather_rows", p, x, row_ids, out); }
std::string launch_text(const ScatterRowsParams& p) { SPATE_TEXT("scatter_rows", p, x, row_ids, out); }
std::string launch_text(const ApplyUpdatesParams& p) { SPATE_TEXT("apply_updates", p, plan_host, plan, state); }
std::string launch_text(const BeginStepParams& p) { SPATE_TEXT("begin_step", p, plan, state, inputs, kv_block_size); }
std::string launch_text(const SampleParams& p) {
  SPATE_TEXT("sample", p, logits, sample_state_rows, sample_offsets, sample_masks, sample_drafts, plan, state,
             next_token_ids, is_relaxed);
}
std::string launch_text(const LogprobsParams& p) {
  SPATE_TEXT("logprobs", p, logits, target_ids, target_logprob, target_rank, top_ids, top_logprobs);
}
std::string launch_text(const FinishStepParams& p) {
  SPATE_TEXT("finish_step", p, plan, state, num_seqs, next_token_ids, num_accepted);
}
std::string launch_text(const KvCopyBlocksParams& p) { SPATE_TEXT("kv_copy_blocks", p, kv, src_dst); }
std::string launch_text(const RouteExpertsParams& p) {
  SPATE_TEXT("route_experts", p, logits, bias, routing, expert_ids, expert_weights);
}
std::string launch_text(const ExpertMlpParams& p) {
  SPATE_TEXT("expert_mlp", p, x, expert_ids, expert_weights, gate_up, down, shared, shared_gate, out);
}
std::string launch_text(const LatentWriteParams& p) { SPATE_TEXT("latent_write", p, latent, slot_mapping, kv); }
std::string launch_text(const AttentionLatentParams& p) {
  SPATE_TEXT("attention_latent", p, q_latent, q_rope, kv, block_table, seq_rows, cu_seqlens_q, seq_lens, max_query_len,
             max_seq_len, softmax_scale, out);
}
std::string launch_text(const AttentionLatentExpandedParams& p) {
  SPATE_TEXT("attention_latent_expanded", p, q, kv_up, kv, block_table, seq_rows, cu_seqlens_q, seq_lens, num_keys,
             softmax_scale, out);
}
std::string launch_text(const LinearHeadsParams& p) { SPATE_TEXT("linear_heads", p, x, weight, out); }
std::string launch_text(const AddRmsNormParams& p) {
  SPATE_TEXT("add_rms_norm", p, x, residual, weight, eps, out, reader);
}
std::string launch_text(const ExpertMlpAddNormParams& p) { SPATE_TEXT("expert_mlp_add_norm", p, experts, norm); }
std::string launch_text(const LatentNormRopeWriteParams& p) {
  SPATE_TEXT("latent_norm_rope_write", p, q_rope, latent, norm, eps, positions, cos_sin, interleaved, slot_mapping, kv);
}
std::string launch_text(const QkNormRopeKvWriteParams& p) {
  SPATE_TEXT("qk_norm_rope_kv_write", p, q, k, v, q_norm, k_norm, eps, positions, cos_sin, interleaved, slot_mapping,
             kv);
}
std::string launch_text(const QkNormRopeAttentionParams& p) {
  SPATE_TEXT("qk_norm_rope_attention", p, write, attention);
}
std::string launch_text(const LinearSiluAndMulParams& p) {
  SPATE_TEXT("linear_silu_and_mul", p, x, weight, bias, gate_up, out, matrix_idx, reader);
}
std::string launch_text(const StepKey& key) {
  SPATE_TEXT("key", key, num_seqs, num_tokens, num_logits, max_query_len, max_seq_len, outputs, num_top_logprobs,
             plan_generation, long_prompts, decodes_only, part);
}

}  // namespace spate
