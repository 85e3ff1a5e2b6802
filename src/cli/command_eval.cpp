// spate eval: exact match per skill on the model's held-out questions, perplexity on its held-out text. Greedy.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/eval_data.h"
#include "cli/loaded_model.h"
#include "cli/offline.h"

namespace spate {
namespace {

struct SkillScore {
  int num_right = 0;
  int num_asked = 0;
  double score() const { return num_asked > 0 ? static_cast<double>(num_right) / num_asked : 0; }
};

struct EvalReport {
  std::map<std::string, SkillScore> skills;
  double perplexity = 0;  // of a token; 0 without text
  int64_t num_text_tokens = 0;
  int64_t num_output_tokens = 0;
  double seconds = 0;     // of the questions

  double average() const {
    double sum = 0;
    for (const auto& [name, skill] : skills) sum += skill.score();
    return skills.empty() ? 0 : sum / static_cast<double>(skills.size());
  }
};

std::vector<EvalQuestion> first_of_each_skill(std::vector<EvalQuestion> questions, int max_questions) {
  if (max_questions <= 0) return questions;
  std::map<std::string, int> taken;
  std::erase_if(questions, [&](const EvalQuestion& q) { return ++taken[q.skill] > max_questions; });
  return questions;
}

Status ask_questions(LoadedModel& model, const EvalArguments& arguments, const std::vector<EvalQuestion>& questions,
                     EvalReport& report) {
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
    requests.push_back(std::move(request));
  }
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const auto results,
                   run_offline(*model.engine, model.eos_token_ids, std::move(requests), arguments.batch_size));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  std::ofstream outputs;
  if (!arguments.outputs.empty()) outputs.open(arguments.outputs);
  for (size_t i = 0; i < questions.size(); ++i) {
    const OfflineResult& result = results[i].front();
    const std::string text = model.tokenizer->decode(result.token_ids);
    const bool right = final_answer(text) == questions[i].answer;
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

// The mean negative log-likelihood of every token but the first of each piece, pieces of at most max_model_len - 1 tokens.
Status measure_perplexity(LoadedModel& model, const std::vector<std::string>& texts, EvalReport& report) {
  std::vector<OfflineRequest> requests;
  const size_t max_piece = static_cast<size_t>(model.engine->config().max_seq_len() - 1);
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = model.tokenizer->encode(text);
    for (size_t begin = 0; begin + 1 < ids.size(); begin += max_piece) {
      OfflineRequest request;
      request.prompt_token_ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(begin),
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

void print_report(const EvalReport& report, bool json) {
  if (json) {
    nlohmann::ordered_json skills = nlohmann::ordered_json::object();
    for (const auto& [name, skill] : report.skills) skills[name] = skill.score();
    const nlohmann::ordered_json object{{"average", report.average()},
                                        {"skills", skills},
                                        {"perplexity", report.perplexity}};
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  for (const auto& [name, skill] : report.skills) {
    std::printf("%-14s %4d of %4d  %.3f\n", name.c_str(), skill.num_right, skill.num_asked, skill.score());
  }
  std::printf("%-14s               %.4f\n", "average", report.average());
  if (report.num_text_tokens > 0) {
    std::printf("%-14s               %.4f  (%lld tokens)\n", "perplexity", report.perplexity,
                static_cast<long long>(report.num_text_tokens));
  }
  std::printf("%lld output tokens in %.1f s: %.0f tokens/s\n", static_cast<long long>(report.num_output_tokens), report.seconds,
              static_cast<double>(report.num_output_tokens) / report.seconds);
}

}  // namespace

Result<int> run_eval(const Arguments& arguments) {
  if (arguments.eval.json && log_level() == LogLevel::kInfo) set_log_level(LogLevel::kWarning);
  const std::filesystem::path dir = std::filesystem::path(arguments.model.model) / "eval";
  ASSIGN_OR_RETURN(std::vector<EvalQuestion> questions, load_eval_questions(dir / "questions.jsonl"));
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, load_eval_texts(dir / "text.txt"));
  questions = first_of_each_skill(std::move(questions), arguments.eval.max_questions);
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_model(arguments.model));
  if (!model->tokenizer || !model->chat_template) {
    return not_found("{}: eval needs a tokenizer and a chat template", arguments.model.model);
  }
  for (const std::string& line : model->summary) log_info("eval", "{}", line);
  model->engine->start();
  EvalReport report;
  RETURN_IF_ERROR(ask_questions(*model, arguments.eval, questions, report));
  RETURN_IF_ERROR(measure_perplexity(*model, texts, report));
  model->engine->stop();
  print_report(report, arguments.eval.json);
  return 0;
}

}  // namespace spate
