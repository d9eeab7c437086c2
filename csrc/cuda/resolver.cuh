// How one block answers the references of one request: the stages between its loads and its counters.
//
// A value of the look-up table is first the lowest reference to the row, then, if the row is hit, the slot,
// else, if it is missed, the rank among the misses:
//
// | value                 | from .. to             | set in stage |
// |-----------------------|------------------------|--------------|
// | slot                  | 0 .. 2^30 - 1          | probe        |
// | kFirstReference + i   | 2^30 .. 2^31 - 1       | enter        |
// | kRank + rank          | 2^31 ..                | number       |
#pragma once

#include "common/params.h"
#include "hot_slots.cuh"
#include "lookup_table.cuh"
#include "references.cuh"
#include "victims.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

constexpr uint32_t kRank = 1u << 31;

struct Outputs {
  int32_t* device_rows;
  int32_t* valid_counts;
  int32_t* miss_host_rows;
  int32_t* miss_device_rows;
  int32_t* miss_counts;
};

// How a kernel is built. kSlotItems = 0 reads the slots from memory each time.
template <int kThreads_, int kReferenceItems_, int kSlotItems_, int kTableBits_, int kBlocksPerSM_>
struct Build {
  static constexpr int kThreads = kThreads_, kWarps = kThreads / kWarp;
  static constexpr int kReferenceItems = kReferenceItems_, kSlotItems = kSlotItems_;
  static constexpr int kTableBits = kTableBits_, kBlocksPerSM = kBlocksPerSM_;
  static constexpr int32_t kChunk = kThreads * kReferenceItems;
  static_assert(2 * kChunk <= 1 << kTableBits);

  // For unions beyond kChunk, in the same memory; small rather than fast.
  using InChunks = Build<kThreads, 2, 0, kTableBits, kBlocksPerSM>;
};

struct SmallWorkspace {
  uint32_t low, next_low;
  int32_t sums[kBuckets / kWarp], misses_of[kWarp];
  int32_t resident, padding, valid;
};

// What a block keeps in shared memory: `ints` is the large part.
template <class B>
struct Workspace {
  static constexpr int32_t kTableInts = 2 << B::kTableBits;
  static constexpr int32_t kCountedInts = Victims<B::kThreads>::kCountedInts;
  static constexpr size_t kBytes = sizeof(int32_t) * (kTableInts + kCountedInts + kBuckets + B::kChunk);

  int32_t* ints;
  SmallWorkspace& small;

  __device__ LookupTable table() const {
    return {ints, reinterpret_cast<uint32_t*>(ints + kTableInts / 2), B::kTableBits};
  }

  __device__ Victims<B::kThreads> victims() const {
    int32_t* counted = ints + kTableInts;
    int32_t* bases = counted + kCountedInts;
    return {reinterpret_cast<uint16_t*>(counted), bases - kBuckets, bases, small.sums, bases + kBuckets};
  }

  __device__ void clear_window() const {
    block_fill(ints + kTableInts, kCountedInts, 0);
    if (threadIdx.x == 0) small.next_low = kNoStamp;
  }

  __device__ void clear() const {
    block_fill(ints, kTableInts, -1);
    clear_window();
    if (threadIdx.x == 0) small.low = kNoStamp;
  }
};

// One request's lines of all tensors.
struct Request {
  Query query;
  HotRow hot;
  int32_t now;    // its clock in this call
  int32_t rows;   // query rows
  int32_t plan;   // where its entries of device_rows and of the plan begin
  int32_t total;  // references
};

template <class B>
class Resolver {
 public:
  using Refs = References<B::kThreads, B::kReferenceItems>;
  using HotSlots = Slots<B::kThreads, B::kSlotItems>;

  __device__ Resolver(const Workspace<B>& work, const Request& request, const Outputs& out, Refs& references)
      : work_(work),
        table_(work.table()),
        victims_(work.victims()),
        request_(request),
        out_(out),
        references_(references),
        slots_(request.hot) {}

  __device__ void load() {
    references_.load_pages(request_.query);
    slots_.load_rows();
  }

  // Settles or enters every reference, and finds the hits among those entered. Returns whether there are any.
  __device__ bool look_up() {
    const bool entered = references_.enter(request_.query, table_);
    slots_.load_stamps();
    if (!__syncthreads_or(entered)) return false;

    const uint32_t lowest = __reduce_min_sync(kAllLanes, slots_.probe(table_));
    if (lane_number() == 0) atomicMin(&work_.small.low, lowest);
    __syncthreads();

    slots_.each(table_, [&](int32_t slot, int32_t mark, int32_t) {
      if (is_hit(slot, mark)) request_.hot.stamps[slot] = request_.now;
    });
    return true;
  }

