"""How invariants are stated: a name and a sentence of the protocol, and a predicate that answers with what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..bounds import Bounds
from ..model import Action
from ..state import State

OfState = Callable[[Bounds, State], str | None]
OfStep = Callable[[Bounds, State, Action, State], str | None]


class StateInvariant(NamedTuple):
    name: str
    sentence: str
    wrong: OfState


class StepInvariant(NamedTuple):
    name: str
    sentence: str
    wrong: OfStep
    kinds: tuple[str, ...]  # of actions that could break it; () = any


STATE_INVARIANTS: list[StateInvariant] = []
STEP_INVARIANTS: list[StepInvariant] = []


def of_state(name: str, sentence: str) -> Callable[[OfState], OfState]:
    def note(wrong: OfState) -> OfState:
        STATE_INVARIANTS.append(StateInvariant(name, sentence, wrong))
        return wrong

    return note


def of_step(name: str, sentence: str, *kinds: str) -> Callable[[OfStep], OfStep]:
    def note(wrong: OfStep) -> OfStep:
        STEP_INVARIANTS.append(StepInvariant(name, sentence, wrong, kinds))
        return wrong

    return note
