// Goal    A budget ends the reasoning at its token and changes nothing else: answers without reasoning, those that end
//         it themselves, grammars, streams.
// Method  The cursor over the real tokenizer; then the whole server over an executor that answers what the request says
//         and takes the first allowed token where its own is not (test_model.h).
#include "server/thinking_budget.h"

#include <nlohmann/json.hpp>

#include "base/test_support.h"
#include "server/server.h"
#include "server/test_client.h"
#include "server/test_model.h"
#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::json;

// The tokens of an answer to `wanted` under the budget: a token of `wanted` unless the mask forbids it.
std::string run_cursor(const Tokenizer& tokenizer, ThinkingBudget budget, const std::string& wanted, bool* is_done) {
  const auto limit = limit_thinking(std::move(budget), tokenizer, tokenizer.vocab_size(), nullptr);
  std::unique_ptr<ConstraintCursor> cursor = limit->start();
  std::vector<int32_t> answer;
  for (const int32_t id : tokenizer.encode(wanted, {.add_special_tokens = false})) {
    int32_t chosen = id;
    if (!mask_allows(cursor->mask().data(), id)) {
      for (chosen = 0; !mask_allows(cursor->mask().data(), chosen);) ++chosen;
      CHECK_FALSE(cursor->may_end());
      CHECK(cursor->may_draft(chosen));
      CHECK_FALSE(cursor->may_draft(id));
    }
    const auto copy = cursor->clone();
    CHECK(copy->append(chosen).ok());
    CHECK(cursor->append(chosen).ok());
    CHECK(cursor->prepare_mask().ok());
    CHECK(std::ranges::equal(copy->mask(), cursor->mask()));
    CHECK_FALSE(cursor->must_end());
    answer.push_back(chosen);
  }
  *is_done = cursor->is_done();
  return tokenizer.decode(answer, false);
}

TEST_CASE("a thinking budget forces the end marker, of one token or of several") {
  const auto loaded = Tokenizer::load(repo_root() / "models/mini-qwen3");
  REQUIRE(loaded.ok());
  const Tokenizer& tokenizer = **loaded;
  bool is_done = false;
  const auto run = [&](ThinkingBudget budget, const std::string& wanted) {
    return run_cursor(tokenizer, std::move(budget), wanted, &is_done);
  };
  const ThinkingBudget three{.max_tokens = 3, .begin = "<think>", .end = "</think>"};
  CHECK(run(three, "<think>1234567") == "<think>123</think>567");
  CHECK(is_done);
  CHECK(run(three, "<think>12</think>567") == "<think>12</think>567");
  CHECK(is_done);
  CHECK(run(three, "<think>12") == "<think>12");
  CHECK_FALSE(is_done);
  CHECK(run(three, " \n<think>1234567").ends_with("<think>123</think>567"));
  CHECK(run(three, "7<think>1234567") == "7<think>1234567");  // no reasoning: it does not begin with the marker
  CHECK(is_done);

  const ThinkingBudget none{.max_tokens = 0, .begin = "<think>", .end = "</think>", .has_begun = true};
  CHECK(run(none, "1234").substr(0, 9) == "</think>2");
  const ThinkingBudget begun{.max_tokens = 2, .begin = "<think>", .end = "</think>", .has_begun = true};
  CHECK(run(begun, "1234567") == "12</think>4567");

  // A text before the mark, as --reasoning-config gives it.
  const ThinkingBudget told{.max_tokens = 2, .begin = "<think>", .end = "</think>", .forced_end = " so</think>"};
  CHECK(run(told, "<think>12345678") == "<think>12 so</think>5678");
  CHECK(is_done);
  CHECK(run(told, "<think>1</think>5") == "<think>1</think>5");

  // Markers that are plain text.
  const ThinkingBudget text{.max_tokens = 3, .begin = "[T]", .end = "[/TT]"};
  const std::string forced = run(text, "[T]12345678901234");
  CHECK(forced.starts_with("[T]123[/TT]"));
  CHECK(is_done);
  const std::string finished = run(text, "[T]12[/TT]3456");  // the model's own marker is not written twice
  CHECK(finished == "[T]12[/TT]3456");
  CHECK(is_done);
}

