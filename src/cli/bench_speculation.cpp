// spate bench speculation: tokens a second with and without drafts, in turns in one process, and what was accepted.
//
// The answers are given: each sequence's mask allows one token at a time, so that a model of random weights says what a real
// one would say to the task. Drafts are not held against the masks before they run: wrong ones are paid for.
//   edit    a list of records, 400 tokens, as the prompt; the answer repeats it with a field in five records changed, one
//           record left out and one put in
//   prose   tokens by Zipf's law, as words come: pairs repeat by chance, longer runs hardly ever
// A model that drafts would draft by these masks. So it is measured where the model answers itself:
//   prose      to the prompts of that task, at temperature 1, so that texts hardly repeat and drafts are worth what they are
//   questions  of its eval/ folder, drawn at random; greedy
// or, to know what drafts are worth that come true so often, with simulated acceptance:
//   random  prompts and answers of random tokens. The masks by which the model drafts differ from those of the answer: each
//           lets the answer's token through with probability --speculative-accept-rate, else another. All work is done: the
//           layer drafts, drafts run, wrong ones are paid for. Sequences with masks do not overlap steps, so the rate without
//           drafts is measured with these masks and, as a server would run, without any.
#include <cmath>
#include <cstdio>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "cli/bench_rows.h"
#include "cli/bench_runs.h"
#include "cli/commands.h"
#include "cli/eval_data.h"
#include "cli/llm_arguments.h"
#include "core/step_plan.h"
#include "llm/offline.h"

namespace spate {
namespace {

using Tokens = std::vector<int32_t>;

class GivenAnswer final : public TokenConstraint {
 public:
  // drafts: what a model that drafts by masks proposes at each place; empty: the answer.
  GivenAnswer(Tokens answer, Tokens drafts, int64_t vocab_size)
      : answer_(std::move(answer)), drafts_(std::move(drafts)), vocab_size_(vocab_size) {}
  std::unique_ptr<ConstraintCursor> start() override { return std::make_unique<Cursor>(*this, answer_, 0); }

 private:
  class Cursor final : public ConstraintCursor {
   public:
    Cursor(const GivenAnswer& owner, const Tokens& text, size_t num_tokens)
        : owner_(owner), text_(text), words_(static_cast<size_t>(mask_words_of(owner.vocab_size_))) {
      allow(num_tokens);
    }
    Status append(int32_t) override {
      words_[word()] = 0;
      allow(num_tokens_ + 1);
      return ok_status();
    }
    Status prepare_mask() override { return ok_status(); }
    std::span<const uint32_t> mask() const override { return words_; }
    bool may_end() const override { return false; }
    bool must_end() const override { return false; }
    bool may_draft(int32_t) const override { return true; }
    std::unique_ptr<ConstraintCursor> clone() const override { return std::make_unique<Cursor>(*this); }
    std::unique_ptr<ConstraintCursor> clone_to_draft() const override {
      return std::make_unique<Cursor>(owner_, owner_.drafts_.empty() ? text_ : owner_.drafts_, num_tokens_);
    }

   private:
    size_t word() const { return static_cast<size_t>(token_id_) / 32; }
    void allow(size_t num_tokens) {
      num_tokens_ = num_tokens;
      token_id_ = text_[std::min(num_tokens, text_.size() - 1)];
      words_[word()] = 1u << (token_id_ % 32);
    }
    const GivenAnswer& owner_;
    const Tokens& text_;
    std::vector<uint32_t> words_;
    size_t num_tokens_ = 0;
    int32_t token_id_ = 0;
  };

