// Small tools of threads, warps and blocks.
#pragma once

#include <cstdint>

namespace hisparse::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_number() { return threadIdx.x % kWarp; }
__device__ __forceinline__ int warp_number() { return threadIdx.x / kWarp; }

// 1 for numbers below 0: to be counted in one instruction.
__device__ __forceinline__ uint32_t sign_bit(int32_t number) { return static_cast<uint32_t>(number) >> 31; }

template <class T>
constexpr __host__ __device__ T divide_up(T value, T by) {
  return (value + by - 1) / by;
}

// kCount numbers at an address that is a multiple of their size, in one access.
template <int kCount>
struct __align__(sizeof(int32_t) * kCount) Vector {
  int32_t values[kCount];
};

template <int kCount>
__device__ __forceinline__ void read_vector(const int32_t* from, int32_t* to) {
  const auto vector = *reinterpret_cast<const Vector<kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = vector.values[i];
}

template <int kCount>
__device__ __forceinline__ void write_vector(const int32_t* from, int32_t* to) {
  Vector<kCount> vector;
#pragma unroll
  for (int i = 0; i < kCount; ++i) vector.values[i] = from[i];
  *reinterpret_cast<Vector<kCount>*>(to) = vector;
}

// numbers[i] without a run-time index, which would send the array to memory.
template <int kCount>
__device__ __forceinline__ int32_t picked(const int32_t* numbers, int i) {
  int32_t number = numbers[0];
#pragma unroll
  for (int n = 1; n < kCount; ++n) number = n == i ? numbers[n] : number;
  return number;
}

// Sums over this lane and those before it, all of them under way at once. The shuffle itself tells which
// lanes have one at that distance.
template <int kCount, class T>
__device__ __forceinline__ void warp_inclusive_sums(T (&values)[kCount]) {
  static_assert(sizeof(T) == sizeof(int32_t));
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      asm volatile(
          "{\n\t.reg .pred p;\n\t.reg .b32 other;\n\t"
          "shfl.sync.up.b32 other|p, %0, %1, 0, 0xffffffff;\n\t@p add.s32 %0, %0, other;\n\t}"
          : "+r"(values[i])
          : "r"(distance));
    }
  }
}
template <class T>
__device__ __forceinline__ T warp_inclusive_sum(T value) {
  T values[] = {value};
  warp_inclusive_sums(values);
  return values[0];
}

// The largest of this lane's and those before it.
template <class T>
__device__ __forceinline__ T warp_inclusive_max(T value) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    value = max(value, __shfl_up_sync(kAllLanes, value, distance));
  }
  return value;
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
