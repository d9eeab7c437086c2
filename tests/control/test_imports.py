"""Imports: pages that a transport brings from outside."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control.fake_engine import FakeEngine, Shape, Tokens, config
from control.fake_worker import Faults

from hisparse_ops.control import ControlError
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
    assert not engine.c.quiescent()
    engine.end_import("a", ok=False)
    assert engine.c.quiescent()
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


@pytest.mark.parametrize("short", [0, 1], ids=["enough", "one block short"])
def test_an_import_lands_resident_if_all_of_it_fits_above_the_watermark(short: int) -> None:
    engine = FakeEngine(Shape(num_blocks=201, num_indexer_groups=2))
    engine.admit("a", list(range(90)), prompt=4)
    blocks, mark, gpu = 9 * 4, 200 // 10, engine.c._state.gpu
    held = gpu.lease(gpu.free - blocks - mark + short)
    assert engine.begin_import("a", 9 * SIZE).ok
    assert engine.c.is_host_readable("a") == bool(short)
    gpu.release(held)


@pytest.mark.parametrize(
    ("length", "tokens", "needed", "reserve"),
    [(20, 20, 5 * 4, 0), (90, 36, 9 * 2 + 2 + 4, 4)],
    ids=["resident landing", "host landing"],
)
def test_an_import_is_refused_unless_all_its_blocks_are_there(
    length: int, tokens: int, needed: int, reserve: int
) -> None:
    """On the host: index keys, the writable tail and a hot region, while another is kept to move with."""
    engine = FakeEngine(Shape(num_blocks=201, num_indexer_groups=2))
    engine.admit("a", list(range(length)), prompt=4)
    engine.scarce()
    gpu = engine.c._state.gpu
    short = needed + reserve - 1
    held, last = gpu.lease(gpu.free - short - 1), gpu.lease(1)
    assert engine.begin_import("a", tokens) == Refused(RefusalReason.GPU_BLOCKS, needed, short)
    gpu.release(last)
    assert engine.begin_import("a", tokens).ok and gpu.free == reserve
    gpu.release(held)


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
