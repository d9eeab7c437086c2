"""What goes into a step: transfers, residency deltas, envelopes.

The order matters: everything that may move a page comes first, and the deltas are read off the
pages at the very end. So a page whose block was handed out while the plan was made is dropped in
the same plan, and there is one delta per page.
"""

from __future__ import annotations

from collections.abc import Sequence

from .pages import NEVER_WRITTEN, PageState
from .pressure import Pressure
from .publication import Publisher
from .request import Request
from .residency import Residency
from .state import ControlState
from .types import NO_HOST_BLOCK, GpuBlock, HotDelta, MirrorEnvelope, ResidencyDelta, Scheduled, StepPlan


class Planner:
    def __init__(self, state: ControlState, residency: Residency, publisher: Publisher, pressure: Pressure) -> None:
        self._state = state
        self._residency = residency
        self._publisher = publisher
        self._pressure = pressure

    def plan(self, scheduled: Sequence[Scheduled]) -> StepPlan:
        requests = self._checked(scheduled)
        state, sequence = self._state, self._state.sequence
        state.sequence += 1
        if state.config.host_tier:
            self._start_spills()
            self._pressure.relieve()
            self._pressure.bring_back()
        envelopes = self._write(sequence, scheduled, requests)
        transfers, copies = state.transfers.send(sequence)
        plan = StepPlan(
            sequence,
            state.epoch,
            cleared_rows=self._take_cleared(),
            hot=self._take_hot(),
            recycled=state.host.take_recycled(),
            residency=self._take_residency(),
            copies=copies,
            transfers=transfers,
            envelopes=envelopes,
        )
        state.fence.planned(sequence)
        return plan

    def _checked(self, scheduled: Sequence[Scheduled]) -> list[Request]:
        live = self._state.live
        requests = []
        for request_id, start, end in scheduled:
            request = live.get(request_id)
            if request is None:
                raise ValueError(f"scheduled: request {request_id!r} is not live")
            if not request.final_tokens <= start <= request.computed or not start < end <= request.length:
                raise ValueError(
                    f"scheduled: rows {start} .. {end - 1} of request {request_id!r}: expected to start between its "
                    f"final ({request.final_tokens}) and its computed rows ({request.computed}) and to end within "
                    f"its extended length ({request.length})"
                )
            if not request.readable:
                raise ValueError(f"scheduled: request {request_id!r} has positions that cannot be read")
            requests.append(request)
        if len(set(requests)) != len(requests):
            raise ValueError("scheduled: a request may appear once in a step")
        return requests

    def _start_spills(self) -> None:
        """Sealed pages in the order in which they were sealed: no page starves behind another."""
        queue, budget = self._state.spill_queue, self._state.config.spill_budget
        while queue and budget:
            request, page = queue.popleft()
            if not request.owns(page):
                continue
            if page.hopeless:
                self._publisher.advance(request)  # nothing to wait for any more
            else:
                self._residency.spill(request, page)
                budget -= 1

    def _write(
        self, sequence: int, scheduled: Sequence[Scheduled], requests: list[Request]
    ) -> tuple[MirrorEnvelope, ...]:
        """Note which pages this step writes; the envelopes of their rows."""
        size = self._state.shape.block_size
        mirrored = self._state.config.host_tier and self._state.config.eager_mirror
        envelopes, rows, spans = [], [], []
        for (_, start, end), request in zip(scheduled, requests, strict=True):
            first, last = start // size, (end - 1) // size
            for page in request.pages.table[first : last + 1]:
                if page.first_write == NEVER_WRITTEN:
                    page.first_write = sequence
                page.last_write = sequence
            if end > request.computed:
                request.computed = end
            envelopes.append(MirrorEnvelope(request.state_row, start, end))
            rows.append(end - start)
            spans.append((request, first, last))
        if not mirrored or not envelopes:
            return ()
        state = self._state
        state.mirror.planned(sequence, tuple(rows), spans, state.writers(state.config.writer_ranks))
        return tuple(envelopes)

    def _take_cleared(self) -> tuple[int, ...]:
        cleared = tuple(self._state.cleared_rows)
        self._state.cleared_rows.clear()
        return cleared

    def _take_hot(self) -> tuple[HotDelta, ...]:
        deltas = tuple([HotDelta(request.state_row, self._hot_blocks(request)) for request in self._state.hot_changed])
        self._state.hot_changed.clear()
        return deltas

    def _hot_blocks(self, request: Request) -> tuple[tuple[GpuBlock, ...], ...]:
        if request.hot is None:
            return ()
        per_group, blocks = self._state.shape.hot_blocks, request.hot.blocks
        return tuple([blocks[i : i + per_group] for i in range(0, len(blocks), per_group)])

    def _take_residency(self) -> tuple[ResidencyDelta, ...]:
        deltas = []
        for page in self._state.changes.pages:
            pages = page.pages
            if pages.row is None:
                continue
            if page.index >= len(pages):  # taken off the table
                deltas.append(ResidencyDelta(pages.row, page.index, NO_HOST_BLOCK, (), ()))
            elif pages[page.index] is page:
                kv = page.kv.blocks if page.kv is not None else ()
                readable = page.state is not PageState.IMPORT_HOLE
                host = page.host if readable else NO_HOST_BLOCK
                deltas.append(ResidencyDelta(pages.row, page.index, host, kv, page.keys.blocks))
        self._state.changes.pages.clear()
        return tuple(deltas)
