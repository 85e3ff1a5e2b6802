// Programmatic dependent launch (sm_90): a kernel that is launched with the attribute may start while the one before it
// in the stream still runs. Without the attribute, and below sm_90, both functions do nothing.
//
// The rule of this back-end, which cuda_compile_test checks in the PTX of every kernel:
//   1. A kernel calls let_dependents_launch() first: its successor's CTAs fill the SMs as its own leave them.
//   2. Every thread calls wait_for_inputs() before it reads or writes global memory that another kernel touches, on
//   every
//      path, also on one that returns early. A grid in which no CTA waits ends before its predecessor does, and then
//      its successor would not wait for that predecessor.
//   3. Before the wait a thread may read what no kernel writes: packed weights. A prefetch to L2 reads no value.
#pragma once

#include <cstdint>

namespace spate::cuda {

// Lets the next kernel of the stream start when all CTAs of this one have called it or ended.
__device__ inline void let_dependents_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Returns when every kernel before this one has ended and its writes are visible.
__device__ inline void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace spate::cuda
