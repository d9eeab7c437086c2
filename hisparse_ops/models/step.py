"""One token of every request of a batch, as one graph: how the ops are used in compiled model code.

    step = DecodeStep(decoder, kv_pool, host_pool.device_view(), tables)
    compiled = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    logits, topk = compiled(tokens, positions, state_rows)

| tensor                     | shape                      | owner, written by                                     |
|----------------------------|----------------------------|-------------------------------------------------------|
| pool                       | [elements]                 | the KV pool; here: new rows, index keys, hot rows     |
| host_0, host_1 ...         | [rows, layers * width]     | the host pool; here: the rows that were mirrored      |
| tables                     | see `StepTables`           | the caller, between steps                             |
| hot_states                 | see `HotState`             | the step; here: resolve                               |

All of them are buffers of the module: a CUDA graph reads and writes them where they lie. Everything that changes from
step to step is in tensors, so one graph serves any batch; it asks for whole tables of pages, whatever their use.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hisparse_ops import ops
from hisparse_ops.hot_state import Batch, HotState, MissPlan, Tables
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.memory.views import HostViews, layer_rows
from hisparse_ops.models.decoder import Decoder


class StepTables(NamedTuple):
    """Blocks of every page of every state row, as the worker keeps them; 0 = none."""

    host: Tensor  # [S, P] int32
    resident: Tensor  # [groups, S, P] int32
    hot: Tensor  # [groups, S, Q] int32
    indexer: Tensor  # [indexer groups, S, P] int32


class Decoded(NamedTuple):
    """What a step gives."""

    logits: Tensor  # [B, vocab] float32
    topk: Tensor  # [leaders, B, K] int32: the positions that were attended to; -1 = none


class DecodeStep(nn.Module):
    """The decoder over pools and tables of a layout.

    Raises ValueError if index keys do not divide a block of the pool: their rows could not be numbered through it.
    """

    pool: Tensor
    host_table: Tensor
    resident_tables: Tensor
    hot_tables: Tensor
    indexer_tables: Tensor

    def __init__(self, decoder: Decoder, kv_pool: KVPool, host: HostViews, tables: StepTables) -> None:
        super().__init__()
        layout = kv_pool.layout
        block_elements = layout.block_stride * kv_pool.width
        if block_elements % kv_pool.index_width:
            raise ValueError(
                f"kv_pool: an index key of {kv_pool.index_width} elements must divide a block of {block_elements}"
            )
        self.decoder = decoder
        self.layout = layout
        self.width, self.index_width = kv_pool.width, kv_pool.index_width
        self.index_stride = block_elements // kv_pool.index_width
        self.register_buffer("pool", kv_pool.storage, persistent=False)
        for unit in range(len(layout.units)):
            self.register_buffer(f"host_{unit}", host.unit_tensor(unit), persistent=False)
        for name, table in zip(("host_table", "resident_tables", "hot_tables", "indexer_tables"), tables, strict=True):
            self.register_buffer(name, table, persistent=False)
        states = len(tables.host)
        self.hot_states = nn.ModuleList(
            HotState.allocate(states, layout.hot_slots, kv_pool.device) for _ in layout.units
        )

    def forward(self, tokens: Tensor, positions: Tensor, state_rows: Tensor) -> Decoded:
        """Decodes one token of each of B requests.

        tokens [B] int64; positions [B] int32, where their rows go: each page of a position is resident; state_rows
        [B] int32, each at most once, -1 = padding, whose logits mean nothing.
        """
        kv = BatchKV(self, positions, state_rows)
        hidden, selections = self.decoder(tokens, kv)
        kv.mirror()
        return Decoded(self.decoder.logits(hidden), torch.stack(selections))


class BatchKV:
    """One step's view of the pools. It lives while the step is traced; the views of single layers are made in the
    graph, where the compiler sees that they are one tensor."""

    prefill = False

    def __init__(self, step: DecodeStep, positions: Tensor, state_rows: Tensor) -> None:
        self.step = step
        self.layout = step.layout
        self.positions = positions.long()
        self._places = positions, state_rows
        self._new = torch.arange(len(positions), dtype=torch.int32, device=positions.device)
        query_start = torch.arange(len(positions) + 1, dtype=torch.int32, device=positions.device)
        self._batch = Batch(query_start, state_rows)
        self._rows: dict[int, Tensor] = {}  # group -> where the new rows go
        self._plans: dict[int, MissPlan] = {}  # unit -> its plan

    # New tokens.

    def write(self, layer: int, rows: Tensor) -> None:
        ops.gather_plan([rows], [self._layer(layer)], self._new, self._resident_rows(self.layout.group_of(layer)))

    def write_index(self, leader: int, rows: Tensor) -> None:
        step, layout = self.step, self.layout
        table = step.indexer_tables[layout.index_group_of(leader)]
        places = ops.translate(*self._places, table, layout.block_size, step.index_stride)
        first = layout.index_slot_of(leader) * layout.block_size
        keys = step.pool.view(-1, step.index_width)[first:]
        ops.gather_plan([rows], [keys], self._new, places)

    def mirror(self) -> None:
        """Copies the new rows of all layers to the host. Last, so that nothing changes the pool behind it."""
        size = self.layout.block_size
        host_rows = ops.translate(*self._places, self.step.host_table, size, size)
        for number, unit in enumerate(self.layout.units):
            device_rows = self._resident_rows(self.layout.group_of(unit.leader))
            ops.mirror_rows(self._unit(number), self._host(number), device_rows, host_rows)

    def _resident_rows(self, group: int) -> Tensor:
        if group not in self._rows:
            layout, table = self.layout, self.step.resident_tables[group]
            self._rows[group] = ops.translate(*self._places, table, layout.block_size, layout.block_stride)
        return self._rows[group]

    # History.

    def index_rows(self, leader: int) -> Tensor:
        """[B, P * block_size, index_width]: the keys of all pages of the tables."""
        step, layout = self.step, self.layout
        first = layout.index_slot_of(leader) * layout.block_size
        pages = step.pool.view(layout.num_blocks, -1, step.index_width)[:, first : first + layout.block_size]
        tables = step.indexer_tables[layout.index_group_of(leader)]
        return pages[tables[self._batch.state_rows.clamp(min=0)]].flatten(1, 2)

    def selected_rows(self, layer: int, topk: Tensor | None) -> tuple[Tensor, Tensor]:
        unit = self.layout.unit_of(layer)
        if topk is not None:
            self._plans[unit] = self._load(unit, topk)
        rows = self._plans[unit].device_rows
        return self._layer(layer)[rows.clamp(min=0)], rows >= 0  # row 0, of the null block, is zeros

    def _load(self, unit: int, topk: Tensor) -> MissPlan:
        """Finds the rows, and loads those that are on the host alone, for all layers of a unit."""
        step, layout = self.step, self.layout
        group = layout.group_of(layout.units[unit].leader)
        tables = Tables(
            step.host_table,
            step.resident_tables[group],
            step.hot_tables[group],
            layout.block_size,
            layout.block_stride,
        )
        hot_state = step.hot_states[unit]
        assert isinstance(hot_state, HotState)
        plan = ops.resolve(topk, self._batch, tables, hot_state)
        ops.gather_compact(self._host(unit), self._unit(unit), plan)
        return plan

    # Views.

    def _layer(self, layer: int) -> Tensor:
        return layer_rows(self.step.pool, self.layout, self.step.width, layer)

    def _unit(self, unit: int) -> list[Tensor]:
        return [self._layer(layer) for layer in self.layout.units[unit].layers]

    def _host(self, unit: int) -> list[Tensor]:
        host: Tensor = getattr(self.step, f"host_{unit}")
        return list(host.chunk(len(self.layout.units[unit].layers), dim=1))
