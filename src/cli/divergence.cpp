#include "cli/divergence.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/step_plan.h"

namespace spate {
namespace {

constexpr size_t kTextTokens = 8192;   // of the first texts
constexpr double kLeastMass = 1e-6;    // of the bucket of the others: f32 log-probabilities do not resolve less
constexpr double kLeastProbability = 1e-12;  // of a token, so that a logarithm is finite

std::optional<float> find(const TokenLogprobs& position, int32_t token_id) {
  if (position.token_id == token_id) return position.logprob;
  const auto found = std::ranges::find(position.top, token_id, &TokenLogprobs::Top::token_id);
  if (found == position.top.end()) return std::nullopt;
  return found->logprob;
}

// A bucket's part of the divergence, never negative. The terms without a logarithm cancel over a whole distribution.
double bucket_divergence(double p, double q, double log_ratio) { return p * log_ratio - p + q; }

// The predictions of every token of `pieces` from its first_scored on.
Result<std::vector<std::vector<TokenLogprobs>>> predict(LoadedModel& model, const std::vector<ReferencePiece>& pieces, int num_top) {
  std::vector<OfflineRequest> requests;
  for (const ReferencePiece& piece : pieces) {
    OfflineRequest& request = requests.emplace_back();
    request.prompt_token_ids = piece.token_ids;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 1;
    request.sampling.prompt_logprobs = num_top;
  }
  ASSIGN_OR_RETURN(auto results, run_offline(*model.engine, model.eos_token_ids, std::move(requests)));
  std::vector<std::vector<TokenLogprobs>> predictions;
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::vector<TokenLogprobs>& logprobs = results[i].front().prompt_logprobs;  // of token 1, 2 ...
    logprobs.erase(logprobs.begin(), logprobs.begin() + pieces[i].first_scored - 1);
    for (const TokenLogprobs& position : logprobs) {
      if (position.rank == 0) return data_loss("{}: its logits are not finite", model.name);
    }
    predictions.push_back(std::move(logprobs));
  }
  return predictions;
}

// At most kTextTokens, the last text cut.
void add_texts(const LoadedModel& model, const std::vector<std::string>& texts, std::vector<ReferencePiece>& pieces) {
  size_t rest = kTextTokens;
  const auto max_piece = static_cast<size_t>(model.engine->config().max_seq_len() - 1);
  for (const std::string& text : texts) {
    std::vector<int32_t> ids = model.tokenizer->encode(text);
    ids.resize(std::min({ids.size(), rest, max_piece}));
    if (ids.size() < 2) continue;
    rest -= ids.size();
    pieces.push_back({.kind = PieceKind::kText, .token_ids = std::move(ids), .first_scored = 1, .logprobs = {}});
  }
}

// Cut where they would fill the context: every request samples one token more.
Status add_answers(LoadedModel& model, std::vector<OfflineRequest> questions, std::vector<ReferencePiece>& pieces) {
  ASSIGN_OR_RETURN(const auto results, run_offline(*model.engine, model.eos_token_ids, questions));
  const auto max_piece = static_cast<size_t>(model.engine->config().max_seq_len() - 1);
  for (size_t i = 0; i < results.size(); ++i) {
    std::vector<int32_t> ids = std::move(questions[i].prompt_token_ids);
    const size_t prompt_len = ids.size();
    const std::vector<int32_t>& answer = results[i].front().token_ids;
    ids.insert(ids.end(), answer.begin(), answer.end());
    ids.resize(std::min(ids.size(), max_piece));
    if (prompt_len == 0 || ids.size() <= prompt_len) continue;
    pieces.push_back({.kind = PieceKind::kAnswers, .token_ids = std::move(ids), .first_scored = static_cast<int>(prompt_len), .logprobs = {}});
  }
  return ok_status();
}

}  // namespace

uint64_t tokenizer_hash(const Tokenizer& tokenizer) {
  std::string strings;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    strings += tokenizer.token_text(id);
    strings += '\0';
  }
  return XXH3_64bits(strings.data(), strings.size());
}

Result<ReferenceRun> run_reference(LoadedModel& model, std::vector<OfflineRequest> questions, const std::vector<std::string>& texts) {
  ReferenceRun run;
  run.vocab_size = static_cast<int>(model.config.vocab_size);
  run.tokenizer_hash = tokenizer_hash(*model.tokenizer);
  run.num_top = std::min(kMaxLogprobs, run.vocab_size);
  add_texts(model, texts, run.pieces);
  RETURN_IF_ERROR(add_answers(model, std::move(questions), run.pieces));
  ASSIGN_OR_RETURN(auto predictions, predict(model, run.pieces, run.num_top));
  for (size_t i = 0; i < run.pieces.size(); ++i) run.pieces[i].logprobs = std::move(predictions[i]);
  return run;
}

Result<std::map<std::string, Divergence>> measure_divergence(LoadedModel& model, const ReferenceRun& reference) {
  const auto max_piece = static_cast<size_t>(model.engine->config().max_seq_len() - 1);
  for (const ReferencePiece& piece : reference.pieces) {
    if (piece.token_ids.size() > max_piece) {
      return out_of_range("the reference has a sequence of {} tokens; --max-model-len {} leaves room for {}", piece.token_ids.size(),
                          max_piece + 1, max_piece);
    }
  }
  ASSIGN_OR_RETURN(const auto predictions, predict(model, reference.pieces, reference.num_top));
  std::map<std::string, Divergence> divergences;
  std::map<std::string, double> sums_of_squares;
  for (size_t i = 0; i < reference.pieces.size(); ++i) {
    const ReferencePiece& piece = reference.pieces[i];
    const std::string kind = piece.kind == PieceKind::kText ? "text" : "answers";
    Divergence& divergence = divergences[kind];
    for (size_t j = 0; j < piece.logprobs.size(); ++j) {
      const double kl = position_divergence(piece.logprobs[j], predictions[i][j]);
      divergence.kl += kl;
      sums_of_squares[kind] += kl * kl;
      divergence.equal_tops += piece.logprobs[j].top.front().token_id == predictions[i][j].top.front().token_id;
      ++divergence.num_tokens;
    }
  }
  for (auto& [kind, divergence] : divergences) {
    const auto count = static_cast<double>(divergence.num_tokens);
    divergence.kl /= count;
    divergence.equal_tops /= count;
    const double variance = std::max(0.0, sums_of_squares[kind] / count - divergence.kl * divergence.kl);
    divergence.kl_error = std::sqrt(variance / count);
  }
  return divergences;
}

double position_divergence(const TokenLogprobs& reference, const TokenLogprobs& other) {
  double sum = 0, p_rest = 1, q_rest = 1;
  const auto add = [&](int32_t token_id, float log_p) {
    const std::optional<float> log_q = find(other, token_id);
    if (!log_q) return;
    const double p = std::exp(double{log_p}), q = std::exp(double{*log_q});
    const double log_ratio = std::log(std::max(p, kLeastProbability)) - std::log(std::max(q, kLeastProbability));
    sum += bucket_divergence(p, q, log_ratio);
    p_rest -= p;
    q_rest -= q;
  };
  for (const TokenLogprobs::Top& top : reference.top) add(top.token_id, top.logprob);
  const bool is_in_top = std::ranges::find(reference.top, reference.token_id, &TokenLogprobs::Top::token_id) != reference.top.end();
  if (!is_in_top) add(reference.token_id, reference.logprob);
  p_rest = std::max(p_rest, kLeastMass);
  q_rest = std::max(q_rest, kLeastMass);
  return sum + bucket_divergence(p_rest, q_rest, std::log(p_rest / q_rest));
}

}  // namespace spate
