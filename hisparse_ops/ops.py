"""Every op of the data plane: schema, contract and fake in one place. This is the file to read.

Each op is `torch.ops.hisparse.<name>`, implemented in C++ for CPU and in CUDA for GPUs, with the same results
bit for bit. Here the functions without underscore are its typed face; `resolve` and `gather_compact` take
the bundles of `hot_state.py` instead of single tensors.

What holds for all of them
- Index tensors are int32, row-contiguous (one-dimensional ones contiguous); state tensors are contiguous;
  pool layers are [rows, width] with contiguous rows at any row stride, equal dtype and width in one call.
- -1, out-of-range and unmapped positions give -1 or are skipped, and nobody else's memory is touched.
- Every element of every output is written. Nothing waits for the host, so every op fits in a CUDA graph.
- Wrong dtypes, shapes, devices, strides or sizes raise RuntimeError, naming the argument, before anything changes.
- In compiled code
  - let no aten op touch a tensor between two ops here that mutate it: the compiler may clone the whole cache;
  - never pass an op both a tensor and a clone of it: the compiler may merge the two;
  - make the layer views of a pool inside, from the whole tensor (`pool.unflatten(1, (L, width)).unbind(1)` for a
    token-major one): views that come in as separate inputs are copied out and back, whole and unreported.

Letters: B query rows, K positions per query row, R requests, S state rows, P pages of a table row, Q hot blocks
and H hot slots of a state row, N entries, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hisparse_ops._checks import Checks
from hisparse_ops._library import declare
from hisparse_ops.hot_state import COUNTER_NAMES, Batch, HotState, MissPlan, Tables


def resolve(topk: Tensor, batch: Batch, tables: Tables, hot_state: HotState) -> MissPlan:
    """Finds the device row of every position the indexer picked, loading what is missing into the hot buffer.

    The contract is `_resolve`'s; this is how model code calls it:

        plan = hisparse_ops.resolve(topk, batch, tables, hot_state)
        hisparse_ops.gather_compact(host_layers, device_layers, plan)
        out = attention(q, device_layer, plan.device_rows, plan.valid_counts)
    """
    outputs = _resolve(
        topk,
        batch.query_start,
        batch.state_rows,
        tables.host,
        tables.resident,
        tables.hot,
        hot_state.slot_rows,
        hot_state.slot_stamps,
        hot_state.clock,
        hot_state.counters,
        tables.block_size,
        tables.block_stride,
    )
    return MissPlan(*outputs, query_start=batch.query_start)


def gather_compact(host: Sequence[Tensor], device: Sequence[Tensor], plan: MissPlan) -> None:
    """Loads what `resolve` planned, for all layers at once. The contract is `_gather_compact`'s."""
    _gather_compact(host, device, plan.miss_host_rows, plan.miss_device_rows, plan.query_start, plan.miss_counts)


