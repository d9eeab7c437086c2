"""The worker: carries out step plans, in the one order that keeps every reader right.

| moment | what happens, in this order |
|---|---|
| begin_step | 1 cleared state rows 2 hot regions 3 recycled host blocks 4 residency 5 block copies 6 restores |
| between | forward passes of the model, each through the `SparseKV` that `kv` lends |
| end_step | 7 row mirror 8 spills, then the step's event |
| poll | reports: what was issued at once, what has ended once the event of its step is done |

Whole pages (5, 6, 8) move on a stream of their own; `streams.py` says what waits for what. Steps may be in
flight together, but are begun and ended one after the other. What a worker owns is listed in `store.py`; the
ids in a plan are control's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from hisparse_ops.control.types import PageTransfer, RankReport, StepPlan, TransferId, TransferKind
from hisparse_ops.hot_state import COUNTER_NAMES, HotState
from hisparse_ops.memory.host_pool import HostPool
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.memory.layout import Layout
from hisparse_ops.worker.errors import EpochError, WorkerOrderError
from hisparse_ops.worker.ledger import FinishedStep, Ledger
from hisparse_ops.worker.page_copies import PageCopies
from hisparse_ops.worker.plan_check import PlanChecker
from hisparse_ops.worker.row_mirror import RowMirror
from hisparse_ops.worker.sparse_kv import SparseKV
from hisparse_ops.worker.store import Store
from hisparse_ops.worker.streams import Event, Streams, streams_of
from hisparse_ops.worker.tables import PageTables
from hisparse_ops.worker.traffic import Traffic


class Worker:
    """One rank.

    `state_rows` requests of `max_pages` pages each at most; prefill contexts of `staging_pages` pages at
    most. Without a `host_pool` every page is resident, always. A rank that shares another's host pool reads
    it, but leaves mirroring, spilling and block copies to the pool's writer.

    Raises ValueError naming the argument when the pools are not of `layout`, or a size is below 1.
    """

    def __init__(
        self,
        layout: Layout,
        kv_pool: KVPool,
        host_pool: HostPool | None,
        state_rows: int,
        max_pages: int,
        rank: int = 0,
        epoch: int = 0,
        staging_pages: int = 0,
        streams: Streams | None = None,
    ) -> None:
        for name, value, least in (
            ("state_rows", state_rows, 1),
            ("max_pages", max_pages, 1),
            ("staging_pages", staging_pages, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for name, pool in (("kv_pool", kv_pool), ("host_pool", host_pool)):
            if pool is not None and (pool.layout != layout or pool.dtype != kv_pool.dtype):
                raise ValueError(f"{name} must be made for the worker's layout and in {kv_pool.dtype}")
        self._layout = layout
        self.rank = rank
        self.epoch = epoch
        self._state_rows = state_rows
        self._max_pages = max_pages
        self._host_bytes = 0 if host_pool is None else host_pool.bytes
        self._store = Store.allocate(layout, kv_pool, host_pool, state_rows, max_pages, staging_pages)
        self._writes_host = host_pool is not None and host_pool.writer
        host = self._store.host
        self._streams = streams or streams_of(kv_pool.device)
        self._copies = None if host is None else PageCopies(self._store, host, self._streams)
        self._mirror = None if host is None else RowMirror(self._store, host)
        self._checker = PlanChecker(layout, state_rows, max_pages, host is not None)
        self._ledger = Ledger(rank, epoch)
        self._traffic = Traffic()
        self._step: _Step | None = None
        self._last_sequence: int | None = None

    # A step.

    def begin_step(self, plan: StepPlan) -> None:
        """Does all of a plan that comes before the model. Raises `WorkerOrderError` unless the step before
        was ended and has a smaller sequence number, `EpochError` for a plan made for another epoch,
        `PlanError` for what this worker does not have; nothing has changed then."""
        if self._step is not None:
            raise WorkerOrderError(f"begin_step({plan.sequence}) while step {self._step.plan.sequence} is not ended")
        if plan.epoch != self.epoch:
            raise EpochError(f"a plan of epoch {plan.epoch} for a worker of epoch {self.epoch}")
        if self._last_sequence is not None and plan.sequence <= self._last_sequence:
            raise WorkerOrderError(f"step {plan.sequence} comes after step {self._last_sequence}")
        self._checker.check(plan)
        self._step = _Step(plan)
        self._last_sequence = plan.sequence

        store, tables = self._store, self._store.tables
        if self._copies is not None:
            self._copies.give_away(_blocks_for_compute(plan))
        tables.clear(plan.cleared_rows)
        tables.set_hot(plan.hot)
        store.reset_hot_rows(sorted({*plan.cleared_rows, *(delta.state_row for delta in plan.hot)}))
        store.invalidate_host_blocks(plan.recycled)
        tables.set_pages(plan.residency)
        restores = _of_kind(plan, TransferKind.RESTORE)
        if self._copies is not None and (plan.copies or restores):
            with self._copies.ahead():
                self._copy_on_write(self._copies, self._step)
                self._restore(self._copies, self._step, restores)

    def kv(self, state_row: int, start: int, length: int, prefill: bool) -> SparseKV:
        """What the forward pass of one request touches: new tokens at positions `start .. start+length-1`.

        Raises `WorkerOrderError` outside a step or for rows that another pass of the step computes,
        ValueError naming an argument that is out of bounds, `UnreadableError` if a row of the context lies
        nowhere, or a new row has no resident block.
        """
        step = self._current("kv")
        layout, end = self._layout, start + length
        most = self._max_pages * layout.block_size
        if not 0 <= state_row < self._state_rows:
            raise ValueError(f"state_row must be one of 0..{self._state_rows - 1}, got {state_row}")
        if start < 0 or length < 1 or end > most:
            raise ValueError(f"start and length must name rows within 0..{most}, got {start} and {length}")
        if prefill and layout.pages(end) > self._store.staging.pages:
            raise ValueError(
                f"start + length = {end} needs {layout.pages(end)} staging pages, staging_pages is "
                f"{self._store.staging.pages}"
            )
        if not prefill and length > layout.spec.max_query_len:
            raise ValueError(f"length must be at most max_query_len = {layout.spec.max_query_len}, got {length}")
        passes = step.passes.setdefault(state_row, [])
        if any(other.start < end and start < other.context for other in passes):
            raise WorkerOrderError(f"state row {state_row}: rows {start}..{end} are computed twice in this step")
        self._store.tables.check_writable(state_row, start, end)
        self._store.tables.check_readable(state_row, end, hot_region_needed=not prefill)
        passes.append(SparseKV(self._store, self._traffic, state_row, start, length, prefill))
        return passes[-1]

    def end_step(self) -> None:
        """Does all of the plan that comes after the model, and marks the step's end in the stream.
        Raises `WorkerOrderError` outside a step."""
        step = self._current("end_step")
        mirrored: torch.Tensor | None = None
        if self._mirror is not None and self._writes_host and step.plan.envelopes:
            mirrored = self._mirror.run(step.plan.envelopes, step.passes).to("cpu", non_blocking=True)
        spilled = self._spill(step)
        self._ledger.finish(
            FinishedStep(
                step.plan.sequence,
                spilled or self._streams.compute.record(),
                frozenset(step.issued),
                frozenset(step.copied),
                mirrored,
            )
        )
        self._step = None

    def poll(self) -> list[RankReport]:
        """What was issued and what has ended since the last call. Never waits."""
        reports = self._ledger.poll()
        for report in reports:
            self._traffic.mirrored_rows += sum(sum(counts) for counts in report.mirrored.values())
        return reports

    def wait(self) -> None:
        """Holds up the CPU until every step that was ended here has ended on the device, so that the next `poll`
        tells all of it. For callers with nothing else to do."""
        self._ledger.wait()

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Sequence numbers of steps begun whose end no `poll` has seen yet."""
        begun = () if self._step is None else (self._step.plan.sequence,)
        return self._ledger.in_flight + begun

    def _current(self, call: str) -> _Step:
        if self._step is None:
            raise WorkerOrderError(f"{call} outside a step: begin_step comes first")
        return self._step

    # Pages on their way.

    def _copy_on_write(self, page_copies: PageCopies, step: _Step) -> None:
        copies = step.plan.copies
        ids = frozenset(copy.id for copy in copies)
        if not self._writes_host or page_copies.copy_on_write(copies):
            step.copied |= ids
        else:
            self._ledger.fail(ids)
            self._store.tables.lose_host_copies([copy.destination for copy in copies])

    def _restore(self, page_copies: PageCopies, step: _Step, restores: Sequence[PageTransfer]) -> None:
        if page_copies.restore(restores):
            self._enqueued(step, restores)
            self._traffic.restored_pages += len(restores)
        else:
            self._ledger.fail(_ids(restores))
            self._store.tables.lose_gpu_copies([block for transfer in restores for block in transfer.gpu_blocks])

    def _spill(self, step: _Step) -> Event | None:
        """The event behind the pages that were moved, if any were: the last of the step."""
        spills = _of_kind(step.plan, TransferKind.SPILL)
        if self._copies is None or not self._writes_host:
            return None
        moving = [transfer for transfer in spills if transfer.moves_data]
        self._enqueued(step, [transfer for transfer in spills if not transfer.moves_data])
        if not moving:
            return None
        issued, event = self._copies.spill(moving)
        if issued:
            self._traffic.spilled_pages += len(moving)
            self._store.invalidate_host_blocks([transfer.host_block for transfer in moving])
            self._enqueued(step, moving)
        else:
            self._ledger.fail(_ids(moving))
        return event

    def _enqueued(self, step: _Step, transfers: Sequence[PageTransfer]) -> None:
        step.issued |= _ids(transfers)
        self._ledger.enqueue(_ids(transfers))

    # What it costs.

    @property
    def device(self) -> torch.device:
        """Where its pages and tables are."""
        return self._store.device

    @property
    def tables(self) -> PageTables:
        """Where every page lies, as the ops see it."""
        return self._store.tables

    @property
    def hot_states(self) -> tuple[HotState, ...]:
        """The hot slots of every unit."""
        return self._store.hot_states

    def counters(self) -> dict[str, int]:
        """Totals since the worker was made. Waits for the device; for reports, not for every step.

        References by what `resolve` made of them, summed over the units: resident, hit, miss, padding,
        fault. Bytes: host_bytes_read (rows loaded into hot slots), mirror_bytes (as reported so far),
        spill_bytes, restore_bytes, stage_bytes and stage_host_bytes (of these, read from the host). Memory
        held: device_bytes, host_bytes.
        """
        counts = [state.counts() for state in self._store.hot_states]
        totals = {name: sum(unit[name] for unit in counts) for name in COUNTER_NAMES}
        loaded = sum(unit["miss"] * len(self._layout.units[number].layers) for number, unit in enumerate(counts))
        return {
            **totals,
            "host_bytes_read": loaded * self._layout.spec.row_bytes,
            **self._traffic.in_bytes(self._layout),
            "device_bytes": self._store.device_bytes,
            "host_bytes": self._host_bytes,
        }


@dataclass
class _Step:
    """The step between begin and end: its forward passes by state row, and what was issued for it."""

    plan: StepPlan
    passes: dict[int, list[SparseKV]] = field(default_factory=dict)
    issued: set[TransferId] = field(default_factory=set)
    copied: set[TransferId] = field(default_factory=set)


def _of_kind(plan: StepPlan, kind: TransferKind) -> list[PageTransfer]:
    return [transfer for transfer in plan.transfers if transfer.kind is kind]


def _ids(transfers: Iterable[PageTransfer]) -> frozenset[TransferId]:
    return frozenset(transfer.id for transfer in transfers)


def _blocks_for_compute(plan: StepPlan) -> Iterator[int]:
    """The GPU blocks that a plan newly maps, for the model to write to."""
    for delta in plan.residency:
        yield from delta.gpu_blocks
        yield from delta.indexer_blocks
    for hot in plan.hot:
        for region in hot.blocks:
            yield from region
