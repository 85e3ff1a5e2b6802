// MockExecutor: answers StepPlans with scripted tokens, without a device and without a model.
//
// It keeps what a device keeps of a row: its tokens and its sampling parameters. A row's k-th token is the k-th of the
// answer that fits its prompt, then an end token; where none may come (ignore_eos, min_tokens) the answer begins again.
// Masks of grammars hold: a token that is not allowed becomes the lowest that is. Drafts are accepted where they equal
// the script. Steps take their scripted time one behind the other, as on a device; nothing is computed meanwhile.
// Log-probabilities are 0 for the chosen token, hidden states a hash of the tokens.
//
// Called by the engine thread only.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/step_executor.h"
#include "mock/mock_script.h"

namespace spate {

struct MockExecutorConfig {
  MockScript script;
  std::function<std::vector<int32_t>(std::string_view)> encode;   // may be empty where no answer has text
  std::function<std::string(std::span<const int32_t>)> decode;  // may be empty where no answer has `when`
  std::vector<int32_t> eos_token_ids;
  int max_num_seqs = 1;
  int vocab_size = 0;
  int64_t hidden_size = 0;
  double time_limit_s = 60;  // of a step that hangs
};

class MockExecutor final : public StepExecutor {
 public:
  explicit MockExecutor(MockExecutorConfig config);

  void submit(std::span<const std::byte> plan) override;
  void supply_masks(std::span<const uint32_t> masks) override;
  Status collect(StepResult& result) override;
  int num_in_flight() const override { return static_cast<int>(steps_.size()); }

 private:
  struct Row {
    std::vector<int32_t> token_ids;
    std::vector<int32_t> stop_ids;
    RowSampling sampling;
    int num_prompt_logprobs = -1;
    int answer_idx = -1;           // of the script; -1: an echo
    std::vector<int32_t> echo;     // what an echo says
  };
  struct Step {
    StepResult result;
    Status status;
    double ready_at_s = 0;
    bool is_nonfinite = false;
    std::vector<std::byte> plan;  // that waits for its masks; else empty
  };

  void update_rows(const void* plan);
  void choose_answer(Row& row) const;
  double seconds_of(const StepPlanHeader& header) const;
  Status break_step(const StepPlanHeader& header, double& seconds, bool& is_nonfinite) const;
  void run(const void* plan, Step& step);
  void run_seq(const void* plan, const SeqStep& seq, bool is_nonfinite, StepResult& result);
  void sample(const void* plan, const SeqStep& seq, bool is_nonfinite, Row& row, StepResult& result) const;
  int32_t next_token(const Row& row, const uint32_t* mask) const;
  TokenLogprobs logprobs_of(int32_t token_id, int num_top) const;
  std::vector<float> hidden_state(const Row& row, const SeqStep& seq) const;

  MockExecutorConfig config_;
  std::vector<std::vector<int32_t>> answers_;  // token ids, in the script's order
  std::vector<Row> rows_;
  std::deque<Step> steps_;
  double busy_until_s_ = 0;
};

}  // namespace spate
