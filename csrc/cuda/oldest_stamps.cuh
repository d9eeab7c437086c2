// Victims in the common case: those whose stamp is one of the kStamps oldest numbers, counted from the oldest
// free slot's. Under LRU each step gives up what one earlier step left, so that more are hardly ever needed.
// Then the next kStamps follow, from note_next on; after a few times victims.cuh chooses among all free
// slots.
//
// A slot's place among the victims: slots with older stamps, then those of the same stamp in warps before, in
// groups of its warp before, in lanes before, and in its lane, all summed up in packed fields, one a stamp.
//
// | step   | reads             | writes            | then    |
// |--------|-------------------|-------------------|---------|
// | note   | stamps            | oldest            | barrier |
// | count  | stamps, oldest    | counts            | barrier |
// | take   | stamps, counts    | slots             | barrier |
#pragma once

#include <cstdint>

#include "hot_slots.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

struct OldestSpace {
  int32_t oldest[kWarp];  // stamp of the free slots of each warp
  uint2 counts[kWarp];    // by warp: slots with stamp 0 and 2, 1 and 3 from the oldest
};

// `stamps` are those of a thread's slots, in groups whose order is that of the warps' runs; kNever = not
// free.
template <int kThreads, int kItems>
class OldestStamps {
 public:
  explicit __device__ __forceinline__ OldestStamps(OldestSpace& space) : space_(space) {}

  __device__ __forceinline__ void note(const int32_t (&stamps)[kItems]) const {
    int32_t oldest = kNever;
#pragma unroll
    for (int j = 0; j < kItems; ++j) oldest = min(oldest, stamps[j]);
    note_in_warp(oldest);
  }

  // Once the oldest are taken, and those older still: the oldest of the others.
  __device__ __forceinline__ void note_next(const int32_t (&stamps)[kItems]) const {
    const int32_t next = min(oldest_, kNever - kStamps) + kStamps;
    int32_t oldest = kNever;
#pragma unroll
    for (int j = 0; j < kItems; ++j) oldest = stamps[j] < next ? oldest : min(oldest, stamps[j]);
    note_in_warp(oldest);
  }

  __device__ __forceinline__ void count(const int32_t (&stamps)[kItems]) {
    const int32_t of_warp = lane_number() < kWarps ? space_.oldest[lane_number()] : kNever;
    oldest_ = __reduce_min_sync(kAllLanes, of_warp);
    uint32_t through[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      through[g] = 0;
#pragma unroll
      for (int v = 0; v < kSlotGroup; ++v) through[g] += one_at(distance(stamps[g * kSlotGroup + v]));
      before_[g] = through[g];
    }
    warp_inclusive_sums(through);
    uint2 counts{0, 0};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      before_[g] = through[g] - before_[g];
      of_group_[g] = __shfl_sync(kAllLanes, through[g], kWarp - 1);
      counts.x += of_group_[g] & kEven;
      counts.y += of_group_[g] >> kBits & kEven;
    }
    if (lane_number() == 0) space_.counts[warp_number()] = counts;
  }

  // Writes the slots in order, slots[taken .. wanted - 1]. Returns how many there are with these stamps.
  __device__ __forceinline__ int32_t take(const int32_t (&stamps)[kItems], int32_t taken, int32_t wanted,
                                          int32_t* slots) {
    // Stamps so near the last number are not told from kNever by their distance.
    if (oldest_ > kNever - kStamps) return 0;
    // Distances are worked out again: with many slots, those of count() would not stay in registers.
    if (kItems > kFewItems) asm volatile("" : "+r"(oldest_));
    const uint2 of_lane = lane_number() < kWarps ? space_.counts[lane_number()] : uint2{0, 0};
    const bool earlier = lane_number() < warp_number();
    const uint32_t all[] = {__reduce_add_sync(kAllLanes, of_lane.x), __reduce_add_sync(kAllLanes, of_lane.y)};
    const uint32_t before[] = {__reduce_add_sync(kAllLanes, earlier ? of_lane.x : 0),
                               __reduce_add_sync(kAllLanes, earlier ? of_lane.y : 0)};
    int32_t first[kStamps];  // place of the warp's first slot with this stamp
    int32_t older = taken;
#pragma unroll
    for (int s = 0; s < kStamps; ++s) {
      const int shift = s / 2 * 2 * kBits;
      first[s] = older + static_cast<int32_t>(before[s % 2] >> shift & kWide);
      older += static_cast<int32_t>(all[s % 2] >> shift & kWide);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint32_t in_warp = before_[g];
#pragma unroll
      for (int j = g * kSlotGroup; j < (g + 1) * kSlotGroup; ++j) {
        const uint32_t far = distance(stamps[j]), shift = kBits * (far % kStamps);
        const int32_t place = picked<kStamps>(first, far) + static_cast<int32_t>(in_warp >> shift & kField);
        in_warp += one_at(far);
        if (far < kStamps && place < wanted) slots[place] = SlotRun<kThreads, kItems>::number(j);
      }
#pragma unroll
      for (int s = 0; s < kStamps; ++s) {
        first[s] += static_cast<int32_t>(of_group_[g] >> (kBits * s) & kField);
      }
    }
    return older - taken;
  }

 private:
  static constexpr int kWarps = kThreads / kWarp, kGroups = kItems / kSlotGroup;
  static constexpr int kFewItems = 16;
  static constexpr int kStamps = 4, kBits = 8;  // a warp has kWarp * kSlotGroup slots in a group
  static constexpr uint32_t kField = (1u << kBits) - 1, kWide = (1u << 2 * kBits) - 1;
  static constexpr uint32_t kEven = kField << 2 * kBits | kField;
  static_assert(kWarp * kSlotGroup <= kField && kStamps * kBits == 32);
  static_assert(kThreads * kItems <= kWide);

  __device__ __forceinline__ void note_in_warp(int32_t oldest) const {
    oldest = __reduce_min_sync(kAllLanes, oldest);
    if (lane_number() == 0) space_.oldest[warp_number()] = oldest;
  }

  // From the oldest stamp, but kStamps for what is further.
  __device__ __forceinline__ uint32_t distance(int32_t stamp) const {
    return min(static_cast<uint32_t>(stamp) - static_cast<uint32_t>(oldest_), uint32_t{kStamps});
  }
  __device__ __forceinline__ static uint32_t one_at(uint32_t distance) {
    return __funnelshift_lc(0u, 1u, kBits * distance);  // 0 beyond the last field
  }

  OldestSpace& space_;
  int32_t oldest_;
  uint32_t before_[kGroups], of_group_[kGroups];
};

}  // namespace hisparse::cuda
