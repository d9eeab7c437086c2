"""A worker carries out plans: in the documented order, exactly, and it says only what is true."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from worker.harness import INDEX_LAYER, LAYERS, HeldStream, Request, Rig

from hisparse_ops import ops
from hisparse_ops.control.types import (
    BlockCopy,
    GpuBlock,
    HostBlock,
    HotDelta,
    MirrorEnvelope,
    PageTransfer,
    RankReport,
    ResidencyDelta,
    StepPlan,
    TransferId,
    TransferKind,
)
from hisparse_ops.memory.host_pool import HostPool, Shared
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.worker import EpochError, PlanError, Streams, UnreadableError, Worker, WorkerOrderError

SPILL, RESTORE = TransferKind.SPILL, TransferKind.RESTORE


def only(reports: list[RankReport]) -> RankReport:
    assert len(reports) == 1
    return reports[0]


# The row mirror.


@pytest.mark.parametrize("rows", [1, 2, 15, 16])
def test_the_mirror_copies_the_rows_of_the_envelope_and_no_others(rig: Rig, rows: int) -> None:
    """n rows of a page: the other rows of the host block keep their bytes."""
    request = rig.request()
    residency = rig.grow(request, 16)
    for layer in range(LAYERS):
        rig.host_page(request.pages[0], layer)[:] = 99
    envelopes = (MirrorEnvelope(request.state_row, 0, rows),)
    rig.worker.begin_step(rig.plan(residency=residency, envelopes=envelopes))
    rig.fill(rig.worker.kv(request.state_row, 0, 16, prefill=True), request)
    rig.worker.end_step()
    for layer in range(LAYERS):
        page = rig.host_page(request.pages[0], layer)
        assert torch.equal(page[:rows], rig.expected(request, layer, range(rows)))
        assert (page[rows:] == 99).all()
    assert only(rig.worker.poll()).mirrored == {1: (rows,)}


def test_the_proof_counts_rows_written_within_the_envelope(rig: Rig) -> None:
    """One envelope is wider than what was written, one narrower, and for one nothing ran."""
    wide, narrow, idle = (rig.request() for _ in range(3))
    residency = tuple(delta for request in (wide, narrow, idle) for delta in rig.grow(request, 20))
    envelopes = (
        MirrorEnvelope(wide.state_row, 0, 20),
        MirrorEnvelope(narrow.state_row, 3, 5),
        MirrorEnvelope(idle.state_row, 0, 20),
    )
    rig.worker.begin_step(rig.plan(residency=residency, envelopes=envelopes))
    rig.fill(rig.worker.kv(wide.state_row, 0, 7, prefill=True), wide)
    rig.fill(rig.worker.kv(wide.state_row, 9, 3, prefill=True), wide)
    rig.fill(rig.worker.kv(narrow.state_row, 0, 20, prefill=True), narrow)
    rig.worker.end_step()
    assert only(rig.worker.poll()).mirrored == {1: (10, 2, 0)}


def test_a_row_that_lacks_a_layer_is_neither_copied_nor_counted(rig: Rig) -> None:
    request = rig.request()
    rig.worker.begin_step(
        rig.plan(residency=rig.grow(request, 4), envelopes=(MirrorEnvelope(request.state_row, 0, 4),))
    )
    rig.fill(rig.worker.kv(request.state_row, 0, 2, prefill=True), request)
    rig.fill(rig.worker.kv(request.state_row, 2, 2, prefill=True), request, [0, 1, 2, 3, 4, 6])
    rig.worker.end_step()
    assert only(rig.worker.poll()).mirrored == {1: (2,)}
    for layer in range(LAYERS):
        assert not rig.host_page(request.pages[0], layer)[2:].any()


def test_a_page_without_a_host_block_is_skipped_alone(rig: Rig) -> None:
    request = rig.request()
    first, second, third = rig.grow(request, 48)
    residency = (first, second._replace(host_block=HostBlock(0)), third)
    rig.worker.begin_step(rig.plan(residency=residency, envelopes=(MirrorEnvelope(request.state_row, 0, 48),)))
    rig.fill(rig.worker.kv(request.state_row, 0, 48, prefill=True), request)
    rig.worker.end_step()
    assert only(rig.worker.poll()).mirrored == {1: (32,)}
    assert torch.equal(rig.host_page(request.pages[2], 4), rig.expected(request, 4, range(32, 48)))
    assert not rig.host_page(request.pages[1], 4).any()


def test_the_proof_comes_from_the_device_and_not_from_calls_that_were_made(rig: Rig) -> None:
    """The page loses its block in the device's table only: nothing that runs on the CPU can notice."""
    request = rig.request()
    residency = rig.grow(request, 40)
    rig.worker.begin_step(rig.plan(residency=residency, envelopes=(MirrorEnvelope(request.state_row, 0, 40),)))
    kv = rig.worker.kv(request.state_row, 0, 40, prefill=True)
    rig.worker.tables.resident[1, request.state_row, 1] = 0
    rig.fill(kv, request)
    rig.worker.end_step()
    assert only(rig.worker.poll()).mirrored == {1: (24,)}
    assert not any(rig.host_page(request.pages[1], layer).any() for layer in range(LAYERS))


