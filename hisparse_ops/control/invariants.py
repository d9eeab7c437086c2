"""The invariants that the state itself can show, each by recounting. For tests and for doubt.

What needs bytes or two machines (S1, S2, S10, S15, S18, B13) is tested with a worker; here stands
what of them the books can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from .gpu_pool import Lease
from .pages import DURABLE, HOLDS_KV, READ_FROM_GPU, Page, PageState
from .request import WRITABLE_PAGES, Fate, Incoming, Request
from .state import ControlState
from .transfers import Copy, Transfer
from .types import NO_GPU_BLOCK, NO_HOST_BLOCK, HostBlock, TransferKind

T = TypeVar("T")


def s1_every_page_of_a_readable_request_has_a_place(state: ControlState) -> None:
    """S1 Every position below a scheduled request's length is readable."""
    for request in filter(lambda r: r.readable, state.live.values()):
        for page in request.pages.table:
            on_gpu = page.kv is not None and page.kv.whole
            on_host = page.durable and page.host != NO_HOST_BLOCK and request.hot is not None
            assert on_gpu or on_host, f"page {page.index} of {request.id!r} ({page.state}) is readable nowhere"
        assert request.length <= len(request.pages) * state.shape.block_size


def s2_only_durable_blocks_are_hashed(state: ControlState) -> None:
    """S2 A hash is visible only if the block holds the page's final bytes."""
    for _, page in _pages(state):
        if page.host in state.host.hash_of and page.state not in DURABLE | {PageState.RESTORING}:
            shared_hole = page.state is PageState.IMPORT_HOLE  # rows published here, keys on their way
            assert shared_hole, f"page {page.index} is {page.state.value}, but its block is hashed"


def s3_published_pages_are_a_gap_free_prefix(state: ControlState) -> None:
    """S3 Published pages of a request are a gap-free prefix."""
    for request in _requests(state):
        assert request.frontier <= len(request.pages), "the frontier lies beyond the table"
        for page in request.pages.table[: request.frontier] if request.live else []:
            assert page.durable or page.state is PageState.RESTORING, f"page {page.index} below the frontier"
        if request.incoming is None:
            for page in request.pages.table[request.frontier :]:
                assert page.host not in state.host.hash_of, f"page {page.index} beyond the frontier is published"


def s4_only_sealed_pages_spill(state: ControlState) -> None:
    """S4 Only sealed pages spill: no draft rows, no row that will be recomputed."""
    for request, page in _pages(state):
        if page.state is PageState.SPILLING:
            assert page.index < request.sealed_pages, f"page {page.index} spills unsealed"
    for request in _requests(state):
        full = request.final_tokens // state.shape.block_size
        assert request.sealed_pages == full, f"{request.sealed_pages} pages sealed, {full} full of final tokens"


def s5_unpinned_pages_are_durable_and_idle(state: ControlState) -> None:
    """S5 unpinned implies durable, no transfer pending, not pinned (by this page), and watched (B5)."""
    for page in _unpinned(state):
        assert page.transfer is None, f"page {page.index} is unpinned with transfer {page.transfer}"
        assert page.kv is not None and page.kv.whole, f"page {page.index} is unpinned, but its blocks are gone"
        assert page.kv.watchers.count(page) == 1, f"page {page.index} is unpinned and not watched once"


def s6_s7_unpinned_only_under_a_hot_region_and_never_the_tail(state: ControlState) -> None:
    """S6 unpinned implies the request holds its whole hot region. S7 The last two pages of a live
    request's row are never unpinned."""
    for request in state.live.values():
        unpinned = request.pages.in_state[PageState.CLEAN_UNPINNED]
        if unpinned:
            assert request.hot is not None, f"{request.id!r} has unpinned pages and no hot region"
            assert max(unpinned) < len(request.pages) - WRITABLE_PAGES, f"{request.id!r}: the tail is unpinned"
        if request.hot is not None:
            assert len(request.hot.blocks) == state.ledger.hot_cost, f"{request.id!r}: part of a hot region"


def s9_an_import_writes_only_unhashed_blocks(state: ControlState) -> None:
    """S9 An import writes only unhashed host blocks."""
    for incoming in _imports(state):
        for page in incoming.pages:
            shared = page.host in state.host.hash_of
            assert not shared or page is not incoming.pages[-1], "the tail of an import is a published block"


def s14_nothing_of_a_request_that_left_is_waiting(state: ControlState) -> None:
    """S14 Preemption drops what was pending to be published; L2: what is detached still has a reason."""
    for request in state.detached:
        assert request.fate is Fate.DETACHED and request.frontier < len(request.pages), "detached without a reason"
        for page in request.pages.table[request.frontier :]:
            assert page.index < request.sealed_pages, "a detached page was never sealed"


