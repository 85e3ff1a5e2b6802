#include "cli/bench_runs.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/rng.h"
#include "llm/offline.h"

namespace spate {
Result<BenchTimes> run_batch(LoadedModel& model, const BenchBatch& batch) {
  Rng rng(batch.seed, 0xbe7c4);
  std::vector<OfflineRequest> requests(static_cast<size_t>(batch.num_seqs));
  for (OfflineRequest& request : requests) {
    for (int i = 0; i < batch.input_len; ++i) {
      request.prompt_token_ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(model.config.vocab_size))));
    }
    request.sampling.n = batch.n;
    request.sampling.temperature = batch.n > 1 ? 1.0f : 0.0f;
    request.sampling.max_tokens = batch.output_len;
    request.sampling.ignore_eos = true;
  }
  struct SeqTimes {
    std::vector<double> tokens;  // when each came
  };
  const int num_seqs = batch.num_seqs * batch.n;
  std::vector<SeqTimes> seqs(static_cast<size_t>(num_seqs));
  const double start = now_s();
  ASSIGN_OR_RETURN(const auto results, run_offline(*model.engine, model.eos_token_ids, std::move(requests), 0,
                                                   [&](size_t request, const Output& output) {
                                                     SeqTimes& seq = seqs[request * static_cast<size_t>(batch.n) +
                                                                          static_cast<size_t>(output.index)];
                                                     for (size_t i = 0; i < output.token_ids.size(); ++i) {
                                                       seq.tokens.push_back(now_s());
                                                     }
                                                   }));
  double all_started = start, first_ended = 1e300, end = start;
  BenchTimes times;
  for (const SeqTimes& seq : seqs) {
    if (seq.tokens.empty()) return internal_error("bench: a sequence gave no token");
    all_started = std::max(all_started, seq.tokens.front());
    first_ended = std::min(first_ended, seq.tokens.back());
    end = std::max(end, seq.tokens.back());
    times.num_output_tokens += static_cast<int64_t>(seq.tokens.size());
  }
  for (const SeqTimes& seq : seqs) {
    times.num_decode_tokens += std::count_if(seq.tokens.begin(), seq.tokens.end(), [&](double t) {
      return t > all_started && t <= first_ended;
    });
  }
  times.total_s = end - start;
  times.prefill_s = all_started - start;
  times.decode_s = std::max(0.0, first_ended - all_started);
  return times;
}

Result<double> median_of_runs(int num_runs, double row_s, const std::function<Result<BenchTimes>(int run_idx)>& run,
                              const std::function<double(const BenchTimes&)>& figure) {
  std::vector<double> values;
  double all_s = 0;
  for (int i = 0; i <= num_runs; ++i) {
    ASSIGN_OR_RETURN(const BenchTimes times, run(i));
    all_s += times.total_s;
    const bool is_last = all_s + times.total_s > row_s;
    if (i > 0 || is_last) values.push_back(figure(times));
    if (is_last) break;
  }
  return median(std::move(values));
}

double median(std::vector<double> values) { return percentile(std::move(values), 50); }

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double position = percent / 100 * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(position));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (position - static_cast<double>(below));
}

}  // namespace spate
