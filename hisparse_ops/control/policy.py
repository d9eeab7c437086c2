"""Who gives way when GPU blocks run short, and who comes back: decisions only, no mechanism.

The default moves one request at a time, the one that frees most. (Letting every request ask at
once makes all of them move in the same step.) Another policy needs these four answers and nothing
else; it cannot break an invariant, because it only chooses among candidates that are legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .request import Request


class Candidate(NamedTuple):
    """A request that may be moved to the host (`frees` its pages, `costs` a hot region), or one
    that may become resident again (`frees` its hot region, `costs` its missing pages)."""

    request: Request
    frees: int  # GPU blocks
    costs: int


class Policy(Protocol):
    def pressure(self, free: int) -> bool:
        """Whether `free` GPU blocks (now, or forecast) are too few."""

    def room(self, free: int, cost: int) -> bool:
        """Whether pages of `cost` blocks may be made resident without being asked for."""

    def victim(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """The one request to move to the host next."""

    def returning(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """The one request to bring back next."""


class WatermarkPolicy:
    def __init__(self, blocks: int, hot_cost: int, divisor: int) -> None:
        self.mark = max(hot_cost, blocks // divisor)
        # What comes back must not cause pressure at once: one more hot region, or half a mark.
        self.return_mark = self.mark + max(hot_cost, self.mark // 2)

    def pressure(self, free: int) -> bool:
        return free < self.mark

    def room(self, free: int, cost: int) -> bool:
        return free - cost >= self.return_mark

    def victim(self, candidates: Sequence[Candidate]) -> Candidate | None:
        return max(candidates, key=lambda c: c.frees, default=None)

    def returning(self, candidates: Sequence[Candidate]) -> Candidate | None:
        return min(candidates, key=lambda c: c.costs, default=None)
