// Goal    bad_words never come, in the ways that vLLM knows them, and nothing else changes; beside other constraints.
// Method  The cursor over the real tokenizer; then the whole server over an executor that answers what the request says
//         and takes the first allowed token where its own is not (test_model.h).
#include "server/bad_words.h"

#include <nlohmann/json.hpp>

#include "base/test.h"
#include "base/test_support.h"
#include "server/allowed_tokens.h"
#include "server/server.h"
#include "server/test_client.h"
#include "server/test_model.h"

namespace spate {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

const Tokenizer& test_tokenizer() {
  static const auto loaded = Tokenizer::load(repo_root() / "models/mini-qwen3");
  REQUIRE(loaded.ok());
  return **loaded;
}

bool allows(const ConstraintCursor& cursor, int32_t id) { return mask_allows(cursor.mask().data(), id); }

void append(std::unique_ptr<ConstraintCursor>& cursor, int32_t id) {
  const auto copy = cursor->clone();
  REQUIRE(copy->append(id).ok());
  REQUIRE(cursor->append(id).ok());
  REQUIRE(copy->prepare_mask().ok());
  REQUIRE(cursor->prepare_mask().ok());
  CHECK(std::ranges::equal(copy->mask(), cursor->mask()));
  CHECK(copy->may_end() == cursor->may_end());
}

TEST_CASE("bad words: a sequence's last token is forbidden behind the others, one of one token everywhere") {
  const auto constraint = forbid_sequences({{5}, {7, 8, 9}, {8, 7}}, {}, 40, nullptr);
  auto cursor = constraint->start();
  CHECK_FALSE(allows(*cursor, 5));
  CHECK((allows(*cursor, 7) && allows(*cursor, 8) && allows(*cursor, 9) && allows(*cursor, 39)));
  append(cursor, 7);
  append(cursor, 8);
  CHECK_FALSE(allows(*cursor, 9));
  CHECK_FALSE(allows(*cursor, 7));
  CHECK_FALSE(allows(*cursor, 5));
  CHECK_FALSE(cursor->may_draft(9));
  CHECK(cursor->may_draft(8));
  append(cursor, 6);
  CHECK((allows(*cursor, 9) && allows(*cursor, 7)));
  CHECK_FALSE(allows(*cursor, 5));
  CHECK(cursor->may_end());
  CHECK_FALSE(cursor->must_end());
}

TEST_CASE("bad words: an end token can be one; another end token is left") {
  auto cursor = forbid_sequences({{3, 30}}, {30, 31}, 40, nullptr)->start();
  CHECK(cursor->may_end());
  append(cursor, 3);
  CHECK_FALSE(cursor->may_end());  // 31 is in the mask instead
  CHECK(allows(*cursor, 31));
  CHECK_FALSE(allows(*cursor, 30));
}

TEST_CASE("bad words: inside another constraint; where nothing is left that is an error") {
  const Ids allowed{1, 2};
  auto cursor = forbid_sequences({{1, 2}, {1, 1}}, {}, 40, allow_tokens(allowed, {}, 40))->start();
  CHECK((allows(*cursor, 1) && allows(*cursor, 2) && !allows(*cursor, 3)));
  append(cursor, 2);
  REQUIRE(cursor->append(1).ok());
  CHECK(cursor->prepare_mask().code() == StatusCode::kInvalidArgument);

  auto hopeless = forbid_sequences({{1}, {2}}, {}, 40, allow_tokens(allowed, {}, 40))->start();
  CHECK(hopeless->append(1).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("bad words: a word is its tokens at the beginning of a text and behind a space") {
  const Tokenizer& tokenizer = test_tokenizer();
  const auto encode = [&](const char* text) { return tokenizer.encode(text, {.add_special_tokens = false}); };
  const auto sequences = bad_sequences({"  the"}, tokenizer);
  REQUIRE(!sequences.empty());
  CHECK(sequences[0] == encode("the"));
  const Ids spaced = encode(" the");
  const bool is_one_word = spaced.size() == sequences[0].size() && spaced[0] != sequences[0][0];
  CHECK(sequences.size() == (is_one_word ? 2u : 1u));
  CHECK(is_one_word);  // of this tokenizer; else another word must be found for this test
}

TEST_CASE("api: bad_words are not said, in chats, completions, streams and beside a schema") {
  TestModel model;
  Server server(test_server_config());
  REQUIRE(server.listen().ok());
  server.set_ready(model.serving);
  const auto post = [&](const char* path, const Json& body, int status = 200) {
    TestClient client(server.port());
    const TestResponse reply = client.post(path, body.dump());
    INFO(reply.body);
    CHECK(reply.status == status);
    return Json::parse(reply.body);
  };
  const Json said =
      post("/v1/completions", {{"prompt", "yes no yes no"}, {"max_tokens", 12}, {"return_token_ids", true}});
  CHECK(said["choices"][0]["text"] == "yes no yes no");
  const Json body{{"prompt", "yes no yes no"}, {"max_tokens", 12}, {"return_token_ids", true}, {"bad_words", {"no"}}};
  const Json other = post("/v1/completions", body);
  const auto sequences = bad_sequences({"no"}, *model.tokenizer);
  const Ids answer = other["choices"][0]["token_ids"];
  CHECK(answer != said["choices"][0]["token_ids"].get<Ids>());
  CHECK(answer.size() == said["choices"][0]["token_ids"].size());  // the others come, and so does the end
  for (const Ids& sequence : sequences) CHECK(std::ranges::search(answer, sequence).empty());

  const Json choice{{"messages", {{{"role", "user"}, {"content", "no"}}}},
                    {"guided_choice", {"no", "yes"}},
                    {"return_token_ids", true}};
  Json limited = choice;
  limited["bad_words"] = {"no", "n", "no!"};
  const auto first_id = [](const Json& reply) { return reply["choices"][0]["token_ids"][0].get<int32_t>(); };
  CHECK(Ids{first_id(post("/v1/chat/completions", choice))} == sequences[0]);
  const Json yes = post("/v1/chat/completions", limited);
  CHECK(yes["choices"][0]["message"]["content"] == "yes");
  limited["bad_words_token_ids"] = Json::array();
  for (int id = 0; id < model.serving.vocab_size; ++id) limited["bad_words_token_ids"].push_back(id);
  const Json error = post("/v1/chat/completions", limited, 400)["error"];
  CHECK(error["message"].get<std::string>().find("bad_words") != std::string::npos);
}

}  // namespace
}  // namespace spate
