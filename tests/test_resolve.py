"""What `resolve` promises, one promise a test. See `hisparse_ops/ops.py`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor
from worlds import FIRST_HOST_BLOCK, FIRST_HOT_BLOCK, World, ints, random_world

import hisparse_ops
from hisparse_ops import Batch, HotState, MissPlan, Tables, reference
from hisparse_ops.hot_state import COUNTER_NAMES

BLOCK = 4
STRIDE = 12
POISON = 2**31 - 1


def one_request(pages: int, slots: int, device: str = "cpu") -> World:
    """A request on the host only, with an empty hot region of `slots` slots. Positions are set by the test."""
    hot_blocks = -(-slots // BLOCK)
    return World(
        topk=ints([[]], device),
        batch=Batch(ints([0, 1], device), ints([0], device)),
        tables=Tables(
            ints([range(FIRST_HOST_BLOCK, FIRST_HOST_BLOCK + pages)], device),
            ints([[0] * pages], device),
            ints([range(FIRST_HOT_BLOCK, FIRST_HOT_BLOCK + hot_blocks)], device),
            BLOCK,
            STRIDE,
        ),
        hot=HotState.allocate(1, slots, device),
    )


def ask(world: World, positions: Sequence[Sequence[int]]) -> MissPlan:
    """Resolves one query row, or several of the one request."""
    topk = ints(positions, world.hot.clock.device)
    starts = ints([0, len(positions)], topk.device) if world.batch.state_rows.numel() == 1 else world.batch.query_start
    plan = hisparse_ops.resolve(topk, Batch(starts, world.batch.state_rows), world.tables, world.hot)
    world.hot.check()
    return plan


def host_row(position: int) -> int:
    return FIRST_HOST_BLOCK * BLOCK + position


def hot_row(slot: int) -> int:
    return (FIRST_HOT_BLOCK + slot // BLOCK) * STRIDE + slot % BLOCK


def counted(world: World) -> dict[str, int]:
    return {name: count for name, count in world.hot.counts().items() if count}


def loads(plan: MissPlan, request: int = 0) -> list[tuple[int, int]]:
    """The request's part of the plan, as (host row, device row)."""
    count = int(plan.miss_counts[request])
    first = int(plan.query_start[request])
    rows = (plan.miss_host_rows[first:].flatten(), plan.miss_device_rows[first:].flatten())
    return list(zip(*(r[:count].tolist() for r in rows), strict=True))


# Sentinels and outputs


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


