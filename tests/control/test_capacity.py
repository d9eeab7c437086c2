"""Room: admission, growth, pressure and coming back. In blocks: a page takes 2 for rows and 1 for
index keys, a hot region 4, so pressure begins below 6 of 60 free blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control.fake_engine import FakeEngine, Shape, config

from hisparse_ops.control import Coordinator
from hisparse_ops.control.types import Extended, HotDelta, Limits, RefusalReason, Refused

LONG = 80  # tokens of 20 pages: 60 blocks if resident; index keys 20, hot region 4 and window 10 if not


def prompt(seed: int, tokens: int = 4) -> list[int]:
    return [seed] * tokens


def steps(engine: FakeEngine, count: int, rows: int = 4) -> None:
    for _ in range(count):
        engine.step(dict.fromkeys(engine.live, rows))


def test_fault_18_a_request_grows_one_token_at_a_time() -> None:
    engine = FakeEngine()
    engine.admit("a", prompt(1, 14), prompt=1, step=1)
    usable = engine.c.snapshot().gpu_usable
    for tokens in range(1, 15):
        engine.plan({"a": 1})
        pages = -(-tokens // 4)
        snapshot = engine.c.snapshot()
        assert sum(snapshot.pages.values()) == pages
        assert snapshot.gpu_blank + snapshot.gpu_readable == usable - 3 * pages
        assert snapshot.host_blank == snapshot.host_usable - pages
        engine.check()
        engine.execute_all()
        engine.deliver_all()
    engine.finish("a")
    engine.settle()
    assert engine.c.reclaimable() == usable


def test_fault_38_a_pool_full_of_readable_pages_admits_in_the_same_step() -> None:
    engine = FakeEngine()
    for name in ("a", "b"):
        engine.admit(name, prompt(ord(name), 36), prompt=36)
        engine.run(name)
        engine.finish(name)
    engine.settle()
    assert engine.c.snapshot().gpu_readable == 9 * 2 * 3
    assert engine.admit("c", prompt(9, 60), prompt=60).ok
    engine.run("c")


def test_fault_38_a_pool_full_of_pinned_pages_of_moved_requests_admits_in_bounded_steps() -> None:
    engine = FakeEngine(Shape(num_blocks=81))
    engine.admit("a", prompt(1, LONG), prompt=8)
    engine.run("a", until=76)
    assert engine.c.admit("b", (), 20, Limits(40, 8)).ok, "34 of 80 are charged for a, 30 for b"
    engine.c.preempt("b")
    engine.admit("b", prompt(2, 40), prompt=20)
    for _ in range(12):
        engine.step({"b": 8})
    assert engine.live["b"].done


def test_fault_39_four_requests_outgrow_the_host_pool() -> None:
    """The prompts and 3 pages more: some are preempted, nothing breaks, all finish."""
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=4 * 4 + 3 + 1))
    for i in range(4):
        assert engine.admit(f"r{i}", [i] * 16 + list(range(100, 124)), prompt=16).ok
    engine.drain()
    assert engine.refusals[RefusalReason.HOST_BLOCKS] > 0
    assert engine.c.snapshot().gpu_readable > 0 and not engine.live


def test_fault_40_hot_room_for_all_but_one() -> None:
    """Every admission lowers the budget of the next, in one pass; one region is kept to move with."""
    shape = Shape(num_blocks=3 * 34 + 4 + 1, host_blocks=201)
    engine = FakeEngine(shape)
    answers = [engine.admit(f"r{i}", prompt(i, LONG), prompt=8) for i in range(4)]
    assert [answer.ok for answer in answers] == [True, True, True, False]
    assert answers[3] == Refused(RefusalReason.GPU_BLOCKS, 34, 0)
    engine.drain()
    assert not engine.refusals[RefusalReason.GPU_BLOCKS]


def test_fault_41_a_request_of_three_times_the_gpu_pool() -> None:
    tokens = 320  # 80 pages: 240 blocks if resident
    engine = FakeEngine(Shape(num_blocks=80 + 4 + 10 + 1, host_blocks=81), config(max_pages=80))
    assert engine.admit("a", list(range(tokens)), prompt=300).ok
    engine.run("a")
    assert engine.c.is_host_readable("a") and engine.c.snapshot().totals.lost_pages > 40
    for _ in range(3):
        engine.step()
    snapshot = engine.c.snapshot()
    taken = snapshot.gpu_usable - snapshot.gpu_blank - snapshot.gpu_readable
    assert taken == 80 + 4 + 2 * 2, "index keys, hot region and the last two pages"


@pytest.mark.parametrize("host", [21, 31, 201])
@pytest.mark.parametrize("blocks", [65, 70, 81, 121])
def test_admitted_requests_need_no_preemption_for_gpu_blocks(blocks: int, host: int) -> None:
    """L3: five long requests in a pool for a few; refused growth is on its way, always."""
    engine = FakeEngine(Shape(num_blocks=blocks, host_blocks=host))
    admitted = [engine.admit(f"r{i}", [i] * 8 + list(range(100, 172)), prompt=8).ok for i in range(5)]
    assert any(admitted)
    engine.drain()
    assert set(engine.refusals) <= {RefusalReason.PENDING, RefusalReason.HOST_BLOCKS}


def test_pressure_moves_one_request_at_a_time_the_one_that_frees_most() -> None:
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=201))
    for i, length in enumerate((60, 76, 52)):
        engine.admit(f"r{i}", list(range(i, i + 80)), prompt=4)
        engine.run(f"r{i}", until=length)
    free = engine.c.snapshot().gpu_blank
    assert free == 200 - (15 + 19 + 13) * 3
    engine.admit("big", list(range(500, 500 + 60)), prompt=4)
    moved = []
    while not moved:
        engine.step({"big": 4})
        moved = [name for name in engine.live if engine.c.is_host_readable(name)]
    assert moved == ["r1"]
    assert engine.c.snapshot().pages["clean-unpinned"] == 17, "all but the last two"
    steps(engine, 3)
    assert engine.c.snapshot().requests["host-readable"] == 1


def test_what_is_on_its_way_counts_before_a_second_request_is_moved() -> None:
    engine = FakeEngine(Shape(num_blocks=108, host_blocks=201), config(eager_mirror=False))
    for name, tokens in (("a", 76), ("b", 60)):
        engine.admit(name, list(range(ord(name), ord(name) + LONG)), prompt=4)
        for _ in range(tokens // 4):
            engine.plan({name: 4})
            engine.execute_all()
    engine.plan()
    assert engine.c.is_host_readable("a") and not engine.c.is_host_readable("b")
    assert engine.c.snapshot().pages["clean-unpinned"] == 0, "its spills are still under way"
    engine.settle()
    assert engine.c.snapshot().requests["host-readable"] == 1


def test_all_requests_under_pressure_at_once_do_not_all_move() -> None:
    engine = FakeEngine(Shape(num_blocks=16 * 17 * 3 + 20, host_blocks=801), config(max_requests=16))
    for i in range(16):
        assert engine.admit(f"r{i}", list(range(i, i + 68)), prompt=64, step=64).ok or i > 3
    for _ in range(30):
        if all(who.done for who in engine.live.values()):
            break
        engine.step(dict.fromkeys(engine.live, 4))
        assert engine.c.snapshot().requests["host-readable"] <= 3
    assert not engine.refusals


def test_unpinned_pages_are_lost_tail_first() -> None:
    engine = FakeEngine(Shape(num_blocks=71))
    engine.admit("a", prompt(1, LONG), prompt=4)
    engine.run("a")
    engine.admit("b", prompt(2, 30), prompt=30)
    engine.run("b")
    pages = engine.c.snapshot().pages
    lost = pages["host-only"]
    assert engine.c.is_host_readable("a") and 0 < lost < 18
    host_only = [page.index for page in engine.c._state.live["a"].pages.table if page.state.value == "host-only"]
    assert host_only == list(range(18 - lost, 18)), "of pages 0 .. 17, the last ones"


def test_pages_that_become_clean_later_are_lost_before_those_nearer_to_the_head() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    engine.admit("a", list(range(LONG)), prompt=4)
    engine.run("a", until=60)
    engine.scarce()
    engine.step()
    engine.run("a")
    engine.step()
    leases = engine.c._state.gpu.readable_leases()
    pages = {page.kv: page.index for page in engine.c._state.live["a"].pages.table}
    assert [pages[lease] for lease in leases] == list(range(17, -1, -1))


def test_hot_regions_are_given_back_when_there_is_room_again() -> None:
    engine = FakeEngine(Shape(num_blocks=121, host_blocks=121))
    for name in ("a", "b"):
        engine.admit(name, list(range(ord(name), ord(name) + LONG)), prompt=4)
    for name in ("a", "b"):
        engine.run(name, until=78)
    assert engine.c.snapshot().requests["host-readable"] == 1
    moved, resident = ("a", "b") if engine.c.is_host_readable("a") else ("b", "a")
    assert not engine.c.fully_resident(moved), "some of its pages are lost"
    engine.finish(resident)
    row = engine.live[moved].row
    told = [delta for _ in range(10) for delta in engine.step().hot]
    assert told == [HotDelta(row, ())], "and the workers hear of it"
    assert engine.c.fully_resident(moved) and not engine.c.is_host_readable(moved)
    totals = engine.c.snapshot().totals
    assert totals.restored_pages == totals.lost_pages and totals.returned_requests == 1
    engine.run(moved)


def test_bringing_back_keeps_its_distance_from_the_watermark() -> None:
    """Hysteresis: what comes back must not be what has to go again."""
    engine = FakeEngine(Shape(num_blocks=121, host_blocks=121))
    for name in ("a", "b"):
        engine.admit(name, list(range(ord(name), ord(name) + LONG)), prompt=4)
    for name in ("a", "b"):
        engine.run(name, until=78)
    moves = engine.c.snapshot().totals.moved_requests
    for _ in range(30):
        engine.step()
    assert engine.c.snapshot().totals.moved_requests == moves == 1
    assert engine.c.snapshot().totals.returned_requests == 0


def test_a_restore_budget_spreads_the_way_back_over_steps() -> None:
    engine = FakeEngine(Shape(num_blocks=111, host_blocks=121), config(restore_budget=2))
    for name in ("a", "b"):
        engine.admit(name, list(range(ord(name), ord(name) + LONG)), prompt=4)
    for name in ("a", "b"):
        engine.run(name, until=78)
    lost = engine.c.snapshot().pages["host-only"]
    assert lost > 4
    engine.finish("b" if engine.c.is_host_readable("a") else "a")
    restores = [sum(t.kind.value == "restore" for t in engine.step().transfers) for _ in range(12)]
    assert max(restores) == 2 and sum(restores) == lost


@pytest.mark.parametrize("scarce", ["gpu", "host"])
def test_a_refused_extension_changes_nothing(scarce: str) -> None:
    shape = Shape(num_blocks=13, host_blocks=61) if scarce == "gpu" else Shape(host_blocks=5)
    engine = FakeEngine(shape, config(host_tier=scarce == "host"))
    for name in ("a", "b"):
        assert engine.admit(name, prompt(1, 16), prompt=4).ok
        engine.step({name: 4})
    assert engine.c.extend("a", 8) == Extended(1)
    before = engine.c.snapshot()
    reason = RefusalReason.GPU_BLOCKS if scarce == "gpu" else RefusalReason.HOST_BLOCKS
    refused = Refused(reason, 6 if scarce == "gpu" else 2, 3 if scarce == "gpu" else 1)
    assert [engine.c.extend("b", 12) for _ in range(2)] == [refused] * 2
    after = engine.c.snapshot()
    assert after.totals.refusals == {reason: 2}
    assert replace(after, totals=before.totals) == before
    assert engine.c.extend("b", 8) == Extended(1)


def test_growth_within_the_last_page_takes_nothing() -> None:
    engine = FakeEngine()
    engine.admit("movable", prompt(2, LONG), prompt=4)
    engine.admit("a", prompt(1, 9), prompt=1)
    assert engine.c.extend("a", 1) == Extended(1)
    held = engine.c._state.gpu.lease(engine.c._state.gpu.free)
    assert [engine.c.extend("a", tokens) for tokens in (2, 3, 4)] == [Extended(0)] * 3
    engine.c._state.gpu.release(held)
    assert engine.c.extend("a", 5) == Extended(1)


def test_without_a_host_tier_everything_is_resident_or_refused() -> None:
    engine = FakeEngine(Shape(num_blocks=31), config(host_tier=False))
    assert engine.c.snapshot().host_usable == 0, "whatever the layout has"
    assert engine.admit("a", prompt(1, 40), prompt=8).ok
    assert engine.admit("b", prompt(2, 36), prompt=8).ok
    assert engine.admit("c", prompt(3, 28), prompt=28) == Refused(RefusalReason.GPU_BLOCKS, 21, 18)
    plan = engine.step({"a": 8, "b": 8})
    assert not plan.envelopes and not plan.transfers and not plan.recycled and not plan.hot
    engine.drain()
    assert engine.refusals[RefusalReason.GPU_BLOCKS] > 0
    snapshot = engine.c.snapshot()
    assert snapshot.gpu_blank == snapshot.gpu_usable and snapshot.published == 0


def test_without_a_host_tier_growth_takes_nothing_that_was_promised() -> None:
    engine = FakeEngine(Shape(num_blocks=13, host_blocks=1), config(host_tier=False))
    engine.admit("a", prompt(1, 16), prompt=4)
    engine.admit("b", prompt(2, 12), prompt=12, step=12)
    engine.step({"a": 4})
    assert engine.c.extend("a", 8) == Refused(RefusalReason.GPU_BLOCKS, 3, 0)
    assert engine.c.extend("b", 12) == Extended(3)


@pytest.mark.parametrize(
    ("shape", "limits", "needed", "available"),
    [
        (Shape(), Limits(160, 8), 40, 39),
        (Shape(host_blocks=20), Limits(80, 8), 20, 19),
        (Shape(num_blocks=63), Limits(84, 84), 63, 62),
    ],
    ids=["longer than a table row", "than the host", "than the GPU"],
)
def test_what_can_never_fit_is_too_large(shape: Shape, limits: Limits, needed: int, available: int) -> None:
    answer = Coordinator(shape, config(max_pages=39)).admit("a", (), 4, limits)
    assert answer == Refused(RefusalReason.TOO_LARGE, needed, available)


def test_more_requests_than_state_rows() -> None:
    control = Coordinator(Shape(), config(max_requests=2))
    assert [control.admit(f"r{i}", (), 4, Limits(8, 8)).ok for i in range(3)] == [True, True, False]
    assert control.admit("r3", (), 4, Limits(8, 8)) == Refused(RefusalReason.NO_STATE_ROW, 1, 0)
    assert control.admit("r3", (), 4, Limits(80, 64)) == Refused(RefusalReason.NO_STATE_ROW, 1, 0), "the first reason"
    too_large = control.admit("r3", (), 4, Limits(84, 64))
    assert too_large == Refused(RefusalReason.TOO_LARGE, 63, 60), "no row would help"
    assert control.admit("r1", (), 4, Limits(8, 8)) == Refused(RefusalReason.DUPLICATE, 1, 0)
    control.preempt("r0")
    assert control.admit("r3", (), 4, Limits(8, 8)).ok


def test_fault_47_asking_changes_nothing() -> None:
    """The same run, once with questions between any two calls and once without."""

    def run(asks: bool) -> list[object]:
        engine = FakeEngine(Shape(num_blocks=81))
        plans: list[object] = []
        for i in range(3):
            engine.admit(f"r{i}", [0] * 12 + [i] * 30, prompt=12)
        for _ in range(20):
            for name, who in list(engine.live.items()):
                if asks:
                    hashes = who.hashes(12, 4)
                    answers = [
                        (engine.c.can_admit(hashes, 12, Limits(42, 8)), engine.c.cached_tokens(hashes)) for _ in "ab"
                    ]
                    assert answers[0] == answers[1]
                    engine.c.reclaimable(), engine.c.quiescent(), engine.c.snapshot(), engine.c.is_readable(name)
                if who.done:
                    engine.finish(name)
            plans.append(engine.step(dict.fromkeys(engine.live, 3)))
        return plans

    assert run(asks=True) == run(asks=False)


def test_can_admit_says_what_admit_says() -> None:
    control = Coordinator(Shape(), config())
    for i in range(6):
        limits = Limits(40, 8)
        expected = control.can_admit((), 8, limits)
        assert control.admit(f"r{i}", (), 8, limits).ok == expected
    assert not control.can_admit((), 8, Limits(40, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.admit("x", (), 0, Limits(8, 8)), "num_tokens: expected 1"),
        (lambda c: c.admit("x", (), 9, Limits(8, 8)), "num_tokens: expected 1"),
        (lambda c: c.admit("x", (), 4, Limits(8, 0)), "limits.max_step_tokens: expected at least 1"),
        (lambda c: c.admit("x", (1, 2), 7, Limits(8, 8)), "token_hashes: expected at most 1"),
        (lambda c: c.extend("b", 4), "request_id: 'b' is not live"),
        (lambda c: c.extend("a", 13), "num_tokens: expected at most max_tokens"),
        (lambda c: c.extend("a", 21), "num_tokens: expected at most max_tokens"),
        (lambda c: c.seal("a", 5), "final_tokens: expected 4 .. 4"),
        (lambda c: c.seal("a", -1), "final_tokens: expected 4 .. 4"),
        (lambda c: c.plan_step([("b", 0, 1)]), "scheduled: request 'b' is not live"),
        (lambda c: c.plan_step([("a", 5, 6)]), "scheduled: rows 5 .. 5"),
        (lambda c: c.plan_step([("a", 4, 9)]), "scheduled: rows 4 .. 8"),
        (lambda c: c.plan_step([("a", 4, 4)]), "scheduled: rows 4 .. 3"),
        (lambda c: c.plan_step([("a", 4, 5), ("a", 5, 6)]), "scheduled: rows 5 .. 5|a request may appear once"),
        (lambda c: c.plan_step([("a", 4, 5), ("a", 4, 5)]), "a request may appear once"),
        (lambda c: c.step_done(9), "sequence: expected a planned step"),
        (lambda c: c.finish("b"), "request_id: 'b' is not live"),
        (lambda c: c.preempt("b"), "request_id: 'b' is not live"),
        (lambda c: c.begin_import("a", 0), "num_tokens: expected 1"),
        (lambda c: c.end_import("a", True), "request_id: 'a' has no import under way"),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(call: object, message: str) -> None:
    engine = FakeEngine()
    engine.admit("a", prompt(1, 20), prompt=8)
    engine.step({"a": 4})
    engine.c.extend("a", 8)
    before = engine.c.snapshot()
    with pytest.raises(ValueError, match=message):
        call(engine.c)  # type: ignore[operator]
    assert engine.c.snapshot() == before
    engine.run("a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_requests": 0}, "max_requests: expected at least 1"),
        ({"spill_budget": 0}, "spill_budget: expected at least 1"),
        ({"ranks": ()}, "ranks: expected distinct ranks"),
        ({"ranks": (0, 0)}, "ranks: expected distinct ranks"),
        ({"writer_ranks": (1,)}, "writer_ranks: expected some of ranks"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)
