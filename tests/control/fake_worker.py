"""A rank made of dictionaries. It carries out step plans in stream order and checks what it reads.

Memory holds *tags*: a row of KV written for a token carries the token's tag (a hash of the whole
prefix up to it), so a row read from the wrong place, too early or too late carries the wrong one.
Nothing of control's states is copied here: the worker knows tables, blocks and rows.

| memory           | key                | value                                       |
|------------------|--------------------|---------------------------------------------|
| `gpu`            | (block, offset)    | ("kv", group, tag), ("key", group, tag), or |
|                  |                    | ("hot", group, tags of a host row)          |
| `host`           | (block, offset)    | tag; one dictionary if the pool is shared   |
| `hot` of a row   | (block, offset)    | slot of its hot region                      |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hisparse_ops.control.types import (
    NO_HOST_BLOCK,
    GpuBlock,
    HostBlock,
    PageTransfer,
    PoolShape,
    RankReport,
    ResidencyDelta,
    StepPlan,
    TransferId,
    TransferKind,
)

Tag = int
HostMemory = dict[tuple[HostBlock, int], Tag | None]


class Work(NamedTuple):
    """A forward pass: rows `start .. end-1` of a state row are written, all before them are read."""

    state_row: int
    start: int
    end: int
    tags: Sequence[Tag]  # of positions 0 .. end-1
    unmirrored: int = 0  # of the new rows, how many at the end the mirror leaves out


class Faults(NamedTuple):
    """What goes wrong on this rank in one step."""

    fail_restores: bool = False
    fail_spills: bool = False
    fail_copies: bool = False


@dataclass
class Row:
    """A state row's tables and hot state."""

    pages: dict[int, ResidencyDelta] = field(default_factory=dict)
    region: tuple[tuple[GpuBlock, ...], ...] = ()
    slots: dict[tuple[HostBlock, int], int] = field(default_factory=dict)


class Unreadable(Exception):
    """A row is mapped nowhere, or its restore failed."""


