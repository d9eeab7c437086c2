"""The settings of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """`writer_ranks` write host memory: the one writer of a shared pool, or every rank of private
    pools. `ranks` are all that hold KV: each of them carries out restores and block copies."""

    max_requests: int  # state rows
    max_pages: int  # pages in a table row
    writer_ranks: tuple[int, ...] = (0,)
    ranks: tuple[int, ...] = (0,)
    host_tier: bool = True  # False: plain full residency, no host memory at all
    eager_mirror: bool = True  # rows are copied in the step that writes them; a spill is a barrier
    spill_budget: int = 256  # pages a step may start to spill
    restore_budget: int = 32  # pages a step may start to bring back once pressure is gone
    overdue_after: int = 64  # steps without a report until a transfer is given up
    watermark_divisor: int = 10  # pressure below 1/10 of the pool

    def __post_init__(self) -> None:
        for name in (
            "max_requests",
            "max_pages",
            "spill_budget",
            "restore_budget",
            "overdue_after",
            "watermark_divisor",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.ranks or len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"ranks: expected distinct ranks, at least one, got {self.ranks}")
        if not self.writer_ranks or not set(self.writer_ranks) <= set(self.ranks):
            raise ValueError(f"writer_ranks: expected some of ranks {self.ranks}, got {self.writer_ranks}")
