// Token strings back to text, as a chain of stages through which tokens stream: what is certain comes out at once,
// what a later token may still change is held back. decode() of a whole list is the same chain plus flush, so the
// streamed pieces always add up to it.
//
// TokenDecoder is immutable and shared; a TokenDecoderStream is one sequence's state, owned by one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/pre_tokenizer.h"
#include "text/split_matcher.h"

namespace spate {

struct ReplaceDecoder {  // in each token
  SplitMatcher pattern;
  std::string content;
};
struct ByteFallbackDecoder {};  // runs of <0x..> tokens are UTF-8; a run that is not gives one U+FFFD a token
struct FuseDecoder {};          // what follows sees one token
struct StripDecoder {           // up to `start` and `stop` times `content` at a token's ends
  std::string content;          // one character
  size_t start = 0, stop = 0;
};
struct MetaspaceDecoder {  // the replacement is a space; nothing in the first token unless kNever
  std::string replacement;
  PrependScheme prepend_scheme;
};
struct ByteLevelDecoder {};  // GPT-2's alphabet back to bytes, invalid UTF-8 to U+FFFD; what follows sees one token
struct WordPieceDecoder {    // a space before each token but the first, unless it begins with the prefix
  std::string prefix;
  bool cleanup;
};
struct BpeSuffixDecoder {  // the suffix is a space, in the last token nothing
  std::string suffix;
};
struct JoinDecoder {};  // a space between tokens: what a tokenizer without decoder does
using DecoderStage = std::variant<ReplaceDecoder, ByteFallbackDecoder, FuseDecoder, StripDecoder, MetaspaceDecoder,
                                  ByteLevelDecoder, WordPieceDecoder, BpeSuffixDecoder, JoinDecoder>;

class TokenDecoder {
 public:
  void add_stage(DecoderStage stage);
  bool has_stages() const { return !stages_.empty(); }
  // For tokenizers that put no space in front of a text: none is taken off again.
  void keep_leading_space();
  // Only ByteLevel: its stream may be fed bytes instead of token strings.
  bool is_byte_level() const {
    return stages_.size() == 1 && std::holds_alternative<ByteLevelDecoder>(stages_[0].stage);
  }

 private:
  friend class TokenDecoderStream;
  struct Entry {
    DecoderStage stage;
    bool is_fused;  // a stage before it makes one token of all
  };
  std::vector<Entry> stages_;
};

class TokenDecoderStream {
 public:
  explicit TokenDecoderStream(const TokenDecoder& decoder);  // which must outlive it

  void push(std::string_view token, std::string& out) { push_at(0, token, out); }
  void push_bytes(std::string_view bytes, std::string& out);  // is_byte_level() only
  void finish(std::string& out);                              // then the stream is as new
  // The tokens so far are a text of their own: bytes that later tokens add cannot make its whole characters invalid.
  void settle(std::string& out);

 private:
  struct State {
    bool is_first = true;
    size_t num_stripped = 0;  // StripDecoder on a fused stream: at its start
    std::string held;
  };
  void push_at(size_t stage_idx, std::string_view token, std::string& out);
  void flush_at(size_t stage_idx, std::string& out);
  void push_strip_stream(const StripDecoder& strip, size_t stage_idx, std::string_view chunk, std::string& out);
  void push_replace_stream(const ReplaceDecoder& replace, size_t stage_idx, std::string_view chunk, std::string& out);
  void push_whole(size_t stage_idx, std::string_view token, std::string& out);
  void flush_byte_run(size_t stage_idx, std::string& out);

  const TokenDecoder* decoder_;
  std::vector<State> states_;
};

}  // namespace spate
