"""What `mirror_rows` promises beyond `gather_plan`."""

from __future__ import annotations

import pytest
import torch
from worlds import block_major, ints, named_rows

import hisparse_ops

BLOCK, LAYERS, WIDTH = 8, 2, 12
STRIDE = BLOCK * LAYERS


@pytest.mark.parametrize("count", range(1, BLOCK + 1))
def test_part_of_the_last_page(count: int, device: str) -> None:
    """The rows of a page that are not mirrored yet keep their bytes."""
    rows = block_major(4, BLOCK, LAYERS, WIDTH, device=device)
    for layer, named in zip(rows, named_rows(rows[0].shape[0], LAYERS, WIDTH, device), strict=True):
        layer.copy_(named)
    host = [torch.full((40, WIDTH), 255, dtype=torch.uint8, device=device) for _ in range(LAYERS)]
    tokens = torch.arange(count, dtype=torch.int32, device=device)
    hisparse_ops.mirror_rows(rows, host, 3 * STRIDE + tokens, 2 * BLOCK + tokens)
    for layer in range(LAYERS):
        assert torch.equal(host[layer][16 : 16 + count], rows[layer][3 * STRIDE : 3 * STRIDE + count])
        assert host[layer][:16].eq(255).all() and host[layer][16 + count :].eq(255).all()


def test_a_padded_verification_request_mirrors_nothing(device: str) -> None:
    """Length 0 and four query rows: its positions are negative, and stay without effect all the way."""
    table = ints([[1000, 1001]], device)
    positions, states = ints([-4, -3, -2, -1], device), ints([-1] * 4, device)
    rows = hisparse_ops.translate(positions, states, table, BLOCK, STRIDE)
    on_host = hisparse_ops.translate(positions, ints([0] * 4, device), table, BLOCK, BLOCK)
    assert rows.eq(-1).all() and on_host.eq(-1).all()

    device_rows, host = named_rows(20, 1, WIDTH, device), [torch.zeros(20, WIDTH, dtype=torch.uint8, device=device)]
    hisparse_ops.mirror_rows(device_rows, host, rows, on_host)
    assert host[0].eq(0).all()
    slots = torch.full((1, 4), -1, dtype=torch.int32, device=device)
    slots[0, 0] = 3
    hisparse_ops.invalidate(slots, states, on_host)
    assert slots.tolist() == [[3, -1, -1, -1]]


def test_a_row_that_is_not_there_mirrors_nothing(device: str) -> None:
    device_rows = named_rows(20, 1, WIDTH, device)
    host = [torch.full((20, WIDTH), 255, dtype=torch.uint8, device=device)]
    hisparse_ops.mirror_rows(device_rows, host, ints([20, 2**31 - 1, -1, 7], device), ints([0, 1, 2, 3], device))
    assert torch.equal(host[0][3], device_rows[0][7])
    assert host[0][:3].eq(255).all() and host[0][4:].eq(255).all(), "a host row is the truth: no zeros over it"
