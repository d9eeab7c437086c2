#include "arguments.h"
#include "launch.cuh"
#include "ops.h"
#include "stale_set.cuh"

namespace hisparse::cuda {
namespace {

constexpr int kThreads = 512;

// One block per state row.
__global__ void __launch_bounds__(kThreads) invalidate_blocks_kernel(const InvalidateBlocksParams p) {
  extern __shared__ int4 memory[];
  StaleSet<kThreads> set(memory, p.blocks.count);
  wait_for_previous_kernel();
  int32_t* slots = p.hot.rows + blockIdx.x * p.hot.slots;
  for (int64_t base = 0; base < p.blocks.count; base += StaleSet<kThreads>::kCapacity) {
    const int64_t end = min(p.blocks.count, base + StaleSet<kThreads>::kCapacity);
    const bool any = set.collect(base, end, [&](int64_t i) { return p.blocks.data[i]; });
    if (any) {
      empty_slots<kThreads>(slots, p.hot.slots, [&](int32_t row) { return set.has(row / p.block_size); });
    }
  }
}

}  // namespace

void invalidate_blocks(const Tensor& slot_rows, const Tensor& host_blocks, int64_t block_size) {
  const InvalidateBlocksParams p = invalidate_blocks_params(slot_rows, host_blocks, block_size);
  if (p.blocks.count == 0 || p.hot.states == 0 || p.hot.slots == 0) return;
  const LaunchShape shape{p.hot.states, kThreads, StaleSet<kThreads>::shared_bytes(p.blocks.count)};
  Queue(slot_rows).launch(invalidate_blocks_kernel, shape, p);
}

}  // namespace hisparse::cuda
