"""Who computes in a step. First come, first served; the latest comer is preempted first.

The scheduler knows nothing of blocks, hot regions or spills: it asks the coordinator for room and acts on
the typed answer. `PENDING` means room is on its way, so the request sits this step out; any other refusal of
a running request is answered by preempting the latest comer.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hisparse_ops.control.coordinator import Coordinator
from hisparse_ops.control.types import Limits, RefusalReason, Refused
from hisparse_ops.engine.request import Phase, Request


class Slice(NamedTuple):
    """Rows `start .. end-1` of a request, computed in this step."""

    request: Request
    state_row: int
    start: int
    end: int

    @property
    def prefill(self) -> bool:
        return self.start < len(self.request.prompt)


class Scheduler:
    """`waiting` in order of arrival (a preempted request returns to the front); `running` in order of admission."""

    def __init__(self, coordinator: Coordinator, *, block_size: int, chunk: int, step_tokens: int) -> None:
        self._coordinator = coordinator
        self._block_size = block_size
        self._chunk = chunk
        self._step_tokens = step_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self.reused_tokens = 0
        self._state_rows: dict[str, int] = {}

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> list[Slice]:
        """The step's slices; each has its pages. Preempts and admits on the way."""
        slices: list[Slice] = []
        budget = self._step_tokens
        preemptions = self.preemptions
        for request in list(self.running):
            if request.phase is not Phase.RUNNING:
                continue  # preempted just now for the sake of an earlier one
            end = request.next_end(self._chunk)
            readable = self._coordinator.is_readable(request.id)  # else control is about to grant it a hot region
            if readable and end - request.computed <= budget and self._make_room(request, end):
                slices.append(self._slice(request, end))
                budget -= end - request.computed
        while self.waiting and self.preemptions == preemptions and self._admit(self.waiting[0]):
            request = self.waiting.popleft()
            end = request.next_end(self._chunk)
            if end - request.computed <= budget and self._coordinator.extend(request.id, end).ok:
                slices.append(self._slice(request, end))
                budget -= end - request.computed
        return slices

    def retire(self, request: Request, phase: Phase) -> None:
        """The request leaves: `FINISHED` publishes its full pages, `ABORTED` does not."""
        if request.phase is Phase.RUNNING:
            self._coordinator.finish(request.id, publish=phase is Phase.FINISHED)
            self.running.remove(request)
            del self._state_rows[request.id]
        else:
            self.waiting.remove(request)
        request.phase = phase

    def _slice(self, request: Request, end: int) -> Slice:
        return Slice(request, self._state_rows[request.id], request.computed, end)

    def _admit(self, request: Request) -> bool:
        """Ask for a state row and the pages of the longest usable prefix."""
        hashes = request.hash_full_pages(self._chunk, self._block_size)
        cached = self._coordinator.cached_tokens(hashes)
        limits = Limits(
            max_tokens=request.max_tokens,
            max_step_tokens=self._chunk,
            max_reused_tokens=request.resume_point(cached, self._chunk, self._block_size),
        )
        answer = self._coordinator.admit(request.id, hashes, request.num_tokens, limits)
        if isinstance(answer, Refused):
            return False
        if answer.cached_tokens != request.resume_point(answer.cached_tokens, self._chunk, self._block_size):
            raise AssertionError(f"admission resumed {request.id!r} inside a piece, at {answer.cached_tokens} tokens")
        request.phase = Phase.RUNNING
        request.computed = answer.cached_tokens
        self.reused_tokens += answer.cached_tokens
        self._state_rows[request.id] = answer.state_row
        self.running.append(request)
        return True

    def _make_room(self, request: Request, end: int) -> bool:
        """Pages for positions below `end`, at the cost of later comers; False: the request sits this step out."""
        while isinstance(answer := self._coordinator.extend(request.id, end), Refused):
            if answer.reason is RefusalReason.PENDING:
                return False
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def preempt(self, request: Request) -> None:
        """Give back all it holds; it waits at the front and computes its rows again (or finds them published)."""
        self._coordinator.preempt(request.id)
        self.running.remove(request)
        del self._state_rows[request.id]
        request.phase = Phase.WAITING
        request.computed = 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)
