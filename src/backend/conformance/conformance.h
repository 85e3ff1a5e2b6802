// The conformance suite: every op of a back-end against backend/reference over odd sizes, with poisoned outputs,
// strided views and tolerances that follow from the arithmetic. A back-end that passes may run any model.
//
// A line of output is a family: an op and a kind of shapes, "ok linear bf16 (1134 cases)" or "FAILED linear bf16:
// <first failure>".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace spate {

struct ConformanceOptions {
  std::string filter;                                  // only families whose name contains it
  // Of all families every num_shards-th, from shard_idx on: programs that run side by side share the work.
  int shard_idx = 0, num_shards = 1;
  std::function<void(const std::string& line)> print;  // may be empty
  // Devices of the same kind with the same ops, other instruction sets say: each runs every case beside `device`,
  // against the same results of the reference, which take most of the time. They are deterministic, too. A failure
  // names the device.
  std::vector<Device*> siblings;
};

struct ConformanceResult {
  int passed = 0;  // families
  int failed = 0;
};

// `device` runs all ops; `deterministic`, a device of the same kind made with DeviceOptions::deterministic (it may be
// the same one), must besides give the same bits for a row alone and in a batch, for a prompt whole and in chunks.
ConformanceResult run_conformance(Device& device, Device& deterministic, const ConformanceOptions& options);

}  // namespace spate
