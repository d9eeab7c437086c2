"""The worker's real order of calls, asked by the checker of streams: no race, and every wait is needed.

In each case a worker is driven through steps that nobody waits for on the CPU, unless it is said; what it
issues is recorded. Then the program is asked again without each wait, without each event that is waited
for or seen, and without each thing that the CPU saw.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from engine.toy_model import VOCAB, ToyModel
from protocol.stream_recorder import Recorder
from worker.harness import LAYERS, LEADERS, Request, Rig

from hisparse_ops.control import CoordinatorConfig
from hisparse_ops.control.types import BlockCopy, MirrorEnvelope, StepPlan, TransferId, TransferKind
from hisparse_ops.engine import Engine, EngineConfig
from hisparse_ops.engine import Request as Job
from hisparse_ops.memory.layout import plan_layout
from spec.streams import Item, Op, Record, Seen, Wait, find_race, op, orders

SPILL = TransferKind.SPILL
BLOCK = 4
TOKENS = 48  # of a request of the engine


class Scene:
    """A recorded worker, and requests whose first steps lie behind it."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.rig = Rig(BLOCK, streams=self.recorder.streams)
        self.recorder.watch(self.rig.worker)

    def settled(self, tokens: int) -> Request:
        """A request that has computed so many tokens, mirrored, and holds its hot region."""
        request = self.rig.request()
        self.rig.compute(request, 0, tokens)
        self.rig.idle(hot=self.rig.grant_hot(request))
        self.forget()
        return request

    def drop(self, request: Request, number: int) -> tuple[int, ...]:
        """The page is on the host alone from the next plan on; the blocks it leaves."""
        blocks, request.pages[number].gpu = request.pages[number].gpu, ()
        return blocks

    def step(self, plan: StepPlan, request: Request | None = None, picks: tuple[int, ...] = ()) -> None:
        """A step in which the request computes its next token, reading the rows at `picks`."""
        with self.recorder:
            self.rig.worker.begin_step(plan)
            if request is not None:
                kv = self.rig.worker.kv(request.state_row, request.tokens, 1, prefill=False)
                self.rig.fill(kv, request)
                topk = torch.tensor([[*picks, request.tokens]], dtype=torch.int32)
                for layer in range(LAYERS):
                    kv.selected_rows(layer, topk if layer in LEADERS else None)
                request.tokens += 1
            self.rig.worker.end_step()

    def prompt(self, plan: StepPlan, request: Request, start: int, end: int) -> None:
        """A step in which the request computes part of its prompt."""
        with self.recorder:
            self.rig.worker.begin_step(plan)
            kv = self.rig.worker.kv(request.state_row, start, end - start, prefill=True)
            self.rig.fill(kv, request)
            for layer in range(LAYERS):
                kv.context_rows(layer)
            self.rig.worker.end_step()

    def spill_first_page(self, tokens: int) -> Request:
        """A request computes so many tokens in one step, and its first page is spilled in the next."""
        request = self.rig.request()
        self.prompt(self.rig.plan(residency=self.rig.grow(request, tokens)), request, 0, tokens)
        self.step(self.rig.plan(transfers=(self.rig.transfer(SPILL, request.pages[0]),)))
        return request

    def see_the_end(self) -> None:
        """The CPU sees that the last step has ended."""
        self.recorder.events[-1].is_done = True
        self.rig.worker.poll()

    def forget(self) -> None:
        """All that was issued has ended: the case begins here."""
        for event in self.recorder.events:
            event.is_done = True
        self.rig.worker.poll()
        self.program.clear()

    @property
    def program(self) -> list[Item]:
        return self.recorder.program


def restore_over_a_block_still_read(scene: Scene) -> None:
    """Step 2 copies a host page and restores another into blocks that step 1 reads, and reads that page."""
    rig, request = scene.rig, scene.settled(22)
    scene.drop(request, 0)
    rig.idle(residency=(rig.delta(request, 0),))
    scene.forget()
    scene.step(rig.plan(), request, picks=(1, 5))
    request.pages[0].gpu = scene.drop(request, 1)  # type: ignore[assignment]
    deltas = (rig.delta(request, 1), rig.delta(request, 0))
    copy = BlockCopy(TransferId(900), request.pages[2].host, rig.host_block())
    restore = rig.transfer(TransferKind.RESTORE, request.pages[0])
    scene.step(rig.plan(residency=deltas, transfers=(restore,), copies=(copy,)), request, picks=(1, 5))


def spill_of_rows_just_written(scene: Scene) -> None:
    """The step that fills a page is in flight when the page is spilled by the next one."""
    scene.spill_first_page(8)


def blocks_of_a_spill_with_a_new_owner(scene: Scene) -> None:
    """The request is preempted once its spill is enqueued; another one gets the blocks."""
    rig, first, second = scene.rig, scene.spill_first_page(8), scene.rig.request()
    rig.free_gpu += first.pages[0].gpu
    plan = rig.plan(cleared_rows=(first.state_row,), residency=rig.grow(second, 4))
    scene.prompt(plan, second, 0, 4)


def hot_region_in_the_blocks_of_a_spill(scene: Scene) -> None:
    """As above; the blocks become part of a hot region."""
    rig, second = scene.rig, scene.settled(22)
    scene.drop(second, 0)
    first = scene.spill_first_page(8)
    second.hot = tuple((block, *region[1:]) for block, region in zip(first.pages[0].gpu, second.hot, strict=True))
    hot = rig.hot_delta(second)
    plan = rig.plan(cleared_rows=(first.state_row,), hot=hot, residency=(rig.delta(second, 0),))
    scene.step(plan, second, picks=(0, 1, 2, 3, 5))


