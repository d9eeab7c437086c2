// Operations on shared memory by those threads of a warp for which `when` holds, without a branch.
#pragma once

#include <cstdint>

#include "warp.cuh"

namespace hisparse::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

// Returns the word before, and anything where nothing was to do. A compare-and-swap that depended on `when`
// would be a branch, and several would wait for one another: threads with nothing to do take the word with
// their lane's number instead, which is never `impossible` and stays as it is.
__device__ __forceinline__ int32_t compare_and_swap_if(bool when, int32_t* words, int32_t word,
                                                       int32_t expected, int32_t value, int32_t impossible) {
  return atomicCAS(&words[when ? word : lane_number()], when ? expected : impossible, value);
}

// Returns the word before; `otherwise` where nothing was done. Pays where few threads have something to do.
__device__ __forceinline__ uint32_t minimum_if(bool when, uint32_t& word, uint32_t value,
                                               uint32_t otherwise) {
  uint32_t before;
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %1, 0;\n\tmov.b32 %0, %4;\n\t"
      "@p atom.shared.min.u32 %0, [%2], %3;\n\t}"
      : "=&r"(before)
      : "r"(static_cast<int32_t>(when)), "r"(shared_address(&word)), "r"(value), "r"(otherwise)
      : "memory");
  return before;
}

__device__ __forceinline__ void add_if(bool when, int32_t& word, int32_t value) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %0, 0;\n\t"
      "@p red.shared.add.s32 [%1], %2;\n\t}" ::"r"(static_cast<int32_t>(when)),
      "r"(shared_address(&word)), "r"(value)
      : "memory");
}

__device__ __forceinline__ void store_if(bool when, uint32_t& word, uint32_t value) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %0, 0;\n\t"
      "@p st.shared.b32 [%1], %2;\n\t}" ::"r"(static_cast<int32_t>(when)),
      "r"(shared_address(&word)), "r"(value)
      : "memory");
}

}  // namespace hisparse::cuda
