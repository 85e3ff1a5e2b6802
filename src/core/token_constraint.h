// TokenConstraint: which tokens a request may choose, given those before. grammar/ implements it over the bytes of the
// tokens; the engine keeps one cursor a sequence and gives its masks to the device.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "base/status.h"
#include "core/step_plan.h"

namespace spate {

// Where one sequence stands. Engine thread only, as all cursors of a constraint.
class ConstraintCursor {
 public:
  virtual ~ConstraintCursor() = default;
  // The sequence got this token. An error when the mask of before did not allow it.
  virtual Status append(int32_t token_id) = 0;
  // Makes mask() valid for the place after the newest token. An error when finding it takes too much work, or when no
  // token can follow and the text is not complete.
  virtual Status prepare_mask() = 0;
  // mask_words_of(vocab_size) words; the end tokens' bits are not set. Valid, and at the same address only while it is
  // the same mask, until the next append().
  virtual std::span<const uint32_t> mask() const = 0;
  // Whether a draft of this token is worth running: the mask's answer.
  virtual bool may_draft(int32_t token_id) const { return mask_allows(mask().data(), token_id); }
  // A token that the text surely or probably goes on with, as its form leaves one way only; -1: it leaves more. Worth a
  // draft. May be asked without prepare_mask(); the mask need not allow it.
  virtual int32_t forced_token() const { return -1; }
  virtual bool may_end() const = 0;   // the text is complete
  virtual bool must_end() const = 0;  // and nothing can follow
  // Any text may come here, in the reasoning of an answer: relaxed acceptance may keep a draft that the model only
  // nearly chose.
  virtual bool may_relax() const { return false; }
  // From here on every token is allowed, and so is the end: the cursor may be dropped.
  virtual bool is_done() const { return false; }
  // A cursor of its own at the same place, with the same mask: it may go on along tokens that only might come.
  virtual std::unique_ptr<ConstraintCursor> clone() const = 0;
  // The same for a model that drafts by the mask.
  virtual std::unique_ptr<ConstraintCursor> clone_to_draft() const { return clone(); }
};

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // The start of a sequence, its mask prepared.
  virtual std::unique_ptr<ConstraintCursor> start() = 0;
  // Looks at places to which sequences may come, for about `max_work` units of 30 ns: for the engine thread while the
  // device is at work, so that masks there are found at once. False: nothing is left to look at. Never needed.
  virtual bool work_ahead(int64_t /*max_work*/) { return false; }
};

// The constraints of running requests, which work ahead by turns. Engine thread only.
class ConstraintsAhead {
 public:
  // Null, or one that is known or has nothing to do: no effect. Not kept alive.
  void add(const std::shared_ptr<TokenConstraint>& constraint);
  // Beside a step of the device that takes so many seconds: one constraint, for a 16th of that, 0.6 ms at most.
  void work_beside(double device_seconds);

 private:
  std::deque<std::weak_ptr<TokenConstraint>> constraints_;  // the next in turn first
};

}  // namespace spate
