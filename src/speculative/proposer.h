// Proposer: guesses the next tokens of sequences that decode. A wrong guess costs time and never changes an answer: the
// target model chooses the token at each place itself, and a draft counts only where it equals that choice.
//
// One per engine, engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "core/speculative_config.h"

namespace spate {

// What a proposer keeps of one sequence, from its first decode step to its end.
class ProposerState {
 public:
  virtual ~ProposerState() = default;
};

// One sequence that drafts are wanted for.
struct DraftRow {
  // What a proposer that runs a model needs beside the tokens: the row on the device and its sampling, its blocks of the
  // cache, and where its constraint stands, if it has one.
  const Request* request = nullptr;
  int32_t row = -1;
  std::span<const int32_t> block_ids;
  const ConstraintCursor* cursor = nullptr;


  ProposerState* state = nullptr;      // that start() gave
  std::span<const int32_t> token_ids;  // all that the host knows, prompt first; the last call's are a prefix of them
  int max_drafts = 0;
  std::vector<int32_t>* drafts = nullptr;  // out, empty at first: at most max_drafts ids
  int confidence = 0;                      // out: drafts of one class are accepted about equally often
};

class Proposer {
 public:
  static constexpr int kForced = 4;          // tokens that a grammar forces (Speculator)
  static constexpr int kNumConfidences = 5;  // classes: 0 .. 3, and that

  virtual ~Proposer() = default;
  // Proposing costs so little that it is done where no draft will run, to learn what would have been accepted. Else
  // propose() is called for the drafts that will run alone, while no step of the target is in flight, and step_times()
  // says what it has cost.
  virtual bool is_cheap() const = 0;
  virtual std::unique_ptr<ProposerState> start(const Request& request, uint64_t seed) = 0;
  // An error is final: the device that proposes is lost.
  virtual Status propose(std::span<DraftRow> rows) = 0;

  struct StepTime {
    int num_tokens;
    double seconds;
  };
  // Of the latest propose(): the steps of its model, one behind the other.
  virtual std::span<const StepTime> step_times() const { return {}; }
};

// By config.method; null for kNone, and for methods that run a model: these have makers of their own.
std::unique_ptr<Proposer> make_proposer(const SpeculativeConfig& config);

std::unique_ptr<Proposer> make_ngram_proposer(const SpeculativeConfig& config);
std::unique_ptr<Proposer> make_text_proposer(const SpeculativeConfig& config);

// Classes of the proposers that look tokens up: by how many tokens matched.
int confidence_of_match(int num_matched);

}  // namespace spate
