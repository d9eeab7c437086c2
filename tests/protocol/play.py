"""Seeded walks of the real coordinator: actions drawn from those that a world allows."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace

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
TROUBLE = ("lose", "stranger", "reset", "restart", "preempt")
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
            actions.append(("arrive", rank.number))
    if world.facts:
        index = draw.randrange(len(world.facts)) if draw.random() < 0.3 else 0
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
    return ("admit", draw.choice(ids), draw.choice(slots), prompt, reuse)


def _step(world: World, draw: random.Random) -> Action:
    """Every request may compute; drafts only where the last ones were settled."""
    counts = []
    for name, player in world.players.items():
        if not may_compute(world, player) or draw.random() < 0.15:
            continue
        drafts = draw.choice([0, 0, 1]) if world.bounds.drafts else 0
        skipped = int(world.bounds.faults and world.bounds.mirror and draw.random() < 0.02 * world.setup.unrest)
        counts.append((name, draw.randint(0 if drafts else 1, world.setup.step_rows), drafts, skipped))
    return ("step", tuple(counts), int(world.bounds.faults and draw.random() < 0.03 * world.setup.unrest))


def _imports(world: World, draw: random.Random) -> list[Action]:
    actions: list[Action] = []
    for name, player in world.players.items() if world.bounds.imports else ():
        if may_import(world, player):
            actions.append(("import_begin", name, draw.randint(player.computed + 1, player.prompt)))
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
    return {kind: weight * (setup.unrest if kind in TROUBLE else 1) for kind, weight in WEIGHTS.items()}


def play(setup: Setup, seed: int, steps: int, seconds: float = math.inf) -> Story:
    """A seeded walk of the real coordinator; stops at the first thing that is wrong, or when time is up."""
    draw, world, story = random.Random(seed), World(setup), Story(setup, seed)
    end = time.monotonic() + seconds
    weights = weights_of(setup)
    for _ in range(steps):
        if time.monotonic() > end:
            break
        options = enabled(world, draw)
        action = draw.choices(options, [weights[option[0]] for option in options])[0]
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


_COMMON = Bounds(requests=8, pages=10, rows=2, shared=4, transfers=10_000, one_action_pages=False, steps=2)
_FAMILIES = replace(_COMMON, faults=True, drafts=True, imports=True)
SETUPS = {
    "mirrored": Setup(replace(_FAMILIES, gpu=46, host=32, keys=1, mirror=True)),
    "restless": Setup(replace(_FAMILIES, gpu=31, host=18, keys=1, mirror=True), live=2, overdue_after=4, unrest=5.0),
    "copied": Setup(replace(_FAMILIES, gpu=62, host=30, groups=2, keys=1, hot=2, ranks=2)),
    "squeezed": Setup(replace(_COMMON, gpu=31, host=26, keys=1, mirror=True), live=2),
    "single rows": Setup(replace(_FAMILIES, rows=1, gpu=42, host=26, keys=1, mirror=True), step_rows=3),
}
