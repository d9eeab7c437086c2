// A hash table of host rows in shared memory.
#pragma once

#include <cstdint>

#include "common/hash.h"

namespace hisparse::cuda {

// Keys >= 0. They lie in groups of four, which one access reads; a group fills up from its first place, and a
// full one runs over into the next. At most half of all places are in use, so that every search ends.
struct KeyTable {
  static constexpr int kGroupBits = 2, kMinBits = kGroupBits + 1;
  static constexpr int32_t kFurther = -2;

  int32_t* keys;  // kNone = free; 16-byte aligned
  int bits;

  __device__ __forceinline__ uint32_t first_group(int32_t key) const {
    return hash_start(key, bits - kGroupBits);
  }

  // One step of an insertion: looks at `group`, and moves it on if it is full. Returns the place of `key`,
  // which is `added` if it is new; kNone if another step is needed.
  __device__ __forceinline__ int32_t try_insert(int32_t key, uint32_t& group, bool& added) const {
    const int4 four = read_again(group);
    const int32_t place = place_of(key, group, four);
    if (place != kNone) return place;
    if (four.w != kNone) {
      group = next_group(group);
      return kNone;
    }
    const int32_t free = first_place(group) + (four.x != kNone) + (four.y != kNone) + (four.z != kNone);
    const int32_t found = atomicCAS(&keys[free], kNone, key);
    added = found == kNone;
    return added || found == key ? free : kNone;
  }

  __device__ __forceinline__ int32_t insert(int32_t key, bool& added) const {
    uint32_t group = first_group(key);
    int32_t place;
    while ((place = try_insert(key, group, added)) == kNone) {
    }
    return place;
  }

  // One step of a search: kNone if `key` is not there, kFurther if it may be in the next group.
  __device__ __forceinline__ int32_t look(int32_t key, uint32_t group) const {
    const int4 four = reinterpret_cast<const int4*>(keys)[group];
    const int32_t place = place_of(key, group, four);
    return place == kNone && four.w != kNone ? kFurther : place;
  }

  __device__ __forceinline__ uint32_t next_group(uint32_t group) const {
    return hash_next(group, bits - kGroupBits);
  }

  // kNone if `key` is not there.
  __device__ __forceinline__ int32_t find(int32_t key) const {
    uint32_t group = first_group(key);
    int32_t place;
    while ((place = look(key, group)) == kFurther) group = next_group(group);
    return place;
  }

 private:
  __device__ static int32_t first_place(uint32_t group) { return static_cast<int32_t>(group << kGroupBits); }

  // While other threads insert.
  __device__ __forceinline__ int4 read_again(uint32_t group) const {
    const auto address =
        static_cast<uint32_t>(__cvta_generic_to_shared(keys)) + group * uint32_t{sizeof(int4)};
    int4 four;
    asm volatile("ld.volatile.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
                 : "r"(address)
                 : "memory");
    return four;
  }

  __device__ __forceinline__ static int32_t place_of(int32_t key, uint32_t group, int4 four) {
    const int32_t first = first_place(group);
    int32_t place = kNone;
    if (four.x == key) place = first;
    if (four.y == key) place = first + 1;
    if (four.z == key) place = first + 2;
    if (four.w == key) place = first + 3;
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
