"""What stands in a step's plan: deltas, recycled blocks, cleared rows, envelopes, and their order."""

from __future__ import annotations

import pytest
from control.fake_engine import FakeEngine, Shape, config

from hisparse_ops.control.types import (
    HostBlock,
    ImportStarted,
    MirrorEnvelope,
    ResidencyDelta,
    Scheduled,
    StepPlan,
    TransferKind,
)

PROMPT = list(range(16))


def owned_host(engine: FakeEngine) -> set[int]:
    return {block for block, refs in engine.c._state.host.refs.items() if refs}


def left_behind(engine: FakeEngine) -> None:
    """Four published pages of the prompt, none of them with a copy on the GPU."""
    engine.admit("first", [*PROMPT, 99], prompt=16)
    engine.run("first")
    engine.finish("first")
    engine.settle()
    for block, _ in list(engine.c._state.kv_copies.items()):
        engine.c._state.kv_copies.drop(block)


@pytest.mark.parametrize("path", ["growth", "admission", "import", "copy-on-write", "hot region", "adoption"])
def test_fault_28_newly_leased_host_blocks_are_recycled_on_every_path(path: str) -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    left_behind(engine)
    before = owned_host(engine)
    if path == "hot region":
        engine.scarce()
    tail = 16 if path == "copy-on-write" else 17
    engine.admit("a", [*PROMPT, *range(50, 120)], prompt=tail)
    if path == "growth":
        engine.extend("a", 24)
    if path == "import":
        assert isinstance(engine.begin_import("a", 22), ImportStarted)
    if path == "copy-on-write":
        assert isinstance(engine.begin_import("a", 16), ImportStarted)
    plan = engine.plan()
    leased = owned_host(engine) - before
    shared = set(map(engine.c._state.prefix.get, engine.live["a"].hashes(16, 4)))
    assert set(plan.recycled) == leased - shared
    assert bool(plan.recycled) == (path in ("growth", "import", "copy-on-write"))
    assert bool(plan.copies) == (path == "copy-on-write")
    assert not engine.plan().recycled, "once"


def test_s18_rows_of_a_block_leased_again_are_not_served_from_a_hot_buffer() -> None:
    """A host block changes its content while a live request's hot buffer still holds its old rows."""
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=41))
    left_behind(engine)
    engine.scarce()
    engine.admit("reader", [*PROMPT, *range(50, 120)], prompt=17)
    engine.step({"reader": 1})
    slots = engine.workers[0].rows[engine.live["reader"].row].slots
    assert len(slots) == 8, "the hot region is full of rows"
    block = next(iter(slots))[0]
    engine.c._state.host._recycled[block] = None
    engine.step()
    assert all(key[0] != block for key in engine.workers[0].rows[engine.live["reader"].row].slots)


def test_b13_the_first_update_after_readmission_covers_every_page() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    left_behind(engine)
    for _ in range(2):
        answer = engine.admit("a", [*PROMPT, *range(50, 70)], prompt=17)
        assert answer.ok
        engine.extend("a", 20)
        plan = engine.plan()
        mine = [delta for delta in plan.residency if delta.state_row == engine.live["a"].row]
        assert [delta.page for delta in mine] == [0, 1, 2, 3, 4]
        assert all(delta.host_block and delta.indexer_blocks and delta.gpu_blocks for delta in mine)
        engine.preempt("a")


def test_a_row_is_cleared_before_its_next_owner_is_told() -> None:
    engine = FakeEngine(settings=config(max_requests=1))
    engine.admit("a", list(range(9)), prompt=9)
    engine.run("a")
    engine.finish("a")
    assert engine.admit("b", [5, 5, 5], prompt=2).ok, "the row is free at once"
    plan = engine.plan({"b": 2})
    assert plan.cleared_rows == (0,) and [delta.page for delta in plan.residency] == [0]
    assert not engine.plan().cleared_rows
    engine.execute_all()
    assert set(engine.workers[0].rows[0].pages) == {0}


