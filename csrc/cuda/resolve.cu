// Look-up, victim choice and LRU update on the GPU: one block per request.
//
// | stage     | what happens                                                                   | then       |
// |-----------|--------------------------------------------------------------------------------|------------|
// | clear     | look-up table and counts, before the kernel ahead has ended                    |            |
// | load      | positions and the block's share of the batch; then tables and slots: all reads |            |
// |           | at once, while the block looks at the rest of the batch; the plan becomes -1   | barrier    |
// | enter     | references are settled, or their host row goes into the look-up table          | barrier    |
// |           | nothing entered: on to the answer                                              |            |
// | probe     | slots look for their row in the table and leave their number                   | barrier    |
// | settle    | hits get the new stamp; references to missing rows leave their number          | barrier    |
// |           | nothing missing: on to the answer                                              |            |
// | count     | free slots by age, misses by warp                                              | barrier    |
// | number    | misses are numbered by first reference, victims found (victims.cuh)            | 3 barriers |
// | answer    | loads into slots and plan, device rows for all                                 | barrier    |
// | tally     | counters                                                                       |            |
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
  Requests requests;
  Lines<const int32_t> topk, host_table, resident_table, hot_table;
  Lines<int32_t> slot_rows, slot_stamps;
  int32_t pages, slots, hot_blocks;
  int32_t equal_rows;  // query rows of each request, if all have equally many
  int32_t* clock;
  int64_t* counters;
  Outputs out;
  Divisor columns;
  Blocks blocks;
};

template <int kThreads>
__device__ __noinline__ void pad_rows(const Call& call, int64_t row, int32_t rows) {
  const int64_t columns = call.columns.value, first = row * columns;
  const auto entries = static_cast<int32_t>(rows * columns);
  block_fill<kThreads>(call.out.device_rows + first, entries, kNone);
  block_fill<kThreads>(call.out.miss_host_rows + first, entries, kNone);
  block_fill<kThreads>(call.out.miss_device_rows + first, entries, kNone);
  block_fill<kThreads>(call.out.valid_counts + row, rows, 0);
}

// Rows from `begin` on, and before `end`, that single blocks pad; the others go round.
template <int kThreads>
__device__ __forceinline__ void pad_rows_of_nobody(const Call& call, int32_t end, int32_t begin) {
#pragma unroll 1
  for (auto row = static_cast<int32_t>(blockIdx.x); row < call.requests.query_rows;
       row += static_cast<int32_t>(gridDim.x)) {
    if (row < end || row >= begin) pad_rows<kThreads>(call, row, 1);
  }
}

template <class B>
__device__ __forceinline__ Request<B> request_of(const Call& call, const Share& share,
                                                 const Workspace<B>& work) {
  const bool known = share.state != kNone;
  const int32_t state = max(share.state, 0), rows = share.end - share.begin;
  return {.query = {call.topk, call.columns, call.blocks, share.begin, call.host_table.line(state),
                    call.resident_table.line(state), call.pages, known ? call.pages : 0},
          .hot = {call.slot_rows.line(state), call.slot_stamps.line(state), call.hot_table.line(state),
                  known ? call.slots : 0, known ? call.hot_blocks : 0, call.blocks, work.space().notes},
          .rows = rows,
          .plan = share.begin * call.columns.value,
          .total = rows * call.columns.value};
}

// Asks for what this block is about to read while the kernel ahead still runs: only a hint, since that may
// yet write other rows of the batch.
template <int kThreads>
__device__ __forceinline__ void prefetch(const Call& call, int32_t block) {
  if (block >= call.requests.count) return;
  constexpr int64_t kNumber = sizeof(int32_t);
  const int32_t state = min(max(__ldcg(call.requests.state_rows + block), 0), call.requests.states - 1);
  const int32_t row = call.equal_rows * block;
  block_prefetch(call.topk.line(row), kNumber * call.equal_rows * call.columns.value);
  if (state < 0) return;
  block_prefetch(call.slot_rows.line(state), kNumber * call.slots);
  block_prefetch(call.slot_stamps.line(state), kNumber * call.slots);
  block_prefetch(call.host_table.line(state), kNumber * call.pages);
  block_prefetch(call.resident_table.line(state), kNumber * call.pages);
  block_prefetch(call.hot_table.line(state), kNumber * call.hot_blocks);
  block_prefetch(call.clock + state, kNumber);
  block_prefetch(call.requests.query_start + block, kNumber);
}

