// For tests: steps of one sequence without engine, cache reuse or batch, and what drafts of such a plain loop would
// give.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "backend/kv_storage.h"
#include "backend/registry/registry.h"
#include "base/tensor.h"
#include "core/step_plan.h"
#include "layer/step_context.h"
#include "parallel/communicators.h"
#include "rank/rank_rig.h"

namespace spate {

constexpr int kPlainLen = 128, kPlainBlockSize = 16, kPlainBlocks = kPlainLen / kPlainBlockSize;

// The oracle: it computes in the host's memory.
struct PlainDevice {
  std::unique_ptr<Device> device = oracle_back_end().make_device({.deterministic = true}).value();
  std::unique_ptr<Stream> stream = device->create_stream();
  BoundOps bound = bind_ops(device->ops());
  const Communicators communicators = make_single_communicators();
};

inline HostTensor ints_tensor(const std::vector<int32_t>& values) {
  HostTensor tensor(DType::kI32, {std::ssize(values)});
  std::ranges::copy(values, tensor.span<int32_t>().begin());
  return tensor;
}

inline HostTensor iota_tensor(int begin, int64_t count) {
  HostTensor tensor(DType::kI32, {count});
  std::iota(tensor.span<int32_t>().begin(), tensor.span<int32_t>().end(), begin);
  return tensor;
}

inline HostTensor copy_rows(const Tensor& rows) {
  HostTensor out(DType::kF32, {rows.dim(0), rows.dim(1)});
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    std::copy_n(rows.data<float>() + i * rows.stride(0), rows.dim(1), out.span<float>().begin() + i * rows.dim(1));
  }
  return out;
}

// A step of one sequence's tokens from a position on.
struct PlainStep {
  PlainStep(int begin, const std::vector<int32_t>& ids)
      : token_ids(ints_tensor(ids)),
        positions(iota_tensor(begin, std::ssize(ids))),
        blocks(iota_tensor(0, kPlainBlocks)),
        row(ints_tensor({0})),
        cu_seqlens_q(ints_tensor({0, static_cast<int32_t>(ids.size())})),
        seq_lens(ints_tensor({begin + static_cast<int32_t>(ids.size())})),
        arange(iota_tensor(0, kPlainLen + 1)) {
    batch = {.inputs = {.token_ids = token_ids.view(),
                        .positions = positions.view(),
                        .slot_mapping = positions.view(),
                        .seq_rows = row.view(),
                        .cu_seqlens_q = cu_seqlens_q.view(),
                        .seq_lens = seq_lens.view()},
             .block_table = blocks.view().reshaped({1, kPlainBlocks}),
             .max_query_len = static_cast<int>(ids.size()),
             .max_seq_len = begin + static_cast<int>(ids.size())};
    batch.arange = arange.view();
  }
  StepContext context(const PlainDevice& of, const KvStorage& kv) const {
    return {
        .stream = *of.stream, .ops = of.bound.ops, .communicators = of.communicators, .batch = batch, .kv = kv.views()};
  }
  HostTensor token_ids, positions, blocks, row, cu_seqlens_q, seq_lens, arange;
  StepBatch batch;
};

// Few ids are likely, so that random weights agree now and then.
inline std::vector<Request> requests_of(const std::vector<int>& prompt_lens, const std::vector<int32_t>& likely_ids) {
  std::vector<Request> requests;
  for (const int len : prompt_lens) {
    Request& request = requests.emplace_back();
    for (int i = 0; i < len; ++i) request.prompt_token_ids.push_back((7 * i + len + i * i) % 150);
    request.sampling = {.temperature = 0, .max_tokens = 30, .ignore_eos = true};
    for (const int32_t id : likely_ids) request.sampling.logit_bias.emplace_back(id, 8.0f);
  }
  return requests;
}

struct DraftCounts {
  uint64_t num_drafts = 0, num_accepted = 0;
  std::vector<uint64_t> accepted_at = std::vector<uint64_t>(kMaxDrafts, 0);
};

// The k tokens that are drafted behind a text, greedily, with a bias on some ids.
using DraftsBehind = std::function<std::vector<int32_t>(const std::vector<int32_t>& text, int k,
                                                        const std::vector<std::pair<int32_t, float>>& bias)>;

// What such drafts give where `run` has the answers.
inline DraftCounts expected_counts(const DraftsBehind& behind, const std::vector<Request>& requests, const RankRun& run,
                                   int num_drafts) {
  DraftCounts counts;
  for (size_t r = 0; r < requests.size(); ++r) {
    std::vector<int32_t> all = requests[r].prompt_token_ids;
    const std::vector<int32_t>& answer = run.answers[r][0].token_ids;
    size_t num_known = all.size() + 1;
    all.insert(all.end(), answer.begin(), answer.end());
    while (num_known < all.size()) {
      const int room = std::min(num_drafts, static_cast<int>(all.size() - 1 - num_known));
      const std::vector<int32_t> drafts =
          behind({all.begin(), all.begin() + static_cast<ptrdiff_t>(num_known)}, room, requests[r].sampling.logit_bias);
      size_t num_accepted = 0;
      while (num_accepted < drafts.size() && drafts[num_accepted] == all[num_known + num_accepted]) {
        ++counts.accepted_at[num_accepted++];
      }
      counts.num_drafts += drafts.size();
      counts.num_accepted += num_accepted;
      num_known += num_accepted + 1;
    }
  }
  return counts;
}

}  // namespace spate