  const Tokens answer_, drafts_;
  const int64_t vocab_size_;
};

struct Task {
  Tokens prompt;
  Tokens answer;         // empty: the model's own
  Tokens drafts;         // simulated: by place
  int max_tokens = 0;    // of its own
  bool samples = false;  // its own are drawn at temperature 1, and go on to max_tokens
};

constexpr int kNumRecords = 20;
constexpr int kRecordLen = 20;

Tokens record(Rng& rng) {
  Tokens tokens;
  for (int i = 0; i < kRecordLen; ++i) {
    // Names of fields and punctuation, the same in each record; every third token is of a value.
    tokens.push_back(i % 3 == 2 ? static_cast<int32_t>(1000 + rng.below(800)) : static_cast<int32_t>(100 + i % 7 + i / 4));
  }
  return tokens;
}

Task edit_task(Rng& rng) {
  Task task;
  for (int i = 0; i < 16; ++i) task.prompt.push_back(static_cast<int32_t>(2000 + rng.below(100)));  // what is to be done
  for (int r = 0; r < kNumRecords; ++r) {
    const Tokens original = record(rng);
    task.prompt.insert(task.prompt.end(), original.begin(), original.end());
    if (r == 7) continue;
    Tokens changed = original;
    if (r % 4 == 1) changed[static_cast<size_t>(2 + 3 * rng.below(5))] = static_cast<int32_t>(1000 + rng.below(800));
    task.answer.insert(task.answer.end(), changed.begin(), changed.end());
    if (r != 12) continue;
    const Tokens added = record(rng);
    task.answer.insert(task.answer.end(), added.begin(), added.end());
  }
  return task;
}

Task prose_task(Rng& rng, int output_len, int64_t vocab_size, bool gives_answer) {
  const double num_words = static_cast<double>(std::min<int64_t>(5000, vocab_size - 101));
  const auto word = [&] { return 100 + static_cast<int32_t>(std::pow(num_words, static_cast<double>(rng.uniform()))); };
  Task task;
  for (int i = 0; i < 64; ++i) task.prompt.push_back(word());
  if (!gives_answer) {
    task.max_tokens = output_len;
    task.samples = true;
    return task;
  }
  for (int i = 0; i < output_len; ++i) task.answer.push_back(word());
  return task;
}

Task random_task(Rng& rng, const BenchArguments& bench, int64_t vocab_size) {
  const auto word = [&] { return static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab_size))); };
  Task task;
  for (int i = 0; i < (bench.input_len > 0 ? bench.input_len : 128); ++i) task.prompt.push_back(word());
  for (int i = 0; i < (bench.output_len > 0 ? bench.output_len : 128); ++i) {
    const int32_t token = word();
    const bool comes_true = static_cast<double>(rng.uniform()) < bench.speculative_accept_rate;
    task.answer.push_back(token);
    task.drafts.push_back(comes_true ? token : static_cast<int32_t>((token + 1) % vocab_size));
  }
  return task;
}

Result<std::vector<Task>> question_tasks(const LoadedModel& model, const std::filesystem::path& model_dir) {
  ASSIGN_OR_RETURN(const std::vector<EvalQuestion> questions, load_eval_questions(model_dir / "eval" / "questions.jsonl"));
  if (!model.tokenizer || !model.chat_template) {
    return not_found("{}: --task questions needs a tokenizer and a chat template", model_dir.string());
  }
  std::vector<Task> tasks;
  for (const EvalQuestion& question : questions) {
    ASSIGN_OR_RETURN(const std::string prompt,
                     model.chat_template->render({.messages = &question.messages,
                                                  .tools = question.tools.is_null() ? nullptr : &question.tools,
                                                  .kwargs = &question.kwargs,
                                                  .add_generation_prompt = true}));
    tasks.push_back({.prompt = model.tokenizer->encode(prompt), .answer = {}, .max_tokens = question.max_tokens});
  }
  return tasks;
}

struct RunOptions {
  int batch_size;
  bool speculate = false;
  bool gives_answers = true;  // of tasks that have some
};

// From when the first batch_size sequences have begun to the end of the last.
struct Run {
  double tokens_per_s = 0;
  double num_steps = 0;
  double seconds = 0;         // all: of the wall
  double device_seconds = 0;  // of the model's steps, verification included, drafting not
};

