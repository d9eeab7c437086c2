"""Pages and rows that moved, counted where the CPU knows them anyway; never by asking the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hisparse_ops.memory.layout import Layout


@dataclass
class Traffic:
    """Totals since the worker was made. A page-layer is one page of one layer."""

    mirrored_rows: int = 0  # of all layers
    spilled_pages: int = 0  # of all layers
    restored_pages: int = 0  # of all layers
    staged_page_layers: int = 0
    staged_host_page_layers: int = 0  # of these, read from host memory

    def count_staging(self, pages: int, host_only: int, layers: int) -> None:
        """A unit of `layers` layers was staged."""
        self.staged_page_layers += pages * layers
        self.staged_host_page_layers += host_only * layers

    def in_bytes(self, layout: Layout) -> Mapping[str, int]:
        """The totals in bytes, by name."""
        return {
            "mirror_bytes": self.mirrored_rows * layout.spec.num_layers * layout.spec.row_bytes,
            "spill_bytes": self.spilled_pages * layout.host_block_bytes,
            "restore_bytes": self.restored_pages * layout.host_block_bytes,
            "stage_bytes": self.staged_page_layers * layout.page_bytes,
            "stage_host_bytes": self.staged_host_page_layers * layout.page_bytes,
        }
