"""Row copies on the CPU against a memcpy of as many bytes, and against the plain reference: gather_compact and
mirror_rows, 4 layers of 656 bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decode_batch import BLOCK, LAYERS, ROW_BYTES, block_major, decode_batch, token_major
from torch import Tensor

from hisparse_ops import reference

REQUESTS, TOP_K, SLOTS, TOKENS = 32, 2048, 4096, 8192
MISS_SHARE = 0.05
ROUNDS = 200
"""Rows differ from round to round, on both sides: measuring the same ones would measure the cache."""

Calls = list[Callable[[], object]]


class Pools:
    def __init__(self, huge_pages: bool) -> None:
        batch = decode_batch(REQUESTS, TOP_K, SLOTS, TOKENS, MISS_SHARE, "cpu")
        self.starts = batch.batch.query_start
        self.host = token_major((int(batch.tables.host.max()) + 1) * BLOCK, huge_pages)
        self.device = block_major(int(batch.tables.hot.max()) + 1, huge_pages)
        *_, self.planned, self.counts = torch.ops.hisparse.resolve(*batch.arguments())
        self.bytes = int(self.counts.sum()) * LAYERS * ROW_BYTES
        self.rounds = [self._rows(number) for number in range(ROUNDS)]

    def _rows(self, number: int) -> tuple[Tensor, Tensor]:
        """Random host rows and hot slots in the places of the plan."""
        draw = torch.Generator().manual_seed(number)
        host = torch.randperm(self.host[0].shape[0], generator=draw)[: self.planned.numel()].view_as(self.planned)
        slots = torch.randperm(REQUESTS * SLOTS, generator=draw)[: self.planned.numel()].view_as(self.planned)
        device = (1 + slots // BLOCK) * LAYERS * BLOCK + slots % BLOCK
        return tuple(rows.int().where(self.planned >= 0, -1) for rows in (host, device))

    def gather_compact(self, op: Callable[..., object]) -> Calls:
        rest = (self.starts, self.counts)
        return [lambda rows=rows: op(self.host, self.device, *rows, *rest) for rows in self.rounds]

    def mirror_rows(self, op: Callable[..., object]) -> Calls:
        pairs = [(device[device >= 0], host[host >= 0]) for host, device in self.rounds]
        return [lambda pair=pair: op(self.device, self.host, *pair) for pair in pairs]

    def memcpy(self, source: list[Tensor], target: list[Tensor]) -> Calls:
        """One contiguous piece after the other."""
        flat_source, flat_target = (layers[0]._base.view(-1) for layers in (source, target))
        calls = []
        for number in range(ROUNDS):
            begin = number * self.bytes % (min(flat_source.numel(), flat_target.numel()) - self.bytes)
            pieces = (flat[begin : begin + self.bytes] for flat in (flat_target, flat_source))
            calls.append(lambda pieces=tuple(pieces): pieces[0].copy_(pieces[1]))
        return calls


@pytest.fixture(scope="module", params=[True, False], ids=["2 MiB pages", "4 KiB pages"])
def pools(request: pytest.FixtureRequest) -> Pools:
    pools = Pools(huge_pages=request.param)
    pools.gather_compact(torch.ops.hisparse.gather_compact)[0]()
    host, device = pools.rounds[0]
    for source, target in zip(pools.host, pools.device, strict=True):
        assert torch.equal(target[device[device >= 0].long()], source[host[host >= 0].long()])
    return pools


@pytest.mark.parametrize("who", ["op", "memcpy", "reference"])
@pytest.mark.parametrize("op", ["gather_compact", "mirror_rows"])
def bench_rows(pools: Pools, op: str, who: str, benchmark: Any) -> None:
    gathers = op == "gather_compact"
    ways = (pools.host, pools.device) if gathers else (pools.device, pools.host)
    calls = {
        "op": lambda: getattr(pools, op)(getattr(torch.ops.hisparse, op)),
        "memcpy": lambda: pools.memcpy(*ways),
        "reference": lambda: getattr(pools, op)(getattr(reference, op))[:3],
    }[who]()
    benchmark.group = f"{op}: {pools.bytes / 1e6:.1f} MB in rows of {LAYERS} x {ROW_BYTES} bytes"
    upcoming = iter(calls)
    rounds = len(calls) - 1
    benchmark.pedantic(lambda call: call(), setup=lambda: ((next(upcoming),), {}), rounds=rounds, warmup_rounds=1)
    benchmark.extra_info["GB/s"] = round(pools.bytes / benchmark.stats["median"] / 1e9, 2)
