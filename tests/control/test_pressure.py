"""What is on its way: whom it spares, who waits for it, and when waiting is over."""

from __future__ import annotations

import pytest
from control.fake_engine import FakeEngine, Shape, config
from control.fake_worker import Faults

from hisparse_ops.control.policy import Candidate
from hisparse_ops.control.types import RankReport, RefusalReason, Refused, TransferKind

LONG = 80


def grown(engine: FakeEngine, name: str, tokens: int, until: int) -> None:
    """A request whose reports have all come in."""
    assert engine.admit(name, list(range(ord(name), ord(name) + tokens)), prompt=4).ok
    engine.run(name, until=until)
    engine.step()


def reason(answer: object) -> RefusalReason | None:
    return answer.reason if isinstance(answer, Refused) else None


@pytest.mark.parametrize("way", ["finish", "preempt"])
def test_blocks_of_a_request_that_left_come_when_its_spills_do(way: str) -> None:
    """No step is in flight: only the transfers of a request that is no longer live hold blocks."""
    engine = FakeEngine(Shape(num_blocks=61), config(eager_mirror=False))
    engine.admit("a", list(range(40)), prompt=40, step=40)
    engine.plan({"a": 40})
    engine.execute_all()
    engine.deliver_all()
    engine.plan()
    engine.execute_all()
    engine.mail.clear()
    getattr(engine, way)("a")
    engine.check()
    assert engine.admit("b", list(range(100, 156)), prompt=56, step=56).ok
    first = engine.c.extend("b", 56)
    assert reason(first) is RefusalReason.PENDING
    ids = frozenset(engine.spills)
    engine.copy_engines()
    engine.c.apply(RankReport(0, 0, completed=ids))
    assert engine.c.extend("b", 56).ok
    engine.check()


def test_rows_of_a_step_in_flight_may_still_be_sealed_and_given_up() -> None:
    engine = FakeEngine(Shape(num_blocks=20 + 4 + 10 + 1))
    engine.admit("a", list(range(LONG)), prompt=LONG)
    engine.plan({"a": 8})
    while engine.c.extend("a", engine.live["a"].computed + 8).ok:
        engine.plan({"a": 8})
    assert (
        engine.refusals == {} and reason(engine.c.extend("a", engine.live["a"].computed + 8)) is RefusalReason.PENDING
    )
    engine.execute_all()
    engine.deliver_all()
    engine.run("a")
    assert set(engine.refusals) <= {RefusalReason.PENDING}


def test_nobody_is_moved_for_blocks_that_rest_behind_a_step() -> None:
    engine = FakeEngine(Shape(num_blocks=151, host_blocks=121))
    grown(engine, "a", LONG, 76)
    engine.admit("b", [7] * 80, prompt=80)
    engine.run("b", until=76)
    free = engine.c.snapshot().gpu_blank
    assert free < 40
    engine.plan({"b": 4})
    engine.finish("b", publish=False)
    held = engine.c._state.gpu.lease(engine.c._state.gpu.free - 10)
    engine.plan()
    assert not engine.c.is_host_readable("a"), "the forecast counts what rests"
    engine.execute_all()
    engine.c._state.gpu.release(held)


def test_a_large_allocation_takes_what_moved_requests_can_give_up_at_once() -> None:
    """Above the watermark nothing was given up before; the allocation itself asks for it."""
    engine = FakeEngine(Shape(num_blocks=101))
    grown(engine, "a", LONG, 76)
    engine.c._residency.grant_hot(engine.c._state.live["a"])
    assert engine.c.snapshot().pages["clean-pinned"] == 19
    engine.admit("b", list(range(200, 260)), prompt=60, step=60)
    assert engine.c.extend("b", 60).ok, "45 blocks, of which 39 were free"
    assert engine.c.snapshot().pages["host-only"] > 0
    engine.check()


