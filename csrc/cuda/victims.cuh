// Which hot slots are given up, in order, without sorting them: by (stamp, slot), smallest first.
//
// Slots lie in warps in ascending order. A window of kBuckets stamps, from the smallest one up, is counted
// per (stamp, warp); prefix sums over stamps and warps then give every slot its rank. Stamps beyond the
// window only matter when it holds too few victims: then another window follows, from the smallest stamp that
// is left.
//
// | step    | reads                            | writes                             | then      |
// |---------|----------------------------------|------------------------------------|-----------|
// | count   | stamps of free slots             | counts, totals                     | barrier   |
// | scan    | totals                           | bases, sums                        | barrier   |
// | place   | counts, bases, sums, stamps      | slots                              | barrier   |
#pragma once

#include <cstdint>

#include "warp.cuh"

namespace hisparse::cuda {

constexpr int kBuckets = 512;
constexpr uint32_t kNoStamp = ~0u;

// Stamps as unsigned numbers in the same order.
__device__ __forceinline__ uint32_t stamp_order(int32_t stamp) {
  return static_cast<uint32_t>(stamp) ^ 0x80000000u;
}

// What a warp has seen of a window.
struct WarpWindow {
  uint32_t low;                // where the window begins, in stamp_order
  uint32_t first = kBuckets;   // the first bucket that has a slot of this thread
  uint32_t beyond = kNoStamp;  // the smallest stamp of this thread behind the window
  bool any_beyond = false;
};

// All in shared memory. `counts` and `totals` are zero when a window begins.
template <int kThreads>
struct Victims {
  static_assert(kThreads >= kBuckets);
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kRow = kBuckets + 2;  // two more: the counts of one bucket lie in different banks

  uint16_t* counts;  // [kWarps, kRow]
  int32_t* totals;   // [kBuckets]
  int32_t* bases;    // [kBuckets]: slots in the buckets before, within 32 buckets
  int32_t* sums;     // [kBuckets / 32]
  int32_t* slots;    // the answer: victim i

  static constexpr int64_t kMaxSlots = int64_t{UINT16_MAX} / kWarp * kThreads;  // a warp's fit in its counts
  static constexpr int32_t kCountedInts = kWarps * kRow / 2 + kBuckets;  // counts and totals, side by side

  // For a whole warp: adds 32 of its slots.
  __device__ __forceinline__ void count(WarpWindow& window, bool free, int32_t stamp) const {
    const uint32_t bucket = stamp_order(stamp) - window.low;
    const bool here = free && stamp_order(stamp) >= window.low;
    const bool inside = here && bucket < kBuckets;
    const unsigned alike = __match_any_sync(kAllLanes, inside ? bucket : kBuckets);
    if (inside) {
      window.first = min(window.first, bucket);
      if ((alike & lanes_before()) == 0) {
        const int size = __popc(alike);
        counts[warp_number() * kRow + bucket] += static_cast<uint16_t>(size);
        atomicAdd(&totals[bucket], size);
      }
    } else if (here) {
      window.any_beyond = true;
      window.beyond = min(window.beyond, stamp_order(stamp));
    }
    __syncwarp();
  }

  __device__ void scan() const {
    if (threadIdx.x >= kBuckets) return;
    const int32_t total = totals[threadIdx.x];
    const int32_t through = warp_inclusive_sum(total);
    bases[threadIdx.x] = through - total;
    if (lane_number() == kWarp - 1) sums[warp_number()] = through;
  }

  // For a whole warp. `each_slot(f)` calls f(slot, free, stamp) for its slots in order, 32 at a time. Victims
  // from rank `wanted` on are left out; `placed` come before this window. Returns how many slots the window
  // holds.
  template <class EachSlot>
  __device__ int32_t place(const WarpWindow& window, int32_t placed, int32_t wanted,
                           EachSlot each_slot) const {
    constexpr int kSums = kBuckets / kWarp;
    const int32_t sum = lane_number() < kSums ? sums[lane_number()] : 0;
    const int32_t through = warp_inclusive_sum(sum);

    // The buckets that have slots of this warp, one after the other.
    for (uint32_t bucket = __reduce_min_sync(kAllLanes, window.first); bucket < kBuckets;) {
      const int32_t base = placed + bases[bucket] + __shfl_sync(kAllLanes, through - sum, bucket / kWarp);
      if (base >= wanted) break;
      const int32_t others = lane_number() < warp_number() ? counts[lane_number() * kRow + bucket] : 0;
      int32_t rank = base + __reduce_add_sync(kAllLanes, others);
      uint32_t next = kBuckets;
      each_slot([&](int32_t slot, bool free, int32_t stamp) {
        const uint32_t mine = free ? stamp_order(stamp) - window.low : kBuckets;
        const unsigned all = __ballot_sync(kAllLanes, mine == bucket);
        const int32_t at = rank + __popc(all & lanes_before());
        if (mine == bucket && at < wanted) slots[at] = slot;
        if (mine > bucket) next = min(next, mine);
        rank += __popc(all);
      });
      bucket = __reduce_min_sync(kAllLanes, next);
    }
    return __shfl_sync(kAllLanes, through, kWarp - 1);
  }
};

}  // namespace hisparse::cuda
