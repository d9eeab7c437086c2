// Marks functions that CPU kernels and CUDA kernels share. The headers in this folder know no torch.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define HISPARSE_HD __host__ __device__ __forceinline__
#else
#define HISPARSE_HD inline
#endif

namespace hisparse {

constexpr int32_t kNone = -1;  // no row, an empty slot, an unused plan entry
constexpr int32_t kMaxRow = INT32_MAX;

// What `counters` counts, in order.
enum Counter { kResident, kHit, kMiss, kPadding, kFault, kCounters };

}  // namespace hisparse
