"""What control knows of one request, from admission until nothing of it is under way.

| fate     | pages                                  | what still happens                       |
|----------|----------------------------------------|------------------------------------------|
| LIVE     | all                                    | everything                               |
| DETACHED | those that may still be published      | pending spills end, pages are published  |
| GONE     | none                                   | transfers under way end without effect   |

A detached request holds the host blocks of all its pages to the end, so that they become cached
tail first, but GPU leases only from its frontier on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .gpu_pool import Lease
from .pages import HOLDS_KV, Page, PageState, RequestPages
from .types import Limits, RequestId, TokenHash, TransferId


class Landing(Enum):
    RESIDENT = "resident"
    HOST = "host"


@dataclass(slots=True, eq=False)
class Incoming:
    """An import under way. Its pages are holes; the KV leases they will be restored into are held
    here. `outside`: a transport may still write, until the engine says that the import ended."""

    tokens: int
    pages: list[Page]
    kv: dict[Page, Lease]
    copy: TransferId | None = None  # copy-on-write of the tail, not acknowledged yet
    good: bool = True
    outside: bool = True


WRITABLE_PAGES = 2  # the last pages of a row are never unpinned


class Fate(Enum):
    LIVE = "live"
    DETACHED = "detached"
    GONE = "gone"


class Request:
    __slots__ = (
        "charge",
        "computed",
        "fate",
        "final_tokens",
        "frontier",
        "hashes",
        "hot",
        "id",
        "incoming",
        "landing",
        "length",
        "limits",
        "movable",
        "pages",
        "reserved_pages",
        "sealed_pages",
        "stamp",
        "state_row",
    )

    def __init__(
        self, request_id: RequestId, state_row: int, limits: Limits, hashes: list[TokenHash], pages: RequestPages
    ) -> None:
        self.id = request_id
        self.state_row = state_row
        self.limits = limits
        self.hashes = hashes
        self.pages = pages
        self.fate = Fate.LIVE
        self.length = 0  # positions below it have pages
        self.computed = 0  # positions below it were scheduled
        self.final_tokens = 0  # positions below it are final
        self.sealed_pages = 0  # pages below it are full and final
        self.frontier = 0  # pages below it are durable without a gap, and published
        self.hot: Lease | None = None
        self.landing: Landing | None = None  # where an import goes; chosen once
        self.incoming: Incoming | None = None  # the import under way
        self.charge = 0  # GPU blocks in the admission ledger
        self.movable = False  # charged for less than full residency: may be moved to the host
        self.reserved_pages = 0  # pages admitted, but not made yet
        self.stamp = 0  # when its pages were given up: the age of its readable leases

    @property
    def live(self) -> bool:
        return self.fate is Fate.LIVE

    def owns(self, page: Page) -> bool:
        """Whether `page` still holds its blocks for this request."""
        table = self.pages.table
        given_up = self.frontier if self.fate is Fate.DETACHED else 0
        return given_up <= page.index < len(table) and table[page.index] is page

    @property
    def readable(self) -> bool:
        """Whether every position has a place to be read from."""
        pages = self.pages
        return pages.resident or (self.hot is not None and not pages.in_state[PageState.IMPORT_HOLE])

    def unpinnable(self) -> list[Page]:
        """The clean pages that may be given up, tail first. None during an import: if it fails,
        other pages are the last ones."""
        if not self.unpinnable_count():
            return []
        last = len(self.pages) - WRITABLE_PAGES
        clean = self.pages.in_state[PageState.CLEAN_PINNED]
        return [self.pages[index] for index in sorted(clean, reverse=True) if index < last]

    def unpinnable_count(self) -> int:
        if self.incoming is not None:
            return 0
        tail = self.pages.table[-WRITABLE_PAGES:]
        return self.pages.count(PageState.CLEAN_PINNED) - sum(page.state is PageState.CLEAN_PINNED for page in tail)

    def releasable(self) -> int:
        """Pinned pages that can be given up now, or once their transfers are through."""
        held = sum(self.pages.count(state) for state in HOLDS_KV)
        first_kept = min(max(len(self.pages) - WRITABLE_PAGES, 0), self.sealed_pages)
        kept = sum(page.state in HOLDS_KV for page in self.pages.table[first_kept:])
        return held - kept - sum(index < first_kept for index in self.pages.tainted)
