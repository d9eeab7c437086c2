// Division by a number that a whole launch shares.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hisparse::cuda {

// One multiplication and two shifts, exact for 0 <= n < 2^31.
struct Divisor {
  int32_t value;        // >= 0; what is divided by 0 is never looked at
  uint32_t multiplier;  // 2^(31 + bits) / value, rounded up, where 2^bits >= value
  int32_t bits;

  explicit Divisor(int32_t by) : value(by) {
    const uint32_t divisor = std::max(by, 1);
    bits = std::bit_width(divisor - 1);
    multiplier = static_cast<uint32_t>((uint64_t{1} << (31 + bits)) / divisor + 1);
  }

  __device__ __forceinline__ int32_t divide(int32_t n) const {
    return static_cast<int32_t>(__umulhi(2 * static_cast<uint32_t>(n), multiplier) >> bits);
  }
};

}  // namespace hisparse::cuda
