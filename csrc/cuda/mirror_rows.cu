#include "arguments.h"
#include "host_memory.cuh"
#include "ops.h"
#include "row_move.cuh"

namespace hisparse::cuda {

void mirror_rows(const TensorList& device, const TensorList& host, const Tensor& device_rows,
                 const Tensor& host_rows) {
  RowCopyParams p = mirror_rows_params(device, host, device_rows, host_rows);
  make_reachable("mirror_rows", "device", device, p.pools.source, p.pools.row_bytes);
  make_reachable("mirror_rows", "host", host, p.pools.destination, p.pools.row_bytes);
  if (p.pairs.count == 0) return;
  move_rows(Queue(device_rows), p.pools, PairRoute{p.pairs}, BeyondEnd::kSkip);
}

}  // namespace hisparse::cuda
