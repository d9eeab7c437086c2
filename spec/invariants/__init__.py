"""What must hold: of every state, and of every step from one state to the next.

`contents` has S1-S19: who may read what. `books` has B1-B14: who holds what. Contents are judged by the
ghost bytes alone, book-keeping by counting holders.
"""

from __future__ import annotations

from ..bounds import Bounds
from ..model import Action
from ..state import State
from . import books, contents
from .registry import STATE_INVARIANTS, STEP_INVARIANTS

__all__ = ["STATE_INVARIANTS", "STEP_INVARIANTS", "Broken", "books", "check_state", "check_step", "contents"]


class Broken(AssertionError):
    """An invariant does not hold; says which, its sentence, and where."""

    def __init__(self, invariant: str, sentence: str, where: str) -> None:
        super().__init__(f"{invariant} broken: {sentence} Here: {where}.")
        self.invariant = invariant


def check_state(bounds: Bounds, state: State) -> None:
    for name, sentence, wrong in STATE_INVARIANTS:
        where = wrong(bounds, state)
        if where is not None:
            raise Broken(name, sentence, where)


def check_step(bounds: Bounds, before: State, action: Action, after: State) -> None:
    for name, sentence, wrong, kinds in STEP_INVARIANTS:
        if kinds and action[0] not in kinds:
            continue
        where = wrong(bounds, before, action, after)
        if where is not None:
            raise Broken(name, sentence, where)
