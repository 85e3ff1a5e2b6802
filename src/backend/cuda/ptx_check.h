// For the tests: whether a kernel keeps to the rule of kernel/primitive/grid_dependency.h, read from its PTX.
#pragma once

#include <string>
#include <string_view>

namespace spate::cuda {

// Empty when on every path of the kernel griddepcontrol.wait comes before its end, before calls and before accesses to
// global memory; else the first instruction of a path that breaks this, without its predicate. ld.global.nc and bulk
// copies to shared memory may stand before the wait: kernels use them there for what no kernel writes.
std::string access_before_wait(std::string_view ptx, std::string_view kernel);

}  // namespace spate::cuda
