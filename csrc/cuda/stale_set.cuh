// A set of numbers in shared memory, and the walk over slots that empties those in it: the body of invalidate
// and invalidate_blocks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/hash.h"
#include "warp.cuh"

namespace hisparse::cuda {

// A set for up to kCapacity numbers >= 0, half full at most.
template <int kThreads>
class StaleSet {
 public:
  static constexpr int64_t kCapacity = 8192;

  // `count` numbers in all; every thread of the block makes its own view of the same memory.
  __device__ StaleSet(void* memory, int64_t count)
      : numbers_(static_cast<int32_t*>(memory)), bits_(bits_for(count)) {}

  static size_t shared_bytes(int64_t count) { return sizeof(int32_t) << bits_for(count); }

  // Replaces the set by number(begin) .. number(end - 1), leaving out those below 0. For the whole block;
  // returns whether there are any.
  template <class Number>
  __device__ bool collect(int64_t begin, int64_t end, Number number) {
    __syncthreads();
    block_fill(numbers_, int64_t{1} << bits_, kNone);
    __syncthreads();
    bool any = false;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const int32_t value = number(i);
      if (value < 0) continue;
      any = true;
      uint32_t place = hash_start(value, bits_);
      for (int32_t found; (found = atomicCAS(&numbers_[place], kNone, value)) != kNone && found != value;) {
        place = hash_next(place, bits_);
      }
    }
    return __syncthreads_or(any);
  }

  __device__ bool has(int32_t value) const {
    uint32_t place = hash_start(value, bits_);
    while (numbers_[place] != kNone && numbers_[place] != value) place = hash_next(place, bits_);
    return numbers_[place] == value;
  }

 private:
  static HISPARSE_HD int bits_for(int64_t count) { return hash_bits(count < kCapacity ? count : kCapacity); }

  int32_t* numbers_;
  int bits_;
};

// A block's threads empty the slots whose row is stale, several reads at a time.
template <int kThreads, class Stale>
__device__ __forceinline__ void empty_slots(int32_t* rows, int64_t slots, Stale stale) {
  constexpr int kAtOnce = 8;
  for (int64_t base = threadIdx.x; base < slots; base += kThreads * kAtOnce) {
    int32_t row[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t slot = base + j * kThreads;
      row[j] = slot < slots ? rows[slot] : kNone;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (row[j] >= 0 && stale(row[j])) rows[base + j * kThreads] = kNone;
    }
  }
}

}  // namespace hisparse::cuda
