// TokenSet: tokens as bits, or where they are few as a list. TokenSets keeps each set once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace spate {

// words: a bit for each token of the vocabulary, as masks have them.
void allow(std::vector<uint32_t>& words, std::span<const int32_t> token_ids);
void allow(std::vector<uint32_t>& words, const std::vector<uint32_t>& more);
void forbid(std::vector<uint32_t>& words, std::span<const int32_t> token_ids);
void append(std::vector<int32_t>& token_ids, std::span<const int32_t> more);

struct TokenSet {
  std::vector<uint32_t> words;  // empty: `ids` has them
  std::vector<int32_t> ids;

  void add(std::span<const int32_t> more, int64_t vocab_size);
  bool operator==(const TokenSet&) const = default;
};

// Four chains, as a multiplication is waited for otherwise: 19 KB in a microsecond.
template <typename T>
size_t hash_of(std::span<const T> values) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;
  std::array<uint64_t, 4> chains = {values.size(), 1, 2, 3};
  size_t i = 0;
  for (; i + chains.size() <= values.size(); i += chains.size()) {
    for (size_t chain = 0; chain < chains.size(); ++chain) {
      chains[chain] = (chains[chain] ^ static_cast<uint64_t>(values[i + chain])) * kFactor;
      chains[chain] ^= chains[chain] >> 29;
    }
  }
  for (; i < values.size(); ++i) {
    chains[0] = (chains[0] ^ static_cast<uint64_t>(values[i])) * kFactor;
    chains[0] ^= chains[0] >> 29;
  }
  for (size_t chain = 1; chain < chains.size(); ++chain) {
    chains[0] = (chains[0] ^ chains[chain]) * kFactor;
    chains[0] ^= chains[0] >> 29;
  }
  return chains[0];
}

struct ListHash {
  template <typename T>
  size_t operator()(const std::vector<T>& list) const {
    return hash_of(std::span<const T>(list));
  }
};

class TokenSets {
 public:
  // The set that is kept and equal. Sets of equal tokens are equal where they have come by TokenSet::add() alone.
  const TokenSet* keep(TokenSet tokens);
  size_t num_bytes() const { return num_bytes_; }
  void clear();

 private:
  std::vector<std::unique_ptr<const TokenSet>> sets_;
  std::unordered_multimap<size_t, const TokenSet*> set_by_hash_;
  size_t num_bytes_ = 0;
};

}  // namespace spate
