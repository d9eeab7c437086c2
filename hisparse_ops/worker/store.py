"""Everything of a worker that holds bytes, in one place: what forward passes and copies work on.

| part | bytes of | made by |
|---|---|---|
| kv_pool | all rows and index keys on the device | the caller |
| host | all rows in host memory, as the device sees them; None = no host tier | the caller |
| tables | where every page lies | the store |
| hot_states | what each unit has in its hot slots | the store |
| staging | the dense context of one unit of one prefill | the store |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hisparse_ops import ops
from hisparse_ops.hot_state import HotState
from hisparse_ops.memory.host_pool import HostPool
from hisparse_ops.memory.kv_pool import KVPool, allocating
from hisparse_ops.memory.layout import Layout
from hisparse_ops.memory.views import HostViews
from hisparse_ops.worker.indices import index_tensor
from hisparse_ops.worker.staging import StagingArea
from hisparse_ops.worker.tables import PageTables


@dataclass(frozen=True)
class Store:
    """The parts of the table above, and what is done to all hot states at once."""

    layout: Layout
    kv_pool: KVPool
    host: HostViews | None
    tables: PageTables
    hot_states: tuple[HotState, ...]
    staging: StagingArea

    @classmethod
    def allocate(
        cls, layout: Layout, kv_pool: KVPool, host_pool: HostPool | None, state_rows: int, max_pages: int, pages: int
    ) -> Store:
        """Tables and hot states for `state_rows` requests of `max_pages`, and a staging area of `pages`.

        Raises MemoryError naming the sizes if the device has too little left."""
        device = kv_pool.device
        host = None if host_pool is None else host_pool.device_view() if device.type == "cuda" else host_pool.views
        sizes = f"{state_rows=}, {max_pages=}, hot_slots={layout.hot_slots}, staging_pages={pages}"
        with allocating(f"tables and hot slots do not fit on {device}: {sizes}"):
            return cls(
                layout,
                kv_pool,
                host,
                PageTables(layout, state_rows, max_pages, device),
                tuple(HotState.allocate(state_rows, layout.hot_slots, device) for _ in layout.units),
                StagingArea(layout, kv_pool, host, pages),
            )

    @property
    def device(self) -> torch.device:
        return self.kv_pool.device

    @property
    def device_bytes(self) -> int:
        """All device memory of the worker: pool, tables, hot states, staging."""
        hot = sum(buffer.nbytes for state in self.hot_states for buffer in state.buffers())
        return self.kv_pool.bytes + self.tables.bytes + hot + self.staging.bytes

    def device_rows(self, group: int) -> list[torch.Tensor]:
        """Row views of all layers of a group in the GPU pool."""
        return [self.kv_pool.layer_rows(layer) for layer in self.layout.groups[group].layers]

    def host_rows(self, host: HostViews, group: int) -> list[torch.Tensor]:
        """Row views of all layers of a group in the host pool."""
        return [host.layer_rows(layer) for layer in self.layout.groups[group].layers]

    def reset_hot_rows(self, state_rows: Sequence[int]) -> None:
        """The hot slots of these state rows get a new owner."""
        if state_rows:
            rows = index_tensor(state_rows, self.device)
            for state in self.hot_states:
                ops.reset_rows(state.slot_rows, state.slot_stamps, state.clock, rows)

    def invalidate_host_blocks(self, blocks: Sequence[int]) -> None:
        """Nothing that hot slots cache of these host blocks counts any more: they get other content.
        Where no state row has a hot region every slot is empty already."""
        if blocks and self.tables.rows_with_hot_region:
            index = index_tensor(blocks, self.device)
            for state in self.hot_states:
                ops.invalidate_blocks(state.slot_rows, index, self.layout.block_size)
