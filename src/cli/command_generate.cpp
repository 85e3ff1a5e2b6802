// spate generate and spate chat: a model's answers in the terminal, streamed.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/llm_arguments.h"
#include "llm/offline.h"

namespace spate {
namespace {

SamplingParams sampling_of(const GenerateArguments& arguments, const GenerationConfig& defaults) {
  const bool greedy_default = defaults.do_sample.has_value() && !*defaults.do_sample;
  SamplingParams sampling;
  sampling.temperature = arguments.temperature >= 0 ? static_cast<float>(arguments.temperature)
                         : greedy_default           ? 0.0f
                                                    : static_cast<float>(defaults.temperature.value_or(1.0));
  sampling.top_p = static_cast<float>(arguments.top_p >= 0 ? arguments.top_p : defaults.top_p.value_or(1.0));
  sampling.sampling_top_k = arguments.top_k >= 0 ? arguments.top_k : static_cast<int>(defaults.top_k.value_or(0));
  sampling.min_p = static_cast<float>(defaults.min_p.value_or(0.0));
  sampling.repetition_penalty = static_cast<float>(defaults.repetition_penalty.value_or(1.0));
  sampling.max_tokens = arguments.max_tokens;
  sampling.ignore_eos = arguments.ignore_eos;
  return sampling;
}

Result<std::string> render(const LoadedModel& model, const nlohmann::ordered_json& messages, bool no_thinking) {
  if (!model.chat_template) {
    return not_found("{} has no chat template; give one with --chat-template, or send text as it is with --raw", model.name);
  }
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();
  if (no_thinking) kwargs["enable_thinking"] = false;
  return model.chat_template->render({.messages = &messages, .kwargs = &kwargs, .add_generation_prompt = true});
}

// Generates after `prompt` and writes the text to stdout as it comes; gives the whole text.
Result<std::string> stream_answer(LoadedModel& model, const std::string& prompt, bool add_special_tokens,
                                  const SamplingParams& sampling) {
  std::vector<OfflineRequest> requests(1);
  requests[0].prompt_token_ids = model.tokenizer->encode(prompt, {.add_special_tokens = add_special_tokens});
  requests[0].sampling = sampling;
  RETURN_IF_ERROR(validate_sampling_params(sampling, static_cast<int>(model.config.vocab_size), kMaxLogprobs));
  IncrementalDecoder decoder(*model.tokenizer, {}, requests[0].prompt_token_ids);
  std::string answer;
  const auto show = [&](const std::string& text) {
    answer += text;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  ASSIGN_OR_RETURN(const auto results, run_offline(*model.engine, model.eos_token_ids, std::move(requests), 0,
                                                   [&](size_t, const Output& output) {
                                                     for (const int32_t id : output.token_ids) show(decoder.append(id));
                                                   }));
  show(decoder.finish());
  std::printf("\n");
  return answer;
}

Result<std::unique_ptr<LoadedModel>> load_for_text(const Arguments& arguments) {
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model, load_model(arguments.model, progress_bar("weights")));
  if (!model->tokenizer) return not_found("{}: no tokenizer.json; use --tokenizer", arguments.model.model);
  for (const std::string& line : model->summary) log_info("model", "{}", line);
  model->engine->start();
  return model;
}

}  // namespace

Result<int> run_generate(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_for_text(arguments));
  std::vector<std::string> prompts = arguments.generate.prompts;
  if (prompts.empty()) {
    for (std::string line; std::getline(std::cin, line);) prompts.push_back(line);
  }
  const SamplingParams sampling = sampling_of(arguments.generate, model->generation);
  for (const std::string& prompt : prompts) {
    std::string text = prompt;
    if (!arguments.generate.raw) {
      nlohmann::ordered_json messages = nlohmann::ordered_json::array();
      if (!arguments.generate.system.empty()) messages.push_back({{"role", "system"}, {"content", arguments.generate.system}});
      messages.push_back({{"role", "user"}, {"content", prompt}});
      ASSIGN_OR_RETURN(text, render(*model, messages, arguments.generate.no_thinking));
    }
    ASSIGN_OR_RETURN(const std::string answer, stream_answer(*model, text, arguments.generate.raw, sampling));
  }
  return 0;
}

Result<int> run_chat(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_for_text(arguments));
  const bool is_terminal = ::isatty(STDIN_FILENO) != 0;
  const SamplingParams sampling = sampling_of(arguments.generate, model->generation);
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  const auto reset = [&] {
    messages.clear();
    if (!arguments.generate.system.empty()) messages.push_back({{"role", "system"}, {"content", arguments.generate.system}});
  };
  reset();
  if (is_terminal) std::printf("Talking to %s. /new begins again, /exit or Ctrl-D ends.\n", model->name.c_str());
  while (true) {
    if (is_terminal) {
      std::printf("> ");
      std::fflush(stdout);
    }
    std::string line;
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line.empty()) continue;
    if (line == "/new") {
      reset();
      continue;
    }
    messages.push_back({{"role", "user"}, {"content", line}});
    ASSIGN_OR_RETURN(const std::string prompt, render(*model, messages, arguments.generate.no_thinking));
    Result<std::string> answer = stream_answer(*model, prompt, false, sampling);
    if (!answer.ok()) {
      // A conversation that has outgrown the model ends; the program goes on.
      std::printf("%s\nThe conversation begins again.\n", answer.status().message().c_str());
      reset();
      continue;
    }
    messages.push_back({{"role", "assistant"}, {"content", *answer}});
  }
  return 0;
}

}  // namespace spate
