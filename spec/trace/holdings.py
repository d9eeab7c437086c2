"""Two ways of counting the same references: what the pools of a trace say, and who the books know to hold.

| count   | changes with                                                                     |
|---------|----------------------------------------------------------------------------------|
| refs    | the trace's lease, share and release events                                      |
| holders | pages, hot regions, transfers, copies and imports of the books                   |
| resting | refs that nobody holds any more: they wait for the steps in flight when they were left |
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..invariants import STATE_INVARIANTS, STEP_INVARIANTS, Broken

SENTENCES = {
    **{invariant.name: invariant.sentence for invariant in STATE_INVARIANTS},
    **{invariant.name: invariant.sentence for invariant in STEP_INVARIANTS},
    "T1": "A call that raised has changed nothing.",
    "T2": "What a trace speaks of exists.",
    "T3": "A call is refused, or does what it says; it does not break down.",
    "W1": "A worker runs the steps that were planned, in their order, and computes what they schedule.",
    "W2": "A rank says of what it was sent that it is done, once, and only when it was begun.",
    "W3": "Control hears nothing that the worker has not said.",
}


def require(condition: object, invariant: str, where: str) -> None:
    if not condition:
        raise Broken(invariant, SENTENCES[invariant], where)


@dataclass(slots=True, eq=False)
class Held:
    """A thing that is counted: a GPU lease or a host block."""

    name: str
    refs: int = 1
    holders: int = 0
    resting: int = 0
    until: int = -1  # rests until this step is done


@dataclass(slots=True, eq=False)
class Lease(Held):
    blocks: tuple[int, ...] = ()
    whole: bool = True  # its blocks were not handed out again
    rows_of: tuple[int, int] = (0, 0)  # the host block (and which life of it) whose final rows it holds
    readers: set[object] = field(default_factory=set)  # pages that are read from it


@dataclass(slots=True, eq=False)
class Steps:
    """Steps planned and not done."""

    last: int = -1
    in_flight: dict[int, None] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        return next(iter(self.in_flight), self.last + 1)


class Holdings:
    """The books of references. `settle` compares both counts, for everything that a call touched."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._touched: set[Held] = set()
        self._resting: set[Held] = set()

    def taken(self, thing: Held) -> None:
        self._touched.add(thing)

    def shared(self, thing: Held) -> None:
        thing.refs += 1
        self._touched.add(thing)

    def released(self, thing: Held) -> None:
        require(thing.refs > 0, "B1", f"{thing.name} is released and nobody has a reference")
        thing.refs -= 1
        self._touched.add(thing)
        rested = thing.resting and thing.until < self._steps.oldest
        if not thing.refs and self._steps.in_flight:
            require(rested, "S19", f"{thing.name} is free while step {self._steps.oldest} is in flight")

    def hold(self, thing: Held) -> None:
        thing.holders += 1
        self._touched.add(thing)

    def drop(self, thing: Held) -> None:
        thing.holders -= 1
        self._touched.add(thing)

    def settle(self) -> None:
        for thing in self._touched:
            extra = thing.refs - thing.holders
            counts = f"{thing.name} has {thing.refs} references and {thing.holders} holders"
            require(extra >= 0, "S8", counts)
            require(not extra or self._steps.in_flight, "B1", counts)
            if extra > thing.resting:
                thing.until = self._steps.last
            thing.resting = extra
            (self._resting.add if extra else self._resting.discard)(thing)
        self._touched.clear()

    def rest_is_over(self) -> None:
        """Nothing rests longer than the steps it waited for."""
        for thing in self._resting:
            require(thing.until >= self._steps.oldest, "B1", f"{thing.name} still rests for step {thing.until}")
