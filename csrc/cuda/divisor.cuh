// Division by a number that a whole launch shares.
#pragma once

#include <bit>
#include <cstdint>

namespace hisparse::cuda {

// One multiplication and one shift, exact for 0 <= n < 2^31.
struct Divisor {
  int32_t value;        // >= 1
  uint32_t multiplier;  // 2^(31 + bits) / value, rounded up, where 2^bits >= value
  int32_t shift;        // 31 + bits

  explicit Divisor(int32_t by) : value(by) {
    shift = 31 + std::bit_width(static_cast<uint32_t>(by) - 1);
    multiplier = static_cast<uint32_t>((uint64_t{1} << shift) / by + 1);
  }

  __device__ __forceinline__ int32_t divide(int32_t n) const {
    return static_cast<int32_t>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * multiplier >> shift);
  }
};

}  // namespace hisparse::cuda
