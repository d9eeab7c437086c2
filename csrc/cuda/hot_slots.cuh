// A request's hot slots as the threads of its block see them, in groups of four: each warp has a run of
// groups, one a lane at a time. With kItems > 0 a thread keeps its slots in registers, read a group at once;
// with 0 it reads them again each time, for hot buffers of any size.
//
// | mark         | the slot                                               | from    |
// |--------------|--------------------------------------------------------|---------|
// | a host row   | caches this row                                        | load    |
// | a place      | caches the row at this place of the look-up table      | probe   |
// | kEmpty       | is empty; from settle on: and free                     | probe   |
// | kNone        | is free: it caches what is not asked for               | probe   |
// | kOut         | is none, or in a block that is not leased; a hit that  | settle  |
// |              | had to be looked at: others keep their place           |         |
#pragma once

#include <cstdint>

#include "blocks.cuh"
#include "lookup_table.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

constexpr int kSlotGroup = 4;

// What is told of the hot buffer in shared memory, for all threads.
struct HotNotes {
  static constexpr int kBlocks = 1024;  // as many as a block may have threads

  int32_t bases[kBlocks];  // where slot 0 would be if all hot blocks lay where this one does
  int32_t some_unleased;   // whether any block is not leased
  int32_t twice;           // whether any row asked for is cached twice
};

// The stamp of what is not free. A free slot may have it, too.
constexpr int32_t kNever = INT32_MAX;

// The slots of a thread, of which it has kItems.
template <int kThreads, int kItems>
struct SlotRun {
  static constexpr int kGroups = kItems / kSlotGroup;

  __device__ __forceinline__ static int32_t number(int j) {
    return ((warp_number() * kGroups + j / kSlotGroup) * kWarp + lane_number()) * kSlotGroup + j % kSlotGroup;
  }

  // `beyond` for what is not one of the `slots` of a line.
  __device__ __forceinline__ static void read(const int32_t* line, int32_t slots, int32_t beyond,
                                              int32_t (&numbers)[kItems]) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) numbers[j] = beyond;
#pragma unroll
    for (int j = 0; j < kItems; j += kSlotGroup) {
      if (number(j) >= slots) continue;
      read_vector<kSlotGroup>(line + static_cast<uint32_t>(number(j)), numbers + j);
    }
  }
};

// One request's lines of the hot state. kFewBlocks: not more hot blocks than threads, which note where they
// begin.
template <bool kFewBlocks>
struct HotRow {
  int32_t* rows;
  int32_t* stamps;
  const int32_t* hot_blocks;
  int32_t slots, block_count;
  const Blocks& blocks;
  HotNotes& notes;

  static constexpr int32_t kNotLeased = INT32_MIN;  // plus any slot: below 0

  // The hot block with this thread's number.
  __device__ __forceinline__ int32_t load_block() const {
    return threadIdx.x < block_count ? hot_blocks[threadIdx.x] : 0;
  }
  // Notes it, a barrier after the notes were cleared; they may be read after the next one.
  __device__ __forceinline__ void note_block(int32_t block) const {
    if (threadIdx.x >= block_count) return;
    const int32_t first = blocks.device.row(block, 0);
    const auto first_slot = static_cast<int32_t>(threadIdx.x) * blocks.size.value;
    // The last row of a block may be beyond int32, too.
    if (blocks.device.row(block, blocks.size.value - 1) == kNone) notes.some_unleased = true;
    notes.bases[threadIdx.x] = first == kNone ? kNotLeased : first - first_slot;
  }

  // kNone when its block is not leased, or the row is beyond int32.
  __device__ __forceinline__ int32_t device_row(int32_t slot) const {
    const int32_t block = blocks.size.divide(slot);
    if (!kFewBlocks) return blocks.device.row(hot_blocks[block], slot - block * blocks.size.value);
    return max(static_cast<int32_t>(static_cast<uint32_t>(notes.bases[block]) + slot), kNone);
  }

  // Leaves the number of a slot at the place of its row, if that is >= 0; of two with the same row, the
  // lower. Returns whether it met another.
  __device__ __forceinline__ static bool leave(const LookupTable& table, int32_t place, int32_t slot) {
    return minimum_if_not_negative(place, table.values[place], slot, kMissing) != kMissing;
  }
  // Whether the number left at the place of its row is this slot's.
  __device__ __forceinline__ bool is_left(const LookupTable& table, int32_t place, int32_t slot) const {
    return !notes.twice || table.values[place] == static_cast<uint32_t>(slot);
  }
};

// kItems > 0: all slots lie in whole groups. kAlone: no other block gives slots of the same line new stamps.
template <int kThreads, int kItems, class HotRow, bool kAlone>
class Slots : SlotRun<kThreads, kItems> {
  using SlotRun<kThreads, kItems>::number;

 public:
  __device__ __forceinline__ void load(const HotRow& hot) { this->read(hot.rows, hot.slots, kNone, mark_); }
  __device__ __forceinline__ void load_stamps(const HotRow& hot) {
    this->read(hot.stamps, hot.slots, kNever, stamp_);
  }

