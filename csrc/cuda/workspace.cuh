// How a kernel of resolve is built, and what its block keeps in shared memory.
#pragma once

#include <cstdint>

#include "hot_slots.cuh"
#include "lookup_table.cuh"
#include "oldest_stamps.cuh"
#include "victims.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

// References that are answered, of a warp.
struct __align__(16) Tally {
  int32_t resident, padding, valid;

  // For a whole warp: what its threads have answered, each at most 2^kBits / kWarp.
  static constexpr int kBits = 10;
  __device__ __forceinline__ void add(uint32_t resident_here, uint32_t padding_here, uint32_t valid_here) {
    constexpr uint32_t kMask = (1 << kBits) - 1;
    const uint32_t of_thread = resident_here | padding_here << kBits | valid_here << 2 * kBits;
    const uint32_t of_warp = __reduce_add_sync(kAllLanes, of_thread);
    if (lane_number() != 0) return;
    resident += static_cast<int32_t>(of_warp & kMask);
    padding += static_cast<int32_t>(of_warp >> kBits & kMask);
    valid += static_cast<int32_t>(of_warp >> 2 * kBits);
  }

  // For a whole warp, each lane with a tally of its own.
  __device__ __forceinline__ Tally sum() const {
    return {__reduce_add_sync(kAllLanes, resident), __reduce_add_sync(kAllLanes, padding),
            __reduce_add_sync(kAllLanes, valid)};
  }
};

constexpr int kMaxParts = 4;  // of a request

// How a kernel is built. kSlotItems = 0 reads the slots from memory each time; else slots and, with kVector >
// 1, columns are read several at once.
template <int kThreads_, int kReferenceItems_, int kVector_, int kSlotItems_, int kTableBits_,
          int kBlocksPerProcessor_ = 1, int kParts_ = 1>
struct Build {
  static constexpr int kBlocksPerProcessor = kBlocksPerProcessor_;
  static constexpr int kParts = kParts_;  // at most so many blocks answer one request together
  static constexpr int kThreads = kThreads_, kWarps = kThreads / kWarp;
  static constexpr int kReferenceItems = kReferenceItems_, kVector = kVector_, kSlotItems = kSlotItems_;
  static constexpr int kTableBits = kTableBits_;
  static constexpr bool kFewBlocks = kSlotItems > 0;
  static constexpr int32_t kChunk = kThreads * kReferenceItems;
  static_assert(2 * kChunk <= 1 << kTableBits);
  static_assert(kParts <= kMaxParts);
  static_assert(kReferenceItems * kWarp < 1 << Tally::kBits);

  // For unions beyond kChunk and irregular batches, in the same memory; small rather than fast.
  using InChunks = Build<kThreads, 2, 1, 0, kTableBits>;
  // For what all parts have left.
  using Joint = Build<kThreads, kParts * kReferenceItems, kSlotGroup, kSlotItems, kTableBits>;
};

// What a block keeps in shared memory beside its look-up table. What differs between B, B::InChunks and
// B::Joint comes last: the rest stays where it is.
template <class B>
struct Space {
  VictimSpace<B::kThreads> victims;
  OldestSpace oldest;
  HotNotes notes;
  int32_t misses_of[B::kWarps];
  Tally tallies[kWarp];
  int32_t left[kMaxParts];  // by part: whether it has left rows that are missing
  int32_t victim_slots[B::kChunk];
  uint16_t missed_places[B::kChunk];  // in the look-up table, by rank
};

template <class B>
struct Workspace {
  static constexpr int32_t kPlaces = 1 << B::kTableBits;
  static_assert(kPlaces <= 1 << 16, "places are 16 bits wide");
  static constexpr int32_t kWithSpare = kPlaces + kWarp;
  static constexpr size_t kBytes = 2 * sizeof(int32_t) * kWithSpare + sizeof(Space<B>);

  int32_t* ints;

  __device__ LookupTable table() const {
    return {{ints, B::kTableBits}, reinterpret_cast<uint32_t*>(ints + kWithSpare)};
  }
  __device__ Space<B>& space() const { return *reinterpret_cast<Space<B>*>(ints + 2 * kWithSpare); }

  // Before a union, or a chunk of it.
  __device__ void clear() const {
    constexpr int kVectors = kPlaces * sizeof(int32_t) / sizeof(int4);
#pragma unroll
    for (int i = 0; i < kVectors / B::kThreads; ++i) {
      reinterpret_cast<int4*>(ints)[i * B::kThreads + threadIdx.x] = make_int4(kNone, kNone, kNone, kNone);
    }
    if (threadIdx.x == 0) space().notes.twice = false;
  }

  // Before a request.
  __device__ void clear_all() const {
    clear();
    if (threadIdx.x < kWarp) {
      space().tallies[threadIdx.x] = {};
      ints[kPlaces + threadIdx.x] = kNone;
    }
    if (threadIdx.x == 0) space().notes.some_unleased = false;
  }
};

}  // namespace hisparse::cuda
