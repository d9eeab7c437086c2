// A hash table of host rows in shared memory, with one value for each.
#pragma once

#include <cstdint>

#include "common/hash.h"

namespace hisparse::cuda {

struct LookupTable {
  int32_t* keys;     // kNone = free; at most half of them in use, so that every search ends
  uint32_t* values;  // follow the keys; kUnset when cleared
  int bits;

  static constexpr uint32_t kUnset = ~0u;

  __host__ __device__ int32_t capacity() const { return 1 << bits; }

  // Returns the place of `key`.
  __device__ int32_t insert(int32_t key) const {
    uint32_t place = hash_start(key, bits);
    for (;;) {
      const int32_t found = atomicCAS(&keys[place], kNone, key);
      if (found == kNone || found == key) return static_cast<int32_t>(place);
      place = hash_next(place, bits);
    }
  }

  // kNone if `key` is not there.
  __device__ int32_t find(int32_t key) const {
    uint32_t place = hash_start(key, bits);
    for (;;) {
      const int32_t found = keys[place];
      if (found == key) return static_cast<int32_t>(place);
      if (found == kNone) return kNone;
      place = hash_next(place, bits);
    }
  }
};

}  // namespace hisparse::cuda
