// A ServingModel without a model, for tests: the tokenizer, template and engine are real, and the executor answers what
// the test put into the prompt.
//
// The answer to a chat is the text of its last user message, to a completion the prompt's text; then comes the end
// token. A text that begins with "FOREVER" is repeated until max_tokens; behind one that begins with "BROKEN", and in a
// prompt of it that is scored, logits are not finite. Where a mask forbids the answer's token, the first
// allowed one comes. Log-probabilities are -0.5 for the answer's token, then -1.5, -2.5 ... for the ids 10, 11, 12 ...
// The hidden state of a token is (id, position, 1, 2).
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "core/step_executor.h"
#include "core/step_plan.h"
#include "server/server_config.h"
#include "server/serving_model.h"

namespace spate {

class EchoExecutor final : public StepExecutor {
 public:
  EchoExecutor(const Tokenizer& tokenizer, int32_t eos_token_id) : tokenizer_(tokenizer), eos_token_id_(eos_token_id) {}

  void submit(std::span<const std::byte> plan) override;
  void supply_masks(std::span<const uint32_t> masks) override;
  Status collect(StepResult& result) override;
  int num_in_flight() const override { return num_in_flight_; }

  std::atomic<int> step_milliseconds{0};  // how long a step takes
  std::atomic<bool> fails{false};         // the next step is the last

 private:
  struct Row {
    std::vector<int32_t> token_ids;
    RowSampling sampling;
  };
  void run(std::span<const std::byte> plan);
  const std::vector<int32_t>& answer_to(const std::vector<int32_t>& prompt);
  bool is_broken(const Row& row);
  void run_row(Row& row, const uint32_t* mask, StepResult& result);

  const Tokenizer& tokenizer_;
  const int32_t eos_token_id_;
  std::map<int32_t, Row> rows_;
  std::map<std::vector<int32_t>, std::vector<int32_t>> answers_;
  std::deque<StepResult> results_;
  std::vector<std::byte> newest_plan_;
  int num_in_flight_ = 0;
};

// Everything a server needs, started. Limits: a context of 512 tokens, 8 sequences at once, 64 waiting.
struct TestModel {
  TestModel();
  ~TestModel();  // stops the engine
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<EchoExecutor> executor;
  std::shared_ptr<Engine> engine;
  ServingModel serving;
};

// Of a server in a test: a free port, no signals, no log lines of requests and throughput.
ServerConfig test_server_config();

}  // namespace spate
