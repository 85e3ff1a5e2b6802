// The bulk tensor copy engine (TMA, sm_90) and the barriers in shared memory that its copies arrive at.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/tensor_map.h"

namespace spate::cuda {

// --- barriers: 8 bytes of shared memory ------------------------------------------------------------------------------

__device__ inline void init_barrier(uint32_t barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals));
}
// Barriers initialised before are seen by the copy engine.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At the barrier in the same place of another CTA of the cluster. Not .release.cluster, which is a fence of the whole
// GPU: what this thread wrote is not for the other CTA.
__device__ inline void arrive_at_cta(uint32_t barrier, int rank) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Arrives; the phase ends when as many bytes have been copied too.
__device__ inline void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives when this thread's copies by async_copy.h so far have arrived; one of the barrier's arrivals.
__device__ inline void arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// What threads wrote to shared memory, seen before a barrier by this one, is seen by its wgmma and bulk copies.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same of global memory: around the exchange that tells another CTA of it.
__device__ inline void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
// Returns when the phase of this parity has ended; a new barrier counts as if phase 1 had.
__device__ inline void wait_barrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done; again: "
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
      "@!done bra again; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// --- copies ------------------------------------------------------------------------------------------------------

// The box at (column, row) of a matrix goes to shared memory; what lies outside the matrix becomes zeros.
__device__ inline void copy_box(uint32_t shared, const TensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// The same to this place in every CTA of the cluster that has a bit in `ctas`; each one's barrier at this place hears
// of its bytes.
__device__ inline void copy_box_to_ctas(uint32_t shared, const TensorMap& map, int column, int row, uint32_t barrier,
                                        uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(shared),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier), "h"(ctas)
      : "memory");
}
// Boxes of maps with more dimensions: `column` is of the first, the others follow.
__device__ inline void copy_box_3d(uint32_t shared, const TensorMap& map, int column, int row, int plane,
                                   uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(plane), "r"(barrier)
      : "memory");
}
__device__ inline void copy_box_4d(uint32_t shared, const TensorMap& map, int column, int i1, int i2, int i3,
                                   uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(i1), "r"(i2), "r"(i3), "r"(barrier)
      : "memory");
}
// The same of what is not read again: the first to leave L2.
__device__ inline void copy_box_4d_once(uint32_t shared, const TensorMap& map, int column, int i1, int i2, int i3,
                                        uint32_t barrier) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
      "%4, %5}], [%6], %7;" ::"r"(shared),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(i1), "r"(i2), "r"(i3), "r"(barrier), "l"(kEvictFirst)
      : "memory");
}
// The same of a matrix whose rows the map orders by four indices, the fastest first.
__device__ inline void copy_box_5d(uint32_t shared, const TensorMap& map, int column, int i1, int i2, int i3, int i4,
                                   uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
      "[%7];" ::"r"(shared),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(i1), "r"(i2), "r"(i3), "r"(i4), "r"(barrier)
      : "memory");
}
// The same of what is not read again: the first to leave L2.
__device__ inline void copy_box_5d_once(uint32_t shared, const TensorMap& map, int column, int i1, int i2, int i3,
                                        int i4, uint32_t barrier) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
      "%4, %5, %6}], [%7], %8;" ::"r"(shared),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(i1), "r"(i2), "r"(i3), "r"(i4), "r"(barrier),
      "l"(kEvictFirst)
      : "memory");
}

// Neighbours: addresses and `bytes` are multiples of 16.
__device__ inline void copy_bytes(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
// The same of what is not read again: the first to leave L2.
__device__ inline void copy_bytes_once(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
      : "memory");
}

// Of shared memory to the box at (column, row); one group of copies each. What is outside the matrix is not written.
__device__ inline void store_box(const TensorMap& map, int column, int row, uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                   reinterpret_cast<uint64_t>(&map)),
               "r"(column), "r"(row), "r"(shared)
               : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All but the kPending groups of this thread have read shared memory.
template <int kPending>
__device__ inline void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

__device__ inline void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

}  // namespace spate::cuda