def spilled_page_read_from_the_host(scene: Scene) -> None:
    """The spill has been seen to complete; the page is given up, and its rows are gathered from the host."""
    rig, request = scene.rig, scene.spill_first_page(22)
    scene.see_the_end()
    scene.drop(request, 0)
    plan = rig.plan(hot=rig.grant_hot(request), residency=(rig.delta(request, 0),))
    scene.step(plan, request, picks=(1, 5))


def mirrored_page_given_to_a_transport(scene: Scene) -> None:
    """A step mirrors to a host block. Once it has been seen to end, the request is gone, and a transport
    that is on no stream writes to that block."""
    rig, request = scene.rig, scene.rig.request()
    envelope = MirrorEnvelope(request.state_row, 0, 4)
    scene.prompt(rig.plan(residency=rig.grow(request, 4), envelopes=(envelope,)), request, 0, 4)
    scene.see_the_end()
    units = range(len(rig.layout.units))
    scene.program.append(op("dma", "import", writes=[f"host unit {u} block {request.pages[0].host}" for u in units]))


Case = Callable[[Scene], None]
CASES: tuple[Case, ...] = (
    restore_over_a_block_still_read,
    spill_of_rows_just_written,
    blocks_of_a_spill_with_a_new_owner,
    hot_region_in_the_blocks_of_a_spill,
    spilled_page_read_from_the_host,
    mirrored_page_given_to_a_transport,
)


def recorded(case: Case) -> list[Item]:
    scene = Scene()
    case(scene)
    scene.rig.close()
    return list(scene.program)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_no_two_operations_race(case: Case) -> None:
    assert find_race(recorded(case)) is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_wait_is_needed(case: Case) -> None:
    program = recorded(case)
    awaited = {item.event for item in program if isinstance(item, Wait | Seen)}
    assert awaited
    for item, rest in orders(program):
        race = find_race(rest)
        if isinstance(item, Record) and item.event not in awaited:
            assert race is None
        else:
            assert race is not None, f"nobody misses {item}"
            assert race.place in race.first.writes | race.second.writes


def a_run_of_the_engine(eager_mirror: bool, monkeypatch: pytest.MonkeyPatch) -> list[Item]:
    """Real plans: control, worker, engine and a toy model, under pressure. An event is done a step late."""
    recorder = Recorder(patience=2)  # the engine asks before and after a step
    monkeypatch.setattr("hisparse_ops.worker.worker.streams_of", lambda device: recorder.streams)
    config = partial(CoordinatorConfig, eager_mirror=eager_mirror)
    monkeypatch.setattr("hisparse_ops.engine.engine.CoordinatorConfig", config)
    toy = ToyModel(top_k=4, block_size=BLOCK, dtype=torch.float32, hot_slots=8)
    sizes = plan_layout(toy.spec, 1 << 24, 1 << 24)
    blocks = 2 * sizes.reserve_blocks(TOKENS, 8) + 1
    layout = plan_layout(toy.spec, blocks * sizes.block_bytes, 60 * sizes.host_block_bytes)
    with Engine(toy, layout, EngineConfig(max_requests=4, max_context=TOKENS, prefill_chunk=8)) as engine:
        recorder.watch(engine._worker)
        prompts = [tuple((7 * number * (i > 15) + i) % VOCAB for i in range(24)) for number in range(4)]
        jobs = [Job(str(number), prompt, 20 if number == 0 else 6) for number, prompt in enumerate(prompts)]
        for job in jobs:
            engine.add(job)
        with recorder:
            while any(not job.done for job in jobs):
                engine.step()
    return recorder.program


@pytest.mark.parametrize("eager_mirror", [True, False], ids=["mirrored", "copied"])
def test_a_whole_run_of_the_engine_has_no_race(eager_mirror: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is a run that would have some: pages are restored, and if rows are not mirrored, spilled."""
    program = a_run_of_the_engine(eager_mirror, monkeypatch)
    assert find_race(program) is None
    needed: list[Callable[[Item], bool]] = [lambda item: isinstance(item, Wait) and item.stream == "compute"]
    if not eager_mirror:
        needed += [lambda item: isinstance(item, Wait) and item.stream == "copy", lambda item: isinstance(item, Seen)]
    for kind in needed:
        assert find_race([item for item in program if not kind(item)]) is not None


def test_the_race_of_a_missing_wait_is_told_as_a_short_story() -> None:
    program = recorded(blocks_of_a_spill_with_a_new_owner)
    *_, (wait, rest) = [(item, rest) for item, rest in orders(program) if isinstance(item, Wait)]
    assert wait.stream == "compute"
    race = find_race(rest)
    assert race is not None and race.place.startswith("gpu block")
    assert {race.first.stream, race.second.stream} == {"compute", "copy"}
    assert "hisparse.copy_blocks" in str(race) and len(race.before) <= 3


def test_whole_pages_and_nothing_else_go_to_the_copy_stream() -> None:
    """Apart from the index tensors of the copies."""
    for case in CASES:
        for item in recorded(case):
            if isinstance(item, Op) and item.stream == "copy":
                others = {place for place in item.reads | item.writes if not place.startswith(("gpu", "host unit"))}
                assert all(place.startswith("temporary") for place in others), item
