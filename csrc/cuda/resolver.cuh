// How one block answers the references of one request: the stages between its loads and its counters.
#pragma once

#include "common/params.h"
#include "hot_slots.cuh"
#include "lookup_table.cuh"
#include "references.cuh"
#include "victims.cuh"
#include "warp.cuh"

namespace hisparse::cuda {

struct Outputs {
  int32_t* device_rows;
  int32_t* valid_counts;
  int32_t* miss_host_rows;
  int32_t* miss_device_rows;
  int32_t* miss_counts;
};

// How a kernel is built. kSlotItems = 0 reads the slots from memory each time.
template <int kThreads_, int kReferenceItems_, int kSlotItems_, int kTableBits_>
struct Build {
  static constexpr int kThreads = kThreads_, kWarps = kThreads / kWarp;
  static constexpr int kReferenceItems = kReferenceItems_, kSlotItems = kSlotItems_;
  static constexpr int kTableBits = kTableBits_;
  static constexpr int32_t kChunk = kThreads * kReferenceItems;
  static_assert(2 * kChunk <= 1 << kTableBits);

  // For unions beyond kChunk, in the same memory; small rather than fast.
  using InChunks = Build<kThreads, 2, 0, kTableBits>;
};

// What a block keeps in shared memory: `ints` is the large part.
struct SmallWorkspace {
  uint32_t low, next_low;
  int32_t missing;  // distinct rows entered and, so far, not hit
  int32_t sums[kBuckets / kWarp], misses_of[kWarp];
  int32_t resident, padding, valid;
};

template <class B>
struct Workspace {
  static constexpr int32_t kTableInts = 2 << B::kTableBits;
  static constexpr int32_t kCountedInts = Victims<B::kThreads>::kCountedInts;
  static constexpr size_t kBytes = sizeof(int32_t) * (kTableInts + kCountedInts + kBuckets + B::kChunk);

  int32_t* ints;
  SmallWorkspace& small;

  __device__ LookupTable table() const {
    return {{ints, B::kTableBits}, reinterpret_cast<uint32_t*>(ints + kTableInts / 2)};
  }

  __device__ Victims<B::kThreads> victims() const {
    int32_t* counted = ints + kTableInts;
    int32_t* bases = counted + kCountedInts;
    return {reinterpret_cast<uint16_t*>(counted), bases - kBuckets, bases, small.sums, bases + kBuckets};
  }

  __device__ void clear_window() const {
    block_fill<B::kThreads>(ints + kTableInts, kCountedInts, 0);
    if (threadIdx.x == 0) small.next_low = kNoStamp;
  }

