// Operations on shared memory by some threads of a warp, without a branch.
#pragma once

#include <cstdint>

#include "warp.cuh"

namespace hisparse::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

// Of threads whose `number` is not negative. Returns the word before; `otherwise` for the other threads. Pays
// where few have something to do.
__device__ __forceinline__ uint32_t minimum_if_not_negative(int32_t number, uint32_t& word, uint32_t value,
                                                            uint32_t otherwise) {
  uint32_t before;
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ge.s32 p, %1, 0;\n\tmov.b32 %0, %4;\n\t"
      "@p atom.shared.min.u32 %0, [%2], %3;\n\t}"
      : "=&r"(before)
      : "r"(number), "r"(shared_address(&word)), "r"(value), "r"(otherwise)
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

}  // namespace hisparse::cuda
