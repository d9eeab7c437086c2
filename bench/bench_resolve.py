"""resolve on the CPU against the plain reference, side by side."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from decode_batch import DecodeBatch, decode_batch

from hisparse_ops import reference

REQUESTS, TOP_K, SLOTS, TOKENS = 32, 2048, 4096, 32768


def check(batch: DecodeBatch) -> None:
    arguments = batch.arguments()
    expected = copy.deepcopy(arguments)
    answers = zip(torch.ops.hisparse.resolve(*arguments), reference.resolve(*expected), strict=True)
    assert all(torch.equal(found, right) for found, right in answers)
    assert all(torch.equal(found, right) for found, right in zip(arguments[:10], expected[:10], strict=True))


@pytest.mark.parametrize(
    ("who", "miss_share", "rounds"),
    [("op", 0.0, 50), ("op", 0.05, 50), ("op", 0.5, 50), ("reference", 0.05, 1)],
    ids=lambda value: f"{value:.0%}" if isinstance(value, float) else None,
)
def bench_resolve(who: str, miss_share: float, rounds: int, benchmark: Any) -> None:
    check(decode_batch(2, TOP_K, SLOTS, TOKENS, miss_share, "cpu"))
    batch = decode_batch(REQUESTS, TOP_K, SLOTS, TOKENS, miss_share, "cpu")
    benchmark.group = f"resolve: {REQUESTS} requests, top-k {TOP_K}, {SLOTS} slots, share of misses"
    call = torch.ops.hisparse.resolve if who == "op" else reference.resolve
    benchmark.pedantic(call, setup=lambda: (batch.arguments(), {}), rounds=rounds)