def s16_s17_whole_pages(state: ControlState) -> None:
    """S16 Residency is the same in all resident groups. S17 No page has a GPU block without a host block."""
    for _, page in _pages(state):
        assert len(page.keys.blocks) == state.shape.num_indexer_groups
        if page.kv is not None:
            assert len(page.kv.blocks) == state.shape.num_groups
            assert page.host != NO_HOST_BLOCK or not state.config.host_tier
        assert (page.kv is not None) == (page.state in READ_FROM_GPU), f"page {page.index} is {page.state.value}"


def b1_gpu_references_equal_the_holders(state: ControlState) -> None:
    """B1 Reference counts equal the holders: rows (not unpinned), transfers, imports, fenced, hot, index keys."""
    holders: Counter[Lease] = Counter(state.fence.leases.holds)
    for request in _requests(state):
        first = request.frontier if request.fate is Fate.DETACHED else 0
        for page in request.pages.table[first:]:
            holders[page.keys] += 1
            if page.kv is not None and page.state in HOLDS_KV:
                holders[page.kv] += 1
        if request.hot is not None:
            holders[request.hot] += 1
    for transfer in _transfers(state):
        holders[transfer.lease] += transfer.holds_lease
    for incoming in _imports(state):
        holders.update(incoming.kv.values())
    for incoming in state.orphaned.values():
        holders.update(page.keys for page in incoming.pages)
    _same_counts({lease: lease.refs for lease in holders}, holders, "lease")
    taken = sum(len(lease.blocks) for lease in holders if holders[lease])
    assert taken + state.gpu.free == state.gpu.usable, f"{taken} leased + {state.gpu.free} free GPU blocks"
    blocks = [block for lease in holders if holders[lease] for block in lease.blocks]
    assert len(set(blocks) | set(_free_gpu(state))) == state.gpu.usable, "a GPU block has two owners, or none"


def b2_host_references_equal_the_holders(state: ControlState) -> None:
    """B2 The same for host blocks: rows, transfers, detached publications, copy ends, fenced."""
    holders: Counter[HostBlock] = Counter(state.fence.blocks.holds)
    for _, page in _pages(state):
        holders[page.host] += 1
    for incoming in state.orphaned.values():
        holders.update(page.host for page in incoming.pages)
    holders.update(transfer.host for transfer in _transfers(state))
    for copy in _copies(state):
        holders.update((copy.source, copy.destination))
    del holders[NO_HOST_BLOCK]
    _same_counts(state.host.refs, holders, "host block")


def b3_b4_free_queues(state: ControlState) -> None:
    """B3 The free queue is exactly the blocks of count 0 without the null block; no repeats. B4 The
    null block is never leased, freed, hashed or queued."""
    free = _free_gpu(state)
    assert len(free) == len(set(free)) == state.gpu.free, "the GPU free queue repeats or misses blocks"
    assert all(lease.refs == 0 for lease in state.gpu.readable_leases()), "a leased block is queued"
    blank, cached = list(state.host.blank_blocks()), list(state.host.cached_blocks())
    idle = {block for block, refs in state.host.refs.items() if refs == 0}
    assert len(blank) + len(cached) == len(idle) and {*blank, *cached} == idle, "the host free queue is wrong"
    assert all(block not in state.host.hash_of for block in blank), "a blank host block is hashed"
    assert all(block in state.host.hash_of for block in cached), "a cached host block has no hash"
    assert NO_GPU_BLOCK not in free and NO_HOST_BLOCK not in state.host.refs, "the null block is in a pool"


def b5_b6_indexes_agree(state: ControlState) -> None:
    """B5 A watcher exists for every free block that is still read or indexed. B6 Each index and its
    inverse agree, and a reused block has dropped the whole tuple."""
    assert {block: h for h, block in state.prefix.items()} == state.host.hash_of, "prefix and hashes differ"
    for copies in (state.kv_copies, state.key_copies):
        assert {lease: block for block, lease in copies.items()} == dict(copies.inverse()), "copy index and inverse"
        for block, lease in copies.items():
            assert lease.whole and lease.watchers.count(copies) == 1, f"the copy of {block} is gone, or not watched"
            assert block in state.host.hash_of, f"the copy of {block} is indexed, the block is not published"
    for lease in state.gpu.readable_leases():
        assert lease.watchers, "a readable lease that nobody reads"


