"""Pools and tables to try the data plane on, with id ranges that nobody can confuse.

| id                | range        |
|-------------------|--------------|
| host blocks       | from 1000    |
| resident blocks   | from 1       |
| hot blocks        | from 300     |
| state rows        | shuffled     |
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hisparse_ops import Batch, HotState, Tables

FIRST_HOST_BLOCK = 1000
FIRST_RESIDENT_BLOCK = 1
FIRST_HOT_BLOCK = 300


def ints(values: Any, device: str = "cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def named_rows(rows: int, layers: int, width: int, device: str = "cpu") -> list[Tensor]:
    """The layers of a token-major host pool, [rows, width] each, whose bytes name (row, layer)."""
    row = torch.arange(rows).view(rows, 1, 1)
    layer = torch.arange(layers).view(1, layers, 1)
    column = torch.arange(width).view(1, 1, width)
    names = (row * 7 + layer * 101 + column * 13 + row // 31) % 251
    pool = names.reshape(rows, layers * width).to(torch.uint8).to(device)
    return [pool[:, layer * width : (layer + 1) * width] for layer in range(layers)]


def block_major(
    blocks: int, block_size: int, layers: int, width: int, fill: int = 0, device: str = "cpu"
) -> list[Tensor]:
    """The flat row views of a GPU pool whose blocks hold one page of every layer: all of equally many rows."""
    pool = torch.full((blocks * layers * block_size, width), fill, dtype=torch.uint8, device=device)
    rows = (blocks - 1) * layers * block_size + block_size
    return [pool[layer * block_size : layer * block_size + rows] for layer in range(layers)]


@dataclass
class World:
    """Everything that `resolve` takes, in a state as after some history."""

    topk: Tensor
    batch: Batch
    tables: Tables
    hot: HotState

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of `torch.ops.hisparse.resolve`."""
        hot, tables = self.hot, self.tables
        state = (hot.slot_rows, hot.slot_stamps, hot.clock, hot.counters)
        return (
            *(self.topk, *self.batch, tables.host, tables.resident, tables.hot),
            *state,
            *(tables.block_size, tables.block_stride),
        )


def random_world(
    seed: int,
    device: str = "cpu",
    *,
    query_rows: Sequence[int] = (1, 1, 1),
    padding_rows: int = 0,
    columns: int = 8,
    pages: int = 6,
    slots: int = 16,
    block_size: int = 4,
    stride_factor: int = 3,
    resident: float = 0.3,
    mapped: float = 0.9,
    leased: float = 0.9,
    cached: float = 0.5,
    spare_states: int = 2,
) -> World:
    """A batch of `len(query_rows)` requests with `query_rows[r]` query rows each (negative: a padding request),
    over random tables; `resident`, `mapped`, `leased` and `cached` are the shares of what is there."""
    draw = random.Random(seed)
    states = len(query_rows) + spare_states
    order = draw.sample(range(states), len(query_rows))
    host_ids = iter(draw.sample(range(FIRST_HOST_BLOCK, FIRST_HOST_BLOCK + states * pages), states * pages))
    resident_ids = iter(draw.sample(range(FIRST_RESIDENT_BLOCK, FIRST_RESIDENT_BLOCK + states * pages), states * pages))
    hot_columns = -(-slots // block_size)
    hot_count = states * hot_columns
    hot_ids = iter(draw.sample(range(FIRST_HOT_BLOCK, FIRST_HOT_BLOCK + hot_count), hot_count))

    def table(ids: Any, columns: int, share: float) -> list[list[int]]:
        return [[next(ids) if draw.random() < share else 0 for _ in range(columns)] for _ in range(states)]

    host = table(host_ids, pages, mapped)
    hot = HotState.allocate(states, slots, device)
    for state in range(states):
        rows = [block * block_size + i for block in host[state] if block for i in range(block_size)]
        draw.shuffle(rows)
        clock = draw.randrange(1, 50)
        hot.clock[state] = clock
        for slot in range(slots):
            if rows and draw.random() < cached:
                hot.slot_rows[state, slot] = rows.pop()
                hot.slot_stamps[state, slot] = draw.randrange(clock + 1)

    beyond = pages * block_size
    total = sum(abs(n) for n in query_rows) + padding_rows
    starts = [0]
    for n in query_rows:
        starts.append(starts[-1] + abs(n))
    topk = [[draw.randrange(-2, beyond + 2) for _ in range(columns)] for _ in range(total)]
    return World(
        topk=ints(topk, device).reshape(total, columns),
        batch=Batch(
            ints(starts, device),
            ints([state if n >= 0 else -1 for state, n in zip(order, query_rows, strict=True)], device),
        ),
        tables=Tables(
            ints(host, device).reshape(states, pages),
            ints(table(resident_ids, pages, resident), device).reshape(states, pages),
            ints(table(hot_ids, hot_columns, leased), device).reshape(states, hot_columns),
            block_size,
            block_size * stride_factor,
        ),
        hot=hot,
    )
