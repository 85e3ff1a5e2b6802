// Thread-block clusters (sm_90): CTAs that run at the same time and read each other's shared memory. Kernels that use
// them carry __cluster_dims__, or are launched with LaunchGrid::cluster; below sm_90 they compile to nothing useful and
// are not launched.
#pragma once

#include <cstdint>

namespace spate::cuda {

// The two halves of cluster_barrier().
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// The first half for those who wrote nothing to others: what cluster_arrive() adds is a fence of the whole GPU.
__device__ inline void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// All threads of all CTAs of the cluster have come here, and what they wrote before is visible to all.
__device__ inline void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

__device__ inline int cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}

// The same variable of shared memory in another CTA of the cluster.
template <typename T>
__device__ inline T* of_cluster_cta(T* own, int rank) {
  uint64_t address = reinterpret_cast<uint64_t>(own);
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(address), "r"(rank));
#endif
  return reinterpret_cast<T*>(address);
}

// The place of this CTA's `shared` in that of another one.
__device__ inline uint32_t shared_of(uint32_t shared, int rank) {
  uint32_t address = shared;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
#endif
  return address;
}
// A word to a place of shared_of(); its CTA's barrier counts the 4 bytes.
__device__ inline void send_word(uint32_t to, uint32_t word, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to), "r"(word),
               "r"(barrier)
               : "memory");
#endif
}
// Four numbers to a place of shared_of(); its CTA's barrier counts their 16 bytes.
__device__ inline void send_four(uint32_t to, float a, float b, float c, float d, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
#endif
}
// wait_barrier() for what other CTAs of the cluster wrote.
__device__ inline void wait_cluster_barrier(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done; again: "
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1; "
      "@!done bra again; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace spate::cuda