def test_a_mirror_that_raises_proves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "mirror_rows", broken)
    report = only(rig.compute(rig.request(), 0, 5))
    assert report.mirrored == {1: (0,)}


def broken(*arguments: object) -> None:
    raise RuntimeError("the link is down")


def test_a_mirrored_row_is_no_longer_cached_in_a_hot_slot(rig: Rig) -> None:
    """A host row is loaded into a hot slot; its page comes back, is rewritten and mirrored, and is lost again."""
    request = rig.request()
    rig.compute(request, 0, 40)
    rig.idle(hot=rig.grant_hot(request), residency=rig.drop(request, 0))
    read_first_rows(rig, request)
    delta, transfer = rig.restore(request, 0)
    request.version = 1
    rig.compute(request, 0, 2, residency=(delta,), transfers=(transfer,))
    rig.idle(residency=rig.drop(request, 0))
    read_first_rows(rig, request)


def read_first_rows(rig: Rig, request: Request) -> None:
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, request.tokens + 1)))
    kv = rig.worker.kv(request.state_row, request.tokens - 1, 1, prefill=False)
    rig.fill(kv, request)
    rig.check_selected(kv, request, [[0, 1, 2, -1]])
    rig.worker.end_step()


# Whole pages.


def test_a_spill_moves_the_page_of_all_layers(any_rig: Rig) -> None:
    rig, request = any_rig, any_rig.request()
    size = rig.layout.block_size
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, 2 * size)))
    rig.fill(rig.worker.kv(request.state_row, 0, 2 * size, prefill=True), request)
    rig.worker.end_step()
    assert not rig.host_page(request.pages[1], 0).any()
    rig.idle(transfers=(rig.transfer(SPILL, request.pages[1]),))
    for layer in range(LAYERS):
        assert torch.equal(rig.host_page(request.pages[1], layer), rig.expected(request, layer, range(size, 2 * size)))
        assert not rig.host_page(request.pages[0], layer).any()
    assert rig.worker.counters()["spill_bytes"] == rig.layout.host_block_bytes


def test_a_spill_runs_after_the_model_of_its_step(rig: Rig) -> None:
    request = rig.request()
    residency = rig.grow(request, 16)
    rig.worker.begin_step(rig.plan(residency=residency, transfers=(rig.transfer(SPILL, request.pages[0]),)))
    assert rig.worker.poll() == []  # not even enqueued before the rows are written
    rig.fill(rig.worker.kv(request.state_row, 0, 16, prefill=True), request)
    rig.worker.end_step()
    assert torch.equal(rig.host_page(request.pages[0], 3), rig.expected(request, 3, range(16)))


def test_a_spill_that_is_only_a_barrier_moves_nothing(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 16)
    rig.host_page(request.pages[0], 0)[:] = 55
    transfer = rig.transfer(SPILL, request.pages[0], moves_data=False)
    enqueued, completed = rig.idle(transfers=(transfer,))
    assert (rig.host_page(request.pages[0], 0) == 55).all()
    assert enqueued.enqueued == completed.completed == {transfer.id}
    assert rig.worker.counters()["spill_bytes"] == 0


