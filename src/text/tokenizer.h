// Text to token ids and back, from a Hugging Face tokenizer.json or a GGUF file, id for id as the `tokenizers`
// library does it.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<const Tokenizer> tokenizer, Tokenizer::load("models/mini-qwen3"));
//   std::vector<int32_t> ids = tokenizer->encode("Hello", {.add_special_tokens = true});
//   IncrementalDecoder decoder(*tokenizer, {}, ids);          // one a sequence
//   for (int32_t id : generated) send(decoder.append(id));
//   send(decoder.finish());
//
// Immutable after load; every method may be called from any number of threads at once. Owned by the engine's
// front-end for the life of the process; IncrementalDecoder refers to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/token_decoder.h"

namespace spate {

struct EncodeOptions {
  bool add_special_tokens = false;  // the post-processor's BOS, EOS, [CLS] ...
  bool parse_special = true;        // "<|im_end|>" in the text is the token; false for text of untrusted users
};

struct DecodeOptions {
  bool skip_special_tokens = true;
  // false: an added token that follows an added token is its bare text, without the space that some decoders put
  // before a token. Only when special tokens are kept (as in vLLM).
  bool spaces_between_special_tokens = true;
};

struct SpecialToken {
  std::string text;
  int32_t id = -1;  // -1: named in tokenizer_config.json, but not in the vocabulary
};

struct ChatTemplateSource {
  std::string name;  // "default", "tool_use", ...
  std::string source;
};

struct TokenizerParts;  // what the loaders assemble (tokenizer_parts.h)

class Tokenizer {
 public:
  // Reads tokenizer.json and, where they exist, tokenizer_config.json, special_tokens_map.json and
  // chat_template.jinja of a model folder. A *.gguf file goes to from_gguf().
  static Result<std::unique_ptr<const Tokenizer>> load(const std::filesystem::path& model_dir);
  // tokenizer_config_json may be empty.
  static Result<std::unique_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json,
                                                            std::string_view tokenizer_config_json);
  // Byte-level BPE ("gpt2") and SentencePiece BPE ("llama") vocabularies. Other models and split patterns are refused
  // by name. Any file of a split model.
  static Result<std::unique_ptr<const Tokenizer>> from_gguf(const std::filesystem::path& gguf_file);
  explicit Tokenizer(std::unique_ptr<TokenizerParts> parts);
  ~Tokenizer();

  // Bytes that are no UTF-8 count as U+FFFD.
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const;
  // Ids without a token are skipped. The result is valid UTF-8.
  std::string decode(std::span<const int32_t> token_ids, bool skip_special_tokens = true) const;

  int32_t vocab_size() const;                     // largest id + 1, added tokens included
  std::string_view token_text(int32_t id) const;  // the vocabulary's string ("Ġhello"); empty for no token
  std::string token_bytes(int32_t id) const;      // the bytes it stands for (" hello"), maybe half a character
  std::optional<int32_t> token_id(std::string_view token_text) const;
  bool is_special(int32_t id) const;  // skipped by skip_special_tokens
  bool is_added(int32_t id) const;    // found in texts before the model runs

  const std::optional<SpecialToken>& bos_token() const;
  const std::optional<SpecialToken>& eos_token() const;
  const std::optional<SpecialToken>& unk_token() const;
  const std::optional<SpecialToken>& pad_token() const;
  // Whether encode with add_special_tokens begins with bos_token: a chat template that writes BOS itself must then
  // be encoded without.
  bool adds_bos() const;
  // chat_template.jinja, or chat_template of tokenizer_config.json; empty when the model has none.
  const std::vector<ChatTemplateSource>& chat_templates() const;
  const ChatTemplateSource* find_chat_template(std::string_view name = "default") const;

 private:
  friend class IncrementalDecoder;
  std::unique_ptr<const TokenizerParts> parts_;
  bool adds_bos_ = false;
};

// The text of a growing sequence, piece by piece; never half a character. The pieces and finish() add up to
// decode() of all ids. Owned by one sequence, used by one thread at a time.
class IncrementalDecoder {
 public:
  // prompt_ids: what stands before the generated tokens. Its end decides whether the first piece keeps its leading
  // space and completes a character that the prompt began. Its own text is not given out, nor is the U+FFFD of a
  // character that stays incomplete.
  explicit IncrementalDecoder(const Tokenizer& tokenizer, DecodeOptions options = {},
                              std::span<const int32_t> prompt_ids = {});

  std::string append(int32_t token_id);  // the text that is now certain; often empty inside a character
  std::string finish();                  // what was held back; an incomplete character becomes U+FFFD

 private:
  void push(int32_t token_id, std::string& out);
  std::string without_prompt_end(std::string text);

  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  TokenDecoderStream stream_;
  // What the stream still held of the prompt, as text: if the text behind the prompt begins so, that is the prompt's.
  std::string prompt_end_;
  std::string held_;  // may become prompt_end_
  bool last_was_added_ = false;
};

}  // namespace spate
