"""Rows, pages and envelopes."""

from types import SimpleNamespace

from contracts.shapes import CONFIG, Shape, ledger

from hisparse_ops.control.metrics import Totals
from hisparse_ops.control.mirror import MirrorProof
from hisparse_ops.control.pages import NEVER_WRITTEN, PageState, RequestPages, TableChanges
from hisparse_ops.control.planner import Planner
from hisparse_ops.control.types import Scheduled

PAGES = 4
STEPS = 3
OVERDUE = 64


def every_token_has_a_page_and_no_page_is_empty(tokens: int, size: int) -> None:
    assert tokens >= 0 and size >= 1
    pages = ledger(block_size=size).pages(tokens)
    assert (pages - 1) * size < tokens <= pages * size


def a_step_writes_the_pages_that_hold_its_rows(start: int, end: int, size: int) -> None:
    assert 1 <= size <= 3 and 0 <= start < end <= PAGES * size
    pages = RequestPages(0, TableChanges(Totals()))
    for _ in range(PAGES):
        pages.append(PageState.HOST_ONLY, 1, None, None)
    request = SimpleNamespace(state_row=0, pages=pages, computed=start)
    mirror = MirrorProof(OVERDUE)
    state = SimpleNamespace(shape=Shape(block_size=size), config=CONFIG, mirror=mirror, writers=lambda ranks: [(0, 0)])
    (envelope,) = Planner(state, None, None, None)._write(7, [Scheduled("r", start, end)], [request])
    assert (envelope.start, envelope.end) == (start, end) == (start, request.computed)
    for page in pages.table:
        holds_a_row = page.index * size < end and start < (page.index + 1) * size
        assert page.last_write == (7 if holds_a_row else NEVER_WRITTEN)


def a_page_is_proven_once_no_step_that_may_have_written_it_is_open(first: int, last: int, closed: list[bool]) -> None:
    assert 0 <= first <= last < STEPS and len(closed) == STEPS
    proof = MirrorProof(OVERDUE)
    for step in range(STEPS):
        proof.planned(step, (1,), [], [(0, 0)])
        if closed[step]:
            proof.report((0, 0), step, (1,))
    page = SimpleNamespace(first_write=first, last_write=last)
    assert proof.covers(page) == all(closed[first : last + 1])
