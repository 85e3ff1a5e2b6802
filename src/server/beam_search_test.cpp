// Goal    Beam search gives the most probable answers, in the form of the protocol.
// Method  The search against all sequences there are (beams wide enough for them) and against the plain procedure run
//         to max_tokens, over a random model of a few tokens; then the whole server over an executor that answers what
//         the request says (test_model.h). Over a real model: test/clients/python_package.
#include "server/beam_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/rng.h"
#include "base/test.h"
#include "base/test_support.h"
#include "server/server.h"
#include "server/test_client.h"
#include "server/test_model.h"

namespace spate {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;
using Tops = std::vector<TokenLogprobs::Top>;

constexpr int32_t kEnd = 0;

// Log-probabilities that depend on all tokens before, best first.
struct RandomModel {
  uint64_t seed = 0;
  int vocab_size = 5;
  Tops next(const Ids& before) const {
    uint64_t hash = seed * 0x9E3779B97F4A7C15u + 1;
    for (const int32_t id : before) hash = (hash ^ static_cast<uint64_t>(id + 1)) * 0x100000001B3u + 7;
    Rng rng(hash);
    std::vector<double> logits;
    double sum = 0;
    for (int i = 0; i < vocab_size; ++i) {
      logits.push_back(4 * rng.uniform());
      sum += std::exp(logits.back());
    }
    Tops tops;
    for (int i = 0; i < vocab_size; ++i) {
      tops.push_back({i, static_cast<float>(logits[static_cast<size_t>(i)] - std::log(sum))});
    }
    std::ranges::stable_sort(tops, std::greater(), &TokenLogprobs::Top::logprob);
    return tops;
  }
};

struct Found {
  Ids ids;
  double score;
  bool operator==(const Found& other) const { return ids == other.ids && std::abs(score - other.score) < 1e-9; }
};

std::vector<Found> search(const RandomModel& model, const BeamSearch::Options& options, int* num_steps = nullptr) {
  BeamSearch beams(options);
  while (!beams.is_done()) {
    std::vector<Tops> candidates;
    for (int i = 0; i < beams.num_running(); ++i) candidates.push_back(model.next(beams.token_ids(i)));
    beams.step(candidates);
    if (num_steps) ++*num_steps;
  }
  std::vector<Found> found;
  for (const BeamSearch::Answer& answer : beams.best()) {
    CHECK(answer.logprobs.size() == answer.token_ids.size());
    const bool has_end = answer.token_ids.back() == kEnd && !options.end_ids.empty();
    CHECK((answer.finish_reason == FinishReason::kStop) == has_end);
    found.push_back({answer.token_ids, answer.score});
  }
  return found;
}

double score_of(const BeamSearch::Options& options, double sum, size_t num_tokens) {
  return sum /
         std::pow(options.num_prompt_tokens + static_cast<double>(num_tokens), double{options.params.length_penalty});
}

void sort_best(std::vector<Found>& found, int num_best) {
  std::ranges::stable_sort(found, std::greater(), &Found::score);
  if (found.size() > static_cast<size_t>(num_best)) found.resize(static_cast<size_t>(num_best));
}

// Every answer there is.
void enumerate(const RandomModel& model, const BeamSearch::Options& options, Ids& ids, double sum,
               std::vector<Found>& all) {
  for (const auto& [id, logprob] : model.next(ids)) {
    ids.push_back(id);
    const bool ends = id == kEnd && !options.end_ids.empty();
    const bool is_full = ids.size() == static_cast<size_t>(options.max_tokens);
    const bool may_end = ids.size() > static_cast<size_t>(options.min_tokens);
    if (ends && may_end) {
      all.push_back({ids, score_of(options, sum + double{logprob}, ids.size() - 1)});
    } else if (!ends && is_full) {
      all.push_back({ids, score_of(options, sum + double{logprob}, ids.size())});
    } else if (!ends) {
      enumerate(model, options, ids, sum + double{logprob}, all);
    }
    ids.pop_back();
  }
}

// The procedure as vLLM writes it: whole lists, always to max_tokens.
std::vector<Found> plain_search(const RandomModel& model, const BeamSearch::Options& options) {
  struct Beam {
    Ids ids;
    double sum = 0;
  };
  std::vector<Beam> running{{}};
  std::vector<Found> complete;
  for (int step = 0; step < options.max_tokens; ++step) {
    std::vector<Beam> all;
    for (const Beam& beam : running) {
      Tops tops = model.next(beam.ids);
      tops.resize(std::min(tops.size(), 2 * static_cast<size_t>(options.params.width)));
      for (const auto& [id, logprob] : tops) {
        Beam next{beam.ids, beam.sum + double{logprob}};
        next.ids.push_back(id);
        const bool ends = id == kEnd && !options.end_ids.empty();
        if (!ends)
          all.push_back(std::move(next));
        else if (step >= options.min_tokens)
          complete.push_back({next.ids, score_of(options, next.sum, beam.ids.size())});
      }
    }
    std::ranges::stable_sort(all, std::greater(), &Beam::sum);
    if (all.size() > static_cast<size_t>(options.params.width)) all.resize(static_cast<size_t>(options.params.width));
    running = std::move(all);
  }
  for (const Beam& beam : running) complete.push_back({beam.ids, score_of(options, beam.sum, beam.ids.size())});
  sort_best(complete, options.num_best);
  return complete;
}

BeamSearch::Options random_options(Rng& rng, int width) {
  static constexpr float kPenalties[] = {-1, 0, 0.5f, 1, 2};
  const auto below = [&](int n) { return static_cast<int>(rng.below(static_cast<uint64_t>(n))); };
  BeamSearch::Options options{.params = {.width = width, .length_penalty = kPenalties[below(5)]}};
  options.num_best = 1 + below(std::min(width, 4));
  options.max_tokens = 1 + below(5);
  options.min_tokens = below(3) == 0 ? below(options.max_tokens) : 0;
  options.num_prompt_tokens = 1 + below(6);
  if (below(4) != 0) options.end_ids = {kEnd};
  return options;
}

TEST_CASE("beam search: beams wide enough for all sequences find the best there are") {
  Rng rng(11);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomModel model{.seed = seed, .vocab_size = 4};
    BeamSearch::Options options = random_options(rng, 1024);
    options.num_best = 10;
    std::vector<Found> all;
    Ids ids;
    enumerate(model, options, ids, 0, all);
    sort_best(all, options.num_best);
    INFO("seed ", seed);
    CHECK(search(model, options) == all);
  }
}

