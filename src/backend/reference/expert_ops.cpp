// Experts: which ones a token goes to, and what they give.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/check_params.h"
#include "backend/reference/element.h"
#include "backend/reference/product_rows.h"
#include "backend/reference/reference_ops.h"

namespace spate::reference {
namespace {

std::vector<double> scores_of(const RouteExpertsParams& p, int64_t token) {
  std::vector<double> scores(static_cast<size_t>(p.logits.dim(1)));
  for (size_t e = 0; e < scores.size(); ++e) scores[e] = load(p.logits, token, static_cast<int64_t>(e));
  if (p.routing.scores == ExpertScores::kSigmoid) {
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
    return scores;
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
  return scores;
}

// Indices by falling value; of equal ones the smaller first, a NaN before all.
std::vector<size_t> falling_order(const std::vector<double>& values) {
  const auto key = [&](size_t i) {
    return std::isnan(values[i]) ? std::numeric_limits<double>::infinity() : values[i];
  };
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) > key(b); });
  return order;
}

// Takes the experts of all but the best groups out of the choice.
void keep_best_groups(const ExpertRouting& routing, std::vector<double>& choice) {
  const auto num_groups = static_cast<size_t>(routing.num_groups), size = choice.size() / num_groups;
  std::vector<double> group_scores;
  for (size_t g = 0; g < num_groups; ++g) {
    const auto begin = choice.begin() + static_cast<std::ptrdiff_t>(g * size);
    const std::vector<double> group(begin, begin + static_cast<std::ptrdiff_t>(size));
    const std::vector<size_t> order = falling_order(group);
    group_scores.push_back(group[order[0]] + (routing.group_scores == GroupScores::kTop2Sum ? group[order[1]] : 0.0));
  }
  const std::vector<size_t> order = falling_order(group_scores);
  for (size_t i = static_cast<size_t>(routing.num_chosen_groups); i < num_groups; ++i) {
    for (size_t e = 0; e < size; ++e) choice[order[i] * size + e] = -std::numeric_limits<double>::infinity();
  }
}

}  // namespace

void route_experts(Stream&, const RouteExpertsParams& p) {
  check_params(p);
  const int64_t num_experts_per_tok = p.expert_ids.dim(1);
  for (int64_t t = 0; t < p.logits.dim(0); ++t) {
    const std::vector<double> scores = scores_of(p, t);
    std::vector<double> choice = scores;
    for (size_t e = 0; p.bias.defined() && e < choice.size(); ++e) choice[e] += double{p.bias.data<float>()[e]};
    if (p.routing.num_chosen_groups < p.routing.num_groups) keep_best_groups(p.routing, choice);
    const std::vector<size_t> order = falling_order(choice);
    double sum = 0, factor = double{p.routing.scale};
    for (int64_t i = 0; i < num_experts_per_tok; ++i) sum += scores[order[static_cast<size_t>(i)]];
    if (p.routing.normalises) factor /= sum < double{p.routing.min_sum} ? double{p.routing.min_sum} : sum;
    for (int64_t i = 0; i < num_experts_per_tok; ++i) {
      const size_t expert = order[static_cast<size_t>(i)];
      p.expert_ids.data<int32_t>()[t * p.expert_ids.stride(0) + i] = static_cast<int32_t>(expert);
      store(p.expert_weights, t, i, scores[expert] * factor);
    }
  }
}

namespace {

// down(silu(gate(x)) * up(x)) of one expert and one row of x.
std::vector<double> expert_output(const ExpertMlpParams& p, int64_t token, int64_t expert) {
  const DType act = p.x.dtype();
  const int64_t width = p.down->desc().in_features;
  HostTensor activations(act, {1, width});
  const std::vector<ProductRows::Sums> gate_up = ProductRows(p.x, token, *p.gate_up, expert).products({});
  for (int64_t n = 0; n < width; ++n) {
    const double gate = round_to(act, gate_up[static_cast<size_t>(n)][0]),
                 up = round_to(act, gate_up[static_cast<size_t>(width + n)][0]);
    store(activations.view(), 0, n, round_to(act, gate / (1 + std::exp(-gate))) * up);
  }
  const std::vector<ProductRows::Sums> down = ProductRows(activations.view(), 0, *p.down, expert).products({});
  std::vector<double> out(static_cast<size_t>(p.out.dim(1)));
  for (size_t n = 0; n < out.size(); ++n) out[n] = down[n][0];
  return out;
}

}  // namespace

void expert_mlp(Stream&, const ExpertMlpParams& p) {
  check_params(p);
  const int64_t num_experts_per_tok = p.expert_ids.dim(1);
  for (int64_t t = 0; t < p.x.dim(0); ++t) {
    std::vector<double> sum(static_cast<size_t>(p.out.dim(1)), 0.0);
    if (p.shared.defined()) {
      const double factor = p.shared_gate.defined() ? 1 / (1 + std::exp(-load(p.shared_gate, t, 0))) : 1.0;
      for (size_t n = 0; n < sum.size(); ++n) sum[n] = factor * load(p.shared, t, static_cast<int64_t>(n));
    }
    for (int64_t i = 0; i < num_experts_per_tok; ++i) {
      const int64_t expert = p.expert_ids.data<int32_t>()[t * p.expert_ids.stride(0) + i];
      if (expert < 0 || expert >= p.gate_up->desc().num_matrices) continue;
      const double weight = load(p.expert_weights, t, i);
      const std::vector<double> output = expert_output(p, t, expert);
      for (size_t n = 0; n < sum.size(); ++n) sum[n] += weight * output[n];
    }
    for (size_t n = 0; n < sum.size(); ++n) store(p.out, t, static_cast<int64_t>(n), sum[n]);
  }
}

}  // namespace spate::reference
