"""The engine, drawn at: requests come and go, the worker's reports are late, split and repeated.

Whatever happens, the tokens and logits of what is finished are those of full residency, bit for bit.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from engine.test_engine import alone, assert_same, model, prompts, small_layout, start

from hisparse_ops.control.types import RankReport
from hisparse_ops.engine import Engine, Phase, Request

CHUNK = 16
ACTIONS = 160
REPEATED, HEARD = 0.2, 0.5  # of the reports: how many come again; how many of those under way are heard at a poll
WEIGHTS = {"add": 2, "step": 12, "abort": 0.3}


class BadChannel:
    """Between a worker and its engine: reports in parts, each of them late, in any order, some of them twice."""

    def __init__(self, engine: Engine, draw: random.Random) -> None:
        self._poll, self._draw = engine._worker.poll, draw
        self._under_way: list[RankReport] = []
        engine._worker.poll = self.poll  # type: ignore[method-assign]

    def poll(self) -> list[RankReport]:
        for report in self._poll():
            self._under_way += _parts(report)
        self._draw.shuffle(self._under_way)
        heard = [report for report in self._under_way if self._draw.random() < HEARD]
        again = [report for report in heard if self._draw.random() < REPEATED]
        self._under_way = [report for report in self._under_way if report not in heard] + again
        return heard


def _parts(report: RankReport) -> list[RankReport]:
    """One thing said in each."""
    nothing = RankReport(report.rank, report.epoch)
    ids = [(kind, number) for kind in ("enqueued", "completed", "copied") for number in getattr(report, kind)]
    said = [replace(nothing, **{kind: frozenset([number])}) for kind, number in ids]
    return said + [replace(nothing, mirrored={sequence: counts}) for sequence, counts in report.mirrored.items()]


def live(toy, seed: int) -> list[Request]:
    """A drawn life of an engine that is too small, then calm until all is done; the finished requests."""
    draw = random.Random(seed)
    texts = prompts(8, 96, shared=48, seed=seed)
    known: list[Request] = []
    with start(toy, small_layout(toy, 2.2, CHUNK), CHUNK, max_requests=4) as engine:
        BadChannel(engine, draw)
        for _ in range(ACTIONS):
            running = [request for request in known if request.phase in (Phase.WAITING, Phase.RUNNING)]
            allowed = ["step"] + ["add"] * (len(running) < 6) + ["abort"] * bool(running)
            action = draw.choices(allowed, [WEIGHTS[name] for name in allowed])[0]
            if action == "add":
                text = draw.choice(texts)[: draw.randint(40, 96)]
                known.append(Request(f"{len(known)}", text, draw.randint(8, 30)))
                engine.add(known[-1])
            elif action == "abort":
                engine.abort(draw.choice(running).id)
            else:
                engine.step()
            engine.check()
        engine.run(lambda e: e.check())
        figures = engine.figures()
    assert figures.spilled_pages and figures.misses and not figures.faults
    return [request for request in known if request.phase is Phase.FINISHED]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_finished_is_as_if_it_had_been_alone(seed):
    toy = model(block_size=8)
    finished = live(toy, seed)
    assert len(finished) > 5
    assert_same(finished, alone(toy, finished, CHUNK))