Result<Run> run_tasks(LoadedModel& model, const std::vector<Task>& tasks, const RunOptions& options) {
  const int batch_size = options.batch_size;
  std::vector<OfflineRequest> requests(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    requests[i].prompt_token_ids = tasks[i].prompt;
    requests[i].sampling.temperature = 0;
    requests[i].speculate = options.speculate;
    requests[i].sampling.max_tokens = tasks[i].max_tokens;
    if (tasks[i].samples) {
      requests[i].sampling.temperature = 1;
      requests[i].sampling.seed = i;
      requests[i].sampling.ignore_eos = true;
    }
    if (tasks[i].answer.empty()) continue;
    requests[i].sampling.max_tokens = static_cast<int>(tasks[i].answer.size());
    requests[i].sampling.ignore_eos = true;
    if (!options.gives_answers) continue;
    requests[i].constraint = std::make_shared<GivenAnswer>(tasks[i].answer, tasks[i].drafts, model.config.vocab_size);
  }
  struct Arrival {
    double seconds;
    size_t num_tokens;
  };
  std::vector<Arrival> arrivals;
  std::vector<bool> begun(tasks.size(), false);
  double all_begun = 0;
  EngineStats stats_then;
  const auto results =
      run_offline(*model.engine, model.eos_token_ids, std::move(requests), batch_size, [&](size_t i, const Output& output) {
        const double now = now_s();
        if (!begun[i] && (static_cast<int>(i) < batch_size)) {
          all_begun = now;
          stats_then = model.engine->stats();
        }
        begun[i] = true;
        arrivals.push_back({now, output.token_ids.size()});
      });
  RETURN_IF_ERROR(results.status());
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].answer.empty() || !options.gives_answers || (*results)[i][0].token_ids == tasks[i].answer) continue;
    return internal_error("bench: sequence {} gave another text", i);
  }
  double num_tokens = 0;
  for (const Arrival& arrival : arrivals) num_tokens += arrival.seconds > all_begun ? static_cast<double>(arrival.num_tokens) : 0;
  const EngineStats stats_now = model.engine->stats();
  const double seconds = arrivals.back().seconds - all_begun;
  return Run{.tokens_per_s = num_tokens / seconds,
             .num_steps = static_cast<double>(stats_now.num_steps - stats_then.num_steps),
             .seconds = seconds,
             .device_seconds = stats_now.device_seconds - stats_then.device_seconds};
}

// Milliseconds of a step, over the runs: of the wall, of the device for the model.
std::string describe_steps(const std::vector<Run>& runs) {
  double num_steps = 0, seconds = 0, device_seconds = 0;
  for (const Run& run : runs) {
    num_steps += run.num_steps;
    seconds += run.seconds;
    device_seconds += run.device_seconds;
  }
  return fmt::format("{:.3f} ms, {:.3f} of them for the model on the device", 1e3 * seconds / num_steps,
                     1e3 * device_seconds / num_steps);
}

double median_rate(const std::vector<Run>& runs) {
  std::vector<double> rates;
  for (const Run& run : runs) rates.push_back(run.tokens_per_s);
  return median(std::move(rates));
}

}  // namespace

