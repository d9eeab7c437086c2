"""What `gather_plan` promises; `mirror_rows` and `gather_compact` move rows by the same code."""

from __future__ import annotations

import pytest
import torch
from worlds import block_major, ints, named_rows

import hisparse_ops

LAYERS = 3
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
OTHERS = [torch.bool, torch.int8, torch.int16, torch.uint32, torch.int64, torch.complex64, torch.float4_e2m1fn_x2]


@pytest.mark.parametrize("width", [12, 48, 528, 656])
@pytest.mark.parametrize("offset", [0, 4, 8, 12])
def test_rows_of_any_width_and_alignment(width: int, offset: int, device: str) -> None:
    """Exact bytes for rows whose first byte is aligned to 4 only, and the bytes on both sides stay whole."""
    rows, gap = 9, 4
    memory = torch.full((offset + rows * (width + gap) + gap,), 255, dtype=torch.uint8, device=device)
    target = memory[offset:].as_strided((rows, width), (width + gap, 1))
    (host,) = named_rows(20, 1, width, device)
    hisparse_ops.gather_plan([host], [target], ints([19, 0, 7], device), ints([0, 8, 4], device))
    expected = torch.full_like(memory, 255)
    expected[offset:].as_strided((rows, width), (width + gap, 1))[[0, 8, 4]] = host[[19, 0, 7]]
    assert torch.equal(memory, expected)


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS], ids=str)
def test_rows_of_any_dtype(dtype: torch.dtype, device: str) -> None:
    """Bytes are moved as they are: a NaN stays the NaN it was."""
    host = [layer.contiguous().view(dtype) for layer in named_rows(6, 2, 16, device)]
    rows = [torch.zeros_like(layer.view(torch.uint8)).view(dtype) for layer in host]  # not every dtype can be filled
    hisparse_ops.gather_plan(host, rows, ints([4, 6], device), ints([1, 2], device))
    for source, target in zip(host, rows, strict=True):
        found, expected = target.view(torch.uint8), torch.zeros_like(source.view(torch.uint8))
        expected[1] = source.view(torch.uint8)[4]
        assert torch.equal(found, expected)


def test_layers_are_not_mixed_up(device: str) -> None:
    host, rows = named_rows(50, LAYERS, 16, device), block_major(5, 4, LAYERS, 16, device=device)
    hisparse_ops.gather_plan(host, rows, ints([31], device), ints([4 * 12 + 3], device))
    whole = rows[0]._base
    assert whole is not None
    for layer in range(LAYERS):
        # Block 4 holds the pages of layers 0, 1, 2 one after the other.
        assert torch.equal(whole[4 * 12 + layer * 4 + 3], host[layer][31])
    assert whole.any(1).sum() == LAYERS


def test_a_host_row_beyond_the_end_gives_zeros(device: str) -> None:
    host, rows = named_rows(10, 1, 8, device), [torch.full((4, 8), 9, dtype=torch.uint8, device=device)]
    hisparse_ops.gather_plan(host, rows, ints([10, 2**31 - 1, -1], device), ints([0, 1, 2], device))
    assert rows[0][:2].eq(0).all()
    assert rows[0][2:].eq(9).all()


@pytest.mark.parametrize("count", [0, 1, 4096, 4097])
def test_many_pairs_some_of_them_void(count: int, device: str) -> None:
    (host,) = named_rows(5000, 1, 8, device)
    rows = torch.zeros_like(host)
    source = torch.randperm(5000, generator=torch.Generator().manual_seed(count))[:count].int()
    target = source.flip(0).clone()
    source[::7] = -1
    hisparse_ops.gather_plan([host], [rows], source.to(device), target.to(device))
    expected = torch.zeros_like(host)
    expected[target[source >= 0].long()] = host[source[source >= 0].long()]
    assert torch.equal(rows, expected)


def test_rows_without_width(device: str) -> None:
    empty = torch.zeros(4, 0, device=device)
    hisparse_ops.gather_plan([empty], [empty.clone()], ints([1], device), ints([2], device))


def test_the_memory_behind_a_pool_is_no_row_of_it(device: str) -> None:
    memory = torch.full((10, 8), 255, dtype=torch.uint8, device=device)
    host = named_rows(20, 1, 8, device)
    hisparse_ops.gather_plan(host, [memory[:8]], ints([3, 4, 5], device), ints([7, 8, 9], device))
    assert torch.equal(memory[7], host[0][3]) and memory[8:].eq(255).all()
