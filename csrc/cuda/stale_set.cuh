// A set of numbers in shared memory, and the walk over slots that empties those in it: the body of invalidate
// and invalidate_blocks.
#pragma once

#include <cstdint>

#include "lookup_table.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

constexpr int kReadsAtOnce = 4;  // of a thread

// At most kCapacity numbers >= 0 at a time.
template <int kThreads>
class StaleSet {
 public:
  static constexpr int64_t kCapacity = 8192;

  // `count` numbers in all; every thread of the block makes its own view of the same memory.
  __device__ StaleSet(void* memory, int64_t count) : table_{static_cast<int32_t*>(memory), bits_for(count)} {}

  static size_t shared_bytes(int64_t count) { return sizeof(int32_t) << bits_for(count); }

  // For the whole block, before the first `add`, and between two sets.
  __device__ void clear() const {
    __syncthreads();
    block_fill<kThreads>(table_.keys, 1 << table_.bits, kNone);
    __syncthreads();
  }

  // For the whole block: adds number(begin) .. number(end - 1), leaving out those below 0. Returns whether
  // there are any.
  template <class Number>
  __device__ bool add(int64_t begin, int64_t end, Number number) const {
    bool any = false;
    for (int64_t base = begin + threadIdx.x; base < end; base += kThreads * kReadsAtOnce) {
      int32_t values[kReadsAtOnce];
#pragma unroll
      for (int j = 0; j < kReadsAtOnce; ++j) {
        const int64_t i = base + j * kThreads;
        values[j] = i < end ? number(i) : kNone;
      }
#pragma unroll
      for (int j = 0; j < kReadsAtOnce; ++j) {
        if (values[j] < 0) continue;
        insert(values[j]);
        any = true;
      }
    }
    return __syncthreads_or(any);
  }

  // Most slots are not stale, and one word tells: where nothing took a number's first place, it is not there.
  __device__ bool has(int32_t value) const {
    return table_.keys[table_.first_place(value)] != kNone && table_.find(value) != kNone;
  }

 private:
  static HISPARSE_HD int bits_for(int64_t count) {
    const int bits = hash_bits(count < kCapacity ? count : kCapacity);
    return bits > KeyTable::kMinBits ? bits : KeyTable::kMinBits;
  }

  __device__ __forceinline__ void insert(int32_t key) const {
    const int32_t found = table_.claim(key, table_.first_place(key));
    if (found != kNone && found != key) table_.enter_further(key);
  }

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
