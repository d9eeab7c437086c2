#include "arguments.h"
#include "host_memory.cuh"
#include "ops.h"
#include "row_move.cuh"

namespace hisparse::cuda {

void gather_plan(const TensorList& host, const TensorList& device, const Tensor& host_rows,
                 const Tensor& device_rows) {
  RowCopyParams p = gather_plan_params(host, device, host_rows, device_rows);
  make_reachable("gather_plan", "host", host, p.pools.source, p.pools.row_bytes);
  make_reachable("gather_plan", "device", device, p.pools.destination, p.pools.row_bytes);
  if (p.pairs.count == 0) return;
  move_rows(Queue(host_rows), p.pools, PairRoute{p.pairs}, BeyondEnd::kZeros);
}

}  // namespace hisparse::cuda
