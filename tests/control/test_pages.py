"""Page states: what may follow what, and what the workers hear of it."""

from __future__ import annotations

from itertools import product

import pytest

from hisparse_ops.control.errors import ControlError
from hisparse_ops.control.gpu_pool import Lease
from hisparse_ops.control.metrics import Totals
from hisparse_ops.control.pages import BORN_AS, MOVES, PageState, RequestPages, TableChanges
from hisparse_ops.control.types import GpuBlock, HostBlock

S = PageState
PROTOCOL = {  # protocol: fresh -> spilling -> clean ..., one line per arrow
    (S.FRESH, S.SPILLING): "sealed and planned",
    (S.SPILLING, S.CLEAN_PINNED): "completed",
    (S.SPILLING, S.FRESH): "the copy failed",
    (S.CLEAN_PINNED, S.CLEAN_UNPINNED): "host-readable, not among the last two",
    (S.CLEAN_UNPINNED, S.CLEAN_PINNED): "pinned again when pressure is gone",
    (S.CLEAN_UNPINNED, S.HOST_ONLY): "the pool handed out a block",
    (S.HOST_ONLY, S.CLEAN_PINNED): "a readable copy was adopted",
    (S.HOST_ONLY, S.RESTORING): "a restore was planned",
    (S.RESTORING, S.CLEAN_PINNED): "restored",
    (S.RESTORING, S.FRESH): "the tail of an import was restored",
    (S.RESTORING, S.HOST_ONLY): "the restore failed",
    (S.RESTORING, S.IMPORT_HOLE): "the restore of the tail failed",
    (S.IMPORT_HOLE, S.HOST_ONLY): "import success",
    (S.IMPORT_HOLE, S.RESTORING): "import success, the tail",
}


@pytest.fixture
def changes() -> TableChanges:
    return TableChanges(Totals())


@pytest.fixture
def pages(changes: TableChanges) -> RequestPages:
    return RequestPages(3, changes)


def page_in(pages: RequestPages, state: PageState) -> object:
    page = pages.append(S.FRESH, HostBlock(1), Lease((GpuBlock(1),)), Lease((GpuBlock(2),)))
    pages.in_state[S.FRESH].discard(page.index)
    page.state = state
    pages.in_state[state].add(page.index)
    return page


@pytest.mark.parametrize(("before", "after"), list(product(S, S)), ids=lambda s: s.value)
def test_only_the_arrows_of_the_protocol(pages: RequestPages, before: PageState, after: PageState) -> None:
    page = page_in(pages, before)
    if (before, after) in PROTOCOL:
        pages.move(page, after)  # type: ignore[arg-type]
        assert pages.in_state[after] == {0} and not pages.in_state[before]
    else:
        with pytest.raises(ControlError, match="cannot go from"):
            pages.move(page, after)  # type: ignore[arg-type]
        assert pages.in_state[before] == {0}
    assert (after in MOVES[before]) == ((before, after) in PROTOCOL)


@pytest.mark.parametrize("state", S, ids=lambda s: s.value)
def test_how_a_page_is_born(pages: RequestPages, state: PageState) -> None:
    if state in BORN_AS:
        assert pages.append(state, HostBlock(1), Lease(()), None).state is state
    else:
        with pytest.raises(ControlError, match="cannot be born"):
            pages.append(state, HostBlock(1), Lease(()), None)


@pytest.mark.parametrize(("before", "after"), PROTOCOL, ids=lambda s: s.value)
def test_workers_hear_of_a_move_exactly_if_the_page_is_read_from_elsewhere(
    pages: RequestPages, changes: TableChanges, before: PageState, after: PageState
) -> None:
    page = page_in(pages, before)
    changes.pages.clear()
    pages.move(page, after)  # type: ignore[arg-type]
    assert bool(changes.pages) == (read_from(before) != read_from(after))


def test_a_page_that_is_taken_off_leaves_nothing_to_the_next_of_its_index(pages: RequestPages) -> None:
    page_in(pages, S.CLEAN_PINNED)
    pages[0].taint()
    pages.pop()
    again = pages.append(S.FRESH, HostBlock(1), Lease(()), None)
    assert not again.tainted and pages.in_state[S.FRESH] == {0} and not pages.in_state[S.CLEAN_PINNED]


def read_from(state: PageState) -> str:
    if state is S.IMPORT_HOLE:
        return "nowhere"
    return "host" if state is S.HOST_ONLY else "GPU"


def test_a_request_without_a_row_has_nothing_to_tell(pages: RequestPages, changes: TableChanges) -> None:
    page_in(pages, S.CLEAN_UNPINNED)
    changes.pages.clear()
    pages.row = None
    pages.pop()
    assert not changes.pages
