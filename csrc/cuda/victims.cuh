// Which hot slots are given up, in order, without sorting them: by (stamp, slot), smallest first.
//
// Free slots are counted by age, oldest bucket first: every age below kExactAges has a bucket of its own,
// older ones share kPerOctave buckets an octave. Prefix sums tell where each bucket's slots come among the
// victims, and which is the last bucket that matters. Inside a bucket, slots of small ones are listed side by
// side and counted against one another; large ones are gone through stamp by stamp.
//
// | step    | reads                            | writes                             | then      |
// |---------|----------------------------------|------------------------------------|-----------|
// | count   | stamps of free slots             | counts                             | barrier   |
// | scan    | counts                           | within, sums                       | barrier   |
// | list    | stamps, counts, within, sums     | filled, listed, large              | barrier   |
// | order   | listed                           | slots                              | barrier   |
// | large   | stamps                           | slots                              | barriers  |
#pragma once

#include <cstdint>

#include "warp.cuh"

namespace hisparse::cuda {

constexpr uint32_t kNoStamp = ~0u;

// Stamps as unsigned numbers in the same order.
__device__ __forceinline__ uint32_t stamp_order(int32_t stamp) {
  return static_cast<uint32_t>(stamp) ^ 0x80000000u;
}

// Buckets by age, the oldest first.
struct Ages {
  static constexpr int kExactBits = 8, kOctaveBits = 5;
  static constexpr uint32_t kExactAges = 1 << kExactBits, kPerOctave = 1 << kOctaveBits;
  static constexpr int kBuckets = kExactAges + (32 - kExactBits) * kPerOctave;

  // Stamps from `now` on count as of age 0.
  __device__ __forceinline__ static int32_t bucket(int32_t now, int32_t stamp) {
    const uint32_t age = stamp < now ? static_cast<uint32_t>(now) - static_cast<uint32_t>(stamp) : 0;
    uint32_t place = age;
    if (age >= kExactAges) {
      const int octave = 31 - __clz(age);
      const uint32_t part = (age >> (octave - kOctaveBits)) & (kPerOctave - 1);
      place = kExactAges + (octave - kExactBits) * kPerOctave + part;
    }
    return kBuckets - 1 - static_cast<int32_t>(place);
  }

  // The largest stamp of a bucket that has any.
  __device__ __forceinline__ static int32_t newest(int32_t now, int32_t bucket) {
    const uint32_t place = kBuckets - 1 - bucket;
    if (place == 0) return INT32_MAX;
    uint32_t age = place;
    if (place >= kExactAges) {
      const uint32_t octave = kExactBits + (place - kExactAges) / kPerOctave;
      age = (kPerOctave + (place - kExactAges) % kPerOctave) << (octave - kOctaveBits);
    }
    return static_cast<int32_t>(static_cast<uint32_t>(now) - age);
  }
};

// A free slot among those of its bucket, which lie at begin .. end - 1.
struct __align__(16) Listed {
  uint64_t order;      // by stamp, then by slot
  int32_t begin, end;  // 0, 0: nothing is listed here

  __device__ __forceinline__ static uint64_t order_of(int32_t stamp, int32_t slot) {
    return uint64_t{stamp_order(stamp)} << 32 | static_cast<uint32_t>(slot);
  }
  __device__ __forceinline__ int32_t slot() const { return static_cast<int32_t>(order); }
};

// What a block needs while it chooses, in shared memory. `counts`, `filled` and `large` are zero, and nothing
// is listed, when a choice begins.
template <int kThreads>
struct VictimSpace {
  static constexpr int kGroups = Ages::kBuckets / kWarp;

  Listed listed[kThreads];
  int32_t counts[Ages::kBuckets];  // free slots
  int32_t filled[Ages::kBuckets];  // listed so far
  int32_t within[Ages::kBuckets];  // free slots in the buckets before, within 32 buckets
  int32_t sums[kGroups];           // of 32 buckets
  uint32_t large[kGroups];         // a bit for each bucket that is not listed
  int32_t any_large;
  uint32_t low;
  int32_t of_warp[kThreads / kWarp];
};

// For whole warps, in this order. `each_slot(f)` calls f(slot, free, stamp) for a warp's slots in order, 32
// at a time; warps have ascending runs of slots.
template <int kThreads>
class Victims {
 public:
  using Space = VictimSpace<kThreads>;
  static_assert(kThreads >= Space::kGroups && Space::kGroups == kWarp);

  __device__ Victims(Space& space, int32_t* slots, int32_t now) : space_(space), slots_(slots), now_(now) {}

  __device__ static void clear(Space& space) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    space.listed[thread] = {};
#pragma unroll
    for (int i = 0; i < Ages::kBuckets / kThreads; ++i) {
      space.counts[i * kThreads + thread] = 0;
      space.filled[i * kThreads + thread] = 0;
    }
    if (thread < Space::kGroups) space.large[thread] = 0;
    if (thread == 0) space.any_large = 0;
  }

  template <class EachSlot>
  __device__ void count(EachSlot each_slot) const {
    each_slot([&](int32_t, bool free, int32_t stamp) {
      if (free) atomicAdd(&space_.counts[Ages::bucket(now_, stamp)], 1);
    });
  }

  __device__ void scan() const {
#pragma unroll
    for (int i = 0; i < Ages::kBuckets / kThreads; ++i) {
      const auto b = static_cast<int32_t>(i * kThreads + threadIdx.x);
      const int32_t count = space_.counts[b], through = warp_inclusive_sum(count);
      space_.within[b] = through - count;
      if (lane_number() == kWarp - 1) space_.sums[b / kWarp] = through;
    }
  }

