#include "arguments.h"
#include "batch.cuh"
#include "host_memory.cuh"
#include "ops.h"
#include "row_move.cuh"

namespace hisparse::cuda {
namespace {

// The loads of all requests in one row of numbers, so that every warp gets an equal share of the batch. Each
// warp counts them for itself, 32 requests at a time.
struct PlanRoute {
  const int32_t* host_rows;
  const int32_t* device_rows;
  const int32_t* query_start;
  const int32_t* counts;
  int64_t requests, query_rows, columns;

  // A request's rows and loads as the batch says.
  struct Request {
    int32_t start, end, count;
  };
  __device__ __forceinline__ Request request(int64_t r) const {
    if (r >= requests) return {0, 0, 0};
    return {static_cast<int32_t>(clamp_start(query_start[r], query_rows)),
            static_cast<int32_t>(clamp_start(query_start[r + 1], query_rows)), counts[r]};
  }

  template <class Share>
  __device__ void each_share(int64_t warp, int64_t warps, int32_t pieces, Share share) const {
    int32_t furthest = 0;  // of the starts so far
    Request next = request(lane_number());
    for (int64_t base = 0; base < requests; base += kWarp) {
      const auto [start, end, count] = next;
      next = request(base + kWarp + lane_number());
      const int32_t through = max(warp_inclusive_max(start), furthest);
      int32_t before = __shfl_up_sync(kAllLanes, through, 1);
      if (lane_number() == 0) before = furthest;
      furthest = __shfl_sync(kAllLanes, through, kWarp - 1);

      const Span span = query_span(start, end, before);
      const auto planned = static_cast<int32_t>(min(int64_t{max(count, 0)}, span.size() * columns));
      const auto first = static_cast<int32_t>(span.begin * columns);
      const int32_t last = warp_inclusive_sum(planned);  // loads up to and including the request's
      each_piece(
          __shfl_sync(kAllLanes, last, kWarp - 1), warp, warps, pieces,
          [&](int64_t load) {
            const auto number = static_cast<int32_t>(load);
            const int owner = __popc(__ballot_sync(kAllLanes, last <= number));
            const int32_t entry = __shfl_sync(kAllLanes, first + planned - last, owner) + number;
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