def test_a_page_whose_block_is_handed_out_while_the_plan_is_made_is_dropped_in_it() -> None:
    """Pages that policy gives up for a restore of the same step, for instance."""
    engine = FakeEngine(Shape(num_blocks=71))
    engine.admit("a", list(range(80)), prompt=4)
    engine.run("a")
    engine.step()
    engine.admit("b", list(range(200, 230)), prompt=30)
    engine.c.extend("b", 8)
    request = engine.c._state.live["a"]
    if request.hot is None:
        engine.c._residency.grant_hot(request)
    before = engine.c.snapshot().pages["host-only"]
    engine.plan()
    engine.c.extend("b", 8)
    engine.execute_all()
    engine.deliver_all()
    engine.run("b")
    assert engine.c.snapshot().pages["host-only"] > before
    worker = engine.workers[0].rows[engine.live["a"].row]
    told = {page for page, delta in worker.pages.items() if not delta.gpu_blocks}
    assert told == {page.index for page in request.pages.table if page.kv is None}


def test_pages_of_a_failed_import_leave_the_tables() -> None:
    engine = FakeEngine()
    engine.admit("a", list(range(30)), prompt=20)
    engine.begin_import("a", 14)
    row = engine.live["a"].row
    assert [delta.page for delta in engine.plan().residency] == [0, 1, 2, 3]
    engine.execute_all()
    engine.end_import("a", ok=False)
    assert engine.plan().residency == tuple(ResidencyDelta(row, page, 0, (), ()) for page in (3, 2, 1, 0))
    engine.execute_all()
    engine.run("a")


def test_one_delta_per_page_and_it_is_the_last_word() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    left_behind(engine)
    engine.scarce()
    engine.admit("a", [*PROMPT, *range(50, 120)], prompt=17)
    engine.scarce(False)
    plan = engine.plan()
    pages = [(delta.state_row, delta.page) for delta in plan.residency]
    assert len(set(pages)) == len(pages) == 4
    assert sum(transfer.kind is TransferKind.RESTORE for transfer in plan.transfers) == 4, "moved and back in one step"
    assert all(delta.gpu_blocks for delta in plan.residency)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "lazy"])
def test_envelopes_cover_every_row_that_may_count(eager: bool) -> None:
    """Fault 54: drafts are rows too, and a rejected one is written again."""
    engine = FakeEngine(settings=config(eager_mirror=eager))
    engine.admit("a", list(range(20)), prompt=3)
    envelopes = [engine.step({"a": 1}, drafts={"a": 5}).envelopes for _ in range(2)]
    row = engine.live["a"].row
    expected = [(MirrorEnvelope(row, 0, 6),), (MirrorEnvelope(row, 1, 7),)]
    assert envelopes == (expected if eager else [(), ()])
    engine.run("a")


def test_fault_54_draft_rows_are_not_final() -> None:
    engine = FakeEngine()
    engine.admit("a", list(range(24)), prompt=3)
    engine.step({"a": 3}, drafts={"a": 5})
    engine.settle()
    assert engine.c.snapshot().pages["fresh"] == 2, "eight rows computed, three final: nothing spills"
    engine.step({"a": 2}, drafts={"a": 3})
    engine.settle()
    assert engine.c.snapshot().pages["clean-pinned"] == 1
    engine.run("a")
    engine.finish("a")
    engine.settle()
    assert engine.c.snapshot().published == 6


def test_rows_that_are_final_cannot_be_computed_again() -> None:
    engine = FakeEngine()
    engine.admit("a", list(range(24)), prompt=3)
    engine.step({"a": 6})
    engine.c.seal("a", 6)  # nothing new is no mistake
    engine.c.extend("a", 8)
    with pytest.raises(ValueError, match=r"rows 5 \.\. 6 .* final"):
        engine.c.plan_step([Scheduled("a", 5, 7)])


def test_s7_the_tail_is_never_given_up() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    engine.admit("a", list(range(80)), prompt=4)
    engine.run("a")
    engine.scarce()
    for _ in range(3):
        engine.step()
    pages = engine.c._state.live["a"].pages
    assert [page.state.value for page in pages.table[-3:]] == ["clean-unpinned", "clean-pinned", "clean-pinned"]


