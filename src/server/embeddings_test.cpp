// Goal    /v1/embeddings end to end: inputs of every form, both encodings, pooling, dimensions, errors that say what to do;
//         beside generation.
// Method  The whole server over an executor whose hidden states are known (test_model.h).
#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/test_support.h"
#include "server/embedding.h"
#include "server/server.h"
#include "server/test_client.h"
#include "server/test_model.h"
#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::json;

struct EmbeddingServer {
  explicit EmbeddingServer(PoolingConfig pooling = {.pooling = Pooling::kMean}) : server(test_server_config()) {
    REQUIRE(server.listen().ok());
    model.serving.pooling = std::move(pooling);
    server.set_ready(model.serving);
  }
  Json post(const Json& body, int expected_status = 200, const std::string& path = "/v1/embeddings") {
    TestClient client(server.port());
    const TestResponse response = client.post(path, body.dump());
    INFO(response.body);
    CHECK(response.status == expected_status);
    return Json::parse(response.body);
  }
  std::string error_of(const Json& body, const std::string& path = "/v1/embeddings") {
    return post(body, 400, path)["error"]["message"];
  }
  TestModel model;
  Server server;
};

std::vector<float> normalised(std::vector<float> vector) {
  shape_embedding(vector, 0, true);
  return vector;
}

void check_close(const std::vector<float>& actual, const std::vector<float>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) CHECK(actual[i] == doctest::Approx(expected[i]).epsilon(1e-6));
}

std::vector<float> decoded(const std::string& base64) {
  static const std::string kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t group = 0;
  int num_bits = 0;
  for (const char digit : base64) {
    if (digit == '=') break;
    group = group << 6 | static_cast<uint32_t>(kDigits.find(digit));
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(group >> num_bits & 255);
  }
  std::vector<float> vector(bytes.size() / sizeof(float));
  std::memcpy(vector.data(), bytes.data(), vector.size() * sizeof(float));
  return vector;
}

TEST_CASE("embeddings: the mean of the hidden states, normalised; texts, ids and batches") {
  EmbeddingServer s;
  const Json one = s.post({{"input", {5, 7, 9}}, {"model", "test-model"}});
  CHECK(one["object"] == "list");
  CHECK(one["model"] == "test-model");
  CHECK(one["id"].get<std::string>().starts_with("embd-"));
  REQUIRE(one["data"].size() == 1);
  CHECK(one["data"][0]["object"] == "embedding");
  CHECK(one["data"][0]["index"] == 0);
  check_close(one["data"][0]["embedding"], normalised({7, 1, 1, 2}));
  CHECK(one["usage"]["prompt_tokens"] == 3);
  CHECK(one["usage"]["total_tokens"] == 3);

  const Json many = s.post({{"input", {{5, 7, 9}, {4}, {8, 8}}}});
  REQUIRE(many["data"].size() == 3);
  check_close(many["data"][0]["embedding"], normalised({7, 1, 1, 2}));
  check_close(many["data"][1]["embedding"], normalised({4, 0, 1, 2}));
  check_close(many["data"][2]["embedding"], normalised({8, 0.5, 1, 2}));
  CHECK(many["data"][2]["index"] == 2);
  CHECK(many["usage"]["prompt_tokens"] == 6);

  const std::vector<int32_t> ids = s.model.tokenizer->encode("Hello there");
  const Json text = s.post({{"input", "Hello there"}, {"user", "me"}});
  const Json texts = s.post({{"input", {"Hello there", "Hello there"}}});
  const Json as_ids = s.post({{"input", ids}});
  CHECK(text["data"][0]["embedding"] == as_ids["data"][0]["embedding"]);
  CHECK(texts["data"][1]["embedding"] == as_ids["data"][0]["embedding"]);
}

TEST_CASE("embeddings: base64 is little-endian float32, the same numbers") {
  EmbeddingServer s;
  for (const int num_tokens : {1, 2, 3, 40}) {
    Json body{{"input", std::vector<int>(static_cast<size_t>(num_tokens), 11)}};
    const Json floats = s.post(body);
    body["encoding_format"] = "base64";
    const Json text = s.post(body);
    CHECK(decoded(text["data"][0]["embedding"]) == floats["data"][0]["embedding"].get<std::vector<float>>());
    body["dimensions"] = 1;  // four bytes: two signs of padding
    CHECK(decoded(s.post(body)["data"][0]["embedding"]) == std::vector<float>{1});
  }
}

