// Look-up, victim choice and LRU update on the GPU: one block per request.
//
// | stage          | what happens                                                               | then |
// |----------------|----------------------------------------------------------------------------|------------|
// | clear          | look-up table and counts, before the kernel ahead has ended                | | | share
// | which query rows are this block's; their positions are already on the way  | barrier    | | load | tables
// and slots, all reads at once; meanwhile the plan is filled with -1  |            | | enter          |
// references are settled, or their host row goes into the look-up table      | barrier    | | | nothing
// entered: on to the answer                                          |            | | probe          | slots
// look for their row in the table and leave their number               | barrier    | | settle         | hits
// get the new stamp                                                     |            | |                |
// nothing missing: on to the answer                                          |            | | make room |
// misses are numbered by first reference, free slots by age (victims.cuh)    | 4 barriers | | answer | device
// rows; loads go into slots and plan                                  | barrier    | | tally          |
// counters                                                                   |            |
#include <algorithm>
#include <stdexcept>
#include <string>

#include "arguments.h"
#include "batch.cuh"
#include "launch.cuh"
#include "ops.h"
#include "resolver.cuh"

namespace hisparse::cuda {
namespace {

// What the kernel is called with.
struct Call {
  ResolveParams p;
  Outputs out;
  Blocks blocks;
  Divisor columns;
  int32_t requests;
  int32_t equal_rows;  // query rows of each request, if all have equally many
};

template <int kThreads>
__device__ __noinline__ void pad_rows(const Call& call, int64_t row, int32_t rows) {
  const int64_t columns = call.p.topk.columns, first = row * columns;
  const auto entries = static_cast<int32_t>(rows * columns);
  block_fill<kThreads>(call.out.device_rows + first, entries, kNone);
  block_fill<kThreads>(call.out.miss_host_rows + first, entries, kNone);
  block_fill<kThreads>(call.out.miss_device_rows + first, entries, kNone);
  block_fill<kThreads>(call.out.valid_counts + row, rows, 0);
}

__device__ __forceinline__ Query query_of(const Call& call, int32_t first_row, int32_t state) {
  const bool known = state != kNone;
  return {call.p.topk,
          call.columns,
          first_row,
          known ? call.p.host_table.row(state) : nullptr,
          known ? call.p.resident_table.row(state) : nullptr,
          static_cast<int32_t>(call.p.host_table.columns),
          call.blocks};
}

template <class B>
__device__ __forceinline__ Request<B> request_of(const Call& call, const Share& share,
                                                 const Workspace<B>& work) {
  const bool known = share.state != kNone;
  const int64_t state = known ? share.state : 0;
  const HotSlots& hot = call.p.hot;
  const int32_t rows = share.end - share.begin, columns = static_cast<int32_t>(call.p.topk.columns);
  return {.query = query_of(call, share.begin, share.state),
          .hot = {hot.rows + state * hot.slots, hot.stamps + state * hot.slots, call.p.hot_table.row(state),
                  known ? static_cast<int32_t>(hot.slots) : 0, call.blocks, work.space().hot_bases},
          .now = 0,
          .rows = rows,
          .plan = share.begin * columns,
          .total = rows * columns};
}

// A union of more references than the look-up table serves goes through it in chunks, twice: once to give all
// hits the new stamp, once to load what is missing into other slots. Loads of one chunk are hits of the next.
template <class B>
__device__ __noinline__ int32_t resolve_in_chunks(Workspace<B> work, const Call& call, Share share,
                                                  int32_t now) {
  Request<B> request = request_of<B>(call, share, work);
  request.now = now;
  typename Resolver<B>::Refs references;
  Resolver<B> resolver(work, request, call.out, references);
  int32_t loads = 0;
  for (const bool loading : {false, true}) {
    for (int64_t begin = 0; begin < request.total; begin += B::kChunk) {
      const auto first = static_cast<int32_t>(begin);
      __syncthreads();
      work.clear();
      references.select(first, min(request.total - first, B::kChunk));
      references.load_positions(request.query);
      resolver.load();
      __syncthreads();
      const int32_t misses = resolver.look_up();
      if (!loading) continue;
      const int32_t more = misses > 0 ? resolver.template make_room<true>(misses) : 0;
      resolver.answer(first, more, loads);
      loads += more;
    }
  }
  return loads;
}

template <class B>
__global__ void __launch_bounds__(B::kThreads, B::kBlocksPerProcessor)
    resolve_kernel(const __grid_constant__ Call call) {
  extern __shared__ int4 memory[];
  const ResolveParams& p = call.p;
  const Outputs& out = call.out;

  // Clear.
  const Workspace<B> work{reinterpret_cast<int32_t*>(memory)};
  work.clear();
  if (threadIdx.x == 0) work.space().tally = {};
  wait_for_previous_kernel();

  // Share. Most batches have equal numbers of query rows: their positions are loaded before that is known.
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t guess = call.equal_rows * block;
  typename Resolver<B>::Refs references;
  references.select(0, static_cast<int32_t>(min(call.equal_rows * p.topk.columns, int64_t{B::kChunk})));
  references.load_positions(query_of(call, guess, kNone));
  const Share share =
      request_share<B::kThreads>(p.query_start, p.state_rows, call.requests, p.topk.rows, p.hot.states);

  // Rows of nobody, and of padding requests, are padding.
#pragma unroll 1
  for (int64_t row = block; row < p.topk.rows; row += gridDim.x) {
    if (row < share.first || row >= share.last) pad_rows<B::kThreads>(call, row, 1);
  }
  if (block >= call.requests) return;
  if (!share.real) {
    pad_rows<B::kThreads>(call, share.begin, share.end - share.begin);
    if (threadIdx.x == 0) {
      out.miss_counts[block] = 0;
      if (share.state != kNone) p.hot.clock[share.state] += 1;
    }
    return;
  }

  // Load.
  Request<B> request = request_of<B>(call, share, work);
  const bool guessed = share.begin == guess && request.rows == call.equal_rows;
  Resolver<B> resolver(work, request, out, references);
  const bool single = request.total <= B::kChunk;
  if (single) {
    if (!guessed) {
      references.select(0, request.total);
      references.load_positions(request.query);
    }
    resolver.load();
    resolver.clear_plan();
  } else {
    block_fill<B::kThreads>(out.miss_host_rows + request.plan, request.total, kNone);
    block_fill<B::kThreads>(out.miss_device_rows + request.plan, request.total, kNone);
  }
  if (request.rows > 1) block_fill<B::kThreads>(out.valid_counts + share.begin, request.rows, 0);

  // Not before the loads, because they wait for an answer: the bases of hot blocks, and the clock.
  if (B::kFewBlocks) request.hot.template load_bases<B::kThreads>();
  if (share.state != kNone) request.now = p.hot.clock[share.state] + 1;

  int32_t loads = 0;
  if (single) {
    const int32_t misses = resolver.look_up();
    if (misses > 0) loads = resolver.template make_room<false>(misses);
    resolver.answer(0, loads, 0);
  } else {
    loads = resolve_in_chunks<typename B::InChunks>({work.ints}, call, share, request.now);
  }

  // Tally.
  __syncthreads();
  if (threadIdx.x != 0) return;
  const auto& [resident, padding, valid] = work.space().tally;
  if (share.state != kNone) p.hot.clock[share.state] = request.now;
  out.miss_counts[block] = loads;
  if (request.rows == 1) out.valid_counts[share.begin] = valid;
  const auto add = [&](Counter counter, int64_t amount) {
    if (amount == 0) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(p.counters + counter),
              static_cast<unsigned long long>(amount));
  };
  add(kResident, resident);
  add(kHit, valid - resident - loads);
  add(kMiss, loads);
  add(kPadding, padding);
  add(kFault, request.total - padding - valid);
}

template <class B>
void launch_build(const Queue& queue, const Call& call) {
  queue.launch(resolve_kernel<B>, {std::max(call.requests, 1), B::kThreads, Workspace<B>::kBytes}, call);
}

// Usual sizes, with a block on each SM or two; larger hot buffers; several query rows; hot buffers of any
// size.
using Usual = Build<1024, 2, 4, 14>;
using Crowded = Build<512, 4, 8, 13, 2>;
using LargeBuffers = Build<1024, 2, 12, 14>;
using Verification = Build<1024, 8, 12, 14>;
using AnySlots = Build<1024, 8, 0, 14>;
constexpr int64_t kMaxSlots = kFirstReference;

template <class B>
constexpr bool serves(int64_t references, int64_t slots, int64_t hot_blocks) {
  return references <= B::kChunk && slots <= B::kThreads * B::kSlotItems && hot_blocks <= kBases;
}

void launch_resolve(const Queue& queue, const ResolveParams& p, const Outputs& out) {
  const auto requests = static_cast<int32_t>(p.requests);
  const auto equal_rows = static_cast<int32_t>(requests > 0 ? p.topk.rows / requests : 0);
  const Divisor columns(std::max(static_cast<int32_t>(p.topk.columns), 1));
  const Call call{p, out, Blocks(p.blocks), columns, requests, equal_rows};

  const int64_t blocks = divide_up<int64_t>(p.hot.slots, p.blocks.size);
  const int64_t references = divide_up(p.topk.rows, std::max<int64_t>(p.requests, 1)) * p.topk.columns;
  if (serves<Crowded>(references, p.hot.slots, blocks) && p.requests > queue.processors()) {
    return launch_build<Crowded>(queue, call);
  }
  if (serves<Usual>(references, p.hot.slots, blocks)) return launch_build<Usual>(queue, call);
  if (serves<LargeBuffers>(references, p.hot.slots, blocks)) return launch_build<LargeBuffers>(queue, call);
  // Chunks make up for what is beyond in references, but not in slots.
  if (serves<Verification>(0, p.hot.slots, blocks)) return launch_build<Verification>(queue, call);
  launch_build<AnySlots>(queue, call);
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
