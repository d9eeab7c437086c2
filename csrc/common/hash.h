// The hash step of the look-up table: open addressing, linear probing, a power-of-two capacity.
#pragma once

#include "hd.h"

namespace hisparse {

// Capacity for `keys` keys, as a power of two: at most half full, so that probes stay short and always end.
HISPARSE_HD int hash_bits(int64_t keys) {
  int bits = 1;
  while ((int64_t{1} << bits) < 2 * keys) ++bits;
  return bits;
}

// First place to look for `key`. The multiplication spreads keys that are equal modulo the capacity.
HISPARSE_HD uint32_t hash_start(int32_t key, int bits) {
  constexpr uint32_t kGoldenRatio = 2654435769u;  // 2^32 / phi
  return (static_cast<uint32_t>(key) * kGoldenRatio) >> (32 - bits);
}

HISPARSE_HD uint32_t hash_next(uint32_t place, int bits) { return (place + 1) & ((uint32_t{1} << bits) - 1); }

}  // namespace hisparse
