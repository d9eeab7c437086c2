"""Random lives of several requests at once: whatever a schedule does, every row reads as it was written."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worker.harness import HeldStream, Request, Rig

from hisparse_ops.control.types import HotDelta, MirrorEnvelope
from hisparse_ops.worker import Streams

BLOCK = 4
STEPS = 40
MAX_TOKENS = 90


class Life:
    """Plays control with a random generator: grows, loses pages, restores, decodes, prefills, retires."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.random = random.Random(seed)
        self.held = HeldStream()
        self.rig = Rig(BLOCK, dtype, streams=Streams(self.held, self.held))
        self.live: list[Request] = []
        self.owed: dict[int, int] = {}  # sequence -> rows whose proof must come

    def step(self) -> None:
        rig, draw = self.rig, self.random
        if len(self.live) < 2:
            self.live.append(rig.request())
        cleared, hot, residency, transfers, envelopes = [], [], [], [], []
        computed: list[tuple[Request, int, bool]] = []
        for request in list(self.live):
            if request.tokens > MAX_TOKENS or (request.tokens and draw.random() < 0.05):
                cleared.append(request.state_row)
                self.retire(request)
                continue
            if request.tokens and not request.hot and draw.random() < 0.3:
                hot += rig.grant_hot(request)
            settled = range(max(0, len(request.pages) - 2))  # control never takes the last two pages
            for number in settled:
                page = request.pages[number]
                if page.gpu and request.hot and draw.random() < 0.3:
                    residency += rig.drop(request, number)
                elif not page.gpu and draw.random() < 0.2:
                    delta, transfer = rig.restore(request, number)
                    residency.append(delta)
                    transfers.append(transfer)
            if request.hot and all(page.gpu for page in request.pages) and draw.random() < 0.5:
                rig.free_gpu += [block for region in request.hot for block in region]
                request.hot = ()
                hot.append(HotDelta(request.state_row, ()))
            start, prefill = request.tokens, request.tokens == 0 or draw.random() < 0.4
            length = draw.randint(1, 9) if prefill else draw.randint(1, 3)
            residency += rig.grow(request, start + length)
            envelopes.append(MirrorEnvelope(request.state_row, start, start + length))
            computed.append((request, length, prefill))
        draw.shuffle(residency)
        recycled, rig.leased_host = tuple(rig.leased_host), []
        plan = rig.plan(
            recycled=recycled,
            cleared_rows=tuple(cleared),
            hot=tuple(hot),
            residency=tuple(residency),
            transfers=tuple(transfers),
            envelopes=tuple(envelopes),
        )
        rig.worker.begin_step(plan)
        for request, length, prefill in computed:
            kv = rig.worker.kv(request.state_row, request.tokens - length, length, prefill)
            rig.fill(kv, request)
            if prefill:
                rig.check_context(kv, request)
            else:
                rig.check_selected(kv, request, [[*self.picks(kv.start + row)] for row in range(length)])
        rig.worker.end_step()
        self.owed[plan.sequence] = sum(length for _, length, _ in computed)
        self.hear()

    def picks(self, newest: int) -> list[int]:
        picks = [self.random.randint(0, newest) for _ in range(5)]
        return [*picks, newest] if self.random.random() < 0.5 else [*picks, -1]

    def retire(self, request: Request) -> None:
        self.live.remove(request)
        self.rig.free_rows.insert(0, request.state_row)
        for page in request.pages:
            self.rig.free_host.insert(0, page.host)
            self.rig.free_gpu += [*page.gpu, *page.indexer]
        self.rig.free_gpu += [block for region in request.hot for block in region]

    def hear(self) -> None:
        for mark in self.held.marks:
            mark.is_done = mark.is_done or self.random.random() < 0.4
        for report in self.rig.worker.poll():
            for sequence, counts in report.mirrored.items():
                assert sum(counts) == self.owed.pop(sequence)


@given(st.integers(0, 2**32), st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=12, deadline=None)
def test_every_row_reads_as_it_was_written(seed: int, dtype: torch.dtype) -> None:
    life = Life(seed, dtype)
    for _ in range(STEPS):
        life.step()
    for mark in life.held.marks:
        mark.is_done = True
    life.hear()
    assert {sequence: rows for sequence, rows in life.owed.items() if rows} == {}
    assert life.rig.worker.counters()["fault"] == 0
    for state in life.rig.worker.hot_states:
        state.check()
    life.rig.close()