Result<int> run_bench_speculation(const Arguments& arguments) {
  const BenchArguments& bench = arguments.bench;
  ModelArguments model_arguments = arguments.model;
  model_arguments.enable_prefix_caching = false;  // the turns repeat their prompts
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_model(model_arguments, progress_bar("weights")));
  for (const std::string& line : model->summary) log_info("bench", "{}", line);
  const SpeculativeConfig& speculative = model->engine->config().speculative;
  if (speculative.method == SpeculativeMethod::kNone) {
    return invalid_argument("bench speculation needs --speculative-config: {{\"method\": \"ngram\"}}");
  }
  std::vector<Task> questions;
  if (bench.task == "questions") {
    ASSIGN_OR_RETURN(questions, question_tasks(*model, arguments.model.model));
  } else if (bench.task == "random") {
    if (!runs_a_model(speculative.method)) {
      return invalid_argument("bench speculation: --task random simulates drafts of a model (draft_model, mtp), not of {}",
                              speculative_method_name(speculative.method));
    }
  } else if (bench.task == "edit" && runs_a_model(speculative.method)) {
    return invalid_argument(
        "bench speculation: method {} drafts by the masks that give the answers of --task edit; use another task",
        speculative_method_name(speculative.method));
  }
  model->engine->start();
  Rng rng(arguments.model.seed, 0x5bec);
  std::vector<double> ratios, free_ratios;
  std::vector<Run> on_runs, off_runs;
  const EngineStats before = model->engine->stats();
  for (int i = 0; i < bench.num_iters_warmup + bench.num_iters; ++i) {
    std::vector<Task> tasks;
    // Answers differ in length: of questions enough for the batch to stay full most of the time.
    constexpr int kQuestionsASequence = 8;
    for (int s = 0; s < kQuestionsASequence * bench.batch_size && !questions.empty(); ++s) {
      tasks.push_back(questions[rng.below(questions.size())]);
    }
    for (int s = 0; s < bench.batch_size && questions.empty(); ++s) {
      tasks.push_back(bench.task == "random" ? random_task(rng, bench, model->config.vocab_size)
                      : bench.task == "edit" ? edit_task(rng)
                                             : prose_task(rng, bench.output_len > 0 ? bench.output_len : 128,
                                                          model->config.vocab_size, !runs_a_model(speculative.method)));
    }
    ASSIGN_OR_RETURN(const Run off, run_tasks(*model, tasks, {.batch_size = bench.batch_size}));
    ASSIGN_OR_RETURN(const Run on, run_tasks(*model, tasks, {.batch_size = bench.batch_size, .speculate = true}));
    Run free;
    if (bench.task == "random") {
      ASSIGN_OR_RETURN(free, run_tasks(*model, tasks, {.batch_size = bench.batch_size, .gives_answers = false}));
    }
    if (i < bench.num_iters_warmup) continue;
    if (free.tokens_per_s > 0) free_ratios.push_back(on.tokens_per_s / free.tokens_per_s);
    ratios.push_back(on.tokens_per_s / off.tokens_per_s);
    on_runs.push_back(on);
    off_runs.push_back(off);
  }
  const EngineStats stats = model->engine->stats();
  const double num_rows = static_cast<double>(stats.num_drafted_rows - before.num_drafted_rows);
  const double num_drafts = static_cast<double>(stats.num_drafts - before.num_drafts);
  const double num_accepted = static_cast<double>(stats.num_drafts_accepted - before.num_drafts_accepted);
  std::printf("%s, %s, batch %d: %.1f tokens/s with drafts, %.1f without; ratio %.2f (%.2f to %.2f in %d turns)\n",
              std::string(speculative_method_name(speculative.method)).c_str(), bench.task.c_str(), bench.batch_size,
              median_rate(on_runs), median_rate(off_runs), median(ratios), percentile(ratios, 0),
              percentile(ratios, 100), bench.num_iters);
  std::printf("a step took %s; without drafts %s\n", describe_steps(on_runs).c_str(), describe_steps(off_runs).c_str());
  if (!free_ratios.empty()) {
    std::printf("acceptance simulated at %.2f; ratio to steps that overlap and have no masks %.2f\n",
                bench.speculative_accept_rate, median(free_ratios));
  }
  if (num_rows > 0) {
    std::printf("acceptance length %.2f tokens, %.1f %% of %.0f drafts in %.0f row-steps; by position:", 1 + num_accepted / num_rows,
                100 * num_accepted / num_drafts, num_drafts, num_rows);
    for (size_t i = 0; i < static_cast<size_t>(speculative.num_speculative_tokens); ++i) {
      std::printf(" %.2f", static_cast<double>(stats.num_accepted_at[i] - before.num_accepted_at[i]) / num_rows);
    }
    std::printf("\nsteps with drafts gave %.0f tokens, %.0f were expected\n",
                static_cast<double>(stats.num_tokens_drafted_steps - before.num_tokens_drafted_steps),
                stats.num_tokens_expected - before.num_tokens_expected);
  }
  model->engine->stop();
  const std::string name = fmt::format("{}/{}/speculation/{}-{}/batch{}", model->back_end->name, model->name,
                                       speculative_method_name(speculative.method), bench.task, bench.batch_size);
  RETURN_IF_ERROR(write_rows(bench.output_json, {{.name = name, .value = median(ratios), .unit = "ratio"}}));
  return 0;
}

}  // namespace spate
