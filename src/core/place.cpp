#include "core/place.h"

#include <fmt/format.h>

#include "base/check.h"

namespace spate {

std::string_view axis_name(ParallelAxis axis) {
  switch (axis) {
    case ParallelAxis::kTp:
      return "tp";
    case ParallelAxis::kEp:
      return "ep";
    case ParallelAxis::kDp:
      return "dp";
    case ParallelAxis::kPp:
      return "pp";
  }
  return "?";
}

Status check_parallel_sizes(const ParallelSizes& sizes) {
  if (sizes.tp < 1) return invalid_argument("--tensor-parallel-size must be at least 1, got {}", sizes.tp);
  if (sizes.dp < 1) return invalid_argument("data parallel size must be at least 1, got {}", sizes.dp);
  if (sizes.pp < 1) return invalid_argument("pipeline parallel size must be at least 1, got {}", sizes.pp);
  if (sizes.ep < 1 || (sizes.dp * sizes.tp) % sizes.ep != 0) {
    return invalid_argument("expert parallel size {} must divide the {} ranks of a pipeline stage", sizes.ep,
                            sizes.dp * sizes.tp);
  }
  return ok_status();
}

Place place_of(int rank, const ParallelSizes& sizes) {
  CHECK(rank >= 0 && rank < sizes.num_ranks(), "rank {} of {}", rank, sizes.num_ranks());
  const int in_stage = rank % (sizes.dp * sizes.tp);
  return {.tp = {in_stage % sizes.tp, sizes.tp},
          .ep = {in_stage % sizes.ep, sizes.ep},
          .dp = {in_stage / sizes.tp, sizes.dp},
          .pp = {rank / (sizes.dp * sizes.tp), sizes.pp}};
}

std::vector<int> group_of(int rank, ParallelAxis axis, const ParallelSizes& sizes) {
  const Place place = place_of(rank, sizes);
  // The first rank of the group and the distance to the next one.
  int first = rank, size = 1, stride = 1;
  switch (axis) {
    case ParallelAxis::kTp:
      first = rank - place.tp.rank;
      size = sizes.tp;
      break;
    case ParallelAxis::kEp:
      first = rank - place.ep.rank;
      size = sizes.ep;
      break;
    case ParallelAxis::kDp:
      stride = sizes.tp;
      first = rank - place.dp.rank * stride;
      size = sizes.dp;
      break;
    case ParallelAxis::kPp:
      stride = sizes.dp * sizes.tp;
      first = rank - place.pp.rank * stride;
      size = sizes.pp;
      break;
  }
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

std::string place_name(const Place& place) {
  std::string name;
  const auto add = [&](std::string_view axis, const ParallelRank& at) {
    if (at.size > 1) name += fmt::format("{}{} {} of {}", name.empty() ? "" : ", ", axis, at.rank, at.size);
  };
  add("tp", place.tp);
  add("ep", place.ep);
  add("dp", place.dp);
  add("pp", place.pp);
  return name.empty() ? "the only rank" : name;
}

}  // namespace spate
