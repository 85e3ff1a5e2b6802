#include "cli/eval_data.h"

#include <fstream>
#include <map>

namespace spate {
namespace {

std::string stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

}  // namespace

Result<std::vector<EvalQuestion>> load_eval_questions(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) {
    return not_found("{}: cannot be read; `spate eval` needs a model with such questions in its eval/ folder, or --data FOLDER",
                     file.string());
  }
  std::vector<EvalQuestion> questions;
  std::string line;
  for (int line_number = 1; std::getline(in, line); ++line_number) {
    if (line.empty()) continue;
    try {
      const auto json = nlohmann::ordered_json::parse(line);
      EvalQuestion question;
      question.skill = json.at("skill").get<std::string>();
      if (json.contains("grade")) question.skill += fmt::format(" {}", json["grade"].get<int>());
      question.messages = json.at("messages");
      question.tools = json.value("tools", nlohmann::ordered_json());
      question.kwargs = nlohmann::ordered_json::object();
      if (json.contains("enable_thinking")) question.kwargs["enable_thinking"] = json["enable_thinking"];
      question.max_tokens = json.value("max_tokens", 256);
      question.answer = stripped(json.at("answer").get<std::string>());
      questions.push_back(std::move(question));
    } catch (const nlohmann::json::exception& e) {
      return data_loss("{}:{}: {}", file.string(), line_number, e.what());
    }
  }
  return questions;
}

std::vector<EvalQuestion> first_of_each_skill(std::vector<EvalQuestion> questions, int max_questions) {
  if (max_questions <= 0) return questions;
  std::map<std::string, int> taken;
  std::erase_if(questions, [&](const EvalQuestion& q) { return ++taken[q.skill] > max_questions; });
  return questions;
}

Result<std::vector<std::string>> load_eval_texts(const std::filesystem::path& file) {
  std::vector<std::string> documents;
  std::ifstream in(file);
  if (!in) return documents;
  std::string document, line;
  const auto finish = [&] {
    if (!stripped(document).empty()) documents.push_back(stripped(document));
    document.clear();
  };
  while (std::getline(in, line)) {
    if (line == "<|endoftext|>") {
      finish();
    } else {
      document += line + "\n";
    }
  }
  finish();
  return documents;
}

std::string final_answer(std::string_view output) {
  constexpr std::string_view kEnd = "</think>";
  const size_t end = output.rfind(kEnd);
  return stripped(end == std::string_view::npos ? output : output.substr(end + kEnd.size()));
}

bool is_right(const EvalQuestion& question, std::string_view output) { return final_answer(output) == question.answer; }

}  // namespace spate
