"""Long histories of large batches, carried out on the CPU and on a GPU side by side: everything bit for bit the
same after every step. What one step asks for shares most positions with the step before, as decoding does."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from comparison import assert_equal
from torch import Tensor
from torch.utils import _pytree as pytree
from worlds import FIRST_HOST_BLOCK, FIRST_HOT_BLOCK, FIRST_RESIDENT_BLOCK

from hisparse_ops import HotState, Tables


class Shape(NamedTuple):
    """Sizes of a history. `rows` are the query rows of each request; the shares are of pages, blocks and picks."""

    rows: Sequence[int] = (1,)
    columns: int = 64
    slots: int = 128
    pages: int = 12
    block_size: int = 16
    stride_factor: int = 4
    spare_states: int = 2
    padding_rows: int = 0
    resident: float = 0.2
    mapped: float = 0.95
    leased: float = 0.95
    overlap: float = 0.7
    odd_picks: float = 0.05

    @property
    def states(self) -> int:
        return len(self.rows) + self.spare_states


def to(device: str, values: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device, copy=True), values)


class History:
    """The CPU's and the GPU's copy of all that `resolve` reads and writes."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.draw = torch.Generator().manual_seed(seed)
        s, p, q = shape.states, shape.pages, -(-shape.slots // shape.block_size)
        self.tables = Tables(
            self.table(FIRST_HOST_BLOCK, s, p, shape.mapped),
            self.table(FIRST_RESIDENT_BLOCK, s, p, shape.resident),
            self.table(FIRST_HOT_BLOCK, s, q, shape.leased),
            shape.block_size,
            shape.block_size * shape.stride_factor,
        )
        self.cpu = list(HotState.allocate(s, shape.slots).buffers())
        self.gpu = to("cuda", self.cpu)
        self.query_start = torch.tensor([0, *shape.rows]).cumsum(0).int()
        self.topk = self.picks()

    def table(self, first: int, rows: int, columns: int, share: float) -> Tensor:
        ids = first + torch.randperm(rows * columns, generator=self.draw).view(rows, columns)
        return torch.where(self.chance(rows, columns) < share, ids, 0).int()

    def chance(self, *size: int) -> Tensor:
        return torch.rand(*size, generator=self.draw)

    def picks(self) -> Tensor:
        """Fresh positions; a few are negative or beyond the table."""
        end = self.shape.pages * self.shape.block_size
        size = (sum(self.shape.rows) + self.shape.padding_rows, self.shape.columns)
        inside = torch.randint(0, end, size, generator=self.draw)
        beyond = torch.randint(end, end + 40, size, generator=self.draw)
        odd = torch.where(self.chance(*size) < 0.5, beyond, end - 1 - beyond)
        return torch.where(self.chance(*size) < self.shape.odd_picks, odd, inside).int()

    def advance(self, padding: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
        """What the next step asks for: topk, query_start, state_rows."""
        kept = self.chance(*self.topk.shape) < self.shape.overlap
        self.topk = torch.where(kept, self.topk, self.picks())
        states = torch.randperm(self.shape.states, generator=self.draw)[: len(self.shape.rows)].int()
        return self.topk, self.query_start, torch.where(self.chance(*states.shape) < padding, -1, states)

    def resolve(self, asked: tuple[Tensor, ...]) -> list[Tensor]:
        """One step on both sides. Returns the outputs."""
        found = self.on_gpu(to("cuda", asked))
        expected = self.on_cpu(asked)
        assert_equal(found, expected)
        assert_equal(self.gpu, self.cpu)
        return expected

    def on_cpu(self, asked: tuple[Tensor, ...]) -> list[Tensor]:
        return torch.ops.hisparse.resolve(*asked, *self.tables[:3], *self.cpu, *self.tables[3:])

    def on_gpu(self, asked: tuple[Tensor, ...]) -> list[Tensor]:
        tables = to("cuda", self.tables)
        return torch.ops.hisparse.resolve(*asked, *tables[:3], *self.gpu, *tables[3:])

    def scatter_stamps(self, spread: int) -> None:
        """Stamps as after a long life: far apart, the clock ahead of them."""
        _, stamps, clock, _ = self.cpu
        stamps.copy_(torch.randint(0, spread, stamps.shape, generator=self.draw))
        clock.fill_(spread)
        self.gpu = copy.deepcopy(to("cuda", self.cpu))
