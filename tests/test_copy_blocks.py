"""What `copy_blocks` promises: every kind of page copy there is."""

from __future__ import annotations

import torch
from torch import Tensor
from worlds import block_major, ints, named_rows

import hisparse_ops

BLOCK, LAYERS, WIDTH = 4, 3, 12
STRIDE = BLOCK * LAYERS
DEVICE_BLOCKS, HOST_BLOCKS = 6, 9


def device_pool(device: str) -> list[Tensor]:
    """Block-major, bytes named after the rows of a host pool that lies elsewhere."""
    rows = block_major(DEVICE_BLOCKS, BLOCK, LAYERS, WIDTH, device=device)
    for layer, named in zip(rows, named_rows(1000 + rows[0].shape[0], LAYERS, WIDTH, device), strict=True):
        layer.copy_(named[1000:])
    return rows


def host_pool(device: str) -> list[Tensor]:
    return named_rows(HOST_BLOCKS * BLOCK, LAYERS, WIDTH, device)


def page(layers: list[Tensor], block: int, stride: int) -> list[Tensor]:
    return [layer[block * stride : block * stride + BLOCK].clone() for layer in layers]


def test_spill_and_restore_are_inverse(device: str) -> None:
    rows, host = device_pool(device), host_pool(device)
    content = page(rows, 5, STRIDE)
    neighbours = page(host, 1, BLOCK) + page(host, 3, BLOCK)
    hisparse_ops.copy_blocks(rows, host, ints([5], device), ints([2], device), BLOCK, STRIDE, BLOCK)
    hisparse_ops.copy_blocks(host, rows, ints([2], device), ints([1], device), BLOCK, BLOCK, STRIDE)
    for found in (page(host, 2, BLOCK), page(rows, 1, STRIDE)):
        assert all(torch.equal(a, b) for a, b in zip(found, content, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(page(host, 1, BLOCK) + page(host, 3, BLOCK), neighbours, strict=True))


def test_copies_inside_one_pool(device: str) -> None:
    """Copy-on-write and adoption."""
    for layers, stride in ((device_pool(device), STRIDE), (host_pool(device), BLOCK)):
        contents = [page(layers, block, stride) for block in (1, 2)]
        hisparse_ops.copy_blocks(layers, layers, ints([1, 2], device), ints([4, 5], device), BLOCK, stride, stride)
        for block, content in zip((4, 5), contents, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(page(layers, block, stride), content, strict=True))


def test_void_pairs_copy_nothing(device: str) -> None:
    """The null block, negative ids, and blocks that begin or end behind the pool, on either side."""
    rows, host = device_pool(device), host_pool(device)
    before = [layer.clone() for layer in rows]
    source = [0, 1, -1, 1, HOST_BLOCKS, 2**31 - 1, 1, 1]
    target = [1, 0, 1, -1, 1, 1, DEVICE_BLOCKS, 2**31 - 1]
    hisparse_ops.copy_blocks(host, rows, ints(source, device), ints(target, device), BLOCK, BLOCK, STRIDE)
    assert all(torch.equal(a, b) for a, b in zip(rows, before, strict=True))


def test_a_block_that_ends_behind_the_pool(device: str) -> None:
    host = [layer[:-1] for layer in host_pool(device)]
    rows = device_pool(device)
    before = rows[0].clone()
    hisparse_ops.copy_blocks(host, rows, ints([HOST_BLOCKS - 1], device), ints([1], device), BLOCK, BLOCK, STRIDE)
    assert torch.equal(rows[0], before)
    hisparse_ops.copy_blocks(host, rows, ints([HOST_BLOCKS - 2], device), ints([1], device), BLOCK, BLOCK, STRIDE)
    assert not torch.equal(rows[0], before)