def test_a_spill_empties_the_slots_that_cached_its_host_block(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    rig.idle(hot=rig.grant_hot(request), residency=rig.drop(request, 0))
    read_first_rows(rig, request)
    delta, transfer = rig.restore(request, 0)
    request.version = 1
    rig.worker.begin_step(rig.plan(residency=(delta,), transfers=(transfer,)))
    rig.fill(rig.worker.kv(request.state_row, 0, 2, prefill=True), request)
    rig.worker.end_step()
    rig.idle(transfers=(rig.transfer(SPILL, request.pages[0]),))
    rig.idle(residency=rig.drop(request, 0))
    read_first_rows(rig, request)


def test_a_restore_is_there_when_the_model_runs(any_rig: Rig) -> None:
    rig, request = any_rig, any_rig.request()
    size = rig.layout.block_size
    rig.compute(request, 0, 4 * size)
    rig.idle(hot=rig.grant_hot(request), residency=rig.drop(request, 0, 1))
    delta, transfer = rig.restore(request, 1)
    rig.worker.begin_step(rig.plan(residency=(delta, *rig.grow(request, 4 * size + 1)), transfers=(transfer,)))
    for layer in range(LAYERS):
        assert torch.equal(rig.gpu_page(request.pages[1], layer), rig.expected(request, layer, range(size, 2 * size)))
    kv = rig.worker.kv(request.state_row, 4 * size, 1, prefill=False)
    rig.fill(kv, request)
    rig.check_selected(kv, request, [[0, size, 2 * size - 1, 4 * size]])
    counters = rig.worker.counters()
    units = len(rig.layout.units)
    assert (counters["miss"], counters["resident"]) == (units, 3 * units)
    assert counters["restore_bytes"] == rig.layout.host_block_bytes


def test_copy_on_write_runs_before_the_restores_that_read_it(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    old = request.pages[0].host
    rig.drop(request, 0)
    request.pages[0].host = rig.host_block()
    delta, transfer = rig.restore(request, 0)
    copy = BlockCopy(TransferId(9), old, request.pages[0].host)
    enqueued, completed = rig.idle(residency=(delta,), copies=(copy,), transfers=(transfer,))
    for layer in range(LAYERS):
        assert torch.equal(rig.host_page(request.pages[0], layer), rig.expected(request, layer, range(16)))
        assert torch.equal(rig.gpu_page(request.pages[0], layer), rig.expected(request, layer, range(16)))
    assert enqueued.enqueued == completed.completed == {transfer.id}
    assert completed.copied == {copy.id}


def test_a_plan_may_be_dropped_and_its_ids_reused_at_once(rig: Rig) -> None:
    """A job owns its index tensors: lists that a plan was made from may change before it has run."""
    request = rig.request()
    rig.compute(request, 0, 16)
    blocks = list(request.pages[0].gpu)
    page = request.pages[0]
    transfer = PageTransfer(TransferId(1), SPILL, page.host, blocks, True)  # type: ignore[arg-type]
    rig.host_page(page, 0).zero_()
    rig.worker.begin_step(rig.plan(transfers=(transfer,)))
    rig.worker.end_step()
    blocks[:] = [GpuBlock(1)] * len(blocks)
    assert torch.equal(rig.host_page(page, 0), rig.expected(request, 0, range(16)))


# Copies that fail.


def test_a_failed_restore_is_told_and_its_page_is_not_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    rig.idle(residency=rig.drop(request, 0))
    delta, transfer = rig.restore(request, 0)
    monkeypatch.setattr(ops, "copy_blocks", broken)
    rig.worker.begin_step(rig.plan(residency=(delta,), transfers=(transfer,)))
    report = only(rig.worker.poll())
    assert report.failed == {transfer.id} and not report.enqueued
    assert not rig.worker.tables.resident[:, request.state_row, 0].any()
    assert rig.worker.tables.resident[:, request.state_row, 1].all()
    with pytest.raises(UnreadableError, match="page 0 is on the host alone"):
        rig.worker.kv(request.state_row, 39, 1, prefill=False)
    rig.worker.end_step()
    assert only(rig.worker.poll()).completed == set()


def test_a_failed_copy_on_write_is_told_and_its_page_is_not_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    rig.drop(request, 0)
    copy = BlockCopy(TransferId(9), request.pages[0].host, rig.host_block())
    request.pages[0].host = copy.destination
    monkeypatch.setattr(ops, "copy_blocks", broken)
    rig.worker.begin_step(rig.plan(residency=(rig.delta(request, 0),), copies=(copy,)))
    assert only(rig.worker.poll()).failed == {copy.id}
    with pytest.raises(UnreadableError, match="page 0 is neither resident nor on the host"):
        rig.worker.kv(request.state_row, 39, 1, prefill=False)


def test_a_failed_spill_is_told_and_a_barrier_beside_it_is_not_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    request = rig.request()
    rig.compute(request, 0, 32)
    moving = rig.transfer(SPILL, request.pages[0])
    barrier = rig.transfer(SPILL, request.pages[1], moves_data=False)
    monkeypatch.setattr(ops, "copy_blocks", broken)
    issued, ended = rig.idle(transfers=(moving, barrier))
    assert issued.failed == {moving.id}
    assert issued.enqueued == ended.completed == {barrier.id}


# Tables and hot state.


def test_a_cleared_state_row_has_nothing_of_its_last_owner(rig: Rig) -> None:
    request, other = rig.request(), rig.request()
    for each in (request, other):
        rig.compute(each, 0, 40)
        rig.idle(hot=rig.grant_hot(each), residency=rig.drop(each, 0))
        read_first_rows(rig, each)
    rig.idle(cleared_rows=(request.state_row,))
    tables = rig.worker.tables
    for table in (tables.host[None], tables.resident, tables.hot, tables.indexer):
        assert not table[:, request.state_row].any()
        assert table[:, other.state_row].any()
    for state in rig.worker.hot_states:
        assert (state.slot_rows[request.state_row] == -1).all() and (state.slot_rows[other.state_row] >= 0).any()
        assert state.clock[request.state_row] == 0 and state.clock[other.state_row] == 1
    assert tables.rows_with_hot_region == {other.state_row}
    rig.worker.begin_step(rig.plan(residency=(rig.delta(request, 2),)))
    with pytest.raises(UnreadableError, match="page 1 has no resident block"):
        rig.worker.kv(request.state_row, 31, 2, prefill=True)
    with pytest.raises(UnreadableError, match="page 0 is neither resident nor on the host"):
        rig.worker.kv(request.state_row, 32, 2, prefill=True)


def test_a_cleared_row_may_get_its_new_owner_in_the_same_step(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    heir = Request(77, request.state_row)
    rig.compute(heir, 0, 20, cleared_rows=(request.state_row,))
    rig.worker.begin_step(rig.plan(residency=rig.grow(heir, 21)))
    kv = rig.worker.kv(heir.state_row, 20, 1, prefill=True)
    rig.fill(kv, heir)
    rig.check_context(kv, heir)
    assert not rig.worker.tables.host[heir.state_row, 2:].any()


def test_a_hot_region_starts_and_ends_empty(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    for _ in range(2):
        rig.idle(hot=rig.grant_hot(request), residency=rig.drop(request, 0))
        for number, group in enumerate(request.hot):
            assert rig.worker.tables.hot[number, request.state_row].tolist() == list(group)
        assert all((state.slot_rows[request.state_row] == -1).all() for state in rig.worker.hot_states)
        read_first_rows(rig, request)
        assert all((state.slot_rows[request.state_row] >= 0).any() for state in rig.worker.hot_states)
    delta, transfer = rig.restore(request, 0)
    rig.idle(hot=(HotDelta(request.state_row, ()),), residency=(delta,), transfers=(transfer,))
    assert not rig.worker.tables.hot[:, request.state_row].any()
    assert all((state.slot_rows[request.state_row] == -1).all() for state in rig.worker.hot_states)


def test_a_recycled_host_block_is_not_read_from_a_slot_that_cached_its_old_bytes(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    rig.idle(hot=rig.grant_hot(request), residency=rig.drop(request, 0))
    read_first_rows(rig, request)
    recycled = request.pages[0].host
    donor = rig.request()
    rig.compute(donor, 0, 16)
    for layer in range(LAYERS):  # another tenant's bytes, as if it had been mirrored there
        rig.host_page(request.pages[0], layer)[:] = rig.expected(donor, layer, range(16))
        rig.truth.update({(request.number, p, layer): rig.truth[donor.number, p, layer] for p in range(3)})
    rig.idle(recycled=(recycled,))
    read_first_rows(rig, request)


def test_of_two_words_about_a_page_the_last_counts(rig: Rig) -> None:
    request = rig.request()
    (delta,) = rig.grow(request, 16)
    other = delta._replace(gpu_blocks=rig.gpu_blocks(rig.layout.num_groups))
    rig.idle(residency=(other, delta))
    assert rig.worker.tables.resident[:, request.state_row, 0].tolist() == list(delta.gpu_blocks)
    regions = [rig.grant_hot(request)[0] for _ in range(2)]
    rig.idle(hot=tuple(regions))
    assert rig.worker.tables.hot[0, request.state_row].tolist() == list(regions[1].blocks[0])


# Reports and time.


def test_enqueued_is_told_at_once_and_completed_only_by_the_event() -> None:
    held = HeldStream()
    rig = Rig(streams=Streams(held, held))
    request = rig.request()
    assert rig.compute(request, 0, 32) == []
    first, second = rig.transfer(SPILL, request.pages[0], False), rig.transfer(SPILL, request.pages[1], False)
    assert only(rig.idle(transfers=(first,))).enqueued == {first.id}
    assert only(rig.idle(transfers=(second,))).enqueued == {second.id}
    assert rig.worker.in_flight == (1, 2, 3)
    assert rig.worker.poll() == []
    held.marks[2].is_done = True  # late, and in another order
    assert only(rig.worker.poll()).completed == {second.id}
    held.marks[0].is_done = True
    assert only(rig.worker.poll()).mirrored == {1: (32,)}
    assert rig.worker.in_flight == (2,)
    held.marks[1].is_done = True
    assert only(rig.worker.poll()).completed == {first.id}
    assert rig.worker.poll() == [] and rig.worker.in_flight == ()
    rig.close()


def test_the_proof_is_read_when_its_step_has_ended() -> None:
    held = HeldStream()
    rig = Rig(streams=Streams(held, held))
    request = rig.request()
    for step in range(3):
        rig.compute(request, 5 * step, 5 * step + 5)
    for mark in held.marks:
        mark.is_done = True
    proofs = [report.mirrored for report in rig.worker.poll()]
    assert proofs == [{1: (5,)}, {2: (5,)}, {3: (5,)}]
    assert rig.worker.counters()["mirror_bytes"] == 15 * LAYERS * rig.layout.spec.row_bytes
    rig.close()


def test_a_step_that_is_being_computed_is_in_flight(rig: Rig) -> None:
    rig.worker.begin_step(rig.plan())
    assert rig.worker.in_flight == (1,)
    rig.worker.end_step()
    assert len(rig.worker.poll()) == 1 and rig.worker.in_flight == ()


def test_reports_carry_rank_and_epoch() -> None:
    rig = Rig(rank=3, epoch=8)
    request = rig.request()
    reports = rig.compute(request, 0, 16)
    reports += rig.idle(transfers=(rig.transfer(SPILL, request.pages[0]),))
    assert len(reports) == 3
    assert {(report.rank, report.epoch) for report in reports} == {(3, 8)}
    rig.close()


@pytest.mark.parametrize("epoch", [4, 6])
def test_a_plan_of_another_epoch_is_refused(epoch: int) -> None:
    rig = Rig(epoch=5)
    with pytest.raises(EpochError, match=f"a plan of epoch {epoch} for a worker of epoch 5"):
        rig.worker.begin_step(StepPlan(sequence=1, epoch=epoch))
    rig.idle()
    rig.close()


def test_calls_in_another_order_are_named(rig: Rig) -> None:
    with pytest.raises(WorkerOrderError, match="end_step outside a step"):
        rig.worker.end_step()
    with pytest.raises(WorkerOrderError, match="kv outside a step"):
        rig.worker.kv(40, 0, 1, prefill=True)
    plan = rig.plan()
    rig.worker.begin_step(plan)
    with pytest.raises(WorkerOrderError, match=r"begin_step\(2\) while step 1 is not ended"):
        rig.worker.begin_step(rig.plan())
    rig.worker.end_step()
    with pytest.raises(WorkerOrderError, match="step 1 comes after step 1"):
        rig.worker.begin_step(plan)


def test_the_same_rows_are_not_computed_twice_in_a_step(rig: Rig) -> None:
    request = rig.request()
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, 32)))
    rig.worker.kv(request.state_row, 0, 10, prefill=True)
    rig.worker.kv(request.state_row, 10, 10, prefill=True)
    with pytest.raises(WorkerOrderError, match=r"rows 19\.\.21 are computed twice"):
        rig.worker.kv(request.state_row, 19, 2, prefill=True)


# Plans that name what the worker does not have.

ROW, PAGES, HOT_BLOCKS = 40, 50, 2
GPU, INDEXER, HOST = (GpuBlock(7),) * 3, (GpuBlock(8),), HostBlock(1001)
REGION = ((GpuBlock(9),) * HOT_BLOCKS,) * 3


def residency(row: int = ROW, page: int = 0, host: int = HOST, gpu=GPU, indexer=INDEXER) -> StepPlan:
    return StepPlan(1, 0, residency=(ResidencyDelta(row, page, HostBlock(host), gpu, indexer),))


def transfer(host: int = HOST, gpu=GPU) -> StepPlan:
    return StepPlan(1, 0, transfers=(PageTransfer(TransferId(1), RESTORE, HostBlock(host), gpu, True),))


def envelope(*envelopes: tuple[int, int, int]) -> StepPlan:
    return StepPlan(1, 0, envelopes=tuple(MirrorEnvelope(*each) for each in envelopes))


def copy(source: int, destination: int) -> StepPlan:
    return StepPlan(1, 0, copies=(BlockCopy(TransferId(1), HostBlock(source), HostBlock(destination)),))


BAD_PLANS = {
    "cleared_rows": [StepPlan(1, 0, cleared_rows=(48,)), StepPlan(1, 0, cleared_rows=(-1,))],
    "recycled": [StepPlan(1, 0, recycled=(HostBlock(0),)), StepPlan(1, 0, recycled=(HostBlock(1060),))],
    "hot.state_row": [StepPlan(1, 0, hot=(HotDelta(48, REGION),))],
    "hot.blocks": [
        StepPlan(1, 0, hot=(HotDelta(ROW, REGION[:2]),)),
        StepPlan(1, 0, hot=(HotDelta(ROW, (REGION[0][:1],) * 3),)),
        StepPlan(1, 0, hot=(HotDelta(ROW, (((GpuBlock(400),) * HOT_BLOCKS),) * 3),)),
        StepPlan(1, 0, hot=(HotDelta(ROW, (((GpuBlock(0),) * HOT_BLOCKS),) * 3),)),
    ],
    "residency.state_row": [residency(row=48), residency(row=-1)],
    "residency.page": [residency(page=PAGES), residency(page=-1)],
    "residency.host_block": [residency(host=1060), residency(host=-1)],
    "residency.gpu_blocks": [residency(gpu=GPU[:2]), residency(gpu=(*GPU[:2], GpuBlock(0)))],
    "residency.indexer_blocks": [residency(indexer=()), residency(indexer=(GpuBlock(400),))],
    "copies": [copy(0, 1001), copy(1001, 1060)],
    "transfers.host_block": [transfer(host=0), transfer(host=1060)],
    "transfers.gpu_blocks": [transfer(gpu=()), transfer(gpu=(*GPU[:2], GpuBlock(400)))],
    "envelopes.state_row": [envelope((48, 0, 1))],
    "envelopes: rows": [envelope((ROW, -1, 1)), envelope((ROW, 2, 1)), envelope((ROW, 0, PAGES * 16 + 1))],
    "envelopes: two of state row 40 overlap": [envelope((ROW, 0, 5), (41, 0, 5), (ROW, 4, 6))],
}


@pytest.mark.parametrize(("named", "plan"), [(named, plan) for named, plans in BAD_PLANS.items() for plan in plans])
def test_a_plan_out_of_bounds_is_refused_by_name_and_changes_nothing(rig: Rig, named: str, plan: StepPlan) -> None:
    assert (rig.layout.num_groups, rig.layout.hot_blocks) == (3, HOT_BLOCKS)
    with pytest.raises(PlanError, match=named):
        rig.worker.begin_step(plan)
    tables = rig.worker.tables
    assert not any(table.any() for table in (tables.host, tables.resident, tables.hot, tables.indexer))
    rig.idle()  # the next plan is welcome


@pytest.mark.parametrize(
    "plan", [residency(), transfer(), envelope((ROW, 0, 1)), copy(1001, 1002), StepPlan(1, 0, recycled=(HOST,))]
)
def test_without_a_host_pool_no_plan_may_speak_of_it(plan: StepPlan) -> None:
    with pytest.raises(PlanError):
        Rig(with_host=False).worker.begin_step(plan)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"state_rows": 0}, "state_rows"), ({"max_pages": 0}, "max_pages"), ({"staging_pages": -1}, "staging_pages")],
)
def test_a_size_below_its_least_is_refused_by_name(rig: Rig, changes: dict[str, int], named: str) -> None:
    sizes = {"state_rows": 1, "max_pages": 1, "staging_pages": 0} | changes
    with pytest.raises(ValueError, match=named):
        Worker(rig.layout, rig.kv_pool, rig.host_pool, **sizes)


