#include "parallel/communicators.h"

namespace spate {
namespace {

using Member = std::unique_ptr<Communicator> Communicators::*;
struct Axis {
  ParallelAxis axis;
  Member member;
};
constexpr Axis kAxes[] = {{ParallelAxis::kTp, &Communicators::tp},
                          {ParallelAxis::kEp, &Communicators::ep},
                          {ParallelAxis::kDp, &Communicators::dp},
                          {ParallelAxis::kPp, &Communicators::pp}};

}  // namespace

Status Communicators::error() const {
  for (const Axis& axis : kAxes) {
    if (Status status = (this->*axis.member)->error(); !status.ok()) {
      abort(status);
      return status;
    }
  }
  return ok_status();
}

void Communicators::abort(const Status& reason) const {
  for (const Axis& axis : kAxes) (this->*axis.member)->abort(reason);
}

Communicators make_single_communicators() {
  Communicators all;
  for (const Axis& axis : kAxes) all.*axis.member = make_single_communicator();
  return all;
}

Result<std::vector<Communicators>> make_communicators(GroupFactory factory, const ParallelSizes& sizes,
                                                      double time_limit_s, std::span<Device* const> devices) {
  RETURN_IF_ERROR(check_parallel_sizes(sizes));
  std::vector<Communicators> all(static_cast<size_t>(sizes.num_ranks()));
  for (const Axis& axis : kAxes) {
    for (int rank = 0; rank < sizes.num_ranks(); ++rank) {
      const std::vector<int> members = group_of(rank, axis.axis, sizes);
      if (members.front() != rank) continue;  // each group once
      if (members.size() == 1) {
        all[static_cast<size_t>(rank)].*axis.member = make_single_communicator();
        continue;
      }
      CHECK(factory != nullptr, "a group of {} ranks on a back-end without collectives", members.size());
      std::vector<Device*> group_devices;
      for (const int member : members) {
        if (!devices.empty()) group_devices.push_back(devices[static_cast<size_t>(member)]);
      }
      ASSIGN_OR_RETURN(auto group, factory({.name = fmt::format("{} group", axis_name(axis.axis)),
                                            .size = static_cast<int>(members.size()),
                                            .time_limit_s = time_limit_s,
                                            .devices = group_devices}));
      for (size_t i = 0; i < members.size(); ++i) {
        all[static_cast<size_t>(members[i])].*axis.member = std::move(group[i]);
      }
    }
  }
  return all;
}

}  // namespace spate
