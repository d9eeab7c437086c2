"""The pages of one request and the states they may be in.

| state          | KV lease            | host copy durable | read from                              |
|----------------|---------------------|-------------------|----------------------------------------|
| FRESH          | held                | no                | GPU                                    |
| SPILLING       | held                | no                | GPU                                    |
| CLEAN_PINNED   | held                | yes               | GPU                                    |
| CLEAN_UNPINNED | watched             | yes               | GPU until it is reused, then host      |
| HOST_ONLY      | none                | yes               | host, through the hot buffer           |
| RESTORING      | held                | yes, or the tail  | GPU, after the restore in stream order |
| IMPORT_HOLE    | none                | no                | nobody                                 |

A page holds one reference on its host block and one on the lease of its index keys for as long as
it exists, and one on its KV lease where the table says "held".
"""

from __future__ import annotations

from enum import StrEnum

from .errors import ControlError
from .gpu_pool import Lease
from .metrics import Totals
from .types import HostBlock, TransferId


class PageState(StrEnum):  # of strings, because hashing those is cheap
    FRESH = "fresh"
    SPILLING = "spilling"
    CLEAN_PINNED = "clean-pinned"
    CLEAN_UNPINNED = "clean-unpinned"
    HOST_ONLY = "host-only"
    RESTORING = "restoring"
    IMPORT_HOLE = "import hole"


_S = PageState
BORN_AS = frozenset({_S.FRESH, _S.HOST_ONLY, _S.IMPORT_HOLE})
MOVES: dict[PageState, frozenset[PageState]] = {
    _S.FRESH: frozenset({_S.SPILLING}),
    _S.SPILLING: frozenset({_S.CLEAN_PINNED, _S.FRESH}),  # fresh again: the copy failed
    _S.CLEAN_PINNED: frozenset({_S.CLEAN_UNPINNED}),
    _S.CLEAN_UNPINNED: frozenset({_S.CLEAN_PINNED, _S.HOST_ONLY}),
    _S.HOST_ONLY: frozenset({_S.CLEAN_PINNED, _S.RESTORING}),
    _S.RESTORING: frozenset({_S.CLEAN_PINNED, _S.FRESH, _S.HOST_ONLY, _S.IMPORT_HOLE}),
    _S.IMPORT_HOLE: frozenset({_S.HOST_ONLY, _S.RESTORING}),
}
HOLDS_KV = frozenset({_S.FRESH, _S.SPILLING, _S.CLEAN_PINNED, _S.RESTORING})
READ_FROM_GPU = HOLDS_KV | {_S.CLEAN_UNPINNED}
DURABLE = frozenset({_S.CLEAN_PINNED, _S.CLEAN_UNPINNED, _S.HOST_ONLY})
NEVER_WRITTEN = -1


class Source(StrEnum):
    """Where the workers' tables say that a page is read."""

    GPU = "GPU"
    HOST = "host"
    NOWHERE = "nowhere"


SOURCE = {
    **dict.fromkeys(READ_FROM_GPU, Source.GPU),
    _S.HOST_ONLY: Source.HOST,
    _S.IMPORT_HOLE: Source.NOWHERE,
}


class Page:
    """One page. `kv` is the lease it is read from on the GPU, `keys` its index keys' lease."""

    __slots__ = ("first_write", "host", "index", "keys", "kv", "last_write", "pages", "state", "transfer")

    def __init__(self, pages: RequestPages, index: int, host: HostBlock, keys: Lease, kv: Lease | None) -> None:
        self.pages = pages
        self.index = index
        self.host = host
        self.keys = keys
        self.kv = kv
        self.state = _S.FRESH
        self.first_write = NEVER_WRITTEN  # first and last step that wrote rows of the page
        self.last_write = NEVER_WRITTEN
        self.transfer: TransferId | None = None

    @property
    def durable(self) -> bool:
        return self.state in DURABLE

    @property
    def tainted(self) -> bool:
        """Rows were written that are not proven to be on the host: the page is never durable."""
        return self.index in self.pages.tainted

    @property
    def hopeless(self) -> bool:
        """It will never be durable: tainted, or valid nowhere."""
        return self.tainted or self.state is _S.IMPORT_HOLE

    def taint(self) -> None:
        self.pages.tainted.add(self.index)

    def lost(self, lease: Lease) -> None:
        """The pool handed out the blocks that this unpinned page was read from."""
        self.pages.lose(self)


class TableChanges:
    """Pages whose line in the workers' tables is no longer right."""

    def __init__(self, totals: Totals) -> None:
        self.pages: dict[Page, None] = {}
        self.totals = totals


class RequestPages:
    """An append-only table of pages, and which of them are in which state. Changes that the workers
    must hear of are noted in `changes`, as long as the request has a row in their tables."""

    def __init__(self, row: int, changes: TableChanges) -> None:
        self.row: int | None = row
        self.table: list[Page] = []
        self.in_state: dict[PageState, set[int]] = {state: set() for state in PageState}
        self.tainted: set[int] = set()
        self._changes = changes

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Page:
        return self.table[index]

    def append(self, state: PageState, host: HostBlock, keys: Lease, kv: Lease | None) -> Page:
        if state not in BORN_AS:
            raise ControlError(f"a page cannot be born {state.value}")
        page = Page(self, len(self.table), host, keys, kv)
        page.state = state
        self.table.append(page)
        self.in_state[state].add(page.index)
        self._note(page)
        return page

    def pop(self) -> Page:
        """Take the last page off the table; its references are the caller's to give back."""
        page = self.table.pop()
        self.in_state[page.state].discard(page.index)
        self.tainted.discard(page.index)
        self._note(page)
        return page

    def move(self, page: Page, state: PageState) -> None:
        """The only way a page changes its state."""
        if state not in MOVES[page.state]:
            raise ControlError(f"page {page.index} cannot go from {page.state.value} to {state.value}")
        before, page.state = page.state, state
        self.in_state[before].discard(page.index)
        self.in_state[state].add(page.index)
        if SOURCE[before] is not SOURCE[state]:
            self._note(page)

    def lose(self, page: Page) -> None:
        """The blocks of an unpinned page are gone: its rows are read from the host."""
        page.kv = None
        self.move(page, _S.HOST_ONLY)
        self._changes.totals.lost_pages += 1

    def count(self, state: PageState) -> int:
        return len(self.in_state[state])

    @property
    def resident(self) -> bool:
        """Whether every page is read from the GPU now."""
        return not self.in_state[_S.HOST_ONLY] and not self.in_state[_S.IMPORT_HOLE]

    def _note(self, page: Page) -> None:
        if self.row is not None:
            self._changes.pages[page] = None
