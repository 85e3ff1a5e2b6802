#include "text/bpe_model.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <queue>

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/unicode.h"

namespace spate {
namespace {

// Above this many symbols the heap wins over rescanning a short array (measured: 24 to 48 are alike).
constexpr size_t kMaxShortSymbols = 32;

// What a thread remembers: a direct-mapped table of 16,384 words, 1 MiB, allocated on the thread's first word.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 26;
  static constexpr size_t kMaxTokens = 8;

  bool find(uint32_t serial, std::string_view word, uint64_t hash, std::vector<int32_t>& ids) const {
    const Slot& slot = slots_[hash % kNumSlots];
    if (slot.serial != serial || slot.num_bytes != word.size()) return false;
    if (std::memcmp(slot.word, word.data(), word.size()) != 0) return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.num_ids);
    return true;
  }
  void store(uint32_t serial, std::string_view word, uint64_t hash, const int32_t* ids, size_t num_ids) {
    Slot& slot = slots_[hash % kNumSlots];
    slot.serial = serial;
    slot.num_bytes = static_cast<uint8_t>(word.size());
    slot.num_ids = static_cast<uint8_t>(num_ids);
    std::memcpy(slot.word, word.data(), word.size());
    std::copy(ids, ids + num_ids, slot.ids);
  }

 private:
  static constexpr size_t kNumSlots = 16384;
  struct Slot {
    uint32_t serial;  // 0: empty
    uint8_t num_bytes, num_ids;
    char word[kMaxWordBytes];
    int32_t ids[kMaxTokens];
  };
  static_assert(sizeof(Slot) == 64);
  std::unique_ptr<Slot[]> slots_ = std::make_unique<Slot[]>(kNumSlots);
};

WordCache& word_cache() {
  thread_local WordCache cache;
  return cache;
}

uint32_t next_serial() {
  static std::atomic<uint32_t> serial{0};
  return ++serial;
}

constexpr std::string_view kMetaspace = "\u2581";

std::string fallback_token_name(int byte) { return fmt::format("<0x{:02X}>", byte); }

}  // namespace

BpeModel::BpeModel(const Vocabulary& vocabulary, MergeTable merges, BpeOptions options)
    : vocabulary_(vocabulary), merges_(std::move(merges)), options_(std::move(options)), serial_(next_serial()) {
  if (options_.unk_token) unk_id_ = vocabulary_.find(*options_.unk_token);
  for (int byte = 0; byte < 256; ++byte) {
    const auto index = static_cast<size_t>(byte);
    byte_symbols_[index] = vocabulary_.find(options_.raw_bytes ? byte_alphabet()[index] : fallback_token_name(byte));
  }
  cuts_before_metaspace_ = can_cut_before_metaspace();
  if (!options_.raw_bytes) return;
  CHECK(options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty() && !options_.byte_fallback);
  if (!options_.ignore_merges) return;
  ids_of_bytes_.reserve(vocabulary_.num_tokens());
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    if (!vocabulary_.contains(id)) continue;
    if (const auto bytes = bytes_of_byte_level_token(vocabulary_.text(id))) ids_of_bytes_.assign(*bytes, id);
  }
}

bool BpeModel::can_cut_before_metaspace() const {
  if (options_.raw_bytes || options_.ignore_merges) return false;
  if (!options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty()) return false;
  if (vocabulary_.find(kMetaspace) == kNoToken) return false;  // an unknown one could fuse with its neighbours
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view text = vocabulary_.text(id);
    size_t run = 0;
    while (text.substr(run).starts_with(kMetaspace)) run += kMetaspace.size();
    if (text.find(kMetaspace, run) != std::string_view::npos) return false;
  }
  return true;
}

void BpeModel::tokenize(std::string_view piece, std::vector<int32_t>& ids) const {
  if (!cuts_before_metaspace_) {
    tokenize_word(piece, ids);
    return;
  }
  for (size_t start = 0; start < piece.size();) {
    size_t end = start;
    while (piece.substr(end).starts_with(kMetaspace)) end += kMetaspace.size();
    end = std::min(piece.find(kMetaspace, end), piece.size());
    tokenize_word(piece.substr(start, end - start), ids);
    start = end;
  }
}

void BpeModel::tokenize_word(std::string_view piece, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    const int32_t id = options_.raw_bytes ? ids_of_bytes_.find(piece) : vocabulary_.find(piece);
    if (id != kNoToken) {
      ids.push_back(id);
      return;
    }
  }
  const bool is_cacheable = piece.size() <= WordCache::kMaxWordBytes;
  const uint64_t hash = is_cacheable ? hash_bytes(piece) : 0;
  if (is_cacheable && word_cache().find(serial_, piece, hash, ids)) return;

  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  if (options_.raw_bytes)
    collect_byte_symbols(piece, symbols);
  else
    collect_symbols(piece, symbols);
  if (symbols.size() <= kMaxShortSymbols)
    merge_short(symbols);
  else
    merge_long(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (is_cacheable && symbols.size() <= WordCache::kMaxTokens) {
    word_cache().store(serial_, piece, hash, symbols.data(), symbols.size());
  }
}

void BpeModel::collect_byte_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool unk_pending = false;
  for (const char c : piece) {
    const int32_t id = byte_symbols_[static_cast<unsigned char>(c)];
    if (id != kNoToken) {
      if (unk_pending) symbols.push_back(unk_id_);
      unk_pending = false;
      symbols.push_back(id);
    } else if (unk_id_ != kNoToken) {
      if (unk_pending && !options_.fuse_unk) symbols.push_back(unk_id_);
      unk_pending = true;
    }
  }
  if (unk_pending) symbols.push_back(unk_id_);
}

