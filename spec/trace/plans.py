"""What the workers are told: every plan against the books, and what was told before it.

The lines of the workers' tables are kept as the plans have told them. A plan must tell everything that
changed since, and nothing that is not so. The proof of the mirror is kept here too: which rows a step was
to mirror, and which writers have not yet said how many they did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .books import FRESH, HOLE, RESTORING, SPILLING, Books, Page, Request
from .holdings import require

Line = tuple[int, tuple[int, ...], tuple[int, ...]]  # host block, GPU block per group, blocks of index keys
NOWHERE: Line = (0, (), ())


@dataclass(slots=True, eq=False)
class Step:
    """A step that may not be over. What every rank was sent."""

    scheduled: list[tuple[int, int, int]]  # state row, first row, end
    spills: set[int]
    restores: set[int]
    copies: set[int]
    rows: list[int]  # to be mirrored, per envelope
    pages: list[list[Page]]  # that an envelope touches
    silent: set[tuple[int, int]]  # writers that have not said what they mirrored


class Plans:
    def __init__(self, layout: Any, config: Any, books: Books, rows_left: set[int]) -> None:
        self._layout = layout
        self._config = config
        self._books = books
        self._rows_left = rows_left
        self._told: dict[int, dict[int, Line]] = {}  # state row -> page -> its line
        self.steps: dict[int, Step] = {}  # in flight
        self._unproven: dict[int, Step] = {}  # whose mirror is not proven

    def planned(self, scheduled: list[tuple[str, int, int]], plan: Any, epoch: int) -> None:
        books, sequence = self._books, plan["sequence"]
        require(sequence == books.steps.last + 1, "B13", f"step {sequence} comes after step {books.steps.last}")
        require(plan["epoch"] == epoch, "B13", f"a plan of epoch {plan['epoch']} in epoch {epoch}")
        rows = [self._schedule(*item) for item in scheduled]
        self._check_told(plan)
        self._check_hot(plan["hot"])
        named = sorted(plan["recycled"])
        require(named == sorted(books.recycled), "S18", f"recycled are {named}, leased anew {sorted(books.recycled)}")
        books.recycled.clear()
        step = Step(rows, set(), set(), set(), [], [], set())
        self._send(plan, step)
        self._envelopes(plan["envelopes"], step, sequence, epoch)
        books.steps.last = sequence
        books.steps.in_flight[sequence] = None
        self.steps[sequence] = step
        self._give_up(sequence + 1 - self._config["overdue_after"])

    def _schedule(self, request_id: str, start: int, end: int) -> tuple[int, int, int]:
        request = self._books.live.get(request_id)
        require(request is not None, "S1", f"request {request_id!r} computes and is not live")
        assert request is not None
        fits = request.final <= start <= request.computed and start < end <= request.length
        where = f"rows {start} .. {end - 1} of {request_id!r}"
        require(fits, "S4", f"{where}, {request.final} final, {request.computed} computed, {request.length} with pages")
        readable = not request.off_gpu or (request.hot is not None and not request.unreadable)
        require(readable and request.incoming is None, "S1", f"{where} read pages that are nowhere")
        size = self._books.size
        for page in request.pages[start // size : (end - 1) // size + 1]:
            require(page.kv is not None, "S10", f"{where} are written to {page}, which is not on the GPU")
            writable = page.state in (FRESH, RESTORING, SPILLING) and not page.clean
            require(writable, "S4", f"{where} are written to {page}, which is {page.state}")
        request.computed = max(request.computed, end)
        return request.row, start, end

    def _check_told(self, plan: Any) -> None:
        """Cleared rows, then lines of the page tables."""
        cleared = set(plan["cleared_rows"])
        require(
            cleared == self._rows_left, "B13", f"cleared are rows {sorted(cleared)}, left {sorted(self._rows_left)}"
        )
        self._rows_left.clear()
        for row in cleared:
            self._told.pop(row, None)
        changed = {place: request for place, request in self._books.changed.items() if not request.detached}
        by_row = {request.row: request for request in self._books.live.values()} if plan["residency"] else {}
        for row, index, host, gpu, keys in plan["residency"]:
            require(row in by_row, "B13", f"state row {row} is told of page {index}, and nobody has the row")
            told, line = (host, tuple(gpu), tuple(keys)), _line(by_row[row], index)
            require(told == line, "B13", f"page {index} of state row {row} is told as {told}, and is at {line}")
            self._told.setdefault(row, {})[index] = line
        for (row, index), request in changed.items():
            line, told = _line(request, index), self._told.get(row, {}).get(index, NOWHERE)
            require(told == line, "B13", f"page {index} of state row {row} was told as {told}, and is at {line}")
        self._books.changed.clear()

    def _check_hot(self, deltas: list[tuple[int, list[list[int]]]]) -> None:
        size, expected = self._layout["hot_blocks"], {}
        for request in self._books.hot_changed:
            blocks = request.hot.blocks if request.hot is not None else ()
            expected[request.row] = [list(blocks[i : i + size]) for i in range(0, len(blocks), size)]
        told = dict(deltas)
        require(told == expected and len(told) == len(deltas), "S6", f"hot regions are told as {told}, are {expected}")
        self._books.hot_changed.clear()

    def _send(self, plan: Any, step: Step) -> None:
        unsent, books = self._books.unsent, self._books
        transfers = [[t.id, t.kind, t.hosts[0].block, list(t.blocks), t.moves] for t in unsent if t.kind != "COPY"]
        copies = [[t.id, t.hosts[0].block, t.hosts[1].block] for t in unsent if t.kind == "COPY"]
        require(plan["transfers"] == transfers, "B7", f"transfers sent are {plan['transfers']}, planned {transfers}")
        require(plan["copies"] == copies, "B7", f"copies sent are {plan['copies']}, planned {copies}")
        for transfer in unsent:
            transfer.sent = plan["sequence"]
            kinds = {"SPILL": step.spills, "RESTORE": step.restores, "COPY": step.copies}
            kinds[transfer.kind].add(transfer.id)
        books.unsent.clear()

    def _envelopes(self, envelopes: list[list[int]], step: Step, sequence: int, epoch: int) -> None:
        mirrors = self._config["host_tier"] and self._config["eager_mirror"]
        expected = [list(rows) for rows in step.scheduled] if mirrors else []
        require(envelopes == expected, "S15", f"rows to mirror are {envelopes}, computed are {expected}")
        if not expected:
            return
        size, by_row = self._books.size, {request.row: request for request in self._books.live.values()}
        for row, start, end in expected:
            pages = by_row[row].pages[start // size : (end - 1) // size + 1]
            for page in pages:
                page.unproven.add(sequence)
            step.pages.append(pages)
            step.rows.append(end - start)
        step.silent = {(rank, epoch) for rank in self._config["writer_ranks"]}
        self._unproven[sequence] = step

    # The proof of the mirror.

    def awaits_mirror(self, sequence: int, writer: tuple[int, int]) -> bool:
        return sequence in self._unproven and writer in self._unproven[sequence].silent

    def mirrored(self, writer: tuple[int, int], counts: dict[str, list[int]]) -> None:
        """A writer says how many rows of each envelope it has copied. Fewer than written: the pages are tainted."""
        for key, copied in counts.items():
            sequence = int(key)
            if not self.awaits_mirror(sequence, writer):
                continue
            step = self._unproven[sequence]
            step.silent.discard(writer)
            self._taint(step, copied if len(copied) == len(step.rows) else [0] * len(step.rows))
            if not step.silent:
                self._close(sequence)

    def _give_up(self, limit: int) -> None:
        """No report of these steps is believed any more."""
        for sequence in [sequence for sequence in self._unproven if sequence < limit]:
            self._taint(self._unproven[sequence], [0] * len(self._unproven[sequence].rows))
            self._close(sequence)

    def _close(self, sequence: int) -> None:
        for pages in self._unproven.pop(sequence).pages:
            for page in pages:
                page.unproven.discard(sequence)

    @staticmethod
    def _taint(step: Step, copied: list[int]) -> None:
        for rows, got, pages in zip(step.rows, copied, step.pages, strict=True):
            for page in pages if rows != got else ():
                page.tainted = True


def _line(request: Request, index: int) -> Line:
    """Where a page is read, by the books."""
    if index >= len(request.pages):
        return NOWHERE
    page = request.pages[index]
    host = page.host.block if page.host is not None and page.state != HOLE else 0
    return host, page.kv.blocks if page.kv is not None else (), page.keys.blocks if page.keys is not None else ()
