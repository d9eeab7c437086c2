"""invalidate, invalidate_blocks, reset_rows, translate and stage_prefill on a GPU equal the CPU at large sizes."""

from __future__ import annotations

import pytest
import torch
from comparison import assert_equal
from torch import Tensor

from .histories import to

pytestmark = pytest.mark.gpu


def same(op: str, *arguments: object) -> None:
    on_gpu = to("cuda", arguments)
    found = getattr(torch.ops.hisparse, op)(*on_gpu)
    assert_equal(found, getattr(torch.ops.hisparse, op)(*arguments))
    assert_equal(on_gpu, arguments)


def ints(low: int, high: int, *size: int, seed: int = 0) -> Tensor:
    return torch.randint(low, high, size, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


@pytest.mark.parametrize("slots", [1, 31, 4096, 10_241])
@pytest.mark.parametrize("pairs", [1, 5, 64, 65, 2048, 8192, 8193, 30_000])
def test_invalidate(slots: int, pairs: int) -> None:
    same("invalidate", ints(-1, 20_000, 64, slots), ints(-2, 66, pairs), ints(-2, 20_000, pairs, seed=1))


@pytest.mark.parametrize("slots", [1, 31, 4096, 10_241])
@pytest.mark.parametrize("blocks", [1, 100, 8193])
def test_invalidate_blocks(slots: int, blocks: int) -> None:
    same("invalidate_blocks", ints(-1, 2**31 - 1, 64, slots) // 1000, ints(-2, 2**31 // 7000, blocks, seed=1), 7)


@pytest.mark.parametrize("slots", [1, 33, 4097])
def test_reset_rows(slots: int) -> None:
    same("reset_rows", ints(0, 9, 64, slots), ints(0, 9, 64, slots), ints(0, 9, 64), ints(-2, 66, 50))


def test_translate() -> None:
    table = ints(-1, 2**31 - 1, 38, 128) % 99_000_000
    same("translate", ints(-5, 9000, 3000), ints(-2, 40, 3000, seed=1), table, 64, 256)


@pytest.mark.parametrize("area", [0, 7, 3000, 90_000])
@pytest.mark.parametrize("pages", [1, 1024, 2500])
def test_stage_prefill(pages: int, area: int) -> None:
    tables = (ints(-1, 3, 40, pages, seed=seed) * ints(1, 9999, 40, pages) for seed in (1, 2))
    same("stage_prefill", ints(-9, pages * 70, 33), ints(-2, 42, 33, seed=3), *tables, 64, area)
