// common/addressing.h with the division by the block size made cheap.
#pragma once

#include "common/addressing.h"
#include "divisor.cuh"

namespace hisparse::cuda {

struct Blocks {
  Divisor size;
  BlockShape shape;

  explicit Blocks(BlockShape blocks) : size(blocks.size), shape(blocks) {}

  // Device row of a hot slot; kNone when its block is not leased.
  __device__ __forceinline__ int32_t slot_row(const int32_t* hot_blocks, int32_t slot) const {
    const int32_t block = size.divide(slot);
    return block_row(hot_blocks[block], shape.stride, slot - block * shape.size);
  }
};

}  // namespace hisparse::cuda
