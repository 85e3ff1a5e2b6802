// Byte-pair encoding: the lowest-ranked pair of neighbours is merged until none is left.
//
// Two forms of input: text, cut into characters (SentencePiece-style BPE), or raw bytes for a byte-level vocabulary,
// which saves the detour over GPT-2's alphabet. Words of up to 26 bytes and 8 tokens are remembered per thread.
//
// SentencePiece-style models get a whole text as one piece. Where no token of the vocabulary has U+2581 behind
// another character, no merge can cross into a U+2581, and the piece is cut there first: the same ids, five times
// faster (Llama 2 vocabulary, 5 MB of English: 3 to 15 MB/s on one core).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/token_model.h"
#include "text/vocabulary.h"

namespace spate {

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;  // in front of every character but the first
  std::string end_of_word_suffix;         // behind the last character
  bool fuse_unk = false;                  // a run of unknown characters gives one unknown token
  bool byte_fallback = false;             // an unknown character becomes <0x..> tokens
  bool ignore_merges = false;             // a piece that is a token is that token
  bool raw_bytes = false;                 // tokenize() gets bytes; only without prefix, suffix, byte_fallback
};

class BpeModel : public TokenModel {
 public:
  // `vocabulary` must outlive the model.
  BpeModel(const Vocabulary& vocabulary, MergeTable merges, BpeOptions options);
  void tokenize(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  void tokenize_word(std::string_view word, std::vector<int32_t>& ids) const;
  bool can_cut_before_metaspace() const;
  void collect_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  void collect_byte_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  const Vocabulary& vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  int32_t unk_id_ = kNoToken;
  std::array<int32_t, 256> byte_symbols_;  // raw bytes: the token of each byte; else its <0x..> token
  bool cuts_before_metaspace_ = false;
  StringIdMap ids_of_bytes_;  // raw bytes and ignore_merges: whole pieces
  uint32_t serial_;           // names this model in the per-thread word cache
};

// The merge table of a vocabulary with scores (SentencePiece): neighbours whose concatenation is a token merge, the
// token of the highest score first. scores[id]; equal scores have equal rank.
MergeTable merges_from_scores(const Vocabulary& vocabulary, const std::vector<float>& scores);

}  // namespace spate
