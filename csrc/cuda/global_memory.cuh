// Reads of global memory without a branch, which reads behind it would have to wait for.
#pragma once

#include <cstdint>

#include "warp.cuh"

namespace hisparse::cuda {

// kCount numbers as by read_vector() where `when` holds; `otherwise`, each, elsewhere.
template <int kCount>
__device__ __forceinline__ void read_vector_if(bool when, const int32_t* from, int32_t otherwise,
                                               int32_t* to) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = otherwise;
  if constexpr (kCount == 4) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %4, 0;\n\t"
        "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%5];\n\t}"
        : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
        : "r"(static_cast<int32_t>(when)), "l"(__cvta_generic_to_global(from))
        : "memory");
  } else {
    if (when) read_vector<kCount>(from, to);
  }
}

}  // namespace hisparse::cuda
