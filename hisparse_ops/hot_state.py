"""The tensors that `resolve` reads and writes, in named bundles.

| bundle     | tensors                                   | lifetime         | written by                     |
|------------|-------------------------------------------|------------------|--------------------------------|
| `HotState` | slot_rows, slot_stamps [S, H]; clock [S]; | the worker's     | resolve, invalidate,           |
|            | counters [5]                              |                  | invalidate_blocks, reset_rows  |
| `Tables`   | host, resident [S, P]; hot [S, Q]         | the worker's     | the worker, between steps      |
| `Batch`    | query_start [R + 1]; state_rows [R]       | one step         | the engine                     |
| `MissPlan` | resolve's five outputs; query_start       | one step, one    | resolve                        |
|            |                                           | index group      |                                |

S state rows, P pages of a table row, H hot slots of a state row, Q hot blocks, R requests of a batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

COUNTER_NAMES = ("resident", "hit", "miss", "padding", "fault")
"""What the five `counters` count, in order."""

EMPTY = -1
"""Value of an empty slot in `slot_rows`."""


class Batch(NamedTuple):
    """Who asks in this step: rows `query_start[r] .. query_start[r+1]-1` belong to state row `state_rows[r]`."""

    query_start: Tensor  # [R + 1] int32
    state_rows: Tensor  # [R] int32; -1 = padding; no state row twice


class Tables(NamedTuple):
    """Where every page of every state row lies. Entries are block ids; 0 = none."""

    host: Tensor  # [S, P] int32
    resident: Tensor  # [S, P] int32
    hot: Tensor  # [S, Q] int32, Q >= ceil(H / block_size)
    block_size: int  # rows in a page
    block_stride: int  # rows from one GPU block to the next, >= block_size


class MissPlan(NamedTuple):
    """What `resolve` answers; `gather_compact` carries out its `miss_*` part.

    The loads of request r start at `miss_*[query_start[r]]` and run on row-major."""

    device_rows: Tensor  # [B, K] int32: where to read each position, -1 = masked
    valid_counts: Tensor  # [B] int32: entries >= 0 in each row
    miss_host_rows: Tensor  # [B, K] int32: rows to load; -1 = unused
    miss_device_rows: Tensor  # [B, K] int32: where to put them; -1 = unused
    miss_counts: Tensor  # [R] int32
    query_start: Tensor  # [R + 1] int32: the batch's


class HotState(nn.Module):
    """The hot buffers' look-up state for one index group. Buffers of a module, because CUDA graphs made by
    `torch.compile` accept tensors that change only where a module owns them; make it a submodule of the model.

    | tensor      | shape, dtype   | meaning                                       |
    |-------------|----------------|-----------------------------------------------|
    | slot_rows   | [S, H] int32   | host row cached in the slot, -1 = empty       |
    | slot_stamps | [S, H] int32   | clock of the slot's last use, 0 = never       |
    | clock       | [S] int32      | resolves done for the state row               |
    | counters    | [5] int64      | totals over all state rows, `COUNTER_NAMES`   |
    """

    slot_rows: Tensor
    slot_stamps: Tensor
    clock: Tensor
    counters: Tensor

    def __init__(self, slot_rows: Tensor, slot_stamps: Tensor, clock: Tensor, counters: Tensor) -> None:
        super().__init__()
        self.register_buffer("slot_rows", slot_rows, persistent=False)
        self.register_buffer("slot_stamps", slot_stamps, persistent=False)
        self.register_buffer("clock", clock, persistent=False)
        self.register_buffer("counters", counters, persistent=False)

    @classmethod
    def allocate(cls, state_rows: int, hot_slots: int, device: torch.device | str = "cpu") -> HotState:
        """Empty state for `state_rows` requests of `hot_slots` rows each. Raises ValueError for a size below 1."""
        for name, size in (("state_rows", state_rows), ("hot_slots", hot_slots)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        return cls(
            torch.full((state_rows, hot_slots), EMPTY, dtype=torch.int32, device=device),
            torch.zeros(state_rows, hot_slots, dtype=torch.int32, device=device),
            torch.zeros(state_rows, dtype=torch.int32, device=device),
            torch.zeros(len(COUNTER_NAMES), dtype=torch.int64, device=device),
        )

    @property
    def state_rows(self) -> int:
        """Requests that have a line here, S."""
        return self.slot_rows.shape[0]

    @property
    def hot_slots(self) -> int:
        """Hot slots of each request, H."""
        return self.slot_rows.shape[1]

    def grown(self, hot_slots: int) -> HotState:
        """A copy with `hot_slots` slots in every state row: old slots as they are, new ones empty.
        Raises ValueError when that would take slots away."""
        if hot_slots < self.hot_slots:
            raise ValueError(f"hot_slots must be at least the present {self.hot_slots}, got {hot_slots}")
        larger = HotState.allocate(self.state_rows, hot_slots, self.slot_rows.device)
        larger.slot_rows[:, : self.hot_slots] = self.slot_rows
        larger.slot_stamps[:, : self.hot_slots] = self.slot_stamps
        larger.clock.copy_(self.clock)
        larger.counters.copy_(self.counters)
        return larger

    def counts(self) -> dict[str, int]:
        """The counters by name. Waits for the device."""
        return dict(zip(COUNTER_NAMES, self.counters.tolist(), strict=True))

    def check(self) -> None:
        """Raises AssertionError unless: no state row caches a host row twice, and every stamp lies in
        0 .. clock. Waits for the device; for tests and debugging."""
        for state_row, (rows, stamps) in enumerate(zip(self.slot_rows.cpu(), self.slot_stamps.cpu(), strict=True)):
            cached = rows[rows != EMPTY]
            assert cached.numel() == cached.unique().numel(), f"state row {state_row} caches a host row twice"
            assert bool((cached >= 0).all()), f"state row {state_row} caches a negative host row"
            clock = int(self.clock[state_row])
            assert bool(((stamps >= 0) & (stamps <= clock)).all()), f"state row {state_row}: stamp outside 0..{clock}"