  // Finds victims for the misses; returns for how many. Slots whose stamp is `spare` are not free.
  template <bool kSpare>
  __device__ int32_t make_room() {
    count_misses();
    const auto each_slot = [&](auto f) {
      slots_.each(table_, [&](int32_t slot, int32_t mark, int32_t stamp) {
        f(slot, mark != kOut && !is_hit(slot, mark) && !(kSpare && stamp == request_.now), stamp);
      });
    };
    int32_t misses = 0, placed = 0;
    for (bool first_window = true;; first_window = false) {
      const uint32_t low = work_.small.low;
      uint32_t next = kNoStamp;
      bool beyond = false;
      each_slot([&](int32_t, bool free, int32_t stamp) {
        if (!victims_.count(low, free, stamp)) return;
        beyond = true;
        next = min(next, stamp_order(stamp));
      });
      next = __reduce_min_sync(kAllLanes, next);
      if (lane_number() == 0) atomicMin(&work_.small.next_low, next);
      const bool more = __syncthreads_or(beyond);

      if (first_window) {
        misses = number_misses();
        if (misses == 0) return 0;
      }
      victims_.scan();
      __syncthreads();
      placed += victims_.place(low, placed, misses, each_slot);
      __syncthreads();
      if (placed >= misses || !more) return min(placed, misses);

      if (threadIdx.x == 0) work_.small.low = work_.small.next_low;
      __syncthreads();
      work_.clear_window();
      __syncthreads();
    }
  }

  // Writes the answer to every reference, and the loads into slots and plan, where `before` of them are
  // already.
  __device__ void answer(int32_t first, int32_t loads, int32_t before) {
    int32_t bit = 0;
    references_.each([&](int32_t i, bool real, int32_t found) {
      const bool first_of_row = firsts_ >> bit++ & 1;
      int32_t row = max(found, kNone);
      if (Refs::is_wanted(found)) {
        const int32_t entry = Refs::entry_of(found);
        const uint32_t value = table_.values[entry];
        const auto rank = static_cast<int32_t>(value - kRank);
        const int32_t slot = value < kFirstReference ? static_cast<int32_t>(value)
                             : rank < loads          ? victims_.slots[rank]
                                                     : kNone;
        row = slot == kNone ? kNone : slot_device_row(request_.hot.blocks, slot, request_.hot.shape);
        if (first_of_row && slot != kNone)
          enter_load(slot, table_.keys[entry], request_.plan + before + rank, row);
      }
      if (real) out_.device_rows[request_.plan + first + i] = row;

      resident_ += found >= 0;
      padding_ += real && found == kPadded;
      valid_ += row >= 0;
      if (request_.rows > 1) count_in_row((first + i) / request_.query.columns(), row >= 0);
    });
    firsts_ = 0;
  }

  // Sums of all threads, in the workspace after the next barrier.
  __device__ void add_up() const {
    const int32_t resident = __reduce_add_sync(kAllLanes, resident_);
    const int32_t padding = __reduce_add_sync(kAllLanes, padding_);
    const int32_t valid = __reduce_add_sync(kAllLanes, valid_);
    if (lane_number() != 0) return;
    atomicAdd(&work_.small.resident, resident);
    atomicAdd(&work_.small.padding, padding);
    atomicAdd(&work_.small.valid, valid);
  }

 private:
  __device__ bool is_hit(int32_t slot, int32_t mark) const {
    return mark >= 0 && table_.values[mark] == static_cast<uint32_t>(slot);
  }

  __device__ void count_misses() {
    int32_t in_warp = 0, bit = 0;
    references_.each([&](int32_t i, bool, int32_t found) {
      const bool first =
          Refs::is_wanted(found) && table_.values[Refs::entry_of(found)] == kFirstReference + i;
      firsts_ |= static_cast<uint32_t>(first) << bit++;
      in_warp += __popc(__ballot_sync(kAllLanes, first));
    });
    if (lane_number() == 0) work_.small.misses_of[warp_number()] = in_warp;
  }

  // In order of first reference; returns how many there are.
  __device__ int32_t number_misses() {
    const int32_t of_warp = lane_number() < B::kWarps ? work_.small.misses_of[lane_number()] : 0;
    int32_t rank = __reduce_add_sync(kAllLanes, lane_number() < warp_number() ? of_warp : 0), bit = 0;
    references_.each([&](int32_t, bool, int32_t found) {
      const bool first = firsts_ >> bit++ & 1;
      const unsigned all = __ballot_sync(kAllLanes, first);
      if (first) table_.values[Refs::entry_of(found)] = kRank + rank + __popc(all & lanes_before());
      rank += __popc(all);
    });
    return __reduce_add_sync(kAllLanes, of_warp);
  }

  __device__ void enter_load(int32_t slot, int32_t host_row, int32_t entry, int32_t device_row) const {
    request_.hot.rows[slot] = host_row;
    request_.hot.stamps[slot] = request_.now;
    out_.miss_host_rows[entry] = host_row;
    out_.miss_device_rows[entry] = device_row;
  }

  // For a whole warp, whose references may lie in several query rows.
  __device__ void count_in_row(int32_t row, bool valid) const {
    const unsigned alike = __match_any_sync(kAllLanes, valid ? row : kNone);
    if (valid && (alike & lanes_before()) == 0) {
      atomicAdd(&out_.valid_counts[request_.query.first_row + row], __popc(alike));
    }
  }

  const Workspace<B> work_;
  const LookupTable table_;
  const Victims<B::kThreads> victims_;
  const Request& request_;
  const Outputs& out_;
  Refs& references_;
  HotSlots slots_;
  uint32_t firsts_ = 0;  // bit j: the thread's j-th reference is the first to a row that misses
  int32_t resident_ = 0, padding_ = 0, valid_ = 0;  // of the thread's references
};

}  // namespace hisparse::cuda
