#include "arguments.h"
#include "batch.cuh"
#include "host_memory.cuh"
#include "ops.h"
#include "row_move.cuh"

namespace hisparse::cuda {
namespace {

// The loads of all requests in one row of numbers, so that every warp gets an equal share of the batch.
struct PlanRoute {
  const int32_t* host_rows;
  const int32_t* device_rows;
  const int32_t* query_start;
  const int32_t* counts;
  int64_t requests, query_rows, columns;

  template <class Share>
  __device__ void each_share(int64_t warp, int64_t warps, int32_t pieces, Share share) const {
    __shared__ int32_t ends[kMoveThreads];     // loads up to and including a request
    __shared__ int32_t entries[kMoveThreads];  // plan entry of its first load
    bool backwards = false;                    // whether any start so far was above the next one
    for (int64_t base = 0; base < requests; base += kMoveThreads) {
      const int64_t request = base + threadIdx.x;
      const bool real = request < requests;
      const int64_t start = real ? clamp_start(query_start[request], query_rows) : 0;
      const int64_t end = real ? clamp_start(query_start[request + 1], query_rows) : 0;
      const int64_t count = real ? counts[request] : 0;
      backwards |= __syncthreads_or(start > end);
      const int64_t furthest =
          backwards ? furthest_start(query_start, min(request, requests), query_rows) : start;
      const Span span = query_span(start, end, furthest);
      const int64_t planned = min(max(count, int64_t{0}), span.size() * columns);
      entries[threadIdx.x] = static_cast<int32_t>(span.begin * columns);
      ends[threadIdx.x] = block_inclusive_sum<kMoveThreads>(static_cast<int32_t>(planned));
      __syncthreads();
      each_piece(
          ends[kMoveThreads - 1], warp, warps, pieces,
          [&](int64_t load) {
            const int32_t owner = first_above<kMoveThreads>(ends, static_cast<int32_t>(load));
            const int64_t entry = entries[owner] + load - (owner == 0 ? 0 : ends[owner - 1]);
            return RowPair{host_rows[entry], device_rows[entry]};
          },
          share);
    }
  }
};

}  // namespace

void gather_compact(const TensorList& host, const TensorList& device, const Tensor& miss_host_rows,
                    const Tensor& miss_device_rows, const Tensor& query_start, const Tensor& miss_counts) {
  GatherCompactParams p =
      gather_compact_params(host, device, miss_host_rows, miss_device_rows, query_start, miss_counts);
  make_reachable("gather_compact", "host", host, p.pools.source, p.pools.row_bytes);
  make_reachable("gather_compact", "device", device, p.pools.destination, p.pools.row_bytes);
  if (p.requests == 0 || p.query_rows == 0 || p.columns == 0) return;
  const PlanRoute route{p.host_rows, p.device_rows, p.query_start, p.counts,
                        p.requests,  p.query_rows,  p.columns};
  move_rows(Queue(miss_host_rows), p.pools, route, BeyondEnd::kZeros);
}

}  // namespace hisparse::cuda
