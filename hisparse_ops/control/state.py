"""All that control knows, in one place. The parts below change it; `Coordinator` is their façade.

| part        | decides                                                    |
|-------------|------------------------------------------------------------|
| Residency   | how a page takes and gives up its blocks                   |
| Publisher   | what an ended transfer means; when a hash becomes visible  |
| Pressure    | how room is made, and how requests become resident again   |
| Landing     | where the pages of a prefix hit are put at admission       |
| Planner     | what goes into a step                                      |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from .admission import AdmissionLedger
from .config import CoordinatorConfig
from .copies import CopyIndex
from .fence import Fence
from .gpu_pool import GpuPool
from .host_pool import HostPool
from .mirror import MirrorProof
from .pages import Page
from .prefix import PrefixIndex
from .request import Request
from .transfers import TransferLedger, Writer
from .types import HostBlock, PoolShape, RequestId, TokenHash


class ControlState:
    def __init__(
        self,
        shape: PoolShape,
        config: CoordinatorConfig,
        gpu_order: Iterable[int] | None,
        host_order: Iterable[int] | None,
    ) -> None:
        self.shape = shape
        self.config = config
        self.gpu = GpuPool(shape.num_blocks, gpu_order)
        self.host = HostPool(shape.host_blocks if config.host_tier else 1, self.forget_hash, host_order)
        self.prefix = PrefixIndex()
        self.kv_copies = CopyIndex(self.gpu)
        self.key_copies = CopyIndex(self.gpu)
        self.fence = Fence(self.gpu, self.host)
        self.transfers = TransferLedger(config.overdue_after)
        self.mirror = MirrorProof(config.overdue_after)
        self.ledger = AdmissionLedger(shape, config)
        self.live: dict[RequestId, Request] = {}
        self.detached: dict[Request, None] = {}
        self.movable: dict[Request, None] = {}  # live, may have to be moved, has no hot region yet
        self.moved: dict[Request, None] = {}  # live, holds its hot region
        self.stranded: dict[Request, None] = {}  # host-only pages, but no hot region: must be helped
        self.spill_queue: deque[tuple[Request, Page]] = deque()  # sealed pages whose spill is not planned yet
        self.changed: dict[Page, None] = {}  # pages whose table line the workers do not know yet
        self.hot_changed: dict[Request, None] = {}  # hot regions granted or given back, not yet told
        self.cleared_rows: dict[int, None] = {}  # state rows given up, not yet told
        self.free_rows = deque(range(config.max_requests))
        self.epochs = dict.fromkeys(config.ranks, 0)
        self.clock = 0  # counts give-ups of pages: the age of readable leases

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

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def writers(self, ranks: tuple[int, ...]) -> list[Writer]:
        return [(rank, self.epochs[rank]) for rank in ranks]
