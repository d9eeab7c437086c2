// Look-up, victim choice and LRU update on the GPU: one block per request, or several (see below).
//
// | stage     | what happens                                                                   | then       |
// |-----------|--------------------------------------------------------------------------------|------------|
// | clear     | look-up table and notes, before the kernel ahead has ended                     |            |
// | load      | positions and the block's share of the batch; then tables and slots: all reads |            |
// |           | at once, while the block looks at the rest of the batch                        | barrier    |
// | enter     | the plan becomes -1; references are settled, or their host row goes into the   |            |
// |           | look-up table                                                                  | barrier    |
// |           | nothing entered: on to the answer                                              |            |
// | probe     | slots look for their row in the table and leave their number                   | barrier    |
// | settle    | hits get the new stamp; references to missing rows leave their number          | barrier    |
// |           | nothing missing: on to the answer                                              |            |
// | count     | free slots with the oldest stamps, misses by warp                              | barrier    |
// | take      | misses are numbered by first reference, victims taken (oldest_stamps.cuh)      | barrier    |
// |           | now and then: of newer stamps, too, or of all (victims.cuh)                    | barriers   |
// | answer    | loads into slots and plan, device rows for all                                 | barrier    |
// | tally     | counters                                                                       |            |
//
// Where a request has several query rows, and SMs are to spare, each of a cluster of blocks answers some of
// them, up to and with settle. What is missing it leaves in device_rows as ~host row; the first block then
// takes all of that through the other stages.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "arguments.h"
#include "cluster.cuh"
#include "launch.cuh"
#include "ops.h"
#include "resolve_call.cuh"

