#include "cli/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include "base/log.h"
#include "cli/eval_data.h"
#include "cli/llm_arguments.h"
#include "llm/offline.h"
#include "server/relaxed_acceptance.h"

namespace spate {
namespace {

constexpr int kReferenceQuestions = 5;  // of each skill and grade, in a reference

// What relaxed acceptance is for the model; top_k 0 where it is off.
struct RelaxedModel {
  RelaxedAcceptance relaxed;
  const ReasoningFormat* reasoning = nullptr;
};

Result<RelaxedModel> relaxed_model(const LoadedModel& model) {
  RelaxedModel result;
  ASSIGN_OR_RETURN(result.reasoning, find_reasoning_format("auto", model.chat_template->source()));
  ASSIGN_OR_RETURN(result.relaxed,
                   relaxed_acceptance(model.engine->config().speculative, result.reasoning, model.tokenizer.get()));
  return result;
}

Result<std::vector<OfflineRequest>> requests_of(const LoadedModel& model, const std::vector<EvalQuestion>& questions,
                                                const RelaxedModel& relaxed) {
  std::vector<OfflineRequest> requests;
  for (const EvalQuestion& question : questions) {
    ASSIGN_OR_RETURN(const std::string prompt,
                     model.chat_template->render({.messages = &question.messages,
                                                  .tools = question.tools.is_null() ? nullptr : &question.tools,
                                                  .kwargs = &question.kwargs,
                                                  .add_generation_prompt = true}));
    OfflineRequest request;
    request.prompt_token_ids = model.tokenizer->encode(prompt);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = question.max_tokens;
    if (relaxed.reasoning != nullptr) request.relaxed = relaxed_after(relaxed.relaxed, *relaxed.reasoning, prompt);
    requests.push_back(std::move(request));
  }
  return requests;
}

Status ask_questions(LoadedModel& model, const EvalArguments& arguments, const std::vector<EvalQuestion>& questions,
                     EvalReport& report) {
  ASSIGN_OR_RETURN(const RelaxedModel relaxed, relaxed_model(model));
  ASSIGN_OR_RETURN(std::vector<OfflineRequest> requests, requests_of(model, questions, relaxed));
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const auto results,
                   run_offline(*model.engine, model.eos_token_ids, std::move(requests), arguments.batch_size));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const EngineStats stats = model.engine->stats();
  report.num_drafts = stats.num_drafts;
  report.num_drafts_accepted = stats.num_drafts_accepted;
  report.num_drafts_relaxed = stats.num_drafts_relaxed;
  report.num_drafted_rows = stats.num_drafted_rows;

  std::ofstream outputs;
  if (!arguments.outputs.empty()) outputs.open(arguments.outputs);
  for (size_t i = 0; i < questions.size(); ++i) {
    const OfflineResult& result = results[i].front();
    const std::string text = model.tokenizer->decode(result.token_ids);
    const bool right = is_right(questions[i], text);
    SkillScore& skill = report.skills[questions[i].skill];
    skill.num_right += right;
    ++skill.num_asked;
    report.num_output_tokens += static_cast<int64_t>(result.token_ids.size());
    if (outputs.is_open()) {
      outputs << nlohmann::ordered_json{{"skill", questions[i].skill},
                                        {"right", right},
                                        {"answer", questions[i].answer},
                                        {"output", text},
                                        {"token_ids", result.token_ids}}
                     .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
              << "\n";
    }
  }
  return ok_status();
}

// The mean negative log-likelihood of every token but the first of each piece, pieces of at most max_model_len - 1
// tokens.
Status measure_perplexity(LoadedModel& model, const std::vector<std::string>& texts, EvalReport& report) {
  std::vector<OfflineRequest> requests;
  const size_t max_piece = static_cast<size_t>(model.engine->config().max_seq_len() - 1);
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = model.tokenizer->encode(text);
    for (size_t begin = 0; begin + 1 < ids.size(); begin += max_piece) {
      OfflineRequest request;
      request.prompt_token_ids.assign(
          ids.begin() + static_cast<std::ptrdiff_t>(begin),
          ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), begin + max_piece)));
      if (request.prompt_token_ids.size() < 2) continue;
      request.sampling.temperature = 0;
      request.sampling.max_tokens = 1;
      request.sampling.prompt_logprobs = 0;
      requests.push_back(std::move(request));
    }
  }
  ASSIGN_OR_RETURN(const auto results, run_offline(*model.engine, model.eos_token_ids, std::move(requests)));
  double nll = 0;
  for (const auto& result : results) {
    for (const TokenLogprobs& token : result.front().prompt_logprobs) {
      nll -= token.logprob;
      ++report.num_text_tokens;
    }
  }
  if (report.num_text_tokens > 0) report.perplexity = std::exp(nll / static_cast<double>(report.num_text_tokens));
  return ok_status();
}

// On the texts and the first questions of all files in eval_dir, whichever of them were asked.
Status write_reference_run(LoadedModel& model, const std::filesystem::path& eval_dir, const std::vector<std::string>& texts,
                           const std::string& file) {
  std::vector<EvalQuestion> questions;
  for (const char* name : {"questions.jsonl", "graded.jsonl"}) {
    std::error_code error;
    if (!std::filesystem::exists(eval_dir / name, error)) continue;
    ASSIGN_OR_RETURN(std::vector<EvalQuestion> more, load_eval_questions(eval_dir / name));
    for (EvalQuestion& question : first_of_each_skill(std::move(more), kReferenceQuestions)) questions.push_back(std::move(question));
  }
  ASSIGN_OR_RETURN(std::vector<OfflineRequest> requests, requests_of(model, questions, {}));
  ASSIGN_OR_RETURN(const ReferenceRun run, run_reference(model, std::move(requests), texts));
  return write_reference(file, run);
}

}  // namespace

Result<EvalReport> evaluate(const ModelArguments& model_arguments, const EvalArguments& arguments,
                            const std::filesystem::path& eval_dir) {
  ASSIGN_OR_RETURN(std::vector<EvalQuestion> questions, load_eval_questions(eval_dir / (arguments.graded ? "graded.jsonl" : "questions.jsonl")));
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, load_eval_texts(eval_dir / "text.txt"));
  questions = first_of_each_skill(std::move(questions), arguments.max_questions);
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_model(model_arguments));
  if (!model->tokenizer || !model->chat_template) {
    return not_found("{}: eval needs a tokenizer and a chat template", model_arguments.model);
  }
  ReferenceRun reference;
  if (!arguments.reference.empty()) {
    ASSIGN_OR_RETURN(reference, read_reference(arguments.reference, static_cast<int>(model->config.vocab_size),
                                               tokenizer_hash(*model->tokenizer)));
  }
  for (const std::string& line : model->summary) log_info("eval", "{}", line);
  model->engine->start();
  EvalReport report;
  RETURN_IF_ERROR(ask_questions(*model, arguments, questions, report));
  RETURN_IF_ERROR(measure_perplexity(*model, texts, report));
  if (!arguments.write_reference.empty()) {
    RETURN_IF_ERROR(write_reference_run(*model, eval_dir, texts, arguments.write_reference));
  }
  if (!arguments.reference.empty()) {
    ASSIGN_OR_RETURN(report.divergences, measure_divergence(*model, reference));
  }
  model->engine->stop();
  report.num_preemptions = model->engine->stats().num_preemptions;
  return report;
}

}  // namespace spate
