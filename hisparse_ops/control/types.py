"""The words control speaks: ids, messages, answers. Plain data; nothing here changes state.

A `StepPlan` goes to every rank, a `RankReport` comes back. Host and GPU block ids are different
types because they number different memories: both start at 1, and 0 is each pool's null block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NewType, Protocol

HostBlock = NewType("HostBlock", int)
GpuBlock = NewType("GpuBlock", int)
TransferId = NewType("TransferId", int)
RequestId = str
TokenHash = int

NO_HOST_BLOCK = HostBlock(0)
NO_GPU_BLOCK = GpuBlock(0)


class PoolShape(Protocol):
    """What control must know of the memory layout. `memory.Layout` satisfies it."""

    @property
    def block_size(self) -> int:
        """Tokens in a page."""

    @property
    def num_groups(self) -> int:
        """Resident groups; a resident page leases one GPU block in each."""

    @property
    def num_indexer_groups(self) -> int:
        """Indexer groups; every page leases one GPU block in each, for its whole life."""

    @property
    def hot_blocks(self) -> int:
        """GPU blocks of a hot region in one group."""

    @property
    def num_blocks(self) -> int:
        """GPU blocks in the pool, the null block included."""

    @property
    def host_blocks(self) -> int:
        """Host blocks in the pool, the null block included."""


class TransferKind(Enum):
    SPILL = "spill"
    RESTORE = "restore"


class PageTransfer(NamedTuple):
    """One page between device and host. `moves_data` is False for a spill whose rows the eager
    mirror has already copied: it is then only the barrier that proves durability."""

    id: TransferId
    kind: TransferKind
    host_block: HostBlock
    gpu_blocks: tuple[GpuBlock, ...]  # one per resident group
    moves_data: bool


class MirrorEnvelope(NamedTuple):
    """Rows `start .. end-1` of a state row that this step may write and must mirror."""

    state_row: int
    start: int
    end: int


class ResidencyDelta(NamedTuple):
    """A line of the worker's tables changes: where page `page` of `state_row` is read from.
    `gpu_blocks` is `()` when the page is no longer resident."""

    state_row: int
    page: int
    host_block: HostBlock
    gpu_blocks: tuple[GpuBlock, ...]  # one per resident group, or ()
    indexer_blocks: tuple[GpuBlock, ...]  # one per indexer group


class HotDelta(NamedTuple):
    """A hot region is granted (`blocks[group]` = its blocks) or given back (`blocks == ()`).
    Either way the worker resets the hot state of `state_row` first."""

    state_row: int
    blocks: tuple[tuple[GpuBlock, ...], ...]


class BlockCopy(NamedTuple):
    """Copy-on-write inside the host pool."""

    id: TransferId
    source: HostBlock
    destination: HostBlock


class Scheduled(NamedTuple):
    """A request computes rows `start .. end-1` in this step."""

    request_id: RequestId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All that every rank must do around one step.

    The worker's order: 1 `cleared_rows`, 2 `hot`, 3 `recycled` (invalidate in every hot buffer),
    4 `residency`, 5 `copies`, 6 restores, then the model runs, then 7 mirror `envelopes`, 8 spills.
    """

    sequence: int
    epoch: int  # how often a rank was restarted: every rank's worker is of this epoch, or new
    cleared_rows: tuple[int, ...] = ()  # state rows that changed hands: every table line is now 0
    hot: tuple[HotDelta, ...] = ()
    recycled: tuple[HostBlock, ...] = ()
    residency: tuple[ResidencyDelta, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    transfers: tuple[PageTransfer, ...] = ()
    envelopes: tuple[MirrorEnvelope, ...] = ()


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank has done since its last report. Sets of ids, never counts: a duplicate, a late
    or a split report then adds nothing twice.

    `mirrored[sequence][i]` is the number of rows really copied for `envelopes[i]` of that step,
    counted where the copy ran and read back with the step's completion event.
    """

    rank: int
    epoch: int
    enqueued: frozenset[TransferId] = frozenset()
    completed: frozenset[TransferId] = frozenset()
    copied: frozenset[TransferId] = frozenset()  # block copies done
    failed: frozenset[TransferId] = frozenset()  # a copy that raised: its page is never valid
    mirrored: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class RefusalReason(Enum):
    """Why control said no. `TOO_LARGE` never changes; the others may with time."""

    TOO_LARGE = "the request can never fit into the pools"
    NO_STATE_ROW = "every state row is held"
    GPU_BLOCKS = "not enough GPU blocks are free or reclaimable"
    HOST_BLOCKS = "not enough host blocks are free or evictable"
    PENDING = "blocks are on their way: a transfer or a step in flight will free them"
    DUPLICATE = "a request of this id is live"


class Limits(NamedTuple):
    """What the engine promises about a request, so that admission can charge for it."""

    max_tokens: int  # prompt and output together, never exceeded by `extend`
    max_step_tokens: int  # rows one step may write
    max_reused_tokens: int | None = None  # use at most this much of a prefix hit


class ImportPage(NamedTuple):
    """A page that an import brings. The transport writes the rows into `host_block`, and the index
    keys into `indexer_blocks` on the GPU. `host_block` 0: the rows are here already."""

    page: int
    host_block: HostBlock
    indexer_blocks: tuple[GpuBlock, ...]  # one per indexer group


class Refused(NamedTuple):
    reason: RefusalReason
    needed: int
    available: int

    @property
    def ok(self) -> bool:
        return False


class Admitted(NamedTuple):
    state_row: int
    cached_tokens: int  # rows already durable on the host and readable: start computing here
    adopted_pages: int  # of these, pages whose GPU copy was taken over without a transfer

    @property
    def ok(self) -> bool:
        return True


class Extended(NamedTuple):
    new_pages: int

    @property
    def ok(self) -> bool:
        return True


class ImportStarted(NamedTuple):
    """The transport is outside every stream: it may write only when step `after_step` is done
    (None: at once), because steps in flight may still read what the blocks held before."""

    pages: tuple[ImportPage, ...]
    after_step: int | None

    @property
    def ok(self) -> bool:
        return True


Admission = Admitted | Refused
Extension = Extended | Refused
ImportAnswer = ImportStarted | Refused
