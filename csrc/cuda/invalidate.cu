#include <algorithm>

#include "arguments.h"
#include "launch.cuh"
#include "ops.h"
#include "stale_set.cuh"

namespace hisparse::cuda {
namespace {

constexpr int kThreads = 1024;
using Stale = StaleSet<kThreads>;

// One block per pair looks through the slots of its state row: best when few pairs meet in one.
__global__ void __launch_bounds__(kThreads) invalidate_pairs(const InvalidateParams p) {
  wait_for_previous_kernel();
  const int64_t state = p.state_rows[blockIdx.x];
  const int32_t stale = p.host_rows[blockIdx.x];
  if (state < 0 || state >= p.hot.states || stale < 0) return;
  int32_t* slots = p.hot.rows + state * p.hot.slots;
  empty_slots<kThreads>(slots, p.hot.slots, [&](int32_t row) { return row == stale; });
}

// One block per state row collects its pairs and looks through its slots once for all of them.
__global__ void __launch_bounds__(kThreads) invalidate_states(const InvalidateParams p) {
  extern __shared__ int4 memory[];
  const Stale set(memory, p.count);
  set.clear();
  int32_t* slots = p.hot.rows + blockIdx.x * p.hot.slots;
  block_prefetch(slots, p.hot.slots * sizeof(int32_t));
  block_prefetch(p.state_rows, p.count * sizeof(int32_t));
  block_prefetch(p.host_rows, p.count * sizeof(int32_t));
  wait_for_previous_kernel();
  for (int64_t begin = 0; begin < p.count; begin += Stale::kCapacity) {
    if (begin > 0) set.clear();
    const bool any = set.add(begin, min(p.count, begin + Stale::kCapacity), [&](int64_t i) {
      const int32_t state = p.state_rows[i], row = p.host_rows[i];  // both reads at once
      return state == static_cast<int32_t>(blockIdx.x) ? row : kNone;
    });
    if (any) empty_slots<kThreads>(slots, p.hot.slots, [&](int32_t row) { return set.has(row); });
  }
}

}  // namespace

void invalidate(const Tensor& slot_rows, const Tensor& state_rows, const Tensor& host_rows) {
  const InvalidateParams p = invalidate_params(slot_rows, state_rows, host_rows);
  if (p.count == 0 || p.hot.states == 0 || p.hot.slots == 0) return;
  const Queue queue(slot_rows);
  if (p.count <= p.hot.states) {
    queue.launch(invalidate_pairs, {p.count, kThreads}, p);
  } else {
    queue.launch(invalidate_states, {p.hot.states, kThreads, Stale::shared_bytes(p.count)}, p);
  }
}

}  // namespace hisparse::cuda
