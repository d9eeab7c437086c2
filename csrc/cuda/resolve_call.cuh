// What the kernel of resolve is called with, and what a block makes of it before it looks anything up.
#pragma once

#include <algorithm>

#include "batch.cuh"
#include "resolver.cuh"

namespace hisparse::cuda {

// Arguments of the kernel.
struct Call {
  Requests requests;
  Lines<const int32_t> topk, host_table, resident_table, hot_table;
  Lines<int32_t> slot_rows, slot_stamps;
  int32_t pages, slots, hot_blocks;
  int32_t equal_rows;  // query rows of each request, if all have equally many
  int32_t parts;       // blocks that answer a request together
  int32_t part_rows;   // query rows of each of them
  int32_t* clock;
  int64_t* counters;
  Outputs out;
  Divisor columns;
  Blocks blocks;

  // Of a request, if requests have equally many.
  int32_t most_rows() const { return divide_up(requests.query_rows, std::max(requests.count, 1)); }

  __device__ __forceinline__ void count(Counter counter, int64_t amount) const {
    if (amount == 0) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(counters + counter),
              static_cast<unsigned long long>(amount));
  }
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

// The query rows of a request that one of its parts answers.
struct Part {
  int32_t begin, rows;
};

template <class B>
__device__ __forceinline__ Part part_of(const Call& call, int32_t begin, int32_t rows, int32_t part) {
  if (B::kParts == 1) return {begin, rows};
  const int32_t before = min(part * call.part_rows, rows);
  return {begin + before, min(rows - before, call.part_rows)};
}

template <class B>
__device__ __forceinline__ Request<B> request_of(const Call& call, const Share& share,
                                                 const Workspace<B>& work, int32_t part) {
  const bool known = share.state != kNone;
  const int32_t state = max(share.state, 0);
  const auto [begin, rows] = part_of<B>(call, share.begin, share.end - share.begin, part);
  return {.query = {call.topk, call.columns, call.blocks, begin, call.host_table.line(state),
                    call.resident_table.line(state), call.pages, known ? call.pages : 0},
          .hot = {call.slot_rows.line(state), call.slot_stamps.line(state), call.hot_table.line(state),
                  known ? call.slots : 0, known ? call.hot_blocks : 0, call.blocks, work.space().notes},
          .rows = rows,
          .plan = begin * call.columns.value,
          .total = rows * call.columns.value};
}

// Asks for what this block is about to read while the kernel ahead still runs: only a hint, since that may
// yet write other rows of the batch.
template <int kThreads>
__device__ __forceinline__ void prefetch(const Call& call, int32_t block, const Part& guess) {
  if (block >= call.requests.count) return;
  constexpr int64_t kNumber = sizeof(int32_t);
  const int32_t state = min(max(__ldcg(call.requests.state_rows + block), 0), call.requests.states - 1);
  block_prefetch(call.topk.line(guess.begin), kNumber * guess.rows * call.columns.value);
  if (state < 0) return;
  block_prefetch(call.slot_rows.line(state), kNumber * call.slots);
  block_prefetch(call.slot_stamps.line(state), kNumber * call.slots);
  block_prefetch(call.host_table.line(state), kNumber * call.pages);
  block_prefetch(call.resident_table.line(state), kNumber * call.pages);
  block_prefetch(call.hot_table.line(state), kNumber * call.hot_blocks);
  block_prefetch(call.clock + state, kNumber);
  block_prefetch(call.requests.query_start + block, kNumber);
}

}  // namespace hisparse::cuda
