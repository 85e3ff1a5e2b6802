// The oracle: every op of the catalogue, scalar, sums in fp64, nothing clever. Tests compare the other back-ends with
// it; models run on it too, slowly. Weights and embedding tables lie row-major, KV blocks as [k | v][token][head][dim].
//
// One thread. Every op runs before its call returns. The result of a row never depends on the other rows.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace spate {

Result<std::unique_ptr<Device>> make_reference_device(const DeviceOptions& options);

}  // namespace spate
