#include "text/unigram_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "text/unicode.h"

namespace spate {
namespace {

constexpr double kUnkPenalty = 10.0;  // SentencePiece's: below the least likely token

}  // namespace

UnigramModel::UnigramModel(const Vocabulary& vocabulary, std::vector<double> scores, int32_t unk_id, bool byte_fallback)
    : vocabulary_(vocabulary), scores_(std::move(scores)), unk_id_(unk_id), byte_fallback_(byte_fallback) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  entries.reserve(vocabulary_.num_tokens());
  double min_score = std::numeric_limits<double>::infinity();
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    // Of two equal tokens the later one has the string: find() says so.
    if (vocabulary_.contains(id)) entries.emplace_back(vocabulary_.text(id), vocabulary_.find(vocabulary_.text(id)));
    min_score = std::min(min_score, scores_[static_cast<size_t>(id)]);
  }
  unk_score_ = min_score - kUnkPenalty;
  trie_ = ByteTrie(std::move(entries));
  for (int byte = 0; byte < 256; ++byte) {
    byte_tokens_[static_cast<size_t>(byte)] = vocabulary_.find(fmt::format("<0x{:02X}>", byte));
  }
}

void UnigramModel::tokenize(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Best {
    double score = 0.0;
    size_t start = SIZE_MAX;  // of the token that ends here
    int32_t id = kNoToken;
  };
  thread_local std::vector<Best> best_ends_at;
  best_ends_at.assign(piece.size() + 1, Best{});
  const auto offer = [&](size_t start, size_t end, double score, int32_t id) {
    Best& best = best_ends_at[end];
    if (best.start == SIZE_MAX || score > best.score) best = {score, start, id};
  };
  for (size_t start = 0; start < piece.size();) {
    const double score_here = best_ends_at[start].score;
    const size_t char_bytes = decode_utf8(piece, start).size_bytes;
    bool has_single_char = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = start; end < piece.size() && !trie_.empty();) {
      node = trie_.child(node, static_cast<unsigned char>(piece[end++]));
      if (node == ByteTrie::kNoNode) break;
      const int32_t id = trie_.value(node);
      if (id < 0) continue;
      offer(start, end, score_here + scores_[static_cast<size_t>(id)], id);
      if (end == start + char_bytes) has_single_char = true;
    }
    if (!has_single_char) offer(start, start + char_bytes, score_here + unk_score_, unk_id_);
    start += char_bytes;
  }
  // Backwards over the best path. Neighbouring unknowns are one: collected as [unknown_start, unknown_end).
  struct Token {
    size_t start, end;
    int32_t id;
  };
  thread_local std::vector<Token> path;
  path.clear();
  for (size_t end = piece.size(); end > 0;) {
    const Best& best = best_ends_at[end];
    if (best.id == unk_id_ && !path.empty() && path.back().id == unk_id_)
      path.back().start = best.start;
    else
      path.push_back({best.start, end, best.id});
    end = best.start;
  }
  for (auto token = path.rbegin(); token != path.rend(); ++token) {
    if (token->id != unk_id_)
      ids.push_back(token->id);
    else
      append_unknown(piece.substr(token->start, token->end - token->start), ids);
  }
}

void UnigramModel::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  if (const int32_t id = vocabulary_.find(text); id != kNoToken) {
    ids.push_back(id);
    return;
  }
  const auto token_of = [&](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
  if (byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char c) { return token_of(c) != kNoToken; })) {
    for (const char c : text) ids.push_back(token_of(c));
  } else if (unk_id_ != kNoToken) {
    ids.push_back(unk_id_);
  }
}

}  // namespace spate