TEST_CASE("beam search: narrow beams go as the plain procedure, and end earlier") {
  Rng rng(12);
  int num_steps = 0, num_plain_steps = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const RandomModel model{.seed = seed, .vocab_size = 3 + static_cast<int>(seed % 7)};
    const BeamSearch::Options options = random_options(rng, 1 + static_cast<int>(seed % 4));
    INFO("seed ", seed);
    CHECK(search(model, options, &num_steps) == plain_search(model, options));
    num_plain_steps += options.max_tokens;
  }
  CHECK(num_steps < num_plain_steps);
}

TEST_CASE("beam search: early_stopping ends with as many complete answers as beams, or when none as long is better") {
  Rng rng(13);
  int num_steps[3] = {0, 0, 0};
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const RandomModel model{.seed = seed, .vocab_size = 6};
    BeamSearch::Options options = random_options(rng, 3);
    options.end_ids = {kEnd};
    options.params.length_penalty = 1;
    options.num_best = options.params.width;
    options.max_tokens = 8;
    for (const EarlyStopping stopping : {EarlyStopping::kAtOnce, EarlyStopping::kHeuristic, EarlyStopping::kNever}) {
      options.params.early_stopping = stopping;
      const std::vector<Found> found = search(model, options, &num_steps[static_cast<int>(stopping)]);
      CHECK(found.size() == static_cast<size_t>(options.num_best));
    }
  }
  CHECK(num_steps[static_cast<int>(EarlyStopping::kAtOnce)] < num_steps[static_cast<int>(EarlyStopping::kHeuristic)]);
  CHECK(num_steps[static_cast<int>(EarlyStopping::kHeuristic)] < num_steps[static_cast<int>(EarlyStopping::kNever)]);
}