TEST_CASE("embeddings: dimensions cut the vector, which then has length 1 again") {
  EmbeddingServer s;
  const Json body{{"input", {3, 5}}, {"dimensions", 2}};
  check_close(s.post(body)["data"][0]["embedding"], normalised({4, 0.5}));
  CHECK(s.error_of({{"input", "x"}, {"dimensions", 5}}) ==
        "dimensions must be in [1, 4], this model's hidden size, got 5");
  CHECK(s.error_of({{"input", "x"}, {"dimensions", 0}}).find("dimensions") == 0);
}

TEST_CASE("embeddings: the pooling is the model's; normalize is the request's, else the model's") {
  const Json body{{"input", {5, 7, 9}}};
  {
    EmbeddingServer s({.pooling = Pooling::kLast, .normalize = false});
    check_close(s.post(body)["data"][0]["embedding"], {9, 2, 1, 2});
    check_close(s.post({{"input", {5, 7, 9}}, {"normalize", true}})["data"][0]["embedding"], normalised({9, 2, 1, 2}));
    check_close(s.post({{"input", {5, 7, 9}}, {"use_activation", true}})["data"][0]["embedding"],
                normalised({9, 2, 1, 2}));
  }
  {
    EmbeddingServer s({.pooling = Pooling::kCls});
    check_close(s.post({{"input", {5, 7, 9}}, {"normalize", false}})["data"][0]["embedding"], {5, 0, 1, 2});
  }
  {
    EmbeddingServer s({.pooling = Pooling::kNone});
    CHECK(s.error_of(body) ==
          "this model's files name no pooling: there is no vector of a text without one. Start the server with "
          "--pooler-config last (or mean, cls).");
  }
  EmbeddingServer s({.pooling = Pooling::kNone, .problem = "the model asks for pooling_mode_max_tokens"});
  CHECK(s.error_of(body).starts_with("the model asks for pooling_mode_max_tokens: "));
}

TEST_CASE("embeddings: an input may fill the context, is cut when asked, and refused beyond") {
  EmbeddingServer s;
  const auto input = [](int count) { return std::vector<int>(static_cast<size_t>(count), 6); };
  CHECK(s.post({{"input", input(512)}})["usage"]["prompt_tokens"] == 512);
  const Json refused = s.post({{"input", input(513)}}, 400);
  CHECK(refused["error"]["code"] == "context_length_exceeded");
  CHECK(refused["error"]["param"] == "input");
  CHECK(s.post({{"input", input(513)}, {"truncate_prompt_tokens", 100}})["usage"]["prompt_tokens"] == 100);
  CHECK(s.post({{"input", input(600)}, {"truncate_prompt_tokens", -1}})["usage"]["prompt_tokens"] == 512);
  const Json right{{"input", {1, 2, 3}}, {"truncate_prompt_tokens", 1}, {"truncation_side", "right"}, {"normalize", false}};
  check_close(s.post(right)["data"][0]["embedding"], {1, 0, 1, 2});
}

TEST_CASE("embeddings: bad requests name the field") {
  EmbeddingServer s;
  CHECK(s.error_of(Json::object()) == "input is missing");
  CHECK(s.error_of({{"input", Json::array()}}) == "input must not be empty");
  CHECK(s.error_of({{"input", ""}}).find("input has no tokens") == 0);
  CHECK(s.error_of({{"input", {"x", ""}}}).find("input[1] has no tokens") == 0);
  CHECK(s.error_of({{"input", 3}}).find("input must be a string") == 0);
  CHECK(s.error_of({{"input", {1, 99999999}}}).find("input contains token id 99999999") == 0);
  CHECK(s.error_of({{"input", std::vector<std::string>(2049, "x")}}) == "input has 2049 prompts, at most 2048 are taken");
  CHECK(s.error_of({{"input", "x"}, {"encoding_format", "hex"}}) ==
        "encoding_format must be float or base64, got \"hex\"");
  CHECK(s.error_of({{"input", "x"}, {"embed_dtype", "float16"}}) == "embed_dtype must be float32, got \"float16\"");
  CHECK(s.error_of({{"input", "x"}, {"messages", {{{"role", "user"}}}}}).find("messages") != std::string::npos);
  CHECK(s.post({{"input", "x"}, {"model", "other"}}, 404)["error"]["code"] == "model_not_found");
}

