"""What `translate` promises."""

from __future__ import annotations

import torch
from worlds import block_major, ints

import hisparse_ops

BLOCK = 4


def test_rows_and_bytes_agree_when_blocks_are_far_apart(device: str) -> None:
    """A block stride of three times the block size: the row number leads to the bytes of the block, and back."""
    layers = 3
    rows = block_major(6, BLOCK, layers, 4, device=device)
    whole = rows[0]._base
    assert whole is not None
    whole.copy_(torch.arange(whole.shape[0], device=device).view(-1, 1).expand_as(whole))
    table = ints([[5, 0, 2, 3]], device)
    positions = torch.arange(4 * BLOCK, dtype=torch.int32, device=device)
    found = hisparse_ops.translate(positions, torch.zeros_like(positions), table, BLOCK, layers * BLOCK)
    for position, row in enumerate(found.tolist()):
        block = int(table[0, position // BLOCK])
        if block == 0:
            assert row == -1
            continue
        for layer in range(layers):
            assert int(rows[layer][row, 0]) == (block * layers + layer) * BLOCK + position % BLOCK


def test_numbers_out_of_range(device: str, poisoned: None) -> None:
    """Canaries behind the last column and row of the table are never read."""
    wide = torch.full((3, 3), 77, dtype=torch.int32, device=device)
    table = wide[:2, :2]
    table.copy_(ints([[7, 0], [9, -3]], device))
    positions = [8, 9, 2**31 - 1, -1, -(2**31), 0, 0, 4, 4]
    states = [0, 1, 0, 0, 1, 2, -1, 0, 1]
    assert hisparse_ops.translate(ints(positions, device), ints(states, device), table, BLOCK, BLOCK).eq(-1).all()


def test_products_beyond_int32(device: str) -> None:
    table = ints([[2**29 - 1, 2**29, 2**31 - 1]], device)
    positions = ints([3, 4, 8], device)
    found = hisparse_ops.translate(positions, torch.zeros_like(positions), table, BLOCK, BLOCK)
    assert found.tolist() == [2**31 - 1, -1, -1]