  // Lists the slots of small buckets. Returns how many victims there are, at most `wanted` >= 1.
  template <class EachSlot>
  __device__ int32_t list(int32_t wanted, EachSlot each_slot) {
    const int32_t sum = space_.sums[lane_number()], through = warp_inclusive_sum(sum);
    before_ = through - sum;
    // The last bucket that begins before `wanted`.
    const int32_t group = kWarp - 1 - __clz(__ballot_sync(kAllLanes, before_ < wanted));
    const int32_t begin =
        __shfl_sync(kAllLanes, before_, group) + space_.within[group * kWarp + lane_number()];
    const int32_t last = group * kWarp + kWarp - 1 - __clz(__ballot_sync(kAllLanes, begin < wanted));
    const int32_t newest = Ages::newest(now_, last);
    each_slot([&](int32_t slot, bool free, int32_t stamp) {
      const bool chosen = free && stamp <= newest;
      if (!__any_sync(kAllLanes, chosen)) return;
      const int32_t bucket = Ages::bucket(now_, stamp);
      const int32_t first = space_.within[bucket] + __shfl_sync(kAllLanes, before_, bucket / kWarp);
      if (!chosen) return;
      const int32_t end = first + space_.counts[bucket];
      if (end - first <= kSmall && end <= kThreads) {
        const int32_t place = first + atomicAdd(&space_.filled[bucket], 1);
        space_.listed[place] = {Listed::order_of(stamp, slot), first, end};
      } else {
        atomicOr(&space_.large[bucket / kWarp], 1u << bucket % kWarp);
        space_.any_large = 1;
      }
    });
    return min(__shfl_sync(kAllLanes, through, kWarp - 1), wanted);
  }

  // Four threads for each listed slot.
  __device__ void order(int32_t wanted) const {
    constexpr int32_t kTogether = 4;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t part = thread % kTogether, listed = min(wanted + kSmall, kThreads);
#pragma unroll 1
    for (int32_t base = 0; base < listed; base += kThreads / kTogether) {
      const Listed mine = space_.listed[base + thread / kTogether];
      int32_t rank = 0;
#pragma unroll 4
      for (int32_t i = mine.begin + part; i < mine.end; i += kTogether) {
        rank += space_.listed[i].order < mine.order;
      }
      rank += __shfl_xor_sync(kAllLanes, rank, 1);
      rank += __shfl_xor_sync(kAllLanes, rank, 2);
      rank += mine.begin;
      if (part == 0 && mine.end > 0 && rank < wanted) slots_[rank] = mine.slot();
    }
  }

  // For the whole block: the slots of large buckets, stamp by stamp.
  template <class EachSlot>
  __device__ void take_large(int32_t wanted, EachSlot each_slot) const {
    if (!space_.any_large) return;
    for (int32_t group = 0; group < Space::kGroups; ++group) {
      for (uint32_t left = space_.large[group]; left != 0; left &= left - 1) {
        take_bucket(group * kWarp + __ffs(left) - 1, wanted, each_slot);
      }
    }
  }

  // Victim i, after the next barrier.
  __device__ __forceinline__ int32_t slot(int32_t i) const { return slots_[i]; }

 private:
  static constexpr int32_t kSmall = 256;

  template <class EachSlot>
  __device__ __forceinline__ void take_bucket(int32_t bucket, int32_t wanted, EachSlot each_slot) const {
    int32_t begin = space_.within[bucket] + __shfl_sync(kAllLanes, before_, bucket / kWarp);
    const int32_t end = min(begin + space_.counts[bucket], wanted);
    for (uint32_t from = 0; begin < end;) {
      // The smallest stamp that is left.
      __syncthreads();
      if (threadIdx.x == 0) space_.low = kNoStamp;
      __syncthreads();
      uint32_t low = kNoStamp;
      each_slot([&](int32_t, bool free, int32_t stamp) {
        const bool here = free && stamp_order(stamp) >= from && Ages::bucket(now_, stamp) == bucket;
        if (here) low = min(low, stamp_order(stamp));
      });
      low = __reduce_min_sync(kAllLanes, low);
      if (lane_number() == 0) atomicMin(&space_.low, low);
      __syncthreads();
      low = space_.low;

      // Its slots, in order.
      int32_t in_warp = 0;
      each_slot([&](int32_t, bool free, int32_t stamp) {
        in_warp += __popc(__ballot_sync(kAllLanes, free && stamp_order(stamp) == low));
      });
      if (lane_number() == 0) space_.of_warp[warp_number()] = in_warp;
      __syncthreads();
      const int32_t others = lane_number() < kThreads / kWarp ? space_.of_warp[lane_number()] : 0;
      int32_t rank = begin + __reduce_add_sync(kAllLanes, lane_number() < warp_number() ? others : 0);
      each_slot([&](int32_t slot, bool free, int32_t stamp) {
        const bool here = free && stamp_order(stamp) == low;
        const unsigned all = __ballot_sync(kAllLanes, here);
        const int32_t at = rank + __popc(all & lanes_before());
        if (here && at < wanted) slots_[at] = slot;
        rank += __popc(all);
      });
      begin += __reduce_add_sync(kAllLanes, others);
      from = low + 1;
    }
  }

  Space& space_;
  int32_t* slots_;
  int32_t now_;
  int32_t before_ = 0;  // of a lane: free slots before its 32 buckets
};

}  // namespace hisparse::cuda
