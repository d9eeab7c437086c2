// Which hot slots are given up, in order, without sorting them: by (stamp, slot), smallest first. In nearly
// all steps oldest_stamps.cuh has found enough before.
//
// Free slots are counted by age, oldest bucket first; a bucket's width is 1/32 of the ages' power of two, or
// one age. Prefix sums tell where each bucket's slots come among the victims, and which is the last bucket
// that matters. Inside a bucket, slots of small ones are listed side by side and counted against one another;
// large ones are gone through stamp by stamp.
//
// | step    | reads                            | writes                             | then      |
// |---------|----------------------------------|------------------------------------|-----------|
// | clear   |                                  | counts, filled, bounds, large      | barrier   |
// | count   | stamps of free slots             | counts                             | barrier   |
// | scan    | counts                           | within, sums                       | barrier   |
// | list    | stamps, counts, within, sums     | filled, listed, large              | barrier   |
// | order   | listed                           | slots                              | barrier   |
// | large   | stamps                           | slots                              | barriers  |
#pragma once

#include <cstdint>

#include "hot_slots.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

constexpr uint32_t kNoStamp = ~0u;

// Stamps as unsigned numbers in the same order.
__device__ __forceinline__ uint32_t stamp_order(int32_t stamp) {
  return static_cast<uint32_t>(stamp) ^ 0x80000000u;
}

// Buckets by age, the oldest first. An age as a float, without sign and low bits of its fraction, is a number
// that rises with it: the bucket, counted from the newest.
struct Ages {
  static constexpr int kFractionBits = 5, kLowBits = 23 - kFractionBits;
  static constexpr int kBuckets = 32 << kFractionBits;
  static constexpr int kOne = 127 << kFractionBits;  // of age 1
  static constexpr int32_t kNewest = kBuckets - 1;   // of ages 0 and 1

  // Stamps from `now` on count as of age 0.
  __device__ __forceinline__ static uint32_t age(int32_t now, int32_t stamp) {
    return stamp < now ? static_cast<uint32_t>(now) - static_cast<uint32_t>(stamp) : 0;
  }

  __device__ __forceinline__ static int32_t bucket(uint32_t age) {
    const int32_t number = __float_as_int(__uint2float_rz(age)) >> kLowBits;
    return min(kNewest + kOne - number, kNewest);
  }

  // Ages of a bucket differ in so many low bits.
  __device__ __forceinline__ static int32_t width_bits(int32_t bucket) {
    return max(((kNewest - bucket) >> kFractionBits) - kFractionBits, 0);
  }

  // The largest stamp of a bucket that has any.
  __device__ __forceinline__ static int32_t newest(int32_t now, int32_t bucket) {
    if (bucket == kNewest) return INT32_MAX;
    const uint32_t age = __float2uint_ru(__int_as_float((kNewest + kOne - bucket) << kLowBits));
    return static_cast<int32_t>(static_cast<uint32_t>(now) - age);
  }
};

// What a block needs while it chooses, in shared memory.
template <int kThreads>
struct VictimSpace {
  static constexpr int kOfThread = Ages::kBuckets / kThreads;  // neighbours
  static constexpr int kOfWarp = kOfThread * kWarp;
  static constexpr int kWords = Ages::kBuckets / kWarp;

  // Free slots by bucket: what gives their order within it, and where the bucket's first lies, and the end.
  uint32_t orders[kThreads];
  int2 bounds[kThreads];           // 0, 0: nothing is listed here
  int32_t counts[Ages::kBuckets];  // free slots
  int32_t filled[Ages::kBuckets];  // listed so far
  int32_t within[Ages::kBuckets];  // free slots in the buckets of the warp before
  int32_t sums[kWarp];             // of the buckets of each warp
  uint32_t large[kWords];          // a bit for each bucket that is not listed
  int32_t any_large;
  uint32_t low;
  int32_t of_warp[kThreads / kWarp];
};

// For whole warps, in this order. `each_group(f)` calls f(first slot, free(v), stamps) for groups of slots, a
// warp's at a time and in order; warps have ascending runs of groups. Slots are below 2^slot_bits.
template <int kThreads>
class Victims {
 public:
  using Space = VictimSpace<kThreads>;
  static_assert(Space::kOfThread >= 1 && kThreads / kWarp <= kWarp);

  __device__ Victims(Space& space, int32_t* slots, int32_t slot_bits, int32_t now)
      : space_(space), slots_(slots), slot_bits_(slot_bits), now_(now) {}

