// What surrounds the ids of a text: BOS, EOS, [CLS] ... [SEP]. Immutable after it is built.
#pragma once

#include <cstdint>
#include <vector>

namespace spate {

// A template is a list of pieces; the text's ids stand where is_text says. Several templates (a Sequence of
// post-processors) apply one after the other, each around what the one before gave.
struct PostProcessorPiece {
  bool is_text = false;
  std::vector<int32_t> ids;  // special tokens, when not is_text
};

class PostProcessor {
 public:
  void add_template(std::vector<PostProcessorPiece> pieces) { templates_.push_back(std::move(pieces)); }

  void apply(bool add_special_tokens, std::vector<int32_t>& ids) const {
    for (const auto& pieces : templates_) {
      std::vector<int32_t> result;
      result.reserve(ids.size() + 2);
      for (const PostProcessorPiece& piece : pieces) {
        const std::vector<int32_t>& source = piece.is_text ? ids : piece.ids;
        if (piece.is_text || add_special_tokens) result.insert(result.end(), source.begin(), source.end());
      }
      ids = std::move(result);
    }
  }

 private:
  std::vector<std::vector<PostProcessorPiece>> templates_;
};

}  // namespace spate