TEST_CASE("score: the cosine of each pair, one query against all documents or pair by pair") {
  EmbeddingServer s;
  const auto vector_of = [&](const std::string& text) {
    return s.post({{"input", text}})["data"][0]["embedding"].get<std::vector<double>>();
  };
  const auto cosine = [&](const std::string& a, const std::string& b) {
    const std::vector<double> x = vector_of(a), y = vector_of(b);
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
    return sum;
  };
  for (const char* path : {"/score", "/v1/score"}) {
    const Json answer = s.post({{"text_1", "A cat"}, {"text_2", {"A dog sleeps", "A cat"}}}, 200, path);
    CHECK(answer["object"] == "list");
    CHECK(answer["id"].get<std::string>().starts_with("score-"));
    REQUIRE(answer["data"].size() == 2);
    CHECK(answer["data"][0]["object"] == "score");
    CHECK(answer["data"][1]["index"] == 1);
    CHECK(answer["data"][0]["score"].get<double>() == doctest::Approx(cosine("A cat", "A dog sleeps")).epsilon(1e-6));
    CHECK(answer["data"][1]["score"].get<double>() == doctest::Approx(1).epsilon(1e-6));
    CHECK(answer["usage"]["prompt_tokens"].get<int>() > 3);
  }
  const Json pairs =
      s.post({{"queries", {"A cat", "Two"}}, {"documents", {"A dog sleeps", "Two words"}}}, 200, "/score");
  REQUIRE(pairs["data"].size() == 2);
  CHECK(pairs["data"][1]["score"].get<double>() == doctest::Approx(cosine("Two", "Two words")).epsilon(1e-6));
  CHECK(s.post({{"data_1", "x"}, {"data_2", "y"}}, 200, "/score")["data"].size() == 1);

  CHECK(s.error_of({{"text_2", "x"}}, "/score") == "text_1 is missing");
  CHECK(s.error_of({{"text_1", "x"}}, "/score") == "text_2 is missing");
  CHECK(s.error_of({{"text_1", {"x", "y"}}, {"text_2", "z"}}, "/score") ==
        "text_1 must be one text or as many as text_2, got 2 and 1");
  CHECK(s.error_of({{"text_1", "x"}, {"queries", "y"}, {"text_2", "z"}}, "/score") ==
        "text_1 and queries are the same field; give one");
  CHECK(s.error_of({{"text_1", "x"}, {"text_2", {"y", 3}}}, "/score").find("text_2 must be an array of texts") == 0);
  CHECK(s.error_of({{"text_1", "x"}, {"text_2", Json::array()}}, "/score") == "text_2 must not be empty");
  CHECK(s.error_of({{"text_1", "x"}, {"text_2", {"y", ""}}}, "/score").find("text_2[1] has no tokens") == 0);
  EmbeddingServer without({.pooling = Pooling::kNone});
  CHECK(without.error_of({{"text_1", "x"}, {"text_2", "y"}}, "/score").find("--pooler-config") != std::string::npos);
}

