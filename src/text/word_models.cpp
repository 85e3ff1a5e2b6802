#include "text/word_models.h"

#include <algorithm>

namespace spate {

WordPieceModel::WordPieceModel(const Vocabulary& vocabulary, int32_t unk_id, std::string_view continuing_subword_prefix,
                               size_t max_input_chars_per_word)
    : unk_id_(unk_id), inner_root_(ByteTrie::kRoot), max_input_chars_per_word_(max_input_chars_per_word) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.contains(id)) entries.emplace_back(vocabulary.text(id), vocabulary.find(vocabulary.text(id)));
  }
  trie_ = ByteTrie(std::move(entries));
  for (const char c : continuing_subword_prefix) {
    if (trie_.empty() || inner_root_ == ByteTrie::kNoNode) break;
    inner_root_ = trie_.child(inner_root_, static_cast<unsigned char>(c));
  }
}

void WordPieceModel::tokenize(std::string_view piece, std::vector<int32_t>& ids) const {
  const auto num_chars = static_cast<size_t>(
      std::count_if(piece.begin(), piece.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  const size_t num_ids_before = ids.size();
  bool is_unknown = num_chars > max_input_chars_per_word_;
  for (size_t pos = 0; pos < piece.size() && !is_unknown;) {
    const uint32_t node = pos == 0 ? ByteTrie::kRoot : inner_root_;
    size_t end = pos;
    const int32_t id = node == ByteTrie::kNoNode ? -1 : trie_.find_longest(piece, pos, node, &end);
    if (id < 0)
      is_unknown = true;
    else
      ids.push_back(id);
    pos = end;
  }
  if (!is_unknown) return;
  ids.resize(num_ids_before);
  if (unk_id_ != kNoToken) ids.push_back(unk_id_);
}

void WordLevelModel::tokenize(std::string_view piece, std::vector<int32_t>& ids) const {
  const int32_t id = vocabulary_.find(piece);
  if (id != kNoToken)
    ids.push_back(id);
  else if (unk_id_ != kNoToken)
    ids.push_back(unk_id_);
}

}  // namespace spate
