"""Ranks that hold bytes as tags, and that are moved one operation at a time.

What is on a stream happens in the order in which it was put there, so one memory serves for what the
stream sees: `Memory`, changed as a plan is issued. What has really arrived on the host is another
matter: each writer rank has `durable` of its own, and a queue of copies that still have to end. What
a rank has done so far are *facts*; a test delivers them when, and as often as, it likes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from hisparse_ops.control.types import (
    NO_HOST_BLOCK,
    GpuBlock,
    HostBlock,
    RankReport,
    ResidencyDelta,
    StepPlan,
    TransferId,
    TransferKind,
)

Tag = int
GARBAGE = 0
Rows = tuple[tuple[HostBlock, int, Tag], ...]


class Fact(NamedTuple):
    """Something that a rank has done, in the words of a `RankReport`."""

    rank: int
    epoch: int
    kind: str
    id: int  # of a transfer; for "mirrored" the sequence number
    counts: tuple[int, ...] = ()
    life: int = 0  # how often control had been reset; a report does not say

    def report(self) -> RankReport:
        if self.kind == "mirrored":
            return RankReport(self.rank, self.epoch, mirrored={self.id: self.counts})
        return RankReport(self.rank, self.epoch, **{self.kind: frozenset([TransferId(self.id)])})


class Job(NamedTuple):
    """Part of a step: rows that go to the host, and what is true when they are there."""

    rows: Rows
    kind: str
    id: int
    counts: tuple[int, ...] = ()


class Work(NamedTuple):
    """A step as every rank's stream gets it; the bytes of its copies are those of that moment."""

    sequence: int
    enqueued: tuple[int, ...]
    failed: tuple[int, ...]
    jobs: tuple[Job, ...]


@dataclass
class Rank:
    number: int
    epoch: int
    writes_host: bool
    life: int = 0
    stream: deque[Work] = field(default_factory=deque)
    dma: deque[Job] = field(default_factory=deque)
    durable: dict[tuple[HostBlock, int], Tag] = field(default_factory=dict)
    ended: int = -1  # steps up to this one have ended

    def run(self) -> list[Fact]:
        """The stream reaches the end of its oldest step; the copies of the step are under way."""
        work = self.stream.popleft()
        self.dma.extend(work.jobs)
        facts = [self._fact("enqueued", number) for number in work.enqueued]
        return facts + [self._fact("failed", number) for number in work.failed]

    def arrive(self) -> list[Fact]:
        """The oldest copy under way ends."""
        job = self.dma.popleft()
        if self.writes_host:
            self.durable.update({(block, offset): tag for block, offset, tag in job.rows})
        if job.kind == "ended":
            self.ended = job.id
            return []
        return [self._fact(job.kind, job.id, job.counts)]

    def _fact(self, kind: str, number: int, counts: tuple[int, ...] = ()) -> Fact:
        return Fact(self.number, self.epoch, kind, number, counts, self.life)


@dataclass
class StateRow:
    """A line of the tables, and the hot buffer with what it caches."""

    pages: dict[int, ResidencyDelta] = field(default_factory=dict)
    region: tuple[tuple[GpuBlock, ...], ...] = ()
    lines: dict[tuple[HostBlock, int], Tag] = field(default_factory=dict)


class Pass(NamedTuple):
    """A request computes: all before `start` is read, `start .. end-1` is written, `skipped` of it
    at the end is not mirrored."""

    row: int
    start: int
    end: int
    tags: tuple[Tag, ...]  # of the positions 0 .. end-1
    skipped: int


