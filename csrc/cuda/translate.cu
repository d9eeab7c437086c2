#include "arguments.h"
#include "launch.cuh"
#include "ops.h"
#include "warp.cuh"

namespace hisparse::cuda {
namespace {

constexpr int kThreads = 256;

// One thread per entry.
__global__ void __launch_bounds__(kThreads) translate_kernel(const TranslateParams p, int32_t* rows) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < p.count) rows[i] = table_row(p.table, p.state_rows[i], p.positions[i], p.blocks);
}

}  // namespace

Tensor translate(const Tensor& positions, const Tensor& state_rows, const Tensor& table, int64_t block_size,
                 int64_t block_stride) {
  const TranslateParams p = translate_params(positions, state_rows, table, block_size, block_stride);
  Tensor rows = new_indices(positions, {p.count});
  if (p.count > 0) {
    Queue(positions).launch(translate_kernel, {divide_up(p.count, int64_t{kThreads}), kThreads}, p,
                            indices_of(rows));
  }
  return rows;
}

}  // namespace hisparse::cuda