def two_moved(free: int) -> FakeEngine:
    """Two requests of 19 pages each that were moved to the host, with nothing given up yet. One after
    the other could give up 17 pages, 34 blocks. So many blocks are `free`."""
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=121))
    for name in ("a", "b"):
        grown(engine, name, LONG, 76)
    for name in ("a", "b"):
        engine.c._residency.grant_hot(engine.c._state.live[name])
    engine.c._state.gpu.lease(engine.c._state.gpu.free - free)
    return engine


def could_give_up(engine: FakeEngine) -> list[int]:
    return [engine.c._state.live[name].unpinnable_count() for name in ("a", "b")]


def test_an_allocation_takes_no_more_from_moved_requests_than_it_needs() -> None:
    engine = two_moved(free=15)
    for name in ("c", "d"):
        assert engine.admit(name, [ord(name)] * 20, prompt=20, step=20).ok
    assert engine.c.extend("c", 20).ok and could_give_up(engine) == [17, 17], "5 pages, 15 blocks"
    assert engine.c.extend("d", 20).ok and could_give_up(engine) == [0, 17]


def test_pressure_takes_no_more_from_moved_requests_than_ends_it() -> None:
    engine = two_moved(free=200 // 10)
    engine.plan()
    assert could_give_up(engine) == [17, 17]
    engine = two_moved(free=200 // 10 - 1)
    engine.plan()
    assert could_give_up(engine) == [0, 17]


def test_the_last_request_that_may_be_moved_is_moved_even_at_a_loss() -> None:
    """Its page is worth no more than its region, but then no region is kept to move somebody with."""
    engine = FakeEngine(Shape(num_blocks=201, num_groups=1, hot_blocks=1))
    grown(engine, "a", LONG, 12)
    engine.admit("b", [7] * 8, prompt=8)
    engine.c._state.gpu.lease(engine.c._state.gpu.free - 4)
    assert engine.c.extend("b", 8).ok, "2 pages, 4 blocks"
    assert engine.c.is_host_readable("a")


def test_nobody_is_moved_if_what_is_on_its_way_is_just_enough() -> None:
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=121))
    grown(engine, "a", LONG, 76)
    engine.admit("b", [7] * 8, prompt=8)
    engine.admit("c", [8] * 8, prompt=8)
    engine.plan({"b": 8})
    engine.finish("b", publish=False)
    engine.c._state.gpu.lease(engine.c._state.gpu.free - 4)
    assert engine.c.extend("c", 8) == Refused(RefusalReason.PENDING, 6, 4), "6 rest, and a region of 4 is kept"
    assert not engine.c.is_host_readable("a")


def test_what_an_import_keeps_may_still_be_given_up() -> None:
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=121))
    engine.admit("a", list(range(LONG)), prompt=4)
    engine.admit("b", [7] * 8, prompt=8)
    assert engine.begin_import("a", 40).ok
    engine.c._state.gpu.lease(engine.c._state.gpu.free)
    assert engine.c.extend("b", 8) == Refused(RefusalReason.PENDING, 6, 0)
    engine.end_import("a", ok=False)
    engine.c._state.gpu.lease(engine.c._state.gpu.free)
    assert engine.c.extend("b", 8) == Refused(RefusalReason.GPU_BLOCKS, 6, 0)


def test_the_forecast_counts_what_is_not_published_yet_and_what_others_left_behind() -> None:
    engine = FakeEngine(Shape(num_blocks=401, host_blocks=121), config(eager_mirror=False))
    grown(engine, "a", LONG, 76)
    for name in ("b", "c"):
        engine.admit(name, [ord(name)] * 40, prompt=40, step=40)
    engine.step({"b": 40, "c": 40})
    ids = sorted(transfer.id for transfer in engine.plan().transfers)
    engine.execute_all()
    engine.mail.clear()
    engine.c.apply(RankReport(0, 0, completed=frozenset(ids[:3])))
    engine.finish("b")
    engine.preempt("c")
    engine.c._residency.grant_hot(engine.c._state.live["a"])
    unpublished, rows_of_spills, clean = 7 * 3, 10 * 2, 0
    assert engine.c._pressure.coming() == unpublished + rows_of_spills + clean, "clean pages can be given up at once"


