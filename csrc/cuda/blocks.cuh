// common/addressing.h with the division by the block size made cheap.
#pragma once

#include "common/addressing.h"
#include "divisor.cuh"

namespace hisparse::cuda {

struct Blocks {
  Divisor size;
  BlockShape shape;

  explicit Blocks(BlockShape blocks) : size(blocks.size), shape(blocks) {}
};

}  // namespace hisparse::cuda
