// A hash table of host rows in shared memory.
#pragma once

#include <cstdint>

#include "common/hash.h"
#include "shared_memory.cuh"

namespace hisparse::cuda {

// Keys >= 0. They lie in groups of four, which one access reads. A key is entered where its hash points or,
// if that is taken, elsewhere in its group; where that is full, in the next one. All who enter a key try the
// same places in the same order. At most half of all places are in use, so that every search ends.
struct KeyTable {
  static constexpr int kGroupBits = 2, kMinBits = kGroupBits + 1;
  static constexpr int32_t kGroup = 1 << kGroupBits;
  static constexpr int32_t kFurther = -2;

  int32_t* keys;  // kNone = free; 16-byte aligned
  int bits;

  __device__ __forceinline__ int32_t first_place(int32_t key) const {
    return static_cast<int32_t>(hash_start(key, bits));
  }

  // Where to try next, with attempts counted from 0.
  __device__ __forceinline__ int32_t place(int32_t key, int32_t attempt) const {
    const int32_t group = attempt & -kGroup, inside = attempt & (kGroup - 1);
    return ((first_place(key) ^ inside) + group) & ((1 << bits) - 1);
  }

  // One step of a search: kNone if `key` is not there, kFurther if it may be in the next group.
  __device__ __forceinline__ int32_t look(int32_t key, int32_t group) const {
    const int4 four = reinterpret_cast<const int4*>(keys)[group];
    const int32_t first = group * kGroup;
    int32_t place = (four.x | four.y | four.z | four.w) < 0 ? kNone : kFurther;
    if (four.x == key) place = first;
    if (four.y == key) place = first + 1;
    if (four.z == key) place = first + 2;
    if (four.w == key) place = first + 3;
    return place;
  }

  __device__ __forceinline__ int32_t first_group(int32_t key) const { return first_place(key) >> kGroupBits; }

  __device__ __forceinline__ int32_t next_group(int32_t group) const {
    return (group + 1) & ((1 << (bits - kGroupBits)) - 1);
  }

  // Puts `key` into `place` if that is free. Returns what was there.
  __device__ __forceinline__ int32_t claim(int32_t key, int32_t place) const {
    return atomicCAS(&keys[place], kNone, key);
  }

  // Enters a key whose first place was taken by another, at the first free place of its group or of the next
  // ones.
  __device__ __forceinline__ void enter_further(int32_t key) const {
    for (int32_t group = first_group(key);;) {
      const int32_t there = look(key, group);
      if (there >= 0) return;
      if (there == kFurther) {
        group = next_group(group);
        continue;
      }
      const int4 four = reinterpret_cast<const int4*>(keys)[group];
      const int32_t place = group * kGroup + (four.x < 0 ? 0 : four.y < 0 ? 1 : four.z < 0 ? 2 : 3);
      // Another thread may have taken it since.
      const int32_t found = claim(key, place);
      if (found == kNone || found == key) return;
    }
  }

  // kNone if `key` is not there.
  __device__ __forceinline__ int32_t find(int32_t key) const {
    const int32_t place = look(key, first_group(key));
    return place == kFurther ? find_further(key) : place;
  }

  // Behind the first group.
  __device__ __forceinline__ int32_t find_further(int32_t key) const {
    int32_t group = first_group(key), place;
    do {
      group = next_group(group);
      place = look(key, group);
    } while (place == kFurther);
    return place;
  }
};

// The rows that are looked for in the hot buffer, with a value for each at the same place. The values of
// places without a key are never read.
//
// | value                 | from .. to             | set in stage | the row                               |
// |-----------------------|------------------------|--------------|---------------------------------------|
// | kMissing              | 2^32 - 1               | enter        | is in no slot seen so far             |
// | slot                  | 0 .. 2^30 - 1          | probe        | is hit                                |
// | kFirstReference + i   | 2^30 .. 2^31 - 1       | settle       | is missed: its lowest reference       |
// | kRank + rank          | 2^31 .. 2^32 - 2       | number       | is missed: its rank among the misses  |
constexpr uint32_t kFirstReference = 1u << 30;
constexpr uint32_t kRank = 1u << 31;
constexpr uint32_t kMissing = ~0u;

struct LookupTable : KeyTable {
  uint32_t* values;

  // A place of this thread behind those that are searched: it stays free when kNone is put there, so that no
  // thread of a warp has to be told apart.
  __device__ __forceinline__ int32_t spare_place() const { return (1 << bits) + lane_number(); }

  // Where a new key is, it is missing: for whoever has claimed its place.
  __device__ __forceinline__ void set_missing(int32_t place) const { values[place] = kMissing; }
};

}  // namespace hisparse::cuda
