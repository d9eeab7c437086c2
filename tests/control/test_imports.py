"""Imports: pages that a transport brings from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from control.fake_engine import FakeEngine, Shape, Tokens, config
from control.fake_worker import Faults

from hisparse_ops.control import ControlError, Coordinator
from hisparse_ops.control.types import ImportStarted, RefusalReason, Refused, TransferKind

SIZE = 4
LENGTHS = [1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE - 1, 2 * SIZE, 2 * SIZE + 1, 8 * SIZE - 1]


def begin(engine: FakeEngine, tokens: int, name: str = "a", more: int = 6, seed: int = 0) -> ImportStarted:
    assert engine.admit(name, list(range(seed, seed + tokens + more)), prompt=tokens + 1).ok
    answer = engine.begin_import(name, tokens)
    assert isinstance(answer, ImportStarted)
    return answer


@pytest.mark.parametrize("replay", [0, 1], ids=["compute on", "replay the last token"])
@pytest.mark.parametrize("host", [False, True], ids=["resident landing", "host landing"])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_fault_49_lengths_around_page_boundaries(tokens: int, host: bool, replay: int) -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    engine.scarce(host)
    more = 60  # long enough to be movable
    begin(engine, tokens, more=more)
    engine.transport("a")
    engine.end_import("a", ok=True, replay=replay)
    engine.check()
    full, tail = (tokens - 1) // SIZE, (tokens - 1) // SIZE
    who = engine.live["a"]
    assert engine.c.cached_tokens(who.hashes(tokens, SIZE)) == full * SIZE, "only full pages are hashed"
    plan = engine.plan({"a": 1})
    restored = {transfer.host_block for transfer in plan.transfers if transfer.kind is TransferKind.RESTORE}
    resident = [delta.page for delta in plan.residency if delta.gpu_blocks and delta.host_block in restored]
    assert resident == ([tail] if host else list(range(tail + 1))), "one writable tail, and what is landed"
    assert engine.c.is_host_readable("a") == host
    assert plan.envelopes[0].start == tokens - replay
    engine.execute_all()
    engine.deliver_all()
    engine.scarce(False)
    engine.run("a")
    engine.finish("a")
    engine.settle()
    assert engine.c.cached_tokens(who.hashes(tokens + more, SIZE)) == (tokens + more) // SIZE * SIZE


def test_b13_a_host_landing_is_told_although_a_step_was_planned_while_it_was_under_way() -> None:
    """The step says of its pages that they lie nowhere; the one after the import must say where they lie."""
    engine = FakeEngine(Shape(num_blocks=201))
    engine.scarce(True)
    begin(engine, 4 * SIZE, more=60)
    early = engine.plan({})
    assert {delta.host_block for delta in early.residency} == {0}, "nothing may be read yet"
    engine.transport("a")
    engine.end_import("a", ok=True, replay=0)
    told = {delta.page: delta.host_block for delta in engine.plan({"a": 1}).residency}
    assert engine.c.is_host_readable("a")
    assert all(told[page] for page in range(4))
    engine.execute_all()  # the workers check every row that they read


@pytest.mark.parametrize("first", ["end", "request"], ids=["import ends first", "request leaves first"])
@pytest.mark.parametrize("leave", ["finish", "preempt"])
def test_fault_31_half_an_import_fails_and_both_release_paths_run(first: str, leave: str) -> None:
    engine = FakeEngine()
    begin(engine, 16)
    engine.transport("a", pages=2)
    free = engine.c.snapshot().gpu_blank
    ways = [lambda: engine.end_import("a", ok=False), lambda: getattr(engine, leave)("a")]
    for way in ways if first == "end" else reversed(ways):
        way()
        engine.check()
    snapshot = engine.c.snapshot()
    assert free < snapshot.gpu_blank == snapshot.gpu_usable and snapshot.host_blank == snapshot.host_usable
    assert snapshot.published == 0, "S12: a failed import proves nothing"
    with pytest.raises(ValueError, match="no import under way"):
        engine.c.end_import("a", ok=False)


def test_what_a_transport_may_write_stays_taken_until_the_import_ends() -> None:
    engine = FakeEngine()
    started = begin(engine, 16)
    engine.preempt("a")
    engine.settle(3)
    assert engine.c.snapshot().host_blank == engine.c.snapshot().host_usable - len(started.pages)
    assert engine.admit("a", [1, 2], prompt=2) == Refused(RefusalReason.DUPLICATE, 1, 0)
    assert not engine.c.quiescent()
    with pytest.raises(ControlError, match="an import is under way"):
        engine.c.reset()
    engine.transport("a")
    engine.end_import("a", ok=True)
    assert engine.c.quiescent() and engine.c.snapshot().published == 0
    assert engine.admit("a", [1, 2], prompt=2).ok


def test_fault_53_pages_computed_anew_after_a_failed_import() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    begin(engine, 14)
    engine.transport("a", pages=1)
    engine.end_import("a", ok=False)
    who = engine.live["a"]
    assert engine.c.computed_tokens("a") == 0
    engine.extend("a", 8)
    engine.settle()
    assert engine.c.cached_tokens(who.hashes(14, SIZE)) == 0, "an allocation proves nothing"
    assert engine.c.snapshot().pages["fresh"] == 2
    engine.run("a")
    engine.settle()
    assert engine.c.cached_tokens(who.hashes(20, SIZE)) == 20


def test_s13_an_unsealed_tail_is_never_read_from_the_host() -> None:
    engine = FakeEngine()
    engine.scarce(True)
    begin(engine, 14, more=60)
    engine.transport("a")
    engine.end_import("a", ok=True)
    plan = engine.plan({"a": 1})
    engine.execute_all(Faults(fail_restores=True))
    engine.deliver_all()
    assert plan.transfers and "a" not in engine.live, "the worker could not run it: preempted"
    assert engine.admit("a", list(range(74)), prompt=15).cached_tokens == 12, "back at its last good page"
    engine.run("a")


def test_a_tail_whose_restore_failed_is_readable_nowhere() -> None:
    engine = FakeEngine()
    begin(engine, 6)
    engine.transport("a")
    engine.end_import("a", ok=True)
    engine.plan()
    engine.execute_all(Faults(fail_restores=True))
    engine.deliver_all()
    engine.settle(2)
    assert not engine.c.is_readable("a") and engine.c.snapshot().requests["unreadable"] == 1
    with pytest.raises(ValueError, match="positions that cannot be read"):
        engine.c.extend("a", 7)
        engine.c.plan_step([("a", 6, 7)])
    engine.finish("a")
    engine.settle()
    assert engine.c.quiescent() and engine.c.snapshot().gpu_blank + engine.c.snapshot().gpu_readable == 60


def test_a_tail_whose_restore_is_given_up_is_read_by_nobody() -> None:
    engine = FakeEngine(settings=config(overdue_after=3))
    begin(engine, 6)
    engine.transport("a")
    engine.end_import("a", ok=True)
    engine.plan()
    engine.execute_all()
    engine.mail.clear()
    engine.settle(6)
    assert not engine.c.is_readable("a") and engine.c.snapshot().quarantined == 2, "two pages, both restored"


def test_a_restored_tail_whose_new_rows_miss_their_mirror_is_read_on() -> None:
    """The restore has ended well; only the host copy of the page is in doubt."""
    engine = FakeEngine()
    begin(engine, SIZE + 1)
    engine.transport("a")
    engine.end_import("a", ok=True)
    engine.step({"a": 1}, unmirrored={"a": 1})
    assert engine.c.is_readable("a") and engine.c.fully_resident("a")
    engine.run("a")
    engine.finish("a")
    engine.settle()
    who = Tokens("a", list(range(SIZE + 1 + 6)), SIZE + 2)
    assert engine.c.cached_tokens(who.hashes(len(who.tokens), SIZE)) == SIZE, "the page in doubt is not published"
    assert engine.c.quiescent()


def test_a_lost_tail_that_is_sealed_all_the_same_is_not_spilled() -> None:
    """Its rows were computed before control heard that the restore had failed."""
    engine = FakeEngine()
    begin(engine, 12)
    engine.transport("a")
    engine.end_import("a", ok=True)
    engine.plan()
    engine.execute_all(Faults(fail_restores=True))
    engine.deliver_all()
    assert not engine.c.is_readable("a")
    engine.seal(engine.live["a"], 12)
    assert all(transfer.kind is TransferKind.RESTORE for transfer in engine.plan().transfers), "other pages are retried"
    engine.finish("a")
    engine.settle()
    assert engine.c.quiescent()


def test_a_detached_request_does_not_wait_for_a_tail_that_is_lost() -> None:
    engine = FakeEngine()
    begin(engine, 12)
    engine.transport("a")
    engine.end_import("a", ok=True)
    who = engine.live["a"]
    engine.plan()
    engine.seal(who, 12)
    engine.finish("a")
    assert engine.c.snapshot().requests["detached"] == 1
    engine.execute_all(Faults(fail_restores=True))
    engine.deliver_all()
    engine.settle(2)
    assert engine.c.quiescent() and engine.c.cached_tokens(who.hashes(12, SIZE)) == 8
    assert engine.c.reclaimable() == engine.c.snapshot().gpu_usable


@pytest.mark.parametrize("tokens", [4, 8])
def test_fault_45_an_import_of_which_nothing_is_external(tokens: int) -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    engine.admit("first", list(range(12)), prompt=8)
    engine.run("first")
    engine.finish("first")
    engine.settle()
    engine.admit("a", [*range(8), 50, 51], prompt=9)
    assert engine.begin_import("a", tokens) == ImportStarted((), None)
    with pytest.raises(ControlError, match="end it first"):
        engine.c.extend("a", 9)
    engine.end_import("a", ok=True)
    assert engine.c.computed_tokens("a") == 8
    engine.run("a")


@pytest.mark.parametrize("host_first", [True, False], ids=["host", "resident"])
def test_fault_45_a_landing_is_chosen_once(host_first: bool) -> None:
    """Tried again for lack of room, it is the same, whatever has changed since."""
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=41))
    engine.admit("a", list(range(90)), prompt=4)
    host = engine.c._state.host
    blocks = [host.lease() for _ in range(host.free - 2)]
    engine.scarce(host_first)
    answer = engine.begin_import("a", 36)
    assert isinstance(answer, Refused) and answer.reason is RefusalReason.HOST_BLOCKS
    for block in blocks:
        host.release(block)
    engine.scarce(not host_first)
    assert engine.begin_import("a", 36).ok
    engine.transport("a")
    engine.end_import("a", ok=True)
    assert engine.c.is_host_readable("a") == host_first and engine.c.fully_resident("a") != host_first
    engine.scarce(False)
    engine.run("a")


def test_l4_two_imports_race_for_the_last_blocks() -> None:
    """Each takes all that it needs, or nothing: two cannot hold half of what both need."""
    engine = FakeEngine(Shape(num_blocks=61, host_blocks=13))
    assert engine.admit("a", list(range(32)), prompt=4).ok
    assert engine.admit("b", list(range(50, 82)), prompt=4).ok
    assert engine.begin_import("a", 32).ok
    before = engine.c.snapshot()
    answer = engine.begin_import("b", 32)
    assert answer == Refused(RefusalReason.HOST_BLOCKS, 8, 4)
    after = engine.c.snapshot()
    assert (after.host_blank, after.gpu_blank) == (before.host_blank, before.gpu_blank)
    assert set(engine.live) == {"a", "b"}, "never by preempting"
    engine.transport("a")
    engine.end_import("a", ok=True)
    engine.run("a", until=32)
    engine.finish("a")
    engine.settle()
    assert engine.begin_import("b", 32).ok


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


def test_s19_a_transport_waits_for_the_steps_that_may_still_read() -> None:
    engine = FakeEngine()
    engine.admit("b", [9] * 30, prompt=8)
    engine.plan({"b": 8})
    plan = engine.plan()
    started = begin(engine, 8)
    assert started.after_step == plan.sequence and not engine.may_write("a")
    engine.execute_all()
    assert engine.may_write("a")
    engine.end_import("a", ok=False)


def test_an_import_comes_before_everything_else() -> None:
    engine = FakeEngine()
    engine.admit("a", list(range(20)), prompt=8)
    engine.extend("a", 4)
    with pytest.raises(ControlError, match="too late for an import"):
        engine.c.begin_import("a", 8)
    plain = FakeEngine(settings=replace(config(), host_tier=False))
    plain.admit("a", list(range(20)), prompt=8)
    with pytest.raises(ControlError, match="needs the host tier"):
        plain.c.begin_import("a", 8)


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


def test_imports_take_no_more_than_they_need() -> None:
    """The host blocks of pages that are here already are shared, but for the tail's."""
    engine = FakeEngine(Shape(num_blocks=61, host_blocks=13))
    with_published_prompt(engine, 16)
    host = engine.c._state.host
    engine.admit("a", list(range(16)), prompt=16, reuse=0)
    held = [host.lease() for _ in range(len(list(host.blank_blocks())) - 1)]
    assert engine.begin_import("a", 16).ok, "one block, for the tail"
    assert host.free == 0 and held


def test_an_overdue_copy_on_write_is_counted() -> None:
    engine = FakeEngine(Shape(num_blocks=201), config(overdue_after=2))
    with_published_prompt(engine, 16)
    overdue = engine.c.snapshot().totals.overdue
    engine.admit("a", [*range(16), *range(50, 60)], prompt=16)
    assert engine.begin_import("a", 16).ok
    engine.transport("a")
    engine.end_import("a", ok=True)
    for _ in range(4):
        engine.plan()
        engine.execute_all()
        engine.mail.clear()
    assert engine.c.snapshot().totals.overdue == overdue + 1 and not engine.c.is_importing("a")
