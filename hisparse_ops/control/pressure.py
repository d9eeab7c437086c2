"""How room is made on the GPU, and how requests become resident again.

Room for a hot region is kept as long as some live request may still have to be moved to the host:
to give up pages it must hold its region first. With the admission ledger this makes every admitted
request squeezable to its charge, so an allocation within it succeeds, at once or after transfers.
"""

from __future__ import annotations

from collections.abc import Callable

from .pages import PageState
from .policy import Candidate, Policy
from .request import Fate, Request
from .residency import Residency
from .state import ControlState
from .types import RefusalReason


class Pressure:
    def __init__(self, state: ControlState, residency: Residency, policy: Policy) -> None:
        self._state = state
        self._residency = residency
        self._policy = policy

    def make_room(self, needed: int) -> RefusalReason | None:
        """See that `needed` GPU blocks can be leased; else why not."""
        gpu = self._state.gpu
        self._squeeze_until(lambda: gpu.free - needed >= self.reserve())
        while gpu.free - needed < self.reserve():
            coming = self.coming()
            if gpu.free + coming - needed >= self.reserve():
                return RefusalReason.PENDING
            if not self._move_one(at_a_loss=True):
                return RefusalReason.PENDING if coming or self._unsettled() else RefusalReason.GPU_BLOCKS
        return None

    def relieve(self) -> None:
        """Once a step: give up clean pages and move requests until the forecast is above the mark."""
        gpu, pressure = self._state.gpu, self._policy.pressure
        self._squeeze_until(lambda: not pressure(gpu.free))
        while pressure(gpu.free) and pressure(gpu.free + self.coming()):
            if not self._move_one(at_a_loss=False):
                break

    def bring_back(self) -> None:
        """Once a step: help stranded requests; without pressure, make one request resident again."""
        for request in list(self._state.stranded):
            self._help(request)
        if not self._policy.room(self._state.gpu.free, 0):
            return
        hot_cost = self._state.ledger.hot_cost
        candidates = [Candidate(r, hot_cost, self._missing(r)) for r in self._state.moved if r.incoming is None]
        chosen = self._policy.returning(candidates)
        if chosen is not None and self._policy.room(self._state.gpu.free, chosen.costs):
            self._return(chosen.request)

    def coming(self) -> int:
        """GPU blocks that transfers and steps under way will free, when clean pages are given up."""
        state, groups = self._state, self._state.shape.num_groups
        moved = sum(request.releasable() - request.unpinnable_count() for request in state.moved)
        orphans = sum(t.request.fate is Fate.GONE and t.holds_lease for t in state.transfers.active.values())
        detached = sum(len(request.pages) - request.frontier for request in state.detached)
        return state.fence.resting_gpu + (moved + orphans) * groups + detached * state.ledger.page_blocks

    def host_coming(self) -> bool:
        """Whether steps, transfers or publications under way will free host blocks."""
        state = self._state
        leaving = any(not transfer.request.live for transfer in state.transfers.active.values())
        return bool(state.fence.resting_host or state.detached or state.transfers.copies or leaving)

    def reserve(self) -> int:
        """Blocks to leave alone: a hot region, while a live request may need one."""
        return self._state.ledger.hot_cost if self._state.movable else 0

    def _unsettled(self) -> bool:
        """Whether what is under way may still change what can be given up: rows that a step in
        flight computes are not sealed yet, and an import keeps its pages until it ends."""
        importing = any(request.incoming is not None for request in self._state.live.values())
        return importing or self._state.fence.newest_in_flight is not None

    def _squeeze_until(self, enough: Callable[[], bool]) -> None:
        """Give up the clean pages of moved requests, those moved first coming first."""
        for request in self._state.moved:
            if enough():
                return
            self._squeeze(request)

    def _squeeze(self, request: Request) -> None:
        for page in request.unpinnable():
            self._residency.unpin(request, page)

    def _move_one(self, at_a_loss: bool) -> bool:
        """Grant one request its hot region and give up its clean pages; whether one was moved.
        `at_a_loss`: even one that frees less than its region costs."""
        state, groups = self._state, self._state.shape.num_groups
        if state.gpu.free < state.ledger.hot_cost:
            return False
        least = 0 if at_a_loss else state.ledger.hot_cost
        candidates = [
            Candidate(request, frees, state.ledger.hot_cost)
            for request in state.movable
            if request.incoming is None and (frees := request.releasable() * groups) > least
        ]
        chosen = self._policy.victim(candidates)
        if chosen is None:
            return False
        self._residency.grant_hot(chosen.request)
        self._squeeze(chosen.request)
        return True

    def _missing(self, request: Request) -> int:
        """GPU blocks it takes to make every page of a moved request resident and pinned."""
        pages = request.pages.count(PageState.HOST_ONLY) + request.pages.count(PageState.CLEAN_UNPINNED)
        return pages * self._state.shape.num_groups

    def _return(self, request: Request) -> None:
        """Bring a moved request nearer to full residency; at the end its region is given back."""
        pages = request.pages
        for index in sorted(pages.in_state[PageState.CLEAN_UNPINNED]):
            self._residency.pin(request, pages[index])
        self._fetch(request, self._state.config.restore_budget)
        if pages.resident and not pages.in_state[PageState.RESTORING]:
            self._residency.return_hot(request)
            self._state.totals.returned_requests += 1

    def _fetch(self, request: Request, budget: int) -> None:
        """Adopt host-only pages, or plan to restore them, `budget` pages at most, head first."""
        for index in sorted(request.pages.in_state[PageState.HOST_ONLY])[:budget]:
            if not self._residency.adopt(request, request.pages[index]):
                self._residency.restore(request, request.pages[index])

    def _help(self, request: Request) -> None:
        """Pages of a resident request are on the host only, because a restore failed: try again,
        or let it read them from there."""
        free = self._state.gpu.free
        if request.pages.resident:
            del self._state.stranded[request]
        elif free - self._missing(request) >= self.reserve():
            self._fetch(request, len(request.pages))
        elif request.movable and free >= self._state.ledger.hot_cost:
            self._residency.grant_hot(request)
