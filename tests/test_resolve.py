"""What `resolve` promises of its outputs and of values that make no sense, one promise a test."""

from __future__ import annotations

import pytest
import torch
from one_request import BLOCK, STRIDE, ask, counted, host_row, hot_row, loads, one_request, same_state
from torch import Tensor
from worlds import FIRST_HOT_BLOCK, ints, random_world

import hisparse_ops
from hisparse_ops import Batch, HotState, Tables, reference
from hisparse_ops.hot_state import COUNTER_NAMES

POISON = 2**31 - 1


def test_every_output_is_written(device: str, poisoned: None) -> None:
    """One row shorter than the others, one longer than the hot buffer, two padding."""
    world = one_request(pages=8, slots=8, device=device)
    topk = ints([[1, 2, 3, *[-1] * 9], range(10, 22), range(12), range(12)], device)
    plan = hisparse_ops.resolve(topk, Batch(ints([0, 2], device), ints([0], device)), world.tables, world.hot)
    assert all(POISON not in output for output in plan)
    assert plan.device_rows[0, 3:].eq(-1).all()
    assert plan.device_rows[2:].eq(-1).all()
    assert plan.valid_counts.tolist() == [3, 5, 0, 0]
    assert plan.miss_counts.tolist() == [8]
    assert plan.miss_host_rows[1:].eq(-1).all() and plan.miss_device_rows[1:].eq(-1).all()
    assert counted(world) == {"miss": 8, "padding": 9, "fault": 7}


def test_buffers_for_a_larger_batch_are_reused(device: str) -> None:
    """Positions and starts of the step before lie in the unused places: nothing changes for the used ones."""
    for used in (8, 3, 5):
        fresh = random_world(seed=used, device=device, query_rows=(1,) * used, spare_states=9 - used)
        static = random_world(seed=used, device=device, query_rows=(1,) * used, spare_states=9 - used)
        stale = random_world(seed=99, device=device, query_rows=(1,) * 8, spare_states=1)
        topk = torch.cat((static.topk, stale.topk[used:]))
        # The step before had two query rows a request, so that its starts run past this step's.
        starts = torch.cat((static.batch.query_start, ints([6, 8, 8, 8, 8, 8, 8, 8], device)[: 8 - used]))
        states = torch.cat((static.batch.state_rows, ints([-1] * (8 - used), device)))
        plan = hisparse_ops.resolve(topk, Batch(starts, states), static.tables, static.hot)
        expected = hisparse_ops.resolve(fresh.topk, fresh.batch, fresh.tables, fresh.hot)
        for found, right in zip(plan[:5], expected[:5], strict=True):
            assert torch.equal(found[:used], right)
            assert found[used:].le(0).all()
        assert same_state(static.hot, fresh.hot)


def test_state_rows_outside_the_batch_are_untouched(device: str) -> None:
    world = random_world(seed=5, device=device, query_rows=(2, -1, 3), spare_states=4)
    before = [tensor.clone() for tensor in (world.hot.slot_rows, world.hot.slot_stamps, world.hot.clock)]
    hisparse_ops.resolve(world.topk, world.batch, world.tables, world.hot)
    idle = [s for s in range(world.hot.state_rows) if s not in world.batch.state_rows.tolist()]
    assert len(idle) == 5
    for tensor, old in zip((world.hot.slot_rows, world.hot.slot_stamps, world.hot.clock), before, strict=True):
        assert torch.equal(tensor[idle], old[idle])


def test_pages_that_the_request_never_had(device: str) -> None:
    world = one_request(pages=4, slots=8, device=device)
    world.tables.host[0, 2:] = 0
    plan = ask(world, [[7, 8, 15]])
    assert plan.device_rows.tolist() == [[hot_row(0), -1, -1]]
    assert counted(world) == {"miss": 1, "fault": 2}


