#include "arguments.h"
#include "host_memory.cuh"
#include "ops.h"
#include "row_move.cuh"

namespace hisparse::cuda {
namespace {

// First row of a block; kNone if the block is not wholly inside its pool.
__device__ __forceinline__ int64_t first_row(int32_t block, BlockShape shape, int64_t pool_rows) {
  const int64_t row = static_cast<int64_t>(block) * shape.stride;
  return block > 0 && row + shape.size <= pool_rows ? row : kNone;
}

// Every row of every pair of blocks.
struct BlockRoute {
  PairList pairs;
  BlockShape source, destination;
  int64_t source_rows, destination_rows;

  template <class Share>
  __device__ void each_share(int64_t warp, int64_t warps, int32_t pieces, Share share) const {
    const int64_t size = source.size;
    each_piece(
        pairs.count * size, warp, warps, pieces,
        [&](int64_t i) {
          const int64_t pair = i / size, offset = i % size;
          const int64_t from = first_row(pairs.source[pair], source, source_rows);
          const int64_t to = first_row(pairs.destination[pair], destination, destination_rows);
          return from == kNone || to == kNone ? RowPair{kNone, kNone} : RowPair{from + offset, to + offset};
        },
        share);
  }
};

}  // namespace

void copy_blocks(const TensorList& src, const TensorList& dst, const Tensor& src_blocks,
                 const Tensor& dst_blocks, int64_t block_size, int64_t src_block_stride,
                 int64_t dst_block_stride) {
  BlockCopyParams p =
      copy_blocks_params(src, dst, src_blocks, dst_blocks, block_size, src_block_stride, dst_block_stride);
  make_reachable("copy_blocks", "src", src, p.pools.source, p.pools.row_bytes);
  make_reachable("copy_blocks", "dst", dst, p.pools.destination, p.pools.row_bytes);
  if (p.pairs.count == 0) return;
  const BlockRoute route{p.pairs, p.source, p.destination, p.pools.source.rows, p.pools.destination.rows};
  move_rows(Queue(src_blocks), p.pools, route, BeyondEnd::kSkip);
}

}  // namespace hisparse::cuda