struct BudgetServer {
  BudgetServer() : server(test_server_config()) {
    REQUIRE(server.listen().ok());
    server.set_ready(model.serving);
  }
  Json post(const std::string& path, Json body, int expected_status = 200) {
    TestClient client(server.port());
    const TestResponse response = client.post(path, body.dump());
    INFO(response.body);
    CHECK(response.status == expected_status);
    return Json::parse(response.body);
  }
  Json chat(const std::string& text, Json fields, int expected_status = 200) {
    fields["messages"] = {{{"role", "user"}, {"content", text}}};
    return post("/v1/chat/completions", std::move(fields), expected_status);
  }
  TestModel model;
  Server server;
};

TEST_CASE("a thinking budget in a chat, by every name; usage tells the reasoning tokens") {
  BudgetServer s;
  const std::string long_thought = "<think>1234567890</think>Done.";
  for (const char* name : {"thinking_token_budget", "reasoning_max_tokens", "reasoning_budget_tokens"}) {
    const Json answer = s.chat(long_thought, {{name, 4}});
    CHECK(answer["choices"][0]["message"]["reasoning_content"] == "1234");
    CHECK(answer["choices"][0]["message"]["content"] == "67890</think>Done.");
    CHECK(answer["choices"][0]["finish_reason"] == "stop");
    CHECK(answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6);  // and the two markers
  }
  for (const int interval : {1, 3, 100}) {  // tokens that come together are counted one by one
    const Json fields = {{"stream_interval", interval}, {"thinking_token_budget", 4}};
    CHECK(s.chat(long_thought, fields)["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6);
  }
  const Json first_wins = s.chat(long_thought, {{"thinking_token_budget", 2}, {"reasoning_max_tokens", 5}});
  CHECK(first_wins["choices"][0]["message"]["reasoning_content"] == "12");
  for (const int budget : {-1, 10, 1000}) {
    const Json answer = s.chat(long_thought, {{"thinking_token_budget", budget}});
    CHECK(answer["choices"][0]["message"]["reasoning_content"] == "1234567890");
    CHECK(answer["choices"][0]["message"]["content"] == "Done.");
  }
  const Json plain = s.chat("No thoughts here.", {{"thinking_token_budget", 0}});
  CHECK(plain["choices"][0]["message"]["content"] == "No thoughts here.");
  CHECK(s.chat("x", {{"thinking_token_budget", -2}}, 400)["error"]["param"] == "thinking_token_budget");
  CHECK(s.chat("x", {{"thinking_token_budget", "many"}}, 400)["error"]["param"] == "thinking_token_budget");
  s.post("/v1/completions", {{"prompt", "x"}, {"thinking_token_budget", 3}}, 400);
  // A server without relaxed acceptance gives it to nobody.
  CHECK(s.chat("x", {{"relaxed_acceptance", true}}, 400)["error"]["param"] == "relaxed_acceptance");
  CHECK(s.chat("x", {{"relaxed_acceptance", false}})["choices"][0]["message"]["content"] == "x");
}

TEST_CASE("a thinking budget beside n, a grammar, and in Anthropic's Messages") {
  BudgetServer s;
  const Json several = s.chat("<think>1234567890</think>Done.", {{"reasoning_max_tokens", 3}, {"n", 3}, {"temperature", 1}});
  for (const Json& choice : several["choices"]) CHECK(choice["message"]["reasoning_content"] == "123");

  const Json message = s.post("/v1/messages", {{"max_tokens", 64},
                                               {"thinking", {{"type", "enabled"}, {"budget_tokens", 3}}},
                                               {"messages", {{{"role", "user"}, {"content", "<think>12345678</think>Yes."}}}}});
  CHECK(message["content"][0]["thinking"] == "123");

  // The prompt has begun the reasoning; the grammar holds behind it.
  const Json answer = s.post("/v1/chat/completions",
                             {{"messages", {{{"role", "user"}, {"content", "1234567890"}},
                                            {{"role", "assistant"}, {"content", "<think>"}}}},
                              {"continue_final_message", true},
                              {"add_generation_prompt", false},
                              {"reasoning_max_tokens", 3},
                              {"max_tokens", 40},
                              {"structured_outputs", {{"regex", "[0-9]{4}"}}}});
  const std::string text = answer["choices"][0]["message"]["content"];
  CHECK(text.find("</think>") == 3);
  CHECK(text.size() == 3 + 8 + 4);
}

}  // namespace
}  // namespace spate
