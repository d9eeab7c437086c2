// common/addressing.h with divisions and checks made cheap.
#pragma once

#include <type_traits>

#include "common/addressing.h"
#include "divisor.cuh"

namespace hisparse::cuda {

// block_row without 64-bit products: blocks up to `last` have rows that fit into 32 bits without a sign.
struct BlockRows {
  uint32_t stride, last;

  explicit BlockRows(int32_t by) : stride(by), last(kMaxRow / by) {}

  __device__ __forceinline__ int32_t row(int32_t block, int32_t offset) const {
    const auto row =
        static_cast<int32_t>(static_cast<uint32_t>(block) * stride + static_cast<uint32_t>(offset));
    return static_cast<uint32_t>(block) - 1 < last && row >= 0 ? row : kNone;
  }
};

struct Blocks {
  Divisor size;
  BlockRows host, device;

  explicit Blocks(BlockShape blocks) : size(blocks.size), host(blocks.size), device(blocks.stride) {}
};

// Lines of a matrix of int32_t or const int32_t, with distances in bytes below 2^32.
template <class T>
struct Lines {
  T* data;
  uint32_t stride_bytes;

  __device__ __forceinline__ T* line(int32_t index) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(data) +
                                uint64_t{static_cast<uint32_t>(index)} * stride_bytes);
  }
};

}  // namespace hisparse::cuda
