"""Control plane: one step of steady decode, 256 requests, 15 resident groups, all pages resident.

    pytest bench/bench_control.py          per history
    python bench/bench_control.py          milliseconds a step, and how flat they are

Measured is all that an engine asks of control in a step: extend x 256, plan_step, apply, step_done,
seal x 256. One request in 64 crosses a page boundary, as in real decoding. Target: 2 ms at 100,000
tokens each, and no more than 10 % above that of half the history.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from typing import Any

import pytest

from hisparse_ops.control import Coordinator, CoordinatorConfig
from hisparse_ops.control.types import Limits, RankReport, Scheduled
from hisparse_ops.memory.layout import WINDOW_EXTRA_PAGES

REQUESTS = 256
BLOCK = 64
CHUNK = 1024
GROUPS, INDEXER_GROUPS = 15, 4
HOT_BLOCKS = 64  # of a hot region, in each group
ROOMY = 1.2  # times what is needed: no page has to move
HISTORIES = (50_000, 100_000, 200_000)
STEPS = 4 * BLOCK
TARGET_MS = 2.0


@dataclass(frozen=True)
class Shape:
    num_blocks: int
    host_blocks: int
    block_size: int = BLOCK
    num_groups: int = GROUPS
    num_indexer_groups: int = INDEXER_GROUPS
    hot_blocks: int = HOT_BLOCKS


class Decode:
    """256 requests of about `history` tokens each, ready to decode on: all resident, or (`moved`)
    all in a pool that is too small for that."""

    def __init__(self, history: int, moved: bool = False) -> None:
        pages = -(-(history + 4 * STEPS) // BLOCK) + 1
        blocks = int(REQUESTS * pages * (GROUPS + INDEXER_GROUPS) * ROOMY)
        if moved:
            window = CHUNK // BLOCK + WINDOW_EXTRA_PAGES
            hot_region = GROUPS * HOT_BLOCKS
            blocks = REQUESTS * (pages * INDEXER_GROUPS + GROUPS * window + hot_region) + hot_region + 1
        config = CoordinatorConfig(max_requests=REQUESTS, max_pages=pages, spill_budget=CHUNK)
        self.control = Coordinator(Shape(blocks, REQUESTS * pages + 1), config)
        self.names = [f"request {i}" for i in range(REQUESTS)]
        self.lengths = [history + i % BLOCK for i in range(REQUESTS)]  # page boundaries are spread out
        limits = Limits(pages * BLOCK, CHUNK)
        for i, name in enumerate(self.names):
            assert self.control.admit(name, (), self.lengths[i], limits).ok
            for start in range(0, self.lengths[i], CHUNK):
                end = min(start + CHUNK, self.lengths[i])
                assert self.control.extend(name, end).ok
                self._run([Scheduled(name, start, end)])
                self.control.seal(name, end, range(i << 32 | start // BLOCK, i << 32 | end // BLOCK))
        while not self.control.quiescent():
            self._run([])
        assert all(map(self.control.is_host_readable if moved else self.control.fully_resident, self.names))

    def step(self) -> None:
        """Every request decodes one token."""
        control, lengths = self.control, self.lengths
        scheduled = []
        for i, name in enumerate(self.names):
            length = lengths[i]
            control.extend(name, length + 1)
            scheduled.append(Scheduled(name, length, length + 1))
        self._run(scheduled)
        for i, name in enumerate(self.names):
            lengths[i] = length = lengths[i] + 1
            control.seal(name, length, () if length % BLOCK else (i << 32 | length // BLOCK,))

    def _run(self, scheduled: list[Scheduled]) -> None:
        control = self.control
        plan = control.plan_step(scheduled)
        ids = frozenset([transfer.id for transfer in plan.transfers])
        mirrored = {plan.sequence: tuple([e.end - e.start for e in plan.envelopes])}
        control.apply(RankReport(0, 0, enqueued=ids, completed=ids, mirrored=mirrored if plan.envelopes else {}))
        control.step_done(plan.sequence)


@pytest.mark.parametrize("history", HISTORIES[:2])
def bench_decode_step(benchmark: Any, history: int) -> None:
    benchmark.pedantic(Decode(history).step, rounds=STEPS, warmup_rounds=BLOCK)


def main() -> None:
    for history, moved in [*((history, False) for history in HISTORIES), (HISTORIES[0], True)]:
        decode = Decode(history, moved)
        gc.collect()
        gc.freeze()
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            decode.step()
            times.append((time.perf_counter() - start) * 1e3)
        decode.control.check()
        gc.unfreeze()
        kind = "host-readable" if moved else "resident"
        print(
            f"{history:>7} tokens x {REQUESTS}, {kind}: median {statistics.median(times):.2f} ms, "
            f"mean {statistics.mean(times):.2f}, 99 % {sorted(times)[int(0.99 * STEPS)]:.2f} ms (target {TARGET_MS} ms)"
        )


if __name__ == "__main__":
    main()
