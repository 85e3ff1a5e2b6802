// Where the reasoning of a model begins and ends for relaxed acceptance.
#include "server/relaxed_acceptance.h"

#include "base/test.h"
#include "base/test_support.h"
#include "server/thinking_budget.h"

namespace spate {
namespace {

const ReasoningFormat* format_named(std::string_view name) { return *find_reasoning_format(name, ""); }

TEST_CASE("relaxed acceptance wants a reasoning between two tokens") {
  const auto tokenizer = Tokenizer::load(repo_root() / "models/mini-qwen3").value();
  SpeculativeConfig config{.method = SpeculativeMethod::kNgram,
                           .use_relaxed_acceptance_for_thinking = true,
                           .relaxed_topk = 10,
                           .relaxed_delta = 0.6f};
  const auto found = relaxed_acceptance(config, format_named("qwen3"), tokenizer.get());
  REQUIRE(found.ok());
  CHECK(found->top_k == 10);
  CHECK(found->delta == 0.6f);
  CHECK(found->begin_id == tokenizer->token_id("<think>"));
  CHECK(found->end_id == tokenizer->token_id("</think>"));
  const auto message = [&](const ReasoningFormat* format, const Tokenizer* text) {
    return std::string(relaxed_acceptance(config, format, text).status().message());
  };
  CHECK(message(nullptr, tokenizer.get()).find("no format of reasoning is known") != std::string::npos);
  CHECK(message(format_named("qwen3"), nullptr).find("it has no tokenizer") != std::string::npos);
  CHECK(message(format_named("harmony"), tokenizer.get()).find("harmony's channels are not supported") !=
        std::string::npos);
  CHECK(message(format_named("mistral"), tokenizer.get())
            .find("the marker [THINK] of this model's reasoning must be one token") != std::string::npos);
  config.use_relaxed_acceptance_for_thinking = false;
  CHECK(relaxed_acceptance(config, nullptr, nullptr)->top_k == 0);

  const ReasoningFormat& qwen3 = *format_named("qwen3");
  CHECK_FALSE(relaxed_after(*found, qwen3, "<|im_start|>assistant\n").has_begun);
  CHECK(relaxed_after(*found, qwen3, "<|im_start|>assistant\n").top_k == 10);
  CHECK(relaxed_after(*found, qwen3, "<|im_start|>assistant\n<think>\n").has_begun);
  CHECK(relaxed_after(*found, qwen3, "<|im_start|>assistant\n<think>\n\n</think>\n\n").top_k == 0);
}

TEST_CASE("a limit on the reasoning relaxes inside of it, and where nothing else constrains it") {
  const auto tokenizer = Tokenizer::load(repo_root() / "models/mini-qwen3").value();
  const ThinkingBudget budget{.max_tokens = 2, .begin = "<think>", .end = "</think>"};
  const auto limit = limit_thinking(budget, *tokenizer, tokenizer->vocab_size(), nullptr);
  const auto cursor = limit->start(),
             inner = limit_thinking(budget, *tokenizer, tokenizer->vocab_size(), limit)->start();
  const std::vector<bool> expected = {false, true, true, false, false};  // before each of these, and behind the last
  const std::vector<int32_t> ids = tokenizer->encode("<think>12</think>", {.add_special_tokens = false});
  REQUIRE(ids.size() == 4);
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(cursor->may_relax() == expected[i]);
    CHECK_FALSE(inner->may_relax());
    if (i < ids.size()) REQUIRE(cursor->append(ids[i]).ok());
    if (i < ids.size()) REQUIRE(inner->append(ids[i]).ok());
  }
}

}  // namespace
}  // namespace spate
