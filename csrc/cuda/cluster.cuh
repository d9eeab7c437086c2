// Blocks of a cluster run at the same time and can write into one another's shared memory, once all have
// started.
#pragma once

#include <cstdint>

#include "shared_memory.cuh"

namespace hisparse::cuda {

// For all threads of a cluster; those that have left count as arrived. What was written before arriving is
// seen after waiting.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Writes the word that has the place of `word` in the memory of the cluster's first block.
__device__ __forceinline__ void write_to_first_block(int32_t& word, int32_t value) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(shared_address(&word)));
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(value) : "memory");
}

}  // namespace hisparse::cuda