  // Looks for the row of each slot in the table, and leaves the slot there.
  __device__ __forceinline__ void probe(const HotRow& hot, const LookupTable& table) {
    bool twice = false;
#pragma unroll
    for (int first = 0; first < kItems; first += kSlotGroup) {
      const bool real = number(first) < hot.slots;
      const int32_t without_row = real ? kEmpty : kOut;
      int32_t* marks = mark_ + first;
      some_empty_ |= real && (marks[0] | marks[1] | marks[2] | marks[3]) < 0;
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
        marks[v] = marks[v] < 0 ? without_row : places[v];
        twice |= hot.leave(table, marks[v], number(first + v));
      }
    }
    if (twice) hot.notes.twice = true;
  }

  // Tells hits, free slots and others apart, and gives hits the stamp `now`.
  __device__ __forceinline__ void settle(const HotRow& hot, const LookupTable& table, int32_t now) {
    if (!hot.notes.twice && !hot.notes.some_unleased) {
#pragma unroll
      for (int first = 0; first < kItems; first += kSlotGroup) {
        const int32_t* marks = mark_ + first;
        const bool any = (marks[0] & marks[1] & marks[2] & marks[3]) >= 0;
        int32_t stamps[kSlotGroup];
#pragma unroll
        for (int v = 0; v < kSlotGroup; ++v) {
          const bool hit = marks[v] >= 0;
          stamps[v] = hit ? now : stamp_[first + v];
          if (!kAlone && hit) hot.stamps[static_cast<uint32_t>(number(first + v))] = now;
          if (hit) stamp_[first + v] = kNever;
        }
        if (kAlone && any)
          write_vector<kSlotGroup>(stamps, hot.stamps + static_cast<uint32_t>(number(first)));
      }
    } else {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        const bool leased = number(j) < hot.slots && hot.device_row(number(j)) != kNone;
        const bool hit = mark_[j] >= 0 && hot.is_left(table, mark_[j], number(j));
        if (hit && leased) hot.stamps[number(j)] = now;
        mark_[j] = hit || !leased ? kOut : min(mark_[j], kNone);
        if (mark_[j] == kOut) stamp_[j] = kNever;
      }
    }
    if (some_empty_) {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (mark_[j] == kEmpty) stamp_[j] = 0;
      }
    }
  }

  // Instead of probe and settle, for the slots that no block has hit, once all have settled.
  __device__ __forceinline__ void load_free(const HotRow& hot, int32_t now) {
#pragma unroll
    for (int first = 0; first < kItems; first += kSlotGroup) {
      const bool real = number(first) < hot.slots;
      const auto* group = reinterpret_cast<const int4*>(hot.rows + static_cast<uint32_t>(number(first)));
      const int4 rows = real ? __ldcg(group) : make_int4(kNone, kNone, kNone, kNone);
      group = reinterpret_cast<const int4*>(hot.stamps + static_cast<uint32_t>(number(first)));
      const int4 stamps = real ? __ldcg(group) : rows;
      set_free(hot, now, first, rows.x, stamps.x);
      set_free(hot, now, first + 1, rows.y, stamps.y);
      set_free(hot, now, first + 2, rows.z, stamps.z);
      set_free(hot, now, first + 3, rows.w, stamps.w);
    }
  }

  // From settle on: stamps by which free slots are given up; kNever for the others.
  __device__ __forceinline__ const int32_t (&stamps() const)[kItems] { return stamp_; }

  // Calls f(first slot, free(v), stamps) for all groups in order, a warp's at a time.
  template <class F>
  __device__ __forceinline__ void each_group(const HotRow&, const LookupTable&, F f) const {
#pragma unroll
    for (int j = 0; j < kItems; j += kSlotGroup) {
      f(number(j), [&](int v) { return mark_[j + v] < 0 && mark_[j + v] != kOut; }, stamp_ + j);
    }
  }

 private:
  static constexpr int32_t kOut = -2, kEmpty = -3;

  __device__ __forceinline__ void set_free(const HotRow& hot, int32_t now, int j, int32_t row,
                                           int32_t stamp) {
    const bool leased =
        number(j) < hot.slots && (!hot.notes.some_unleased || hot.device_row(number(j)) != kNone);
    const bool free = leased && (row < 0 || stamp != now);
    mark_[j] = free ? kNone : kOut;
    stamp_[j] = free ? row < 0 ? 0 : stamp : kNever;
  }

  bool some_empty_ = false;
  int32_t mark_[kItems], stamp_[kItems];
};

// Any number of slots: nothing is kept, and each look at a slot reads it and its marks again.
template <int kThreads, class HotRow, bool kAlone>
class Slots<kThreads, 0, HotRow, kAlone> {
 public:
  __device__ void load(const HotRow&) {}
  __device__ void load_stamps(const HotRow&) {}

  __device__ void probe(const HotRow& hot, const LookupTable& table) {
    each_slot(hot, [&](int32_t slot) {
      const int32_t place = place_of(hot, table, slot);
      if (hot.leave(table, place, slot)) hot.notes.twice = true;
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