struct BeamServer {
  BeamServer() : server(test_server_config()) {
    REQUIRE(server.listen().ok());
    server.set_ready(model.serving);
  }
  Json post(const std::string& path, Json body, int expected_status = 200) {
    body["use_beam_search"] = true;
    const TestResponse response = TestClient(server.port()).post(path, body.dump());
    INFO(response.body);
    CHECK(response.status == expected_status);
    return Json::parse(response.body);
  }
  std::string refusal(Json fields) {
    fields.update({{"prompt", "one two"}, {"n", 2}});
    const Json error = post("/v1/completions", fields, 400)["error"];
    return error["param"].is_string() ? error["param"].get<std::string>() : "";
  }
  bool is_idle() {
    for (int i = 0; i < 1000; ++i) {
      const EngineStats stats = model.engine->stats();
      if (stats.num_running == 0 && stats.num_waiting == 0 && stats.num_kv_blocks_used == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  TestModel model;
  Server server;
};

// The executor says -0.5 for the first token of the request's text, whatever came since, then -1.5 for id 10, -2.5 for
// 11 ...
TEST_CASE("beam search: completions have n answers, best first, their logprobs and usage") {
  BeamServer test;
  const Json answer = test.post("/v1/completions", {{"prompt", "one two"},
                                                    {"n", 2},
                                                    {"best_of", 3},
                                                    {"max_tokens", 3},
                                                    {"logprobs", 1},
                                                    {"return_token_ids", true}});
  REQUIRE(answer["choices"].size() == 2);
  const int first = answer["choices"][0]["token_ids"][0];
  CHECK(answer["choices"][0]["token_ids"] == Json{first, first, first});
  for (const double logprob : answer["choices"][0]["logprobs"]["token_logprobs"]) CHECK(logprob == -0.5);
  double sum = 0;
  for (const double logprob : answer["choices"][1]["logprobs"]["token_logprobs"]) sum += logprob;
  CHECK(sum == -2.5);
  for (const Json& choice : answer["choices"]) {
    CHECK(choice["finish_reason"] == "length");
    for (const Json& top : choice["logprobs"]["top_logprobs"]) CHECK((top.size() == 1 || top.size() == 2));
  }
  CHECK(answer["usage"]["completion_tokens"] == 6);
  CHECK(test.is_idle());
  const Json both = test.post("/v1/completions", {{"prompt", {"one two", "three"}}, {"n", 2}, {"max_tokens", 2}});
  CHECK(both["choices"].size() == 4);
  CHECK(both["usage"]["completion_tokens"] == 8);
}

TEST_CASE("beam search: chats, stop strings, stop ids and the least number of tokens") {
  BeamServer test;
  const Json messages = {{{"role", "user"}, {"content", "one two"}}};
  const Json chat = test.post("/v1/chat/completions", {{"messages", messages}, {"n", 2}, {"max_tokens", 4}});
  REQUIRE(chat["choices"].size() == 2);
  const std::string text = chat["choices"][0]["message"]["content"];
  CHECK(!text.empty());
  const std::string piece = text.substr(0, text.size() / 4);
  CHECK(text == piece + piece + piece + piece);

  const Json stopped = test.post(
      "/v1/chat/completions",
      {{"messages", messages}, {"n", 1}, {"max_tokens", 4}, {"stop", {piece + piece}}, {"length_penalty", 0}});
  CHECK(stopped["choices"][0]["message"]["content"] == "");
  CHECK(stopped["choices"][0]["finish_reason"] == "stop");
  CHECK(stopped["choices"][0]["stop_reason"] == piece + piece);
  CHECK(stopped["usage"]["completion_tokens"] == 2);

  const auto ended = [&](int min_tokens) {
    return test.post("/v1/completions", {{"prompt", "one two"},
                                         {"max_tokens", 4},
                                         {"stop_token_ids", {10}},
                                         {"n", 2},
                                         {"length_penalty", 0},
                                         {"min_tokens", min_tokens},
                                         {"return_token_ids", true}});
  };
  Json answer = ended(0)["choices"][0];
  CHECK(answer["token_ids"] == Json{10});
  CHECK(answer["text"] == "");
  CHECK(answer["finish_reason"] == "stop");
  CHECK(answer["stop_reason"] == 10);
  answer = ended(2)["choices"];
  for (const Json& choice : answer) CHECK(choice["token_ids"].size() >= 3);
}

TEST_CASE("beam search: what does not go with it is refused by name") {
  BeamServer test;
  CHECK(test.refusal({{"stream", true}}) == "stream");
  CHECK(test.refusal({{"presence_penalty", 1}}) == "presence_penalty");
  CHECK(test.refusal({{"repetition_penalty", 1.5}}) == "repetition_penalty");
  CHECK(test.refusal({{"logit_bias", {{"5", 1}}}}) == "logit_bias");
  CHECK(test.refusal({{"best_of", 1}}) == "best_of");
  CHECK(test.refusal({{"early_stopping", "often"}}) == "early_stopping");
  CHECK(test.refusal({{"length_penalty", 11}}) == "length_penalty");
  CHECK(test.refusal({{"max_tokens", 0}, {"echo", true}}) == "max_tokens");
  CHECK(test.refusal({{"guided_regex", "a+"}}) == "use_beam_search");
  CHECK(test.refusal({{"bad_words", {"one"}}}) == "use_beam_search");
  CHECK(test.post("/v1/completions", {{"prompt", "one two"}, {"temperature", 0}, {"n", 2}})["choices"].size() == 2);
}

TEST_CASE("beam search: a client that leaves and an engine that fails end it") {
  BeamServer test;
  {
    test.model.executor->step_milliseconds = 5;
    TestClient client(test.server.port());
    const Json body = {{"prompt", "one two"}, {"n", 4}, {"max_tokens", 400}, {"use_beam_search", true}};
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
                std::to_string(body.dump().size()) + "\r\n\r\n" + body.dump());
    for (int i = 0; i < 400 && test.model.engine->stats().num_steps < 10; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    REQUIRE(test.model.engine->stats().num_steps >= 10);
  }
  const uint64_t num_steps = test.model.engine->stats().num_steps;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(test.is_idle());
  CHECK(test.model.engine->stats().num_steps < num_steps + 40);
  const Json broken =
      test.post("/v1/completions", {{"prompt", "BROKEN"}, {"n", 2}, {"max_tokens", 20}, {"prompt_logprobs", 0}}, 500);
  CHECK(broken["error"]["message"].get<std::string>().find("finite") != std::string::npos);
  test.model.executor->fails = true;
  test.post("/v1/completions", {{"prompt", "one two"}, {"n", 2}}, 500);
}

}  // namespace
}  // namespace spate
