// A request's hot slots as the threads of its block see them: each warp has a run of consecutive slots, 32 at
// a time. With kItems > 0 a thread keeps its slots in registers; with 0 it reads them again each time, for
// hot buffers of any size.
//
// | mark         | the slot                                               | from    |
// |--------------|--------------------------------------------------------|---------|
// | a host row   | caches this row                                        | load    |
// | a place      | caches the row at this place of the look-up table      | probe   |
// | kEmpty       | is empty; from settle on: and free                     | probe   |
// | kNone        | is free: it caches what is not asked for               | settle  |
// | kOut         | is hit, or lies in a block that is not leased          | settle  |
#pragma once

#include <cstdint>

#include "blocks.cuh"
#include "lookup_table.cuh"
#include "victims.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

// One request's lines of the hot state. With kFewBlocks, at most kBases, the hot region's blocks are looked
// up in shared memory.
constexpr int32_t kBases = 1024;

template <bool kFewBlocks>
struct HotRow {
  int32_t* rows;
  int32_t* stamps;
  const int32_t* hot_blocks;
  int32_t slots;
  const Blocks& blocks;
  int32_t* bases;  // shared: where the blocks begin

  static constexpr int32_t kNotLeased = INT32_MIN;  // plus any offset: below 0

  // For the whole block; device_row may be asked after the next barrier.
  template <int kThreads>
  __device__ __forceinline__ void load_bases() const {
    const int32_t count = slots > 0 ? blocks.size.divide(slots - 1) + 1 : 0;
#pragma unroll 1
    for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
      const int32_t row = block_row(hot_blocks[i], blocks.shape.stride, 0);
      bases[i] = row == kNone ? kNotLeased : row;
    }
  }

  __device__ __forceinline__ int32_t row(int32_t slot) const { return slot < slots ? rows[slot] : kNone; }
  __device__ __forceinline__ int32_t stamp(int32_t slot) const { return slot < slots ? stamps[slot] : 0; }
  // kNone when its block is not leased, or the row is beyond int32.
  __device__ __forceinline__ int32_t device_row(int32_t slot) const {
    const int32_t block = blocks.size.divide(slot), offset = slot - block * blocks.shape.size;
    if (!kFewBlocks) return block_row(hot_blocks[block], blocks.shape.stride, offset);
    return max(static_cast<int32_t>(static_cast<uint32_t>(bases[block]) + offset), kNone);
  }
  __device__ __forceinline__ bool leased(int32_t slot) const {
    return slot < slots && device_row(slot) != kNone;
  }
};

// kItems > 0.
template <int kThreads, int kItems, class HotRow>
class Slots {
 public:
  __device__ explicit Slots(const HotRow& hot) : hot_(hot) {}

  __device__ void load() {
#pragma unroll
    for (int j = 0; j < kItems; ++j) mark_[j] = hot_.row(number(j));
    if (kStampsAtOnce) {
#pragma unroll
      for (int j = 0; j < kItems; ++j) stamp_[j] = hot_.stamp(number(j));
    } else {
      block_prefetch(hot_.stamps, int64_t{hot_.slots} * sizeof(int32_t));
    }
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
      if (places[j] == LookupTable::kFurther) places[j] = table.find_further(mark_[j]);
      mark_[j] = places[j];
      if (mark_[j] >= 0) {
        hits += atomicMin(&table.values[mark_[j]], static_cast<uint32_t>(number(j))) >= kFirstReference;
      }
    }
    return hits;
  }

  // Tells hits, free slots and others apart, and gives hits the stamp `now`.
  __device__ void settle(const LookupTable& table, int32_t now) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const bool leased = hot_.leased(number(j));
      const bool hit = mark_[j] >= 0 && table.values[max(mark_[j], 0)] == static_cast<uint32_t>(number(j));
      if (hit && leased) hot_.stamps[number(j)] = now;
      mark_[j] = hit || !leased ? kOut : mark_[j] == kEmpty ? kEmpty : kNone;
    }
  }

  // Before `each`: stamps are only needed when something is missing.
  __device__ void load_stamps() {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (!kStampsAtOnce && mark_[j] == kNone) stamp_[j] = hot_.stamps[number(j)];
      if (mark_[j] != kNone) stamp_[j] = 0;
    }
  }

  // Calls f(slot, whether it is free, stamp) for all slots in order, whole warps at a time.
  template <class F>
  __device__ __forceinline__ void each(const LookupTable&, F f) const {
#pragma unroll
    for (int j = 0; j < kItems; ++j) f(number(j), mark_[j] != kOut, stamp_[j]);
  }

 private:
  static constexpr int32_t kOut = -2, kEmpty = -3;
  static constexpr bool kStampsAtOnce = kItems <= 4;  // more would take too many registers

  __device__ __forceinline__ int32_t number(int j) const {
    return (warp_number() * kItems + j) * kWarp + lane_number();
  }

  HotRow hot_;
  int32_t mark_[kItems], stamp_[kItems];
};

// Any number of slots: nothing is kept, and each look at a slot reads it and its marks again.
template <int kThreads, class HotRow>
class Slots<kThreads, 0, HotRow> {
 public:
  __device__ explicit Slots(const HotRow& hot) : hot_(hot), items_(divide_up(hot.slots, kThreads)) {}

  __device__ void load() {}
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

  __device__ void settle(const LookupTable& table, int32_t now) {
    each_number([&](int32_t slot) {
      if (hot_.leased(slot) && is_hit(table, slot)) hot_.stamps[slot] = now;
    });
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
