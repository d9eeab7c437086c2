"""Random and adversarial schedules through the public façade, with production defaults.

Every delay, order, loss and failure is drawn by a rule, so a failing run repeats. After every rule
control recounts its books (`check`), and the workers check each row that they read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from control.fake_engine import FakeEngine, Shape, config
from control.fake_worker import Faults
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hisparse_ops.control.types import Limits, RankReport, RefusalReason, Refused

Ranks = tuple[int, ...]
DEPTH = 3  # steps that may be in flight
FAULTS = [Faults()] * 8 + [Faults(fail_restores=True), Faults(fail_spills=True), Faults(fail_copies=True)]
FIRED: Counter[str] = Counter()


def fired(name: str, **also: object) -> None:
    """A rule did what it is there for, and `also` what is true of it."""
    FIRED.update([name, *(what for what, true in also.items() if true)])


class ControlMachine(RuleBasedStateMachine):
    @initialize(
        ranks=st.sampled_from([((0,), (0,)), ((0, 1), (0,)), ((0, 1), (0, 1))]),
        eager=st.booleans(),
        gpu=st.sampled_from([51, 61, 81, 121]),
        host=st.sampled_from([31, 61, 121]),
        shuffle=st.sampled_from([7, 11, 13]),
    )
    def start(
        self, ranks: tuple[tuple[int, ...], tuple[int, ...]], eager: bool, gpu: int, host: int, shuffle: int
    ) -> None:
        settings = config(ranks=ranks[0], writer_ranks=ranks[1], eager_mirror=eager)
        self.engine = FakeEngine(Shape(num_blocks=gpu, host_blocks=host), settings, shuffle)
        self.names = 0

    # -- requests ----------------------------------------------------------------------------

    @rule(
        family=st.integers(0, 1),
        shared=st.sampled_from([0, 3, 8, 17, 40, 60]),
        own=st.sampled_from([1, 2, 4, 7, 20, 40]),
        prompt=st.sampled_from([1, 4, 9, 24, 48, 61, 100]),
        reuse=st.sampled_from([None, None, 6, 12]),
        old_name=st.integers(0, 30),
    )
    def admit(self, family: int, shared: int, own: int, prompt: int, reuse: int | None, old_name: int) -> None:
        """A new request, whose first tokens others may share; or an old id again, live or not."""
        tokens = [family] * shared + [100 + self.names] * own
        name = f"r{old_name if old_name < self.names else self.names}"
        self.names += 1
        taken = name in self.engine.live or name in self.engine.importing
        answer = self.engine.admit(name, tokens, min(prompt, len(tokens)), reuse=reuse)
        assert not taken or answer == (RefusalReason.DUPLICATE, 1, 0)
        if isinstance(answer, Refused):
            fired(f"admission refused: {answer.reason.name}")
        else:
            fired("admitted", hit=answer.cached_tokens, adoption=answer.adopted_pages)

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data(), publish=st.booleans())
    def finish(self, data: st.DataObject, publish: bool) -> None:
        self.engine.finish(self._name(data), publish)
        fired("finish")

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data(), again=st.booleans())
    def preempt(self, data: st.DataObject, again: bool) -> None:
        """Preempted, and perhaps admitted again in the same pass."""
        who = self.engine.live[self._name(data)]
        self.engine.preempt(who.id)
        fired("preempt")
        if again and self.engine.admit(who.id, who.tokens, who.prompt).ok:
            fired("readmit")

    # -- steps -------------------------------------------------------------------------------

    @rule(steps=st.integers(1, 8), rows=st.integers(1, 8))
    def calm_steps(self, steps: int, rows: int) -> None:
        """Everything on its way arrives, then all requests compute."""
        self.engine.execute_all()
        self.engine.copy_engines()
        self.engine.deliver_all()
        for _ in range(steps):
            self._plan(dict.fromkeys(self.engine.live, rows), {}, {})
            self.engine.execute_all()
            self.engine.copy_engines()
            self.engine.deliver_all()
        fired("calm steps")

    @precondition(lambda self: self._depth() < DEPTH)
    @rule(data=st.data(), unmirrored=st.sampled_from([0, 0, 0, 1, 8]))
    def plan(self, data: st.DataObject, unmirrored: int) -> None:
        """A step ahead of the workers, with drafts, and perhaps rows that the mirror leaves out."""
        rows = {name: data.draw(st.integers(1, 8)) for name in self.engine.live if data.draw(st.integers(0, 3))}
        drafts = {name: data.draw(st.integers(0, 8 - count)) for name, count in rows.items()}
        self._plan(rows, drafts, dict.fromkeys(list(rows)[:1], unmirrored))

    @precondition(lambda self: self._depth())
    @rule(data=st.data(), fault=st.sampled_from(FAULTS))
    def execute(self, data: st.DataObject, fault: Faults) -> None:
        rank = data.draw(st.sampled_from([rank for rank, queue in self.engine.queues.items() if queue]))
        self.engine.execute(rank, fault)
        fired("execute", **{"injected failure": fault != Faults()})

    @precondition(lambda self: any(worker.copying for worker in self.engine.workers.values()))
    @rule()
    def copy_engines(self) -> None:
        self.engine.copy_engines()
        fired("copy engine")

    # -- reports -----------------------------------------------------------------------------

    @precondition(lambda self: self.engine.mail)
    @rule(data=st.data(), count=st.integers(1, 6), repeat=st.booleans())
    def deliver(self, data: st.DataObject, count: int, repeat: bool) -> None:
        """In any order, perhaps again later."""
        for _ in range(min(count, len(self.engine.mail))):
            self.engine.deliver(self._mail(data), keep=repeat)
        fired("deliver", duplicate=repeat)

    @precondition(lambda self: self.engine.mail)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        report = self.engine.mail.pop(self._mail(data))
        names = ("enqueued", "completed", "copied", "failed", "mirrored")
        parts = [RankReport(report.rank, report.epoch, **{name: getattr(report, name)}) for name in names]
        self.engine.mail += parts[:: data.draw(st.sampled_from([1, -1]))]
        fired("split")

    @precondition(lambda self: self.engine.mail)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.engine.mail.pop(self._mail(data))
        fired("drop")

    @precondition(lambda self: self.engine.mail)
    @rule(data=st.data(), epochs=st.sampled_from([-1, 1]))
    def foreign(self, data: st.DataObject, epochs: int) -> None:
        """A report in the name of another epoch, one of a rank that does not exist, and one of a
        rank that does not write host memory: none of them is anybody's word."""
        report = self.engine.mail[self._mail(data)]
        self.engine.c.apply(replace(report, epoch=report.epoch + epochs * (report.epoch + epochs != self.engine.epoch)))
        self.engine.c.apply(replace(report, rank=99))
        for rank in set(self.engine.config.ranks) - set(self.engine.config.writer_ranks):
            spills = report.completed & self.engine.spills
            self.engine.c.apply(replace(report, rank=rank, completed=spills, copied=frozenset(), failed=spills))
        fired("foreign")

    # -- imports -----------------------------------------------------------------------------

    @precondition(lambda self: any(self._importable(name) for name in self.engine.live))
    @rule(data=st.data())
    def begin_import(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name in self.engine.live if self._importable(name)]))
        who = self.engine.live[name]
        tokens = data.draw(st.integers(max(1, who.computed), len(who.tokens)))
        fired("import" if self.engine.begin_import(name, tokens).ok else "import refused")

    @rule(family=st.integers(0, 1), shared=st.sampled_from([8, 17, 40]))
    def import_what_is_published(self, family: int, shared: int) -> None:
        """A prefix that others have computed here: its last page is copied in host memory."""
        tokens = [family] * shared + [100 + self.names]
        name = f"r{self.names}"
        self.names += 1
        size = self.engine.shape.block_size
        if self.engine.admit(name, tokens, len(tokens), reuse=size).ok:
            who = self.engine.live[name]
            known = self.engine.c.cached_tokens(who.hashes(shared, size))
            if known > who.computed and self.engine.begin_import(name, known).ok:
                fired("import of what is published")

    @precondition(lambda self: any(self.engine.may_write(name) for name in self.engine.importing))
    @rule(data=st.data(), pages=st.sampled_from([None, None, 0, 2]), replay=st.integers(0, 1))
    def end_import(self, data: st.DataObject, pages: int | None, replay: int) -> None:
        """It brings everything, or some pages and fails; its request may have left in between."""
        name = data.draw(st.sampled_from([n for n in self.engine.importing if self.engine.may_write(n)]))
        self.engine.transport(name, pages)
        self.engine.end_import(name, pages is None, replay)
        fired("import failed" if pages is not None else "import ok")

    # -- the whole ---------------------------------------------------------------------------

    @precondition(lambda self: not self.engine.importing)
    @rule(data=st.data(), chance=st.integers(0, 40))
    def start_again(self, data: st.DataObject, chance: int) -> None:
        if chance == 23:
            self.engine.reset()
            fired("reset")
        elif chance == 17:
            self.engine.restart(data.draw(st.sampled_from(self.engine.config.ranks)))
            fired("restart")

    @invariant()
    def books(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        """Faults stop. Whoever is live finishes, nothing stays under way, every block is free again."""
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        engine.execute_all()
        for name in list(engine.importing):
            engine.transport(name)
            engine.end_import(name, ok=True)
        engine.drain()
        snapshot = engine.c.snapshot()
        if not snapshot.quarantined:
            assert engine.c.reclaimable() == snapshot.gpu_usable
            assert snapshot.host_blank + snapshot.host_cached == snapshot.host_usable
        engine.reset()
        engine.check()
        snapshot = engine.c.snapshot()
        assert snapshot.gpu_blank == snapshot.gpu_usable and snapshot.host_blank == snapshot.host_usable

    def _plan(self, rows: dict[str, int], drafts: dict[str, int], unmirrored: dict[str, int]) -> None:
        self._ask()
        rows = {name: count for name, count in rows.items() if name not in self.engine.importing}
        plan = self.engine.plan(rows, drafts, unmirrored)
        parts = ("cleared_rows", "hot", "recycled", "residency", "copies", "envelopes")
        fired("plan", **{part: getattr(plan, part) for part in parts})
        fired("plan", **{transfer.kind.value: True for transfer in plan.transfers})

    def _ask(self) -> None:
        """B11: questions have no effect, and equal questions get equal answers."""
        before = self.engine.c.snapshot()
        assert self._answers() == self._answers()
        assert self.engine.c.snapshot() == before

    def _answers(self) -> list[object]:
        c, live = self.engine.c, list(self.engine.live.values())
        each = [(c.is_readable(w.id), c.fully_resident(w.id), c.is_host_readable(w.id)) for w in live]
        room = [c.can_admit([], tokens, Limits(tokens, 8)) for tokens in (1, 30, 90)]
        return [each, room, [c.cached_tokens(w.hashes(len(w.tokens), 4)) for w in live], c.reclaimable(), c.quiescent()]

    def _name(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(list(self.engine.live)))

    def _mail(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.engine.mail) - 1))

    def _depth(self) -> int:
        return max(map(len, self.engine.queues.values()))

    def _importable(self, name: str) -> bool:
        return name not in self.engine.importing and not self.engine.live[name].touched


