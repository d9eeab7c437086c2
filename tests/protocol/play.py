"""Seeded walks of the real coordinator: actions drawn from those that a world allows."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from protocol.choices import landing_moods
from protocol.rules import (
    free_ids,
    free_slots,
    is_whole,
    may_compute,
    may_end_step,
    may_finish,
    may_import,
    may_plan,
    may_seal,
    may_take_back,
    may_write,
)
from protocol.world import Action, Setup, World

from spec.bounds import Bounds

# How often each kind is drawn. Ends are rare, so that requests grow long and blocks run short.
WEIGHTS = {
    "admit": 4, "step": 14, "seal": 20, "run": 14, "arrive": 14, "step_done": 16, "deliver": 16, "takeback": 6,
    "finish": 0.3, "abort": 0.05, "preempt": 0.15, "lose": 0.15, "stranger": 0.2, "query": 0.3, "reset": 0.02,
    "restart": 0.02, "import_begin": 0.7, "import_write": 4, "import_end": 1,
}  # fmt: skip
AT_THE_END = 12  # how much more often a request ends that can grow no more
IN_VAIN = 0.1  # how often somebody asks to be admitted where no state row is free
BROKEN_OFF = 0.1  # how often a transport ends before it has brought everything
OUT_OF_ORDER = 0.3  # of the reports that are delivered, how many are not the oldest
FAILED, SKIPPED = 0.03, 0.02  # of the steps, how many have a copy that fails; of the passes, a row not mirrored
REPEATED = 0.15  # of the reports that are delivered, how many come again


def enabled(world: World, draw: random.Random) -> list[Action]:
    """One action of each kind and target that may happen in the world's present state; `draw` chooses the
    arguments that do not matter to whether it may."""
    bounds, actions = world.bounds, []
    by_slot = {player.slot: player for player in world.players.values()}
    for slot in sorted(by_slot):
        player = by_slot[slot]
        if may_seal(world, player):
            actions.append(("seal", player.id))
        if may_take_back(world, player):
            actions.append(("takeback", player.id))
        if may_finish(world, player):
            actions.append(("finish", player.id))
            actions.append(("abort", player.id))
        actions.append(("preempt", player.id))
    if may_end_step(world):
        actions.append(("step_done",))
    free, admissible = free_ids(world), free_slots(world)
    if admissible and free:
        actions.append(_admission(world, draw, free, admissible))
    if may_plan(world):
        actions.append(_step(world, draw))
    actions += _imports(world, draw)
    for rank in world.ranks:
        if rank.stream:
            actions.append(("run", rank.number))
        if rank.dma:
            actions.append(("arrive", rank.number, draw.choice([1, len(rank.dma)])))
    if world.facts:
        index = draw.randrange(len(world.facts)) if draw.random() < OUT_OF_ORDER else 0
        actions.append(("deliver", index, draw.random() < REPEATED))
        actions.append(("lose", draw.randrange(len(world.facts))))
    waiting = [*world.c._state.transfers.active, 1 + world.c._state.transfers.last_id]
    actions.append(("stranger", draw.choice(waiting)))
    actions.append(("query",))
    if not world.arrivals:
        actions.append(("reset",))
        actions.append(("restart", draw.randrange(bounds.ranks)))
    return actions


def _admission(world: World, draw: random.Random, ids: list[str], slots: list[int]) -> Action:
    most = world.bounds.pages * world.bounds.rows
    prompt = draw.randint(1, most)
    reuse = draw.choice([None, None, None, draw.randint(0, prompt)])
    return ("admit", draw.choice(ids), draw.choice(slots), prompt, reuse, *draw.choice(landing_moods(world)))


def _step(world: World, draw: random.Random) -> Action:
    """Every request may compute; drafts only where the last ones were settled."""
    counts, faults, often = [], world.bounds.faults, world.setup.often
    for name, player in world.players.items():
        if not may_compute(world, player) or draw.random() < 0.15:
            continue
        drafts = draw.choice([0, 0, 1]) if world.bounds.drafts else 0
        skipped = int(faults and world.bounds.mirror and draw.random() < SKIPPED * often.get("skip", 1))
        counts.append((name, draw.randint(0 if drafts else 1, world.setup.step_rows), drafts, skipped))
    failing = int(faults and draw.random() < FAILED * often.get("fail", 1))
    return ("step", tuple(counts), failing, *draw.choice(world.moods()))


def _imports(world: World, draw: random.Random) -> list[Action]:
    actions: list[Action] = []
    for name, player in world.players.items() if world.bounds.imports else ():
        if may_import(world, player):
            tokens = draw.randint(player.computed + 1, player.prompt)
            actions.append(("import_begin", name, tokens, *draw.choice(landing_moods(world))))
    for name in world.arrivals:
        if may_write(world, name):
            actions.append(("import_write", name))
        actions.append(("import_end", name, is_whole(world, name)))
    return actions


@dataclass
class Story:
    """What happened until something was wrong, or to the end."""

    setup: Setup
    seed: int
    actions: list[Action] = field(default_factory=list)
    wrong: str = ""
    counts: Counter[str] = field(default_factory=Counter)


def weights_of(setup: Setup) -> dict[str, float]:
    return {kind: weight * setup.often.get(kind, 1) for kind, weight in WEIGHTS.items()}


def drawn(world: World, draw: random.Random, weights: Mapping[str, float]) -> Action:
    """One of what is enabled."""
    options = enabled(world, draw)
    return draw.choices(options, [weights[option[0]] * _zeal(world, option) for option in options])[0]


def _zeal(world: World, action: Action) -> float:
    """How much more often than others of its kind an action is tried."""
    if action[0] == "admit":
        return 1 if world.c._state.free_rows else IN_VAIN
    if action[0] in ("finish", "abort"):
        return AT_THE_END if world.players[action[1]].computed == world.bounds.pages * world.bounds.rows else 1
    if action[0] == "import_end":
        return 1 if is_whole(world, action[1]) else BROKEN_OFF
    return 1


def play(setup: Setup, seed: int, steps: int, seconds: float = math.inf) -> Story:
    """A seeded walk of the real coordinator; stops at the first thing that is wrong, or when the processor has
    worked on it for so many seconds."""
    draw, world, story = random.Random(seed), World(setup), Story(setup, seed)
    end = time.process_time() + seconds
    weights = weights_of(setup)
    for _ in range(steps):
        if time.process_time() > end:
            break
        action = drawn(world, draw, weights)
        story.actions.append(action)
        story.counts[action[0]] += 1
        story.wrong = wrong_with(world, action)
        if story.wrong:
            return story
    return story


def wrong_with(world: World, action: Action, judged: bool = True) -> str:
    try:
        (world.act if judged else world.do)(action)
    except Exception as error:  # whatever goes wrong is what the walk is for
        return f"{type(error).__name__}: {error}"
    return ""


_COMMON = Bounds(
    requests=8, pages=9, rows=1, shared=5, keys=1, mirror=True, transfers=10_000, one_action_pages=False, steps=2
)
_TWO_ROWS = replace(_COMMON, rows=2, pages=8, gpu=30, host=22, faults=True)
_BUSY_IMPORTS = {"import_begin": 20, "import_write": 5, "import_end": 5, "finish": 4, "preempt": 4, "abort": 10}
_UNREST = dict.fromkeys(("lose", "stranger", "reset", "restart", "preempt", "skip", "fail"), 5)
# Pools just large enough for what admission promises. Each world is made for a kind of trouble.
SETUPS = {
    "mirrored": Setup(
        replace(_COMMON, rows=2, pages=10, shared=4, gpu=46, host=32, faults=True, drafts=True, imports=True),
        step_rows=3,
    ),
    "moods": Setup(replace(_COMMON, gpu=34, host=24), live=2, moods=True),
    "imports": Setup(replace(_TWO_ROWS, shared=8, imports=True), live=2, step_rows=3, moods=True, often=_BUSY_IMPORTS),
    "restless": Setup(
        replace(_TWO_ROWS, drafts=True), live=2, step_rows=3, overdue_after=4, moods=True, often=_UNREST
    ),
    "copied": Setup(
        replace(_COMMON, gpu=54, host=24, groups=2, hot=2, ranks=2, mirror=False, faults=True), live=2, moods=True
    ),
    "short mirrors": Setup(
        replace(_COMMON, pages=10, gpu=37, host=22, faults=True, drafts=True), live=2, step_rows=3, overdue_after=8,
        moods=True, often={"skip": 20, "fail": 0, "finish": 0.5, "seal": 3, "arrive": 2, "deliver": 2},
    ),
    "short of host": Setup(
        replace(_COMMON, shared=0, gpu=60, host=16), live=2, moods=True, often={"finish": 6},
    ),
    "resets": Setup(
        replace(_COMMON, gpu=34, host=26), live=2, moods=True, often={"reset": 60, "deliver": 0.35, "lose": 0}
    ),
    "lost proofs": Setup(
        replace(_COMMON, rows=3, pages=8, gpu=30, host=22), live=2, moods=True, often={"lose": 40}
    ),
    "tails": Setup(
        replace(_TWO_ROWS, requests=6, pages=3, shared=3, gpu=40, host=30, imports=True), live=4, moods=True,
        often={"import_begin": 100, "import_write": 3, "import_end": 5, "admit": 3, "finish": 25, "fail": 33},
    ),
    "squeezed": Setup(replace(_COMMON, shared=9, gpu=46, host=40)),
}  # fmt: skip
