// A hash table of host rows in shared memory.
#pragma once

#include <cstdint>

#include "common/hash.h"

namespace hisparse::cuda {

// Keys >= 0. They lie in groups of four, which one access reads. A key is entered at the first free place
// from where its hash points: round its group, then round the next one. At most half of all places are in
// use, so that every search ends.
struct KeyTable {
  static constexpr int kGroupBits = 2, kMinBits = kGroupBits + 1;
  static constexpr int32_t kGroup = 1 << kGroupBits;
  static constexpr int32_t kFurther = -2;

  int32_t* keys;  // kNone = free; 16-byte aligned
  int bits;

  __device__ __forceinline__ int32_t first_place(int32_t key) const {
    return static_cast<int32_t>(hash_start(key, bits));
  }

  // One step of an insertion: tries `place`, and moves it on if another key is there. Returns whether `key`
  // is there now; it is `added` if it was not before.
  __device__ __forceinline__ bool try_insert(int32_t key, int32_t& place, bool& added) const {
    const int32_t found = atomicCAS(&keys[place], kNone, key);
    added = found == kNone;
    if (added || found == key) return true;
    place = (place & -kGroup) | ((place + 1) & (kGroup - 1));
    const bool round = ((place ^ first_place(key)) & (kGroup - 1)) == 0;
    if (round) place = (place + kGroup) & ((1 << bits) - 1);
    return false;
  }

  __device__ __forceinline__ void insert(int32_t key) const {
    int32_t place = first_place(key);
    bool added;
    while (!try_insert(key, place, added)) {
    }
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

// The rows that are looked for in the hot buffer, with a value for each at the same place. A value is first
// the lowest reference to the row, then, if the row is hit, the slot, else, if it is missed, the rank among
// the misses:
//
// | value                 | from .. to             | set in stage |
// |-----------------------|------------------------|--------------|
// | slot                  | 0 .. 2^30 - 1          | probe        |
// | kFirstReference + i   | 2^30 .. 2^31 - 1       | enter        |
// | kRank + rank          | 2^31 ..                | number       |
struct LookupTable : KeyTable {
  uint32_t* values;
};

constexpr uint32_t kFirstReference = 1u << 30;
constexpr uint32_t kRank = 1u << 31;

}  // namespace hisparse::cuda
