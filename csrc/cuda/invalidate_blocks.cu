#include "arguments.h"
#include "launch.cuh"
#include "ops.h"
#include "stale_set.cuh"

namespace hisparse::cuda {
namespace {

constexpr int kThreads = 1024;
using Stale = StaleSet<kThreads>;

// One block per state row.
__global__ void __launch_bounds__(kThreads) invalidate_blocks_kernel(const InvalidateBlocksParams p) {
  extern __shared__ int4 memory[];
  const Stale set(memory, p.blocks.count);
  set.clear();
  wait_for_previous_kernel();
  int32_t* slots = p.hot.rows + blockIdx.x * p.hot.slots;
  for (int64_t begin = 0; begin < p.blocks.count; begin += Stale::kCapacity) {
    if (begin > 0) set.clear();
    const int64_t end = min(p.blocks.count, begin + Stale::kCapacity);
    if (!set.add(begin, end, [&](int64_t i) { return p.blocks.data[i]; })) continue;
    empty_slots<kThreads>(slots, p.hot.slots, [&](int32_t row) { return set.has(row / p.block_size); });
  }
}

}  // namespace

void invalidate_blocks(const Tensor& slot_rows, const Tensor& host_blocks, int64_t block_size) {
  const InvalidateBlocksParams p = invalidate_blocks_params(slot_rows, host_blocks, block_size);
  if (p.blocks.count == 0 || p.hot.states == 0 || p.hot.slots == 0) return;
  const LaunchShape shape{p.hot.states, kThreads, Stale::shared_bytes(p.blocks.count)};
  Queue(slot_rows).launch(invalidate_blocks_kernel, shape, p);
}

}  // namespace hisparse::cuda
