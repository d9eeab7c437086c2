"""The transfer ledger: sets of (rank, epoch, id), never counts."""

from __future__ import annotations

import pytest

from hisparse_ops.control.gpu_pool import Lease
from hisparse_ops.control.metrics import Totals
from hisparse_ops.control.pages import Page, PageState, RequestPages, TableChanges
from hisparse_ops.control.request import Request
from hisparse_ops.control.transfers import Transfer, TransferLedger
from hisparse_ops.control.types import GpuBlock, HostBlock, Limits, TransferId, TransferKind

WRITERS = [(0, 0), (1, 0), (2, 0)]


@pytest.fixture
def ledger() -> TransferLedger:
    return TransferLedger(overdue_after=4)


def planned(ledger: TransferLedger, sent_at: int | None = 0) -> Transfer:
    request = Request("r", 0, Limits(8, 8), [], RequestPages(0, TableChanges(Totals())))
    lease = Lease((GpuBlock(1),))
    page: Page = request.pages.append(PageState.FRESH, HostBlock(1000), Lease(()), lease)
    transfer = ledger.plan(TransferKind.SPILL, request, page, lease, True, WRITERS)
    if sent_at is not None:
        ledger.send(sent_at)
    return transfer


def test_fault_30_three_ranks_not_three_reports(ledger: TransferLedger) -> None:
    transfer = planned(ledger)
    ids = {transfer.id}
    assert ledger.completed((0, 0), ids) == [] and ledger.completed((0, 0), ids) == []
    assert ledger.completed((1, 0), ids) == [] and ledger.completed((1, 0), ids) == []
    assert ledger.completed((2, 0), ids) == [transfer] and ledger.completed((2, 0), ids) == []


@pytest.mark.parametrize("writer", [(3, 0), (0, 1), (2, -1)], ids=["foreign rank", "new epoch", "old epoch"])
def test_a_rank_that_is_not_expected_changes_nothing(ledger: TransferLedger, writer: tuple[int, int]) -> None:
    transfer = planned(ledger)
    assert ledger.completed(writer, {transfer.id}) == []
    assert ledger.failed(writer, {transfer.id}) == [] and not transfer.failed
    assert transfer.not_completed == set(WRITERS)


def test_completion_before_enqueue_is_fine(ledger: TransferLedger) -> None:
    transfer = planned(ledger)
    for writer in WRITERS[:2]:
        assert ledger.completed(writer, {transfer.id}) == []
    assert ledger.completed(WRITERS[2], {transfer.id}) == [transfer] and transfer.not_enqueued == set(WRITERS)


def test_unknown_retired_and_unsent_transfers_are_nobodys(ledger: TransferLedger) -> None:
    transfer = planned(ledger, sent_at=None)
    assert ledger.enqueued((0, 0), {transfer.id, TransferId(99)}) == []
    ledger.send(0)
    ledger.retire(transfer)
    assert ledger.enqueued((0, 0), {transfer.id}) == [] and transfer.page.transfer is None


def test_overdue_transfers_are_set_aside_and_late_reports_find_nothing(ledger: TransferLedger) -> None:
    old, young = planned(ledger, sent_at=0), planned(ledger, sent_at=3)
    assert ledger.quarantine_transfers(4) == []
    assert ledger.quarantine_transfers(5) == [old] and ledger.quarantine_transfers(5) == []
    assert ledger.completed((0, 0), {old.id}) == [] and set(ledger.active) == {young.id}
    assert set(ledger.quarantined) == {old.id}


def test_ids_are_never_used_again() -> None:
    first = TransferLedger(4)
    used = {planned(first).id for _ in range(3)}
    assert planned(TransferLedger(4, first.last_id)).id not in used
