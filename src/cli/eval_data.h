// The held-out questions and texts of a model's eval/ folder.
//
//   eval/questions.jsonl   {"skill", "messages", "tools"?, "enable_thinking"?, "max_tokens", "answer"} a line
//   eval/graded.jsonl      the same with "grade": 1, 2 or 3; the model fails some of them
//   eval/text.txt          documents separated by a line that holds only <|endoftext|>
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace spate {

struct EvalQuestion {
  std::string skill;              // with its grade, if any: "sort", "sort 2"
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;   // null when it has none
  nlohmann::ordered_json kwargs;  // of the chat template: enable_thinking
  int max_tokens = 256;
  std::string answer;
};

Result<std::vector<EvalQuestion>> load_eval_questions(const std::filesystem::path& file);
// At most max_questions of each skill; 0: all.
std::vector<EvalQuestion> first_of_each_skill(std::vector<EvalQuestion> questions, int max_questions);
// Empty when there is no such file.
Result<std::vector<std::string>> load_eval_texts(const std::filesystem::path& file);

// What is compared with the answer: everything behind the last </think>, without surrounding white space.
std::string final_answer(std::string_view output);
bool is_right(const EvalQuestion& question, std::string_view output);

}  // namespace spate