void BpeModel::collect_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool unk_pending = false;  // held back, so that the next unknown character can join it
  std::string decorated;
  for (size_t pos = 0; pos < piece.size();) {
    const size_t size_bytes = decode_utf8(piece, pos).size_bytes;
    std::string_view symbol = piece.substr(pos, size_bytes);
    const bool is_first = pos == 0, is_last = pos + size_bytes == piece.size();
    pos += size_bytes;
    if ((!is_first && !options_.continuing_subword_prefix.empty()) ||
        (is_last && !options_.end_of_word_suffix.empty())) {
      decorated = is_first ? "" : options_.continuing_subword_prefix;
      decorated += symbol;
      if (is_last) decorated += options_.end_of_word_suffix;
      symbol = decorated;
    }
    if (const int32_t id = vocabulary_.find(symbol); id != kNoToken) {
      if (unk_pending) symbols.push_back(unk_id_);
      unk_pending = false;
      symbols.push_back(id);
      continue;
    }
    if (options_.byte_fallback) {
      const auto fallback = [&](char c) { return byte_symbols_[static_cast<unsigned char>(c)]; };
      if (std::all_of(symbol.begin(), symbol.end(), [&](char c) { return fallback(c) != kNoToken; })) {
        for (const char c : symbol) symbols.push_back(fallback(c));
        continue;
      }
    }
    if (unk_id_ == kNoToken) continue;
    if (unk_pending && !options_.fuse_unk) symbols.push_back(unk_id_);
    unk_pending = true;
  }
  if (unk_pending) symbols.push_back(unk_id_);
}

// Rescans the ranks of all neighbours for each merge: quadratic, but over at most 31 words in one cache line pair.
void BpeModel::merge_short(std::vector<int32_t>& symbols) const {
  size_t count = symbols.size();
  if (count < 2) return;
  std::array<MergeTable::Merge, kMaxShortSymbols> pairs;  // pairs[i]: symbols i and i + 1
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNoRank) break;
    symbols[best] = pairs[best].merged_id;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i - 1] = pairs[i];
    }
    --count;
    if (best > 0) pairs[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = merges_.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

// A heap of (rank, position) over a linked list: n log n, for whole texts as one piece.
void BpeModel::merge_long(std::vector<int32_t>& symbols) const {
  const size_t count = symbols.size();
  constexpr uint32_t kEnd = UINT32_MAX;
  struct Link {
    uint32_t previous, next;
    MergeTable::Merge pair;  // of this symbol and the next
  };
  CHECK(count < kEnd, "a piece of {} symbols", count);
  std::vector<Link> links(count);
  std::vector<uint64_t> initial;
  initial.reserve(count);
  const auto key_of = [&](size_t i) { return uint64_t{links[i].pair.rank} << 32 | i; };
  for (size_t i = 0; i < count; ++i) {
    links[i].previous = i == 0 ? kEnd : static_cast<uint32_t>(i - 1);
    links[i].next = i + 1 == count ? kEnd : static_cast<uint32_t>(i + 1);
    links[i].pair =
        i + 1 == count ? MergeTable::Merge{MergeTable::kNoRank, kNoToken} : merges_.find(symbols[i], symbols[i + 1]);
    if (links[i].pair.rank != MergeTable::kNoRank) initial.push_back(key_of(i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>{}, std::move(initial));
  const auto refresh = [&](uint32_t i) {
    const uint32_t next = links[i].next;
    links[i].pair =
        next == kEnd ? MergeTable::Merge{MergeTable::kNoRank, kNoToken} : merges_.find(symbols[i], symbols[next]);
    if (links[i].pair.rank != MergeTable::kNoRank) queue.push(key_of(i));
  };
  while (!queue.empty()) {
    const uint64_t top = queue.top();
    queue.pop();
    const auto i = static_cast<uint32_t>(top);
    // An entry is stale when its pair has changed since; removed symbols have no pair.
    if (links[i].pair.rank != static_cast<uint32_t>(top >> 32)) continue;
    const uint32_t removed = links[i].next;
    symbols[i] = links[i].pair.merged_id;
    links[i].next = links[removed].next;
    if (links[i].next != kEnd) links[links[i].next].previous = i;
    links[removed].pair.rank = MergeTable::kNoRank;
    symbols[removed] = kNoToken;
    refresh(i);
    if (links[i].previous != kEnd) refresh(links[i].previous);
  }
  std::erase(symbols, kNoToken);
}

MergeTable merges_from_scores(const Vocabulary& vocabulary, const std::vector<float>& scores) {
  struct Candidate {
    int32_t left, right, merged;
  };
  std::vector<int32_t> order;
  for (int32_t id = 0; id < vocabulary.size() && static_cast<size_t>(id) < scores.size(); ++id) {
    if (vocabulary.contains(id)) order.push_back(id);
  }
  const auto score = [&](int32_t id) { return scores[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
  std::vector<Candidate> candidates;
  std::vector<uint32_t> ranks;
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) < score(order[i - 1])) ++rank;
    const std::string_view text = vocabulary.text(order[i]);
    for (size_t split = 1; split < text.size(); ++split) {
      if ((static_cast<unsigned char>(text[split]) & 0xC0) == 0x80) continue;
      const int32_t left = vocabulary.find(text.substr(0, split));
      if (left == kNoToken) continue;
      const int32_t right = vocabulary.find(text.substr(split));
      if (right == kNoToken) continue;
      candidates.push_back({left, right, order[i]});
      ranks.push_back(rank);
    }
  }
  MergeTable merges;
  merges.reserve(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    merges.assign(candidates[i].left, candidates[i].right, {ranks[i], candidates[i].merged});
  }
  return merges;
}

}  // namespace spate
