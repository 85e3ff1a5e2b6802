#include "engine/relaxed_drafts.h"

#include <algorithm>

namespace spate {
namespace {

void read_tokens(Sequence& seq) {
  const RelaxedAcceptance& relaxed = seq.group->request.relaxed;
  if (seq.num_tokens_read < seq.prompt_len) {
    seq.num_tokens_read = seq.prompt_len;
    seq.reasons = relaxed.has_begun;
  }
  const std::span<const int32_t> tokens = seq.tokens();
  for (; seq.num_tokens_read < seq.num_known_tokens(); ++seq.num_tokens_read) {
    const int32_t id = tokens[static_cast<size_t>(seq.num_tokens_read)];
    if (id == relaxed.end_id) seq.reasons = false;
    if (id == relaxed.begin_id && seq.num_tokens_read == seq.prompt_len) seq.reasons = true;
  }
}

}  // namespace

int num_relaxable_drafts(Sequence& seq) {
  const RelaxedAcceptance& relaxed = seq.group->request.relaxed;
  if (relaxed.top_k == 0 || seq.drafts.empty() || seq.max_pending_tokens > 0) return 0;
  read_tokens(seq);
  if (!seq.reasons) return 0;
  const ConstraintCursor* cursor = seq.cursor.get();
  int count = 0;
  for (const int32_t draft : seq.drafts) {
    const bool ends = draft == relaxed.begin_id || draft == relaxed.end_id ||
                      std::ranges::find(seq.group->stop_ids, draft) != seq.group->stop_ids.end();
    if (ends || (cursor != nullptr && !cursor->may_relax())) break;
    if (cursor != nullptr) cursor = seq.draft_cursors[static_cast<size_t>(count)].get();
    ++count;
  }
  return count;
}

}  // namespace spate
