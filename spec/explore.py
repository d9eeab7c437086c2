"""Visits every state within bounds, breadth first, so that a broken invariant comes with a shortest story."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from .bounds import Bounds
from .invariants import Broken, check_state, check_step
from .model import Action, Model
from .sometimes import Sometimes
from .state import State
from .symmetry import Symmetry

BYTES_PER_STATE = 1100  # a key and its parent, and its share of the two open layers; measured
PROGRESS_SECONDS = 5.0


class TooLarge(Exception):
    """The bound does not fit into memory."""


@dataclass(slots=True)
class Exploration:
    bounds: Bounds
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    actions: dict[str, int] = field(default_factory=dict)
    broken: str = ""  # the invariant's name
    message: str = ""
    story: list[Action] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"bounds": asdict(self.bounds) | {"release_at": self.bounds.release_at.name}}


def states_that_fit() -> int:
    """How many states half of the free memory can hold."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return free // 2 // BYTES_PER_STATE


def at_least(bounds: Bounds) -> int:
    """A number of states that the bound surely exceeds: where there is room for requests side by side,
    each of their rows is there or not, and its page sealed, spilling or clean, apart from all others."""
    together = min(bounds.requests, bounds.host // bounds.pages, bounds.gpu // (bounds.pages * bounds.groups))
    return 1 << (bounds.pages * bounds.rows * max(together, 0))


def explore(
    model: Model,
    sometimes: Sometimes | None = None,
    progress: Callable[[Exploration], None] = lambda _: None,
    max_states: int | None = None,
) -> Exploration:
    """Every state that `model` can reach; stops at the first broken invariant. Raises `TooLarge`."""
    bounds = model.bounds
    limit = states_that_fit() if max_states is None else max_states
    if at_least(bounds) > limit:
        raise TooLarge(f"this bound has more than {at_least(bounds):,} states, and memory holds about {limit:,}")
    start = shown = time.monotonic()
    found = Exploration(bounds)
    key = Symmetry(bounds).key
    first = model.initial()
    origin: dict[bytes, tuple[bytes, Action] | None] = {key(first): None}
    layer: list[tuple[bytes, State]] = [(key(first), first)]
    while layer:
        found.depth += 1
        below: list[tuple[bytes, State]] = []
        for parent, state in layer:
            for action, after in model.successors(state):
                found.transitions += 1
                found.actions[action[0]] = found.actions.get(action[0], 0) + 1
                try:
                    check_step(bounds, state, action, after)
                    if sometimes is not None:
                        sometimes.look_at_step(bounds, state, action, after)
                    if after is state:
                        continue
                    new = key(after)
                    if new in origin:
                        continue
                    check_state(bounds, after)
                    if sometimes is not None:
                        sometimes.look_at_state(bounds, after)
                except Broken as broken:
                    found.broken, found.message = broken.invariant, str(broken)
                    found.story = [*_story(origin, parent), action]
                    found.states, found.seconds = len(origin), time.monotonic() - start
                    return found
                origin[new] = (parent, action)
                below.append((new, after))
            if len(origin) > limit:
                raise TooLarge(f"more than {limit:,} states at depth {found.depth}: memory holds no more of this bound")
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                found.states, found.seconds = len(origin), shown - start
                progress(found)
        layer = below
    found.states, found.seconds = len(origin), time.monotonic() - start
    return found


def _story(origin: dict[bytes, tuple[bytes, Action] | None], state: bytes) -> list[Action]:
    """The actions that lead to a state. Ids are those of the states first seen, so it can be replayed."""
    actions: list[Action] = []
    step = origin[state]
    while step is not None:
        actions.append(step[1])
        step = origin[step[0]]
    return actions[::-1]
