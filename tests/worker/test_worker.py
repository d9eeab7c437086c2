"""What the copies of a plan do: rows that are mirrored, whole pages, copies that fail, two ranks on one pool."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from worker.harness import LAYERS, Rig, broken, only

from hisparse_ops import ops
from hisparse_ops.control.types import (
    BlockCopy,
    GpuBlock,
    HostBlock,
    MirrorEnvelope,
    PageTransfer,
    TransferId,
    TransferKind,
)
from hisparse_ops.memory.host_pool import Shared
from hisparse_ops.worker import UnreadableError

SPILL = TransferKind.SPILL


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


def test_a_mirrored_row_is_no_longer_cached_in_a_hot_slot(rig: Rig) -> None:
    """A host row is loaded into a hot slot; its page comes back, is rewritten and mirrored, and is lost again."""
    request = rig.cached_in_hot_slots()
    delta, transfer = rig.restore(request, 0)
    request.version = 1
    rig.compute(request, 0, 2, residency=(delta,), transfers=(transfer,))
    rig.idle(residency=rig.drop(request, 0))
    rig.read_first_rows(request)


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
    request = rig.cached_in_hot_slots()
    delta, transfer = rig.restore(request, 0)
    request.version = 1
    rig.worker.begin_step(rig.plan(residency=(delta,), transfers=(transfer,)))
    rig.fill(rig.worker.kv(request.state_row, 0, 2, prefill=True), request)
    rig.worker.end_step()
    rig.idle(transfers=(rig.transfer(SPILL, request.pages[0]),))
    rig.idle(residency=rig.drop(request, 0))
    rig.read_first_rows(request)


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
        rig.read_first_rows(request)
    reader.close()
    writer.close()
