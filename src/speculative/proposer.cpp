#include "speculative/proposer.h"

namespace spate {

std::unique_ptr<Proposer> make_proposer(const SpeculativeConfig& config) {
  switch (config.method) {
    case SpeculativeMethod::kNone: return nullptr;
    case SpeculativeMethod::kNgram: return make_ngram_proposer(config);
    case SpeculativeMethod::kReference: return make_text_proposer(config);
    case SpeculativeMethod::kDraftModel: return nullptr;
    case SpeculativeMethod::kMtp: return nullptr;
    case SpeculativeMethod::kEagle:
      return nullptr;
  }
  return nullptr;
}

int confidence_of_match(int num_matched) {
  if (num_matched < 3) return 0;
  if (num_matched < 5) return 1;
  return num_matched < 9 ? 2 : 3;
}

}  // namespace spate
