#include "arguments.h"
#include "launch.cuh"
#include "ops.h"
#include "warp.cuh"

namespace hisparse::cuda {
namespace {

constexpr int kThreads = 512;

// One block per entry.
__global__ void __launch_bounds__(kThreads) reset_rows_kernel(const ResetParams p) {
  wait_for_previous_kernel();
  const int64_t state = p.state_rows.data[blockIdx.x];
  if (state < 0 || state >= p.hot.states) return;
  const auto slots = static_cast<int32_t>(p.hot.slots);
  block_fill<kThreads>(p.hot.rows + state * p.hot.slots, slots, kNone);
  block_fill<kThreads>(p.hot.stamps + state * p.hot.slots, slots, 0);
  if (threadIdx.x == 0) p.hot.clock[state] = 0;
}

}  // namespace

void reset_rows(const Tensor& slot_rows, const Tensor& slot_stamps, const Tensor& clock,
                const Tensor& state_rows) {
  const ResetParams p = reset_rows_params(slot_rows, slot_stamps, clock, state_rows);
  if (p.state_rows.count == 0) return;
  Queue(slot_rows).launch(reset_rows_kernel, {p.state_rows.count, kThreads}, p);
}

}  // namespace hisparse::cuda
