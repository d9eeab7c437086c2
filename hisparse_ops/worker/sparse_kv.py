"""What one forward pass of one request touches: a window onto the store, made of the data plane's ops.

| call | reads | writes |
|---|---|---|
| write | | resident rows of the new tokens |
| write_index, index_rows | index keys, through the indexer table | index keys of the new tokens |
| selected_rows | resident rows; else hot slots, loaded from the host | hot slots of the state row |
| context_rows | resident and host pages | the staging area |

A row is the same bytes whichever way it is read. The tensors that are returned hold until the next call
for another unit.
"""

from __future__ import annotations

import torch

from hisparse_ops import ops
from hisparse_ops.hot_state import Batch, MissPlan
from hisparse_ops.worker.errors import WorkerOrderError
from hisparse_ops.worker.indices import index_tensor
from hisparse_ops.worker.store import Store
from hisparse_ops.worker.traffic import Traffic


class SparseKV:
    """One request's new tokens at positions `start .. start + length - 1`, and its history before them.

    `prefill`: attention is dense over the whole context (`context_rows`), else over the rows that the
    indexer picks (`selected_rows`). Made by `Worker.kv`, which has checked that every row has its place.

    Raises ValueError naming the argument for a wrong shape, dtype or device, `LayoutError` for a layer
    that the model does not have, `WorkerOrderError` for calls in an order that cannot be served.
    """

    def __init__(self, store: Store, traffic: Traffic, state_row: int, start: int, length: int, prefill: bool) -> None:
        device = store.device
        self._store = store
        self._traffic = traffic
        self._state_row = state_row
        self.start = start
        self.length = length
        self.context = start + length
        self.prefill = prefill
        self.positions = torch.arange(start, self.context, device=device)  # [T] int64
        self.layers_written = torch.zeros(length, dtype=torch.int32, device=device)  # [T]
        self._new = torch.arange(length, dtype=torch.int32, device=device)
        self._batch = Batch(index_tensor([0, length], device), index_tensor([state_row], device))
        self._context = index_tensor([self.context], device)
        self._device_rows: dict[int, torch.Tensor] = {}  # group -> [T] int32
        self._written: set[int] = set()
        self._plans: dict[int, MissPlan] = {}  # unit -> this pass's plan

    @property
    def top_k(self) -> int:
        """Most positions that a query row may pick."""
        return self._store.layout.spec.top_k

    # New tokens.

    def write(self, layer: int, rows: torch.Tensor) -> None:
        """Puts the new tokens' rows [T, width] of a layer into their resident blocks. Once per layer."""
        group = self._store.layout.group_of(layer)
        self._check("rows", rows, (self.length, self._store.kv_pool.width))
        if layer in self._written:
            raise WorkerOrderError(f"layer {layer} was written before in this forward pass")
        target = self._rows_in_pool(group)
        ops.gather_plan([rows.contiguous()], [self._store.kv_pool.layer_rows(layer)], self._new, target)
        self.layers_written += target >= 0
        self._written.add(layer)

    def _rows_in_pool(self, group: int) -> torch.Tensor:
        """[T] int32: the new tokens' device rows in a group; -1 where the page has no resident block."""
        if group not in self._device_rows:
            layout, positions = self._store.layout, self.positions.int()
            state_rows = self._batch.state_rows.expand(self.length).contiguous()
            table = self._store.tables.resident[group]
            rows = ops.translate(positions, state_rows, table, layout.block_size, layout.block_stride)
            self._device_rows[group] = rows
        return self._device_rows[group]

    # Index keys.

    def write_index(self, leader: int, rows: torch.Tensor) -> None:
        """Puts the new tokens' index keys [T, index_width] of a leader into the indexer pool."""
        keys = self._store.kv_pool.index_rows(leader)
        self._check("rows", rows, (self.length, self._store.kv_pool.index_width))
        size = self._store.layout.block_size
        blocks = self._index_blocks(leader).index_select(0, self.positions // size)
        keys[blocks.long(), self.positions % size] = rows

    def index_rows(self, leader: int) -> torch.Tensor:
        """[context, index_width]: all index keys of the request for one leader."""
        keys = self._store.kv_pool.index_rows(leader)
        blocks = self._index_blocks(leader)[: self._store.layout.pages(self.context)]
        return keys.index_select(0, blocks).flatten(0, 1)[: self.context]

    def _index_blocks(self, leader: int) -> torch.Tensor:
        return self._store.tables.indexer[self._store.layout.index_group_of(leader), self._state_row]

    # Decode: the rows that the indexer picked.

    def selected_rows(self, layer: int, topk: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows at positions `topk` [T, K] int32 (-1 = none, none beyond the query's own) of a layer.

        A leader names positions, which finds and loads the rows for all layers of its unit; its followers
        pass None and get the rows at the same positions.
        Returns rows [T, K, width] and valid [T, K] bool; rows that are not valid are zeros.
        """
        store, layout = self._store, self._store.layout
        if self.prefill:
            raise WorkerOrderError("selected_rows is for decoding; a prefill reads context_rows")
        unit = layout.unit_of(layer)
        leader = layout.units[unit].leader
        if (layer == leader) != (topk is not None):
            raise WorkerOrderError(f"layer {layer}: topk is passed by the leader of its unit, layer {leader}, only")
        if topk is not None:
            self._plans[unit] = self._resolve(unit, topk)
        if unit not in self._plans:
            raise WorkerOrderError(f"layer {layer} asks before its leader, layer {leader}")
        device_rows = self._plans[unit].device_rows
        rows = torch.zeros(device_rows.numel(), store.kv_pool.width, dtype=store.kv_pool.dtype, device=store.device)
        places = torch.arange(device_rows.numel(), dtype=torch.int32, device=store.device)
        ops.gather_plan([store.kv_pool.layer_rows(layer)], [rows], device_rows, places.view_as(device_rows))
        return rows.view(*device_rows.shape, -1), device_rows >= 0

    def _resolve(self, unit: int, topk: torch.Tensor) -> MissPlan:
        if topk.dtype != torch.int32 or topk.dim() != 2 or len(topk) != self.length or topk.shape[1] > self.top_k:
            raise ValueError(
                f"topk must be int32 [{self.length}, K <= {self.top_k}], got {topk.dtype} {tuple(topk.shape)}"
            )
        store, layout = self._store, self._store.layout
        tables = store.tables.of_group(layout.group_of(layout.units[unit].leader))
        plan = ops.resolve(topk, self._batch, tables, store.hot_states[unit])
        if store.host is not None:
            ops.gather_compact(store.host.unit_rows(unit), store.kv_pool.unit_rows(unit), plan)
        return plan

    # Prefill: the whole context.

    def context_rows(self, layer: int) -> torch.Tensor:
        """[context, width]: the rows of a layer at all positions, those of the new tokens among them, which
        must have been written. A view of the staging area: right until another unit is asked for."""
        store, layout = self._store, self._store.layout
        if not self.prefill:
            raise WorkerOrderError("context_rows is for prefill; decoding reads selected_rows")
        unit = layout.unit_of(layer)
        if layer not in self._written:
            raise WorkerOrderError(f"layer {layer}: its context was asked for before its new rows were written")
        if store.staging.stage(self, unit, store.tables, self._batch.state_rows, self._context):
            pages = layout.pages(self.context)
            host_only = store.tables.host_only_pages(self._state_row, pages)
            self._traffic.count_staging(pages, host_only, len(layout.units[unit].layers))
        # Followers' new rows are written after their unit was staged, so each layer adds its own.
        rows = store.staging.context_rows(layer, self.context)
        ops.gather_plan(
            [store.kv_pool.layer_rows(layer)],
            [rows],
            self._rows_in_pool(layout.group_of(layer)),
            self.positions.int(),
        )
        return rows

    def _check(self, name: str, value: torch.Tensor, shape: tuple[int, int]) -> None:
        pool = self._store.kv_pool
        if value.shape != shape or value.dtype != pool.dtype or value.device != pool.device:
            raise ValueError(
                f"{name} must be {pool.dtype} {shape} on {pool.device}, "
                f"got {value.dtype} {tuple(value.shape)} on {value.device}"
            )
