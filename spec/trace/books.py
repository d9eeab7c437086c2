"""What a trace has told so far: pools, requests, pages, transfers, imports. Events change it; each is refused if
it is not possible.

The books know nothing of queues, watchers or indexes: who reads a block is seen in the pages, what a free
block still holds in the lease that had it last. Memory is bounded by what is live.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .holdings import Held, Holdings, Lease, Steps, require

WRITABLE_PAGES = 2  # the last pages of a row are never unpinned

FRESH, SPILLING, PINNED, UNPINNED = "fresh", "spilling", "clean-pinned", "clean-unpinned"
HOST_ONLY, RESTORING, HOLE = "host-only", "restoring", "import hole"
HOLDS_KV = frozenset({FRESH, SPILLING, PINNED, RESTORING})
NO_HOST = 0


@dataclass(slots=True, eq=False)
class Host(Held):
    block: int = NO_HOST
    life: int = 0  # how often it was leased: rows of an earlier life are not its rows
    token_hash: int | None = None
    pages: set[Page] = field(default_factory=set)
    keys: Lease | None = None  # index keys of the page that is published here


@dataclass(slots=True, eq=False)
class Page:
    request: Request
    index: int
    state: str
    host: Host | None
    keys: Lease | None
    kv: Lease | None
    clean: bool = False  # its host rows are final and durable
    tainted: bool = False  # rows missed their mirror, or a copy failed
    unproven: set[int] = field(default_factory=set)  # steps that wrote rows whose mirror is not proven
    transfer: Transfer | None = None
    ended: Transfer | None = None  # that has just retired
    gone: bool = False  # gave up what it held on the GPU

    def __str__(self) -> str:
        return f"page {self.index} of request {self.request.id!r}"


@dataclass(slots=True, eq=False)
class Transfer:
    id: int
    kind: str  # SPILL, RESTORE or COPY
    page: Page
    hosts: tuple[Host, ...]
    lease: Lease | None  # as long as it holds it
    blocks: tuple[int, ...]
    moves: bool
    writers: frozenset[tuple[int, int]]  # rank, epoch
    enqueued: set[tuple[int, int]] = field(default_factory=set)
    completed: set[tuple[int, int]] = field(default_factory=set)
    failed: bool = False
    sent: int | None = None
    aside: bool = False

    @property
    def done(self) -> bool:
        return self.completed == self.writers


@dataclass(slots=True, eq=False)
class Import:
    tokens: int
    pages: list[Page]
    kv: set[Lease] = field(default_factory=set)
    copy: Transfer | None = None
    outside: bool = True  # the transport may still write
    ok: bool = False


@dataclass(slots=True, eq=False)
class Request:
    number: int
    id: str
    row: int
    hashes: list[int] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    computed: int = 0
    final: int = 0
    length: int = 0
    hot: Lease | None = None
    detached: bool = False
    incoming: Import | None = None
    off_gpu: int = 0  # pages without GPU blocks
    unreadable: int = 0  # of these, pages whose host rows are not right either


class Books:
    def __init__(
        self, steps: Steps, gpu: Iterable[tuple[int, int]], host: Iterable[tuple[int, int]], size: int
    ) -> None:
        self.size = size  # rows of a page
        self.steps = steps
        self.held = Holdings(steps)
        self._gpu_ids, self._host_ids = Ids(gpu), Ids(host)
        self.lease_of: dict[int, Lease] = {}
        self.hosts: dict[int, Host] = {}
        self.prefix: dict[int, Host] = {}
        self.gpu_leased = self.host_leased = self.host_cached = 0  # blocks
        self.live: dict[str, Request] = {}
        self.requests: dict[int, Request] = {}  # live and detached, by their number
        self.transfers: dict[int, Transfer] = {}  # under way
        self.aside = 0
        self.orphans: dict[str, Import] = {}
        # Since the last plan.
        self.recycled: set[int] = set()
        self.unsent: list[Transfer] = []
        self.changed: dict[tuple[int, int], Request] = {}  # row, page
        self.hot_changed: dict[Request, None] = {}
        # In the call.
        self.leased: list[Lease] = []
        self.lost: set[Lease] = set()

    # Pools.

    @property
    def gpu_free(self) -> int:
        return self._gpu_ids.count - self.gpu_leased

    @property
    def host_free(self) -> int:
        return self._host_ids.count - self.host_leased

    def lease(self, blocks: Iterable[int]) -> Lease | None:
        """The lease that holds, or last held, exactly these blocks; none for none."""
        blocks = tuple(blocks)
        if not blocks:
            return None
        found = self.lease_of.get(blocks[0])
        require(found is not None and found.blocks == blocks, "B5", f"GPU blocks {blocks} are no lease any more")
        return found

    def host(self, block: int) -> Host | None:
        if block == NO_HOST:
            return None
        require(block in self._host_ids, "B4", f"host block {block} is none of the pool")
        return self.hosts.setdefault(block, Host(f"host block {block}", 0, block=block))

    def gpu_lease(self, blocks: list[int]) -> None:
        require(len(set(blocks)) == len(blocks), "B3", f"one lease of {blocks}")
        for block in blocks:
            require(block in self._gpu_ids, "B4", f"GPU block {block} is none of the pool")
            before = self.lease_of.get(block)
            if before is not None:
                require(not before.refs, "B3", f"GPU block {block} is handed out and has {before.refs} references")
                readers = ", ".join(map(str, before.readers))
                require(not readers, "B5", f"GPU block {block} is handed out and still read by {readers}")
                before.whole = False
                self.lost.discard(before)
                for other in before.blocks:
                    del self.lease_of[other]
        lease = Lease(f"GPU lease {tuple(blocks)}", blocks=tuple(blocks))
        self.lease_of.update(dict.fromkeys(blocks, lease))
        self.gpu_leased += len(blocks)
        self.leased.append(lease)
        self.held.taken(lease)

    def gpu_share(self, blocks: list[int]) -> None:
        lease = self.lease(blocks)
        assert lease is not None
        if not lease.refs:
            self.gpu_leased += len(blocks)
        self.held.shared(lease)

    def gpu_release(self, blocks: list[int]) -> None:
        lease = self.lease(blocks)
        assert lease is not None
        self.held.released(lease)
        if not lease.refs:
            self.gpu_leased -= len(blocks)

    def host_lease(self, block: int) -> None:
        host = self.host(block)
        require(host is not None, "B4", "the null block is leased")
        assert host is not None
        require(not host.refs, "B3", f"{host.name} is handed out and has {host.refs} references")
        require(host.token_hash is None, "B6", f"{host.name} is handed out and still published")
        host.refs, host.life = 1, host.life + 1
        self.host_leased += 1
        self.recycled.add(block)
        self.held.taken(host)

    def host_share(self, block: int) -> None:
        host = self.host(block)
        assert host is not None
        require(host.refs or host.token_hash is not None, "B3", f"{host.name} is shared and holds nothing")
        if not host.refs:
            self.host_leased += 1
            self.host_cached -= 1
        self.held.shared(host)

    def host_release(self, block: int) -> None:
        host = self.host(block)
        assert host is not None
        self.held.released(host)
        if not host.refs:
            self.host_leased -= 1
            self.host_cached += host.token_hash is not None

    def publish(self, block: int, token_hash: int) -> None:
        host = self.host(block)
        assert host is not None
        require(host.token_hash is None and token_hash not in self.prefix, "B6", f"{host.name} is published twice")
        pages = [page for page in host.pages if self._hash_of(page) == token_hash]
        require(pages, "S2", f"{host.name} is published, and is of no page with this hash")
        page = next((page for page in pages if page.clean), pages[0])
        require(page.clean, "S2", f"{page} is published and not durable")
        require((page.index + 1) * self.size <= page.request.final, "S4", f"{page} is published and not final")
        gap = next((before for before in page.request.pages[: page.index] if not before.clean), None)
        require(gap is None, "S3", f"{page} is published, and {gap} is not durable")
        host.token_hash, host.keys = token_hash, page.keys
        self.prefix[token_hash] = host

    @staticmethod
    def _hash_of(page: Page) -> int | None:
        hashes = page.request.hashes
        return hashes[page.index] if page.index < len(hashes) else None

    def unpublish(self, block: int, token_hash: int) -> None:
        host = self.host(block)
        require(host is not None and host.token_hash == token_hash, "B6", f"host block {block} never had this hash")
        assert host is not None
        host.token_hash = host.keys = None
        del self.prefix[token_hash]
        self.host_cached -= not host.refs

    def hit(self, hashes: Iterable[int]) -> list[Host]:
        """The longest prefix that is published, index keys and all."""
        found = []
        for token_hash in hashes:
            host = self.prefix.get(token_hash)
            if host is None or (host.keys is not None and not host.keys.whole):
                break
            found.append(host)
        return found

    # Requests and pages.

    def request(self, number: int) -> Request:
        require(number in self.requests, "T2", f"request number {number} is not there")
        return self.requests[number]

    def page(self, number: int, index: int) -> Page:
        pages = self.request(number).pages
        require(0 <= index < len(pages), "T2", f"request number {number} has {len(pages)} pages, none {index}")
        return pages[index]

    def enter(self, number: int, request_id: str, row: int) -> None:
        rows = {request.row for request in self.live.values()}
        require(number not in self.requests and request_id not in self.live, "B14", f"request {request_id!r} is live")
        require(row not in rows, "B14", f"state row {row} is handed out and is held")
        self.live[request_id] = self.requests[number] = Request(number, request_id, row)

    def add_page(self, number: int, index: int, state: str, host: int, keys: list[int], kv: list[int]) -> None:
        request = self.request(number)
        require(
            index == len(request.pages),
            "B14",
            f"page {index} of request {request.id!r} comes after {len(request.pages)}",
        )
        require(state in (FRESH, HOST_ONLY, HOLE), "B7", f"a page is born {state}")
        require(bool(kv) == (state == FRESH), "S16", f"a page is born {state}, read from {kv}")
        page = Page(request, index, state, self.host(host), self.lease(keys), self.lease(kv))
        if state == FRESH and page.host is not None:
            require(page.host.holders == 0, "B2", f"{page} is written to {page.host.name}, which has an owner")
        request.pages.append(page)
        page.clean = state == HOST_ONLY
        if page.host is not None:
            page.host.pages.add(page)
            self.held.hold(page.host)
        if page.keys is not None:
            self.held.hold(page.keys)
        self._read(page)
        self._count(page, 1)
        self.note(page)

    def pop(self, number: int, index: int, keeps: bool) -> None:
        """The last page leaves. `keeps`: a transport may still write to it, so nothing is given back."""
        request = self.request(number)
        require(index == len(request.pages) - 1, "B14", f"page {index} of {len(request.pages)} leaves first")
        page = request.pages.pop()
        self._count(page, -1)
        self._unread(page)
        self.note(page)
        if page.host is not None:
            page.host.pages.discard(page)
        if not keeps:
            self._give_up_keys(page)
            if page.host is not None:
                self.held.drop(page.host)
        page.gone = True

    def drop_gpu(self, number: int, index: int) -> None:
        """A page that has been published leaves the GPU; its row is a detached request's."""
        page = self.page(number, index)
        require(page.clean, "S14", f"{page} gives up its blocks before it is durable")
        self._count(page, -1)
        self._unread(page)
        self._give_up_keys(page)
        page.gone = True
        self._count(page, 1)

    def _give_up_keys(self, page: Page) -> None:
        if page.keys is not None:
            self.held.drop(page.keys)
            page.keys = None

    def _read(self, page: Page) -> None:
        if page.kv is not None:
            page.kv.readers.add(page)
            if page.state in HOLDS_KV:
                self.held.hold(page.kv)

    def _unread(self, page: Page) -> None:
        if page.kv is not None:
            page.kv.readers.discard(page)
            if page.state in HOLDS_KV:
                self.held.drop(page.kv)
            page.kv = None

    def reassign(self, page: Page, state: str, kv: Lease | None) -> None:
        """The page changes its state and where it is read; whether it may was asked before."""
        self._count(page, -1)
        self._unread(page)
        page.state, page.kv = state, kv
        self._read(page)
        self._count(page, 1)
        self.note(page)

    def _count(self, page: Page, sign: int) -> None:
        page.request.off_gpu += sign * (page.kv is None)
        page.request.unreadable += sign * (page.kv is None and not page.clean)

    def set_clean(self, page: Page) -> None:
        self._count(page, -1)
        page.clean = True
        self._count(page, 1)

    def note(self, page: Page) -> None:
        """The page's line in the workers' tables may not be right any more."""
        if not page.request.detached:
            self.changed[page.request.row, page.index] = page.request

    # Hot regions.

    def grant_hot(self, number: int, blocks: list[int]) -> None:
        request = self.request(number)
        require(request.hot is None, "S6", f"request {request.id!r} has a hot region")
        request.hot = self.lease(blocks)
        if request.hot is not None:
            require(request.hot.holders == 0, "B1", f"{request.hot.name} is granted and has an owner")
            self.held.hold(request.hot)
        self.hot_changed[request] = None

    def cool(self, request: Request) -> None:
        if request.hot is not None:
            self.held.drop(request.hot)
            request.hot = None
        self.hot_changed[request] = None


class Ids:
    """Block ids as (first, last) of their runs."""

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        self._runs = [(first, last) for first, last in runs]
        self.count = sum(last - first + 1 for first, last in self._runs)

    def __contains__(self, block: object) -> bool:
        return isinstance(block, int) and any(first <= block <= last for first, last in self._runs)