QUICK = settings(
    max_examples=500, stateful_step_count=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
LONG = settings(max_examples=1500, stateful_step_count=100, deadline=None, suppress_health_check=list(HealthCheck))


MUST_FIRE = [
    "admitted",
    "hit",
    "adoption",
    "admission refused: DUPLICATE",
    "admission refused: GPU_BLOCKS",
    "admission refused: HOST_BLOCKS",
    "admission refused: NO_STATE_ROW",
    "preempt",
    "readmit",
    "finish",
    "plan",
    "execute",
    "calm steps",
    "injected failure",
    "spill",
    "restore",
    "hot",
    "recycled",
    "residency",
    "cleared_rows",
    "envelopes",
    "copies",
    "copy engine",
    "deliver",
    "duplicate",
    "split",
    "drop",
    "foreign",
    "import",
    "import of what is published",
    "import ok",
    "import failed",
    "import refused",
    "reset",
    "restart",
]


def test_machine() -> None:
    """A rule that never fires passes: so each must have fired."""
    FIRED.clear()
    run_state_machine_as_test(ControlMachine, settings=QUICK)
    assert [name for name in MUST_FIRE if not FIRED[name]] == [], FIRED


@pytest.mark.slow
def test_machine_long() -> None:
    run_state_machine_as_test(ControlMachine, settings=LONG)
