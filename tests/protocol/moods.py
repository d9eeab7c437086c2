"""A policy whose answers are drawn by the test: whatever a policy may say, the protocol must stand it."""

from __future__ import annotations

from collections.abc import Sequence

from hisparse_ops.control.policy import Candidate

CALM = "calm"  # nothing moves by itself
ROOMY = "roomy"
# mood -> (says that there is pressure, says that there is room to come back)
MOODS = {CALM: (False, False), "tight": (True, False), ROOMY: (False, True)}


class Mood:
    """Says the same in every answer, until it is set anew. Which candidate it picks is set as well."""

    def __init__(self) -> None:
        self.set(CALM, 0)

    def set(self, mood: str, pick: int) -> None:
        self._pressure, self._room = MOODS[mood]
        self._pick = pick

    def pressure(self, free: int) -> bool:
        return self._pressure

    def room(self, free: int, cost: int) -> bool:
        return self._room and free >= cost

    def victim(self, candidates: Sequence[Candidate]) -> Candidate | None:
        return candidates[self._pick % len(candidates)] if candidates else None

    returning = victim
