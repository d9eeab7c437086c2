"""A device that is behind: its events pass while something is computed or waited for, never because somebody asks."""

from __future__ import annotations

import pytest
from engine.test_engine import alone, assert_same, model, prompts, small_layout, start
from engine.toy_model import ToyModel

from hisparse_ops.control import CoordinatorConfig
from hisparse_ops.engine import Engine, Request, StuckError
from hisparse_ops.worker import ImmediateStream, Streams, worker

CHUNK = 8
MOST_STEPS = 4 * CoordinatorConfig(1, 1).overdue_after  # many more than the requests need, and an end to spinning


class LateStream(ImmediateStream):
    """Its first `passed` marks are events that have ended."""

    class Mark:
        def __init__(self, stream: LateStream) -> None:
            self.stream, self.number = stream, len(stream.marks)

        def query(self) -> bool:
            return self.number < self.stream.passed

        def synchronize(self) -> None:
            self.stream.waits += not self.query()
            self.stream.passed = max(self.stream.passed, self.number + 1)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.marks: list[LateStream.Mark] = []
        self.passed = self.waits = 0
        forward = ToyModel.forward

        def computed(*args):
            self.passed = len(self.marks)
            return forward(*args)

        monkeypatch.setattr(ToyModel, "forward", computed)
        monkeypatch.setattr(worker, "streams_of", lambda device: Streams(self, self))

    def record(self) -> Mark:
        self.marks.append(LateStream.Mark(self))
        return self.marks[-1]


def not_for_ever(engine: Engine) -> None:
    assert engine.figures().steps < MOST_STEPS


def test_a_step_without_work_waits_for_the_device(monkeypatch):
    """Lateness is measured in steps: an engine that made more and more of them would call every transfer overdue."""
    toy = model(block_size=4)
    requests = [Request(str(i), p, 12) for i, p in enumerate(prompts(4, 64))]
    want = alone(toy, requests, CHUNK)
    late = LateStream(monkeypatch)
    with start(toy, small_layout(toy, 1.3, CHUNK), CHUNK) as engine:
        for request in requests:
            engine.add(request)
        engine.run(not_for_ever)
        assert late.waits and engine._coordinator.snapshot().totals.overdue == 0
    assert_same(requests, want)


def test_an_engine_that_is_stuck_says_so_however_late_the_device_is(monkeypatch):
    LateStream(monkeypatch)
    toy = model()
    with start(toy, small_layout(toy, 1.3, 32), 32) as engine:
        monkeypatch.setattr(engine._scheduler, "schedule", list)
        engine.add(Request("waits", (1, 2, 3), 1))
        with pytest.raises(StuckError, match="1 requests wait and none can go on"):
            engine.run(not_for_ever)
