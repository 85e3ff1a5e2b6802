// Copies from global to shared memory that run beside the arithmetic, and the loads of tensor-core operands from it
// (sm_80).
#pragma once

#include <cstdint>

namespace spate::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes past L1; zeros when not `exists`. Both addresses are multiples of 16.
__device__ inline void copy_async_16(uint32_t shared, const void* global, bool exists) {
  const int bytes = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes));
}
// 4 bytes; both addresses are multiples of 4.
__device__ inline void copy_async_4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global));
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;"); }
// All but the kPending groups that this thread committed last have arrived.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of bf16: lane l gives the address of row l % 8 of matrix l / 8, and gets two neighbours of each
// matrix, row lane / 4, columns 2 (lane % 4) and the next.
__device__ inline void load_matrices(uint32_t (&out)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared));
}

// The same of the transposed matrices: row l % 8 is the address of a row in memory, lane / 4 becomes the column.
__device__ inline void load_matrices_transposed(uint32_t (&out)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared));
}

}  // namespace spate::cuda