namespace hisparse::cuda {
namespace {

// A union of more references than the look-up table serves goes through it in chunks, twice: once to give all
// hits the new stamp, once to load what is missing into other slots. Loads of one chunk are hits of the next.
template <class B>
__device__ __noinline__ int32_t resolve_in_chunks(Workspace<B> work, const Call& call, Share share,
                                                  int32_t now) {
  const Request<B> request = request_of<B>(call, share, work, 0);
  typename Resolver<B>::Refs references;
  block_fill<B::kThreads>(call.out.miss_host_rows + request.plan, request.total, kNone);
  block_fill<B::kThreads>(call.out.miss_device_rows + request.plan, request.total, kNone);
  int32_t loads = 0;
  for (const bool loading : {false, true}) {
    for (int64_t begin = 0; begin < request.total; begin += B::kChunk) {
      const auto first = static_cast<int32_t>(begin);
      __syncthreads();
      work.clear();
      references.select(first, min(request.total - first, B::kChunk));
      references.load_positions(request.query);
      references.load_pages(request.query);
      Resolver<B> resolver(work, request, call.out, references, now);
      __syncthreads();
      const bool missing = resolver.look_up();
      if (!loading) continue;
      const int32_t more = missing ? resolver.template make_room<true>() : 0;
      resolver.enter_loads(more, loads);
      resolver.answer(first, more);
      loads += more;
    }
  }
  return loads;
}

// What the parts of a request have left as missing: its first block loads it.
template <class J>
__device__ __noinline__ int32_t load_what_is_left(Workspace<J> work, const Call& call, Share share,
                                                  int32_t now) {
  const Request<J> request = request_of<J>(call, share, work, 0);
  typename Resolver<J>::Refs references;
  references.select(0, request.total);
  __syncthreads();
  work.clear();
  __syncthreads();
  Resolver<J> resolver(work, request, call.out, references, now);
  resolver.gather_left();
  const int32_t loads = resolver.template make_room<false>();
  resolver.enter_loads(loads, 0);
  const int32_t valid = __reduce_add_sync(kAllLanes, resolver.answer_left(loads));
  if (lane_number() == 0) {
    // The parts have counted what they left as faults.
    call.count(kHit, valid);
    call.count(kFault, -valid);
  }
  if (threadIdx.x == 0) {
    call.count(kHit, -loads);
    call.count(kMiss, loads);
  }
  return loads;
}

template <class B>
__global__ void __launch_bounds__(B::kThreads, B::kBlocksPerProcessor)
    resolve_kernel(const __grid_constant__ Call call) {
  extern __shared__ int4 memory[];
  const Outputs& out = call.out;
  const auto number = static_cast<int32_t>(blockIdx.x);
  const int32_t block = B::kParts > 1 ? number / call.parts : number, part = number - block * call.parts;
  if (B::kParts > 1) cluster_arrive();

  // Clear. Most batches have equal numbers of query rows.
  const Workspace<B> work{reinterpret_cast<int32_t*>(memory)};
  work.clear_all();
  const Part guess = part_of<B>(call, call.equal_rows * block, call.equal_rows, part);
  if (B::kBlocksPerProcessor == 1) prefetch<B::kThreads>(call, block, guess);
  wait_for_previous_kernel();
  if (call.requests.count == 0) return pad_rows_of_nobody<B::kThreads>(call, 0, 0);

  // Load. Positions are loaded before it is known where a request's rows are, tables and slots before it is
  // known whether the batch is regular, as most are.
  typename Resolver<B>::Refs references;
  references.select(0, min(guess.rows * call.columns.value, B::kChunk));
  references.load_positions({call.topk, call.columns, call.blocks, guess.begin});
  const auto seen = call.requests.see(static_cast<int32_t>(threadIdx.x));
  Share share = call.requests.share(block);
  const bool odd = call.requests.template irregular<B::kThreads>(block, share, seen);
  const Request<B> request = request_of<B>(call, share, work, part);
  if (request.query.first_row != guess.begin || request.rows != guess.rows) {
    references.select(0, min(request.total, B::kChunk));
    references.load_positions(request.query);
  }
  int32_t* clock = call.clock + static_cast<uint32_t>(max(share.state, 0));
  int32_t now = share.state != kNone ? *clock : 0;
  Resolver<B> resolver(work, request, out, references, now + 1);
  resolver.load_hot();
  references.load_pages(request.query);

  const bool regular = !__syncthreads_or(odd);
  if (!regular) {
    share = call.requests.careful_share(block, share);
    if (share.state == kNone) now = 0;
  }
  if (share.first > 0 || share.last < call.requests.query_rows) {
    pad_rows_of_nobody<B::kThreads>(call, share.first, share.last);
  }
  const int32_t all_rows = share.end - share.begin;
  const bool fits =
      regular && (B::kParts == 1 ? request.total <= B::kChunk : all_rows <= call.parts * call.part_rows);
  if (B::kParts > 1 && part > 0 && !(fits && share.real)) return;
  if (!share.real) {
    pad_rows<B::kThreads>(call, share.begin, all_rows);
    if (threadIdx.x == 0) {
      out.miss_counts[block] = 0;
      if (share.state != kNone) *clock = now + 1;
    }
    return;
  }

  resolver.note_hot_block();
  const int32_t first_row = fits ? request.query.first_row : share.begin,
                rows = fits ? request.rows : all_rows;
  if (rows > 1) block_fill<B::kThreads>(out.valid_counts + first_row, rows, 0);
  int32_t loads = 0;
  bool missing = false;
  if (fits) {
    references.write_all(kNone, out.miss_host_rows + static_cast<uint32_t>(request.plan));
    references.write_all(kNone, out.miss_device_rows + static_cast<uint32_t>(request.plan));
    missing = resolver.look_up();
    if (B::kParts == 1 && missing) {
      loads = resolver.template make_room<false>();
      resolver.enter_loads(loads, 0);
    }
    resolver.answer(0, loads);
  } else {
    loads = resolve_in_chunks<typename B::InChunks>({work.ints}, call, share, now + 1);
  }

  // Tally.
  __syncthreads();
  if (warp_number() == 0) {
    const Tally tally = work.space().tallies[lane_number()].sum();
    const int32_t hit = tally.valid - tally.resident - loads;
    const int32_t fault = rows * call.columns.value - tally.padding - tally.valid;
    const int32_t counts[] = {tally.resident, hit, loads, tally.padding, fault};
    const auto counter = static_cast<Counter>(lane_number());
    if (counter < kCounters) call.count(counter, picked<kCounters>(counts, counter));
    if (rows == 1 && lane_number() == 0) out.valid_counts[first_row] = tally.valid;
  }
  if constexpr (B::kParts > 1) {
    if (fits) {
      cluster_wait();
      if (threadIdx.x == 0) write_to_first_block(work.space().left[part], missing);
      cluster_arrive();
      if (part > 0) return;
      cluster_wait();
      int32_t left = 0;
      for (int32_t p = 0; p < call.parts; ++p) left |= work.space().left[p];
      if (left) loads = load_what_is_left<typename B::Joint>({work.ints}, call, share, now + 1);
    }
  }
  if (threadIdx.x != 0) return;
  if (share.state != kNone) *clock = now + 1;
  out.miss_counts[block] = loads;
}

template <class B>
void launch_build(const Queue& queue, Call call) {
  size_t bytes = Workspace<B>::kBytes;
  if constexpr (B::kParts > 1) {
    bytes = std::max(bytes, Workspace<typename B::Joint>::kBytes);
    call.part_rows = B::kChunk / call.columns.value;
    call.parts = B::kParts;
  }
  queue.launch(resolve_kernel<B>,
               {std::max(call.requests.count, 1) * call.parts, B::kThreads, bytes, call.parts}, call);
}

// One query row of up to 2048 columns, and hot buffers of up to 512 slots for each slot of a thread; the same
// with two blocks on an SM; several query rows, with several blocks for each request or one; sizes of any
// kind.
template <int kSlotItems>
using OneRow = Build<512, 4, 4, kSlotItems, 14>;
using LargeBuffers = Build<1024, 2, 2, 12, 14>;
using Crowded = Build<512, 4, 4, 8, 13, 2>;
using InQuarters = Build<512, 4, 4, 20, 14, 1, 4>;
using InHalves = Build<512, 8, 4, 20, 14, 1, 2>;
using Verification = Build<1024, 8, 4, 12, 14>;
using AnySizes = Build<1024, 8, 1, 0, 14>;
constexpr int64_t kMaxSlots = int64_t{kFirstReference} - 1;

// Whether four numbers of a line, from a multiple of four on, can be read as one.
template <class T>
bool in_fours(const Lines<T>& lines, int64_t columns) {
  constexpr int64_t kFour = sizeof(int4) / sizeof(int32_t);
  return columns % kFour == 0 && lines.stride_bytes % sizeof(int4) == 0 &&
         reinterpret_cast<uintptr_t>(lines.data) % sizeof(int4) == 0;
}

Lines<const int32_t> lines(const char* name, const IndexMatrix& matrix) {
  const int64_t stride_bytes = matrix.stride * static_cast<int64_t>(sizeof(int32_t));
  if (matrix.rows > 1 && stride_bytes > UINT32_MAX) {
    throw std::runtime_error(std::string("hisparse::resolve: ") + name +
                             " must have rows less than 4 GiB apart on a GPU, got " +
                             std::to_string(stride_bytes) + " bytes");
  }
  return {matrix.data, static_cast<uint32_t>(stride_bytes)};
}

Call call_of(const ResolveParams& p, const Outputs& out) {
  const auto requests = static_cast<int32_t>(p.requests), query_rows = static_cast<int32_t>(p.topk.rows);
  const auto slots = static_cast<int32_t>(p.hot.slots), columns = static_cast<int32_t>(p.topk.columns);
  const uint32_t slot_bytes = sizeof(int32_t) * slots;
  return {.requests = {p.query_start, p.state_rows, requests, query_rows, static_cast<int32_t>(p.hot.states)},
          .topk = lines("topk", p.topk),
          .host_table = lines("host_table", p.host_table),
          .resident_table = lines("resident_table", p.resident_table),
          .hot_table = lines("hot_table", p.hot_table),
          .slot_rows = {p.hot.rows, slot_bytes},
          .slot_stamps = {p.hot.stamps, slot_bytes},
          .pages = static_cast<int32_t>(p.host_table.columns),
          .slots = slots,
          .hot_blocks = static_cast<int32_t>(divide_up<int64_t>(slots, p.blocks.size)),
          .equal_rows = requests > 0 ? query_rows / requests : 0,
          .parts = 1,
          .part_rows = 0,
          .clock = p.hot.clock,
          .counters = p.counters,
          .out = out,
          .columns = Divisor(columns),
          .blocks = Blocks(p.blocks)};
}

template <class B>
bool serves(const Call& call) {
  const int32_t columns = call.columns.value;
  // Parts have whole query rows.
  const int64_t at_once =
      B::kParts == 1 ? B::kChunk : B::kParts * (B::kChunk / std::max(columns, 1) * columns);
  return int64_t{call.most_rows()} * columns <= at_once && call.slots <= B::kThreads * B::kSlotItems &&
         call.hot_blocks <= B::kThreads;
}

void launch_resolve(const Queue& queue, const ResolveParams& p, const Outputs& out) {
  const Call call = call_of(p, out);
  const bool aligned = in_fours(call.topk, call.columns.value) && in_fours(call.slot_rows, call.slots) &&
                       in_fours(call.slot_stamps, call.slots);
  // Blocks on SMs of their own.
  const int64_t room = queue.processors() / std::max<int64_t>(p.requests, 1);
  if (!aligned) return launch_build<AnySizes>(queue, call);
  if (serves<Crowded>(call) && room == 0) return launch_build<Crowded>(queue, call);
  if (serves<OneRow<8>>(call)) return launch_build<OneRow<8>>(queue, call);
  if (serves<OneRow<12>>(call)) return launch_build<OneRow<12>>(queue, call);
  if (serves<OneRow<16>>(call)) return launch_build<OneRow<16>>(queue, call);
  if (serves<OneRow<20>>(call)) return launch_build<OneRow<20>>(queue, call);
  if (serves<LargeBuffers>(call)) return launch_build<LargeBuffers>(queue, call);
  if (serves<InQuarters>(call) && room >= InQuarters::kParts) return launch_build<InQuarters>(queue, call);
  if (serves<InHalves>(call) && room >= InHalves::kParts) return launch_build<InHalves>(queue, call);
  if (serves<Verification>(call)) return launch_build<Verification>(queue, call);
  launch_build<AnySizes>(queue, call);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> resolve(
    const Tensor& topk, const Tensor& query_start, const Tensor& state_rows, const Tensor& host_table,
    const Tensor& resident_table, const Tensor& hot_table, const Tensor& slot_rows, const Tensor& slot_stamps,
    const Tensor& clock, const Tensor& counters, int64_t block_size, int64_t block_stride) {
  const ResolveParams p = resolve_params(topk, query_start, state_rows, host_table, resident_table, hot_table,
                                         slot_rows, slot_stamps, clock, counters, block_size, block_stride);
  if (p.hot.slots > kMaxSlots) {
    throw std::runtime_error("hisparse::resolve: slot_rows must have at most " + std::to_string(kMaxSlots) +
                             " slots on a GPU, got " + std::to_string(p.hot.slots));
  }
  const int64_t query_rows = p.topk.rows, columns = p.topk.columns;
  Tensor device_rows = new_indices(topk, {query_rows, columns});
  Tensor valid_counts = new_indices(topk, {query_rows});
  Tensor miss_host_rows = new_indices(topk, {query_rows, columns});
  Tensor miss_device_rows = new_indices(topk, {query_rows, columns});
  Tensor miss_counts = new_indices(topk, {p.requests});
  if (query_rows > 0 || p.requests > 0) {
    launch_resolve(Queue(topk), p,
                   {indices_of(device_rows), indices_of(valid_counts), indices_of(miss_host_rows),
                    indices_of(miss_device_rows), indices_of(miss_counts)});
  }
  return {device_rows, valid_counts, miss_host_rows, miss_device_rows, miss_counts};
}

}  // namespace hisparse::cuda
