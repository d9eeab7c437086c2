// A request's hot slots as the threads of its block see them: each warp has a run of consecutive slots, 32 at
// a time. With kItems > 0 a thread keeps its slots in registers; with 0 it reads them again each time, for
// hot buffers of any size.
//
// | mark         | the slot                                                        |
// |--------------|-----------------------------------------------------------------|
// | kOut         | does not exist, or lies in a block that is not leased           |
// | kNone        | empty, or caches a row that is not asked for                    |
// | a place      | caches the row at this place of the look-up table               |
#pragma once

#include <cstdint>

#include "common/addressing.h"
#include "lookup_table.cuh"
#include "victims.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

constexpr int32_t kOut = -2;

// One request's lines of the hot state.
struct HotRow {
  int32_t* rows;
  int32_t* stamps;
  const int32_t* blocks;
  int32_t slots;
  BlockShape shape;
};

template <int kThreads, int kItems>
class Slots {
 public:
  __device__ explicit Slots(const HotRow& hot) : hot_(hot) {
    items_ = divide_up(hot.slots, kThreads);
    begin_ = warp_number() * items_ * kWarp + lane_number();
  }

  __device__ void load_rows() {
    if constexpr (kItems > 0) each_number([&](int j, int32_t slot) { mark_[j] = row_of(slot); });
  }

  __device__ void load_stamps() {
    if constexpr (kItems > 0) {
      each_number([&](int j, int32_t slot) { stamp_[j] = slot < hot_.slots ? hot_.stamps[slot] : 0; });
    }
  }

  // Tells the look-up table which slots cache its rows; of two with the same row, the first. Returns the
  // smallest stamp of a leased slot, in stamp_order.
  __device__ uint32_t probe(const LookupTable& table) {
    uint32_t low = kNoStamp;
    each_number([&](int j, int32_t slot) {
      const int32_t row = kItems > 0 ? mark_[j] : row_of(slot);
      const int32_t place = row >= 0 ? table.find(row) : kNone;
      if (place != kNone) atomicMin(&table.values[place], static_cast<uint32_t>(slot));
      const int32_t mark = leased(slot) ? place : kOut;
      const int32_t stamp = row < 0 ? 0 : kItems > 0 ? stamp_[j] : stamp_of(slot);
      if (mark != kOut) low = min(low, stamp_order(stamp));
      if constexpr (kItems > 0) {
        mark_[j] = mark;
        stamp_[j] = stamp;
      }
    });
    return low;
  }

  // Calls f(slot, mark, stamp) for all slots in order, whole warps at a time. An empty slot has stamp 0.
  template <class F>
  __device__ void each(const LookupTable& table, F f) const {
    each_number([&](int j, int32_t slot) {
      if constexpr (kItems > 0) {
        f(slot, mark_[j], stamp_[j]);
      } else {
        const int32_t row = row_of(slot);
        f(slot, !leased(slot) ? kOut : row < 0 ? kNone : table.find(row), row < 0 ? 0 : stamp_of(slot));
      }
    });
  }

 private:
  template <class F>
  __device__ void each_number(F f) const {
    if constexpr (kItems > 0) {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (j < items_) f(j, begin_ + j * kWarp);
      }
    } else {
      for (int j = 0; j < items_; ++j) f(j, begin_ + j * kWarp);
    }
  }

  __device__ int32_t row_of(int32_t slot) const { return slot < hot_.slots ? hot_.rows[slot] : kNone; }
  __device__ int32_t stamp_of(int32_t slot) const { return slot < hot_.slots ? hot_.stamps[slot] : 0; }
  __device__ bool leased(int32_t slot) const {
    return slot < hot_.slots && slot_device_row(hot_.blocks, slot, hot_.shape) != kNone;
  }

  HotRow hot_;
  int32_t items_, begin_;
  int32_t mark_[kItems > 0 ? kItems : 1];  // before `probe`: the row
  int32_t stamp_[kItems > 0 ? kItems : 1];
};

}  // namespace hisparse::cuda
