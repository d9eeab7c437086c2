"""What `resolve` promises of the hot state: who is cached, who is given up, and when it is looked at."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch
from one_request import BLOCK, STRIDE, ask, counted, host_row, hot_row, loads, one_request
from worlds import FIRST_HOT_BLOCK, ints, random_world

import hisparse_ops


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


@pytest.mark.parametrize("misses", [4, 12, 20, 60])
@pytest.mark.parametrize("apart", [0, 1, 3, 5, 100])
def test_victims_whose_stamps_lie_apart(apart: int, misses: int, device: str) -> None:
    slots = 64
    world = one_request(pages=64, slots=slots, device=device)
    order = torch.randperm(slots, generator=torch.Generator().manual_seed(apart))
    world.hot.slot_rows[0] = ints([host_row(p) for p in range(slots)], device)
    world.hot.slot_stamps[0, order] = ints([1 + apart * i for i in range(slots)], device)
    world.hot.clock[0] = 1 + apart * slots
    victims = order.tolist() if apart else range(slots)
    plan = ask(world, [[100 + i for i in range(misses)]])
    assert [row for _, row in loads(plan)] == [hot_row(slot) for slot in victims[:misses]]


@pytest.mark.parametrize("before_last", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("hits", [0, 4])
def test_the_last_values_of_the_clock(hits: int, before_last: int, device: str) -> None:
    """Stamps end where numbers do: what is no free slot must not look like one."""
    slots, last = 64, 2**31 - 1
    world = one_request(pages=64, slots=slots, device=device)
    world.hot.slot_rows[0] = ints([host_row(p) for p in range(slots)], device)
    world.hot.slot_stamps[0] = world.hot.clock[0] = last - 1 - before_last
    asked = [*range(hits), *range(100, 180)]
    plan = ask(world, [asked])
    assert [row for _, row in loads(plan)] == [hot_row(slot) for slot in range(hits, slots)]
    assert plan.device_rows[0, :hits].tolist() == [hot_row(slot) for slot in range(hits)]
    loaded = slots - hits
    assert counted(world) == {"miss": loaded, "fault": 80 - loaded} | ({"hit": hits} if hits else {})


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
