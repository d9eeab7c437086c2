#include "arguments.h"
#include "ops.h"
#include "row_copy.h"

namespace hisparse::cpu {
namespace {

// First row of a block; kNone if the block is not wholly inside its pool.
int64_t first_row(int32_t block, BlockShape shape, int64_t pool_rows) {
  const int64_t row = static_cast<int64_t>(block) * shape.stride;
  return block > 0 && row + shape.size <= pool_rows ? row : kNone;
}

}  // namespace

void copy_blocks(const TensorList& src, const TensorList& dst, const Tensor& src_blocks,
                 const Tensor& dst_blocks, int64_t block_size, int64_t src_block_stride,
                 int64_t dst_block_stride) {
  const BlockCopyParams p =
      copy_blocks_params(src, dst, src_blocks, dst_blocks, block_size, src_block_stride, dst_block_stride);
  // Rows of all pairs in one row of numbers, so that a single page is shared among threads too.
  parallel_for(0, p.pairs.count * block_size, rows_per_task(p.pools), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t pair = begin / block_size, offset = begin % block_size;
      const int64_t count = std::min(end - begin, block_size - offset);
      const int64_t from = first_row(p.pairs.source[pair], p.source, p.pools.source.rows);
      const int64_t to = first_row(p.pairs.destination[pair], p.destination, p.pools.destination.rows);
      if (from != kNone && to != kNone) copy_extent(p.pools, from + offset, to + offset, count);
      begin += count;
    }
  });
}

}  // namespace hisparse::cpu
