// Place: where a rank stands among all ranks, along each way of sharing a model.
//
// Ranks are numbered so that those which talk most are neighbours: rank = (pp * dp_size + dp) * tp_size + tp. Experts
// have no ranks of their own: the ranks of a pipeline stage hold them together, ep_size neighbours a full set.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace spate {

// One rank of `size` along one axis.
struct ParallelRank {
  int rank = 0;
  int size = 1;
  bool operator==(const ParallelRank&) const = default;
};

// How many ranks there are along each axis. All at least 1; ep divides dp * tp.
struct ParallelSizes {
  int tp = 1;  // tensor: the rows and columns of every matrix are shared
  int ep = 1;  // expert: each rank holds some experts of every layer
  int dp = 1;  // data: each index runs plans of its own
  int pp = 1;  // pipeline: each stage holds some layers
  int num_ranks() const { return pp * dp * tp; }
};

struct Place {
  ParallelRank tp, ep, dp, pp;
  bool operator==(const Place&) const = default;
};

enum class ParallelAxis { kTp, kEp, kDp, kPp };

// The error names the flag.
Status check_parallel_sizes(const ParallelSizes& sizes);

// `rank` in [0, sizes.num_ranks()).
Place place_of(int rank, const ParallelSizes& sizes);

// The ranks that differ from `rank` along `axis` only, itself included, in the order of their rank along it.
std::vector<int> group_of(int rank, ParallelAxis axis, const ParallelSizes& sizes);

std::string place_name(const Place& place);     // "tp 1 of 2, dp 0 of 2"; only the axes of more than one rank
std::string_view axis_name(ParallelAxis axis);  // "tp"

}  // namespace spate
