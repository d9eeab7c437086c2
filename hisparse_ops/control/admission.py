"""The one ledger of what admitted requests may still ask for: pure sums, no side effects.

GPU, with the host tier: a request is charged for the most it can be held to,
    full    = every page of max_tokens in every group, or if that is less
    reduced = index keys of max_tokens + a hot region + the pages one step may write.
A request charged `reduced` is *movable*: it runs resident while there is room. The sum of all
charges never exceeds the pool, so no admitted request has to be preempted for GPU blocks. To move
a request its hot region is leased before its pages are given up; with several movable requests the
ledger keeps one region aside for that.

Host, and GPU without the host tier: charged for the tokens known at admission only (an output
length is a guess). Growth beyond them may be refused.
"""

from __future__ import annotations

from typing import NamedTuple

from .config import CoordinatorConfig
from .request import WRITABLE_PAGES, Request
from .types import Limits, PoolShape, RefusalReason, Refused


class Charge(NamedTuple):
    blocks: int
    movable: bool


class AdmissionLedger:
    def __init__(self, shape: PoolShape, config: CoordinatorConfig) -> None:
        self._shape = shape
        self._config = config
        self.page_blocks = shape.num_groups + shape.num_indexer_groups
        self.hot_cost = shape.num_groups * shape.hot_blocks if config.host_tier else 0
        self.charged = 0
        self.movable = 0  # live requests charged `reduced`
        self.reserved_pages = 0  # admitted, not made yet

    def pages(self, tokens: int) -> int:
        return -(-tokens // self._shape.block_size)

    def charge_of(self, limits: Limits) -> Charge:
        shape = self._shape
        pages = self.pages(limits.max_tokens)
        full = pages * self.page_blocks
        if not self._config.host_tier:
            return Charge(full, False)
        window = min(pages, self.pages(limits.max_step_tokens) + 1 + WRITABLE_PAGES)
        reduced = pages * shape.num_indexer_groups + self.hot_cost + window * shape.num_groups
        return Charge(min(full, reduced), reduced < full)

    def refusal(
        self, limits: Limits, num_tokens: int, gpu_free: int, host_free: int, host_shared: int
    ) -> Refused | None:
        """Why a request of `num_tokens` known tokens cannot be admitted now; None if it can.
        `host_free` counts what is left beside the `host_shared` pages of its prefix hit."""
        shape, pages = self._shape, self.pages(limits.max_tokens)
        charge = self.charge_of(limits)
        if pages > self._config.max_pages:
            return Refused(RefusalReason.TOO_LARGE, pages, self._config.max_pages)
        if charge.blocks > shape.num_blocks - 1:
            return Refused(RefusalReason.TOO_LARGE, charge.blocks, shape.num_blocks - 1)
        if self._config.host_tier and pages > shape.host_blocks - 1:
            return Refused(RefusalReason.TOO_LARGE, pages, shape.host_blocks - 1)
        if self._config.host_tier:
            return self._tier_refusal(charge, self.pages(num_tokens) - host_shared, host_free)
        needed = self.pages(num_tokens) * self.page_blocks
        available = gpu_free - self.reserved_pages * self.page_blocks
        return Refused(RefusalReason.GPU_BLOCKS, needed, available) if needed > available else None

    def _tier_refusal(self, charge: Charge, new_pages: int, host_free: int) -> Refused | None:
        movable = self.movable + charge.movable
        aside = self.hot_cost if movable > 1 else 0
        available = self._shape.num_blocks - 1 - self.charged - aside
        if charge.blocks > available:
            return Refused(RefusalReason.GPU_BLOCKS, charge.blocks, available)
        host_available = host_free - self.reserved_pages
        if new_pages > host_available:
            return Refused(RefusalReason.HOST_BLOCKS, new_pages, host_available)
        return None

    def admit(self, request: Request, reserved_pages: int) -> None:
        charge = self.charge_of(request.limits)
        request.charge, request.movable = charge
        request.reserved_pages = reserved_pages
        self.charged += charge.blocks
        self.movable += charge.movable
        self.reserved_pages += reserved_pages

    def grown(self, request: Request, pages: int) -> None:
        """`pages` were made for `request`: they are not set aside any more."""
        used = min(pages, request.reserved_pages)
        request.reserved_pages -= used
        self.reserved_pages -= used

    def leave(self, request: Request) -> None:
        self.charged -= request.charge
        self.movable -= request.movable
        self.grown(request, request.reserved_pages)

    def others_reserved(self, request: Request) -> int:
        """Pages set aside for everybody else."""
        return self.reserved_pages - request.reserved_pages
