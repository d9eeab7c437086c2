"""The sizes of a world, and what is likely to happen in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hisparse_ops.control import CoordinatorConfig
from hisparse_ops.control.types import Limits
from spec.bounds import Bounds

NEVER = 10**6  # steps after which something is overdue, where nothing shall be


@dataclass(frozen=True)
class Setup:
    """A world to play in. Model and coordinator are given the same sizes."""

    bounds: Bounds
    live: int = 3  # state rows
    step_rows: int = 2  # rows a step may write for one request
    overdue_after: int = 12
    spill_budget: int = 2
    restore_budget: int = 1
    often: Mapping[str, float] = field(default_factory=dict)  # how much more often than usual a kind of action is tried
    promised: int = 0  # pages a request is admitted for, if more than it will ever have
    moods: bool = False  # the policy's answers are part of the actions, instead of the default policy's

    @property
    def block_size(self) -> int:
        return self.bounds.rows

    @property
    def num_groups(self) -> int:
        return self.bounds.groups

    @property
    def num_indexer_groups(self) -> int:
        return self.bounds.keys

    @property
    def hot_blocks(self) -> int:
        return self.bounds.hot // self.bounds.groups

    @property
    def num_blocks(self) -> int:
        return self.bounds.gpu + 1

    @property
    def host_blocks(self) -> int:
        return self.bounds.host + 1

    @property
    def max_pages(self) -> int:
        return max(self.bounds.pages, self.promised)

    def limits(self, reuse: int | None = None) -> Limits:
        return Limits(self.max_pages * self.bounds.rows, self.step_rows, reuse)

    def config(self) -> CoordinatorConfig:
        ranks = tuple(range(self.bounds.ranks))
        return CoordinatorConfig(
            max_requests=self.live,
            max_pages=self.max_pages,
            ranks=ranks,
            writer_ranks=ranks,
            eager_mirror=self.bounds.mirror,
            overdue_after=self.overdue_after,
            spill_budget=self.spill_budget,
            restore_budget=self.restore_budget,
        )
