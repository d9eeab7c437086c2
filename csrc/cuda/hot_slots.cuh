// A request's hot slots as the threads of its block see them, in groups of four: each warp has a run of
// groups, one a lane at a time. With kItems > 0 a thread keeps its slots in registers, read a group at once;
// with 0 it reads them again each time, for hot buffers of any size.
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
#include "warp.cuh"

namespace hisparse::cuda {

constexpr int kSlotGroup = 4;

// What is told of the hot buffer in shared memory, for all threads. With at most kBases hot blocks, these are
// looked up here.
constexpr int32_t kBases = 1024;

struct HotNotes {
  int32_t bases[kBases];  // where the blocks begin
  int32_t some_unleased;  // whether any block is not leased
  int32_t twice;          // whether any row asked for is cached twice
};

// One request's lines of the hot state.
template <bool kFewBlocks>
struct HotRow {
  int32_t* rows;
  int32_t* stamps;
  const int32_t* hot_blocks;
  int32_t slots, block_count;
  const Blocks& blocks;
  HotNotes& notes;

  static constexpr int32_t kNotLeased = INT32_MIN;  // plus any offset: below 0

  // With kFewBlocks, for the whole block, a barrier after the notes were cleared; they may be read after the
  // next one.
  template <int kThreads>
  __device__ __forceinline__ void load_bases() const {
#pragma unroll 1
    for (auto i = static_cast<int32_t>(threadIdx.x); i < block_count; i += kThreads) {
      const int32_t base = blocks.device.row(hot_blocks[i], 0);
      // The last row of a block may be beyond int32, too.
      if (blocks.device.row(hot_blocks[i], blocks.size.value - 1) == kNone) notes.some_unleased = true;
      notes.bases[i] = base == kNone ? kNotLeased : base;
    }
  }

  // kNone when its block is not leased, or the row is beyond int32.
  __device__ __forceinline__ int32_t device_row(int32_t slot) const {
    const int32_t block = blocks.size.divide(slot), offset = slot - block * blocks.size.value;
    if (!kFewBlocks) return blocks.device.row(hot_blocks[block], offset);
    return max(static_cast<int32_t>(static_cast<uint32_t>(notes.bases[block]) + offset), kNone);
  }

  // Leaves the number of a slot at the place of its row, if any; of two with the same row, the lower.
  __device__ __forceinline__ void leave(const LookupTable& table, bool found, int32_t place,
                                        int32_t slot) const {
    const uint32_t before = minimum_if(found, table.values[place], slot, kMissing);
    if (before != kMissing) notes.twice = true;
  }
  // Whether the number left at the place of its row is this slot's.
  __device__ __forceinline__ bool is_left(const LookupTable& table, int32_t place, int32_t slot) const {
    return !notes.twice || table.values[place] == static_cast<uint32_t>(slot);
  }
};

// kItems > 0: all slots lie in whole groups.
template <int kThreads, int kItems, class HotRow>
class Slots {
 public:
  __device__ __forceinline__ void load(const HotRow& hot) {
    read(hot, hot.rows, mark_);
    if (kStampsAtOnce) {
      read(hot, hot.stamps, stamp_);
    } else {
      block_prefetch(hot.stamps, int64_t{hot.slots} * sizeof(int32_t));
    }
  }

  // Looks for the row of each slot in the table, and leaves the slot there.
  __device__ __forceinline__ void probe(const HotRow& hot, const LookupTable& table) {
#pragma unroll
    for (int first = 0; first < kItems; first += kSlotGroup) {
      int32_t* marks = mark_ + first;
      int32_t places[kSlotGroup];
      bool further = false;
#pragma unroll
      for (int v = 0; v < kSlotGroup; ++v) {
        places[v] = table.look(marks[v], table.first_group(marks[v]));
        further |= places[v] == LookupTable::kFurther;
      }
      if (further) {
#pragma unroll
        for (int v = 0; v < kSlotGroup; ++v) {
          if (places[v] == LookupTable::kFurther) places[v] = table.find_further(marks[v]);
        }
      }
#pragma unroll
      for (int v = 0; v < kSlotGroup; ++v) {
        marks[v] = marks[v] < 0 ? kEmpty : places[v];
        hot.leave(table, marks[v] >= 0, marks[v], number(first + v));
      }
    }
  }

  // Tells hits, free slots and others apart, and gives hits the stamp `now`.
  __device__ __forceinline__ void settle(const HotRow& hot, const LookupTable& table, int32_t now) {
    if (!hot.notes.twice && !hot.notes.some_unleased) {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        const bool real = number(j - j % kSlotGroup) < hot.slots, hit = mark_[j] >= 0;
        if (hit) hot.stamps[static_cast<uint32_t>(number(j))] = now;
        mark_[j] = hit || !real ? kOut : mark_[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        const bool leased = number(j) < hot.slots && hot.device_row(number(j)) != kNone;
        const bool hit = mark_[j] >= 0 && hot.is_left(table, mark_[j], number(j));
        if (hit && leased) hot.stamps[number(j)] = now;
        mark_[j] = hit || !leased ? kOut : min(mark_[j], kNone);
      }
    }
  }

