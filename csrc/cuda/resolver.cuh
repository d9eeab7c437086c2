// How one block answers the references of one request: the stages between its loads and its counters.
#pragma once

#include "common/params.h"
#include "hot_slots.cuh"
#include "lookup_table.cuh"
#include "oldest_stamps.cuh"
#include "references.cuh"
#include "warp.cuh"
#include "workspace.cuh"

namespace hisparse::cuda {

struct Outputs {
  int32_t* device_rows;
  int32_t* valid_counts;
  int32_t* miss_host_rows;
  int32_t* miss_device_rows;
  int32_t* miss_counts;
};

// One request's lines of all tensors.
template <class B>
struct Request {
  Query query;
  HotRow<B::kFewBlocks> hot;
  int32_t rows;   // query rows
  int32_t plan;   // where its entries of device_rows and of the plan begin
  int32_t total;  // references
};

template <class B>
class Resolver {
 public:
  using Refs = References<B::kReferenceItems, B::kVector>;

  // `now` is the request's clock in this call.
  __device__ __forceinline__ Resolver(const Workspace<B>& work, const Request<B>& request, const Outputs& out,
                                      Refs& references, int32_t now)
      : space_(work.space()),
        table_(work.table()),
        request_(request),
        out_(out),
        references_(references),
        now_(now),
        oldest_(space_.oldest) {}

  __device__ __forceinline__ void load_hot() {
    slots_.load(request_.hot);
    if (B::kFewBlocks) hot_block_ = request_.hot.load_block();
  }
  // A barrier later, and one before look_up().
  __device__ __forceinline__ void note_hot_block() const {
    if (B::kFewBlocks) request_.hot.note_block(hot_block_);
  }

  // Settles every reference or enters its row, looks for the rows in the slots, gives hits the new stamp, and
  // leaves at every missing row its lowest reference. Returns whether any row is missing.
  __device__ __forceinline__ bool look_up() {
    wanted_ = __syncthreads_or(references_.enter(request_.query, table_));
    if (!wanted_) return false;
    if (kAlone) slots_.load_stamps(request_.hot);
    slots_.probe(request_.hot, table_);
    __syncthreads();
    slots_.settle(request_.hot, table_, now_);
    if constexpr (kSlotsKept && kAlone) oldest_.note(slots_.stamps());
    return __syncthreads_or(leave_references());
  }

  // Instead, once all parts have looked up theirs: enters what they have left. Slots that any of them has hit
  // have the new stamp, which none had before.
  __device__ __forceinline__ void gather_left() {
    slots_.load_free(request_.hot, now_);
    references_.enter_left(out_.device_rows + request_.plan, table_);
    __syncthreads();
    oldest_.note(slots_.stamps());
    leave_references();
    __syncthreads();
  }

  // Finds victims for the misses; returns for how many. With kSpare, slots that have the new stamp are not
  // free.
  template <bool kSpare>
  __device__ __forceinline__ int32_t make_room() {
    if constexpr (kSlotsKept) oldest_.count(slots_.stamps());
    const uint32_t firsts = count_firsts();
    __syncthreads();
    const int32_t misses = number_misses(firsts);
    if constexpr (kSlotsKept) {
      if (take_oldest(misses)) return misses;
    }
    return choose_victims<kSpare>(misses);
  }

  // Writes the loads into slots and plan, where `before` of them are already.
  __device__ __forceinline__ void enter_loads(int32_t loads, int32_t before) const {
#pragma unroll 1
    for (auto i = static_cast<int32_t>(threadIdx.x); i < loads; i += B::kThreads) {
      const int32_t slot = space_.victim_slots[i], host_row = table_.keys[space_.missed_places[i]];
      const int32_t entry = request_.plan + before + i;
      request_.hot.rows[slot] = host_row;
      request_.hot.stamps[slot] = now_;
      out_.miss_host_rows[entry] = host_row;
      out_.miss_device_rows[entry] = request_.hot.device_row(slot);
    }
  }