def test_policy_is_told_what_each_frees_and_costs() -> None:
    engine = FakeEngine(Shape(num_blocks=401, host_blocks=121))
    asked: list[Candidate] = []
    engine.c._policy.victim = engine.c._policy.returning = asked.extend  # type: ignore[method-assign]
    for name, tokens in (("a", 76), ("b", 40)):
        grown(engine, name, LONG, tokens)
    a, b = engine.c._state.live.values()
    engine.scarce()
    engine.plan()
    assert asked == [Candidate(a, 17 * 2, 4), Candidate(b, 8 * 2, 4)]
    engine.c._residency.grant_hot(a)
    engine.plan()
    engine.scarce(False)
    asked.clear()
    engine.plan()
    assert asked == [Candidate(a, 4, 17 * 2)]


@pytest.mark.parametrize("short", [0, 1], ids=["enough", "one block short"])
def test_a_region_that_nobody_needs_is_given_back_where_there_is_room(short: int) -> None:
    """Above the watermark of a tenth, and half of it more."""
    engine = FakeEngine(Shape(num_blocks=201))
    grown(engine, "a", LONG, 76)
    engine.c._residency.grant_hot(engine.c._state.live["a"])
    engine.c._state.gpu.lease(engine.c._state.gpu.free - (20 + 10) + short)
    engine.plan()
    assert engine.c.is_host_readable("a") == bool(short)


def test_policy_moves_nobody_who_frees_less_than_a_region_costs() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    grown(engine, "a", LONG, 16)
    engine.scarce()
    for _ in range(3):
        engine.step()
    assert not engine.c.is_host_readable("a"), "2 pages are 4 blocks, and so is a hot region"
    engine.run("a", until=20)
    engine.step()
    engine.step()
    assert engine.c.is_host_readable("a")


@pytest.mark.parametrize("way", ["in flight", "not published yet", "spills under way"])
def test_growth_waits_for_host_blocks_that_are_on_their_way(way: str) -> None:
    """Each of the ways is enough."""
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=9))
    for name in ("a", "b"):
        engine.admit(name, [ord(name)] * 28, prompt=4, step=16)
    engine.step({"b": 4})
    engine.plan({"a": 16})
    assert reason(engine.c.extend("b", 20)) is RefusalReason.HOST_BLOCKS
    if way == "in flight":
        engine.finish("a", publish=False)
    else:
        engine.execute_all()
    if way == "not published yet":
        engine.finish("a")
    if way == "spills under way":
        engine.plan()
        engine.execute_all()
        engine.preempt("a")
    assert reason(engine.c.extend("b", 20)) is RefusalReason.PENDING
    engine.execute_all()
    engine.deliver_all()
    engine.settle(2)
    assert engine.c.extend("b", 20).ok
    engine.check()


def test_growth_leaves_alone_what_is_set_aside_for_others() -> None:
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=9))
    engine.admit("a", [7] * 16, prompt=16)
    engine.admit("b", [8] * 28, prompt=4, step=28)
    assert engine.c.extend("b", 28) == Refused(RefusalReason.HOST_BLOCKS, 7, 8 - 4)


def test_without_a_host_tier_growth_waits_for_steps_in_flight() -> None:
    engine = FakeEngine(Shape(num_blocks=13), config(host_tier=False))
    for name in ("a", "b"):
        engine.admit(name, [ord(name)] * 16, prompt=4, step=16)
    engine.plan({"a": 12})
    assert engine.c.extend("b", 8) == Refused(RefusalReason.GPU_BLOCKS, 6, 3)
    engine.finish("a")
    assert engine.c.extend("b", 8) == Refused(RefusalReason.PENDING, 6, 3)
    engine.execute_all()
    assert engine.c.extend("b", 8).ok


