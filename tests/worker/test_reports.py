"""What a worker says, and when: at once what was issued, by its event what has ended; and what it costs."""

from __future__ import annotations

import torch
from worker.harness import LAYERS, HeldStream, Rig, only

from hisparse_ops.control.types import TransferKind
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.worker import Streams, Worker

SPILL = TransferKind.SPILL


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


def test_device_bytes_are_all_that_is_held(rig: Rig) -> None:
    small = Worker(rig.layout, KVPool(rig.layout, torch.float32), rig.host_pool, state_rows=2, max_pages=5)
    tables = 4 * 2 * (5 + 3 * 5 + 3 * rig.layout.hot_blocks + 5)
    hot_states = 4 * (2 * 2 * rig.layout.hot_slots * 4 + 2 * 4 + 5 * 8)
    counters = small.counters()
    assert counters["device_bytes"] == rig.layout.device_bytes + tables + hot_states
    assert counters["host_bytes"] == rig.layout.host_bytes
    staging = Worker(rig.layout, rig.kv_pool, rig.host_pool, state_rows=2, max_pages=5, staging_pages=7)
    assert staging.counters()["device_bytes"] - counters["device_bytes"] == 3 * 8 * rig.layout.page_bytes
