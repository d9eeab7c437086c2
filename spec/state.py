"""What there is. Nothing but tuples of small numbers: a state can be hashed, compared and written down.

| thing                | who knows it                | where                                       |
|----------------------|-----------------------------|---------------------------------------------|
| tables, counts, maps | control                     | `requests` .. `fenced`                      |
| what ranks have done | the rank, until it reports  | `Transfer.progress`; control has `known`    |
| bytes                | nobody: ghosts of the model | `gpu`, `stream`, `durable`, `lines`         |

Bytes are tags, one per row; 0 is garbage. `stream[rank][host]` is what a read that is put on the
stream now will see; `durable[rank][host]` is what is really there. A page's phase is derived.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from .bounds import Bounds

ABSENT, LIVE, IMPORTING, DETACHED = range(4)  # Request.status
SPILL, RESTORE, COPY = range(3)  # Transfer.kind
SENT, ENQUEUED, COMPLETED, FAILED = range(4)  # Transfer.progress and .known, per rank
NOBODY = 100  # Transfer.owner: the request is gone

Item = TypeVar("Item")
Content = tuple[int, ...]
Blocks = tuple[int, ...]


class Page(NamedTuple):
    host: int
    gpu: Blocks  # one per group, () = not resident
    keys: Blocks  # one per indexer group; () = given back (only in a detached request)
    held: bool  # the row holds a reference on `gpu`; resident and not held = unpinned
    clean: bool  # control knows that the host copy is durable on every rank
    proven: int  # rows that the host is known to hold in stream order
    tainted: bool = False  # a copy failed, or rows missed their mirror: never clean


class Request(NamedTuple):
    status: int
    pages: tuple[Page, ...]
    computed: int  # rows written
    final: int  # of these, rows that will never change
    draft: int  # of these, rows at the end that will be taken back
    hot: Blocks
    published: int  # pages below it are durable without a gap, and offered to others
    lines: tuple[tuple[int, Content], ...]  # host block -> what the hot buffer holds of it


class Transfer(NamedTuple):
    kind: int
    owner: int  # request, or NOBODY
    page: int
    host: int
    source: int  # COPY: the host block read; else 0
    gpu: Blocks
    leases_gpu: bool
    moves: bool  # False: a barrier behind rows that were mirrored
    progress: tuple[int, ...]  # per rank, the truth
    known: tuple[int, ...]  # per rank, as reported
    payload: tuple[Content, ...]  # per rank, the bytes on their way
    lost: bool  # overdue and set aside: nothing is believed of it any more


class Step(NamedTuple):
    """Blocks that a step in flight was planned on, and the table lines it was sent. Unpinned blocks are
    not among them: they are in the pool already, and only writers on the stream may take them."""

    gpu: frozenset[int]
    host: frozenset[int]
    sent: tuple[tuple[int, Blocks], ...]


class Fenced(NamedTuple):
    steps: int  # steps in flight that must end first
    gpu: Blocks  # a page's blocks, or
    host: int  # a host block


class State(NamedTuple):
    requests: tuple[Request, ...]
    transfers: tuple[Transfer, ...]
    prefix: tuple[tuple[int, int], ...]  # page name -> host block
    copies: tuple[tuple[int, Blocks], ...]  # published host block -> its readable GPU copy
    key_copies: tuple[tuple[int, Blocks], ...]  # published host block -> its readable index keys
    gpu_refs: tuple[int, ...]
    host_refs: tuple[int, ...]
    gpu_free: frozenset[int]
    host_free: frozenset[int]
    steps: tuple[Step, ...]
    fenced: tuple[Fenced, ...]
    gpu: tuple[Content, ...]
    stream: tuple[tuple[Content, ...], ...]
    durable: tuple[tuple[Content, ...], ...]


NEW_REQUEST = Request(ABSENT, (), 0, 0, 0, (), 0, ())


def initial(bounds: Bounds) -> State:
    nothing = (0,) * bounds.rows
    backing = (((nothing,) * (bounds.host + 1)),) * bounds.ranks
    return State(
        requests=(NEW_REQUEST,) * bounds.requests,
        transfers=(),
        prefix=(),
        copies=(),
        key_copies=(),
        gpu_refs=(0,) * (bounds.gpu + 1),
        host_refs=(0,) * (bounds.host + 1),
        gpu_free=frozenset(range(1, bounds.gpu + 1)),
        host_free=frozenset(range(1, bounds.host + 1)),
        steps=(),
        fenced=(),
        gpu=(nothing,) * (bounds.gpu + 1),
        stream=backing,
        durable=backing,
    )


def name_of(bounds: Bounds, request: int, page: int) -> int:
    """What a token hash stands for: equal names have equal tokens up to and in this page."""
    return page if page < bounds.shared else (request + 1) * bounds.pages + page


def final_content(bounds: Bounds, name: int) -> Content:
    first = 1 + 2 * name * bounds.rows
    return tuple(range(first, first + 2 * bounds.rows, 2))


def with_item(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])


def draft_tag(final_tag: int) -> int:
    return final_tag + 1


def pending(state: State, request: int, page: int) -> Transfer | None:
    """The transfer of this page that control waits for, or has set aside."""
    for transfer in state.transfers:
        if transfer.owner == request and transfer.page == page:
            return transfer
    return None


def pages_of(state: State) -> Iterator[tuple[int, int, Page]]:
    for r, request in enumerate(state.requests):
        for p, page in enumerate(request.pages):
            yield r, p, page


def phase(state: State, request: int, index: int) -> str:
    """The row of the page table in the protocol's words."""
    page = state.requests[request].pages[index]
    transfer = pending(state, request, index)
    if transfer is not None and transfer.kind == RESTORE:
        return "restoring"
    if transfer is not None and transfer.kind == SPILL:
        return "spilling"
    if not page.gpu:
        return "host-only" if page.clean else "import hole"
    if not page.clean:
        return "fresh"
    return "clean-pinned" if page.held else "clean-unpinned"


def readable_leases(state: State) -> set[Blocks]:
    """Free GPU blocks that somebody still reads, or would adopt: read off the tables."""
    found = {
        page.gpu
        for request in state.requests
        for page in request.pages
        if page.gpu and not page.held and page.gpu[0] in state.gpu_free
    }
    found.update(gpu for _, gpu in (*state.copies, *state.key_copies) if gpu[0] in state.gpu_free)
    return found


def blank_gpu(state: State) -> list[int]:
    whole = {block for gpu in readable_leases(state) for block in gpu}
    return sorted(state.gpu_free - whole)


def blank_host(state: State) -> list[int]:
    hashed = {host for _, host in state.prefix}
    return sorted(state.host_free - hashed)


def hits(bounds: Bounds, state: State, request: int) -> list[int]:
    """Host blocks of the published pages that this request's tokens begin with, as far as their index keys go."""
    prefix, keyed = dict(state.prefix), dict(state.key_copies)
    found = []
    for page in range(bounds.pages):
        host = prefix.get(name_of(bounds, request, page))
        if host is None or (bounds.keys and host not in keyed):
            break
        found.append(host)
    return found


def schedulable(state: State, request: int) -> bool:
    """Whether every row of a live request has a place to be read from."""
    r = state.requests[request]
    return r.status == LIVE and all(p.gpu or (r.hot and p.clean) for p in r.pages)
