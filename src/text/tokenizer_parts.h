// The pieces of a tokenizer as the loaders (tokenizer_json.cpp, tokenizer_gguf.cpp) assemble them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/token_model.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace spate {

struct TokenizerParts {
  // Filled by a loader. The model refers to `vocabulary`, so that this struct never moves.
  Vocabulary vocabulary;  // the model's tokens, without added ones that it does not have
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const TokenModel> model;
  PostProcessor post_processor;
  TokenDecoder decoder;
  std::vector<AddedToken> added_tokens;  // ids are set; one a content
  // The id of the first added token that the model lacks; empty: the number of the model's strings. A Unigram list may
  // hold a string twice, and then counts both.
  std::optional<int64_t> first_added_id;
  std::optional<SpecialToken> bos_token, eos_token, unk_token, pad_token;
  std::vector<ChatTemplateSource> chat_templates;

  // Derived by finish().
  AddedTokenMatcher raw_matcher;         // tokens with normalized = false, sought in the text as it is
  AddedTokenMatcher normalized_matcher;  // the others, sought after normalization
  struct IdEntry {
    int32_t added_index = -1;  // into added_tokens
    int32_t decode_text = -1;  // into decode_texts: an added token's normalized form, which decoding starts from
    bool is_special = false;
  };
  std::vector<IdEntry> id_entries;  // by id, vocab_size long
  std::vector<std::string> decode_texts;
  std::vector<std::string> token_bytes;  // by id when decoder.is_byte_level(), else empty

  // Adds a token as the `tokenizers` library does: an existing string keeps its id, a new one gets the next.
  Status add_token(AddedToken token);
  // To be called once, last.
  void finish();

  int32_t find_added(std::string_view content) const { return added_by_content_.find(content); }  // index or -1
  std::string_view decode_text(int32_t id) const;  // what the decoder is fed for an id; the id must be a token's
  bool contains(int32_t id) const;

 private:
  StringIdMap added_by_content_;  // to the index in added_tokens
  int64_t next_added_id_ = -1;
};

}  // namespace spate