def test_s19_blocks_of_a_request_in_flight_rest_until_its_step_is_done() -> None:
    engine = FakeEngine()
    engine.admit("a", list(range(16)), prompt=16)
    engine.plan({"a": 8})
    engine.preempt("a")
    snapshot = engine.c.snapshot()
    assert (snapshot.gpu_resting, snapshot.host_resting) == (6, 2)
    assert snapshot.gpu_blank == snapshot.gpu_usable - 6 and snapshot.host_blank == snapshot.host_usable - 2
    assert not engine.c.quiescent()
    engine.check()
    engine.execute_all()
    assert engine.c.snapshot().gpu_blank == snapshot.gpu_usable and engine.c.quiescent()


def test_s19_a_given_back_hot_region_rests_too() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    left_behind(engine)
    engine.scarce()
    engine.admit("a", [*PROMPT, *range(50, 120)], prompt=17)
    engine.plan({"a": 1})
    engine.finish("a", publish=False)
    assert engine.c.snapshot().gpu_resting == 4 + 4 + 3, "hot region, shared index keys, the page of row 16"
    engine.execute_all()
    assert engine.c.snapshot().gpu_resting == 0


def test_several_steps_in_flight_read_what_they_were_planned_with() -> None:
    engine = FakeEngine(Shape(num_blocks=71))
    engine.admit("a", list(range(80)), prompt=4)
    engine.admit("b", list(range(100, 130)), prompt=30)
    for _ in range(60):
        for _ in range(3):
            engine.plan(dict.fromkeys(engine.live, 2))
            engine.check()
        engine.execute_all()
        engine.deliver_all()
    assert all(who.done for who in engine.live.values()) and engine.c.snapshot().totals.lost_pages > 0


def test_a_reset_is_all_or_nothing_and_leaves_nothing_behind() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    left_behind(engine)
    engine.admit("a", [*PROMPT, *range(50, 70)], prompt=17)
    engine.step({"a": 1})
    sequence = engine.plan().sequence
    engine.reset()
    snapshot = engine.c.snapshot()
    assert snapshot.gpu_blank == snapshot.gpu_usable and snapshot.host_blank == snapshot.host_usable
    assert snapshot.published == 0 and engine.c.quiescent() and snapshot.totals.published_pages == 4
    engine.c.step_done(sequence)
    with pytest.raises(ValueError, match="sequence: expected a planned step"):
        engine.c.step_done(sequence + 1)
    plan = engine.plan()
    assert plan.sequence == sequence + 1 and set(plan.cleared_rows) >= {1}
    with pytest.raises(ValueError, match="'a' is not live"):
        engine.c.extend("a", 20)
    engine.execute_all()
    engine.admit("a", [*PROMPT, 50], prompt=17)
    engine.run("a")


def test_blocks_are_handed_out_in_the_order_that_was_asked_for() -> None:
    engine = FakeEngine(shuffle=7)
    for _ in ("new", "reset"):
        engine.admit("a", PROMPT, prompt=4)
        row = engine.live["a"].row
        assert engine.step({"a": 4}).residency == (ResidencyDelta(row, 0, HostBlock(1000), (8, 15), (1,)),)
        engine.reset()


def test_plans_are_immutable_and_sequences_go_on() -> None:
    engine = FakeEngine()
    plans: list[StepPlan] = [engine.step() for _ in range(3)]
    assert [plan.sequence for plan in plans] == [0, 1, 2]
    with pytest.raises(AttributeError):
        plans[0].sequence = 5  # type: ignore[misc]


def test_a_spill_budget_spreads_the_spills_over_steps() -> None:
    engine = FakeEngine(settings=config(spill_budget=2))
    engine.admit("a", list(range(20)), prompt=20, step=20)
    engine.step({"a": 20})
    spills = [sum(t.kind is TransferKind.SPILL for t in engine.step().transfers) for _ in range(4)]
    assert spills == [2, 2, 1, 0]


def test_pages_of_a_request_that_left_do_not_hold_up_the_spills_of_others() -> None:
    engine = FakeEngine()
    for name in ("a", "b"):
        engine.admit(name, [ord(name)] * 9, prompt=9)
    engine.step({"a": 8, "b": 8})
    engine.preempt("a")
    assert sum(transfer.kind is TransferKind.SPILL for transfer in engine.plan().transfers) == 2


def test_every_restart_is_an_epoch_of_its_own() -> None:
    engine = FakeEngine()
    epochs = [engine.step().epoch]
    for _ in range(2):
        engine.restart(0)
        epochs.append(engine.step().epoch)
    assert epochs == [0, 1, 2]
