#include "grammar/token_sets.h"

#include <algorithm>

#include "core/step_plan.h"

namespace spate {
namespace {

constexpr size_t kWordsPerListedToken = 4;  // more tokens are bits

}  // namespace

void allow(std::vector<uint32_t>& words, std::span<const int32_t> token_ids) {
  for (const int32_t id : token_ids) words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
}

void forbid(std::vector<uint32_t>& words, std::span<const int32_t> token_ids) {
  for (const int32_t id : token_ids) words[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
}

void allow(std::vector<uint32_t>& words, const std::vector<uint32_t>& more) {
  constexpr size_t kBlock = 32;  // a count that the compiler knows, for vectors
  size_t i = 0;
  for (; i + kBlock <= words.size(); i += kBlock) {
    for (size_t j = 0; j < kBlock; ++j) words[i + j] |= more[i + j];
  }
  for (; i < words.size(); ++i) words[i] |= more[i];
}

void append(std::vector<int32_t>& token_ids, std::span<const int32_t> more) {
  token_ids.insert(token_ids.end(), more.begin(), more.end());
}

void TokenSet::add(std::span<const int32_t> more, int64_t vocab_size) {
  if (!words.empty()) return allow(words, more);
  append(ids, more);
  const auto num_words = static_cast<size_t>(mask_words_of(vocab_size));
  if (ids.size() <= num_words / kWordsPerListedToken) return;
  words.resize(num_words);
  allow(words, ids);
  ids = {};
}

const TokenSet* TokenSets::keep(TokenSet tokens) {
  const size_t hash = tokens.words.empty() ? hash_of(std::span<const int32_t>(tokens.ids))
                                           : hash_of(std::span<const uint32_t>(tokens.words));
  const auto [begin, end] = set_by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (*it->second == tokens) return it->second;
  }
  tokens.ids.shrink_to_fit();
  num_bytes_ += sizeof(TokenSet) + 4 * (tokens.words.size() + tokens.ids.size());
  sets_.push_back(std::make_unique<const TokenSet>(std::move(tokens)));
  set_by_hash_.emplace(hash, sets_.back().get());
  return sets_.back().get();
}

void TokenSets::clear() {
  set_by_hash_.clear();
  sets_.clear();
  num_bytes_ = 0;
}

}  // namespace spate
