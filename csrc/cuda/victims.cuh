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

// All in shared memory. `counts` and `totals` are zero when a window begins.
template <int kThreads>
struct Victims {
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kRow = kBuckets + 2;  // two more: the counts of one bucket lie in different banks

  uint16_t* counts;  // [kWarps, kRow]
  int32_t* totals;   // [kBuckets]
  int32_t* bases;    // [kBuckets]: slots in the buckets before, within 32 buckets
  int32_t* sums;     // [kBuckets / 32]
  int32_t* slots;    // the answer: victim i

  static constexpr int64_t kMaxSlots = int64_t{UINT16_MAX} / kWarp * kThreads;  // a warp's fit in its counts
  static constexpr int32_t kCountedInts = kWarps * kRow / 2 + kBuckets;  // counts and totals, side by side

  // For a whole warp: adds its next 32 slots. Returns whether the lane's slot is beyond the window.
  __device__ bool count(uint32_t low, bool free, int32_t stamp) const {
    const uint32_t distance = stamp_order(stamp) - low;
    const bool inside = free && stamp_order(stamp) >= low && distance < kBuckets;
    const unsigned alike = __match_any_sync(kAllLanes, inside ? distance : kBuckets);
    if (inside && (alike & lanes_before()) == 0) {
      const int size = __popc(alike);
      counts[warp_number() * kRow + distance] += static_cast<uint16_t>(size);
      atomicAdd(&totals[distance], size);
    }
    __syncwarp();
    return free && stamp_order(stamp) >= low && !inside;
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
  __device__ int32_t place(uint32_t low, int32_t placed, int32_t wanted, EachSlot each_slot) const {
    constexpr int kSums = kBuckets / kWarp;
    const int32_t sum = lane_number() < kSums ? sums[lane_number()] : 0;
    const int32_t through = warp_inclusive_sum(sum);
    const int32_t in_window = __shfl_sync(kAllLanes, through, kWarp - 1);

    // The stamps that this warp has, one after the other.
    uint32_t bucket = 0;
    for (;;) {
      bucket = next_bucket(bucket, low, each_slot);
      if (bucket >= kBuckets) return in_window;
      const int32_t base = placed + bases[bucket] + __shfl_sync(kAllLanes, through - sum, bucket / kWarp);
      if (base >= wanted) return in_window;
      const int32_t others = lane_number() < warp_number() ? counts[lane_number() * kRow + bucket] : 0;
      int32_t rank = base + __reduce_add_sync(kAllLanes, others);
      each_slot([&](int32_t slot, bool free, int32_t stamp) {
        const bool here = free && stamp_order(stamp) - low == bucket;
        const unsigned all = __ballot_sync(kAllLanes, here);
        const int32_t mine = rank + __popc(all & lanes_before());
        if (here && mine < wanted) slots[mine] = slot;
        rank += __popc(all);
      });
      ++bucket;
    }
  }

 private:
  // The first bucket from `bucket` on in which this warp has a slot.
  template <class EachSlot>
  __device__ uint32_t next_bucket(uint32_t bucket, uint32_t low, EachSlot each_slot) const {
    uint32_t next = kBuckets;
    each_slot([&](int32_t, bool free, int32_t stamp) {
      const uint32_t distance = stamp_order(stamp) - low;
      if (free && distance >= bucket) next = min(next, distance);
    });
    return __reduce_min_sync(kAllLanes, next);
  }
};

}  // namespace hisparse::cuda
