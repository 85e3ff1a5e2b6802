// The measurements that the offline benches share: random prompts on an engine, timed token by token.
#pragma once

#include <cstdint>
#include <functional>
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

// The median figure of `num_runs` runs behind one that warms up. No run begins that would end more than row_s behind
// the first one's begin if it took as long as the one before it; where that leaves the first run alone, it counts.
Result<double> median_of_runs(int num_runs, double row_s, const std::function<Result<BenchTimes>(int run_idx)>& run,
                              const std::function<double(const BenchTimes&)>& figure);

double median(std::vector<double> values);
double percentile(std::vector<double> values, double percent);  // linear interpolation, as numpy

}  // namespace spate
