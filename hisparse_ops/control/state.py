"""All that control knows, in one place. The parts change it; `Coordinator` is their façade.

| part        | decides                                                    |
|-------------|------------------------------------------------------------|
| Residency   | how a page takes and gives up its blocks                   |
| Publisher   | what an ended transfer means; when a hash becomes visible  |
| Pressure    | how room is made, and how requests become resident again   |
| Landing     | where the pages of a prefix hit are put at admission       |
| Imports     | pages that a transport brings from outside                 |
| Planner     | what goes into a step                                      |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .admission import AdmissionLedger
from .config import CoordinatorConfig
from .copies import CopyIndex
from .fence import Fence
from .gpu_pool import GpuPool
from .host_pool import HostPool
from .metrics import Totals
from .mirror import MirrorProof
from .pages import Page, TableChanges
from .prefix import PrefixIndex
from .request import Incoming, Request
from .transfers import TransferLedger, Writer
from .types import HostBlock, PoolShape, RequestId, TokenHash

Order = Sequence[int] | None


class ControlState:
    def __init__(
        self,
        shape: PoolShape,
        config: CoordinatorConfig,
        gpu_order: Order,
        host_order: Order,
        before: ControlState | None = None,
    ) -> None:
        """An empty state. `before` is the state that a reset ends: step numbers, transfer ids and
        totals go on from it, so that late words about it can never be taken for news."""
        self.shape = shape
        self.config = config
        self.orders = (gpu_order, host_order)
        self.epoch: int = before.epoch if before else 0
        self.sequence: int = before.sequence if before else 0  # of the next step
        self.totals: Totals = before.totals if before else Totals()

        self.gpu = GpuPool(shape.num_blocks, gpu_order)
        host_blocks, host_order = (shape.host_blocks, host_order) if config.host_tier else (1, None)
        self.host = HostPool(host_blocks, self.forget_hash, host_order)
        self.fence = Fence(self.gpu, self.host, last_planned=self.sequence - 1)
        self.ledger = AdmissionLedger(shape, config)

        self.prefix = PrefixIndex()
        self.kv_copies = CopyIndex(self.gpu)
        self.key_copies = CopyIndex(self.gpu)
        self.transfers: TransferLedger = TransferLedger(config.overdue_after, before.transfers.last_id if before else 0)
        self.mirror = MirrorProof(config.overdue_after)

        self.live: dict[RequestId, Request] = {}
        self.movable: dict[Request, None] = {}  # live, may have to be moved, has no hot region yet
        self.moved: dict[Request, None] = {}  # live, holds its hot region
        self.stranded: dict[Request, None] = {}  # live, host-only pages, but no hot region: must be helped
        self.detached: dict[Request, None] = {}
        self.orphaned: dict[RequestId, Incoming] = {}  # imports whose request has left
        self.free_rows = deque(range(config.max_requests))

        self.spill_queue: deque[tuple[Request, Page]] = deque()  # sealed, the spill is not planned yet
        self.changes = TableChanges(self.totals)
        self.hot_changed: dict[Request, None] = {}  # hot regions granted or given back, not yet told
        self.cleared_rows: dict[int, None] = {}  # state rows given up, not yet told
        if before is not None:
            self.cleared_rows.update(before.cleared_rows)
            self.cleared_rows.update({request.state_row: None for request in before.live.values()})
        self._clock = 0

    def forget_hash(self, block: HostBlock, token_hash: TokenHash) -> None:
        """`block` has lost its hash: it is no hit any more, and its GPU copies are no copies."""
        self.prefix.drop(token_hash)
        self.kv_copies.drop(block)
        self.key_copies.drop(block)

    def hit(self, token_hashes: Sequence[TokenHash]) -> list[HostBlock]:
        """The host blocks of the longest prefix that has both its rows and its index keys."""
        blocks: list[HostBlock] = []
        for token_hash in token_hashes:
            block = self.prefix.get(token_hash)
            if block is None or self.key_copies.get(block) is None:
                break
            blocks.append(block)
        return blocks

    def writers(self, ranks: tuple[int, ...]) -> list[Writer]:
        return [(rank, self.epoch) for rank in ranks]

    def tick(self) -> int:
        """The time at which pages are given up: the age of readable leases."""
        self._clock += 1
        return self._clock
