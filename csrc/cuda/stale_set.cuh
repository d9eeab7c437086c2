// A set of numbers in shared memory, and the walk over slots that empties those in it: the body of invalidate
// and invalidate_blocks.
#pragma once

#include <cstdint>

#include "lookup_table.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

constexpr int kReadsAtOnce = 8;

// Collects numbers first and makes a table of just the size they need. At most kCapacity at a time.
template <int kThreads>
class StaleSet {
 public:
  static constexpr int64_t kCapacity = 8192;

  // Every thread of the block makes its own view of the same memory, enough for `count` numbers in all.
  __device__ StaleSet(void* memory, int64_t count)
      : numbers_(static_cast<int32_t*>(memory)), table_{numbers_ + list_ints(count), 0} {}

  static size_t shared_bytes(int64_t count) {
    return sizeof(int32_t) * (list_ints(count) + (int64_t{1} << bits_for(at_once(count))));
  }

  // Replaces the set by number(begin) .. number(end - 1), leaving out those below 0. For the whole block;
  // returns whether there are any.
  template <class Number>
  __device__ bool collect(int64_t begin, int64_t end, Number number) {
    __shared__ int32_t count;
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    for (int64_t base = begin + threadIdx.x; base < end; base += kThreads * kReadsAtOnce) {
      int32_t value[kReadsAtOnce];
#pragma unroll
      for (int j = 0; j < kReadsAtOnce; ++j) {
        const int64_t i = base + j * kThreads;
        value[j] = i < end ? number(i) : kNone;
      }
#pragma unroll
      for (int j = 0; j < kReadsAtOnce; ++j) {
        if (value[j] >= 0) numbers_[atomicAdd(&count, 1)] = value[j];
      }
    }
    __syncthreads();
    if (count == 0) return false;

    table_.bits = bits_for(count);
    block_fill<kThreads>(table_.keys, 1 << table_.bits, kNone);
    __syncthreads();
    bool added = false;
    for (int32_t i = threadIdx.x; i < count; i += kThreads) table_.insert(numbers_[i], added);
    __syncthreads();
    return true;
  }

  __device__ bool has(int32_t value) const { return table_.find(value) != kNone; }

 private:
  static HISPARSE_HD int64_t at_once(int64_t count) { return count < kCapacity ? count : kCapacity; }

  // A multiple of four, so that the table behind the list is aligned.
  static HISPARSE_HD int64_t list_ints(int64_t count) { return (at_once(count) + 3) / 4 * 4; }

  static HISPARSE_HD int bits_for(int64_t count) {
    const int bits = hash_bits(count);
    return bits > KeyTable::kMinBits ? bits : KeyTable::kMinBits;
  }

  int32_t* numbers_;
  KeyTable table_;
};

// A block's threads empty the slots whose row is stale, several reads at a time.
template <int kThreads, class Stale>
__device__ __forceinline__ void empty_slots(int32_t* rows, int64_t slots, Stale stale) {
  for (int64_t base = threadIdx.x; base < slots; base += kThreads * kReadsAtOnce) {
    int32_t row[kReadsAtOnce];
#pragma unroll
    for (int j = 0; j < kReadsAtOnce; ++j) {
      const int64_t slot = base + j * kThreads;
      row[j] = slot < slots ? rows[slot] : kNone;
    }
#pragma unroll
    for (int j = 0; j < kReadsAtOnce; ++j) {
      if (row[j] >= 0 && stale(row[j])) rows[base + j * kThreads] = kNone;
    }
  }
}

}  // namespace hisparse::cuda
