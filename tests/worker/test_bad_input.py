"""Calls out of order, plans that name what the worker does not have, sizes and pools that do not fit."""

from __future__ import annotations

import pytest
import torch
from worker.harness import Rig

from hisparse_ops.control.types import (
    BlockCopy,
    GpuBlock,
    HostBlock,
    HotDelta,
    MirrorEnvelope,
    PageTransfer,
    ResidencyDelta,
    StepPlan,
    TransferId,
    TransferKind,
)
from hisparse_ops.memory.host_pool import HostPool
from hisparse_ops.worker import EpochError, PlanError, Worker, WorkerOrderError


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
    return StepPlan(1, 0, transfers=(PageTransfer(TransferId(1), TransferKind.RESTORE, HostBlock(host), gpu, True),))


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


def test_tables_that_do_not_fit_are_refused_by_name(rig: Rig) -> None:
    with pytest.raises(MemoryError, match=r"on cpu: state_rows=2, max_pages=1152921504606846976, .*staging_pages=3"):
        Worker(rig.layout, rig.kv_pool, rig.host_pool, state_rows=2, max_pages=2**60, staging_pages=3)


def test_pools_of_another_layout_or_dtype_are_refused_by_name(rig: Rig) -> None:
    other = Rig(block_size=64)
    with pytest.raises(ValueError, match="kv_pool"):
        Worker(rig.layout, other.kv_pool, None, state_rows=1, max_pages=1)
    with pytest.raises(ValueError, match="host_pool"):
        Worker(rig.layout, rig.kv_pool, other.host_pool, state_rows=1, max_pages=1)
    with HostPool(rig.layout, torch.bfloat16) as narrow, pytest.raises(ValueError, match="host_pool"):
        Worker(rig.layout, rig.kv_pool, narrow, state_rows=1, max_pages=1)
    other.close()
