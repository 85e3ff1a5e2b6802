// Unigram (SentencePiece): the cut of a piece whose tokens have the highest sum of log probabilities, by Viterbi.
#pragma once

#include <array>
#include <vector>

#include "text/byte_trie.h"
#include "text/token_model.h"
#include "text/vocabulary.h"

namespace spate {

class UnigramModel : public TokenModel {
 public:
  // scores[id] for each id of `vocabulary`, which must outlive the model. unk_id may be kNoToken.
  UnigramModel(const Vocabulary& vocabulary, std::vector<double> scores, int32_t unk_id, bool byte_fallback);
  void tokenize(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary_;
  std::vector<double> scores_;
  ByteTrie trie_;
  int32_t unk_id_;
  double unk_score_;
  bool byte_fallback_;
  std::array<int32_t, 256> byte_tokens_;  // <0x..>; kNoToken where the vocabulary has none
};

}  // namespace spate
