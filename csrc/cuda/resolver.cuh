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

// References that are answered.
struct Tally {
  int32_t resident, padding, valid;

  // One number for all three, of one warp: as many references as it has in a chunk fit.
  static constexpr int kBits = 10;
  __device__ __forceinline__ static uint32_t packed(bool resident, bool padding, bool valid) {
    return resident | padding << kBits | valid << 2 * kBits;
  }

  // For a whole warp, with the sums of its threads.
  __device__ __forceinline__ void add(uint32_t of_thread) {
    constexpr uint32_t kMask = (1 << kBits) - 1;
    const uint32_t of_warp = __reduce_add_sync(kAllLanes, of_thread);
    if (lane_number() != 0) return;
    shared_add(resident, of_warp & kMask);
    shared_add(padding, of_warp >> kBits & kMask);
    shared_add(valid, of_warp >> 2 * kBits);
  }
};

// How a kernel is built. kSlotItems = 0 reads the slots from memory each time.
template <int kThreads_, int kReferenceItems_, int kSlotItems_, int kTableBits_, int kBlocksPerProcessor_ = 1>
struct Build {
  static constexpr int kBlocksPerProcessor = kBlocksPerProcessor_;
  static constexpr int kThreads = kThreads_, kWarps = kThreads / kWarp;
  static constexpr int kReferenceItems = kReferenceItems_, kSlotItems = kSlotItems_;
  static constexpr int kTableBits = kTableBits_;
  static constexpr bool kFewBlocks = kSlotItems > 0;
  static constexpr int32_t kChunk = kThreads * kReferenceItems;
  static_assert(2 * kChunk <= 1 << kTableBits);
  static_assert(kReferenceItems * kWarp < 1 << Tally::kBits);

  // For unions beyond kChunk, in the same memory; small rather than fast.
  using InChunks = Build<kThreads, 2, 0, kTableBits>;
};

// What a block keeps in shared memory beside its look-up table. The part that differs between B and
// B::InChunks comes last: the others stay where they are.
template <class B>
struct Space {
  VictimSpace<B::kThreads> victims;
  int32_t hot_bases[kBases];
  int32_t misses_of[B::kWarps];
  int32_t missing;  // distinct rows entered and, so far, not hit
  Tally tally;
  int32_t victim_slots[B::kChunk];
};

template <class B>
struct Workspace {
  static constexpr int32_t kTableInts = 2 << B::kTableBits;
  static constexpr size_t kBytes = sizeof(int32_t) * kTableInts + sizeof(Space<B>);

  int32_t* ints;

  __device__ LookupTable table() const {
    return {{ints, B::kTableBits}, reinterpret_cast<uint32_t*>(ints + kTableInts / 2)};
  }
  __device__ Space<B>& space() const { return *reinterpret_cast<Space<B>*>(ints + kTableInts); }

  __device__ void clear() const {
    constexpr int kVectors = kTableInts * sizeof(int32_t) / sizeof(int4);
#pragma unroll
    for (int i = 0; i < kVectors / B::kThreads; ++i) {
      reinterpret_cast<int4*>(ints)[i * B::kThreads + threadIdx.x] = make_int4(kNone, kNone, kNone, kNone);
    }
    Victims<B::kThreads>::clear(space().victims);
    if (threadIdx.x == 0) space().missing = 0;
  }
};

// One request's lines of all tensors.
template <class B>
struct Request {
  Query query;
  HotRow<B::kFewBlocks> hot;
  int32_t now;    // its clock in this call
  int32_t rows;   // query rows
  int32_t plan;   // where its entries of device_rows and of the plan begin
  int32_t total;  // references
};

template <class B>
class Resolver {
 public:
  using Refs = References<B::kThreads, B::kReferenceItems>;

  __device__ Resolver(const Workspace<B>& work, const Request<B>& request, const Outputs& out,
                      Refs& references)
      : space_(work.space()),
        table_(work.table()),
        request_(request),
        out_(out),
        references_(references),
        slots_(request.hot) {}

  __device__ void load() {
    references_.load_pages(request_.query);
    slots_.load();
  }

  // Settles every reference or enters its row, looks for the rows in the slots, and gives hits the new stamp.
  // Returns how many rows are missing.
  __device__ int32_t look_up() {
    bool any = false;
    warp_add(space_.missing, references_.enter(request_.query, table_, any));
    if (!__syncthreads_or(any)) return 0;

    warp_add(space_.missing, -slots_.probe(table_));
    __syncthreads();
    slots_.settle(table_, request_.now);
    return space_.missing;
  }

