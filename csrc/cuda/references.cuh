// A request's references, up to kItems a thread at a time: each warp has a run of consecutive ones, in the
// order (query row, column), kVector of each lane after the other.
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
#include "global_memory.cuh"
#include "lookup_table.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

// Where the references of one request are found, and the tables they are looked up in.
struct Query {
  const Lines<const int32_t>& topk;
  const Divisor& columns;
  const Blocks& blocks;
  int32_t first_row;
  const int32_t* host_blocks;
  const int32_t* resident_blocks;
  int32_t pages;   // what is beyond is padding
  int32_t mapped;  // how many of the pages have entries: all, or none when the request has no state row

  __device__ __forceinline__ const int32_t* position(int32_t reference) const {
    const int32_t row = reference < columns.value ? 0 : columns.divide(reference);
    return topk.line(first_row + row) + static_cast<uint32_t>(reference - row * columns.value);
  }
};

constexpr int32_t kPadded = -2;

template <int kItems_, int kVector_>
class References {
 public:
  static constexpr int kItems = kItems_, kVector = kVector_, kGroups = kItems / kVector;

  // The next references: `count` of them, of which the first has number `first` in its request.
  __device__ __forceinline__ void select(int32_t first, int32_t count) {
    first_ = first;
    count_ = count;
  }

  __device__ __forceinline__ void load_positions(const Query& query) {
#pragma unroll
    for (int j = 0; j < kItems; j += kVector) {
      read_vector_if<kVector>(real(j), query.position(first_ + number(j)), kNone, position_ + j);
    }
  }

  // Loads the blocks of every position's page; all reads are under way at once.
  __device__ __forceinline__ void load_pages(const Query& query) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int32_t page = query.blocks.size.divide(position_[j]);
      const bool inside = position_[j] >= 0 && page < query.pages;
      const bool mapped = position_[j] >= 0 && page < query.mapped;
      offset_[j] = inside ? position_[j] - page * query.blocks.size.value : kNone;
      host_[j] = mapped ? query.host_blocks[static_cast<uint32_t>(page)] : 0;
      resident_[j] = mapped ? query.resident_blocks[static_cast<uint32_t>(page)] : 0;
    }
  }

  // Settles what is padding, resident or unmapped, and enters the host rows of the rest into the table, as
  // missing. Returns whether this thread has any.
  __device__ __forceinline__ bool enter(const Query& query, const LookupTable& table) {
    return enter_keys(table, [&](int j) {
      const bool inside = offset_[j] >= 0, resident = resident_[j] > 0;
      const BlockRows& rows = resident ? query.blocks.device : query.blocks.host;
      const int32_t row = rows.row(resident ? resident_[j] : host_[j], offset_[j]);
      found_[j] = !inside ? kPadded : resident ? row : kNone;
      return inside && !resident ? row : kNone;
    });
  }

  // Instead, for references that the parts of a request have left as ~host row among `left`: enters those.
  __device__ __forceinline__ void enter_left(const int32_t* left, const LookupTable& table) {
    int32_t rows[kItems];
#pragma unroll
    for (int j = 0; j < kItems; j += kVector) {
      static_assert(kVector == sizeof(int4) / sizeof(int32_t));
      const auto* four = reinterpret_cast<const int4*>(left + number(j));
      const int4 numbers = real(j) ? __ldcg(four) : make_int4(kNone, kNone, kNone, kNone);
      rows[j] = numbers.x, rows[j + 1] = numbers.y, rows[j + 2] = numbers.z, rows[j + 3] = numbers.w;
    }
    enter_keys(table, [&](int j) {
      found_[j] = kNone;
      return rows[j] < kNone ? ~rows[j] : kNone;
    });
  }

  // What became of this thread's j-th reference, which has number(j) among those selected, if real(j).
  __device__ __forceinline__ int32_t number(int j) const {
    return ((warp_number() * kGroups + j / kVector) * kWarp + lane_number()) * kVector + j % kVector;
  }
  __device__ __forceinline__ bool real(int j) const { return number(j) < count_; }
  __device__ __forceinline__ int32_t found(int j) const { return found_[j]; }
  __device__ __forceinline__ bool is_wanted(int j) const { return found_[j] < kPadded; }
  __device__ __forceinline__ int32_t entry(int j) const { return kPadded - 1 - found_[j]; }

  __device__ __forceinline__ void write_all(int32_t value, int32_t* to) const {
    int32_t values[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j) values[j] = value;
    write(values, to);
  }

  // Writes a value for each reference, from to[first number] on.
  __device__ __forceinline__ void write(const int32_t (&values)[kItems], int32_t* to) const {
#pragma unroll
    for (int j = 0; j < kItems; j += kVector) {
      if (real(j)) write_vector<kVector>(values + j, to + number(j));
    }
  }

 private:
  // Enters key_of(j) for each reference that has a key. Returns whether any has.
  template <class KeyOf>
  __device__ __forceinline__ bool enter_keys(const LookupTable& table, KeyOf key_of) {
    int32_t keys[kItems], places[kItems], before[kItems], highest = kNone;
    uint32_t left = 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      keys[j] = key_of(j);
      places[j] = keys[j] >= 0 ? table.first_place(keys[j]) : table.spare_place();
      before[j] = table.claim(keys[j], places[j]);
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (before[j] < 0) table.set_missing(places[j]);
      if (keys[j] >= 0) found_[j] = wanted(places[j]);
      if (before[j] >= 0 && before[j] != keys[j]) left |= 1u << j;
      highest = max(highest, keys[j]);
    }
    // Nearly all enter at once; a few go on, one after the other.
    for (; left != 0; left &= left - 1) {
      const int item = __ffs(left) - 1;
      const int32_t key = picked<kItems>(keys, item);
      int32_t attempt = 0, place, there;
      do {
        place = table.place(key, ++attempt);
        there = table.claim(key, place);
      } while (there >= 0 && there != key);
      if (there < 0) table.set_missing(place);
#pragma unroll
      for (int j = 0; j < kItems; ++j) found_[j] = j == item ? wanted(place) : found_[j];
    }
    return highest >= 0;
  }

  __device__ __forceinline__ static int32_t wanted(int32_t entry) { return kPadded - 1 - entry; }

  int32_t first_, count_;
  int32_t position_[kItems], offset_[kItems], host_[kItems], resident_[kItems], found_[kItems];
};

}  // namespace hisparse::cuda