@declare(
    """resolve(Tensor topk, Tensor query_start, Tensor state_rows,
               Tensor host_table, Tensor resident_table, Tensor hot_table,
               Tensor(a!) slot_rows, Tensor(b!) slot_stamps, Tensor(c!) clock, Tensor(d!) counters,
               int block_size, int block_stride)
       -> (Tensor device_rows, Tensor valid_counts,
           Tensor miss_host_rows, Tensor miss_device_rows, Tensor miss_counts)"""
)
def _resolve(
    topk: Tensor,
    query_start: Tensor,
    state_rows: Tensor,
    host_table: Tensor,
    resident_table: Tensor,
    hot_table: Tensor,
    slot_rows: Tensor,
    slot_stamps: Tensor,
    clock: Tensor,
    counters: Tensor,
    block_size: int,
    block_stride: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Look-up, victim choice and LRU update of one layer group, for a batch.

    | argument                   | shape, dtype  | meaning                                                      |
    |----------------------------|---------------|--------------------------------------------------------------|
    | topk                       | [B, K] int32  | positions in the request's history; < 0 = none; may repeat   |
    | query_start                | [R+1] int32   | query rows of request r: query_start[r] .. query_start[r+1]-1|
    | state_rows                 | [R] int32     | its state row; < 0 = padding; each at most once              |
    | host_table, resident_table | [S, P] int32  | block of page p; <= 0 = none                                 |
    | hot_table                  | [S, Q] int32  | blocks of the hot region, Q >= ceil(H / block_size)          |
    | slot_rows, slot_stamps     | [S, H] int32  | changed: host row in each slot, -1 = empty; its last use     |
    | clock                      | [S] int32     | changed: resolves done                                       |
    | counters                   | [5] int64     | added to: resident, hit, miss, padding, fault                |

    For each request, once for the union of its query rows, the clock advances by 1 and every position is
    1. padding, if negative or beyond the table: -1;
    2. resident, if its page has a resident block: that row; the hot state is not looked at;
    3. a hit, if a hot slot caches its host row: the slot's row; the slot's stamp becomes the clock;
    4. a miss otherwise: the distinct missing host rows, in order of first reference (query row, column), take
       victim slots and enter the plan. Victims are slots in leased hot blocks, neither hit nor loaded in this
       call, by smallest (stamp, slot number); an empty slot counts as stamp 0. A later reference to a row
       loaded in this call counts as a hit;
    5. a fault, if its page has no block at all, its row number is 2^31 or more, its slot lies in a block that is
       not leased, or no victim is left: -1, no state changes.

    Returns device_rows [B, K], valid_counts [B] (entries >= 0 of each row), miss_host_rows and
    miss_device_rows [B, K] (request r's loads start at row query_start[r] and run on row-major; -1 = unused),
    miss_counts [R]. Query rows of no request are padding: -1, and counted nowhere. `query_start` is clamped to
    0 .. B; a request that starts before an earlier one, or ends before it starts, has no rows. A state row
    outside the tensors, or named a second time, has no pages. `resolve` knows no lengths: the indexer must be
    causal.
    """
    check = Checks("resolve", topk)
    query_rows, _ = check.tensor("topk", topk, None, None)
    (requests,) = check.tensor("state_rows", state_rows, None)
    check.tensor("query_start", query_start, requests + 1)
    states, slots = check.tensor("slot_rows", slot_rows, None, None)
    check.tensor("slot_stamps", slot_stamps, states, slots)
    check.tensor("clock", clock, states)
    check.tensor("counters", counters, len(COUNTER_NAMES), dtype=torch.int64)
    _, pages = check.tensor("host_table", host_table, states, None)
    check.tensor("resident_table", resident_table, states, pages)
    _, hot_blocks = check.tensor("hot_table", hot_table, states, None)
    check.block_sizes(block_size, block_stride)
    room = hot_blocks * block_size
    check.require(slots <= room, f"hot_table must name blocks for all {slots} hot slots, has room for {room}")
    device_rows, miss_host_rows, miss_device_rows = (topk.new_empty(topk.shape) for _ in range(3))
    return device_rows, topk.new_empty(query_rows), miss_host_rows, miss_device_rows, topk.new_empty(requests)


@declare(
    """gather_compact(Tensor[] host, Tensor(a!)[] device, Tensor miss_host_rows, Tensor miss_device_rows,
                      Tensor query_start, Tensor miss_counts) -> ()"""
)
def _gather_compact(
    host: Sequence[Tensor],
    device: Sequence[Tensor],
    miss_host_rows: Tensor,
    miss_device_rows: Tensor,
    query_start: Tensor,
    miss_counts: Tensor,
) -> None:
    """Copies the rows of `resolve`'s plan from host to device, for all L layers.

    host[l] is [host rows, width], device[l] [device rows, width]; miss_host_rows and miss_device_rows
    [B, K], query_start [R+1], miss_counts [R], int32, as resolve made them. Each entry is treated as by
    `gather_plan`. A count is clamped to its request's own part of the plan. Work is spread over all rows of the
    batch. host and device must not overlap.
    """
    check = Checks("gather_compact", miss_host_rows)
    query_rows, columns = check.tensor("miss_host_rows", miss_host_rows, None, None)
    check.tensor("miss_device_rows", miss_device_rows, query_rows, columns)
    (requests,) = check.tensor("miss_counts", miss_counts, None)
    check.tensor("query_start", query_start, requests + 1)
    check.pools("host", host, "device", device)


@declare("gather_plan(Tensor[] host, Tensor(a!)[] device, Tensor host_rows, Tensor device_rows) -> ()")
def gather_plan(host: Sequence[Tensor], device: Sequence[Tensor], host_rows: Tensor, device_rows: Tensor) -> None:
    """Copies row `host_rows[i]` of every `host[l]` to row `device_rows[i]` of `device[l]`.

    host[l] is [host rows, width], device[l] [device rows, width]; host_rows and device_rows int32, contiguous,
    of any equal shape. A pair with a negative side, or whose device row is out of range, is skipped. A host row at
    or beyond the end writes zeros: never old bytes. Device rows are distinct; host and device must not overlap.
    """
    check = Checks("gather_plan", host_rows)
    check.pairs("host_rows", host_rows, "device_rows", device_rows)
    check.pools("host", host, "device", device)


@declare("mirror_rows(Tensor[] device, Tensor(a!)[] host, Tensor device_rows, Tensor host_rows) -> ()")
def mirror_rows(device: Sequence[Tensor], host: Sequence[Tensor], device_rows: Tensor, host_rows: Tensor) -> None:
    """Copies row `device_rows[i]` of every `device[l]` to row `host_rows[i]` of `host[l]`.

    Arguments as in `gather_plan`. A pair with a side that is negative or out of range is skipped. Host rows are
    distinct; host and device must not overlap.
    """
    check = Checks("mirror_rows", device_rows)
    check.pairs("device_rows", device_rows, "host_rows", host_rows)
    check.pools("device", device, "host", host)


@declare("invalidate(Tensor(a!) slot_rows, Tensor state_rows, Tensor host_rows) -> ()")
def invalidate(slot_rows: Tensor, state_rows: Tensor, host_rows: Tensor) -> None:
    """Empties the slot of state row `state_rows[i]` that caches `host_rows[i]`, because that row is rewritten.

    slot_rows [S, H] changes; state_rows and host_rows [N]. Numbers below 0 or out of range are skipped.
    """
    check = Checks("invalidate", slot_rows)
    check.tensor("slot_rows", slot_rows, None, None)
    (entries,) = check.tensor("state_rows", state_rows, None)
    check.tensor("host_rows", host_rows, entries)


@declare("invalidate_blocks(Tensor(a!) slot_rows, Tensor host_blocks, int block_size) -> ()")
def invalidate_blocks(slot_rows: Tensor, host_blocks: Tensor, block_size: int) -> None:
    """Empties every slot, of every state row, that caches a row of `host_blocks`, because they get new content.

    slot_rows [S, H] changes; host_blocks [N], numbers below 0 are skipped.
    """
    check = Checks("invalidate_blocks", slot_rows)
    check.tensor("slot_rows", slot_rows, None, None)
    check.tensor("host_blocks", host_blocks, None)
    check.block_sizes(block_size)


@declare("reset_rows(Tensor(a!) slot_rows, Tensor(b!) slot_stamps, Tensor(c!) clock, Tensor state_rows) -> ()")
def reset_rows(slot_rows: Tensor, slot_stamps: Tensor, clock: Tensor, state_rows: Tensor) -> None:
    """Gives state rows to a new owner: their slots become -1, their stamps and clock 0.

    slot_rows and slot_stamps [S, H] and clock [S] change; state_rows [N], numbers out of range are skipped.
    """
    check = Checks("reset_rows", slot_rows)
    states, slots = check.tensor("slot_rows", slot_rows, None, None)
    check.tensor("slot_stamps", slot_stamps, states, slots)
    check.tensor("clock", clock, states)
    check.tensor("state_rows", state_rows, None)


@declare(
    "translate(Tensor positions, Tensor state_rows, Tensor table, int block_size, int block_stride) -> Tensor rows"
)
def translate(positions: Tensor, state_rows: Tensor, table: Tensor, block_size: int, block_stride: int) -> Tensor:
    """Row numbers of positions: `table[state_rows[i], positions[i] // block_size] * block_stride + offset`.

    positions, state_rows [N]; table [S, P]. Returns rows [N] int32, -1 where the page has no block, or a number
    is out of range. With block_stride = block_size it gives host rows from a host table: the two index tensors
    of `mirror_rows` without any work on the CPU.
    """
    check = Checks("translate", positions)
    (entries,) = check.tensor("positions", positions, None)
    check.tensor("state_rows", state_rows, entries)
    check.tensor("table", table, None, None)
    check.block_sizes(block_size, block_stride)
    return positions.new_empty(entries)


@declare(
    """copy_blocks(Tensor[] src, Tensor(a!)[] dst, Tensor src_blocks, Tensor dst_blocks,
                   int block_size, int src_block_stride, int dst_block_stride) -> ()"""
)
def copy_blocks(
    src: Sequence[Tensor],
    dst: Sequence[Tensor],
    src_blocks: Tensor,
    dst_blocks: Tensor,
    block_size: int,
    src_block_stride: int,
    dst_block_stride: int,
) -> None:
    """Copies whole pages: rows `b * block_stride .. + block_size - 1` of every layer, for each pair of blocks.

    src[l] and dst[l] [rows, width]; src_blocks and dst_blocks [N]. A pair with a side <= 0, or not wholly inside
    its pool, is skipped. Used for spill, restore, copy-on-write and adoption: src and dst may be one pool, as long as
    no destination block is also a source or named twice (not in compiled code, see above).
    """
    check = Checks("copy_blocks", src_blocks)
    (entries,) = check.tensor("src_blocks", src_blocks, None)
    check.tensor("dst_blocks", dst_blocks, entries)
    check.block_sizes(block_size, src_block_stride, dst_block_stride)
    check.pools("src", src, "dst", dst)


@declare(
    """stage_prefill(Tensor context_lens, Tensor state_rows, Tensor resident_table, Tensor host_table,
                     int block_size, int staging_blocks)
       -> (Tensor staging_table, Tensor staged_blocks, Tensor resident_blocks, Tensor host_blocks)"""
)
def stage_prefill(
    context_lens: Tensor,
    state_rows: Tensor,
    resident_table: Tensor,
    host_table: Tensor,
    block_size: int,
    staging_blocks: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plans a dense copy of the context that a prefill chunk attends to, wherever its pages lie.

    context_lens and state_rows [R]; resident_table and host_table [S, P]. The mapped pages of each request,
    the first ceil(context_lens[r] / block_size) of at most P, are numbered 1, 2, 3 ... in order of (request,
    page), up to N = staging_blocks. The staging area therefore has N + 1 blocks, block 0 being its null block.

    Returns staging_table [R, P], the staging block of each page, 0 for pages that are beyond the context, mapped
    nowhere or beyond the area; and three lists [N] whose entry i describes staging block i + 1: staged_blocks
    (i + 1, or 0 if unused), resident_blocks (copy from there, or 0), host_blocks (else from there, or 0).
    Two copies do the work, since `copy_blocks` skips pairs with a 0:

        copy_blocks(device, staging, resident_blocks, staged_blocks, ...)
        copy_blocks(host, staging, host_blocks, staged_blocks, ...)
    """
    check = Checks("stage_prefill", context_lens)
    (requests,) = check.tensor("context_lens", context_lens, None)
    check.tensor("state_rows", state_rows, requests)
    states, pages = check.tensor("resident_table", resident_table, None, None)
    check.tensor("host_table", host_table, states, pages)
    check.block_sizes(block_size)
    check.require(staging_blocks >= 0, f"staging_blocks must lie between 0 and 2^31 - 1, got {staging_blocks}")
    staged, resident, host = (context_lens.new_empty(staging_blocks) for _ in range(3))
    return context_lens.new_empty(requests, pages), staged, resident, host
