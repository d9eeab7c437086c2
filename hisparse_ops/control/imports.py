"""Pages that a transport brings from outside: the prefill's KV, computed on another machine.

begin -> (the transport writes; a shared tail is copied in host memory) -> end(ok)

| page of the import  | its host rows                              | after a good end               |
|---------------------|--------------------------------------------|--------------------------------|
| not known here      | written by the transport, into a new block | durable, published, landed     |
| rows published here | shared; only its index keys are brought    | the same                       |
| the last one (tail) | its own block: written by the transport,   | restored; writable, not sealed |
|                     | or copied from the published one           |                                |

The tail is where the next token is appended or the last one computed again, so it is never shared
and never hashed by the import. Everything an import needs is taken at once when it begins: two
imports cannot each hold half of what both need. A failed import proves nothing about any page.
"""

from __future__ import annotations

from .pages import Page, PageState
from .policy import Policy
from .pressure import Pressure
from .publication import Publisher
from .request import Incoming, Landing, Request
from .residency import Residency
from .state import ControlState
from .transfers import Copy
from .types import (
    NO_HOST_BLOCK,
    HostBlock,
    ImportAnswer,
    ImportPage,
    ImportStarted,
    RankReport,
    RefusalReason,
    Refused,
    RequestId,
)


class Imports:
    def __init__(
        self, state: ControlState, residency: Residency, publisher: Publisher, pressure: Pressure, policy: Policy
    ) -> None:
        self._state = state
        self._residency = residency
        self._publisher = publisher
        self._pressure = pressure
        self._policy = policy

    def begin(self, request: Request, num_tokens: int) -> ImportAnswer:
        """Take all that the pages of `num_tokens` tokens need beside the prefix hit."""
        state = self._state
        tail = state.ledger.pages(num_tokens) - 1
        wanted = range(len(request.pages), tail + 1)
        here = self._published_here(request, wanted)
        refused = self._refusal(request, wanted, here)
        if refused is not None:
            return refused
        for block in here.values():
            state.host.share(block)  # first, so that no lease below evicts it
        pages = [self._add_hole(request, here.get(index) if index != tail else None) for index in wanted]
        landed = pages if request.landing is Landing.RESIDENT else pages[-1:]
        incoming = Incoming(num_tokens, pages, {page: self._residency.lease_kv() for page in landed})
        if request.landing is Landing.HOST and request.hot is None:
            self._residency.grant_hot(request)
        if tail in here:
            state.host.share(pages[-1].host)
            writers = state.writers(state.config.ranks)
            incoming.copy = state.transfers.plan_copy(request, pages[-1], here[tail], writers).id
        state.ledger.grown(request, len(pages))
        request.incoming = incoming
        return ImportStarted(
            tuple([self._target(page, page.index in here) for page in pages]), state.fence.newest_in_flight
        )

    def end(self, request_id: RequestId, ok: bool) -> None:
        """The transport has stopped writing. `ok`: it has brought everything, on every rank."""
        state = self._state
        orphan = state.orphaned.pop(request_id, None)
        if orphan is not None:
            self._release(orphan, state.tick())
            return
        request = state.live.get(request_id)
        incoming = request.incoming if request is not None else None
        if request is None or incoming is None or not incoming.outside:
            raise ValueError(f"request_id: {request_id!r} has no import under way")
        incoming.outside = False
        incoming.good &= ok
        if not incoming.good or incoming.copy is None:
            self._finish(request, incoming)

    def leave(self, request: Request) -> None:
        """The request ends. What a transport may still write into stays taken until `end`."""
        incoming = request.incoming
        assert incoming is not None
        self._take_off(request, incoming)
        if incoming.outside:
            self._state.orphaned[request.id] = incoming
        else:
            self._release(incoming, self._state.tick())

    def apply(self, report: RankReport) -> None:
        """Take in which block copies a rank has done, or could not do."""
        transfers, writer = self._state.transfers, (report.rank, report.epoch)
        transfers.copy_failed(writer, report.failed)
        for copy in transfers.copied(writer, report.copied | report.failed):
            transfers.retire_copy(copy)
            self._state.fence.release_host(copy.source)
            self._state.fence.release_host(copy.destination)
            self._copied(copy)

    def give_up_overdue(self, sequence: int) -> None:
        """Stop waiting for block copies overdue at step `sequence`: both ends rest until a reset."""
        for copy in self._state.transfers.quarantine_copies(sequence):
            copy.failed = True
            self._state.totals.overdue += 1
            self._copied(copy)

    def _published_here(self, request: Request, wanted: range) -> dict[int, HostBlock]:
        """Host blocks that hold the rows of wanted pages already, though their index keys are lost,
        or though the page is too near to the end for a hit. None above a page of the request's own that
        is not published (yet)."""
        if request.frontier < wanted.start:
            return {}
        known = request.hashes[wanted.start : wanted.stop]
        found = ((index, self._state.prefix.get(h)) for index, h in zip(wanted, known, strict=False))
        return {index: block for index, block in found if block is not None}

    def _refusal(self, request: Request, wanted: range, here: dict[int, HostBlock]) -> Refused | None:
        """Why the import cannot begin now. The first call chooses where the pages will land."""
        state, count = self._state, len(wanted)
        if not count:
            return None
        keys, groups = count * state.shape.num_indexer_groups, state.shape.num_groups
        if request.landing is None:
            fits = not self._policy.pressure(state.gpu.free - keys - count * groups)
            resident = request.hot is None and (fits or not request.movable)
            request.landing = Landing.RESIDENT if resident else Landing.HOST
        own_blocks = count - len(here) + (wanted[-1] in here)
        idle = sum(state.host.refs[block] == 0 for block in here.values())
        unused = max(0, request.reserved_pages - count)  # set aside for this request beyond the import
        available = state.host.free - idle - state.ledger.others_reserved(request) - unused
        if own_blocks > available:
            return Refused(RefusalReason.HOST_BLOCKS, own_blocks, available)
        needed = keys + groups * (count if request.landing is Landing.RESIDENT else 1)
        if request.landing is Landing.HOST and request.hot is None:
            needed += state.ledger.hot_cost
        reason = self._pressure.make_room(needed)
        return None if reason is None else Refused(reason, needed, state.gpu.free)

    def _add_hole(self, request: Request, shared: HostBlock | None) -> Page:
        host = shared if shared is not None else self._residency.lease_host()
        return request.pages.append(PageState.IMPORT_HOLE, host, self._residency.lease_keys(), None)

    @staticmethod
    def _target(page: Page, here: bool) -> ImportPage:
        return ImportPage(page.index, NO_HOST_BLOCK if here else page.host, page.keys.blocks)

    def _copied(self, copy: Copy) -> None:
        incoming = copy.request.incoming
        if incoming is None or incoming.copy != copy.id:
            return
        incoming.copy = None
        incoming.good &= not copy.failed
        if not incoming.outside:
            self._finish(copy.request, incoming)

    def _finish(self, request: Request, incoming: Incoming) -> None:
        if not incoming.good:
            self._take_off(request, incoming)
            self._release(incoming, self._state.tick())
            return
        request.incoming = None
        if not incoming.pages:
            return
        *body, tail = incoming.pages
        for page in body:
            request.pages.move(page, PageState.HOST_ONLY)
        request.sealed_pages = tail.index
        request.final_tokens = tail.index * self._state.shape.block_size
        request.length = request.computed = incoming.tokens
        self._publisher.advance(request)
        for page, lease in incoming.kv.items():
            self._residency.restore(request, page, lease)

    @staticmethod
    def _take_off(request: Request, incoming: Incoming) -> None:
        for _ in incoming.pages:
            request.pages.pop()
        request.incoming = None

    def _release(self, incoming: Incoming, stamp: int) -> None:
        for page in reversed(incoming.pages):
            self._residency.drop_gpu(page, stamp)
            self._residency.drop_host(page)
        for lease in incoming.kv.values():
            self._state.fence.release_gpu(lease)
