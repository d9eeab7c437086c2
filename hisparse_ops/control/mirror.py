"""The proof of the row mirror: which steps' rows are known to have reached the host.

A step is open from its plan until every writer rank has reported how many rows of each envelope it
really copied. Usually that is one tuple comparison per rank and step. When the counts differ from
the envelopes, or no report comes in time, the pages under the short envelopes are tainted: nothing
proves what their host rows hold, so they never become durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .pages import NEVER_WRITTEN, Page
from .request import Request

NOTHING = (0,)  # rows proven by a missing report, or by one that does not fit its step


@dataclass(slots=True, eq=False)
class OpenStep:
    rows: tuple[int, ...]  # expected, per envelope
    spans: list[tuple[Request, int, int]]  # whose pages first .. last the envelope touches
    silent: set[tuple[int, int]]  # writers (rank, epoch) that have not reported


class MirrorProof:
    def __init__(self, overdue_after: int) -> None:
        self._overdue_after = overdue_after
        self.open: dict[int, OpenStep] = {}  # by sequence, ascending

    def planned(
        self,
        sequence: int,
        rows: tuple[int, ...],
        spans: list[tuple[Request, int, int]],
        writers: Iterable[tuple[int, int]],
    ) -> None:
        self.open[sequence] = OpenStep(rows, spans, set(writers))

    def report(self, writer: tuple[int, int], sequence: int, copied: tuple[int, ...]) -> bool:
        """Note what a writer copied in a step; whether that closed the step."""
        step = self.open.get(sequence)
        if step is None or writer not in step.silent:
            return False
        step.silent.discard(writer)
        if copied != step.rows:
            self._taint_short(step, copied if len(copied) == len(step.rows) else NOTHING * len(step.rows))
        if step.silent:
            return False
        del self.open[sequence]
        return True

    def give_up_overdue(self, sequence: int) -> bool:
        """Close the steps whose reports are overdue, as if nothing had been copied in them."""
        limit = sequence - self._overdue_after
        overdue = []
        for planned in self.open:
            if planned >= limit:
                break
            overdue.append(planned)
        for planned in overdue:
            step = self.open.pop(planned)
            self._taint_short(step, NOTHING * len(step.rows))
        return bool(overdue)

    def covers(self, page: Page) -> bool:
        """Whether every step that may have written rows of `page` is closed."""
        if page.last_write == NEVER_WRITTEN or not self.open:
            return True
        oldest = next(iter(self.open))
        if page.last_write < oldest:
            return True
        return not any(step in self.open for step in range(max(page.first_write, oldest), page.last_write + 1))

    @staticmethod
    def _taint_short(step: OpenStep, copied: tuple[int, ...]) -> None:
        for expected, got, (request, first, last) in zip(step.rows, copied, step.spans, strict=True):
            if expected != got:
                for page in request.pages.table[first : last + 1]:
                    page.taint()