@pytest.mark.parametrize("tables", ["host", "resident"])
def test_positions_outside_the_table(tables: str, device: str) -> None:
    """Canaries behind the last column and the last row of a table are never read as blocks."""
    canary = 77
    rows = torch.full((3, 6), canary, dtype=torch.int32, device=device)
    world = one_request(pages=4, slots=8, device=device)
    world.hot = HotState.allocate(2, 8, device)
    table = rows[:2, :4]
    table.fill_(0)
    names = {"host": table if tables == "host" else torch.zeros_like(table), "resident": table}
    hot = ints([[FIRST_HOT_BLOCK, FIRST_HOT_BLOCK + 1]] * 2, device)
    topk = ints([[4 * BLOCK, 4 * BLOCK + 1, 5 * BLOCK, 2**31 - 1, -2, -(2**31)]], device)
    plan = hisparse_ops.resolve(
        topk,
        Batch(ints([0, 1], device), ints([1], device)),
        Tables(names["host"], names["resident"], hot, BLOCK, STRIDE),
        world.hot,
    )
    assert plan.device_rows.eq(-1).all()
    assert counted(world) == {"padding": 6}


@pytest.mark.parametrize("resident", [False, True])
def test_a_position_asked_twice_is_loaded_once(resident: bool, device: str) -> None:
    world = one_request(pages=4, slots=8, device=device)
    world.tables.resident[0, 2] = 5 if resident else 0
    plan = ask(world, [[4, 4, 9, 4]])
    nine = 5 * STRIDE + 1 if resident else hot_row(1)
    assert plan.device_rows.tolist() == [[hot_row(0), hot_row(0), nine, hot_row(0)]]
    assert loads(plan) == [(host_row(4), hot_row(0)), *([] if resident else [(host_row(9), hot_row(1))])]
    assert counted(world) == ({"resident": 1, "hit": 2, "miss": 1} if resident else {"hit": 2, "miss": 2})


def test_masked_rows_are_never_read(device: str) -> None:
    """NaN in device row 0 and in the null block; valid_counts and -1 keep attention away from it."""
    world = one_request(pages=4, slots=8, device=device)
    host, rows = torch.ones(2000 * BLOCK, 2, device=device), torch.full((400 * STRIDE, 2), float("nan"), device=device)
    plan = ask(world, [[3, -1, 99, 6]])
    hisparse_ops.gather_compact([host], [rows], plan)
    read = rows[plan.device_rows[plan.device_rows >= 0]]
    assert read.shape[0] == plan.valid_counts.sum() == 2
    assert read.isfinite().all()


# Addressing, and values that make no sense


@pytest.mark.parametrize("table", ["host", "resident", "hot"])
def test_row_numbers_beyond_int32_are_faults(table: str, device: str) -> None:
    world = one_request(pages=2, slots=4, device=device)
    getattr(world.tables, table)[0, 0] = 2**31 - 1
    plan = ask(world, [[1]])
    assert plan.device_rows.tolist() == [[-1]]
    assert counted(world) == {"fault": 1}


def test_the_last_row_number_of_int32(device: str) -> None:
    world = one_request(pages=2, slots=4, device=device)
    world.tables.resident[0, 0] = 2**29 - 1
    world.tables = world.tables._replace(block_stride=BLOCK)
    assert ask(world, [[3]]).device_rows.tolist() == [[2**31 - 1]]


def test_negative_table_entries_mean_none(device: str) -> None:
    world = one_request(pages=2, slots=4, device=device)
    world.tables.resident[0] = -7
    world.tables.host[0, 1] = -7
    world.tables.hot[0, 0] = -7
    ask(world, [[0, 4]])
    assert counted(world) == {"fault": 2}


def test_a_state_row_beyond_the_tensors(device: str) -> None:
    world = random_world(seed=3, device=device, query_rows=(1, 1))
    expected = random_world(seed=3, device=device, query_rows=(1, 1))
    states = ints([int(world.batch.state_rows[0]), 4], device)
    plan = hisparse_ops.resolve(world.topk, world.batch._replace(state_rows=states), world.tables, world.hot)
    states = ints([int(world.batch.state_rows[0]), -1], device)
    right = hisparse_ops.resolve(
        expected.topk, expected.batch._replace(state_rows=states), expected.tables, expected.hot
    )
    assert all(torch.equal(a, b) for a, b in zip(plan, right, strict=True))
    assert plan.device_rows[1].eq(-1).all()
    counts, others = world.hot.counts(), expected.hot.counts()
    world.hot.counters.zero_()
    expected.hot.counters.zero_()
    assert same_state(world.hot, expected.hot)
    # Its references are counted all the same: as if it had no page.
    padding = sum(not 0 <= p < world.tables.host.shape[1] * BLOCK for p in world.topk[1].tolist())
    others["padding"] += padding
    others["fault"] += world.topk.shape[1] - padding
    assert counts == others