class FakeWorker:
    def __init__(self, shape: PoolShape, rank: int, host: HostMemory, writes_host: bool, epoch: int) -> None:
        self.rank = rank
        self.epoch = epoch
        self.host = host
        self.rows: dict[int, Row] = {}
        self.gpu: dict[tuple[GpuBlock, int], tuple[str, int, Tag | None]] = {}
        self._shape = shape
        self._writes_host = writes_host
        self.aborted: set[int] = set()  # rows whose forward pass could not run, until they are cleared
        self.copying: list[tuple[PageTransfer, list[Tag | None]]] = []  # on the copy engine, not ended

    def execute(self, plan: StepPlan, work: Sequence[Work], faults: Faults) -> list[RankReport]:
        """One step in stream order; the reports of what it issued and what ended with it."""
        assert plan.epoch == self.epoch
        for row in plan.cleared_rows:
            self.rows[row] = Row()
            self.aborted.discard(row)
        for delta in plan.hot:
            line = self._row(delta.state_row)
            line.region, line.slots = delta.blocks, {}
        for line in self.rows.values():
            line.slots = {key: slot for key, slot in line.slots.items() if key[0] not in plan.recycled}
        for page in plan.residency:
            self._row(page.state_row).pages[page.page] = page
        failed: set[TransferId] = set()
        copied = self._copy_on_write(plan, faults, failed)
        enqueued, completed = self._restore(plan, faults, failed)
        counts = self._run(plan, work)
        self._spill(plan, faults, enqueued, completed, failed)
        issued = RankReport(self.rank, self.epoch, enqueued=frozenset(enqueued), failed=frozenset(failed))
        mirrored = {plan.sequence: counts} if plan.envelopes and self._writes_host else {}
        ended = RankReport(
            self.rank, self.epoch, completed=frozenset(completed), copied=frozenset(copied), mirrored=mirrored
        )
        return [issued, ended]

    def copy_engine(self) -> list[RankReport]:
        """Whatever the copy engine still has arrives."""
        ended, self.copying = self.copying, []
        for transfer, tags in ended:
            self._put_page(transfer.host_block, tags)
        ids = frozenset(transfer.id for transfer, _ in ended)
        return [RankReport(self.rank, self.epoch, completed=ids)] if ids else []

    def read(self, state_row: int, position: int) -> Tag | None:
        """The tag of a position's KV rows in every group, through tables and hot buffer."""
        page, offset = divmod(position, self._shape.block_size)
        line = self._row(state_row)
        entry = line.pages.get(page)
        if entry is None:
            raise Unreadable(f"page {page} is mapped nowhere")
        if entry.gpu_blocks:
            found = {self._gpu("kv", group, block, offset) for group, block in enumerate(entry.gpu_blocks)}
        elif entry.host_block != NO_HOST_BLOCK and line.region:
            found = self._read_hot(line, entry.host_block, offset)
        else:
            raise Unreadable(f"page {page} is not resident, and there is no hot region")
        assert len(found) == 1, f"the groups differ: {found}"
        return found.pop()

    def read_key(self, state_row: int, position: int) -> Tag | None:
        page, offset = divmod(position, self._shape.block_size)
        blocks = self._row(state_row).pages[page].indexer_blocks
        found = {self._gpu("key", group, block, offset) for group, block in enumerate(blocks)}
        assert len(found) == 1, f"the indexer groups differ: {found}"
        return found.pop()

    def write_keys(self, blocks: Sequence[GpuBlock], tags: Sequence[Tag]) -> None:
        """Index keys of a page, from outside (an import)."""
        for offset, tag in enumerate(tags):
            for group, block in enumerate(blocks):
                self.gpu[block, offset] = ("key", group, tag)

    def host_page(self, block: HostBlock) -> list[Tag | None]:
        return [self.host.get((block, offset)) for offset in range(self._shape.block_size)]

    def _row(self, state_row: int) -> Row:
        return self.rows.setdefault(state_row, Row())

    def _gpu(self, kind: str, group: int, block: GpuBlock, offset: int) -> Tag | None:
        found = self.gpu.get((block, offset))
        return found[2] if found is not None and found[:2] == (kind, group) else None

    def _put_page(self, block: HostBlock, tags: Sequence[Tag | None]) -> None:
        for offset, tag in enumerate(tags):
            self.host[block, offset] = tag

    def _read_hot(self, line: Row, block: HostBlock, offset: int) -> set[Tag | None]:
        """Every row read is kept in the hot region, oldest out first: what is stale there shows."""
        size = self._shape.block_size
        slots = len(line.region[0]) * size
        slot = line.slots.get((block, offset))
        if slot is None:
            slot = len(line.slots)
            if slot == slots:
                slot = line.slots.pop(next(iter(line.slots)))
            line.slots[block, offset] = slot
            for group, region in enumerate(line.region):
                self.gpu[region[slot // size], slot % size] = ("hot", group, self.host.get((block, offset)))
        return {self._gpu("hot", group, region[slot // size], slot % size) for group, region in enumerate(line.region)}

    def _copy_on_write(self, plan: StepPlan, faults: Faults, failed: set[TransferId]) -> set[TransferId]:
        copied: set[TransferId] = set()
        for copy in plan.copies:
            if not self._writes_host or not faults.fail_copies:
                copied.add(copy.id)
                if self._writes_host:
                    self._put_page(copy.destination, self.host_page(copy.source))
            else:
                failed.add(copy.id)
        return copied

    def _restore(
        self, plan: StepPlan, faults: Faults, failed: set[TransferId]
    ) -> tuple[set[TransferId], set[TransferId]]:
        done: set[TransferId] = set()
        for transfer in plan.transfers:
            if transfer.kind is TransferKind.RESTORE:
                tags = [None] * self._shape.block_size if faults.fail_restores else self.host_page(transfer.host_block)
                (failed if faults.fail_restores else done).add(transfer.id)
                for group, block in enumerate(transfer.gpu_blocks):
                    for offset, tag in enumerate(tags):
                        self.gpu[block, offset] = ("kv", group, tag)
                if faults.fail_restores:
                    self._lose(transfer.gpu_blocks)
        return set(done), set(done)

    def _lose(self, blocks: tuple[GpuBlock, ...]) -> None:
        """No table leads to these blocks any more."""
        for line in self.rows.values():
            for page, entry in line.pages.items():
                if entry.gpu_blocks == blocks:
                    line.pages[page] = entry._replace(gpu_blocks=())

    def _run(self, plan: StepPlan, work: Sequence[Work]) -> tuple[int, ...]:
        """The forward passes, then the row mirror; how many rows it copied for each envelope."""
        rows = {item.state_row: item for item in work}
        for item in work:
            if item.state_row not in self.aborted:
                try:
                    self._forward(item)
                except Unreadable:
                    self.aborted.add(item.state_row)
        counts = []
        for envelope in plan.envelopes:
            item = rows[envelope.state_row]
            aborted = item.state_row in self.aborted
            end = envelope.start if aborted else max(envelope.start, envelope.end - item.unmirrored)
            for position in range(envelope.start, end) if self._writes_host else ():
                page, offset = divmod(position, self._shape.block_size)
                self.host[self._row(item.state_row).pages[page].host_block, offset] = self.read(
                    item.state_row, position
                )
            counts.append(end - envelope.start)
        return tuple(counts)

    def _forward(self, item: Work) -> None:
        for position in range(item.start):
            found = self.read(item.state_row, position), self.read_key(item.state_row, position)
            expected = item.tags[position]
            assert found == (expected, expected), f"S1: row {item.state_row}, position {position}: {found}, {expected}"
        for position in range(item.start, item.end):
            page, offset = divmod(position, self._shape.block_size)
            entry = self._row(item.state_row).pages[page]
            if not entry.gpu_blocks:
                raise Unreadable(f"page {page} is not resident, but written")
            for kind, blocks in (("kv", entry.gpu_blocks), ("key", entry.indexer_blocks)):
                for group, block in enumerate(blocks):
                    self.gpu[block, offset] = (kind, group, item.tags[position])

    def _spill(
        self,
        plan: StepPlan,
        faults: Faults,
        enqueued: set[TransferId],
        completed: set[TransferId],
        failed: set[TransferId],
    ) -> None:
        for transfer in plan.transfers if self._writes_host else ():
            if transfer.kind is not TransferKind.SPILL:
                continue
            if faults.fail_spills:
                failed.add(transfer.id)
                continue
            enqueued.add(transfer.id)
            if transfer.moves_data:
                block = transfer.gpu_blocks[0]
                size = self._shape.block_size
                self.copying.append((transfer, [self._gpu("kv", 0, block, offset) for offset in range(size)]))
            else:
                completed.add(transfer.id)