// A union of more references than the look-up table serves goes through it in chunks, twice: once to give all
// hits the new stamp, once to load what is missing into other slots. Loads of one chunk are hits of the next.
template <class B>
__device__ __noinline__ int32_t resolve_in_chunks(Workspace<B> work, const Call& call, Share share,
                                                  int32_t now) {
  const Request<B> request = request_of<B>(call, share, work);
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

template <class B>
__global__ void __launch_bounds__(B::kThreads, B::kBlocksPerProcessor)
    resolve_kernel(const __grid_constant__ Call call) {
  extern __shared__ int4 memory[];
  const Outputs& out = call.out;
  const auto block = static_cast<int32_t>(blockIdx.x);

  // Clear.
  const Workspace<B> work{reinterpret_cast<int32_t*>(memory)};
  work.clear_all();
  prefetch<B::kThreads>(call, block);
  wait_for_previous_kernel();
  if (call.requests.count == 0) return pad_rows_of_nobody<B::kThreads>(call, 0, 0);

  // Load. Most batches have equal numbers of query rows: their positions are loaded before that is known.
  // Most are regular: tables and slots are loaded before that is known.
  const int32_t guess = call.equal_rows * block;
  typename Resolver<B>::Refs references;
  references.select(0, min(call.equal_rows * call.columns.value, B::kChunk));
  references.load_positions({call.topk, call.columns, call.blocks, guess});
  Share share = call.requests.share(block);
  const bool odd = call.requests.template irregular<B::kThreads>(block, share.state);
  const Request<B> request = request_of<B>(call, share, work);
  if (share.begin != guess || request.rows != call.equal_rows) {
    references.select(0, min(request.total, B::kChunk));
    references.load_positions(request.query);
  }
  references.load_pages(request.query);
  int32_t* clock = call.clock + static_cast<uint32_t>(max(share.state, 0));
  int32_t now = share.state != kNone ? *clock : 0;
  Resolver<B> resolver(work, request, out, references, now + 1);
  resolver.load_slots();

  const bool regular = !__syncthreads_or(odd);
  if (!regular) {
    share = call.requests.careful_share(block, share);
    if (share.state == kNone) now = 0;
  }
  if (share.first > 0 || share.last < call.requests.query_rows) {
    pad_rows_of_nobody<B::kThreads>(call, share.first, share.last);
  }
  const int32_t rows = share.end - share.begin;
  if (!share.real) {
    pad_rows<B::kThreads>(call, share.begin, rows);
    if (threadIdx.x == 0) {
      out.miss_counts[block] = 0;
      if (share.state != kNone) *clock = now + 1;
    }
    return;
  }

  if (B::kFewBlocks) request.hot.template load_bases<B::kThreads>();
  if (rows > 1) block_fill<B::kThreads>(out.valid_counts + share.begin, rows, 0);
  int32_t loads = 0;
  if (regular && request.total <= B::kChunk) {
    references.write_all(kNone, out.miss_host_rows + static_cast<uint32_t>(request.plan));
    references.write_all(kNone, out.miss_device_rows + static_cast<uint32_t>(request.plan));
    if (resolver.look_up()) {
      loads = resolver.template make_room<false>();
      resolver.enter_loads(loads, 0);
    }
    resolver.answer(0, loads);
  } else {
    loads = resolve_in_chunks<typename B::InChunks>({work.ints}, call, share, now + 1);
  }

  // Tally.
  __syncthreads();
  if (warp_number() != 0) return;
  const bool of_a_warp = lane_number() < B::kWarps;
  const Tally tally = (of_a_warp ? work.space().tallies[lane_number()] : Tally{}).sum();
  if (lane_number() != 0) return;
  if (share.state != kNone) *clock = now + 1;
  out.miss_counts[block] = loads;
  if (rows == 1) out.valid_counts[share.begin] = tally.valid;
  const auto add = [&](Counter counter, int64_t amount) {
    if (amount == 0) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(call.counters + counter),
              static_cast<unsigned long long>(amount));
  };
  add(kResident, tally.resident);
  add(kHit, tally.valid - tally.resident - loads);
  add(kMiss, loads);
  add(kPadding, tally.padding);
  add(kFault, rows * call.columns.value - tally.padding - tally.valid);
}

template <class B>
void launch_build(const Queue& queue, const Call& call) {
  queue.launch(resolve_kernel<B>, {std::max(call.requests.count, 1), B::kThreads, Workspace<B>::kBytes},
               call);
}

// Usual sizes, with a block on each SM or two; larger hot buffers; several query rows; sizes of any kind.
using Usual = Build<512, 4, 4, 8, 14>;
using Crowded = Build<512, 4, 4, 8, 13, 2>;
using LargeBuffers = Build<1024, 2, 2, 12, 14>;
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
          .clock = p.hot.clock,
          .counters = p.counters,
          .out = out,
          .columns = Divisor(columns),
          .blocks = Blocks(p.blocks)};
}

template <class B>
bool serves(const Call& call, int64_t references) {
  return references <= B::kChunk && call.slots <= B::kThreads * B::kSlotItems && call.hot_blocks <= kBases;
}

void launch_resolve(const Queue& queue, const ResolveParams& p, const Outputs& out) {
  const Call call = call_of(p, out);
  const int64_t references = divide_up(p.topk.rows, std::max<int64_t>(p.requests, 1)) * p.topk.columns;
  const bool aligned = in_fours(call.topk, call.columns.value) && in_fours(call.slot_rows, call.slots) &&
                       in_fours(call.slot_stamps, call.slots);
  // Chunks make up for what is beyond in references, but not in slots.
  if (!aligned || !serves<Verification>(call, 0)) return launch_build<AnySizes>(queue, call);
  if (serves<Crowded>(call, references) && p.requests > queue.processors()) {
    return launch_build<Crowded>(queue, call);
  }
  if (serves<Usual>(call, references)) return launch_build<Usual>(queue, call);
  if (serves<LargeBuffers>(call, references)) return launch_build<LargeBuffers>(queue, call);
  launch_build<Verification>(queue, call);
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