def test_what_was_given_up_first_is_reused_first() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    pages = {}
    for name in ("a", "b", "c"):
        engine.admit(name, [ord(name)] * 16, prompt=16, step=16)
        pages[name] = engine.live[name].hashes(16, 4)
        engine.run(name)
        engine.finish(name)
        engine.settle(2)
    state = engine.c._state
    whose = {state.prefix.get(page): name for name, hashes in pages.items() for page in hashes}
    copies = dict([*state.kv_copies.inverse(), *state.key_copies.inverse()])
    assert [whose[copies[lease]] for lease in state.gpu.readable_leases()] == ["a"] * 8 + ["b"] * 8 + ["c"] * 8


def test_a_hot_region_is_kept_until_the_last_restore_is_through() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    grown(engine, "a", LONG, 76)
    engine.scarce()
    engine.step()
    taken = engine.c._state.gpu.lease(engine.c._state.gpu.free)
    engine.c._state.gpu.release(taken)
    assert engine.c.snapshot().pages["host-only"] == 17
    engine.scarce(False)
    plan = engine.plan()
    assert sum(transfer.kind is TransferKind.RESTORE for transfer in plan.transfers) == 17
    engine.execute_all()
    assert not engine.plan().hot and engine.c.is_host_readable("a")
    engine.execute_all()
    engine.deliver_all()
    assert engine.plan().hot and not engine.c.is_host_readable("a")
    engine.execute_all()
    engine.run("a")


def test_a_moved_request_whose_restores_failed_reads_on_from_the_host() -> None:
    """Only a resident request needs help then."""
    engine = FakeEngine(Shape(num_blocks=201))
    grown(engine, "a", LONG, 76)
    engine.scarce()
    engine.step()
    engine.c._state.gpu.release(engine.c._state.gpu.lease(engine.c._state.gpu.free))
    engine.scarce(False)
    assert engine.plan().transfers
    engine.execute_all(Faults(fail_restores=True))
    engine.deliver_all()
    engine.scarce()
    assert not engine.plan({"a": 4}).transfers and engine.c.is_host_readable("a")
    engine.execute_all()


def test_what_another_request_has_brought_back_is_adopted() -> None:
    """Two moved requests share a prefix of which no copy is left: it is restored once."""
    engine = FakeEngine(Shape(num_blocks=401, host_blocks=121))
    for name in ("a", "b"):
        engine.admit(name, [*range(40), *range(ord(name), ord(name) + 40)], prompt=41)
        engine.run(name, until=60)
        engine.step()
    engine.scarce()
    engine.step()
    assert engine.c.snapshot().requests["host-readable"] == 2
    engine.c._state.gpu.release(engine.c._state.gpu.lease(engine.c._state.gpu.free))
    lost = engine.c.snapshot().pages["host-only"]
    engine.scarce(False)
    for _ in range(6):
        engine.step()
    totals = engine.c.snapshot().totals
    assert engine.c.snapshot().requests["resident"] == 2
    assert lost == 13 + 13 and totals.restored_pages == 13 + 3
    for name in ("a", "b"):
        engine.run(name)


def test_pages_of_moved_requests_that_are_clean_can_be_reclaimed() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    engine.admit("a", list(range(80)), prompt=4)
    engine.run("a", until=40)
    engine.settle(2)
    free = engine.c.snapshot().gpu_blank + engine.c.snapshot().gpu_readable
    assert engine.c.reclaimable() == free, "a resident request gives up nothing"
    engine.c._residency.grant_hot(engine.c._state.live["a"])
    hot, clean = 4, engine.c.snapshot().pages["clean-pinned"] - 2
    assert clean == 8 and engine.c.reclaimable() == free - hot + 2 * clean