  // Finds victims for the misses; returns for how many. With kSpare, slots that have the new stamp are not
  // free.
  template <bool kSpare>
  __device__ int32_t make_room(int32_t misses) {
    const auto each_slot = [&](auto f) {
      slots_.each(table_, [&](int32_t slot, bool free, int32_t stamp) {
        f(slot, free && !(kSpare && stamp == request_.now), stamp);
      });
    };
    Victims<B::kThreads> victims(space_.victims, space_.victim_slots, request_.now);
    slots_.load_stamps();
    count_misses();
    victims.count(each_slot);
    __syncthreads();
    number_misses();
    victims.scan();
    __syncthreads();
    const int32_t found = victims.list(misses, each_slot);
    __syncthreads();
    victims.order(misses);
    victims.take_large(misses, each_slot);
    __syncthreads();
    return found;
  }

  // Nothing is loaded yet.
  __device__ void clear_plan() const {
#pragma unroll
    for (int j = 0; j < B::kReferenceItems; ++j) {
      if (!references_.real(j)) continue;
      out_.miss_host_rows[request_.plan + references_.number(j)] = kNone;
      out_.miss_device_rows[request_.plan + references_.number(j)] = kNone;
    }
  }

  // Writes the answer to every reference, and the loads into slots and plan, where `before` of them are
  // already.
  __device__ void answer(int32_t first, int32_t loads, int32_t before) {
    constexpr int kItems = B::kReferenceItems;
    uint32_t values[kItems], tally = 0;
    int32_t slots[kItems], rows[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j)
      values[j] = references_.is_wanted(j) ? table_.values[references_.entry(j)] : 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const auto rank = static_cast<int32_t>(values[j] - kRank);
      const bool loaded = values[j] >= kRank && rank < loads;
      slots[j] = loaded ? space_.victim_slots[rank] : kNone;
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
      tally += Tally::packed(references_.found(j) >= 0,
                             references_.real(j) && references_.found(j) == kPadded, rows[j] >= 0);
    }
    space_.tally.add(tally);
    if (request_.rows > 1) count_in_rows(first, rows);
    firsts_ = 0;
  }

 private:
  __device__ void count_misses() {
    int32_t in_warp = 0;
#pragma unroll
    for (int j = 0; j < B::kReferenceItems; ++j) {
      const uint32_t value = references_.is_wanted(j) ? table_.values[references_.entry(j)] : 0;
      const bool first = value == kFirstReference + references_.number(j);
      firsts_ |= static_cast<uint32_t>(first) << j;
      in_warp += __popc(__ballot_sync(kAllLanes, first));
    }
    if (lane_number() == 0) space_.misses_of[warp_number()] = in_warp;
  }

  // In order of first reference.
  __device__ void number_misses() {
    const int32_t before = lane_number() < warp_number() ? space_.misses_of[lane_number()] : 0;
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

  // Adds to the valid counts of query rows. A warp's 32 references mostly lie in one.
  __device__ void count_in_rows(int32_t first, const int32_t (&rows)[B::kReferenceItems]) const {
    const Divisor& columns = request_.query.columns;
    int32_t* counts = out_.valid_counts + request_.query.first_row;
    int32_t open_row = 0, open_count = 0;
    const auto close = [&](int32_t next_row) {
      if (lane_number() == 0 && open_count > 0) atomicAdd(&counts[open_row], open_count);
      open_row = next_row;
      open_count = 0;
    };
#pragma unroll
    for (int j = 0; j < B::kReferenceItems; ++j) {
      const int32_t row = columns.divide(first + references_.number(j));
      const bool valid = rows[j] >= 0;
      const unsigned all = __ballot_sync(kAllLanes, valid);
      const int32_t warp_row = __shfl_sync(kAllLanes, row, 0);
      if (warp_row != open_row) close(warp_row);
      if (__shfl_sync(kAllLanes, row, kWarp - 1) == warp_row) {
        open_count += __popc(all);
      } else if (valid) {
        atomicAdd(&counts[row], 1);
      }
    }
    close(0);
  }

  Space<B>& space_;
  const LookupTable table_;
  const Request<B>& request_;
  const Outputs& out_;
  Refs& references_;
  Slots<B::kThreads, B::kSlotItems, HotRow<B::kFewBlocks>> slots_;
  uint32_t firsts_ = 0;  // bit j: the thread's j-th reference is the first to a miss
};

}  // namespace hisparse::cuda
