"""Imports of what is published here already: rows are shared, and a tail is copied in host memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from control.fake_engine import FakeEngine, Shape, Tokens, config
from control.fake_worker import Faults

from hisparse_ops.control import ControlError, Coordinator
from hisparse_ops.control.types import RefusalReason, Refused

SIZE = 4


def with_published_prompt(engine: FakeEngine, tokens: int) -> None:
    engine.admit("first", [*range(tokens), 99], prompt=tokens)
    engine.run("first")
    engine.finish("first")
    engine.settle()


@pytest.mark.parametrize("ranks", [((0,), (0,)), ((0, 1), (0,)), ((0, 1), (0, 1))], ids=["one", "shared", "private"])
def test_a_published_tail_is_copied_on_write(ranks: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    engine = FakeEngine(Shape(num_blocks=201), config(ranks=ranks[0], writer_ranks=ranks[1]))
    with_published_prompt(engine, 16)
    engine.admit("a", [*range(16), *range(50, 60)], prompt=16)
    started = engine.begin_import("a", 16)
    assert [(page.page, page.host_block) for page in started.pages] == [(3, 0)], "its rows are here already"
    engine.transport("a")
    engine.end_import("a", ok=True, replay=1)
    assert engine.c.is_importing("a"), "the copy is not acknowledged yet"
    (copy,) = engine.plan().copies
    source, destination = copy.source, copy.destination
    assert engine.c._state.host.refs[source] == 1 and engine.c._state.host.refs[destination] == 2, "B10"
    engine.execute_all()
    acknowledgements = [report for report in engine.mail if report.copied]
    assert len(acknowledgements) == len(ranks[0])
    for report in acknowledgements[:-1] * 2:
        engine.c.apply(report)
    assert engine.c.is_importing("a") or len(ranks[0]) == 1
    engine.deliver_all()
    assert not engine.c.is_importing("a") and engine.c._state.host.refs[source] == 0
    engine.run("a")
    engine.check()


def test_a_copy_on_write_may_be_done_before_the_transport_is() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    with_published_prompt(engine, 16)
    engine.admit("a", [*range(16), *range(50, 60)], prompt=16)
    engine.begin_import("a", 16)
    engine.step()
    engine.transport("a")
    engine.end_import("a", ok=True)
    assert not engine.c.is_importing("a") and engine.c.computed_tokens("a") == 16
    engine.run("a")


@pytest.mark.parametrize("when", ["before the end", "after the end", "never"])
def test_a_copy_on_write_that_fails_fails_the_import(when: str) -> None:
    engine = FakeEngine(Shape(num_blocks=201), config(overdue_after=2))
    with_published_prompt(engine, 16)
    engine.admit("a", [*range(16), *range(50, 60)], prompt=16)
    engine.begin_import("a", 16)
    engine.transport("a")
    engine.plan()
    engine.execute_all(Faults(fail_copies=True))
    if when == "never":
        engine.mail.clear()
    if when == "before the end":
        engine.deliver_all()
    engine.end_import("a", ok=True)
    engine.deliver_all()
    for _ in range(4):
        engine.step()
    assert not engine.c.is_importing("a") and engine.c.computed_tokens("a") == 12
    assert engine.c.snapshot().quarantined == (when == "never")
    engine.run("a")


@pytest.mark.parametrize("again", [Coordinator.reset, lambda c: c.restart_rank(0)], ids=["reset", "restart"])
def test_a_reset_waits_for_the_transport_but_not_for_the_copy_of_a_tail(again: Callable[[Coordinator], None]) -> None:
    """The rank that is started anew is the one that would have acknowledged the copy."""
    engine = FakeEngine(Shape(num_blocks=201))
    with_published_prompt(engine, 16)
    engine.admit("a", [*range(16), *range(50, 60)], prompt=16)
    engine.begin_import("a", 16)
    with pytest.raises(ControlError, match="end it first"):
        again(engine.c)
    engine.transport("a")
    engine.end_import("a", ok=True, replay=1)
    assert engine.c.is_importing("a"), "the copy is not acknowledged yet"
    again(engine.c)
    assert engine.c.quiescent()
    engine.c.check()


def test_s3_a_second_import_shares_nothing_above_a_page_that_is_not_published() -> None:
    """The request's own first page is still on its way to be durable: nothing behind it can be one of its prefix."""
    engine = FakeEngine(Shape(num_blocks=201))
    with_published_prompt(engine, 16)
    engine.admit("a", [*range(16), *range(50, 60)], prompt=16, reuse=0)
    assert engine.begin_import("a", 4).pages[0].host_block == 0, "page 0 is copied from the published one"
    engine.transport("a")
    engine.end_import("a", ok=True)
    engine.step()
    engine.settle(1)
    assert not engine.c.is_importing("a") and engine.c._state.live["a"].frontier == 0
    engine.c.seal("a", 4)
    started = engine.begin_import("a", 12)
    assert [page.page for page in started.pages if page.host_block] == [1, 2], "each in a block of its own"
    engine.transport("a")
    engine.end_import("a", ok=True)
    engine.check()
    engine.run("a")


