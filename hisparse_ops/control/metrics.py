"""What control can tell about itself without asking a device: totals, and the state of the moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .types import RefusalReason, TransferKind


@dataclass(slots=True)
class Totals:
    """Counted since the coordinator was made; a reset does not forget them."""

    adopted_pages: int = 0  # taken over from a readable GPU copy, without a transfer
    restored_pages: int = 0  # restores planned
    lost_pages: int = 0  # unpinned pages whose blocks were handed out again
    spilled_pages: int = 0  # spills that made their page durable
    spill_steps: int = 0  # steps from sending these spills to durability, summed
    published_pages: int = 0
    moved_requests: int = 0  # hot regions granted
    returned_requests: int = 0  # hot regions given back because all pages were resident again
    overdue: int = 0  # transfers and block copies given up
    refusals: Counter[RefusalReason] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`transfer_ages`: steps since a transfer was sent -> how many. GPU figures in blocks: a block
    is blank, readable (free, but still read or indexed), or leased; host blocks are blank, cached
    (free, but a prefix hit), or leased."""

    step: int
    epoch: int
    requests: Mapping[str, int]  # resident, host-readable, importing, unreadable, detached
    pages: Mapping[str, int]  # of live requests, by state
    gpu_usable: int
    gpu_blank: int
    gpu_readable: int
    gpu_hot: int
    gpu_resting: int
    host_usable: int
    host_blank: int
    host_cached: int
    host_resting: int
    published: int  # hashes visible
    transfers: Mapping[TransferKind, int]
    transfer_ages: Mapping[int, int]
    block_copies: int
    quarantined: int
    tainted_pages: int
    totals: Totals
