"""The mirror proof: durability comes from rows counted, not from a code path having run."""

from __future__ import annotations

import pytest

from hisparse_ops.control.gpu_pool import Lease
from hisparse_ops.control.metrics import Totals
from hisparse_ops.control.mirror import MirrorProof
from hisparse_ops.control.pages import Page, PageState, RequestPages, TableChanges
from hisparse_ops.control.request import Request
from hisparse_ops.control.types import HostBlock, Limits

WRITERS = [(0, 0), (1, 0)]


@pytest.fixture
def proof() -> MirrorProof:
    return MirrorProof(overdue_after=4)


@pytest.fixture
def request_() -> Request:
    request = Request("r", 0, Limits(8, 8), [], RequestPages(0, TableChanges(Totals())))
    for block in range(4):
        request.pages.append(PageState.FRESH, HostBlock(1 + block), Lease(()), Lease(()))
    return request


def write(proof: MirrorProof, request: Request, sequence: int, rows: int, first: int, last: int) -> None:
    for page in request.pages.table[first : last + 1]:
        page.first_write = sequence if page.first_write < 0 else page.first_write
        page.last_write = sequence
    proof.planned(sequence, (rows,), [(request, first, last)], WRITERS)


def tainted(request: Request) -> list[int]:
    return [page.index for page in request.pages.table if page.tainted]


def test_a_step_is_proven_when_every_writer_has_counted_all_rows(proof: MirrorProof, request_: Request) -> None:
    write(proof, request_, 0, 4, 0, 0)
    page: Page = request_.pages[0]
    assert not proof.covers(page)
    assert not proof.report((0, 0), 0, (4,)) and not proof.report((0, 0), 0, (4,))
    assert not proof.covers(page)
    assert proof.report((1, 0), 0, (4,)) and proof.covers(page) and not tainted(request_)


@pytest.mark.parametrize("counts", [(3,), (0,), (5,), (), (4, 4)], ids=str)
def test_s15_a_wrong_count_taints_the_pages_of_its_envelope_only(
    proof: MirrorProof, request_: Request, counts: tuple[int, ...]
) -> None:
    """Graph replay that skips every hook looks like (0,) or ()."""
    write(proof, request_, 0, 4, 1, 2)
    proof.report((0, 0), 0, (4,))
    proof.report((1, 0), 0, counts)
    assert tainted(request_) == [1, 2]


@pytest.mark.parametrize("proven", [0, 1, 2])
def test_reports_in_any_order_prove_the_pages_that_only_they_wrote(
    proof: MirrorProof, request_: Request, proven: int
) -> None:
    for step in (0, 1, 2):
        write(proof, request_, step, 4, step, step)
    for writer in WRITERS:
        proof.report(writer, proven, (4,))
    assert [page.index for page in request_.pages.table[:3] if proof.covers(page)] == [proven]


def test_a_page_needs_the_proof_of_every_step_that_wrote_it(proof: MirrorProof, request_: Request) -> None:
    for sequence in (0, 1, 2):
        write(proof, request_, sequence, 1, 0, 0)
    for sequence in (0, 2):
        for writer in WRITERS:
            proof.report(writer, sequence, (1,))
    assert not proof.covers(request_.pages[0])


def test_a_page_written_again_needs_the_later_proof_too(proof: MirrorProof, request_: Request) -> None:
    """Fault 54: rows of rejected drafts are written by more than one step."""
    for sequence in (0, 1):
        write(proof, request_, sequence, 4, 0, 0)
    for writer in WRITERS:
        proof.report(writer, 0, (4,))
    assert not proof.covers(request_.pages[0])


def test_a_report_that_never_comes_taints_after_a_while_and_no_later_page_waits(
    proof: MirrorProof, request_: Request
) -> None:
    """Fault 29, for the mirror."""
    write(proof, request_, 0, 4, 0, 0)
    assert not proof.give_up_overdue(4) and proof.give_up_overdue(5)
    assert tainted(request_) == [0] and not proof.open
    assert not proof.report((0, 0), 0, (4,)), "the late report is a no-op"


def test_of_two_envelopes_the_whole_one_keeps_its_pages(proof: MirrorProof, request_: Request) -> None:
    proof.planned(0, (2, 3), [(request_, 0, 0), (request_, 2, 3)], [(0, 0)])
    assert proof.report((0, 0), 0, (1, 3))
    assert tainted(request_) == [0]


def test_what_is_overdue_is_given_up_although_a_later_step_is_not(proof: MirrorProof, request_: Request) -> None:
    write(proof, request_, 0, 4, 0, 0)
    write(proof, request_, 3, 4, 1, 1)
    assert proof.give_up_overdue(5)
    assert tainted(request_) == [0] and list(proof.open) == [3]
