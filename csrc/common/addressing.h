// From positions, pages and slots to row numbers. All products are taken in 64 bits.
#pragma once

#include "hd.h"

namespace hisparse {

// An int32 matrix whose rows are contiguous, `stride` elements apart.
struct IndexMatrix {
  const int32_t* data;
  int64_t rows, columns, stride;

  HISPARSE_HD const int32_t* row(int64_t index) const { return data + index * stride; }
};

// Where block `b` of a pool begins: at row b * stride. `size` rows belong to it.
struct BlockShape {
  int32_t size, stride;
};

// Row `offset` of a block; kNone for no block, or for a number beyond int32.
HISPARSE_HD int32_t block_row(int32_t block, int32_t block_stride, int32_t offset) {
  const int64_t row = static_cast<int64_t>(block) * block_stride + offset;
  return block > 0 && row <= kMaxRow ? static_cast<int32_t>(row) : kNone;
}

// The device row of a hot slot; kNone when its block is not leased.
HISPARSE_HD int32_t slot_device_row(const int32_t* hot_blocks, int32_t slot, BlockShape blocks) {
  return block_row(hot_blocks[slot / blocks.size], blocks.stride, slot % blocks.size);
}

// The row of a position of a state row; kNone if that is mapped nowhere.
HISPARSE_HD int32_t table_row(const IndexMatrix& table, int32_t state, int32_t position, BlockShape blocks) {
  if (state < 0 || state >= table.rows || position < 0) return kNone;
  const int32_t page = position / blocks.size;
  return page < table.columns ? block_row(table.row(state)[page], blocks.stride, position % blocks.size)
                              : kNone;
}

// Pages that hold `tokens` tokens.
HISPARSE_HD int64_t pages_of(int32_t tokens, int32_t block_size) {
  return tokens <= 0 ? 0 : (static_cast<int64_t>(tokens) + block_size - 1) / block_size;
}

// Where a position is to be read, before any look at the hot state.
struct Place {
  enum Kind { kPadding, kResident, kHost, kFault } kind;
  int32_t row;  // device row if kResident, host row if kHost, else kNone
};

// The place of row `offset` of a page, given its blocks; the resident one goes first.
HISPARSE_HD Place place_on_page(int32_t host_block, int32_t resident_block, int32_t offset,
                                BlockShape blocks) {
  const bool resident = resident_block > 0;
  const int32_t row = resident ? block_row(resident_block, blocks.stride, offset)
                               : block_row(host_block, blocks.size, offset);
  if (row == kNone) return {Place::kFault, kNone};
  return {resident ? Place::kResident : Place::kHost, row};
}

// `host_blocks` and `resident_blocks` are the table rows of the request; null when it has no state row.
HISPARSE_HD Place find_page(int32_t position, const int32_t* host_blocks, const int32_t* resident_blocks,
                            int64_t pages, BlockShape blocks) {
  if (position < 0) return {Place::kPadding, kNone};
  const int32_t page = position / blocks.size, offset = position % blocks.size;
  if (page >= pages) return {Place::kPadding, kNone};
  if (host_blocks == nullptr) return {Place::kFault, kNone};
  return place_on_page(host_blocks[page], resident_blocks[page], offset, blocks);
}

}  // namespace hisparse
