// Which slot is given up first.
#pragma once

#include "hd.h"

namespace hisparse {

// Victims go by ascending key: (stamp, slot number), an empty slot counting as stamp 0.
HISPARSE_HD int64_t victim_key(int32_t cached_row, int32_t stamp, int32_t slot) {
  const int64_t last_use = cached_row < 0 ? 0 : stamp;
  return last_use * (int64_t{1} << 32) + slot;
}

HISPARSE_HD int32_t victim_slot(int64_t key) { return static_cast<int32_t>(key & INT32_MAX); }

}  // namespace hisparse
