// Every op, as each backend implements it; hisparse_ops/ops.py has the contracts.
// HISPARSE_BACKEND is `cpu` or `cuda`: one library, one backend.
#pragma once

#include "stable.h"

namespace hisparse::HISPARSE_BACKEND {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> resolve(
    const Tensor& topk, const Tensor& query_start, const Tensor& state_rows, const Tensor& host_table,
    const Tensor& resident_table, const Tensor& hot_table, const Tensor& slot_rows, const Tensor& slot_stamps,
    const Tensor& clock, const Tensor& counters, int64_t block_size, int64_t block_stride);

void gather_compact(const TensorList& host, const TensorList& device, const Tensor& miss_host_rows,
                    const Tensor& miss_device_rows, const Tensor& query_start, const Tensor& miss_counts);

void gather_plan(const TensorList& host, const TensorList& device, const Tensor& host_rows,
                 const Tensor& device_rows);

void mirror_rows(const TensorList& device, const TensorList& host, const Tensor& device_rows,
                 const Tensor& host_rows);

void invalidate(const Tensor& slot_rows, const Tensor& state_rows, const Tensor& host_rows);

void invalidate_blocks(const Tensor& slot_rows, const Tensor& host_blocks, int64_t block_size);

void reset_rows(const Tensor& slot_rows, const Tensor& slot_stamps, const Tensor& clock,
                const Tensor& state_rows);

Tensor translate(const Tensor& positions, const Tensor& state_rows, const Tensor& table, int64_t block_size,
                 int64_t block_stride);

void copy_blocks(const TensorList& src, const TensorList& dst, const Tensor& src_blocks,
                 const Tensor& dst_blocks, int64_t block_size, int64_t src_block_stride,
                 int64_t dst_block_stride);

std::tuple<Tensor, Tensor, Tensor, Tensor> stage_prefill(const Tensor& context_lens, const Tensor& state_rows,
                                                         const Tensor& resident_table,
                                                         const Tensor& host_table, int64_t block_size,
                                                         int64_t staging_blocks);

}  // namespace hisparse::HISPARSE_BACKEND