  __device__ void clear() const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    space_.bounds[thread] = {0, 0};
#pragma unroll
    for (int i = 0; i < Ages::kBuckets / kThreads; ++i) {
      space_.counts[i * kThreads + thread] = 0;
      space_.filled[i * kThreads + thread] = 0;
    }
    if (thread < Space::kWords) space_.large[thread] = 0;
    if (thread < kWarp) space_.sums[thread] = 0;
    if (thread == 0) space_.any_large = 0;
  }

  template <class EachGroup>
  __device__ void count(EachGroup each_group) const {
    each_group([&](int32_t, auto free, const int32_t* stamps) {
#pragma unroll
      for (int v = 0; v < kSlotGroup; ++v) {
        add_if(free(v), space_.counts[Ages::bucket(Ages::age(now_, stamps[v]))], 1);
      }
    });
  }

  __device__ void scan() const {
    constexpr int kCount = Space::kOfThread;
    const auto first = static_cast<int32_t>(threadIdx.x) * kCount;
    int32_t counts[kCount], within[kCount], sum = 0;
    read_vector<kCount>(space_.counts + first, counts);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += counts[i];
    const int32_t through = warp_inclusive_sum(sum);
    within[0] = through - sum;
#pragma unroll
    for (int i = 1; i < kCount; ++i) within[i] = within[i - 1] + counts[i - 1];
    write_vector<kCount>(within, space_.within + first);
    if (lane_number() == kWarp - 1) space_.sums[warp_number()] = through;
  }

  // Lists the slots of small buckets. Returns how many victims there are, at most `wanted` >= 1.
  template <class EachGroup>
  __device__ int32_t list(int32_t wanted, EachGroup each_group) {
    const int32_t sum = space_.sums[lane_number()], through = warp_inclusive_sum(sum);
    before_ = through - sum;
    // The last bucket that begins before `wanted`.
    const int32_t last_warp = kWarp - 1 - __clz(__ballot_sync(kAllLanes, before_ < wanted) & kOfWarps);
    const int32_t before = __shfl_sync(kAllLanes, before_, last_warp);
    int32_t last = last_warp * Space::kOfWarp;
#pragma unroll
    for (int i = 0; i < Space::kOfThread; ++i) {
      const int32_t bucket = last_warp * Space::kOfWarp + i * kWarp + lane_number();
      last += __popc(__ballot_sync(kAllLanes, before + space_.within[bucket] < wanted));
    }
    last -= 1;  // the first of the warp's begins before it, too
    end_ = before + space_.within[last] + space_.counts[last];
    const int32_t newest = Ages::newest(now_, last);
    each_group([&](int32_t first, auto free, const int32_t* stamps) {
      uint32_t chosen = 0;
#pragma unroll
      for (int v = 0; v < kSlotGroup; ++v)
        chosen |= static_cast<uint32_t>(free(v) && stamps[v] <= newest) << v;
      for (; __any_sync(kAllLanes, chosen != 0); chosen &= chosen - 1) {
        const int next = max(__ffs(chosen) - 1, 0);
        const uint32_t age = Ages::age(now_, picked<kSlotGroup>(stamps, next));
        const int32_t bucket = Ages::bucket(age);
        const int32_t begin =
            __shfl_sync(kAllLanes, before_, bucket / Space::kOfWarp) + space_.within[bucket];
        if (chosen != 0) enter(first + next, age, bucket, begin);
      }
    });
    return min(__shfl_sync(kAllLanes, through, kWarp - 1), wanted);
  }

  // Four threads for each listed slot.
  __device__ void order(int32_t wanted) const {
    constexpr int32_t kTogether = 4;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t part = thread % kTogether, listed = min(end_, kThreads);
#pragma unroll 1
    for (int32_t base = 0; base < listed; base += kThreads / kTogether) {
      // Whole warps leave.
      const int32_t place = base + thread / kTogether;
      if (place / (kWarp / kTogether) * (kWarp / kTogether) >= listed) return;
      const auto [begin, end] = space_.bounds[place];
      const uint32_t mine = space_.orders[place];
      int32_t rank = 0;
#pragma unroll 4
      for (int32_t i = begin + part; i < end; i += kTogether) rank += space_.orders[i] < mine;
      rank += __shfl_xor_sync(kAllLanes, rank, 1);
      rank += __shfl_xor_sync(kAllLanes, rank, 2);
      rank += begin;
      if (part == 0 && end > 0 && rank < wanted) slots_[rank] = static_cast<int32_t>(mine & slot_mask());
    }
  }

  // For the whole block: the slots of large buckets, stamp by stamp.
  template <class EachGroup>
  __device__ void take_large(int32_t wanted, EachGroup each_group) const {
    if (!space_.any_large) return;
    for (int32_t word = 0; word < Space::kWords; ++word) {
      for (uint32_t left = space_.large[word]; left != 0; left &= left - 1) {
        take_bucket(word * kWarp + __ffs(left) - 1, wanted, each_group);
      }
    }
  }

 private:
  static constexpr int32_t kSmall = 256;
  static constexpr unsigned kOfWarps = kThreads / kWarp == kWarp ? kAllLanes : (1u << kThreads / kWarp) - 1;

  __device__ __forceinline__ uint32_t slot_mask() const { return (1u << slot_bits_) - 1; }

  // By stamp, then by slot, in one number: where a bucket is too wide for that, it counts as large.
  __device__ __forceinline__ void enter(int32_t slot, uint32_t age, int32_t bucket, int32_t begin) const {
    const int32_t end = begin + space_.counts[bucket], width_bits = Ages::width_bits(bucket);
    const bool fits = bucket != Ages::kNewest && width_bits + slot_bits_ <= 32;
    if (fits && end - begin <= kSmall && end <= kThreads) {
      const int32_t place = begin + atomicAdd(&space_.filled[bucket], 1);
      const uint32_t by_stamp = ~age & ((1u << width_bits) - 1);
      space_.orders[place] = by_stamp << slot_bits_ | static_cast<uint32_t>(slot);
      space_.bounds[place] = {begin, end};
    } else {
      atomicOr(&space_.large[bucket / kWarp], 1u << bucket % kWarp);
      space_.any_large = 1;
    }
  }

  template <class EachGroup>
  __device__ __forceinline__ void take_bucket(int32_t bucket, int32_t wanted, EachGroup each_group) const {
    int32_t begin = space_.within[bucket] + __shfl_sync(kAllLanes, before_, bucket / Space::kOfWarp);
    const int32_t end = min(begin + space_.counts[bucket], wanted);
    for (uint32_t from = 0; begin < end;) {
      // The smallest stamp that is left.
      __syncthreads();
      if (threadIdx.x == 0) space_.low = kNoStamp;
      __syncthreads();
      uint32_t low = kNoStamp;
      each_group([&](int32_t, auto free, const int32_t* stamps) {
#pragma unroll
        for (int v = 0; v < kSlotGroup; ++v) {
          const uint32_t stamp = stamp_order(stamps[v]);
          if (free(v) && stamp >= from && Ages::bucket(Ages::age(now_, stamps[v])) == bucket)
            low = min(low, stamp);
        }
      });
      low = __reduce_min_sync(kAllLanes, low);
      if (lane_number() == 0) atomicMin(&space_.low, low);
      __syncthreads();
      low = space_.low;

      // Its slots, in order.
      int32_t in_thread = 0;
      each_group([&](int32_t, auto free, const int32_t* stamps) {
#pragma unroll
        for (int v = 0; v < kSlotGroup; ++v) in_thread += free(v) && stamp_order(stamps[v]) == low;
      });
      const int32_t in_warp = __reduce_add_sync(kAllLanes, in_thread);
      if (lane_number() == 0) space_.of_warp[warp_number()] = in_warp;
      __syncthreads();
      const int32_t others = lane_number() < kThreads / kWarp ? space_.of_warp[lane_number()] : 0;
      int32_t rank = begin + __reduce_add_sync(kAllLanes, lane_number() < warp_number() ? others : 0);
      each_group([&](int32_t first, auto free, const int32_t* stamps) {
        uint32_t taken = 0;
#pragma unroll
        for (int v = 0; v < kSlotGroup; ++v) {
          taken |= static_cast<uint32_t>(free(v) && stamp_order(stamps[v]) == low) << v;
        }
        const int32_t through = warp_inclusive_sum(__popc(taken));
        int32_t at = rank + through - __popc(taken);
        for (; taken != 0; taken &= taken - 1, ++at) {
          if (at < wanted) slots_[at] = first + __ffs(taken) - 1;
        }
        rank += __shfl_sync(kAllLanes, through, kWarp - 1);
      });
      begin += __reduce_add_sync(kAllLanes, others);
      from = low + 1;
    }
  }

  Space& space_;
  int32_t* slots_;
  int32_t slot_bits_, now_;
  int32_t before_ = 0;  // of a lane: free slots before the buckets of the warp with its number
  int32_t end_ = 0;     // free slots up to the last bucket that matters
};

}  // namespace hisparse::cuda
