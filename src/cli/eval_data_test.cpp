// Goal    The eval files are read as documented, and only the final answer counts.
#include "base/test.h"
#include "base/test_support.h"
#include "cli/arguments_test_support.h"
#include "cli/eval_data.h"

namespace spate {

TEST_CASE("eval data: questions and documents as written, errors with their line") {
  const TempDir dir;
  const auto questions = load_eval_questions(write_file(
      dir, "q.jsonl",
      "{\"skill\": \"sort\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"answer\": \" 1 2 \", \"enable_thinking\": false}\n\n"
      "{\"skill\": \"copy\", \"messages\": [], \"answer\": \"a\", \"max_tokens\": 9}\n"));
  REQUIRE(questions.ok());
  REQUIRE(questions->size() == 2);
  CHECK((*questions)[0].answer == "1 2");
  CHECK((*questions)[0].kwargs["enable_thinking"] == false);
  CHECK((*questions)[1].max_tokens == 9);
  CHECK(load_eval_questions(write_file(dir, "bad.jsonl", "{\"skill\": 1}\n")).status().message().find("bad.jsonl:1") !=
        std::string::npos);
  const auto texts = load_eval_texts(write_file(dir, "t.txt", "one\ntwo\n<|endoftext|>\n\n<|endoftext|>\nthree\n"));
  REQUIRE(texts.ok());
  CHECK(*texts == std::vector<std::string>{"one\ntwo", "three"});
}

TEST_CASE("eval: only what follows the last </think> counts") {
  CHECK(final_answer("<think>\n7\n</think>\n\n 12 \n") == "12");
  CHECK(final_answer("12") == "12");
  CHECK(final_answer("<think>1</think>2</think>3") == "3");
  CHECK(final_answer("<think> never ends") == "<think> never ends");
}

}  // namespace spate
