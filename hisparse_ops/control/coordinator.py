"""The façade of the control plane: events in, immutable plans out. Decides nothing itself.

A step of an engine:
    admit / extend ... -> plan_step -> (workers run) -> apply(reports) -> step_done -> seal ... -> finish ...
Several steps may be in flight. Every call costs what it changes, never the length of a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from .config import CoordinatorConfig
from .errors import ControlError
from .imports import Imports
from .invariants import check_all
from .landing import Landing
from .metrics import Snapshot
from .planner import Planner
from .policy import Policy, WatermarkPolicy
from .pressure import Pressure
from .publication import Publisher
from .request import Request
from .residency import Residency
from .snapshot import take_snapshot
from .state import ControlState, Order
from .types import (
    Admission,
    Extended,
    Extension,
    ImportAnswer,
    Limits,
    PoolShape,
    RankReport,
    RefusalReason,
    Refused,
    RequestId,
    Scheduled,
    StepPlan,
    TokenHash,
)

Answer = TypeVar("Answer", bound=NamedTuple)
NO_NEW_PAGES = Extended(0)


class Coordinator:
    def __init__(
        self,
        layout: PoolShape,
        config: CoordinatorConfig,
        policy: Policy | None = None,
        gpu_order: Order = None,
        host_order: Order = None,
    ) -> None:
        """`policy` decides who gives way under pressure (default: `WatermarkPolicy`). `gpu_order`
        and `host_order` name the blocks of the pools in the order of their free queues."""
        self._config = config
        self._block_size = layout.block_size
        state = ControlState(layout, config, gpu_order, host_order)
        self._policy = policy or WatermarkPolicy(state.gpu.usable, state.ledger.hot_cost, config.watermark_divisor)
        self._assemble(state)

    def _assemble(self, state: ControlState) -> None:
        self._state = state
        self._residency = Residency(state)
        self._publisher = Publisher(state, self._residency)
        self._pressure = Pressure(state, self._residency, self._policy)
        self._landing = Landing(state, self._residency, self._pressure, self._policy)
        self._imports = Imports(state, self._residency, self._publisher, self._pressure, self._policy)
        self._planner = Planner(state, self._residency, self._publisher, self._pressure)

    # -- requests ----------------------------------------------------------------------------

    def admit(
        self, request_id: RequestId, token_hashes: Sequence[TokenHash], num_tokens: int, limits: Limits
    ) -> Admission:
        """Make a request live. `token_hashes`: one chained hash per full page of the `num_tokens`
        tokens known now. A refusal changes nothing about the request."""
        self._check_admission(token_hashes, num_tokens, limits)
        hashes = token_hashes if self._config.host_tier else ()
        answer = self._landing.admit(request_id, hashes, num_tokens, limits)
        return self._noted(answer)

    def can_admit(self, token_hashes: Sequence[TokenHash], num_tokens: int, limits: Limits) -> bool:
        """Whether the admission ledger has room for such a request now. Pure."""
        self._check_admission(token_hashes, num_tokens, limits)
        return self._landing.refusal(token_hashes, num_tokens, limits) is None

    def extend(self, request_id: RequestId, num_tokens: int) -> Extension:
        """See that positions below `num_tokens` have pages. A refusal changes nothing about them."""
        request = self._computing(request_id)
        pages, limits = request.pages, request.limits
        if num_tokens > min(limits.max_tokens, request.computed + limits.max_step_tokens):
            raise ValueError(
                f"num_tokens: expected at most max_tokens ({limits.max_tokens}) and at most max_step_tokens "
                f"({limits.max_step_tokens}) beyond the {request.computed} computed, got {num_tokens}"
            )
        if num_tokens <= len(pages.table) * self._block_size:
            request.length = max(request.length, num_tokens)
            return NO_NEW_PAGES
        new_pages = self._state.ledger.pages(num_tokens) - len(pages)
        refused = self._extension_refusal(request, new_pages)
        if refused is not None:
            return self._noted(refused)
        self._state.ledger.grown(request, new_pages)
        for _ in range(new_pages):
            self._residency.add_fresh(request)
        request.length = num_tokens
        return Extended(new_pages)

    def seal(self, request_id: RequestId, final_tokens: int, token_hashes: Sequence[TokenHash] = ()) -> None:
        """Positions below `final_tokens` are final: no draft, no row that will be computed again.
        `token_hashes` are those of the pages that have become full of known tokens since admission
        or the last call."""
        request = self._computing(request_id)
        if not request.final_tokens <= final_tokens <= request.computed:
            raise ValueError(
                f"final_tokens: expected {request.final_tokens} .. {request.computed} (computed), got {final_tokens}"
            )
        sealed = final_tokens // self._block_size
        request.final_tokens = final_tokens
        if not token_hashes and sealed == request.sealed_pages:
            return
        if self._config.host_tier:
            request.hashes.extend(token_hashes)
            queue, table = self._state.spill_queue, request.pages.table
            for page in table[request.sealed_pages : sealed]:
                if page.transfer is None:  # a restore under way ends in the queue by itself
                    queue.append((request, page))
        request.sealed_pages = sealed
        self._publisher.advance(request)

    def finish(self, request_id: RequestId, publish: bool = True) -> None:
        """The request ends. With `publish`, its sealed pages go on to become durable and visible."""
        request = self._leaving(request_id)
        keep = self._publisher.detach(request) if publish and self._config.host_tier else 0
        self._residency.leave(request, keep)

    def preempt(self, request_id: RequestId) -> None:
        """The request gives up everything at once. What is published stays; nothing new will be."""
        self._residency.leave(self._leaving(request_id), keep=0)

    def begin_import(self, request_id: RequestId, num_tokens: int) -> ImportAnswer:
        """The KV of the first `num_tokens` tokens comes from outside, as far as the prefix hit of
        admission does not cover it. Call it before the first `extend`; the request may neither be
        extended nor scheduled until `end_import`. A refusal changes nothing: try again."""
        request = self._computing(request_id)
        if not self._config.host_tier:
            raise ControlError("an import needs the host tier")
        if not 1 <= num_tokens <= request.limits.max_tokens:
            raise ValueError(f"num_tokens: expected 1 .. {request.limits.max_tokens}, got {num_tokens}")
        if len(request.pages) * self._block_size != request.final_tokens:
            raise ControlError(f"request {request_id!r} has pages beyond its prefix hit: too late for an import")
        return self._noted(self._imports.begin(request, num_tokens))

    def end_import(self, request_id: RequestId, ok: bool) -> None:
        """The transport writes no more. With `ok` it has brought everything on every rank; else the
        request is back at its prefix hit. Also needed when the request has ended in between: until
        then what the transport may write into stays taken, and so does the request's id.

        When `is_importing` is over, compute on from `computed_tokens`, or compute the last one again."""
        self._imports.end(request_id, ok)

    # -- steps -------------------------------------------------------------------------------

    def plan_step(self, scheduled: Sequence[Scheduled]) -> StepPlan:
        """All that every rank must do around the next step; an empty list moves pending work on."""
        plan = self._planner.plan(scheduled)
        self._publisher.give_up_overdue(self._state.sequence)
        self._imports.give_up_overdue(self._state.sequence)
        return plan

    def apply(self, report: RankReport) -> None:
        """Take in a rank's report. Repeated, late, split or foreign parts change nothing."""
        self._publisher.apply(report)
        self._imports.apply(report)

    def step_done(self, sequence: int) -> None:
        """Every rank's device work of step `sequence` has ended."""
        self._state.fence.done(sequence)

    def reset(self) -> None:
        """Forget every request, every cached page and every transfer, in both pools at once. Call it
        when no rank has work under way: it is the fence for blocks that rest behind overdue
        transfers. Raises `ControlError`, changing nothing, while a transport may be writing."""
        state = self._state
        imports = (request.incoming for request in state.live.values() if request.incoming is not None)
        if state.orphaned or any(incoming.outside for incoming in imports):
            raise ControlError("an import is under way: end it first, then reset")
        self._assemble(ControlState(state.shape, state.config, *state.orders, before=state))

    def restart_rank(self, rank: int) -> None:
        """A rank was started anew and has lost its bytes. The ranks hold identical KV, so what one
        lost all compute again: this is a reset, and a new epoch, in which every rank's worker starts
        afresh. Reports of the old epoch change nothing any more."""
        if rank not in self._config.ranks:
            raise ValueError(f"rank: expected one of {self._config.ranks}, got {rank}")
        self.reset()
        self._state.epoch += 1

    # -- questions: pure ---------------------------------------------------------------------

    def cached_tokens(self, token_hashes: Sequence[TokenHash]) -> int:
        """Tokens of the longest prefix hit."""
        return len(self._state.hit(token_hashes)) * self._block_size

    def is_host_readable(self, request_id: RequestId) -> bool:
        """Whether the request holds its whole hot region."""
        return self._live(request_id).hot is not None

    def fully_resident(self, request_id: RequestId) -> bool:
        """Whether every page is read from the GPU."""
        return self._live(request_id).pages.resident

    def is_readable(self, request_id: RequestId) -> bool:
        """Whether every position can be read, so that the request may be scheduled."""
        return self._live(request_id).readable

    def is_importing(self, request_id: RequestId) -> bool:
        """Whether an import is under way; it may outlast `end_import` by a copy in host memory."""
        return self._live(request_id).incoming is not None

    def computed_tokens(self, request_id: RequestId) -> int:
        """Positions below it were scheduled, imported or found in the prefix cache: compute on from
        here. An import that failed, even in its last moment, leaves the request at its prefix hit."""
        return self._live(request_id).computed

    def reclaimable(self) -> int:
        """GPU blocks that are free, or clean and can be given up at once."""
        clean = sum(request.unpinnable_count() for request in self._state.moved)
        return self._state.gpu.free + clean * self._state.shape.num_groups

    def quiescent(self) -> bool:
        """Whether nothing is under way: no step, transfer, copy, detached request or resting block."""
        state = self._state
        importing = state.orphaned or any(request.incoming is not None for request in state.live.values())
        pending = (state.transfers.active, state.transfers.copies, state.detached, state.spill_queue, importing)
        return not any(pending) and state.fence.newest_in_flight is None

    def snapshot(self) -> Snapshot:
        """Metrics; costs what there is to count."""
        return take_snapshot(self._state)

    def check(self) -> None:
        """Recount everything. Raises AssertionError naming the invariant that does not hold."""
        check_all(self._state)

    # ----------------------------------------------------------------------------------------

    def _live(self, request_id: RequestId) -> Request:
        request = self._state.live.get(request_id)
        if request is None:
            raise ValueError(f"request_id: {request_id!r} is not live")
        return request

    def _computing(self, request_id: RequestId) -> Request:
        request = self._live(request_id)
        if request.incoming is not None:
            raise ControlError(f"request {request_id!r} has an import under way: end it first")
        return request

    def _leaving(self, request_id: RequestId) -> Request:
        request = self._live(request_id)
        if request.incoming is not None:
            self._imports.leave(request)
        return request

    def _noted(self, answer: Answer) -> Answer:
        if isinstance(answer, Refused):
            self._state.totals.refusals[answer.reason] += 1
        return answer

    def _check_admission(self, token_hashes: Sequence[TokenHash], num_tokens: int, limits: Limits) -> None:
        if not 1 <= num_tokens <= limits.max_tokens:
            raise ValueError(f"num_tokens: expected 1 .. max_tokens ({limits.max_tokens}), got {num_tokens}")
        if limits.max_step_tokens < 1:
            raise ValueError(f"limits.max_step_tokens: expected at least 1, got {limits.max_step_tokens}")
        if len(token_hashes) > num_tokens // self._block_size:
            raise ValueError(
                f"token_hashes: expected at most {num_tokens // self._block_size} (one per full page), "
                f"got {len(token_hashes)}"
            )

    def _extension_refusal(self, request: Request, new_pages: int) -> Refused | None:
        state, others = self._state, self._state.ledger.others_reserved(request)
        needed = new_pages * state.ledger.page_blocks
        if not self._config.host_tier:
            available = state.gpu.free - others * state.ledger.page_blocks
            reason = RefusalReason.PENDING if state.fence.resting_gpu else RefusalReason.GPU_BLOCKS
            return Refused(reason, needed, available) if needed > available else None
        if new_pages > state.host.free - others:
            reason = RefusalReason.PENDING if self._pressure.host_coming() else RefusalReason.HOST_BLOCKS
            return Refused(reason, new_pages, state.host.free - others)
        refusal = self._pressure.make_room(needed)
        return None if refusal is None else Refused(refusal, needed, state.gpu.free)
