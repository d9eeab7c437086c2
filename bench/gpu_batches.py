"""What the GPU benchmark runs on: decode steps of long requests whose data no cache has seen.

Every step of a graph has state rows, positions and host rows of its own; together they exceed the L2 cache many
times, and the host rows lie scattered over the whole host pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hisparse_ops import HotState

BLOCK = 64
TOKENS = 32 * 1024
PAGES = TOKENS // BLOCK
ROW_BYTES = 656
WORDS = ROW_BYTES // 4
L2_BYTES = 60 << 20
MAX_STEPS = 256

SHARES = {"resident": 0.0, "hit100": 0.0, "miss5": 0.05, "miss50": 0.5, "cold": 1.0}
"""Share of the picks that miss, by case."""


class Sizes(NamedTuple):
    batch: int
    top_k: int = 2048
    hot_slots: int = 4096
    query_rows: int = 1
    case: str = "miss5"

    @property
    def union(self) -> int:
        return self.top_k * self.query_rows

    @property
    def misses(self) -> int:
        """Rows that one request loads."""
        return round(self.top_k * SHARES[self.case]) * self.query_rows

    @property
    def resolve_bytes(self) -> int:
        """Bytes that one `resolve` reads and writes once: positions, blocks, slots; answers, plan, changed slots."""
        references = self.batch * self.union
        resident = self.case == "resident"
        slots = 0 if resident else 2 * self.hot_slots * self.batch
        changed = 0 if resident else references + self.misses * self.batch
        return 4 * (references + min(references, 2 * PAGES * self.batch) + slots + 3 * references + changed)

    def steps(self) -> int:
        wanted = -(-2 * L2_BYTES // self.resolve_bytes)
        return max(8, min(MAX_STEPS, wanted))


@dataclass
class Steps:
    """Arguments of `resolve` for each step; all steps share tables and hot state, in rows of their own."""

    sizes: Sizes
    topk: list[Tensor]
    states: list[Tensor]
    query_start: Tensor
    host_table: Tensor
    resident_table: Tensor
    hot_table: Tensor
    hot: HotState
    saved: list[Tensor]
    block_stride: int

    def arguments(self, step: int) -> tuple[Tensor | int, ...]:
        tables = self.host_table, self.resident_table, self.hot_table
        return (
            self.topk[step],
            self.query_start,
            self.states[step],
            *tables,
            *self.hot.buffers(),
            BLOCK,
            self.block_stride,
        )

    def restore(self) -> None:
        """The hot state as it was before the first step."""
        for tensor, old in zip(self.hot.buffers(), self.saved, strict=True):
            tensor.copy_(old)


def make_steps(sizes: Sizes, steps: int, host_blocks: int, block_stride: int, seed: int = 0) -> Steps:
    """Requests in a steady state: full hot buffers, whose least recent slots have ages as LRU leaves them."""
    draw = torch.Generator("cuda").manual_seed(seed)
    states = steps * sizes.batch
    slots, union, misses = sizes.hot_slots, sizes.union, sizes.misses

    def permutations(rows: int, size: int) -> Tensor:
        return torch.rand(rows, size, generator=draw, device="cuda").argsort(1).int()

    def ids(rows: int, columns: int, end: int) -> Tensor:
        return torch.randint(1, end, (rows, columns), generator=draw, device="cuda", dtype=torch.int32)

    # A request's pages lie all over the pool, in blocks of its own.
    first = torch.randint(0, host_blocks - 1, (states, 1), generator=draw, device="cuda")
    page = torch.arange(PAGES, device="cuda") * (host_blocks // PAGES | 1)
    host_table = (1 + (first + page) % (host_blocks - 1)).int()
    hot_blocks = -(-slots // BLOCK)
    hot_table = 1 + torch.arange(states * hot_blocks, dtype=torch.int32, device="cuda").view(states, hot_blocks)
    resident_table = (
        ids(states, PAGES, hot_blocks * states) if sizes.case == "resident" else torch.zeros_like(host_table)
    )

    hot = HotState.allocate(states, slots, "cuda")
    clock, evicted = 1000, max(1, min(misses, slots - union)) if sizes.case != "cold" else slots
    topk = torch.empty(states, union, dtype=torch.int32, device="cuda")
    for first in range(0, states, 256):
        rows = slice(first, min(first + 256, states))
        count = rows.stop - rows.start
        positions = permutations(count, TOKENS)
        if sizes.case != "cold":
            cached = positions[:, :slots]
            page = cached.long() // BLOCK
            hot.slot_rows[rows] = host_table[rows].gather(1, page) * BLOCK + cached % BLOCK
            age = permutations(count, slots).sub(union).clamp(min=0).div(evicted, rounding_mode="floor").int()
            hot.slot_stamps[rows] = clock - 1 - age.clamp(max=clock - 2)
        asked = torch.cat((positions[:, : union - misses], positions[:, slots : slots + misses]), 1)
        topk[rows] = asked.gather(1, permutations(count, union).long())
    hot.clock.fill_(clock)

    batch_rows = sizes.batch * sizes.query_rows
    order = torch.arange(states, dtype=torch.int32, device="cuda").view(steps, sizes.batch)
    return Steps(
        sizes,
        list(topk.view(steps, batch_rows, sizes.top_k)),
        list(order),
        torch.arange(0, batch_rows + 1, sizes.query_rows, dtype=torch.int32, device="cuda"),
        host_table,
        resident_table,
        hot_table,
        hot,
        [tensor.clone() for tensor in hot.buffers()],
        block_stride,
    )


def expected_words(host_rows: Tensor, words: int) -> Tensor:
    """The content of host rows: word w of row h is h * words + w, wrapped to int32."""
    first = host_rows.long() * words
    return (first[:, None] + torch.arange(words, device=host_rows.device)).int()


def fill_host(memory: Tensor) -> None:
    """Gives every row its content, a slice at a time."""
    rows, words = memory.shape
    for first in range(0, rows, 1 << 18):
        part = memory[first : first + (1 << 18)]
        torch.add(
            (torch.arange(first, first + part.shape[0])[:, None] * words).int(), torch.arange(words).int(), out=part
        )
