// Which drafts of a sequence relaxed acceptance may keep: those in the reasoning of its answer, up to the first that
// would end it or the answer.
#pragma once

#include "scheduler/sequence.h"

namespace spate {

// So many of the first of seq.drafts, which follow its newest token; 0 while tokens of it are in flight. Reads the
// tokens that it has got since the last call.
int num_relaxable_drafts(Sequence& seq);

}  // namespace spate