class Memory:
    """What the streams see, and the tables that a worker keeps by the deltas it is sent."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.gpu: dict[tuple[GpuBlock, int], Tag] = {}
        self.stream: dict[tuple[HostBlock, int], Tag] = {}
        self.table: dict[int, StateRow] = {}

    def issue(self, plan: StepPlan, passes: list[Pass], failing: frozenset[TransferId]) -> Work:
        """Put a step on the stream, in the order that `StepPlan` prescribes."""
        for row in plan.cleared_rows:
            self.table[row] = StateRow()
        for hot in plan.hot:
            line = self.table.setdefault(hot.state_row, StateRow())
            line.region, line.lines = hot.blocks, {}
        recycled = set(plan.recycled)
        for line in self.table.values():
            line.lines = {key: tag for key, tag in line.lines.items() if key[0] not in recycled}
        for delta in plan.residency:
            self.table.setdefault(delta.state_row, StateRow()).pages[delta.page] = delta
        jobs: list[Job] = []
        for copy in plan.copies:
            if copy.id not in failing:
                moved = self._write_page(copy.destination, self._host_page(copy.source))
                jobs.append(Job(moved, "copied", copy.id))
        enqueued = []
        for transfer in plan.transfers:
            if transfer.kind is TransferKind.RESTORE:
                for block in transfer.gpu_blocks:
                    self.gpu.update({(block, o): tag for o, tag in enumerate(self._host_page(transfer.host_block))})
                enqueued.append(transfer.id)
                jobs.append(Job((), "completed", transfer.id))
        for item in passes:
            self._forward(item)
        jobs += self._mirror(plan, passes)
        jobs.append(Job((), "ended", plan.sequence))
        for transfer in plan.transfers:
            if transfer.kind is TransferKind.SPILL and transfer.id not in failing:
                enqueued.append(transfer.id)
                rows: Rows = ()
                if transfer.moves_data:
                    tags = [self.gpu.get((transfer.gpu_blocks[0], o), GARBAGE) for o in range(self.rows)]
                    rows = self._write_page(transfer.host_block, tags)
                jobs.append(Job(rows, "completed", transfer.id))
        return Work(plan.sequence, tuple(enqueued), tuple(sorted(failing)), tuple(jobs))

    def read(self, row: int, position: int) -> Tag:
        """The row at a position, wherever the tables say it is; read from the host it stays cached."""
        page, offset = divmod(position, self.rows)
        line = self.table[row]
        entry = line.pages.get(page)
        assert entry is not None, f"S1: page {page} of state row {row} is mapped nowhere"
        if entry.gpu_blocks:
            found = {self.gpu.get((block, offset), GARBAGE) for block in entry.gpu_blocks}
            assert len(found) == 1, f"S16: groups differ: {found}"
            return found.pop()
        assert entry.host_block != NO_HOST_BLOCK, f"S1: page {page} of state row {row} is nowhere"
        assert line.region, f"S6: page {page} of state row {row} is read from the host without a hot region"
        key = (entry.host_block, offset)
        return line.lines.setdefault(key, self.stream.get(key, GARBAGE))

    def _forward(self, item: Pass) -> None:
        for position in range(item.start):
            found, expected = self.read(item.row, position), item.tags[position]
            assert found == expected, f"S1: state row {item.row}, position {position}: {found}, not {expected}"
            page, offset = divmod(position, self.rows)
            for block in self.table[item.row].pages[page].indexer_blocks:
                key = self.gpu.get((block, offset), GARBAGE)
                assert key == expected, f"S1: key of state row {item.row}, position {position}: {key}, not {expected}"
        for position in range(item.start, item.end):
            page, offset = divmod(position, self.rows)
            entry = self.table[item.row].pages.get(page)
            assert entry is not None and entry.gpu_blocks, f"S10: page {page} is written and not resident"
            for block in (*entry.gpu_blocks, *entry.indexer_blocks):
                self.gpu[block, offset] = item.tags[position]

    def _mirror(self, plan: StepPlan, passes: list[Pass]) -> list[Job]:
        by_row = {item.row: item for item in passes}
        rows, counts = [], []
        for envelope in plan.envelopes:
            end = envelope.end - by_row[envelope.state_row].skipped
            for position in range(envelope.start, end):
                page, offset = divmod(position, self.rows)
                host = self.table[envelope.state_row].pages[page].host_block
                rows.append((host, offset, by_row[envelope.state_row].tags[position]))
            counts.append(end - envelope.start)
        self.stream.update({(host, offset): tag for host, offset, tag in rows})
        return [Job(tuple(rows), "mirrored", plan.sequence, tuple(counts))] if plan.envelopes else []

    def _host_page(self, block: HostBlock) -> list[Tag]:
        return [self.stream.get((block, offset), GARBAGE) for offset in range(self.rows)]

    def _write_page(self, block: HostBlock, tags: list[Tag]) -> Rows:
        rows = tuple([(block, offset, tag) for offset, tag in enumerate(tags)])
        self.stream.update({(block, offset): tag for block, offset, tag in rows})
        return rows
