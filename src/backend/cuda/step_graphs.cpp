#include "backend/cuda/step_graphs.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/launch.h"
#include "core/step_plan.h"

namespace spate::cuda {
namespace {

constexpr int kShortestSeqLen = 256;

int padded_num_seqs(int num_seqs) {
  if (num_seqs <= 8) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_seqs)));
  const int unit = num_seqs <= 128 ? 8 : num_seqs <= 512 ? 16 : 64;
  return (num_seqs + unit - 1) / unit * unit;
}

bool is_decode(const StepKey& key) { return key.max_query_len == 1 && key.num_seqs == key.num_tokens; }

// Drafts run as tokens of their row: such a step, or one in which a drafter reads what was accepted.
constexpr int kMaxDraftedTokens = 256;
bool may_have_drafts(const StepKey& key) {
  return key.max_query_len >= 2 && key.max_query_len <= 1 + kMaxDrafts && key.num_tokens <= kMaxDraftedTokens &&
         key.num_logits > 0 && key.long_prompts == LongPrompts{};
}

// Prefills differ from each other in their sizes, and take longer than their launches.
bool recurs(const StepKey& key) { return is_decode(key) || may_have_drafts(key); }

// As num_seqs, but one row with two drafts gets no dummy: it would choose experts of its own, and reading these takes
// as long as those of a draft.
int padded_num_tokens(int num_tokens) { return num_tokens <= 4 ? num_tokens : padded_num_seqs(num_tokens); }

// Of rows with drafts: 2, 3, 5, 9, 17.
int padded_query_len(int query_len) { return 1 + static_cast<int>(std::bit_ceil(static_cast<unsigned>(query_len - 1))); }

}  // namespace

StepKey padded_decode_step(const StepKey& exact, const StepKey& largest) {
  if (!recurs(exact) || (is_decode(exact) && exact.num_logits != exact.num_seqs)) return exact;
  StepKey key = exact;
  key.num_seqs = std::min({padded_num_seqs(exact.num_seqs), largest.num_seqs, largest.num_tokens, largest.num_logits});
  if (is_decode(exact)) {
    key.num_tokens = key.num_logits = key.num_seqs;
  } else {
    key.num_tokens = std::min(std::max(key.num_seqs, padded_num_tokens(exact.num_tokens)), largest.num_tokens);
    key.num_logits = std::min({padded_num_tokens(exact.num_logits), key.num_tokens, largest.num_logits});
    key.max_query_len = std::min(padded_query_len(exact.max_query_len), key.num_tokens);
  }
  const int seq_len = std::max(exact.max_seq_len, kShortestSeqLen);
  key.max_seq_len = std::min(static_cast<int>(std::bit_ceil(static_cast<unsigned>(seq_len))), largest.max_seq_len);
  for (const int num_top : {0, 5, 20}) {
    if (exact.num_top_logprobs < 0 || exact.num_top_logprobs > num_top) continue;
    key.num_top_logprobs = num_top;
    break;
  }
  return key;
}

void StepGraphs::run(CudaStream& stream, const StepKey& key, const std::function<void()>& step) {
  if (!recurs(key)) return step();
  const auto [entry, is_new] = graphs_.try_emplace(key, nullptr);
  if (is_new) return step();
  if (entry->second == nullptr) {
    if (graphs_.size() > kMaxGraphs) {
      clear();
      return step();
    }
    entry->second = capture(stream, step);
    if (entry->second == nullptr) return step();
  }
  check_driver(device_.api(), device_.api().cuGraphLaunch(entry->second, stream.handle()), "a captured step");
}

CUgraphExec StepGraphs::capture(CudaStream& stream, const std::function<void()>& step) {
  const DriverApi& api = device_.api();
  device_.make_current();
  check_driver(api, api.cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
               "the start of a capture");
  is_capturing_ = true;
  is_given_up_ = false;
  step();
  is_capturing_ = false;
  CUgraph graph = nullptr;
  check_driver(api, api.cuStreamEndCapture(stream.handle(), &graph), "the end of a capture");
  CUgraphExec exec = nullptr;
  if (!is_given_up_) check_driver(api, api.cuGraphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
  check_driver(api, api.cuGraphDestroy(graph), "cuGraphDestroy");
  return exec;
}

void StepGraphs::clear() {
  CHECK(!is_capturing_, "memory of ops moves while a step is captured");
  for (const auto& [key, exec] : graphs_) {
    if (exec != nullptr) device_.api().cuGraphExecDestroy(exec);
  }
  graphs_.clear();
}

}  // namespace spate::cuda
