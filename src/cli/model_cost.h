// What a model's steps must read and compute at least, by its config: the limits that benches compare with.
//
// Of experts a step reads those that it uses, each once. A token is taken to choose among all of a layer at random, as
// dummy weights do: n tokens use num_experts * (1 - (1 - num_experts_per_tok / num_experts)^n) of them.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "quant/quantization.h"
#include "weights/model_config.h"

namespace spate {

// Of all ranks together.
struct ModelCost {
  double weight_bytes = 0;  // matrices that every step reads, the lm_head once; without a separate embedding table
  double expert_bytes = 0;  // of one expert of each layer that has experts
  int64_t num_experts = 0, num_experts_per_tok = 0;
  double linear_flops_per_token = 0;  // of the layers, experts included, without lm_head
  double kv_bytes_per_token = 0;
  double lm_head_flops = 0;             // of one row of logits
  double attention_flops_per_pair = 0;  // query token x key token, all layers; latent attention in its absorbed form
};
ModelCost model_cost(const ModelConfig& config, DType act_dtype, DType kv_dtype, const Quantization& quantization);

double step_weight_bytes(const ModelCost& cost, int64_t num_tokens);
double prefill_flops(const ModelCost& cost, int64_t len);  // of one prompt, with one row of logits
double decode_step_bytes(const ModelCost& cost, int64_t num_seqs, int64_t seq_len);
double decode_step_flops(const ModelCost& cost, int64_t num_seqs, int64_t seq_len);

}  // namespace spate
