"""The oracle: each op of `ops.py` again, in plain Python over tensors. Clear and slow; same arguments as
`torch.ops.hisparse.*`, same results bit for bit.

Written from the contracts in `ops.py`, not from the C++: where the two differ, one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

MAX_ROW = 2**31 - 1


def resolve(
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
    """See `ops._resolve`."""
    query_rows, width = topk.shape
    device_rows = torch.full_like(topk, -1)
    miss_host_rows = torch.full_like(topk, -1)
    miss_device_rows = torch.full_like(topk, -1)
    miss_counts = torch.zeros_like(state_rows)

    seen: set[int] = set()
    for request, span in enumerate(query_spans(query_start, query_rows)):
        state = int(state_rows[request])
        if state < 0:
            continue
        known = state < slot_rows.shape[0] and state not in seen
        seen.add(state)
        references = [(row, column) for row in span for column in range(width)]
        positions = {place: int(topk[place]) for place in references}
        found: dict[tuple[int, int], int] = {}  # reference -> device row, -1 for padding and faults
        wanted: dict[tuple[int, int], int] = {}  # reference -> host row, to be found in the hot buffer

        # 1 and 2: padding, resident, and pages without any block.
        for place in references:
            page, offset = divmod(positions[place], block_size)
            if not 0 <= page < host_table.shape[1]:
                found[place] = -1
                counters[3] += 1
            elif known and resident_table[state, page] > 0:
                found[place] = block_row(int(resident_table[state, page]), block_stride, offset)
                counters[0 if found[place] >= 0 else 4] += 1
            else:
                host_row = block_row(int(host_table[state, page]), block_size, offset) if known else -1
                if host_row >= 0:
                    wanted[place] = host_row
                else:
                    found[place] = -1
                    counters[4] += 1

        if known:
            clock[state] += 1
        if wanted:
            now = int(clock[state])

            def slot_row(slot: int, state: int = state) -> int:
                block, offset = divmod(slot, block_size)
                return block_row(int(hot_table[state, block]), block_stride, offset)

            cached = {int(row): slot for slot, row in reversed(list(enumerate(slot_rows[state]))) if row >= 0}

            # 3: hits keep their slots.
            distinct = list(dict.fromkeys(wanted.values()))
            hit_slots = {cached[row] for row in distinct if row in cached}
            location = {row: slot_row(cached[row]) for row in distinct if row in cached}
            for slot in hit_slots:
                if slot_row(slot) >= 0:
                    slot_stamps[state, slot] = now

            # 4: misses take the slots that were used least recently.
            misses = [row for row in distinct if row not in cached]
            free = [slot for slot in range(slot_rows.shape[1]) if slot not in hit_slots and slot_row(slot) >= 0]
            last_use = {slot: int(slot_stamps[state, slot]) if slot_rows[state, slot] >= 0 else 0 for slot in free}
            victims = sorted(free, key=lambda slot: (last_use[slot], slot))
            loads = list(zip(misses, victims, strict=False))
            for number, (row, slot) in enumerate(loads):
                slot_rows[state, slot] = row
                slot_stamps[state, slot] = now
                location[row] = slot_row(slot)
                place = references[number]  # the plan runs row-major from the request's first query row
                miss_host_rows[place] = row
                miss_device_rows[place] = location[row]
            miss_counts[request] = len(loads)
            counters[2] += len(loads)
            counters[1] -= len(loads)  # the first reference to each load is the miss; it is a served one below

            # 5: what has no slot now is a fault.
            for place, row in wanted.items():
                found[place] = location.get(row, -1)
                counters[1 if found[place] >= 0 else 4] += 1

        for place, row in found.items():
            device_rows[place] = row

    valid_counts = (device_rows >= 0).sum(dim=1, dtype=torch.int32)
    return device_rows, valid_counts, miss_host_rows, miss_device_rows, miss_counts


def gather_compact(
    host: Sequence[Tensor],
    device: Sequence[Tensor],
    miss_host_rows: Tensor,
    miss_device_rows: Tensor,
    query_start: Tensor,
    miss_counts: Tensor,
) -> None:
    """See `ops._gather_compact`."""
    for span, count in zip(query_spans(query_start, miss_host_rows.shape[0]), miss_counts.tolist(), strict=True):
        rows = slice(span.start, span.stop)
        planned = max(count, 0)
        gather_plan(host, device, miss_host_rows[rows].flatten()[:planned], miss_device_rows[rows].flatten()[:planned])


def gather_plan(host: Sequence[Tensor], device: Sequence[Tensor], host_rows: Tensor, device_rows: Tensor) -> None:
    """See `ops.gather_plan`."""
    for source, target in zip(host_rows.flatten().tolist(), device_rows.flatten().tolist(), strict=True):
        for host_layer, device_layer in zip(host, device, strict=True):
            if source >= 0 and 0 <= target < device_layer.shape[0]:
                if source < host_layer.shape[0]:
                    device_layer[target] = host_layer[source]
                else:
                    device_layer[target] = 0


def mirror_rows(device: Sequence[Tensor], host: Sequence[Tensor], device_rows: Tensor, host_rows: Tensor) -> None:
    """See `ops.mirror_rows`."""
    for source, target in zip(device_rows.flatten().tolist(), host_rows.flatten().tolist(), strict=True):
        for device_layer, host_layer in zip(device, host, strict=True):
            if 0 <= source < device_layer.shape[0] and 0 <= target < host_layer.shape[0]:
                host_layer[target] = device_layer[source]


def invalidate(slot_rows: Tensor, state_rows: Tensor, host_rows: Tensor) -> None:
    """See `ops.invalidate`."""
    for state, host_row in zip(state_rows.tolist(), host_rows.tolist(), strict=True):
        if 0 <= state < slot_rows.shape[0] and host_row >= 0:
            slot_rows[state][slot_rows[state] == host_row] = -1


def invalidate_blocks(slot_rows: Tensor, host_blocks: Tensor, block_size: int) -> None:
    """See `ops.invalidate_blocks`."""
    for block in host_blocks.tolist():
        if block >= 0:
            slot_rows[(slot_rows >= 0) & (slot_rows // block_size == block)] = -1


def reset_rows(slot_rows: Tensor, slot_stamps: Tensor, clock: Tensor, state_rows: Tensor) -> None:
    """See `ops.reset_rows`."""
    for state in state_rows.tolist():
        if 0 <= state < slot_rows.shape[0]:
            slot_rows[state] = -1
            slot_stamps[state] = 0
            clock[state] = 0


def translate(positions: Tensor, state_rows: Tensor, table: Tensor, block_size: int, block_stride: int) -> Tensor:
    """See `ops.translate`."""
    rows = torch.full_like(positions, -1)
    for entry, (position, state) in enumerate(zip(positions.tolist(), state_rows.tolist(), strict=True)):
        page, offset = divmod(position, block_size)
        if 0 <= state < table.shape[0] and 0 <= page < table.shape[1]:
            rows[entry] = block_row(int(table[state, page]), block_stride, offset)
    return rows


def copy_blocks(
    src: Sequence[Tensor],
    dst: Sequence[Tensor],
    src_blocks: Tensor,
    dst_blocks: Tensor,
    block_size: int,
    src_block_stride: int,
    dst_block_stride: int,
) -> None:
    """See `ops.copy_blocks`."""
    for source, target in zip(src_blocks.tolist(), dst_blocks.tolist(), strict=True):
        for src_layer, dst_layer in zip(src, dst, strict=True):
            first, to = source * src_block_stride, target * dst_block_stride
            inside = first + block_size <= src_layer.shape[0] and to + block_size <= dst_layer.shape[0]
            if source > 0 and target > 0 and inside:
                dst_layer[to : to + block_size] = src_layer[first : first + block_size].clone()


def stage_prefill(
    context_lens: Tensor,
    state_rows: Tensor,
    resident_table: Tensor,
    host_table: Tensor,
    block_size: int,
    staging_blocks: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `ops.stage_prefill`."""
    states, pages = resident_table.shape
    staging_table = context_lens.new_zeros(context_lens.numel(), pages)
    staged, resident, host = (context_lens.new_zeros(staging_blocks) for _ in range(3))
    used = 0
    for request, (length, state) in enumerate(zip(context_lens.tolist(), state_rows.tolist(), strict=True)):
        if not 0 <= state < states:
            continue
        for page in range(min(-(-length // block_size), pages)):
            on_device, on_host = int(resident_table[state, page]), int(host_table[state, page])
            if used < staging_blocks and (on_device > 0 or on_host > 0):
                staged[used] = staging_table[request, page] = used + 1
                resident[used] = max(on_device, 0)
                host[used] = on_host if on_device <= 0 else 0
                used += 1
    return staging_table, staged, resident, host


def query_spans(query_start: Tensor, query_rows: int) -> list[range]:
    """The query rows of each request. Starts are clamped to the query rows; a request that starts before an
    earlier one, or ends before it starts, has none: no row ever belongs to two requests."""
    starts = [min(max(start, 0), query_rows) for start in query_start.tolist()]
    spans, furthest = [], 0
    for begin, end in pairwise(starts):
        spans.append(range(begin, end) if furthest <= begin <= end else range(0))
        furthest = max(furthest, begin)
    return spans


def block_row(block: int, block_stride: int, offset: int) -> int:
    """The row at `offset` of a block, -1 for no block or a number beyond int32."""
    row = block * block_stride + offset
    return row if block > 0 and row <= MAX_ROW else -1
