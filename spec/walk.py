"""A long random walk through worlds too large to explore: seeded, so that every failure repeats."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from .bounds import Bounds, ReleaseAt
from .invariants import Broken, check_state, check_step
from .model import Action, Model
from .sometimes import Sometimes
from .state import State

# How often each kind of action is drawn: ends are rare, so that requests grow long.
WEIGHTS = {
    "append": 8, "write": 12, "grow": 12, "seal": 8, "spill": 6, "enqueue": 6, "complete": 6, "deliver": 3, "unpin": 4,
    "cool": 0.2, "finish": 0.5, "preempt": 0.1, "reset": 0.005, "fail": 0.3, "set_aside": 0.1, "step_done": 6,
    "import_begin": 0.3, "import_end": 0.5, "query": 0.1,
}  # fmt: skip
USUAL_WEIGHT = 1.0

WORLD = Bounds(
    requests=3,
    pages=4,
    gpu=8,
    host=8,
    rows=2,
    ranks=2,
    shared=3,
    transfers=4,
    one_action_pages=False,
    steps=2,
    faults=True,
    drafts=True,
    imports=True,
    restores=True,
    copies=True,
    lines=True,
)
WORLDS = {
    "copied": WORLD,
    "mirrored": replace(WORLD, mirror=True),
    "late": replace(WORLD, release_at=ReleaseAt.COMPLETED),
    "grouped": replace(WORLD, gpu=14, groups=2, keys=1),
}


@dataclass(slots=True)
class Walk:
    seed: int
    steps: int = 0
    broken: str = ""
    message: str = ""
    story: list[Action] = field(default_factory=list)
    actions: dict[str, int] = field(default_factory=dict)


def walk(model: Model, seed: int, steps: int, sometimes: Sometimes | None = None) -> Walk:
    """`steps` actions from the empty world; stops at the first broken invariant."""
    bounds, draw = model.bounds, random.Random(seed)
    state = model.initial()
    done = Walk(seed)
    for _ in range(steps):
        action, after = _drawn(draw, list(model.successors(state)))
        done.story.append(action)
        done.steps += 1
        done.actions[action[0]] = done.actions.get(action[0], 0) + 1
        try:
            check_step(bounds, state, action, after)
            check_state(bounds, after)
        except Broken as broken:
            done.broken, done.message = broken.invariant, str(broken)
            return done
        if sometimes is not None:
            sometimes.look_at_step(bounds, state, action, after)
            sometimes.look_at_state(bounds, after)
        state = after
    return done


def _drawn(draw: random.Random, options: list[tuple[Action, State]]) -> tuple[Action, State]:
    """First the kind of action, then one of that kind: no kind drowns another by its arguments."""
    kinds = sorted({action[0] for action, _ in options})
    kind = draw.choices(kinds, [WEIGHTS.get(name, USUAL_WEIGHT) for name in kinds])[0]
    return draw.choice([option for option in options if option[0][0] == kind])
