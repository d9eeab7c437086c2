"""Small real worlds, each with the actions that are tried in it and what it must have done in the model.

Where `bounds.steps` is 0 a step ends as it begins, and with `one_action_pages` its rows are sealed at once.
Pools have the sizes of the worlds, not of the model: the admission ledger lets nobody in for less than
full residency, or a hot region and six pages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from protocol.moods import CALM
from protocol.setup import NEVER, Setup
from protocol.world import Action, World

from spec.bounds import Bounds

ENDS = ("finish", "preempt", "reset")
USUAL = ("admit", "step", "hear", "seal", "end_step")
TRANSPORT = ("import_begin", "import_write", "import_end")
# What happens in every family, in the words of the model.
ALWAYS = (
    "admit", "append", "write", "seal", "spill", "enqueue", "complete", "deliver", "step_done", "preempt", "query",
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    sentence: str
    setup: Setup
    kinds: tuple[str, ...]  # of the model, beside those that happen always: each must have been done
    actions: tuple[str, ...] = (*USUAL, *ENDS)
    under_way: int = 1  # transfers and copies at once, else a state is at the edge
    unproven: int = 1  # steps whose mirror is not proven, likewise
    depth: float = math.inf  # actions from the beginning, likewise
    before: tuple[Action, ...] = ()  # done before the exploration begins

    def within(self, world: World) -> bool:
        control = world.c._state
        under_way = len(control.transfers.active) + len(control.transfers.copies)
        return under_way <= self.under_way and len(control.mirror.open) <= self.unproven


_COARSE = Bounds(requests=2, pages=2, gpu=4, host=3, rows=1, keys=1, shared=1, transfers=NEVER, steps=0)
_FINE = replace(_COARSE, requests=1, pages=1, gpu=3, host=2, one_action_pages=False)
_TWO_ROWS = replace(_FINE, rows=2)


def _setup(bounds: Bounds, **settings: object) -> Setup:
    usual = {"live": 2, "step_rows": 1, "overdue_after": NEVER, "spill_budget": 1}
    return Setup(bounds, **(usual | settings))  # type: ignore[arg-type]


FAMILIES = {
    "core": Family(
        "spill, publish, adopt, restore, reuse, evict, finish, preempt",
        _setup(_COARSE),
        ("finish", "reset", "reuse", "evict", "restore"),
    ),
    "moved": Family(
        "a request squeezed out of the GPU and back, under every answer of a policy",
        _setup(replace(_COARSE, requests=1, pages=4, gpu=11, host=6), promised=6, moods=True),
        ("hot", "unpin", "cool", "repin"),
        actions=(*USUAL, "preempt"),
        depth=11,
    ),
    "fence": Family(
        "two steps in flight, seals and ends that come in between",
        _setup(replace(_FINE, steps=2)),
        ("finish", "reset", "reuse", "evict"),
    ),
    "drafts": Family(
        "partial pages and rows taken back, with the eager mirror",
        _setup(replace(_TWO_ROWS, mirror=True, drafts=True), step_rows=2),
        ("finish", "reset", "takeback"),
        actions=(*USUAL, *ENDS, "takeback"),
    ),
    "faults": Family(
        "failed copies, reports that never come, rows that missed their mirror",
        _setup(replace(_FINE, mirror=True, faults=True), overdue_after=2),
        ("finish", "reset", "fail", "set_aside"),
    ),
    "imports": Family(
        "imports that end well or badly, partial tails, copy-on-write",
        _setup(replace(_TWO_ROWS, pages=2, gpu=8, host=4, imports=True)),
        ("finish", "reset", "restore", "cow", *TRANSPORT),
        actions=(*USUAL, *ENDS, *TRANSPORT),
        under_way=2,
        depth=8,
    ),
    "ranks": Family(
        "two ranks that write, each at its own pace, and their restarts",
        _setup(replace(_FINE, pages=2, gpu=4, host=3, ranks=2)),
        ("finish", "reset"),
        actions=(*USUAL, "finish", "abort", "preempt", "restart"),
    ),
}


def _page(name: str) -> tuple[Action, ...]:
    """A request computes a page, which is final."""
    return (("step", ((name, 1, 0, 0),), 0, CALM, 0), ("end_step",), ("seal", name))


def _larger(name: str, depth: float = math.inf, under_way: int | None = None, **bounds: int) -> Family:
    family = FAMILIES[name]
    setup = replace(family.setup, bounds=replace(family.setup.bounds, **bounds))  # type: ignore[arg-type]
    return replace(family, setup=setup, depth=depth, under_way=under_way or family.under_way)


LARGER = {
    # Within that depth blocks are not so short that one is reused, or a page restored.
    "core": replace(_larger("core", depth=17, gpu=8, host=4), kinds=("finish", "reset", "evict")),
    "moved": _larger("moved", depth=15),
    "fence": _larger("fence", pages=2, gpu=5, host=3),
    "drafts": _larger("drafts", pages=2, gpu=5, host=3),
    "faults": _larger("faults", depth=20, pages=2, gpu=5, host=3),
    "imports": _larger("imports", depth=11),
    "ranks": _larger("ranks", depth=19, gpu=8, host=4, under_way=2),
    "together": Family(
        "an import under pressure: one request's pages are on the host as well, another's may come from outside",
        _setup(replace(_COARSE, pages=3, shared=2, gpu=23, host=8, imports=True), promised=6, moods=True),
        ("hot", "unpin", "cool", "repin", "land", "adopt", "cow", *TRANSPORT),
        actions=(*USUAL, *ENDS, *TRANSPORT),
        depth=5,
        before=(
            ("admit", "a", 0, 3, None, CALM, 0),
            *(_page("a") * 3),
            ("step", (), 0, CALM, 0),
            ("end_step",),
            *[("hear", 0, "completed", number) for number in (1, 2, 3)],
            ("admit", "b", 1, 3, None, CALM, 0),
        ),
    ),
}