def same_state(one: HotState, other: HotState) -> bool:
    pairs = zip(one.buffers(), other.buffers(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


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


# Hot state


def test_the_hot_region_grows(device: str) -> None:
    world = one_request(pages=16, slots=4, device=device)
    ask(world, [[0, 1, 2, 3]])
    small = world.hot
    world.hot = small.grown(10)
    world.tables = world.tables._replace(hot=ints([[FIRST_HOT_BLOCK + i for i in range(3)]], device))
    assert torch.equal(world.hot.slot_rows[:, :4], small.slot_rows)
    assert torch.equal(world.hot.slot_stamps[:, :4], small.slot_stamps)
    assert world.hot.slot_rows[:, 4:].eq(-1).all() and world.hot.slot_stamps[:, 4:].eq(0).all()
    plan = ask(world, [[3, 2, 1, 0, 20, 21, 22, 23, 24, 25]])
    assert plan.device_rows.tolist() == [[hot_row(s) for s in (3, 2, 1, 0, 4, 5, 6, 7, 8, 9)]]
    with pytest.raises(ValueError, match="hot_slots"):
        world.hot.grown(9)


class DictionaryLru:
    """Which host rows are cached, by a dictionary: row -> (last use, slot)."""

    def __init__(self, slots: int) -> None:
        self.slots, self.calls = slots, 0
        self.cached: dict[int, tuple[int, int]] = {}

    def use(self, rows: Iterable[int]) -> tuple[dict[int, int], int]:
        """Slots of the rows that were served, and how many had to be loaded."""
        self.calls += 1
        wanted = list(dict.fromkeys(rows))
        for row in wanted:
            if row in self.cached:
                self.cached[row] = (self.calls, self.cached[row][1])
        missing = [row for row in wanted if row not in self.cached]
        free = sorted(set(range(self.slots)) - {slot for _, slot in self.cached.values()})
        old = sorted((place, row) for row, place in self.cached.items() if place[0] < self.calls)
        loaded = 0
        for row in missing:
            if free:
                slot = free.pop(0)
            elif old:
                (_, slot), victim = old.pop(0)
                del self.cached[victim]
            else:
                break
            self.cached[row] = (self.calls, slot)
            loaded += 1
        return {row: self.cached[row][1] for row in wanted if row in self.cached}, loaded


EDGES = [1, 2, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025]
QUICK = [(1, 1), (1, 2), (2, 1), (2, 33), (31, 32), (32, 31), (33, 33), (64, 63), (65, 64), (63, 65), (1025, 64)]


@pytest.mark.parametrize("pattern", ["all-hit", "all-miss", "every-other", "first-hit", "last-hit"])
@pytest.mark.parametrize(
    ("slots", "columns"),
    [
        *QUICK,
        *(
            pytest.param(slots, columns, marks=pytest.mark.slow)
            for slots in EDGES
            for columns in EDGES
            if (slots, columns) not in QUICK
        ),
    ],
)
def test_equals_a_dictionary_lru(slots: int, columns: int, pattern: str, device: str) -> None:
    """Sizes on both sides of every warp and thread-block width, twenty calls each."""
    draw = random.Random(f"{slots} {columns} {pattern}")
    positions = 4 * (slots + columns)
    world = one_request(pages=-(-positions // BLOCK), slots=slots, device=device)
    model = DictionaryLru(slots)
    for _ in range(20):
        cached = [row - host_row(0) for row in model.cached]
        missing = draw.sample([p for p in range(positions) if host_row(p) not in model.cached], columns)
        hits = {
            "all-hit": range(columns),
            "all-miss": range(0),
            "every-other": range(0, columns, 2),
            "first-hit": range(1),
            "last-hit": range(columns - 1, columns),
        }[pattern]
        draw.shuffle(cached)
        asked = [cached[i % len(cached)] if i in hits and cached else missing[i] for i in range(columns)]
        plan = ask(world, [asked])
        served, loaded = model.use(host_row(p) for p in asked)
        assert plan.device_rows.tolist() == [
            [hot_row(served[r]) if (r := host_row(p)) in served else -1 for p in asked]
        ]
        assert len(loads(plan)) == loaded
        assert set(world.hot.slot_rows[0].tolist()) - {-1} == set(model.cached)


def test_query_rows_of_a_request_share_their_loads(device: str) -> None:
    """Overlapping misses of three rows: each is loaded once, and the third evicts nothing of the first."""
    world = one_request(pages=8, slots=6, device=device)
    ask(world, [[20, 21, 22, 23, 24, 25]])
    plan = ask(world, [[0, 1, 2], [2, 3, 1], [4, 5, 0]])
    assert [row for row, _ in loads(plan)] == [host_row(p) for p in range(6)]
    assert plan.miss_counts.tolist() == [6]
    rows = {p: hot_row(p) for p in range(6)}
    assert plan.device_rows.tolist() == [[rows[p] for p in row] for row in ([0, 1, 2], [2, 3, 1], [4, 5, 0])]
    assert counted(world) == {"hit": 3, "miss": 12}


def test_the_plan_runs_on_into_the_next_query_rows(device: str) -> None:
    world = random_world(
        seed=1, device=device, query_rows=(1, 2, 1), resident=0, cached=0, mapped=1, leased=1, slots=32
    )
    plan = hisparse_ops.resolve(world.topk, world.batch, world.tables, world.hot)
    count = int(plan.miss_counts[1])
    assert count > world.topk.shape[1]
    part = plan.miss_host_rows[1:3].flatten()
    assert part[:count].ge(0).all() and part[count:].eq(-1).all()


@pytest.mark.parametrize("columns", [64, 65, 128, 129])
def test_host_rows_that_are_equal_modulo_the_table_size(columns: int, device: str) -> None:
    """As many distinct misses as a power of two, and one more; all keys a multiple of 4096 apart."""
    pages = 4096 * columns // BLOCK
    world = one_request(pages=pages, slots=columns, device=device)
    for _ in range(2):
        plan = ask(world, [[4096 * i for i in range(columns)]])
        assert plan.device_rows.tolist() == [[hot_row(s) for s in range(columns)]]
    assert counted(world) == {"hit": columns, "miss": columns}


def test_victims_are_the_least_recently_used(device: str) -> None:
    world = one_request(pages=8, slots=4, device=device)
    for row in ([0], [1], [2], [3], [1], [0]):
        ask(world, [row])
    assert loads(ask(world, [[10, 11]])) == [(host_row(10), hot_row(2)), (host_row(11), hot_row(3))]
    assert loads(ask(world, [[12]])) == [(host_row(12), hot_row(1))]


def test_an_emptied_slot_is_taken_first(device: str) -> None:
    """It counts as never used, whatever its stamp says."""
    world = one_request(pages=8, slots=4, device=device)
    for row in ([0], [1], [2], [3]):
        ask(world, [row])
    hisparse_ops.invalidate(world.hot.slot_rows, ints([0], device), ints([host_row(3)], device))
    assert loads(ask(world, [[10]])) == [(host_row(10), hot_row(3))]
    hisparse_ops.invalidate(world.hot.slot_rows, ints([0, 0], device), ints([host_row(2), host_row(0)], device))
    assert [row for _, row in loads(ask(world, [[11, 12]]))] == [hot_row(0), hot_row(2)]


def test_slots_in_blocks_that_are_not_leased(device: str) -> None:
    """They are no victims, and what they cache is neither served nor loaded again."""
    world = one_request(pages=8, slots=8, device=device)
    ask(world, [range(8)])
    before = world.hot.slot_rows.clone(), world.hot.slot_stamps.clone()
    world.tables.hot[0, 0] = 0
    plan = ask(world, [[0, 3]])
    assert plan.device_rows.tolist() == [[-1, -1]]
    assert torch.equal(world.hot.slot_rows, before[0]) and torch.equal(world.hot.slot_stamps, before[1])
    assert loads(ask(world, [[20, 21, 22, 23, 24]])) == [(host_row(20 + i), hot_row(4 + i)) for i in range(4)]
    assert counted(world) == {"miss": 12, "fault": 3}


def test_a_request_without_a_hot_region(device: str) -> None:
    world = one_request(pages=4, slots=4, device=device)
    world.tables.hot[:] = 0
    world.tables.resident[0, 1] = 9
    plan = ask(world, [[4, 0, 1]])
    assert plan.device_rows.tolist() == [[9 * STRIDE, -1, -1]]
    assert counted(world) == {"resident": 1, "fault": 2}
    assert world.hot.slot_rows.eq(-1).all()


def test_fewer_victims_than_misses(device: str) -> None:
    """The first misses are served; later ones and their repetitions are faults."""
    world = one_request(pages=8, slots=2, device=device)
    ask(world, [[0]])
    plan = ask(world, [[5, 0, 6, 7, 5, 7]])
    assert plan.device_rows.tolist() == [[hot_row(1), hot_row(0), -1, -1, hot_row(1), -1]]
    assert counted(world) == {"miss": 2, "hit": 2, "fault": 3}


def test_a_fully_resident_request_never_looks_at_its_hot_state(device: str) -> None:
    world = one_request(pages=4, slots=4, device=device)
    world.tables.resident[0] = ints([3, 4, 5, 6], device)
    world.hot.slot_rows.fill_(host_row(2))  # nonsense that any look would stumble over
    plan = hisparse_ops.resolve(ints([[2, 13, -1]], device), world.batch, world.tables, world.hot)
    assert plan.device_rows.tolist() == [[3 * STRIDE + 2, 6 * STRIDE + 1, -1]]
    assert world.hot.clock.tolist() == [1]
    assert world.hot.slot_stamps.eq(0).all()
    assert counted(world) == {"resident": 2, "padding": 1}


def test_a_resident_row_leaves_its_hot_copy_alone(device: str) -> None:
    world = one_request(pages=4, slots=2, device=device)
    ask(world, [[0]])
    ask(world, [[1]])
    world.tables.resident[0, 0] = 3
    assert ask(world, [[0]]).device_rows.tolist() == [[3 * STRIDE]]
    world.tables.resident[0, 0] = 0
    assert loads(ask(world, [[7]])) == [(host_row(7), hot_row(0))]  # row 0 was not touched, so it is the older one


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
