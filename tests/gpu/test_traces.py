"""What a real model attends to, step by step: recorded traces, which are not part of this repository. Every file has
`topk` [layers, steps, k] and `ctx`, the tokens before the first step."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison import assert_equal
from torch import Tensor

from hisparse_ops import HotState

from .histories import to

FOLDER = os.environ.get("HISPARSE_TRACES", "")
TRACES = sorted(Path(FOLDER).glob("*topk*.npz")) if FOLDER else []
BLOCK = 64

pytestmark = pytest.mark.skipif(not TRACES, reason="HISPARSE_TRACES names no folder with recorded top-k traces")


def lru_misses(steps: list[list[int]], slots: int) -> list[int]:
    """Loads of each step: the slots that were used least recently go first, among equals the lowest number."""
    row_of = dict.fromkeys(range(slots), -1)
    last_use = dict.fromkeys(range(slots), 0)
    misses = []
    for now, picks in enumerate(steps, 1):
        wanted = set(picks)
        hits = {slot for slot, row in row_of.items() if row in wanted}
        cached = {row_of[slot] for slot in hits}
        new = [pick for pick in picks if pick not in cached]
        victims = sorted(row_of.keys() - hits, key=lambda slot: last_use[slot] * slots + slot)
        row_of.update(zip(victims, new, strict=False))
        last_use.update(dict.fromkeys([*hits, *victims[: len(new)]], now))
        misses.append(len(new))
    return misses


@pytest.mark.parametrize("factor", [1, 2, 5])
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_recorded_steps(path: Path, factor: int, device: str) -> None:
    """Every layer is a request of the batch. Misses are those of a plain model; a GPU answers as the CPU does."""
    with np.load(path) as trace:
        topk = torch.from_numpy(trace["topk"].astype(np.int32))
    layers, steps, k = topk.shape
    slots = factor * k
    pages = int(topk.max()) // BLOCK + 1
    hot_blocks = -(-slots // BLOCK)
    draw = torch.Generator().manual_seed(factor)
    host = 1 + torch.randperm(layers * pages, generator=draw).int().view(layers, pages)
    hot = 1 + torch.randperm(layers * hot_blocks, generator=draw).int().view(layers, hot_blocks)
    batch = torch.arange(layers + 1, dtype=torch.int32), torch.arange(layers, dtype=torch.int32)
    fixed: list[Tensor] = [*batch, host, torch.zeros_like(host), hot]

    here, there = (list(HotState.allocate(layers, slots).buffers()) for _ in range(2))
    fixed_there, there = to(device, fixed), to(device, there)
    counts = []
    for step in range(steps):
        expected = torch.ops.hisparse.resolve(topk[:, step].contiguous(), *fixed, *here, BLOCK, BLOCK)
        if device != "cpu":
            asked = topk[:, step].to(device).contiguous()
            assert_equal(torch.ops.hisparse.resolve(asked, *fixed_there, *there, BLOCK, BLOCK), expected)
            assert_equal(there, here)
        counts.append(expected[4])
    found = torch.stack(counts, 1).tolist()
    assert found == [lru_misses(topk[layer].tolist(), slots) for layer in range(layers)]