TEST_CASE("rerank: documents by score, best first") {
  EmbeddingServer s;
  const Json documents{"A dog sleeps in the sun", "A cat", {{"text", "A cat sat"}}, "Zero"};
  const Json scores = s.post(
      {{"text_1", "A cat"}, {"text_2", {"A dog sleeps in the sun", "A cat", "A cat sat", "Zero"}}}, 200, "/score");
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"}) {
    const Json answer = s.post({{"query", "A cat"}, {"documents", documents}}, 200, path);
    REQUIRE(answer["results"].size() == 4);
    CHECK(answer["results"][0]["index"] == 1);
    CHECK(answer["results"][0]["document"]["text"] == "A cat");
    double last = 2;
    for (const Json& result : answer["results"]) {
      const double score = result["relevance_score"];
      CHECK(score <= last);
      last = score;
      CHECK(score == scores["data"][result["index"].get<size_t>()]["score"].get<double>());
    }
    CHECK(answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"]);
  }
  const Json two =
      s.post({{"query", "A cat"}, {"documents", documents}, {"top_n", 2}, {"return_documents", false}}, 200, "/rerank");
  REQUIRE(two["results"].size() == 2);
  CHECK(!two["results"][0].contains("document"));
  CHECK(s.error_of({{"documents", documents}}, "/rerank") == "query is missing");
  CHECK(s.error_of({{"query", "x"}, {"documents", {"a", {{"image", 1}}}}}, "/rerank")
            .find("documents must be an array of texts") == 0);
  CHECK(s.error_of({{"query", "x"}, {"documents", {"a"}}, {"top_n", -1}}, "/rerank").find("top_n") == 0);
  CHECK(s.error_of({{"query", "x"}, {"documents", {"a"}}, {"max_tokens_per_doc", 9}}, "/rerank")
            .find("truncate_prompt_tokens") != std::string::npos);
  // As Text Embeddings Inference answers.
  const Json texts{"A dog sleeps in the sun", "A cat"};
  const Json list = s.post({{"query", "A cat"}, {"texts", texts}}, 200, "/rerank");
  REQUIRE(list.size() == 2);
  CHECK(list[0] == Json({{"index", 1}, {"score", scores["data"][1]["score"]}}));
  CHECK(s.post({{"query", "A cat"}, {"texts", texts}, {"return_text", true}}, 200, "/rerank")[1]["text"] == texts[0]);
  const Json too_long{{"query", "x"}, {"texts", {"a", std::string(4000, 'z')}}};
  CHECK(s.post(too_long, 400, "/rerank")["error"]["param"] == "texts[1]");
  Json cut = too_long;
  cut["truncate"] = true;
  CHECK(s.post(cut, 200, "/rerank").size() == 2);
  CHECK(s.error_of({{"query", "x"}}, "/rerank") == "documents is missing");
  CHECK(s.error_of({{"query", "x"}, {"texts", {"a"}}, {"documents", {"a"}}}, "/rerank") ==
        "documents and texts are the same field; give one");
  const Json refused = s.post({{"query", "x"}, {"documents", {"a", std::string(4000, 'z')}}}, 400, "/rerank");
  CHECK(refused["error"]["param"] == "documents[1]");
}

TEST_CASE("embeddings: what is not finite is an error of its request") {
  EmbeddingServer s;
  const Json error = s.post({{"input", {"BROKEN text", "fine"}}}, 500);
  CHECK(error["error"]["message"].get<std::string>().find("not finite") != std::string::npos);
  s.post({{"input", "fine"}});
}

TEST_CASE("embeddings: they run beside generation, and a client that goes away takes its own along") {
  EmbeddingServer s;
  s.model.executor->step_milliseconds = 5;
  std::thread generating([&] {
    const Json answer = s.post({{"prompt", "FOREVER and"}, {"max_tokens", 40}}, 200, "/v1/completions");
    CHECK(answer["usage"]["completion_tokens"] == 40);
  });
  for (int i = 0; i < 5; ++i) check_close(s.post({{"input", {5, 7, 9}}})["data"][0]["embedding"], normalised({7, 1, 1, 2}));
  generating.join();
  s.model.executor->step_milliseconds = 300;  // so that the client goes first, on a busy machine too
  {
    TestClient client(s.server.port());
    const Json body{{"input", std::vector<std::vector<int>>(60, std::vector<int>(400, 3))}};
    CHECK(client.send(fmt::format("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}",
                                  body.dump().size(), body.dump())));
    // A client that goes before its body is read has nothing to take along.
    const auto has_work = [&] { return s.model.engine->stats().num_running + s.model.engine->stats().num_waiting > 0; };
    for (int i = 0; i < 2000 && !has_work(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE(has_work());
  }
  for (int i = 0; i < 1000 && s.model.engine->stats().finished[static_cast<size_t>(FinishReason::kAbort)] == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(s.model.engine->stats().finished[static_cast<size_t>(FinishReason::kAbort)] > 0);
}

}  // namespace
}  // namespace spate
