// Communicators: a rank's own end of its groups, one along each axis of its Place (core/place.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/place.h"
#include "parallel/communicator.h"

namespace spate {

struct Communicators {
  std::unique_ptr<Communicator> tp, ep, dp, pp;  // all set; a group of one where the axis has one rank

  // The first error of any group. It ends the others too: their ranks learn of it at once and not by their time limits.
  Status error() const;
  void abort(const Status& reason) const;
};

// The communicators of every rank, by rank. `factory` makes groups of two and more; nullptr where no axis needs one.
// `devices`: of all ranks, or empty.
Result<std::vector<Communicators>> make_communicators(GroupFactory factory, const ParallelSizes& sizes,
                                                      double time_limit_s, std::span<Device* const> devices = {});

// All axes of one rank.
Communicators make_single_communicators();

}  // namespace spate