  // Writes the answer to every reference.
  __device__ __forceinline__ void answer(int32_t first, int32_t loads) {
    constexpr int kItems = B::kReferenceItems;
    uint32_t resident = kItems, padding = 0, valid = kItems;
    int32_t rows[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j) rows[j] = max(references_.found(j), kNone);
    if (wanted_) {
      // Without branches, so that a thread's reads are under way together.
      uint32_t values[kItems];
      int32_t victims[kItems];
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        values[j] = table_.values[place_of(j)];
        const bool missing = references_.is_wanted(j) && values[j] >= kFirstReference;
        if (!kAlone && missing) rows[j] = ~table_.keys[references_.entry(j)];
      }
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        victims[j] = space_.victim_slots[is_loaded(values[j], loads) ? values[j] - kRank : 0];
      }
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        const bool hit = values[j] < kFirstReference, known = hit || is_loaded(values[j], loads);
        const int32_t slot = hit ? static_cast<int32_t>(values[j]) : victims[j];
        if (!B::kFewBlocks && !known) continue;
        const int32_t row = request_.hot.device_row(known ? slot : 0);
        if (known) rows[j] = row;
      }
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int32_t found = references_.found(j), first_of_vector = j - j % B::kVector;
      resident -= sign_bit(found);
      padding += references_.real(first_of_vector) && found == kPadded;
      valid -= sign_bit(rows[j]);
    }
    references_.write(rows, out_.device_rows + static_cast<uint32_t>(request_.plan + first));
    space_.tallies[warp_number()].add(resident, padding, valid);
    if (request_.rows > 1) count_in_rows(first, rows);
  }

  // Writes the answer to what parts had left; returns how many references of this thread are valid now.
  __device__ __forceinline__ int32_t answer_left(int32_t loads) const {
    const Divisor& columns = request_.query.columns;
    int32_t valid = 0;
#pragma unroll
    for (int j = 0; j < B::kReferenceItems; ++j) {
      if (!references_.is_wanted(j)) continue;
      const int32_t slot = slot_of(table_.values[references_.entry(j)], loads),
                    number = references_.number(j);
      const int32_t row = slot == kNone ? kNone : request_.hot.device_row(slot);
      out_.device_rows[request_.plan + number] = row;
      if (row < 0) continue;
      atomicAdd(&out_.valid_counts[request_.query.first_row + columns.divide(number)], 1);
      ++valid;
    }
    return valid;
  }

 private:
  static constexpr bool kSlotsKept = B::kSlotItems > 0, kAlone = B::kParts == 1;

  // Victims a few stamps at a time, the oldest first, of which the first few are counted; with a barrier
  // behind. Returns whether they are enough.
  __device__ __forceinline__ bool take_oldest(int32_t misses) {
    constexpr int kTimes = 4;
    int32_t found = oldest_.take(slots_.stamps(), 0, misses, space_.victim_slots);
    __syncthreads();
#pragma unroll 1
    for (int times = 1; times < kTimes && found < misses; ++times) {
      oldest_.note_next(slots_.stamps());
      __syncthreads();
      oldest_.count(slots_.stamps());
      __syncthreads();
      found += oldest_.take(slots_.stamps(), found, misses, space_.victim_slots);
      __syncthreads();
    }
    return found >= misses;
  }

  // Victims among all free slots, with barriers before and behind.
  template <bool kSpare>
  __device__ __forceinline__ int32_t choose_victims(int32_t misses) {
    const auto each_group = [&](auto f) {
      slots_.each_group(request_.hot, table_, [&](int32_t first, auto free, const int32_t* stamps) {
        f(first, [&](int v) { return free(v) && !(kSpare && stamps[v] == now_); }, stamps);
      });
    };
    const int32_t slot_bits = kWarp - __clz(request_.hot.slots - 1);
    Victims<B::kThreads> victims(space_.victims, space_.victim_slots, slot_bits, now_);
    victims.clear();
    __syncthreads();
    victims.count(each_group);
    __syncthreads();
    victims.scan();
    __syncthreads();
    const int32_t found = victims.list(misses, each_group);
    __syncthreads();
    victims.order(misses);
    victims.take_large(misses, each_group);
    __syncthreads();
    return found;
  }

  // Of the j-th reference; one without a value to be read, which counts as missing, if it has no entry.
  __device__ __forceinline__ int32_t place_of(int j) const {
    return references_.is_wanted(j) ? references_.entry(j) : table_.spare_place();
  }
  __device__ __forceinline__ static bool is_loaded(uint32_t value, int32_t loads) {
    return value - kRank < static_cast<uint32_t>(loads);
  }
  __device__ __forceinline__ int32_t slot_of(uint32_t value, int32_t loads) const {
    const int32_t victim = is_loaded(value, loads) ? space_.victim_slots[value - kRank] : kNone;
    return value < kFirstReference ? static_cast<int32_t>(value) : victim;
  }

  // Leaves the lowest reference to each missing row. Returns whether this thread has any.
  __device__ __forceinline__ bool leave_references() const {
    bool any = false;
#pragma unroll
    for (int j = 0; j < B::kReferenceItems; ++j) {
      uint32_t& value = table_.values[place_of(j)];
      const bool missing = references_.is_wanted(j) && value >= kFirstReference;
      if (missing) atomicMin(&value, kFirstReference + references_.number(j));
      any |= missing;
    }
    return any;
  }

  // Bit j: the thread's j-th reference is the first to a missing row.
  __device__ __forceinline__ uint32_t count_firsts() const {
    uint32_t firsts = 0;
#pragma unroll
    for (int j = 0; j < B::kReferenceItems; ++j) {
      const uint32_t value = table_.values[place_of(j)];
      firsts |= static_cast<uint32_t>(value == kFirstReference + references_.number(j)) << j;
    }
    const int32_t in_warp = __reduce_add_sync(kAllLanes, __popc(firsts));
    if (lane_number() == 0) space_.misses_of[warp_number()] = in_warp;
    return firsts;
  }

  // In order of first reference. Returns how many there are.
  __device__ __forceinline__ int32_t number_misses(uint32_t firsts) {
    const int32_t others = lane_number() < B::kWarps ? space_.misses_of[lane_number()] : 0;
    int32_t rank = __reduce_add_sync(kAllLanes, lane_number() < warp_number() ? others : 0);
#pragma unroll
    for (int first = 0; first < B::kReferenceItems; first += B::kVector) {
      const int32_t in_group = __popc(firsts >> first & ((1u << B::kVector) - 1));
      const int32_t through = warp_inclusive_sum(in_group);
      int32_t mine = rank + through - in_group;
#pragma unroll
      for (int j = first; j < first + B::kVector; ++j) {
        if (!(firsts >> j & 1)) continue;
        const int32_t place = references_.entry(j);
        table_.values[place] = kRank + mine;
        space_.missed_places[mine] = static_cast<uint16_t>(place);
        ++mine;
      }
      rank += __shfl_sync(kAllLanes, through, kWarp - 1);
    }
    return __reduce_add_sync(kAllLanes, others);
  }

  // Adds to the valid counts of query rows. A warp's references mostly lie in one.
  __device__ __forceinline__ void count_in_rows(int32_t first,
                                                const int32_t (&rows)[B::kReferenceItems]) const {
    const Divisor& columns = request_.query.columns;
    int32_t* counts = out_.valid_counts + request_.query.first_row;
#pragma unroll
    for (int j = 0; j < B::kReferenceItems; j += B::kVector) {
      const int32_t begin = first + references_.number(j);
      const int32_t open_row = columns.divide(__shfl_sync(kAllLanes, begin, 0));
      const int32_t last_row = columns.divide(__shfl_sync(kAllLanes, begin, kWarp - 1) + B::kVector - 1);
      int32_t valid = 0;
#pragma unroll
      for (int v = 0; v < B::kVector; ++v) {
        valid += rows[j + v] >= 0;
        if (open_row != last_row && rows[j + v] >= 0) atomicAdd(&counts[columns.divide(begin + v)], 1);
      }
      const int32_t of_warp = __reduce_add_sync(kAllLanes, valid);
      if (open_row == last_row && lane_number() == 0 && of_warp > 0) atomicAdd(&counts[open_row], of_warp);
    }
  }

  Space<B>& space_;
  const LookupTable table_;
  const Request<B>& request_;
  const Outputs& out_;
  Refs& references_;
  const int32_t now_;
  bool wanted_ = false;    // whether any row is looked for in the hot buffer
  int32_t hot_block_ = 0;  // the hot block of this thread's number
  Slots<B::kThreads, B::kSlotItems, HotRow<B::kFewBlocks>, kAlone> slots_;
  OldestStamps<B::kThreads, kSlotsKept ? B::kSlotItems : kSlotGroup> oldest_;
};

}  // namespace hisparse::cuda
