"""What control counts about itself."""

from __future__ import annotations

from control.fake_engine import FakeEngine, Shape, config

from hisparse_ops.control.types import RankReport


def test_totals_count_each_thing_once() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    for name in ("a", "b"):
        engine.admit(name, list(range(41)), prompt=41)
        engine.run(name)
        engine.settle(2)
    totals = engine.c._state.totals
    assert totals.spilled_pages == totals.published_pages == totals.adopted_pages == 10
    for name in ("a", "b"):
        engine.c._residency.grant_hot(engine.c._state.live[name])
    assert totals.moved_requests == 2
    engine.step()
    engine.step()
    assert totals.returned_requests == 2


def test_the_steps_that_spills_take_are_summed() -> None:
    """From the step that sends one to the first step planned when the page is durable."""
    engine = FakeEngine(settings=config(eager_mirror=False))
    engine.admit("a", list(range(41)), prompt=41, step=40)
    engine.step({"a": 40})
    spills = sorted(transfer.id for transfer in engine.plan().transfers)
    engine.execute_all()
    engine.mail.clear()
    for completed in (spills[:3], spills[3:]):
        engine.plan()
        engine.plan()
        engine.execute_all()
        engine.c.apply(RankReport(0, 0, completed=frozenset(completed)))
    assert engine.c.snapshot().totals.spill_steps == 3 * 3 + 7 * 5
