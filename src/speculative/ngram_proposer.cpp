// ngram: the drafts are what followed the longest suffix of the row's tokens where it stood before; of equal lengths the
// latest. The index is that of LZ77 compressors: a table from the hash of prompt_lookup_min tokens to the latest place
// that ends with them, and from each place to the one before it with the same hash. A token costs one entry; a look-up
// compares at most kMaxCandidates places.
#include <algorithm>

#include "speculative/proposer.h"

namespace spate {
namespace {

constexpr int kMaxCandidates = 32;
constexpr size_t kFirstTableSize = 1024;  // a power of two

class NgramState final : public ProposerState {
 public:
  NgramState(int min_match, int max_match) : min_match_(min_match), max_match_(max_match) {}

  void propose(DraftRow& row) {
    const std::span<const int32_t> tokens = row.token_ids;
    // The last place is looked up before it is put in: a text does not continue itself.
    extend(tokens, tokens.size() - 1);
    if (tokens.size() <= static_cast<size_t>(min_match_)) return;
    int best_match = 0;
    size_t best_end = 0;  // of the earlier occurrence: the index behind its last token
    size_t end = latest_[slot(tokens, tokens.size())];
    for (int i = 0; i < kMaxCandidates && end != 0; ++i, end = earlier_[end]) {
      const int num_matched = match(tokens, end);
      if (num_matched <= best_match) continue;
      best_match = num_matched;
      best_end = end;
      if (num_matched == max_match_) break;
    }
    if (best_match < min_match_) return;
    // A run that ends at the row's end goes round: a repeated phrase is followed by itself.
    for (int i = 0; i < row.max_drafts; ++i) {
      const size_t from = best_end + static_cast<size_t>(i);
      row.drafts->push_back(from < tokens.size() ? tokens[from] : (*row.drafts)[from - tokens.size()]);
    }
    row.confidence = confidence_of_match(best_match);
  }

 private:
  // Tokens that agree before `end` and before the row's end, at most max_match_.
  int match(std::span<const int32_t> tokens, size_t end) const {
    int count = 0;
    while (count < max_match_ && static_cast<size_t>(count) < end &&
           tokens[end - 1 - static_cast<size_t>(count)] == tokens[tokens.size() - 1 - static_cast<size_t>(count)]) {
      ++count;
    }
    return count;
  }

  // Of the min_match_ tokens before `end`.
  size_t slot(std::span<const int32_t> tokens, size_t end) const {
    uint64_t hash = 0;
    for (size_t i = end - static_cast<size_t>(min_match_); i < end; ++i) {
      hash = (hash ^ static_cast<uint32_t>(tokens[i])) * 0x9e3779b97f4a7c15;
    }
    return (hash >> 32) & (latest_.size() - 1);
  }

  // Puts in the places up to `num_tokens`.
  void extend(std::span<const int32_t> tokens, size_t num_tokens) {
    if (latest_.empty() || num_tokens > latest_.size()) {
      size_t size = std::max(kFirstTableSize, latest_.size());
      while (size < 2 * num_tokens) size *= 2;
      latest_.assign(size, 0);
      earlier_.clear();
    }
    earlier_.reserve(latest_.size());
    while (earlier_.size() <= num_tokens) {
      const size_t end = earlier_.size();
      if (end < static_cast<size_t>(min_match_)) {
        earlier_.push_back(0);
        continue;
      }
      uint32_t& latest = latest_[slot(tokens, end)];
      earlier_.push_back(std::exchange(latest, static_cast<uint32_t>(end)));
    }
  }

  const int min_match_, max_match_;
  std::vector<uint32_t> latest_;   // by slot: the latest place, the index behind it; 0 none
  std::vector<uint32_t> earlier_;  // by place: the one before it in the same slot; 0 none
};

class NgramProposer final : public Proposer {
 public:
  explicit NgramProposer(const SpeculativeConfig& config) : config_(config) {}
  bool is_cheap() const override { return true; }
  std::unique_ptr<ProposerState> start(const Request&, uint64_t) override {
    return std::make_unique<NgramState>(config_.prompt_lookup_min, config_.prompt_lookup_max);
  }
  Status propose(std::span<DraftRow> rows) override {
    for (DraftRow& row : rows) static_cast<NgramState*>(row.state)->propose(row);
    return ok_status();
  }

 private:
  const SpeculativeConfig config_;
};

}  // namespace

std::unique_ptr<Proposer> make_ngram_proposer(const SpeculativeConfig& config) {
  return std::make_unique<NgramProposer>(config);
}

}  // namespace spate
