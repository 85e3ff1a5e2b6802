// Goal    The proposers find what they promise: the longest match, the latest or the one where the copy stood.
// Method  Small texts by hand; random texts of few ids against the slow obvious search.
#include "speculative/proposer.h"

#include <algorithm>

#include "base/rng.h"
#include "base/test_support.h"
#include "speculative/suffix_automaton.h"
#include "base/test.h"

namespace spate {
namespace {

using Tokens = std::vector<int32_t>;

Tokens propose(Proposer& proposer, ProposerState& state, const Tokens& tokens, int max_drafts) {
  Tokens drafts;
  DraftRow row{.state = &state, .token_ids = tokens, .max_drafts = max_drafts, .drafts = &drafts};
  CHECK(proposer.propose(std::span(&row, 1)).ok());
  return drafts;
}

Tokens propose(const SpeculativeConfig& config, const Request& request, const Tokens& tokens, int max_drafts) {
  const auto proposer = make_proposer(config);
  const auto state = proposer->start(request, 0);
  return propose(*proposer, *state, tokens, max_drafts);
}

TEST_CASE("ngram proposes what followed the longest match, the latest of equals") {
  const SpeculativeConfig config{
      .method = SpeculativeMethod::kNgram, .prompt_lookup_min = 2, .prompt_lookup_max = 4};
  CHECK(propose(config, {}, {1, 2, 3, 4, 5, 2, 3}, 2) == Tokens{4, 5});
  CHECK(propose(config, {}, {9, 1, 2, 7, 8, 1, 2, 6, 9, 1, 2}, 2) == Tokens{7, 8});  // three tokens match
  CHECK(propose(config, {}, {1, 2, 7, 3, 1, 2, 6, 4, 1, 2}, 1) == Tokens{6});        // two, twice
  CHECK(propose(config, {}, {1, 2, 1, 2, 1, 2}, 5) == Tokens{1, 2, 1, 2, 1});        // a run goes on
  CHECK(propose(config, {}, {7, 7, 7}, 3) == Tokens{7, 7, 7});
  CHECK(propose(config, {}, {1, 2, 3, 4, 5, 3}, 2) == Tokens{});  // one token is too short
  CHECK(propose(config, {}, {1}, 2) == Tokens{});
  CHECK(propose(config, {}, {1, 2}, 2) == Tokens{});
  CHECK(propose(config, {}, {1, 2, 3, 1, 2}, 0) == Tokens{});
}

TEST_CASE("ngram, token by token, finds a match as long as the slow search does") {
  Rng rng(test_seed());
  const SpeculativeConfig config{
      .method = SpeculativeMethod::kNgram, .prompt_lookup_min = 2, .prompt_lookup_max = 5};
  for (const uint64_t num_ids : {40, 300}) {
    const auto proposer = make_proposer(config);
    const auto state = proposer->start({}, 0);
    Tokens tokens;
    int num_proposed = 0;
    while (tokens.size() < 3000) {
      for (uint64_t i = 0, count = 1 + rng.below(4); i < count; ++i) {
        tokens.push_back(static_cast<int32_t>(rng.below(num_ids)));
      }
      const Tokens drafts = propose(*proposer, *state, tokens, 1);
      const auto occurs = [&](int length, int32_t next) {
        for (size_t end = static_cast<size_t>(length); end < tokens.size(); ++end) {
          if ((next < 0 || tokens[end] == next) &&
              std::equal(tokens.end() - length, tokens.end(), tokens.begin() + static_cast<int64_t>(end) - length)) {
            return true;
          }
        }
        return false;
      };
      int longest = 0;
      while (longest < 5 && std::ssize(tokens) > longest + 1 && occurs(longest + 1, -1)) ++longest;
      REQUIRE(drafts.empty() == (longest < 2));
      // Of pairs that occur more than 32 times only the latest are looked at: there are none among 40 ids.
      if (!drafts.empty()) REQUIRE(occurs(longest, drafts[0]));
      num_proposed += !drafts.empty();
    }
    CHECK(num_proposed > 20);
  }
}

TEST_CASE("the suffix automaton knows the longest suffix that occurs, and where") {
  Rng rng(test_seed());
  for (const uint64_t num_ids : {2, 3, 20}) {
    Tokens text;
    for (int i = 0; i < 400; ++i) text.push_back(static_cast<int32_t>(rng.below(num_ids)));
    SuffixAutomaton automaton(text);
    while (automaton.extend(1 + rng.below(30)) > 0) CHECK(automaton.extend(0) == 0);
    REQUIRE(automaton.is_complete());
    SuffixAutomaton::Match match;
    Tokens read;
    for (int i = 0; i < 400; ++i) {
      // One id more than the text has; and pieces of the text.
      read.push_back(i % 50 < 30 ? text[static_cast<size_t>(i)] : static_cast<int32_t>(rng.below(num_ids + 1)));
      automaton.read(match, read.back());
      const auto first_end = [&](int length) {
        const auto at = std::search(text.begin(), text.end(), read.end() - length, read.end());
        return at == text.end() && length > 0 ? -1 : static_cast<int>(at - text.begin()) + length;
      };
      REQUIRE(first_end(match.length) >= 0);
      if (match.length > 0) REQUIRE(automaton.first_end(match) == first_end(match.length));
      if (match.length < std::ssize(read)) REQUIRE(first_end(match.length + 1) == -1);
    }
  }
}

TEST_CASE("reference follows the text, breaks off at an edit and restarts near it") {
  const SpeculativeConfig config{.method = SpeculativeMethod::kReference, .prompt_lookup_min = 2};
  Request request;
  request.prompt_token_ids = {90, 91};
  // (1 2) comes three times.
  request.speculative_reference = {{1, 2, 10, 11, 12, 1, 2, 20, 21, 22, 1, 2, 30, 31}, {40, 41, 42}};
  const auto proposer = make_proposer(config);
  const auto state = proposer->start(request, 0);
  Tokens tokens = {90, 91};
  const auto next = [&](const Tokens& come, int max_drafts) {
    tokens.insert(tokens.end(), come.begin(), come.end());
    return propose(*proposer, *state, tokens, max_drafts);
  };
  CHECK(next({}, 4) == Tokens{});
  CHECK(next({1, 2}, 4) == Tokens{10, 11, 12, 1});
  CHECK(next({10, 11, 99}, 4) == Tokens{});               // an edit
  CHECK(next({1, 2}, 3) == Tokens{20, 21, 22});           // not the first (1 2): the next one
  CHECK(next({20, 98, 22, 1, 2}, 4) == Tokens{30, 31});   // the end of a text; no draft goes beyond it
  CHECK(next({30, 40, 41}, 4) == Tokens{42});             // the other text
  CHECK(next({42, 42}, 4) == Tokens{});
}

TEST_CASE("reference takes the prompt where the request brings no text, and sequences of a request share it") {
  const SpeculativeConfig config{.method = SpeculativeMethod::kReference, .prompt_lookup_min = 1};
  Request request;
  request.id = 7;
  request.prompt_token_ids = {5, 6, 7, 8, 9, 1};
  const auto proposer = make_proposer(config);
  const auto first = proposer->start(request, 0), second = proposer->start(request, 1);
  CHECK(propose(*proposer, *first, {5, 6, 7, 8, 9, 1, 6}, 2) == Tokens{7, 8});
  CHECK(propose(*proposer, *second, {5, 6, 7, 8, 9, 1, 8}, 9) == Tokens{9, 1});
}

TEST_CASE("a long text is taken in over several turns, of all rows together a bounded part each") {
  const SpeculativeConfig config{.method = SpeculativeMethod::kReference, .prompt_lookup_min = 2};
  const auto proposer = make_proposer(config);
  std::vector<Tokens> texts, drafts(2);
  std::vector<std::unique_ptr<ProposerState>> states;
  Rng rng(test_seed());
  for (RequestId id = 0; id < 2; ++id) {
    Request request{.id = id, .prompt_token_ids = {1}};
    Tokens& text = texts.emplace_back();
    for (int i = 0; i < 6000; ++i) text.push_back(static_cast<int32_t>(rng.below(100000)));
    request.speculative_reference = {text};
    states.push_back(proposer->start(request, 0));
  }
  // The answers copy from the end of their texts.
  std::vector<int> first_turn = {0, 0};
  for (int turn = 1; turn <= 4; ++turn) {
    std::vector<Tokens> answers;
    std::vector<DraftRow> rows;
    for (const Tokens& text : texts) {
      answers.push_back({1});
      answers.back().insert(answers.back().end(), text.begin() + 5000, text.begin() + 5000 + turn);
    }
    for (size_t i = 0; i < 2; ++i) {
      drafts[i].clear();
      rows.push_back({.state = states[i].get(), .token_ids = answers[i], .max_drafts = 3, .drafts = &drafts[i]});
    }
    REQUIRE(proposer->propose(rows).ok());
    for (size_t i = 0; i < 2; ++i) {
      if (drafts[i].empty()) continue;
      if (first_turn[i] == 0) first_turn[i] = turn;
      CHECK(drafts[i] == Tokens(texts[i].begin() + 5000 + turn, texts[i].begin() + 5003 + turn));
    }
  }
  CHECK(first_turn == std::vector<int>{2, 3});  // 4,096 tokens a turn of 6,000 each
}

}  // namespace
}  // namespace spate
