"""One decoding step of many long requests, as the benchmarks measure it: all pages on the host, full hot buffers, and
a few percent of every request's picks missing."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hisparse_ops import Batch, HotState, Tables

BLOCK = 64
LAYERS = 4
ROW_BYTES = 656


@dataclass
class DecodeBatch:
    topk: Tensor
    batch: Batch
    tables: Tables
    hot: HotState

    def arguments(self) -> tuple[Any, ...]:
        """Arguments of `torch.ops.hisparse.resolve`; its state is copied, so that every round starts alike."""
        state = [tensor.clone() for tensor in self.hot.buffers()]
        tables = self.tables
        sizes = (tables.block_size, tables.block_stride)
        return (self.topk, *self.batch, tables.host, tables.resident, tables.hot, *state, *sizes)


def decode_batch(requests: int, top_k: int, slots: int, tokens: int, miss_share: float, device: str) -> DecodeBatch:
    draw = torch.Generator().manual_seed(requests)
    pages, hot_blocks = tokens // BLOCK, slots // BLOCK
    host_blocks = 1 + torch.randperm(requests * pages, generator=draw).int().view(requests, pages)
    hot_table = 1 + torch.randperm(requests * hot_blocks, generator=draw).int().view(requests, hot_blocks)
    hot = HotState.allocate(requests, slots)
    topk = torch.empty(requests, top_k, dtype=torch.int32)
    misses = round(top_k * miss_share)
    for request in range(requests):
        positions = torch.randperm(tokens, generator=draw).int()
        cached, others = positions[:slots], positions[slots:]
        hot.slot_rows[request] = host_blocks[request, cached.long() // BLOCK] * BLOCK + cached % BLOCK
        hot.slot_stamps[request] = torch.randint(1, 1000, (slots,), generator=draw)
        asked = torch.cat((cached[: top_k - misses], others[:misses]))
        topk[request] = asked[torch.randperm(top_k, generator=draw)]
    hot.clock.fill_(1000)
    return DecodeBatch(
        topk.to(device),
        Batch(
            torch.arange(requests + 1, dtype=torch.int32, device=device),
            torch.arange(requests, dtype=torch.int32, device=device),
        ),
        Tables(
            host_blocks.to(device),
            torch.zeros_like(host_blocks, device=device),
            hot_table.to(device),
            BLOCK,
            BLOCK * LAYERS,
        ),
        hot.to(device),
    )


def token_major(rows: int, huge_pages: bool) -> list[Tensor]:
    """The layers of a host pool, filled with something other than zeros."""
    pool = _memory(rows * LAYERS * ROW_BYTES, huge_pages).view(rows, LAYERS * ROW_BYTES)
    pool.view(torch.int32).copy_(
        torch.arange(rows, dtype=torch.int32).view(rows, 1).expand(-1, LAYERS * ROW_BYTES // 4)
    )
    return list(pool.unflatten(1, (LAYERS, ROW_BYTES)).unbind(1))


def block_major(blocks: int, huge_pages: bool) -> list[Tensor]:
    """The layers of a GPU pool."""
    pool = _memory(blocks * LAYERS * BLOCK * ROW_BYTES, huge_pages).view(-1, ROW_BYTES).zero_()
    rows = ((blocks - 1) * LAYERS + 1) * BLOCK
    return [pool[layer * BLOCK : layer * BLOCK + rows] for layer in range(LAYERS)]


def _memory(size: int, huge_pages: bool) -> Tensor:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has no huge pages
    memory.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
