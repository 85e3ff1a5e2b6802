// DeferredDevice: a device that is as lazy as the interface allows, for tests of what may run behind the host's back.
// Launches only queue; they run when somebody waits for them. Copies from and to memory that is not pinned behave as
// those of a GPU: the bytes are taken at once, or the copy waits for all work before it.
//
// Threads: launches by the rank's thread; waits by any.
#pragma once

#include <atomic>
#include <memory>

#include "backend/test_device/intercepting_device.h"

namespace spate {

struct DeferredLog {
  std::atomic<int64_t> num_launched{0};  // ops, copies and fills given to the device
  std::atomic<int64_t> num_run{0};
  std::atomic<int64_t> num_steps{0};  // calls of run_step
};

// All streams of the device share one queue. `log` outlives it.
std::unique_ptr<Device> make_deferred_device(std::unique_ptr<Device> inner, DeferredLog* log);

}  // namespace spate