def test_pools_of_another_layout_or_dtype_are_refused_by_name(rig: Rig) -> None:
    other = Rig(block_size=64)
    with pytest.raises(ValueError, match="kv_pool"):
        Worker(rig.layout, other.kv_pool, None, state_rows=1, max_pages=1)
    with pytest.raises(ValueError, match="host_pool"):
        Worker(rig.layout, rig.kv_pool, other.host_pool, state_rows=1, max_pages=1)
    with HostPool(rig.layout, torch.bfloat16) as narrow, pytest.raises(ValueError, match="host_pool"):
        Worker(rig.layout, rig.kv_pool, narrow, state_rows=1, max_pages=1)
    other.close()


def test_device_bytes_are_all_that_is_held(rig: Rig) -> None:
    small = Worker(rig.layout, KVPool(rig.layout, torch.float32), rig.host_pool, state_rows=2, max_pages=5)
    tables = 4 * 2 * (5 + 3 * 5 + 3 * rig.layout.hot_blocks + 5)
    hot_states = 4 * (2 * 2 * rig.layout.hot_slots * 4 + 2 * 4 + 5 * 8)
    counters = small.counters()
    assert counters["device_bytes"] == rig.layout.device_bytes + tables + hot_states
    assert counters["host_bytes"] == rig.layout.host_bytes
    staging = Worker(rig.layout, rig.kv_pool, rig.host_pool, state_rows=2, max_pages=5, staging_pages=7)
    assert staging.counters()["device_bytes"] - counters["device_bytes"] == 3 * 8 * rig.layout.page_bytes


