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

#include "common/addressing.h"
#include "lookup_table.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

// Where the references of one request are found, and the tables they are looked up in.
struct Query {
  IndexMatrix topk;
  int64_t first_row;
  const int32_t* host_blocks;  // null when the request has no state row
  const int32_t* resident_blocks;
  int32_t pages;
  BlockShape shape;

  __device__ int32_t columns() const { return static_cast<int32_t>(topk.columns); }
};

constexpr int32_t kPadded = -2;
constexpr uint32_t kFirstReference = 1u << 30;

template <int kThreads, int kItems>
class References {
 public:
  static constexpr int32_t kChunk = kThreads * kItems;

  // The next references: `count` of them, of which the first has number `first` in its request.
  __device__ void select(int32_t first, int32_t count) {
    first_ = first;
    count_ = count;
    items_ = divide_up(count, kThreads);
    begin_ = warp_number() * items_ * kWarp + lane_number();
  }

  __device__ void load_positions(const Query& query) {
    each_number(
        [&](int j, int32_t i) { position_[j] = i < count_ ? position_at(query, first_ + i) : kNone; });
  }

  // Loads the blocks of every position's page; all reads are under way at once.
  __device__ void load_pages(const Query& query) {
    each_number([&](int j, int32_t) {
      const int32_t position = position_[j], page = position / query.shape.size;
      const bool inside = position >= 0 && page < query.pages;
      const bool mapped = inside && query.host_blocks != nullptr;
      offset_[j] = inside ? position - page * query.shape.size : kPadded;
      host_[j] = mapped ? query.host_blocks[page] : 0;
      resident_[j] = mapped ? query.resident_blocks[page] : 0;
    });
  }

  // Settles what is padding, resident or unmapped, and enters the rest into the table. Returns whether
  // anything was entered.
  __device__ bool enter(const Query& query, const LookupTable& table) {
    bool any = false;
    each_number([&](int j, int32_t i) {
      found_[j] = offset_[j] == kPadded ? kPadded : kNone;
      if (i >= count_ || offset_[j] == kPadded) return;
      const Place place = place_on_page(host_[j], resident_[j], offset_[j], query.shape);
      if (place.kind == Place::kResident) {
        found_[j] = place.row;
      } else if (place.kind == Place::kHost) {
        const int32_t entry = table.insert(place.row);
        atomicMin(&table.values[entry], kFirstReference + i);
        found_[j] = wanted(entry);
        any = true;
      }
    });
    return any;
  }

  // Calls f(reference, whether it exists, found) for all references in order, whole warps at a time.
  template <class F>
  __device__ void each(F f) const {
    each_number([&](int j, int32_t i) { f(i, i < count_, found_[j]); });
  }

  __device__ static bool is_wanted(int32_t found) { return found < kPadded; }
  __device__ static int32_t entry_of(int32_t found) { return kPadded - 1 - found; }

 private:
  __device__ static int32_t wanted(int32_t entry) { return kPadded - 1 - entry; }

  __device__ static int32_t position_at(const Query& query, int32_t reference) {
    const int32_t row = reference < query.columns() ? 0 : reference / query.columns();
    return query.topk.row(query.first_row + row)[reference - row * query.columns()];
  }

  template <class F>
  __device__ void each_number(F f) const {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (j < items_) f(j, begin_ + j * kWarp);
    }
  }

  int32_t first_, count_, items_, begin_;
  int32_t position_[kItems], offset_[kItems], host_[kItems], resident_[kItems], found_[kItems];
};

}  // namespace hisparse::cuda
