"""What must come about: from any state, once faults have stopped, within a bounded number of fair rounds.

A round lets every rank do all it was asked to, delivers all reports, and lets control start as many
spills as its budget allows. `drain` adds nothing to that; `serve` adds an engine that wants to finish
its requests, oldest first, and makes room when it must.
"""

from __future__ import annotations

from collections.abc import Iterator

from .edit import NotEnabled
from .model import Action, Model
from .state import ABSENT, COMPLETED, DETACHED, FAILED, IMPORTING, LIVE, State, blank_gpu, blank_host, hits

SPILL_BUDGET = 1  # pages a round may start to spill: the least there is


class Stuck(AssertionError):
    """What had to come about did not; says which property, and where it stands."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"{name} broken: {sentence}")
        self.invariant = name


class Fair:
    def __init__(self, model: Model) -> None:
        self.model = model
        bounds = model.bounds
        pages = bounds.requests * bounds.pages
        self.rounds = 4 * pages + bounds.transfers + bounds.steps + 4  # enough to spill each page, and more

    def tried(self, state: State, action: Action) -> State:
        """The state after the action, or the same if it is not enabled."""
        try:
            return self.model.apply(state, action)
        except NotEnabled:
            return state

    def drain(self, state: State) -> State:
        """L1, L2, L7, L8: with no request doing anything, all that is under way comes to an end."""
        for _ in range(self.rounds):
            state = self.round(state)
        if any(not t.lost for t in state.transfers):
            raise Stuck("L1", "every transfer retires, or is set aside")
        if any(request.status == DETACHED for request in state.requests):
            raise Stuck("L2", "publications end")
        if state.steps or state.fenced:
            raise Stuck("L7", "an idle system becomes quiescent")
        if any(True for _ in self.spills(state)):
            raise Stuck("L8", "the spill budget starves no page")
        return state

    def round(self, state: State) -> State:
        for action in list(self.work(state)):
            state = self.tried(state, action)
        for i in reversed(range(len(state.transfers))):
            for rank in range(self.model.bounds.ranks):
                for fact in (COMPLETED, FAILED):
                    if i < len(state.transfers) and state.transfers[i].progress[rank] == fact:
                        state = self.tried(state, ("deliver", i, rank, fact))
        for _ in range(SPILL_BUDGET):
            state = next(self.spills(state), state)
        return state

    def work(self, state: State) -> Iterator[Action]:
        yield from [("step_done",)] * len(state.steps)
        for i in range(len(state.transfers)):
            for rank in range(self.model.bounds.ranks):
                yield ("enqueue", i, rank)
                yield ("complete", i, rank)

    def spills(self, state: State) -> Iterator[State]:
        """The states after each spill that can be planned."""
        for r, request in enumerate(state.requests):
            for p in range(len(request.pages)):
                after = self.tried(state, ("spill", r, p))
                if after != state:
                    yield after

    def serve(self, state: State) -> State:
        """L3, L4, L5: every request that is there, imports included, comes to its end."""
        quiet = 0
        while any(request.status in (LIVE, IMPORTING) for request in state.requests):
            before = [(request.status, request.computed, bool(request.hot)) for request in state.requests]
            state = self.round(self.engine(state))
            after = [(request.status, request.computed, bool(request.hot)) for request in state.requests]
            quiet = quiet + 1 if before == after else 0
            if quiet > self.rounds:
                raise Stuck("L3", "a refused allocation waits for something that will come, or preempts someone")
        return self.drain(state)

    def engine(self, state: State) -> State:
        for r, request in enumerate(state.requests):
            if request.status == IMPORTING:
                return self.tried(state, ("import_end", r, False))
        for r, request in enumerate(state.requests):
            if request.status == LIVE:
                return self.advance(state, r)
        return state

    def advance(self, state: State, r: int) -> State:
        request, bounds = state.requests[r], self.model.bounds
        state = self.tried(self.tried(state, ("takeback", r)), ("seal", r))
        if state.requests[r].computed == bounds.pages * bounds.rows:
            return self.tried(state, ("finish", r))
        written = self.tried(state, ("write", r, True, False))
        if written != state:
            return written
        request = state.requests[r]
        if request.computed < len(request.pages) * bounds.rows and not request.pages[-1].gpu:
            p = len(request.pages) - 1  # an imported tail: it comes back before it is appended to
            return self.with_room(state, r, bounds.groups, lambda gpu: ("restore", r, p, gpu))
        if any(not page.gpu for page in request.pages) and not request.hot:
            return self.with_room(state, r, bounds.hot, lambda gpu: ("hot", r, gpu))
        if request.computed < len(request.pages) * bounds.rows:
            return state  # a step in flight must end first
        hosts = blank_host(state)
        if not hosts:
            return self.room(state, r)
        return self.with_room(state, r, bounds.groups + bounds.keys, lambda gpu: ("append", r, hosts[0], gpu))

    def with_room(self, state: State, r: int, count: int, action: object) -> State:
        blank = tuple(blank_gpu(state)[:count])
        after = self.tried(state, action(blank)) if len(blank) == count else state  # type: ignore[operator]
        return after if after != state else self.room(state, r)

    def room(self, state: State, r: int) -> State:
        """One act that frees something: what costs least first, another request's life last."""
        for action in self.model.candidates(state):
            if action[0] in ("reuse", "evict", "unpin"):
                after = self.tried(state, action)
                if after != state:
                    return after
        if any(not t.lost for t in state.transfers) or state.fenced or state.steps:
            return state  # something is on its way
        if any(True for _ in self.spills(state)):
            return state
        request = state.requests[r]
        blank = tuple(blank_gpu(state)[: self.model.bounds.hot])
        if not request.hot and any(page.clean for page in request.pages[:-2]):
            after = self.tried(state, ("hot", r, blank))
            if after != state:
                return after
        others = [i for i, other in enumerate(state.requests) if other.status not in (ABSENT,) and i != r]
        return self.tried(state, ("preempt", others[-1] if others else r))

    def resume(self, state: State, r: int) -> None:
        """L6: a request that is preempted resumes from what it has published."""
        bounds = self.model.bounds
        before = hits(bounds, state, r)
        after = hits(bounds, self.tried(state, ("preempt", r)), r)
        if after != before:
            raise Stuck("L6", "a prefill preempted again and again resumes from its durable frontier")


def check_liveness(model: Model, state: State) -> None:
    """L1 - L8 from this state. Transfers that are lost for good keep their blocks, so with them
    only L1, L2, L6 - L8 can be asked for."""
    fair = Fair(model)
    fair.drain(state)
    for r, request in enumerate(state.requests):
        if request.status != ABSENT:
            fair.resume(state, r)
    if not any(t.lost for t in state.transfers):
        fair.serve(state)