def test_rows_that_are_here_already_are_not_brought_again() -> None:
    """The host prefix is longer than that of the index keys: an import brings the keys alone."""
    engine = FakeEngine(Shape(num_blocks=201))
    with_published_prompt(engine, 16)
    state = engine.c._state
    second = state.prefix.get(Tokens("", list(range(16)), 16).hashes(16, SIZE)[1])
    assert second is not None
    state.key_copies.drop(second)
    answer = engine.admit("a", [*range(16), *range(50, 60)], prompt=16)
    assert answer.cached_tokens == 4
    started = engine.begin_import("a", 15)
    assert [(page.page, page.host_block) for page in started.pages] == [(1, 0), (2, 0), (3, 0)]
    engine.transport("a")
    engine.end_import("a", ok=True)
    engine.settle(1)
    assert engine.c.cached_tokens(engine.live["a"].hashes(16, SIZE)) >= 12, "unless what is missing is really restored"
    engine.run("a")


@pytest.mark.parametrize("leave", ["finish", "preempt"])
def test_a_request_leaves_between_the_end_of_its_import_and_the_copy_of_its_tail(leave: str) -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    with_published_prompt(engine, 16)
    engine.admit("a", [*range(16), *range(50, 60)], prompt=16)
    assert engine.begin_import("a", 16).ok
    engine.transport("a")
    engine.end_import("a", ok=True)
    assert engine.c.is_importing("a")
    getattr(engine, leave)("a")
    engine.check()
    engine.settle()
    assert engine.c.quiescent() and engine.c.reclaimable() == engine.c.snapshot().gpu_usable
    assert engine.admit("a", [*range(16), 50], prompt=17).ok, "its id is free again"


def test_growth_waits_for_host_blocks_of_a_copy_under_way() -> None:
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=13))
    with_published_prompt(engine, 16)
    engine.admit("a", [*range(16), *range(50, 60)], prompt=16)
    engine.admit("b", [7] * 48, prompt=4, step=48)
    engine.begin_import("a", 16)
    engine.end_import("a", ok=True)
    engine.plan()
    engine.execute_all()
    engine.preempt("a")
    assert engine.c.extend("b", 44) == Refused(RefusalReason.PENDING, 11, 10), "both its ends are taken"
    engine.deliver_all()
    assert engine.c.extend("b", 44).ok


@pytest.mark.parametrize("tokens", [4, 16])
def test_imports_take_no_more_than_they_need(tokens: int) -> None:
    """The host blocks of pages that are here already are shared, but for the tail's. What is shared can be leased by
    nobody, nor can what is set aside for the rest of the prompt."""
    engine = FakeEngine(Shape(num_blocks=61, host_blocks=13))
    with_published_prompt(engine, 16)
    host = engine.c._state.host
    engine.admit("a", list(range(16)), prompt=16, reuse=0)
    held = [host.lease() for _ in range(host.free - host.cached)]
    assert engine.begin_import("a", tokens) == Refused(RefusalReason.HOST_BLOCKS, 1, 0)
    host.release(held.pop())
    assert engine.begin_import("a", tokens).ok, "one block, for the tail"
    assert host.free == (16 - tokens) // SIZE


def test_overdue_copies_on_write_are_counted() -> None:
    engine = FakeEngine(Shape(num_blocks=201), config(overdue_after=2))
    with_published_prompt(engine, 16)
    for name in ("a", "b"):
        engine.admit(name, [*range(16), *range(50, 60)], prompt=16)
        assert engine.begin_import(name, 16).ok
        engine.transport(name)
        engine.end_import(name, ok=True)
    for _ in range(4):
        engine.plan()
        engine.execute_all()
        engine.mail.clear()
    assert engine.c.snapshot().totals.overdue == 2
    assert not engine.c.is_importing("a") and not engine.c.is_importing("b")
