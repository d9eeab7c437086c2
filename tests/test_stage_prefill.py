"""What `stage_prefill` promises: a dense copy of a context, wherever its pages lie."""

from __future__ import annotations

import torch
from worlds import block_major, ints, named_rows

import hisparse_ops

BLOCK = 4


def test_pages_are_numbered_in_order(device: str, poisoned: None) -> None:
    resident = ints([[5, 0, 0, 8], [0, 6, 7, 0]], device)
    host = ints([[1000, 1001, 0, 1003], [1004, 0, 1006, 1007]], device)
    table, staged, on_device, on_host = hisparse_ops.stage_prefill(
        ints([13, 8], device), ints([1, 0], device), resident, host, BLOCK, 8
    )
    assert table.tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]
    assert staged.tolist() == [1, 2, 3, 4, 5, 6, 0, 0]
    assert on_device.tolist() == [0, 6, 7, 0, 5, 0, 0, 0]
    assert on_host.tolist() == [1004, 0, 0, 1007, 0, 1001, 0, 0]


def test_unmapped_pages_take_no_room(device: str) -> None:
    tables = ints([[0, 3, -2, 4]], device)
    table, staged, on_device, on_host = hisparse_ops.stage_prefill(
        ints([16], device), ints([0], device), tables, torch.zeros_like(tables), BLOCK, 2
    )
    assert table.tolist() == [[0, 1, 0, 2]]
    assert (staged.tolist(), on_device.tolist(), on_host.tolist()) == ([1, 2], [3, 4], [0, 0])


def test_lengths_around_page_ends(device: str) -> None:
    tables = ints([[3, 4, 5]], device)
    for length in range(-2, 3 * BLOCK + 3):
        table, *_ = hisparse_ops.stage_prefill(
            ints([length], device), ints([0], device), tables, torch.zeros_like(tables), BLOCK, 9
        )
        assert int((table > 0).sum()) == min(max(-(-length // BLOCK), 0), 3)
    table, *_ = hisparse_ops.stage_prefill(
        ints([2**31 - 1], device), ints([0], device), tables, torch.zeros_like(tables), BLOCK, 9
    )
    assert table.tolist() == [[1, 2, 3]]


def test_the_staged_context_is_the_context(device: str) -> None:
    """Two copies fill the area, and position p of a request is where its staging table says."""
    layers, width, stride = 2, 8, 2 * BLOCK
    host = named_rows(12 * BLOCK, layers, width, device)
    pool = block_major(6, BLOCK, layers, width, device=device)
    resident, on_host = ints([[0, 5, 0]], device), ints([[9, 10, 11]], device)
    # Page 1 is on both sides: the resident block counts.
    for layer in range(layers):
        pool[layer][5 * stride : 5 * stride + BLOCK] = 200 + layer
    staging = block_major(4, BLOCK, layers, width, fill=255, device=device)
    table, staged, from_device, from_host = hisparse_ops.stage_prefill(
        ints([11], device), ints([0], device), resident, on_host, BLOCK, 3
    )
    hisparse_ops.copy_blocks(pool, staging, from_device, staged, BLOCK, stride, stride)
    hisparse_ops.copy_blocks(host, staging, from_host, staged, BLOCK, BLOCK, stride)
    positions = torch.arange(11, dtype=torch.int32, device=device)
    rows = hisparse_ops.translate(positions, torch.zeros_like(positions), table, BLOCK, stride)
    for layer in range(layers):
        context = staging[layer][rows.long()]
        assert torch.equal(context[:4], host[layer][9 * BLOCK : 10 * BLOCK])
        assert context[4:8].eq(200 + layer).all()
        assert torch.equal(context[8:], host[layer][11 * BLOCK : 11 * BLOCK + 3])
