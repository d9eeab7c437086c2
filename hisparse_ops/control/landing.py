"""Where the pages of a prefix hit are put when a request is admitted.

| landing  | when                                               | pages of the hit                          |
|----------|----------------------------------------------------|-------------------------------------------|
| resident | all of it fits above the watermark, or the request | adopted where a GPU copy is readable,     |
|          | must be resident (it is charged for all of it)     | else restored by the next step            |
| host     | otherwise                                          | host-only, read through a hot region;     |
|          |                                                    | adopted where somebody pins a copy anyway |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .pages import RequestPages
from .policy import Policy
from .pressure import Pressure
from .request import Request
from .residency import Residency
from .state import ControlState
from .types import Admission, Admitted, HostBlock, Limits, RefusalReason, Refused, RequestId, TokenHash


class Choice(NamedTuple):
    hit: list[HostBlock]
    resident: bool
    blocks: int  # GPU blocks it takes now, copies that leave the free queue included


class Landing:
    def __init__(self, state: ControlState, residency: Residency, pressure: Pressure, policy: Policy) -> None:
        self._state = state
        self._residency = residency
        self._pressure = pressure
        self._policy = policy

    def refusal(self, token_hashes: Sequence[TokenHash], num_tokens: int, limits: Limits) -> Refused | None:
        """What the ledger says to this request; pure."""
        state = self._state
        hit = self._usable_hit(token_hashes, num_tokens, limits)
        idle = sum(state.host.refs[block] == 0 for block in hit)  # cached blocks that this hit takes
        refused = state.ledger.refusal(limits, num_tokens, state.gpu.free, state.host.free - idle, len(hit))
        if refused is not None and refused.reason is RefusalReason.TOO_LARGE:
            return refused
        if not state.free_rows:
            return Refused(RefusalReason.NO_STATE_ROW, 1, 0)
        return refused

    def admit(
        self, request_id: RequestId, token_hashes: Sequence[TokenHash], num_tokens: int, limits: Limits
    ) -> Admission:
        if request_id in self._state.live or request_id in self._state.orphaned:
            return Refused(RefusalReason.DUPLICATE, 1, 0)
        refused = self.refusal(token_hashes, num_tokens, limits)
        if refused is not None:
            return refused
        while True:
            # Making room may hand out parts of the hit: choose again until nothing changes.
            choice = self._choose(self._usable_hit(token_hashes, num_tokens, limits), limits)
            if not choice.blocks:
                break
            reason = self._pressure.make_room(choice.blocks)
            if reason is not None:
                return Refused(reason, choice.blocks, self._state.gpu.free)
            if choice == self._choose(self._usable_hit(token_hashes, num_tokens, limits), limits):
                break
        refused = self.refusal(token_hashes, num_tokens, limits)
        return refused if refused is not None else self._land(request_id, token_hashes, num_tokens, limits, choice)

    def _usable_hit(self, token_hashes: Sequence[TokenHash], num_tokens: int, limits: Limits) -> list[HostBlock]:
        """Whole pages, at least one token left to compute, and no more than the engine wants."""
        most = num_tokens - 1
        if limits.max_reused_tokens is not None:
            most = min(most, limits.max_reused_tokens)
        return self._state.hit(token_hashes[: most // self._state.shape.block_size])

    def _choose(self, hit: list[HostBlock], limits: Limits) -> Choice:
        state, groups = self._state, self._state.shape.num_groups
        keys = sum(
            len(lease.blocks) for lease in map(state.key_copies.get, hit) if lease is not None and not lease.refs
        )
        copies = [state.kv_copies.get(block) for block in hit]
        resident = keys + groups * sum(copy is None or not copy.refs for copy in copies)
        if not state.ledger.charge_of(limits).movable or not self._policy.pressure(state.gpu.free - resident):
            return Choice(hit, True, resident)
        if all(copy is not None and copy.refs for copy in copies):
            return Choice(hit, True, resident)
        return Choice(hit, False, keys + state.ledger.hot_cost)

    def _land(
        self, request_id: RequestId, token_hashes: Sequence[TokenHash], num_tokens: int, limits: Limits, choice: Choice
    ) -> Admitted:
        """The room is there: from here on nothing can fail. What is reused is pinned first, so that
        the leases that follow do not hand it out."""
        state, residency, hit = self._state, self._residency, choice.hit
        row = state.free_rows.popleft()
        request = Request(request_id, row, limits, list(token_hashes), RequestPages(row, state.changes))
        residency.enter(request, state.ledger.pages(num_tokens) - len(hit))
        for block in hit:
            keys = state.key_copies.get(block)
            assert keys is not None
            residency.add_shared(request, block, keys)
        adopted = 0
        for page in request.pages.table:
            copy = state.kv_copies.get(page.host)
            if copy is not None and (choice.resident or copy.refs):
                adopted += residency.adopt(request, page)
        if not choice.resident:
            residency.grant_hot(request)
        else:
            for page in request.pages.table:
                if page.kv is None:
                    residency.restore(request, page)
        request.frontier = request.sealed_pages = len(hit)
        request.length = request.computed = request.final_tokens = len(hit) * state.shape.block_size
        return Admitted(row, request.length, adopted)
