"""Transfers and reports through the façade: what is lost, late, doubled, failed or foreign."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control.fake_engine import FakeEngine, Shape, Tokens, config
from control.fake_worker import Faults

from hisparse_ops.control.types import Admitted, RankReport, TransferKind

PROMPT = list(range(16))  # four pages
THREE_RANKS = {"ranks": (0, 1, 2), "writer_ranks": (0, 1, 2)}


def spilling(engine: FakeEngine, name: str = "a") -> None:
    """A request whose four full pages are sealed, and spilled by a step that nobody has reported."""
    assert engine.admit(name, [*PROMPT, 100, 101], prompt=16, step=16).ok
    engine.step({name: 16})
    engine.plan()
    engine.execute_all()
    assert len(engine.c._state.transfers.active) == 4


def hit(engine: FakeEngine) -> int:
    """Tokens of the prompt that a later request would find."""
    return engine.c.cached_tokens(Tokens("", PROMPT, 16).hashes(16, 4))


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "lazy"])
def test_fault_30_published_after_three_ranks_not_three_reports(eager: bool) -> None:
    engine = FakeEngine(settings=config(eager_mirror=eager, **THREE_RANKS))
    spilling(engine)
    engine.copy_engines()
    by_rank = {rank: [report for report in engine.mail if report.rank == rank] for rank in range(3)}
    for report in by_rank[0] * 3 + by_rank[1]:
        engine.c.apply(report)
    assert hit(engine) == 0, "three reports and more, but of two ranks"
    *first, last = by_rank[2]
    for report in [*first, replace(last, completed=frozenset(list(last.completed)[:2]))]:
        engine.c.apply(report)
    engine.step()
    engine.c.apply(last)
    assert hit(engine) == 16
    engine.check()


def test_fault_27_preempted_and_readmitted_before_the_completion() -> None:
    engine = FakeEngine()
    spilling(engine)
    late, engine.mail = engine.mail, []
    engine.preempt("a")
    assert engine.admit("a", [*PROMPT, 100, 101], prompt=16, step=16) == Admitted(1, 0, 0)
    engine.check()
    for report in late * 2:
        engine.c.apply(report)
        engine.check()
    assert hit(engine) == 0, "S14: what was pending at preemption is never published"
    engine.run("a")
    engine.settle()
    assert hit(engine) == 16


def test_fault_29_a_report_that_never_comes() -> None:
    engine = FakeEngine()
    spilling(engine)
    late, engine.mail = engine.mail, []
    engine.finish("a")
    engine.settle(70)
    snapshot = engine.c.snapshot()
    assert snapshot.quarantined == 4 and engine.c.quiescent(), "shown, and nobody waits for it"
    assert snapshot.totals.overdue == 4
    taken = snapshot.gpu_usable - snapshot.gpu_blank - snapshot.gpu_readable
    assert taken == 4 * 2, "its blocks rest"
    assert snapshot.host_usable - snapshot.host_blank - snapshot.host_cached == 4
    for report in late:
        engine.c.apply(report)
    assert engine.c.snapshot() == snapshot, "the late report is a no-op"
    engine.reset()
    assert engine.c.snapshot().gpu_blank == snapshot.gpu_usable
    engine.check()


def test_an_overdue_restore_leaves_the_page_on_the_host() -> None:
    engine = FakeEngine(settings=config(overdue_after=2))
    engine.admit("a", [*PROMPT, 100], prompt=16, step=16)
    engine.run("a")
    engine.finish("a")
    engine.settle(2)
    for block in [block for block, _ in engine.c._state.kv_copies.items()]:
        engine.c._state.kv_copies.drop(block)
    assert engine.admit("b", [*PROMPT, 100], prompt=17) == Admitted(1, 16, 0)
    engine.plan()
    engine.execute_all()
    engine.mail.clear()
    while not engine.c.snapshot().quarantined:
        assert not engine.plan().transfers
        engine.execute_all()
    assert not engine.c.is_readable("b")
    again = [transfer.kind for transfer in engine.step().transfers]
    assert again == [TransferKind.RESTORE] * 4 and engine.c.is_readable("b"), "into other blocks"
    engine.run("b")


@pytest.mark.parametrize("good", [True, False], ids=["done", "failed"])
def test_a_restore_that_outlives_its_request(good: bool) -> None:
    """The request has left, but still publishes its own page; the restored ones are not its any more."""
    engine = FakeEngine()
    engine.admit("a", [*PROMPT, 100], prompt=16, step=16)
    engine.run("a")
    engine.finish("a")
    engine.settle(2)
    for block in [block for block, _ in engine.c._state.kv_copies.items()]:
        engine.c._state.kv_copies.drop(block)
    engine.admit("b", [*PROMPT, *range(200, 204)], prompt=17)
    engine.plan({"b": 4})
    restores = frozenset(engine.c._state.transfers.active)
    engine.execute_all()
    engine.mail = [replace(report, completed=report.completed - restores) for report in engine.mail]
    engine.finish("b")
    engine.settle(2)
    assert engine.c._pressure.coming() == 4 * 2, "what they are restored into"
    engine.c.apply(RankReport(0, 0, **{"completed" if good else "failed": restores}))
    engine.check()
    assert engine.c.quiescent() and engine.c.reclaimable() == engine.c.snapshot().gpu_usable
    assert len(dict(engine.c._state.kv_copies.items())) == (5 if good else 1)


def test_a_restore_is_over_when_every_rank_has_it() -> None:
    """Ranks that do not write host memory read it."""
    engine = FakeEngine(settings=config(ranks=(0, 1), writer_ranks=(0,)))
    engine.admit("a", [*PROMPT, 100], prompt=16, step=16)
    engine.run("a")
    engine.finish("a")
    engine.settle(2)
    for block in [block for block, _ in engine.c._state.kv_copies.items()]:
        engine.c._state.kv_copies.drop(block)
    engine.admit("b", [*PROMPT, 100], prompt=17)
    engine.plan()
    engine.execute_all()
    for rank in (0, 1):
        assert engine.c.snapshot().pages["restoring"] == 4
        for report in [report for report in engine.mail if report.rank == rank]:
            engine.c.apply(report)
    assert engine.c.snapshot().pages["clean-pinned"] == 4


def test_a_rank_that_writes_no_host_memory_has_no_say_in_spills() -> None:
    engine = FakeEngine(settings=config(ranks=(0, 1), writer_ranks=(0,)))
    spilling(engine)
    ids = frozenset(engine.spills)
    engine.c.apply(RankReport(1, 0, enqueued=ids, completed=ids))
    engine.c.apply(RankReport(1, 0, failed=ids))
    assert hit(engine) == 0
    engine.deliver_all()
    assert hit(engine) == 16


def test_enqueued_is_not_durable() -> None:
    """The reason for two phases: the bytes may still be on their way when stream order is enough."""
    engine = FakeEngine(settings=config(eager_mirror=False))
    spilling(engine)
    engine.deliver_all()
    assert hit(engine) == 0 and engine.c.snapshot().transfers[TransferKind.SPILL] == 4
    assert {page.kv.refs for page in engine.c._state.live["a"].pages.table} == {1}, (
        "but the blocks are the page's alone"
    )
    engine.check()
    engine.copy_engines()
    engine.deliver_all()
    assert hit(engine) == 16
    engine.check()


def test_completed_is_not_durable_without_the_mirror_proof() -> None:
    engine = FakeEngine()
    engine.admit("a", [*PROMPT, 100], prompt=16, step=16)
    engine.plan({"a": 16})
    engine.execute_all()
    proof = [report for report in engine.mail if report.mirrored]
    engine.mail = [report for report in engine.mail if not report.mirrored]
    engine.step()
    assert hit(engine) == 0
    for report in proof:
        engine.c.apply(replace(report, mirrored={**report.mirrored, 99: ()}))
    assert hit(engine) == 16, "whatever else the report says"
    engine.check()


def test_every_step_that_wrote_a_page_must_be_proven() -> None:
    engine = FakeEngine()
    engine.admit("a", [*PROMPT, 100], prompt=16, step=16)
    engine.c.extend("a", 8)
    engine.plan({"a": 2})
    engine.execute_all()
    proof = [report for report in engine.mail if report.mirrored]
    engine.mail.clear()
    engine.step({"a": 6})
    engine.settle(2)
    assert hit(engine) == 0 and engine.c.snapshot().pages["clean-pinned"] == 1, "page 1 was written by one step only"
    for report in proof:
        engine.c.apply(report)
    assert hit(engine) == 8


def test_s15_rows_that_were_not_mirrored_keep_their_page_from_the_host() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    engine.admit("a", [*PROMPT, *range(100, 120)], prompt=16, step=8)
    engine.step({"a": 8}, unmirrored={"a": 1})
    engine.run("a")
    engine.settle()
    assert hit(engine) == 0, "S3: pages 0 and 1 share the short envelope, so nothing is published"
    assert engine.c.snapshot().tainted_pages == 2
    assert engine.c.snapshot().pages["clean-pinned"] == 7, "the other pages became durable all the same"


@pytest.mark.parametrize("rows", [3, 4])
def test_s15_a_page_that_the_step_does_not_write_is_not_in_doubt(rows: int) -> None:
    engine = FakeEngine()
    engine.admit("a", PROMPT, prompt=16)
    engine.c.extend("a", 8)
    engine.step({"a": rows}, unmirrored={"a": 1})
    assert engine.c._state.live["a"].pages.tainted == {0}


def test_a_page_known_to_be_unproven_is_not_spilled() -> None:
    engine = FakeEngine()
    engine.admit("a", [*PROMPT, 100], prompt=16, step=16)
    engine.step({"a": 16}, unmirrored={"a": 1})
    assert engine.c.snapshot().tainted_pages == 4, "the four pages share the short envelope"
    assert engine.step().transfers == (), "their copies would never be durable"
    assert engine.c.snapshot().pages["fresh"] == 4


def test_graph_replay_that_skips_every_hook_publishes_nothing() -> None:
    engine = FakeEngine()
    engine.admit("a", [*PROMPT, 100], prompt=16, step=16)
    engine.step({"a": 16}, unmirrored={"a": 16})
    engine.settle()
    engine.finish("a")
    engine.settle()
    assert engine.c.snapshot().published == 0 and engine.c.quiescent()
    assert engine.c.reclaimable() == engine.c.snapshot().gpu_usable


def test_fault_35_a_failure_reported_for_one_page_is_that_pages() -> None:
    engine = FakeEngine()
    spilling(engine)
    third = sorted(engine.spills)[2]
    engine.mail = [replace(report, completed=report.completed - {third}) for report in engine.mail]
    engine.c.apply(RankReport(0, 0, failed=frozenset({third})))
    engine.deliver_all()
    assert hit(engine) == 8, "publication stops at a page boundary common to all groups"
    assert engine.c.snapshot().tainted_pages == 1 and engine.c.snapshot().pages["clean-pinned"] == 3
    engine.run("a")


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "lazy"])
def test_fault_36_a_copy_that_fails(eager: bool) -> None:
    engine = FakeEngine(settings=config(eager_mirror=eager))
    engine.admit("a", [*PROMPT, 100, 101], prompt=16, step=16)
    engine.step({"a": 16})
    engine.plan()
    engine.execute_all(Faults(fail_spills=True))
    engine.deliver_all()
    engine.settle()
    assert hit(engine) == 0 and engine.c.snapshot().tainted_pages == 4
    engine.run("a")
    engine.finish("a")
    engine.settle()
    assert engine.c.quiescent() and engine.c.reclaimable() == engine.c.snapshot().gpu_usable


def test_fault_44_a_hot_region_between_enqueued_and_completed() -> None:
    engine = FakeEngine(settings=config(eager_mirror=False))
    spilling(engine)
    engine.deliver_all()
    request = engine.c._state.live["a"]
    engine.c._residency.grant_hot(request)
    engine.copy_engines()
    engine.deliver_all()
    engine.check()
    assert hit(engine) == 16
    engine.finish("a")
    engine.settle()
    assert engine.c.reclaimable() == engine.c.snapshot().gpu_usable


def test_fault_46_the_last_request_ends_with_its_last_spill_pending() -> None:
    engine = FakeEngine()
    spilling(engine)
    who = engine.live.pop("a")
    engine.c.finish("a")
    assert not engine.c.quiescent() and engine.c.snapshot().requests["detached"] == 1
    engine.deliver_all()
    assert engine.c.quiescent() and engine.c.cached_tokens(who.hashes(16, 4)) == 16
    engine.check()


def test_fault_43_ranks_that_complete_at_different_times_get_the_same_plans() -> None:
    engine = FakeEngine(settings=config(**THREE_RANKS))
    spilling(engine)
    engine.copy_engines()
    for report in [r for r in engine.mail if r.rank != 2]:
        engine.c.apply(report)
    engine.mail = [r for r in engine.mail if r.rank == 2]
    assert engine.c.snapshot().pages["spilling"] == 4, "two of three is nothing yet"
    engine.deliver_all()
    assert engine.c.snapshot().pages["clean-pinned"] == 4


def test_fault_24_a_step_without_tokens_moves_pending_work_on() -> None:
    engine = FakeEngine()
    engine.admit("a", [*PROMPT, 100], prompt=16, step=16)
    engine.step({"a": 16})
    plan = engine.plan()
    assert [transfer.kind for transfer in plan.transfers] == [TransferKind.SPILL] * 4 and not plan.envelopes


def test_reports_from_before_a_reset_mean_nothing_after_it() -> None:
    engine = FakeEngine(settings=config(eager_mirror=False))
    spilling(engine)
    engine.copy_engines()
    late, engine.mail = engine.mail, []
    engine.reset()
    spilling(engine)
    for report in late:
        engine.c.apply(report)
    assert engine.c.snapshot().pages["spilling"] == 4 and engine.c.snapshot().published == 0
    engine.check()


def test_an_id_used_again_does_not_inherit_old_reports() -> None:
    engine = FakeEngine()
    spilling(engine)
    late, engine.mail = engine.mail, []
    engine.preempt("a")
    engine.admit("a", [7] * 18, prompt=16, step=16)
    engine.step({"a": 16})
    for report in late:
        engine.c.apply(report)
    engine.check()
    assert engine.c.cached_tokens(engine.live["a"].hashes(16, 4)) == 0
    engine.settle()
    assert engine.c.cached_tokens(engine.live["a"].hashes(16, 4)) == 16


def test_a_restart_begins_a_new_epoch_in_which_old_reports_mean_nothing() -> None:
    engine = FakeEngine()
    spilling(engine)
    late, engine.mail = engine.mail, []
    row = engine.live["a"].row
    engine.restart(0)
    plan = engine.plan()
    assert plan.epoch == 1 and row in plan.cleared_rows
    engine.execute_all()
    for report in late:
        engine.c.apply(report)
    assert engine.c.snapshot().published == 0
    engine.admit("b", [*PROMPT, 100, 101], prompt=16, step=16)
    engine.run("b")
    engine.finish("b")
    engine.settle()
    assert engine.c.snapshot().published == 4, "the new epoch works"
    with pytest.raises(ValueError, match="rank: expected one of"):
        engine.c.restart_rank(5)


def test_l8_a_small_spill_budget_starves_no_page() -> None:
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=201), config(spill_budget=1))
    for name in ("a", "b"):
        engine.admit(name, [ord(name)] * 16 + list(range(100, 116)), prompt=16, step=16)
    for _ in range(32):
        engine.step({"a": 1, "b": 1})
    engine.settle(20)
    assert engine.c.snapshot().pages["clean-pinned"] == 16
