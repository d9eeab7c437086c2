"""What is on its way: whom it spares, who waits for it, and when waiting is over."""

from __future__ import annotations

import pytest
from control.fake_engine import FakeEngine, Shape, config

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


@pytest.mark.parametrize("way", ["finish", "in flight"])
def test_growth_waits_for_host_blocks_that_are_on_their_way(way: str) -> None:
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=9))
    for name in ("a", "b"):
        engine.admit(name, [ord(name)] * 28, prompt=4, step=16)
    engine.step({"a": 4, "b": 4})
    engine.plan({"a": 16})
    assert reason(engine.c.extend("b", 20)) is RefusalReason.HOST_BLOCKS
    if way == "finish":
        engine.execute_all()
        engine.finish("a")
    else:
        engine.finish("a", publish=False)
    assert reason(engine.c.extend("b", 20)) is RefusalReason.PENDING
    engine.execute_all()
    engine.deliver_all()
    engine.settle(2)
    assert engine.c.extend("b", 20).ok
    engine.check()


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
