// RecordingDevice: proves that steps can be captured. It remembers what a step launched under its key. The next step of
// an equal key must launch the same, to the last pointer, or it is replayed from memory without asking the rank.
//
// Threads: as Device; one log may serve several devices.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/test_device/intercepting_device.h"

namespace spate {

struct RecordingLog {
  int num_steps = 0;
  int num_repeated = 0;                 // steps whose key was known
  std::vector<std::string> mismatches;  // "launch 3 of key(...): linear(...), recorded was linear(...)"
};

struct RecordingOptions {
  RecordingLog* log = nullptr;  // outlives the device
  bool replay = false;          // a step of a known key is run from memory
  // Device::padded_step of the device; default: the inner device's.
  std::function<StepKey(const StepKey& exact, const StepKey& largest)> padded_step;
  // What steps are told apart by; a test takes fields away to see that their lack is found. Default: the key.
  std::function<StepKey(const StepKey&)> identity;
};

std::unique_ptr<Device> make_recording_device(std::unique_ptr<Device> inner, RecordingOptions options);

// Sizes of a small ladder: counts up to the next power of two, at most the largest.
StepKey power_of_two_step(const StepKey& exact, const StepKey& largest);

}  // namespace spate
