// Checks the arguments of every op, for both backends alike, and hands them to kernels as plain structs.
// A failed check throws before anything is read or written; torch turns it into a RuntimeError.
#pragma once

#include "common/params.h"
#include "stable.h"

namespace hisparse {

ResolveParams resolve_params(const Tensor& topk, const Tensor& query_start, const Tensor& state_rows,
                             const Tensor& host_table, const Tensor& resident_table, const Tensor& hot_table,
                             const Tensor& slot_rows, const Tensor& slot_stamps, const Tensor& clock,
                             const Tensor& counters, int64_t block_size, int64_t block_stride);

GatherCompactParams gather_compact_params(const TensorList& host, const TensorList& device,
                                          const Tensor& miss_host_rows, const Tensor& miss_device_rows,
                                          const Tensor& query_start, const Tensor& miss_counts);

RowCopyParams gather_plan_params(const TensorList& host, const TensorList& device, const Tensor& host_rows,
                                 const Tensor& device_rows);

RowCopyParams mirror_rows_params(const TensorList& device, const TensorList& host, const Tensor& device_rows,
                                 const Tensor& host_rows);

BlockCopyParams copy_blocks_params(const TensorList& src, const TensorList& dst, const Tensor& src_blocks,
                                   const Tensor& dst_blocks, int64_t block_size, int64_t src_block_stride,
                                   int64_t dst_block_stride);

InvalidateParams invalidate_params(const Tensor& slot_rows, const Tensor& state_rows,
                                   const Tensor& host_rows);

InvalidateBlocksParams invalidate_blocks_params(const Tensor& slot_rows, const Tensor& host_blocks,
                                                int64_t block_size);

ResetParams reset_rows_params(const Tensor& slot_rows, const Tensor& slot_stamps, const Tensor& clock,
                              const Tensor& state_rows);

TranslateParams translate_params(const Tensor& positions, const Tensor& state_rows, const Tensor& table,
                                 int64_t block_size, int64_t block_stride);

StagePrefillParams stage_prefill_params(const Tensor& context_lens, const Tensor& state_rows,
                                        const Tensor& resident_table, const Tensor& host_table,
                                        int64_t block_size, int64_t staging_blocks);

}  // namespace hisparse
