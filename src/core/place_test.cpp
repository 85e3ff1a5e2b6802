// Goal    Every rank has one place, and the groups along an axis divide the ranks: each rank is in exactly one of them,
// at
//         the position that its place says.
// Method  All sizes up to 4 along each axis.
#include "core/place.h"

#include <algorithm>
#include <set>

#include "base/test.h"

namespace spate {
namespace {

ParallelRank along(const Place& place, ParallelAxis axis) {
  switch (axis) {
    case ParallelAxis::kTp:
      return place.tp;
    case ParallelAxis::kEp:
      return place.ep;
    case ParallelAxis::kDp:
      return place.dp;
    case ParallelAxis::kPp:
      return place.pp;
  }
  return {};
}

void check_groups(const ParallelSizes& sizes) {
  std::set<std::vector<int>> places;
  for (int rank = 0; rank < sizes.num_ranks(); ++rank) {
    const Place place = place_of(rank, sizes);
    CHECK(places.insert({place.tp.rank, place.dp.rank, place.pp.rank}).second);
    for (const ParallelAxis axis : {ParallelAxis::kTp, ParallelAxis::kEp, ParallelAxis::kDp, ParallelAxis::kPp}) {
      const std::vector<int> group = group_of(rank, axis, sizes);
      const ParallelRank at = along(place, axis);
      REQUIRE(static_cast<int>(group.size()) == at.size);
      CHECK(group[static_cast<size_t>(at.rank)] == rank);
      for (const int member : group) {
        CHECK(group_of(member, axis, sizes) == group);
        // An expert group never crosses a stage; the others differ along their own axis only.
        const Place other = place_of(member, sizes);
        if (axis != ParallelAxis::kTp && axis != ParallelAxis::kEp) CHECK(other.tp == place.tp);
        if (axis != ParallelAxis::kDp && axis != ParallelAxis::kEp) CHECK(other.dp == place.dp);
        if (axis != ParallelAxis::kPp) CHECK(other.pp == place.pp);
      }
    }
  }
}

}  // namespace

TEST_CASE("place: ranks and groups along every axis") {
  for (int tp = 1; tp <= 4; ++tp) {
    for (int dp = 1; dp <= 3; ++dp) {
      for (int pp = 1; pp <= 2; ++pp) {
        for (int ep = 1; ep <= tp * dp; ++ep) {
          const ParallelSizes sizes{.tp = tp, .ep = ep, .dp = dp, .pp = pp};
          if ((tp * dp) % ep != 0) {
            CHECK_FALSE(check_parallel_sizes(sizes).ok());
            continue;
          }
          CHECK(check_parallel_sizes(sizes).ok());
          check_groups(sizes);
        }
      }
    }
  }
}

TEST_CASE("place: tensor-parallel ranks are neighbours, and a place has a name") {
  const ParallelSizes sizes{.tp = 2, .ep = 4, .dp = 2, .pp = 1};
  CHECK(group_of(2, ParallelAxis::kTp, sizes) == std::vector<int>{2, 3});
  CHECK(group_of(2, ParallelAxis::kDp, sizes) == std::vector<int>{0, 2});
  CHECK(group_of(2, ParallelAxis::kEp, sizes) == std::vector<int>{0, 1, 2, 3});
  CHECK(place_name(place_of(3, sizes)) == "tp 1 of 2, ep 3 of 4, dp 1 of 2");
  CHECK(place_name({}) == "the only rank");
}

}  // namespace spate
