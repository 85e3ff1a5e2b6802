// The measurements that the offline benches share: random prompts on an engine, timed token by token.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "llm/loaded_model.h"

namespace spate {

struct BenchBatch {
  int num_seqs = 1;
  int input_len = 0;
  int output_len = 0;
  int n = 1;
  uint64_t seed = 0;  // other seeds give other prompts, so that no prefix is found
};

struct BenchTimes {
  double total_s = 0;          // first submit to last token
  double prefill_s = 0;        // first submit to the last sequence's first token
  double decode_s = 0;         // from then to the first sequence's last token: all sequences decode together
  int64_t num_decode_tokens = 0;  // that came in decode_s
  int64_t num_output_tokens = 0;
};

// Runs the batch on a started engine, ignoring eos.
Result<BenchTimes> run_batch(LoadedModel& model, const BenchBatch& batch);

double median(std::vector<double> values);
double percentile(std::vector<double> values, double percent);  // linear interpolation, as numpy

// What one decode step must read and one prefill must compute, of all ranks together.
struct ModelCost {
  double weight_bytes = 0;        // matrices and vectors, the lm_head once, without a separate embedding table
  double linear_flops_per_token = 0;  // of the layers, without lm_head
  double kv_bytes_per_token = 0;
  double lm_head_flops = 0;       // of one row of logits
  double attention_flops_per_pair = 0;  // query token x key token, all layers
};
double prefill_flops(const ModelCost& cost, int64_t len);  // of one prompt, with one row of logits
double decode_step_bytes(const ModelCost& cost, int64_t num_seqs, int64_t seq_len);
double decode_step_flops(const ModelCost& cost, int64_t num_seqs, int64_t seq_len);
ModelCost model_cost(const ModelConfig& config, DType act_dtype, DType kv_dtype, const Quantization& quantization);

}  // namespace spate
