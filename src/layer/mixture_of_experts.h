// MixtureOfExperts: a router sends each token to a few of many MLPs, whose outputs are added by its weights; a shared
// MLP, where there is one, sees every token.
//
//   x -> gate (router) -> route_experts -> ids and weights
//   x -> shared expert ------------------> expert_mlp -> out
//
// Tensor parallel: the intermediate columns of every expert and of the shared one are sharded, the router is on every
// rank. So all ranks choose the same experts and read equal shares of them, and one all-reduce sums both parts.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend/layer_products.h"
#include "layer/feed_forward.h"
#include "layer/linear.h"
#include "layer/mlp.h"

namespace spate {

// Sizes are over all ranks. Names are the checkpoint's.
struct MixtureOfExpertsSpec {
  std::string name;  // "model.layers.1.mlp"; "gate" and "experts" lie below it
  int64_t hidden_size = 0;
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t intermediate_size = 0;  // of an expert
  ExpertRouting routing;
  // Of experts with a tensor for each matrix: "<name>.experts.3.gate_proj.weight".
  std::string gate_proj = "gate_proj", up_proj = "up_proj", down_proj = "down_proj";
  std::string correction_bias;           // f32, added to scores for the choice alone: its full name; empty: none
  bool correction_bias_is_row = false;   // [1, num_experts]
  std::string shared_name;               // "shared_experts", below `name`; empty: none
  int64_t shared_intermediate_size = 0;  // of all shared experts together
  bool has_shared_gate = false;  // "<name>.shared_expert_gate" [1, hidden_size]: its sigmoid scales the shared part
};

class MixtureOfExperts final : public FeedForward {
 public:
  // Experts are read one tensor a matrix, or, where the checkpoint has experts.gate_up_proj [num_experts, 2 *
  // intermediate_size, hidden_size], from that and experts.down_proj.
  static Result<std::unique_ptr<FeedForward>> create(ParameterFactory& factory, const MixtureOfExpertsSpec& spec);

  void take_workspace(Arena& arena) override;
  // Those of the shared expert and of each other, by the names of a checkpoint with a tensor a matrix.
  void list_products(const std::string& norm, std::vector<Product>& products) const override;
  void forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const override;
  // The sum of the experts in one op with the norm behind.
  void forward_with_norms(const StepContext& ctx, const NormsAround& norms, const Tensor& x,
                          const Tensor& residual) const override;
  // Its part of ExpertLayerProductsParams; where it can_join().
  void put_products(ExpertLayerProductsParams& params, int64_t num_tokens) const;
  // This rank computes all of it, and a shared expert without a scale.
  bool can_join() const { return !shared_gate_.has_value() && !sum_over_ranks_; }

 private:
  // Chooses the experts of each row of x and runs the shared one. What then is left to do, into `out`.
  ExpertMlpParams start_experts(const StepContext& ctx, const Tensor& x, const Tensor& out) const;
  MixtureOfExperts(const MixtureOfExpertsSpec& spec, Linear router) : spec_(spec), router_(std::move(router)) {}
  Status make_experts(ParameterFactory& factory);
  Status make_shared(ParameterFactory& factory);

  const MixtureOfExpertsSpec spec_;
  Linear router_;
  DeviceVector correction_bias_;
  std::unique_ptr<PackedWeight> gate_up_, down_;  // num_experts matrices each, intermediate columns of this rank
  std::optional<Mlp> shared_;
  std::optional<Linear> shared_gate_;
  bool sum_over_ranks_ = false;
  // Scratch of [max_num_tokens, ...].
  Tensor logits_;          // [.., num_experts] f32
  Tensor expert_ids_;      // [.., num_experts_per_tok] i32
  Tensor expert_weights_;  // [.., num_experts_per_tok] f32
  Tensor shared_out_;      // [.., hidden_size] act
  Tensor shared_scale_;    // [.., 1] f32, before the sigmoid
};

}  // namespace spate