def test_a_state_row_named_twice(device: str) -> None:
    """The first has it; the second gets nothing, and nothing is loaded twice."""
    world = random_world(seed=3, device=device, query_rows=(1, 1))
    once = random_world(seed=3, device=device, query_rows=(1, 1))
    state = int(world.batch.state_rows[0])
    plan = hisparse_ops.resolve(
        world.topk, world.batch._replace(state_rows=ints([state, state], device)), world.tables, world.hot
    )
    right = hisparse_ops.resolve(
        once.topk, once.batch._replace(state_rows=ints([state, -1], device)), once.tables, once.hot
    )
    assert torch.equal(plan.device_rows, right.device_rows)
    assert torch.equal(world.hot.slot_rows, once.hot.slot_rows)
    assert torch.equal(world.hot.clock, once.hot.clock)


@pytest.mark.parametrize("starts", [[0, 3, 1, 4], [2, 0, 1, 4], [-5, 2, 9, 4], [4, 4, 0, 0], [9, -9, 9, -9]])
def test_starts_that_run_backwards(starts: list[int], device: str) -> None:
    """Every query row is read from the blocks of one request, and no other request changes."""
    world = random_world(seed=8, device=device, query_rows=(1, 1, 2))
    states = world.batch.state_rows.tolist()
    rows, clock = world.hot.slot_rows.clone(), world.hot.clock.clone()
    batch = world.batch._replace(query_start=ints(starts, device))
    plan = hisparse_ops.resolve(world.topk, batch, world.tables, world.hot)

    leases = [{*world.tables.resident[s].tolist(), *world.tables.hot[s].tolist()} for s in states]
    for row in plan.device_rows.tolist():
        blocks = {r // world.tables.block_stride for r in row if r >= 0}
        assert any(blocks <= lease for lease in leases)
    idle = [s for s in range(world.hot.state_rows) if s not in states]
    assert torch.equal(world.hot.slot_rows[idle], rows[idle])
    clock[states] += 1
    assert torch.equal(world.hot.clock, clock)


def test_the_counters_add_up_to_the_references(device: str) -> None:
    world = random_world(seed=11, device=device, query_rows=(3, -2, 1, 2), padding_rows=4, columns=9)
    for _ in range(3):
        before = sum(world.hot.counts().values())
        hisparse_ops.resolve(world.topk, world.batch, world.tables, world.hot)
        assert sum(world.hot.counts().values()) - before == (3 + 1 + 2) * 9
    assert list(world.hot.counts()) == list(COUNTER_NAMES)


def test_many_large_requests(device: str) -> None:
    """Large enough for several threads, and for every thread block to have more than one round."""
    sizes = {"query_rows": (1, 2, 1, 1, 3, 1), "columns": 600, "slots": 1100, "pages": 800, "resident": 0.2}
    world, right = (random_world(seed=12, device=where, **sizes) for where in (device, "cpu"))
    for _ in range(2):
        plan = torch.ops.hisparse.resolve(*world.arguments())
        expected = reference.resolve(*right.arguments())
        assert all(torch.equal(a.cpu(), b) for a, b in zip(plan, expected, strict=True))
        assert same_state(world.hot.cpu(), right.hot)
        world.hot.to(device)


def test_strided_tables_are_honoured(device: str) -> None:
    """Columns of a wider tensor, with canaries between."""
    world, strided = random_world(seed=7, device=device), random_world(seed=7, device=device)

    def spread(tensor: Tensor) -> Tensor:
        wide = torch.full((tensor.shape[0], tensor.shape[1] + 3), 77, dtype=torch.int32, device=device)
        wide[:, : tensor.shape[1]] = tensor
        return wide[:, : tensor.shape[1]]

    tables = strided.tables._replace(
        **{name: spread(getattr(strided.tables, name)) for name in ("host", "resident", "hot")}
    )
    plan = hisparse_ops.resolve(spread(strided.topk), strided.batch, tables, strided.hot)
    right = hisparse_ops.resolve(world.topk, world.batch, world.tables, world.hot)
    assert all(torch.equal(a, b) for a, b in zip(plan, right, strict=True))
    assert same_state(world.hot, strided.hot)
