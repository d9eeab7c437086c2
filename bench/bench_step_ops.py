"""The small ops of a step on the CPU, each beside the plain reference."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from comparison import assert_equal
from decode_batch import BLOCK, LAYERS, block_major, decode_batch, token_major

from hisparse_ops import reference

REQUESTS, TOP_K, SLOTS, TOKENS = 32, 2048, 4096, 8192
PAGES = 64
STALE_ROWS = 64
STRIDE = BLOCK * LAYERS
OPS = ["invalidate", "invalidate_blocks", "reset_rows", "translate", "copy_blocks", "stage_prefill"]


def arguments(op: str) -> tuple[Any, ...]:
    """One step's worth: every request rewrites 64 rows, 64 pages move, four requests end, four are prefilled."""
    batch = decode_batch(REQUESTS, TOP_K, SLOTS, TOKENS, miss_share=0.05, device="cpu")
    hot, tables = batch.hot, batch.tables
    draw = torch.Generator().manual_seed(7)
    states = torch.arange(REQUESTS, dtype=torch.int32)
    few = states[:4].clone()
    blocks = 1 + torch.randperm(4 * PAGES, generator=draw)[: 2 * PAGES].int()
    if op == "invalidate":
        return hot.slot_rows, states.repeat_interleave(STALE_ROWS), hot.slot_rows[:, :STALE_ROWS].flatten().clone()
    if op == "invalidate_blocks":
        return hot.slot_rows, blocks, BLOCK
    if op == "reset_rows":
        return hot.slot_rows, hot.slot_stamps, hot.clock, few
    if op == "translate":
        positions = torch.randint(TOKENS, (REQUESTS,), generator=draw, dtype=torch.int32)
        return positions, states, tables.host, BLOCK, BLOCK
    if op == "copy_blocks":
        pools = token_major((4 * PAGES + 1) * BLOCK, huge_pages=False), block_major(4 * PAGES + 1, huge_pages=False)
        return *pools, blocks[:PAGES].clone(), blocks[PAGES:].clone(), BLOCK, BLOCK, STRIDE
    lengths = torch.full_like(few, TOKENS)
    return lengths, few, tables.resident, tables.host, BLOCK, len(few) * TOKENS // BLOCK


@pytest.mark.parametrize("who", ["op", "reference"])
@pytest.mark.parametrize("op", OPS)
def bench_step_op(op: str, who: str, benchmark: Any) -> None:
    given = arguments(op)
    expected = copy.deepcopy(given)
    calls = {"op": getattr(torch.ops.hisparse, op), "reference": getattr(reference, op)}
    assert_equal(calls["op"](*given), calls["reference"](*expected))
    assert_equal(given, expected)
    benchmark.group = f"step: {op}"
    benchmark.pedantic(calls[who], args=given, rounds=50 if who == "op" else 3, warmup_rounds=1)