  __device__ void clear() const {
    block_fill<B::kThreads>(ints, kTableInts, -1);
    clear_window();
    if (threadIdx.x == 0) {
      small.low = kNoStamp;
      small.missing = 0;
    }
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

  // Settles every reference or enters its row, looks for the rows in the slots, and gives hits the new stamp.
  // Returns how many rows are missing.
  __device__ int32_t look_up() {
    bool any = false;
    const int32_t entered = references_.enter(request_.query, table_, any);
    slots_.load_stamps();
    add_to(work_.small.missing, entered);
    if (!__syncthreads_or(any)) return 0;

    add_to(work_.small.missing, -slots_.probe(table_));
    __syncthreads();
    const uint32_t low = __reduce_min_sync(kAllLanes, slots_.settle(table_, request_.now));
    if (lane_number() == 0) atomicMin(&work_.small.low, low);
    return work_.small.missing;
  }

  // Finds victims for the misses; returns for how many. With kSpare, slots that have the new stamp are not
  // free.
  template <bool kSpare>
  __device__ int32_t make_room(int32_t misses) {
    count_misses();
    __syncthreads();
    number_misses();
    const auto each_slot = [&](auto f) {
      slots_.each(table_, [&](int32_t slot, bool free, int32_t stamp) {
        f(slot, free && !(kSpare && stamp == request_.now), stamp);
      });
    };
    for (int32_t placed = 0;;) {
      WarpWindow window{work_.small.low};
      each_slot([&](int32_t, bool free, int32_t stamp) { victims_.count(window, free, stamp); });
      const uint32_t beyond = __reduce_min_sync(kAllLanes, window.beyond);
      if (lane_number() == 0) atomicMin(&work_.small.next_low, beyond);
      const bool more = __syncthreads_or(window.any_beyond);
      victims_.scan();
      __syncthreads();
      placed += victims_.place(window, placed, misses, each_slot);
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
    constexpr int kItems = B::kReferenceItems;
    uint32_t values[kItems];
    int32_t slots[kItems], rows[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j)
      values[j] = references_.is_wanted(j) ? table_.values[references_.entry(j)] : 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const auto rank = static_cast<int32_t>(values[j] - kRank);
      const bool loaded = values[j] >= kRank && rank < loads;
      slots[j] = loaded ? victims_.slots[rank] : kNone;
      if (references_.is_wanted(j) && values[j] < kFirstReference) slots[j] = static_cast<int32_t>(values[j]);
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      rows[j] = slots[j] >= 0 ? request_.hot.device_row(slots[j]) : max(references_.found(j), kNone);
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (references_.real(j)) out_.device_rows[request_.plan + first + references_.number(j)] = rows[j];
      if ((firsts_ >> j & 1) && slots[j] >= 0) {
        const int32_t entry = request_.plan + before + static_cast<int32_t>(values[j] - kRank);
        enter_load(slots[j], table_.keys[references_.entry(j)], entry, rows[j]);
      }
      resident_ += references_.found(j) >= 0;
      padding_ += references_.real(j) && references_.found(j) == kPadded;
      valid_ += rows[j] >= 0;
    }
    if (request_.rows > 1) {
      for (int j = 0; j < kItems; ++j) {
        count_in_row(request_.query.columns.divide(first + references_.number(j)), rows[j] >= 0);
      }
    }
    firsts_ = 0;
  }

  // Sums of all threads, in the workspace after the next barrier.
  __device__ void add_up() const {
    add_to(work_.small.resident, resident_);
    add_to(work_.small.padding, padding_);
    add_to(work_.small.valid, valid_);
  }

 private:
  // For a whole warp.
  __device__ __forceinline__ static void add_to(int32_t& sum, int32_t value) {
    const int32_t of_warp = __reduce_add_sync(kAllLanes, value);
    if (lane_number() == 0 && of_warp != 0) atomicAdd(&sum, of_warp);
  }

  __device__ void count_misses() {
    int32_t in_warp = 0;
#pragma unroll
    for (int j = 0; j < B::kReferenceItems; ++j) {
      const uint32_t value = references_.is_wanted(j) ? table_.values[references_.entry(j)] : 0;
      const bool first = value == kFirstReference + references_.number(j);
      firsts_ |= static_cast<uint32_t>(first) << j;
      in_warp += __popc(__ballot_sync(kAllLanes, first));
    }
    if (lane_number() == 0) work_.small.misses_of[warp_number()] = in_warp;
  }

  // In order of first reference.
  __device__ void number_misses() {
    const int32_t before = lane_number() < warp_number() ? work_.small.misses_of[lane_number()] : 0;
    int32_t rank = __reduce_add_sync(kAllLanes, before);
#pragma unroll
    for (int j = 0; j < B::kReferenceItems; ++j) {
      const bool first = firsts_ >> j & 1;
      const unsigned all = __ballot_sync(kAllLanes, first);
      if (first) table_.values[references_.entry(j)] = kRank + rank + __popc(all & lanes_before());
      rank += __popc(all);
    }
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
  Slots<B::kThreads, B::kSlotItems> slots_;
  uint32_t firsts_ = 0;  // bit j: the thread's j-th reference is the first to a miss
  int32_t resident_ = 0, padding_ = 0, valid_ = 0;  // of the thread's references
};

}  // namespace hisparse::cuda
