// How the units of latent_wgmma.h are cut into a run for each team, for host and device.
#pragma once

#include "backend/cuda/kernel/primitive/host_device.h"

namespace spate::cuda {

// Items lie one behind the other, each as many units as it has tiles. Borders between teams lie every `run` units; one
// that falls into an item moves to the item's nearer end if that is at most `reach` units away.
struct LatentSplit {
  static constexpr int kMinRun = 2;         // fewer units take longer to combine
  static constexpr int kUncut = 1 << 28;    // a reach in which no item is cut
  static constexpr int kMaxLonger = 8;      // units, about what writing and combining the parts of cut items takes
  static constexpr int kMaxCutReach = 4;

  int run, reach;

  SPATE_HOST_DEVICE static constexpr int run_of(int num_units, int num_teams) {
    const int run = (num_units + num_teams - 1) / num_teams;
    return run > kMinRun ? run : kMinRun;
  }
  // `longest_uncut`: the longest run of a team if no item is cut.
  SPATE_HOST_DEVICE static constexpr int reach_of(int run, int longest_uncut) {
    const int longer = run < 8 ? 1 : run / 8;
    if (longest_uncut <= run + (longer < kMaxLonger ? longer : kMaxLonger)) return kUncut;
    return cut_reach_of(run);
  }
  SPATE_HOST_DEVICE static constexpr int cut_reach_of(int run) { return run / 16 < kMaxCutReach ? run / 16 : kMaxCutReach; }

  // Where a border of an item goes, and the teams with its first and last unit.
  SPATE_HOST_DEVICE constexpr int moved(int border, int first_unit, int num_units) const {
    if (border - first_unit <= down(num_units)) return first_unit;
    return first_unit + num_units - border <= up(num_units) ? first_unit + num_units : border;
  }
  SPATE_HOST_DEVICE constexpr int first_team(int first_unit, int num_units) const {
    return (first_unit + down(num_units)) / run;
  }
  SPATE_HOST_DEVICE constexpr int last_team(int first_unit, int num_units) const {
    return (first_unit + num_units - 1 - up(num_units)) / run;
  }

 private:
  SPATE_HOST_DEVICE constexpr int down(int num_units) const { return reach < num_units / 2 ? reach : num_units / 2; }
  SPATE_HOST_DEVICE constexpr int up(int num_units) const {
    return reach < (num_units - 1) / 2 ? reach : (num_units - 1) / 2;
  }
};

}  // namespace spate::cuda