  // Before each_group: stamps are only needed when something is missing.
  __device__ __forceinline__ void load_stamps(const HotRow& hot) {
    if (!kStampsAtOnce) read(hot, hot.stamps, stamp_);
#pragma unroll
    for (int j = 0; j < kItems; ++j) stamp_[j] = mark_[j] == kEmpty ? 0 : stamp_[j];
  }

  // Calls f(first slot, free(v), stamps) for all groups in order, a warp's at a time.
  template <class F>
  __device__ __forceinline__ void each_group(const HotRow&, const LookupTable&, F f) const {
#pragma unroll
    for (int j = 0; j < kItems; j += kSlotGroup) {
      f(number(j), [&](int v) { return mark_[j + v] != kOut; }, stamp_ + j);
    }
  }

 private:
  static constexpr int32_t kOut = -2, kEmpty = -3;
  static constexpr int kGroups = kItems / kSlotGroup;
  static constexpr bool kStampsAtOnce = kGroups == 1;  // more would take too many registers

  __device__ __forceinline__ int32_t number(int j) const {
    return ((warp_number() * kGroups + j / kSlotGroup) * kWarp + lane_number()) * kSlotGroup + j % kSlotGroup;
  }

  __device__ __forceinline__ void read(const HotRow& hot, const int32_t* line,
                                       int32_t (&numbers)[kItems]) const {
#pragma unroll
    for (int j = 0; j < kItems; ++j) numbers[j] = kNone;
#pragma unroll
    for (int j = 0; j < kItems; j += kSlotGroup) {
      if (number(j) >= hot.slots) continue;
      read_vector<kSlotGroup>(line + static_cast<uint32_t>(number(j)), numbers + j);
    }
  }

  int32_t mark_[kItems], stamp_[kItems];
};

// Any number of slots: nothing is kept, and each look at a slot reads it and its marks again.
template <int kThreads, class HotRow>
class Slots<kThreads, 0, HotRow> {
 public:
  __device__ void load(const HotRow&) {}
  __device__ void load_stamps(const HotRow&) {}

  __device__ void probe(const HotRow& hot, const LookupTable& table) {
    each_slot(hot, [&](int32_t slot) {
      const int32_t place = place_of(hot, table, slot);
      if (place != kNone) hot.leave(table, true, place, slot);
    });
  }

  __device__ void settle(const HotRow& hot, const LookupTable& table, int32_t now) {
    each_slot(hot, [&](int32_t slot) {
      if (hot.device_row(slot) != kNone && is_hit(hot, table, slot)) hot.stamps[slot] = now;
    });
  }

  template <class F>
  __device__ __forceinline__ void each_group(const HotRow& hot, const LookupTable& table, F f) const {
    each_first(hot, [&](int32_t first) {
      bool are_free[kSlotGroup];
      int32_t stamps[kSlotGroup];
#pragma unroll
      for (int v = 0; v < kSlotGroup; ++v) {
        const int32_t slot = first + v;
        are_free[v] = slot < hot.slots && hot.device_row(slot) != kNone && !is_hit(hot, table, slot);
        stamps[v] = are_free[v] && hot.rows[slot] >= 0 ? hot.stamps[slot] : 0;
      }
      f(first, [&](int v) { return are_free[v]; }, stamps);
    });
  }

 private:
  template <class F>
  __device__ __forceinline__ void each_first(const HotRow& hot, F f) const {
    const int32_t groups = divide_up(hot.slots, kThreads * kSlotGroup);
#pragma unroll 1
    for (int32_t g = 0; g < groups; ++g) {
      f(((warp_number() * groups + g) * kWarp + lane_number()) * kSlotGroup);
    }
  }

  template <class F>
  __device__ __forceinline__ void each_slot(const HotRow& hot, F f) const {
    each_first(hot, [&](int32_t first) {
#pragma unroll 1
      for (int32_t slot = first; slot < min(first + kSlotGroup, hot.slots); ++slot) f(slot);
    });
  }

  __device__ int32_t place_of(const HotRow& hot, const LookupTable& table, int32_t slot) const {
    const int32_t row = hot.rows[slot];
    return row >= 0 ? table.find(row) : kNone;
  }

  __device__ bool is_hit(const HotRow& hot, const LookupTable& table, int32_t slot) const {
    const int32_t place = place_of(hot, table, slot);
    return place != kNone && hot.is_left(table, place, slot);
  }
};

}  // namespace hisparse::cuda
