"""The same contents on a GPU: pools in its memory and pinned beside it, proof by its events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from worker.harness import LAYERS, Rig
from worker.test_sparse_kv import PLACEMENTS, decode, settled

from hisparse_ops.control.types import RankReport, TransferKind
from hisparse_ops.memory import host_pool
from hisparse_ops.memory.pinning import CudaRegistrar, PinningError

pytestmark = pytest.mark.gpu


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(dtype=request.param, device="cuda")
    yield rig
    rig.close()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_read_gives_the_rows(rig: Rig, placement: str) -> None:
    request = settled(rig, placement)
    for _ in range(3):
        kv = decode(rig, request)
        rig.check_selected(kv, request, [[kv.start, 0, 17, 33, -1, 5]])
        rig.worker.end_step()
    start = request.tokens
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, start + 9)))
    kv = rig.worker.kv(request.state_row, start, 9, prefill=True)
    rig.fill(kv, request)
    rig.check_context(kv, request)
    assert rig.worker.counters()["fault"] == 0


def test_proof_spill_and_restore_come_with_their_events(rig: Rig) -> None:
    request = rig.request()
    reports = rig.compute(request, 0, 40)
    spill = rig.transfer(TransferKind.SPILL, request.pages[0])
    reports += rig.idle(transfers=(spill,))
    delta, restore = rig.restore(request, 0)
    reports += rig.idle(residency=(delta,), transfers=(restore,))
    torch.cuda.synchronize()
    reports += rig.worker.poll()
    assert rig.worker.in_flight == ()
    assert joined(reports, "enqueued") == joined(reports, "completed") == {spill.id, restore.id}
    assert [report.mirrored for report in reports if report.mirrored] == [{1: (40,)}]
    for layer in range(LAYERS):
        want = rig.expected(request, layer, range(16))
        assert torch.equal(rig.host_page(request.pages[0], layer), want.cpu())
        assert torch.equal(rig.gpu_page(request.pages[0], layer), want)


# The copy stream. Without its wait each of these would read too early or write too soon: the stream that is
# waited for is held up first.

STALL = 1_000_000_000  # clock cycles: about half a second


def hold_up_the_copies(rig: Rig) -> None:
    with rig.worker._streams.copy.current():
        torch.cuda._sleep(STALL)


def make_pinned_buffers() -> None:
    """To make one may wait for every stream: so torch keeps enough of them, from now on."""
    made = [torch.empty(1 << size, dtype=torch.uint8, pin_memory=True) for size in range(2, 14) for _ in range(32)]
    del made


def test_a_spill_waits_for_rows_that_are_still_being_written(rig: Rig) -> None:
    request = rig.request()
    rows = [rig.rows(request, layer, range(16)) for layer in range(LAYERS)]
    make_pinned_buffers()
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, 16)))
    kv = rig.worker.kv(request.state_row, 0, 16, prefill=True)
    torch.cuda._sleep(STALL)
    for layer in range(LAYERS):
        kv.write(layer, rows[layer])
    rig.worker.end_step()
    rig.idle(transfers=(rig.transfer(TransferKind.SPILL, request.pages[0]),))
    torch.cuda.synchronize()
    for layer in range(LAYERS):
        assert torch.equal(rig.host_page(request.pages[0], layer), rows[layer].cpu())


def test_a_restore_waits_for_the_step_before_that_still_reads_its_blocks(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    rig.drop(request, 0)
    make_pinned_buffers()
    torch.cuda.synchronize()
    torch.cuda._sleep(STALL)
    read = [rig.gpu_page(request.pages[1], layer).clone() for layer in range(LAYERS)]
    request.pages[0].gpu, request.pages[1].gpu = request.pages[1].gpu, ()
    restore = rig.transfer(TransferKind.RESTORE, request.pages[0])
    rig.idle(residency=(rig.delta(request, 0), rig.delta(request, 1)), transfers=(restore,))
    torch.cuda.synchronize()
    for layer in range(LAYERS):
        assert torch.equal(read[layer], rig.expected(request, layer, range(16, 32)))
        assert torch.equal(rig.gpu_page(request.pages[0], layer), rig.expected(request, layer, range(16)))


def test_the_model_waits_for_restores(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    rig.idle(residency=rig.drop(request, 0))
    delta, restore = rig.restore(request, 0)
    hold_up_the_copies(rig)
    rig.worker.begin_step(rig.plan(residency=(delta, *rig.grow(request, 41)), transfers=(restore,)))
    kv = rig.worker.kv(request.state_row, 40, 1, prefill=False)
    rig.fill(kv, request)
    rig.check_selected(kv, request, [[40, 0, 15, 33, -1, 5]])


def test_only_new_owners_of_its_blocks_wait_for_a_spill(rig: Rig) -> None:
    first, second, third, before = (rig.request() for _ in range(4))
    make_pinned_buffers()
    rig.compute(before, 0, 16)
    rig.compute(first, 0, 16)
    rig.idle(transfers=(rig.transfer(TransferKind.SPILL, before.pages[0]),))
    spill = rig.transfer(TransferKind.SPILL, first.pages[0])
    want = [rig.expected(first, layer, range(16)).cpu() for layer in range(LAYERS)]
    torch.cuda.synchronize()
    rig.worker.poll()
    for layer in range(LAYERS):
        rig.host_page(first.pages[0], layer).zero_()
    hold_up_the_copies(rig)
    assert joined(rig.idle(transfers=(spill,)), "enqueued") == {spill.id}
    reports = rig.compute(second, 0, 16)
    torch.cuda.current_stream().synchronize()
    reports += rig.worker.poll()
    assert joined(reports, "completed") == set(), "compute waited for a spill that does not concern it"
    rig.free_gpu += first.pages[0].gpu
    reports += rig.compute(third, 0, 16, cleared_rows=(first.state_row,))
    torch.cuda.current_stream().synchronize()
    reports += rig.worker.poll()
    assert joined(reports, "completed") == {spill.id}
    for layer in range(LAYERS):
        assert torch.equal(rig.host_page(first.pages[0], layer), want[layer])
        assert torch.equal(rig.gpu_page(third.pages[0], layer), rig.expected(third, layer, range(16)))


def joined(reports: list[RankReport], name: str) -> set[int]:
    return {each for report in reports for each in getattr(report, name)}


@pytest.mark.parametrize("registration_limit", [host_pool.REGISTRATION_LIMIT, 2**20])
def test_the_device_view_is_the_host_memory(monkeypatch: pytest.MonkeyPatch, registration_limit: int) -> None:
    """Also where one tensor lies in several registrations."""
    monkeypatch.setattr(host_pool, "REGISTRATION_LIMIT", registration_limit)
    rig = Rig(block_size=64, device="cuda")
    assert rig.host_pool is not None and rig.host_pool.pinned
    device = rig.host_pool.device_view()
    for layer in range(LAYERS):
        rows = device.layer_rows(layer)
        assert rows.is_cuda and rows.stride() == rig.host_pool.layer_rows(layer).stride()
        rows[:] = layer + 1
    torch.cuda.synchronize()
    assert all((rig.host_pool.layer_rows(layer) == layer + 1).all() for layer in range(LAYERS))
    rig.close()


def test_a_refused_registration_has_code_and_size_and_leaves_no_error_behind(rig: Rig) -> None:
    assert rig.host_pool is not None
    tensor = rig.host_pool.unit_tensor(0)
    with pytest.raises(PinningError, match=r"cudaHostRegister of 4096 bytes failed with code \d+"):
        CudaRegistrar().register(tensor.data_ptr(), 4096)
    assert torch.ones(3, device="cuda").sum() == 3
