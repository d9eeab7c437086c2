#include "arguments.h"

#include "checks.h"

namespace hisparse {

ResolveParams resolve_params(const Tensor& topk, const Tensor& query_start, const Tensor& state_rows,
                             const Tensor& host_table, const Tensor& resident_table, const Tensor& hot_table,
                             const Tensor& slot_rows, const Tensor& slot_stamps, const Tensor& clock,
                             const Tensor& counters, int64_t block_size, int64_t block_stride) {
  const Checks check("resolve", topk);
  ResolveParams params{};
  params.topk = check.matrix("topk", topk);
  params.state_rows = check.list("state_rows", state_rows).data;
  params.requests = state_rows.size(0);
  params.query_start = check.list("query_start", query_start, params.requests + 1).data;
  params.hot = check.slots(slot_rows, slot_stamps, clock);
  check.typed("counters", counters, ScalarType::Long, 1);
  check.sized("counters", counters, 0, kCounters);
  check.contiguous("counters", counters);
  params.counters = counters.mutable_data_ptr<int64_t>();

  params.host_table = check.matrix("host_table", host_table, params.hot.states);
  params.resident_table =
      check.matrix("resident_table", resident_table, params.hot.states, params.host_table.columns);
  params.hot_table = check.matrix("hot_table", hot_table, params.hot.states);
  params.blocks = check.blocks(block_size, block_stride);
  check.require(params.hot.slots <= params.hot_table.columns * block_size,
                "hot_table must name blocks for all ", params.hot.slots, " hot slots, has room for ",
                params.hot_table.columns * block_size);
  check.require(topk.numel() <= kMaxRow, "topk must have fewer than 2^31 entries, got ", topk.numel());
  return params;
}

GatherCompactParams gather_compact_params(const TensorList& host, const TensorList& device,
                                          const Tensor& miss_host_rows, const Tensor& miss_device_rows,
                                          const Tensor& query_start, const Tensor& miss_counts) {
  const Checks check("gather_compact", miss_host_rows);
  GatherCompactParams params{};
  params.host_rows = check.whole("miss_host_rows", miss_host_rows, {kAnySize, kAnySize});
  params.query_rows = miss_host_rows.size(0);
  params.columns = miss_host_rows.size(1);
  params.device_rows = check.whole("miss_device_rows", miss_device_rows, {params.query_rows, params.columns});
  params.counts = check.list("miss_counts", miss_counts).data;
  params.requests = miss_counts.size(0);
  params.query_start = check.list("query_start", query_start, params.requests + 1).data;
  params.pools = check.separate_pools("host", host, "device", device);
  return params;
}

RowCopyParams gather_plan_params(const TensorList& host, const TensorList& device, const Tensor& host_rows,
                                 const Tensor& device_rows) {
  const Checks check("gather_plan", host_rows);
  const PairList pairs = check.pairs("host_rows", host_rows, "device_rows", device_rows);
  return {check.separate_pools("host", host, "device", device), pairs};
}

RowCopyParams mirror_rows_params(const TensorList& device, const TensorList& host, const Tensor& device_rows,
                                 const Tensor& host_rows) {
  const Checks check("mirror_rows", device_rows);
  const PairList pairs = check.pairs("device_rows", device_rows, "host_rows", host_rows);
  return {check.separate_pools("device", device, "host", host), pairs};
}

BlockCopyParams copy_blocks_params(const TensorList& src, const TensorList& dst, const Tensor& src_blocks,
                                   const Tensor& dst_blocks, int64_t block_size, int64_t src_block_stride,
                                   int64_t dst_block_stride) {
  const Checks check("copy_blocks", src_blocks);
  const NumberList source = check.list("src_blocks", src_blocks);
  const NumberList destination = check.list("dst_blocks", dst_blocks, source.count);
  return {check.pools("src", src, "dst", dst),
          {source.data, destination.data, source.count},
          check.blocks(block_size, src_block_stride),
          check.blocks(block_size, dst_block_stride)};
}

InvalidateParams invalidate_params(const Tensor& slot_rows, const Tensor& state_rows,
                                   const Tensor& host_rows) {
  const Checks check("invalidate", slot_rows);
  const HotSlots hot = check.slots(slot_rows);
  const NumberList states = check.list("state_rows", state_rows);
  return {hot, states.data, check.list("host_rows", host_rows, states.count).data, states.count};
}

InvalidateBlocksParams invalidate_blocks_params(const Tensor& slot_rows, const Tensor& host_blocks,
                                                int64_t block_size) {
  const Checks check("invalidate_blocks", slot_rows);
  return {check.slots(slot_rows), check.list("host_blocks", host_blocks),
          check.blocks(block_size, block_size).size};
}

ResetParams reset_rows_params(const Tensor& slot_rows, const Tensor& slot_stamps, const Tensor& clock,
                              const Tensor& state_rows) {
  const Checks check("reset_rows", slot_rows);
  return {check.slots(slot_rows, slot_stamps, clock), check.list("state_rows", state_rows)};
}

TranslateParams translate_params(const Tensor& positions, const Tensor& state_rows, const Tensor& table,
                                 int64_t block_size, int64_t block_stride) {
  const Checks check("translate", positions);
  TranslateParams params{};
  params.positions = check.list("positions", positions).data;
  params.count = positions.size(0);
  params.state_rows = check.list("state_rows", state_rows, params.count).data;
  params.table = check.matrix("table", table);
  params.blocks = check.blocks(block_size, block_stride);
  return params;
}

StagePrefillParams stage_prefill_params(const Tensor& context_lens, const Tensor& state_rows,
                                        const Tensor& resident_table, const Tensor& host_table,
                                        int64_t block_size, int64_t staging_blocks) {
  const Checks check("stage_prefill", context_lens);
  StagePrefillParams params{};
  params.context_lens = check.list("context_lens", context_lens).data;
  params.requests = context_lens.size(0);
  params.state_rows = check.list("state_rows", state_rows, params.requests).data;
  params.resident_table = check.matrix("resident_table", resident_table);
  params.host_table =
      check.matrix("host_table", host_table, params.resident_table.rows, params.resident_table.columns);
  params.block_size = check.blocks(block_size, block_size).size;
  check.require(staging_blocks >= 0 && staging_blocks <= kMaxRow,
                "staging_blocks must lie between 0 and 2^31 - 1, got ", staging_blocks);
  params.staging_blocks = staging_blocks;
  return params;
}

}  // namespace hisparse
