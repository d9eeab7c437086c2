"""How large a world the model lives in, and which families of actions it has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum


class ReleaseAt(Enum):
    """When a spill gives its GPU blocks back. Stream order makes the earlier moment safe."""

    ENQUEUED = 1
    COMPLETED = 2


@dataclass(frozen=True, slots=True)
class Bounds:
    requests: int = 2  # state rows
    pages: int = 3  # pages a request may have
    gpu: int = 3  # GPU blocks, without the null block
    host: int = 4  # host blocks, without the null block
    rows: int = 1  # rows of a page
    ranks: int = 1  # ranks that write host memory
    groups: int = 1  # resident groups: GPU blocks of a resident page
    keys: int = 0  # indexer groups: GPU blocks of a page's index keys, held as long as the page
    hot: int = 1  # GPU blocks of a hot region
    shared: int = 2  # requests have equal tokens in the pages below this one
    transfers: int = 2  # transfers under way at once
    one_action_pages: bool = True  # a page is appended, written and sealed at once
    steps: int = 0  # steps in flight at once; 0 = a step ends as it begins
    release_at: ReleaseAt = ReleaseAt.ENQUEUED
    mirror: bool = False  # rows are mirrored as they are written; a spill is then only a barrier
    faults: bool = False  # copies fail, reports are lost, rows miss their mirror
    drafts: bool = False  # rows that may be taken back
    imports: bool = False  # another machine writes host blocks
    restores: bool = False  # host page -> resident page
    copies: bool = False  # copy-on-write of a shared host block
    lines: bool = False  # hot buffers really cache rows


WRITABLE_PAGES = 2  # the last pages of a row are never unpinned


@dataclass(frozen=True, slots=True)
class Profile:
    """One question put to the model: a family of actions in a world that is small enough for it."""

    sentence: str
    bounds: Bounds = field(default_factory=Bounds)


_CORE = Bounds(transfers=1)
_SMALL = replace(_CORE, pages=2, gpu=2, host=2, shared=1)
_STEPWISE = replace(_SMALL, one_action_pages=False)
PROFILES = {
    "core": Profile("spill, publish, unpin, reuse, adopt, finish, preempt", _CORE),
    "pairs": Profile("two transfers under way at once", replace(_SMALL, transfers=2)),
    "late": Profile("GPU leases held until completed", replace(_CORE, release_at=ReleaseAt.COMPLETED)),
    "ranks": Profile("two ranks that write, each at its own pace", replace(_SMALL, ranks=2)),
    "faults": Profile(
        "failed copies, lost reports, rows that missed their mirror", replace(_STEPWISE, faults=True, mirror=True)
    ),
    "drafts": Profile(
        "partial pages and rows taken back, with the eager mirror", replace(_STEPWISE, rows=2, mirror=True, drafts=True)
    ),
    "imports": Profile(
        "imports that end well or badly, partial tails, restores",
        replace(_STEPWISE, rows=2, imports=True, restores=True),
    ),
    "copies": Profile(
        "copy-on-write and restore of shared host pages",
        replace(_SMALL, host=3, rows=2, shared=2, restores=True, copies=True),
    ),
    "fence": Profile("two steps in flight", replace(_CORE, requests=1, host=3, steps=2)),
    "lines": Profile(
        "rows cached in hot buffers while host blocks change hands", replace(_CORE, host=3, shared=1, lines=True)
    ),
    "groups": Profile("a page in two resident groups", replace(_CORE, gpu=7, host=3, groups=2)),
    "keys": Profile("index keys on the GPU: a hit reaches no further", replace(_SMALL, gpu=4, keys=1)),
}
_DEEP = replace(_CORE, transfers=2)
DEEP = {
    "deep-transfers": Profile("core, with two transfers under way at once", _DEEP),
    "deep-late": Profile(
        "the same, with GPU leases held until completed", replace(_DEEP, release_at=ReleaseAt.COMPLETED)
    ),
    "deep-blocks": Profile("core, with 4 GPU and 4 host blocks", replace(_CORE, gpu=4)),
    "deep-4x4": Profile("4 GPU and 4 host blocks, two transfers", replace(_DEEP, gpu=4)),
}
