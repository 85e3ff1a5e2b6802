#include "cli/bench_runs.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/rng.h"
#include "llm/offline.h"

namespace spate {
Result<BenchTimes> run_batch(LoadedModel& model, const BenchBatch& batch) {
  Rng rng(batch.seed, 0xbe7c4);
  std::vector<OfflineRequest> requests(static_cast<size_t>(batch.num_seqs));
  for (OfflineRequest& request : requests) {
    for (int i = 0; i < batch.input_len; ++i) {
      request.prompt_token_ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(model.config.vocab_size))));
    }
    request.sampling.n = batch.n;
    request.sampling.temperature = batch.n > 1 ? 1.0f : 0.0f;
    request.sampling.max_tokens = batch.output_len;
    request.sampling.ignore_eos = true;
  }
  struct SeqTimes {
    std::vector<double> tokens;  // when each came
  };
  const int num_seqs = batch.num_seqs * batch.n;
  std::vector<SeqTimes> seqs(static_cast<size_t>(num_seqs));
  const double start = now_s();
  ASSIGN_OR_RETURN(const auto results, run_offline(*model.engine, model.eos_token_ids, std::move(requests), 0,
                                                   [&](size_t request, const Output& output) {
                                                     SeqTimes& seq = seqs[request * static_cast<size_t>(batch.n) +
                                                                          static_cast<size_t>(output.index)];
                                                     for (size_t i = 0; i < output.token_ids.size(); ++i) {
                                                       seq.tokens.push_back(now_s());
                                                     }
                                                   }));
  double all_started = start, first_ended = 1e300, end = start;
  BenchTimes times;
  for (const SeqTimes& seq : seqs) {
    if (seq.tokens.empty()) return internal_error("bench: a sequence gave no token");
    all_started = std::max(all_started, seq.tokens.front());
    first_ended = std::min(first_ended, seq.tokens.back());
    end = std::max(end, seq.tokens.back());
    times.num_output_tokens += static_cast<int64_t>(seq.tokens.size());
  }
  for (const SeqTimes& seq : seqs) {
    times.num_decode_tokens += std::count_if(seq.tokens.begin(), seq.tokens.end(), [&](double t) {
      return t > all_started && t <= first_ended;
    });
  }
  times.total_s = end - start;
  times.prefill_s = all_started - start;
  times.decode_s = std::max(0.0, first_ended - all_started);
  return times;
}

double median(std::vector<double> values) { return percentile(std::move(values), 50); }

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double position = percent / 100 * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(position));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (position - static_cast<double>(below));
}

double prefill_flops(const ModelCost& cost, int64_t len) {
  const auto tokens = static_cast<double>(len);
  return tokens * cost.linear_flops_per_token + 0.5 * tokens * tokens * cost.attention_flops_per_pair +
         cost.lm_head_flops;
}

double decode_step_bytes(const ModelCost& cost, int64_t num_seqs, int64_t seq_len) {
  return cost.weight_bytes + static_cast<double>(num_seqs * seq_len) * cost.kv_bytes_per_token;
}

double decode_step_flops(const ModelCost& cost, int64_t num_seqs, int64_t seq_len) {
  return static_cast<double>(num_seqs) * (cost.linear_flops_per_token + cost.lm_head_flops +
                                          static_cast<double>(seq_len) * cost.attention_flops_per_pair);
}

ModelCost model_cost(const ModelConfig& c, DType act_dtype, DType kv_dtype, const Quantization& quantization) {
  const WeightSpec plain{.codes = act_dtype == DType::kF32 ? Codes::kF32 : Codes::kBf16};
  const WeightSpec linear = quantization.enabled() ? quantization.linear : plain;
  const WeightSpec vocabulary = quantization.enabled() ? quantization.vocabulary : plain;
  const int64_t qkv_width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
  const std::pair<int64_t, int64_t> shapes[] = {{qkv_width, c.hidden_size},
                                                {c.hidden_size, c.num_heads * c.head_dim},
                                                {2 * c.intermediate_size, c.hidden_size},
                                                {c.hidden_size, c.intermediate_size}};
  int64_t layer_bytes = 0, layer_weights = 0;
  for (const auto& [out_features, in_features] : shapes) {
    layer_bytes += weight_bytes(linear, out_features, in_features);
    layer_weights += out_features * in_features;
  }
  const auto layers = static_cast<double>(c.num_layers), head = static_cast<double>(c.head_dim);
  const double kv_element = head * static_cast<double>(dtype_bytes(kv_dtype)) + (kv_dtype == DType::kI8 ? 4 : 0);
  return {.weight_bytes = layers * static_cast<double>(layer_bytes) +
                          static_cast<double>(weight_bytes(vocabulary, c.vocab_size, c.hidden_size)),
          .linear_flops_per_token = 2 * layers * static_cast<double>(layer_weights),
          .kv_bytes_per_token = 2 * layers * static_cast<double>(c.num_kv_heads) * kv_element,
          .lm_head_flops = 2 * static_cast<double>(c.vocab_size * c.hidden_size),
          .attention_flops_per_pair = 4 * layers * static_cast<double>(c.num_heads) * head};
}

}  // namespace spate
