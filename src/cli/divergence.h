// How far a model's predictions are from those of a reference run: mean Kullback-Leibler divergence KL(reference || model), in
// nats a token, and the share of positions whose most probable token is the same.
//
// Both runs keep the 20 most probable tokens of a position and the token that follows. Tokens that both kept count one by
// one; all others are one bucket. Merging tokens never raises a divergence: the number is a lower bound of that over the whole
// vocabulary, and equal to it up to what lies in the bucket. Two equal runs have exactly 0.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/reference_file.h"
#include "llm/loaded_model.h"
#include "llm/offline.h"

namespace spate {

struct Divergence {
  double kl = 0;           // mean of a position
  double kl_error = 0;     // standard error of that mean
  double equal_tops = 0;   // share of positions
  int64_t num_tokens = 0;  // positions
};

uint64_t tokenizer_hash(const Tokenizer& tokenizer);

// Predictions on the first 8,192 tokens of the texts and on the model's own answers to the questions. The engine runs.
Result<ReferenceRun> run_reference(LoadedModel& model, std::vector<OfflineRequest> questions, const std::vector<std::string>& texts);

// By kind: "text", "answers". The engine runs; `reference` is of the model's vocabulary.
Result<std::map<std::string, Divergence>> measure_divergence(LoadedModel& model, const ReferenceRun& reference);

// KL(reference || other) of one position, over the buckets described above.
double position_divergence(const TokenLogprobs& reference, const TokenLogprobs& other);

}  // namespace spate