def b7_b9_pending_transfers(state: ControlState) -> None:
    """B7 page.transfer and the ledger agree; B9 one pending transfer per page."""
    active = state.transfers.active
    pages = Counter(transfer.page for transfer in active.values())
    assert all(count == 1 for count in pages.values()), "two transfers of one page"
    for transfer in active.values():
        assert transfer.page.transfer == transfer.id, f"transfer {transfer.id} is not its page's"
    kinds = {TransferKind.SPILL: PageState.SPILLING, TransferKind.RESTORE: PageState.RESTORING}
    for request, page in _pages(state):
        pending = active.get(page.transfer) if page.transfer is not None else None
        assert (pending is None) == (page.transfer is None), f"page {page.index} waits for nothing"
        if request.owns(page):
            busy = page.state in kinds.values()
            assert busy == (pending is not None), f"page {page.index} is {page.state.value}"
            assert pending is None or kinds[pending.kind] is page.state, f"page {page.index} is {page.state.value}"
    assert set(state.transfers.unproven) <= set(active), "an unproven transfer that is over"


def b14_tables(state: ControlState) -> None:
    """B14 Table rows are append-only, so a page's index is its place; the sets by state agree."""
    rows = [request.state_row for request in state.live.values()]
    assert sorted(rows + list(state.free_rows)) == list(range(state.config.max_requests)), "state rows"
    for request in _requests(state):
        table = request.pages.table
        assert [page.index for page in table] == list(range(len(table)))
        for s in PageState:
            assert request.pages.in_state[s] == {page.index for page in table if page.state is s}, s.value


def ledger_sums(state: ControlState) -> None:
    """The admission ledger equals the sum over live requests, and never promises more than there is."""
    ledger, live = state.ledger, state.live.values()
    assert ledger.charged == sum(request.charge for request in live)
    assert ledger.movable == sum(request.movable for request in live)
    assert ledger.reserved_pages == sum(request.reserved_pages for request in live)
    assert set(state.moved) == {request for request in live if request.hot is not None}
    assert set(state.movable) == {request for request in live if request.movable and request.hot is None}
    if state.config.host_tier:
        assert ledger.charged <= state.gpu.usable, "more GPU blocks promised than there are"
        assert ledger.reserved_pages <= state.host.free, "more host blocks set aside than are free"


INVARIANTS: tuple[Callable[[ControlState], None], ...] = (
    s1_every_page_of_a_readable_request_has_a_place,
    s2_only_durable_blocks_are_hashed,
    s3_published_pages_are_a_gap_free_prefix,
    s4_only_sealed_pages_spill,
    s5_unpinned_pages_are_durable_and_idle,
    s6_s7_unpinned_only_under_a_hot_region_and_never_the_tail,
    s9_an_import_writes_only_unhashed_blocks,
    s14_nothing_of_a_request_that_left_is_waiting,
    s16_s17_whole_pages,
    b1_gpu_references_equal_the_holders,
    b2_host_references_equal_the_holders,
    b3_b4_free_queues,
    b5_b6_indexes_agree,
    b7_b9_pending_transfers,
    b14_tables,
    ledger_sums,
)


def check_all(state: ControlState) -> None:
    for invariant in INVARIANTS:
        try:
            invariant(state)
        except AssertionError as failure:
            raise AssertionError(f"{invariant.__name__}: {failure}\n{invariant.__doc__}") from None


def _requests(state: ControlState) -> Iterator[Request]:
    yield from state.live.values()
    yield from state.detached


def _pages(state: ControlState) -> Iterator[tuple[Request, Page]]:
    return ((request, page) for request in _requests(state) for page in request.pages.table)


def _unpinned(state: ControlState) -> Iterator[Page]:
    for request in state.live.values():
        yield from (request.pages[index] for index in request.pages.in_state[PageState.CLEAN_UNPINNED])


def _imports(state: ControlState) -> Iterator[Incoming]:
    yield from state.orphaned.values()
    yield from (request.incoming for request in state.live.values() if request.incoming is not None)


def _transfers(state: ControlState) -> Iterator[Transfer]:
    yield from state.transfers.active.values()
    yield from (thing for thing in state.transfers.quarantined.values() if isinstance(thing, Transfer))


def _copies(state: ControlState) -> Iterator[Copy]:
    yield from state.transfers.copies.values()
    yield from (thing for thing in state.transfers.quarantined.values() if isinstance(thing, Copy))


def _free_gpu(state: ControlState) -> list[int]:
    readable = (block for lease in state.gpu.readable_leases() for block in lease.blocks)
    return [*state.gpu.blank_blocks(), *readable]


def _same_counts(refs: Mapping[T, int], holders: Counter[T], what: str) -> None:
    for thing in {*refs, *holders}:
        assert refs[thing] == holders[thing], f"{what} {thing}: {refs[thing]} references, {holders[thing]} holders"
