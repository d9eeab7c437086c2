// A request's hot slots as the threads of its block see them: each warp has a run of consecutive slots, 32 at
// a time. With kItems > 0 a thread keeps its slots in registers; with 0 it reads them again each time, for
// hot buffers of any size.
//
// | mark         | the slot                                               | from    |
// |--------------|--------------------------------------------------------|---------|
// | a host row   | caches this row                                        | load    |
// | a place      | caches the row at this place of the look-up table      | probe   |
// | kEmpty       | is empty                                               | probe   |
// | kNone        | is free: empty, or caches what is not asked for        | settle  |
// | kOut         | is hit, or lies in a block that is not leased          | settle  |
#pragma once

#include <cstdint>

#include "blocks.cuh"
#include "lookup_table.cuh"
#include "victims.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

// One request's lines of the hot state.
struct HotRow {
  int32_t* rows;
  int32_t* stamps;
  const int32_t* hot_blocks;
  int32_t slots;
  const Blocks& blocks;

  __device__ __forceinline__ int32_t row(int32_t slot) const { return slot < slots ? rows[slot] : kNone; }
  __device__ __forceinline__ int32_t stamp(int32_t slot) const { return slot < slots ? stamps[slot] : 0; }
  __device__ __forceinline__ int32_t device_row(int32_t slot) const {
    return blocks.slot_row(hot_blocks, slot);
  }
  __device__ __forceinline__ bool leased(int32_t slot) const {
    return slot < slots && device_row(slot) != kNone;
  }
};

// kItems > 0.
template <int kThreads, int kItems>
class Slots {
 public:
  __device__ explicit Slots(const HotRow& hot) : hot_(hot) {}

  __device__ void load_rows() {
#pragma unroll
    for (int j = 0; j < kItems; ++j) mark_[j] = hot_.row(number(j));
  }

  __device__ void load_stamps() {
#pragma unroll
    for (int j = 0; j < kItems; ++j) stamp_[j] = hot_.stamp(number(j));
  }

  // Leaves the number of each slot whose row is in the table there; of two with the same row, the lower.
  // Returns for how many rows this thread was the first.
  __device__ int32_t probe(const LookupTable& table) {
    int32_t places[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int32_t row = max(mark_[j], 0);
      const int32_t place = table.look(row, table.first_group(row));
      places[j] = mark_[j] < 0 ? kEmpty : place;
    }
    int32_t hits = 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (places[j] == LookupTable::kFurther) places[j] = table.find(mark_[j]);
      mark_[j] = places[j];
      if (mark_[j] >= 0) {
        hits += atomicMin(&table.values[mark_[j]], static_cast<uint32_t>(number(j))) >= kFirstReference;
      }
    }
    return hits;
  }

  // Tells hits, free slots and others apart, and gives hits the stamp `now`. Returns the smallest stamp of a
  // free slot, in stamp_order.
  __device__ uint32_t settle(const LookupTable& table, int32_t now) {
    uint32_t low = kNoStamp;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const bool leased = hot_.leased(number(j));
      const bool hit = mark_[j] >= 0 && table.values[max(mark_[j], 0)] == static_cast<uint32_t>(number(j));
      if (mark_[j] == kEmpty) stamp_[j] = 0;
      if (hit && leased) hot_.stamps[number(j)] = now;
      mark_[j] = leased && !hit ? kNone : kOut;
      if (mark_[j] == kNone) low = min(low, stamp_order(stamp_[j]));
    }
    return low;
  }

  // Calls f(slot, whether it is free, stamp) for all slots in order, whole warps at a time.
  template <class F>
  __device__ __forceinline__ void each(const LookupTable&, F f) const {
#pragma unroll
    for (int j = 0; j < kItems; ++j) f(number(j), mark_[j] == kNone, stamp_[j]);
  }

 private:
  static constexpr int32_t kOut = -2, kEmpty = -3;

  __device__ __forceinline__ int32_t number(int j) const {
    return (warp_number() * kItems + j) * kWarp + lane_number();
  }

  HotRow hot_;
  int32_t mark_[kItems], stamp_[kItems];
};

// Any number of slots: nothing is kept, and each look at a slot reads it and its marks again.
template <int kThreads>
class Slots<kThreads, 0> {
 public:
  __device__ explicit Slots(const HotRow& hot) : hot_(hot), items_(divide_up(hot.slots, kThreads)) {}

  __device__ void load_rows() {}
  __device__ void load_stamps() {}

  __device__ int32_t probe(const LookupTable& table) {
    int32_t hits = 0;
    each_number([&](int32_t slot) {
      const int32_t place = place_of(table, slot);
      if (place != kNone)
        hits += atomicMin(&table.values[place], static_cast<uint32_t>(slot)) >= kFirstReference;
    });
    return hits;
  }

  __device__ uint32_t settle(const LookupTable& table, int32_t now) {
    uint32_t low = kNoStamp;
    each_number([&](int32_t slot) {
      if (!hot_.leased(slot)) return;
      if (is_hit(table, slot)) {
        hot_.stamps[slot] = now;
      } else {
        low = min(low, stamp_order(stamp_of(slot)));
      }
    });
    return low;
  }

  template <class F>
  __device__ __forceinline__ void each(const LookupTable& table, F f) const {
    each_number([&](int32_t slot) { f(slot, hot_.leased(slot) && !is_hit(table, slot), stamp_of(slot)); });
  }

 private:
  template <class F>
  __device__ __forceinline__ void each_number(F f) const {
    for (int32_t j = 0; j < items_; ++j) f((warp_number() * items_ + j) * kWarp + lane_number());
  }

  __device__ int32_t place_of(const LookupTable& table, int32_t slot) const {
    const int32_t row = hot_.row(slot);
    return row >= 0 ? table.find(row) : kNone;
  }

  __device__ bool is_hit(const LookupTable& table, int32_t slot) const {
    const int32_t place = place_of(table, slot);
    return place != kNone && table.values[place] == static_cast<uint32_t>(slot);
  }

  __device__ int32_t stamp_of(int32_t slot) const { return hot_.row(slot) < 0 ? 0 : hot_.stamp(slot); }

  HotRow hot_;
  int32_t items_;
};

}  // namespace hisparse::cuda