# Two ranks, one host pool.


def test_one_rank_of_a_shared_host_pool_writes_and_both_read(tmp_path: Path) -> None:
    writer = Rig(rank=0, shared=Shared(tmp_path / "pool", creator=True))
    reader = Rig(rank=1, shared=Shared(tmp_path / "pool", creator=False))
    requests = [(rig, rig.request()) for rig in (writer, reader)]
    reports = {rig: rig.compute(request, 0, 40) for rig, request in requests}
    assert only(reports[writer]).mirrored == {1: (40,)}
    assert only(reports[reader]).mirrored == {}
    copies = (BlockCopy(TransferId(9), requests[0][1].pages[0].host, HostBlock(1055)),)
    for rig, request in requests:
        spill = rig.transfer(SPILL, request.pages[0])
        reports[rig] = rig.idle(transfers=(spill,), copies=copies)
    assert [report.enqueued for report in reports[writer]] == [{500}, set()]
    assert only(reports[reader]).completed == set()  # a spill is the writer's
    assert only(reports[reader]).copied == reports[writer][1].copied == {9}
    for rig, request in requests:
        rig.idle(hot=rig.grant_hot(request), residency=rig.drop(request, 0))
        read_first_rows(rig, request)
    reader.close()
    writer.close()


def test_index_keys_are_never_mirrored_and_survive_the_loss_of_a_page(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    rig.idle(residency=rig.drop(request, 0), hot=rig.grant_hot(request))
    rig.worker.begin_step(rig.plan())
    kv = rig.worker.kv(request.state_row, 39, 1, prefill=False)
    want = rig.expected(request, INDEX_LAYER, range(40))
    assert torch.equal(kv.index_rows(0), want)
