"""The staging area: the dense context that a prefill chunk attends to.

Pages of a request lie scattered over resident blocks and host blocks; prefill attention wants rows 0, 1, 2 ...
So they are copied side by side, for all layers of one unit at a time, into an area that is allocated once.

| rows of the area | hold |
|---|---|
| block 0 | nothing: the null block of the copies |
| blocks 1, 2, 3 ... | pages 0, 1, 2 ... of the one request and unit staged last |
"""

from __future__ import annotations

from weakref import ref

import torch

from hisparse_ops import ops
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.memory.layout import Layout
from hisparse_ops.memory.views import HostViews
from hisparse_ops.worker.tables import PageTables


class StagingArea:
    """Owns room for `pages` pages of the largest unit's layers."""

    def __init__(self, layout: Layout, kv_pool: KVPool, host: HostViews | None, pages: int) -> None:
        self._layout = layout
        self._kv_pool = kv_pool
        self._host = host
        self.pages = pages
        # Whose context, and of which unit. Weakly: the pools must go with their last user, not when a cycle is found.
        self._holds: tuple[ref[object], int] | None = None
        layers = max(len(unit.layers) for unit in layout.units) if pages else 0
        rows = (pages + 1) * layout.block_size
        self._area = torch.empty(layers, rows, kv_pool.width, dtype=kv_pool.dtype, device=kv_pool.device)

    @property
    def bytes(self) -> int:
        return self._area.nbytes

    def stage(
        self, owner: object, unit: int, tables: PageTables, state_row: torch.Tensor, context: torch.Tensor
    ) -> bool:
        """Copies the pages of `context` [1] tokens of `state_row` [1] for all layers of a unit, unless
        that is what `owner` has staged last. Returns whether it copied.

        Every page of the context must be mapped, and there must be room for all of them.
        """
        holds = (ref(owner), unit)
        if self._holds == holds:
            return False
        self._holds = holds
        layout = self._layout
        page_tables = tables.of_group(layout.group_of(layout.units[unit].leader))
        _, staged, resident_blocks, host_blocks = ops.stage_prefill(
            context, state_row, page_tables.resident, page_tables.host, layout.block_size, self.pages
        )
        size, area = layout.block_size, self._rows_of(unit)
        device_rows = self._kv_pool.unit_rows(unit)
        ops.copy_blocks(device_rows, area, resident_blocks, staged, size, layout.block_stride, size)
        if self._host is not None:
            ops.copy_blocks(self._host.unit_rows(unit), area, host_blocks, staged, size, size, size)
        return True

    def _rows_of(self, unit: int) -> list[torch.Tensor]:
        return list(self._area[: len(self._layout.units[unit].layers)].unbind(0))

    def context_rows(self, layer: int, context: int) -> torch.Tensor:
        """[context, width]: a view, right until another unit or request is staged."""
        layers = self._layout.units[self._layout.unit_of(layer)].layers
        first = self._layout.block_size  # behind the null block
        return self._area[layers.index(layer), first : first + context]
