// Small tools of threads, warps and blocks.
#pragma once

#include <cstdint>

namespace hisparse::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_number() { return threadIdx.x % kWarp; }
__device__ __forceinline__ int warp_number() { return threadIdx.x / kWarp; }
__device__ __forceinline__ unsigned lanes_before() { return (1u << lane_number()) - 1; }

template <class T>
constexpr __host__ __device__ T divide_up(T value, T by) {
  return (value + by - 1) / by;
}

// Sum over this lane and those before it.
template <class T>
__device__ __forceinline__ T warp_inclusive_sum(T value) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T other = __shfl_up_sync(kAllLanes, value, distance);
    if (lane_number() >= distance) value += other;
  }
  return value;
}

// Adds to a number in shared memory, from one lane.
__device__ __forceinline__ void shared_add(int32_t& sum, int32_t value) {
  asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(&sum))),
               "r"(value)
               : "memory");
}

// Adds the sum of a whole warp to a number in shared memory.
__device__ __forceinline__ void warp_add(int32_t& sum, int32_t value) {
  const int32_t of_warp = __reduce_add_sync(kAllLanes, value);
  if (lane_number() == 0) shared_add(sum, of_warp);
}

// Sum over this thread and those before it; the whole block, at most 32 warps.
template <int kThreads>
__device__ __forceinline__ int32_t block_inclusive_sum(int32_t value) {
  __shared__ int32_t sums[kThreads / kWarp];
  const int32_t in_warp = warp_inclusive_sum(value);
  if (lane_number() == kWarp - 1) sums[warp_number()] = in_warp;
  __syncthreads();
  const int32_t before = lane_number() < warp_number() ? sums[lane_number()] : 0;
  return in_warp + __reduce_add_sync(kAllLanes, before);
}

// The first of kSize ascending numbers that is above `value`, which one of them is.
template <int kSize>
__device__ __forceinline__ int32_t first_above(const int32_t* numbers, int32_t value) {
  static_assert((kSize & (kSize - 1)) == 0);
  int32_t first = 0;
#pragma unroll
  for (int32_t half = kSize / 2; half > 0; half /= 2) {
    if (numbers[first + half - 1] <= value) first += half;
  }
  return first;
}

// The whole block sets `count` integers, 16 bytes at a time where it can.
template <int kThreads>
__device__ __forceinline__ void block_fill(int32_t* data, int32_t count, int32_t value) {
  constexpr int kVector = sizeof(int4) / sizeof(int32_t);
  const auto to_line = static_cast<int32_t>(-reinterpret_cast<uintptr_t>(data) / sizeof(int32_t) % kVector);
  const int32_t head = min(to_line, count), vectors = (count - head) / kVector;
  const int32_t tail = count - head - vectors * kVector;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < head) data[thread] = value;
  if (thread < tail) data[count - tail + thread] = value;
  auto* body = reinterpret_cast<int4*>(data + head);
#pragma unroll 1
  for (int32_t i = thread; i < vectors; i += kThreads) body[i] = make_int4(value, value, value, value);
}

// Threads of a block ask for the lines of `bytes` bytes, so that a later read finds them in the L2 cache.
// What is beyond one line per thread is left out.
__device__ __forceinline__ void block_prefetch(const void* data, int64_t bytes) {
  constexpr int kLine = 128;
  const int64_t offset = int64_t{kLine} * threadIdx.x;
  if (offset < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(data) + offset));
}

}  // namespace hisparse::cuda
