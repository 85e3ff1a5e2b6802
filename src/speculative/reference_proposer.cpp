// reference: the drafts are what follows, in the request's reference texts, the longest suffix of the row's tokens that
// occurs there. Without such texts the prompt is the reference. Where an edit broke the copy off, the next tokens that
// occur in the text restart it, and of several occurrences the nearest behind the place of the break is followed.
#include <algorithm>
#include <utility>

#include "speculative/proposer.h"
#include "speculative/suffix_automaton.h"

namespace spate {
namespace {

constexpr int32_t kEndOfText = -1;   // between texts; no token, so no draft goes beyond it
constexpr size_t kMaxExtension =
    4096;                            // tokens of texts that a turn takes in: 0.3 to 0.9 ms, whatever texts are brought
constexpr int32_t kNearTokens = 64;  // how far behind the last copied token an occurrence is preferred

class ReferenceState final : public ProposerState {
 public:
  ReferenceState(std::shared_ptr<SuffixAutomaton> automaton, const SpeculativeConfig& config, size_t prompt_len)
      : automaton_(std::move(automaton)),
        min_match_(config.prompt_lookup_min),
        // Of the prompt only what leads into the answer is read.
        num_read_(prompt_len - std::min(prompt_len, static_cast<size_t>(config.prompt_lookup_min))) {}

  // Nothing before the text is known as a whole. max_extension: tokens that may be taken in; those that were are taken
  // off.
  void propose(DraftRow& row, size_t& max_extension) {
    max_extension -= automaton_->extend(max_extension);
    if (!automaton_->is_complete()) return;
    const std::span<const int32_t> tokens = row.token_ids;
    for (; num_read_ < tokens.size(); ++num_read_) {
      automaton_->read(match_, tokens[num_read_]);
      const bool goes_on = position_ >= 0 && position_ < size() && text()[position_] == tokens[num_read_];
      position_ = goes_on ? position_ + 1 : -1;
      if (goes_on) last_copied_ = position_;
      else if (match_.length >= min_match_) restart(tokens.first(num_read_ + 1));
    }
    if (position_ < 0) return;
    for (int32_t i = position_; i < size() && std::ssize(*row.drafts) < row.max_drafts; ++i) {
      if (text()[i] == kEndOfText) break;
      row.drafts->push_back(text()[i]);
    }
    row.confidence = confidence_of_match(match_.length);
  }

 private:
  std::span<const int32_t> text() const { return automaton_->text(); }
  int32_t size() const { return static_cast<int32_t>(automaton_->text().size()); }

  // The match's occurrence nearest behind what was copied last, else its first one.
  void restart(std::span<const int32_t> tokens) {
    position_ = automaton_->first_end(match_);
    const int32_t end = std::min(size(), last_copied_ + kNearTokens);
    for (int32_t near = std::max(last_copied_ + 1, match_.length); near <= end; ++near) {
      if (!std::equal(text().begin() + near - match_.length, text().begin() + near, tokens.end() - match_.length)) {
        continue;
      }
      position_ = near;
      break;
    }
    last_copied_ = position_;
  }

  const std::shared_ptr<SuffixAutomaton> automaton_;
  const int min_match_;
  size_t num_read_;
  SuffixAutomaton::Match match_;
  int32_t position_ = -1;     // of the text's token that is expected next; -1: the copy is broken off
  int32_t last_copied_ = 0;   // behind the last token that was copied
};

class ReferenceProposer final : public Proposer {
 public:
  explicit ReferenceProposer(const SpeculativeConfig& config) : config_(config) {}
  bool is_cheap() const override { return true; }

  std::unique_ptr<ProposerState> start(const Request& request, uint64_t) override {
    // The n sequences of a request start one behind the other and share one.
    std::shared_ptr<SuffixAutomaton> automaton = latest_request_ == request.id ? latest_.lock() : nullptr;
    if (automaton == nullptr) {
      automaton = std::make_shared<SuffixAutomaton>(reference_of(request));
      latest_ = automaton;
      latest_request_ = request.id;
    }
    return std::make_unique<ReferenceState>(std::move(automaton), config_, request.prompt_token_ids.size());
  }
  Status propose(std::span<DraftRow> rows) override {
    size_t max_extension = kMaxExtension;
    for (DraftRow& row : rows) static_cast<ReferenceState*>(row.state)->propose(row, max_extension);
    return ok_status();
  }

 private:
  static std::vector<int32_t> reference_of(const Request& request) {
    std::vector<int32_t> text;
    for (const std::vector<int32_t>& reference : request.speculative_reference) {
      if (!text.empty()) text.push_back(kEndOfText);
      text.insert(text.end(), reference.begin(), reference.end());
    }
    return text.empty() ? request.prompt_token_ids : text;
  }

  const SpeculativeConfig config_;
  RequestId latest_request_ = 0;
  std::weak_ptr<SuffixAutomaton> latest_;
};

}  // namespace

std::unique_ptr<Proposer> make_text_proposer(const SpeculativeConfig& config) {
  return std::make_unique<ReferenceProposer>(config);
}

}  // namespace spate
