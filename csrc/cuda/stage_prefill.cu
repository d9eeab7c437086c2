#include "arguments.h"
#include "launch.cuh"
#include "ops.h"
#include "warp.cuh"

namespace hisparse::cuda {
namespace {

constexpr int kThreads = 1024;

struct Staging {
  int32_t* table;  // [requests, pages]
  int32_t* staged;
  int32_t* resident;
  int32_t* host;
};

// One block, since every page's number depends on all before: it goes over the pages of all requests in
// order, a run per thread at a time.
__global__ void __launch_bounds__(kThreads)
    stage_prefill_kernel(const StagePrefillParams p, const Staging out) {
  __shared__ int32_t in_round;
  wait_for_previous_kernel();
  const int64_t pages = p.resident_table.columns;
  int64_t used = 0;
  for (int64_t r = 0; r < p.requests; ++r) {
    const int64_t state = p.state_rows[r];
    const bool known = state >= 0 && state < p.resident_table.rows;
    const int64_t in_context = known ? min(pages_of(p.context_lens[r], p.block_size), pages) : 0;
    for (int64_t base = 0; base < pages; base += kThreads) {
      const int64_t page = base + threadIdx.x;
      const int32_t on_device = page < in_context ? max(p.resident_table.row(state)[page], 0) : 0;
      const int32_t on_host = page < in_context ? max(p.host_table.row(state)[page], 0) : 0;
      const bool mapped = on_device > 0 || on_host > 0;

      // Mapped pages get the next staging block, while there is one.
      int64_t number = 0;
      if (base < in_context) {
        const int32_t through = block_inclusive_sum<kThreads>(mapped);
        if (threadIdx.x == kThreads - 1) in_round = through;
        number = used + through;
        __syncthreads();
        used += in_round;
      }
      const bool fits = mapped && number <= p.staging_blocks;
      if (page < pages) out.table[r * pages + page] = fits ? static_cast<int32_t>(number) : 0;
      if (fits) {
        out.staged[number - 1] = static_cast<int32_t>(number);
        out.resident[number - 1] = on_device;
        out.host[number - 1] = on_device == 0 ? on_host : 0;
      }
      __syncthreads();
    }
  }

  // What is left of the area is unused.
  used = min(used, p.staging_blocks);
  for (int32_t* list : {out.staged, out.resident, out.host})
    block_fill<kThreads>(list + used, static_cast<int32_t>(p.staging_blocks - used), 0);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> stage_prefill(const Tensor& context_lens, const Tensor& state_rows,
                                                         const Tensor& resident_table,
                                                         const Tensor& host_table, int64_t block_size,
                                                         int64_t staging_blocks) {
  const StagePrefillParams p =
      stage_prefill_params(context_lens, state_rows, resident_table, host_table, block_size, staging_blocks);
  Tensor staging_table = new_indices(context_lens, {p.requests, p.resident_table.columns});
  Tensor staged_blocks = new_indices(context_lens, {staging_blocks});
  Tensor resident_blocks = new_indices(context_lens, {staging_blocks});
  Tensor host_blocks = new_indices(context_lens, {staging_blocks});
  Queue(context_lens)
      .launch(stage_prefill_kernel, {1, kThreads}, p,
              Staging{indices_of(staging_table), indices_of(staged_blocks), indices_of(resident_blocks),
                      indices_of(host_blocks)});
  return {staging_table, staged_blocks, resident_blocks, host_blocks};
}

}  // namespace hisparse::cuda
