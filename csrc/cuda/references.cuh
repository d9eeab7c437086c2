// A request's references, up to kItems a thread at a time: each warp has a run of consecutive ones, in the
// order (query row, column), 32 at a time.
//
// | found       | the reference                                                    |
// |-------------|------------------------------------------------------------------|
// | >= 0        | is resident: its device row                                      |
// | kNone       | is unmapped                                                      |
// | kPadded     | is padding                                                       |
// | below       | is looked for in the hot buffer: wanted(place in the table)      |
#pragma once

#include <cstdint>

#include "blocks.cuh"
#include "lookup_table.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

// Where the references of one request are found, and the tables they are looked up in.
struct Query {
  const IndexMatrix& topk;
  const Divisor& columns;
  int32_t first_row;
  const int32_t* host_blocks;  // null when the request has no state row
  const int32_t* resident_blocks;
  int32_t pages;
  const Blocks& blocks;

  __device__ __forceinline__ int32_t position(int32_t reference) const {
    const int32_t row = reference < columns.value ? 0 : columns.divide(reference);
    return topk.row(first_row + row)[reference - row * columns.value];
  }
};

constexpr int32_t kPadded = -2;

template <int kThreads, int kItems>
class References {
 public:
  // The next references: `count` of them, of which the first has number `first` in its request.
  __device__ void select(int32_t first, int32_t count) {
    first_ = first;
    count_ = count;
  }

  __device__ void load_positions(const Query& query) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      position_[j] = number(j) < count_ ? query.position(first_ + number(j)) : kNone;
    }
  }

  // Loads the blocks of every position's page; all reads are under way at once.
  __device__ void load_pages(const Query& query) {
    const int32_t pages = query.host_blocks == nullptr ? 0 : query.pages;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int32_t page = query.blocks.size.divide(position_[j]);
      const bool inside = position_[j] >= 0 && page < query.pages;
      const bool mapped = inside && page < pages;
      offset_[j] = inside ? position_[j] - page * query.blocks.shape.size : kNone;
      host_[j] = mapped ? query.host_blocks[page] : 0;
      resident_[j] = mapped ? query.resident_blocks[page] : 0;
    }
  }

  // Settles what is padding, resident or unmapped, and enters the rest into the table, each host row with its
  // lowest reference. Returns how many rows this thread added, and whether it entered any reference.
  __device__ int32_t enter(const Query& query, const LookupTable& table, bool& any) {
    const BlockShape& shape = query.blocks.shape;
    int32_t host_rows[kItems], places[kItems];
    bool more = false;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const bool inside = offset_[j] >= 0, resident = resident_[j] > 0;
      const int32_t row =
          block_row(resident ? resident_[j] : host_[j], resident ? shape.stride : shape.size, offset_[j]);
      found_[j] = !inside ? kPadded : resident ? row : kNone;
      host_rows[j] = inside && !resident ? row : kNone;
      places[j] = table.first_place(host_rows[j]);
      more |= host_rows[j] != kNone;
    }
    any = more;

    // All insertions take a step, until none is left.
    int32_t rows = 0;
    while (more) {
      more = false;
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (host_rows[j] == kNone) continue;
        bool added;
        if (table.try_insert(host_rows[j], places[j], added)) {
          atomicMin(&table.values[places[j]], kFirstReference + number(j));
          found_[j] = wanted(places[j]);
          host_rows[j] = kNone;
          rows += added;
        } else {
          more = true;
        }
      }
    }
    return rows;
  }

  // What became of this thread's j-th reference, which has number(j) among those selected, if real(j).
  __device__ __forceinline__ int32_t number(int j) const {
    return (warp_number() * kItems + j) * kWarp + lane_number();
  }
  __device__ __forceinline__ bool real(int j) const { return number(j) < count_; }
  __device__ __forceinline__ int32_t found(int j) const { return found_[j]; }
  __device__ __forceinline__ bool is_wanted(int j) const { return found_[j] < kPadded; }
  __device__ __forceinline__ int32_t entry(int j) const { return kPadded - 1 - found_[j]; }

 private:
  __device__ static int32_t wanted(int32_t entry) { return kPadded - 1 - entry; }

  int32_t first_, count_;
  int32_t position_[kItems], offset_[kItems], host_[kItems], resident_[kItems], found_[kItems];
};

}  // namespace hisparse::cuda
