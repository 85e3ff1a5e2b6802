// WordPiece (BERT) and WordLevel: a piece is cut greedily into the longest tokens, or is one token, or is unknown.
#pragma once

#include <string>

#include "text/byte_trie.h"
#include "text/token_model.h"
#include "text/vocabulary.h"

namespace spate {

class WordPieceModel : public TokenModel {
 public:
  // `vocabulary` must outlive the model. Tokens inside a word carry the prefix ("##").
  WordPieceModel(const Vocabulary& vocabulary, int32_t unk_id, std::string_view continuing_subword_prefix,
                 size_t max_input_chars_per_word);
  void tokenize(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  ByteTrie trie_;
  int32_t unk_id_;
  uint32_t inner_root_;  // the node behind the prefix; kNoNode when no token has it
  size_t max_input_chars_per_word_;
};

class WordLevelModel : public TokenModel {
 public:
  WordLevelModel(const Vocabulary& vocabulary, int32_t unk_id) : vocabulary_(vocabulary), unk_id_(unk_id) {}
  void tokenize(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  const Vocabulary& vocabulary_;
  int32_t unk_id_;
};

}  // namespace spate
