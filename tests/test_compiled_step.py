"""A whole decoding step in one compiled graph: mirror, resolve, gather, read."""

from __future__ import annotations

import copy

import torch
from comparison import assert_equal
from torch import Tensor, nn
from worlds import random_world

import hisparse_ops
from hisparse_ops import Batch, Tables

BLOCK, LAYERS, WIDTH = 4, 2, 512
STRIDE = BLOCK * LAYERS
POOL_ROWS = 2**17
POOL_BYTES = POOL_ROWS * WIDTH
REQUESTS = 3


class Step(nn.Module):
    """One index group of a decoder. Its caches are buffers; the views of single layers are made in the graph."""

    def __init__(self, device: str) -> None:
        super().__init__()
        world = random_world(seed=21, device=device, query_rows=(1,) * REQUESTS, resident=0.5, mapped=1, leased=1)
        self.hot = world.hot
        self.hot.slot_rows.fill_(-1)
        self.batch, self.tables = world.batch, world.tables._replace(block_stride=STRIDE)
        generator = torch.Generator().manual_seed(4)
        host_rows = int(self.tables.host.max() + 1) * BLOCK
        host = torch.randint(251, (host_rows, LAYERS * WIDTH), generator=generator, dtype=torch.uint8)
        self.register_buffer("host", host.to(device))
        self.register_buffer("pool", torch.zeros(POOL_ROWS, WIDTH, dtype=torch.uint8, device=device))

    def forward(self, topk: Tensor, query_start: Tensor, states: Tensor, positions: Tensor, tables: Tables) -> Tensor:
        host = self.host.unflatten(1, (LAYERS, WIDTH)).unbind(1)
        rows = POOL_ROWS - STRIDE + BLOCK
        device = [self.pool[layer * BLOCK : layer * BLOCK + rows] for layer in range(LAYERS)]
        device_rows = hisparse_ops.translate(positions, states, tables.resident, BLOCK, STRIDE)
        host_rows = hisparse_ops.translate(positions, states, tables.host, BLOCK, BLOCK)
        hisparse_ops.mirror_rows(device, host, device_rows, host_rows)
        plan = hisparse_ops.resolve(topk, Batch(query_start, states), tables, self.hot)
        hisparse_ops.gather_compact(host, device, plan)
        read = device[1][plan.device_rows.clamp(min=0)].int().sum(-1)
        return read.masked_fill(plan.device_rows < 0, 0)


def test_a_compiled_step_equals_eager_and_allocates_no_cache(device: str, fresh_compiler: None) -> None:
    eager = Step(device)
    step = copy.deepcopy(eager)
    compiled = torch.compile(step, fullgraph=True)
    draw = torch.Generator().manual_seed(5)
    pages = eager.tables.host.shape[1]

    def inputs() -> tuple[Tensor, ...]:
        topk = torch.randint(-1, pages * BLOCK, (REQUESTS, 8), generator=draw, dtype=torch.int32)
        positions = torch.randint(0, pages * BLOCK, (REQUESTS,), generator=draw, dtype=torch.int32)
        return topk.to(device), *eager.batch, positions.to(device)

    activities = [getattr(torch.profiler.ProfilerActivity, name) for name in ("CPU", "CUDA")[: 1 + (device == "cuda")]]
    for number in range(4):
        arguments = inputs()
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            found = compiled(*arguments, eager.tables)
        assert_equal(found, eager(*arguments, eager.tables))
        assert_equal(list(step.buffers()), list(eager.buffers()))
        if number:
            usage = (max(event.cpu_memory_usage, event.device_memory_usage) for event in profile.events())
            assert 0 < max(usage) < POOL_BYTES // 2
    assert eager.hot.counts()["hit"] and eager.hot.counts()["miss"] and eager.hot.counts()["resident"]


def test_a_layer_view_is_written_in_place(device: str, fresh_compiler: None) -> None:
    """A mutated argument that is one layer's strided view of a larger tensor: the original changes."""
    pool = torch.zeros(20, 3 * WIDTH, dtype=torch.uint8, device=device)
    source = torch.ones(20, WIDTH, dtype=torch.uint8, device=device)
    rows = torch.tensor([4], dtype=torch.int32, device=device)
    compiled = torch.compile(hisparse_ops.mirror_rows, fullgraph=True)
    compiled([source], [pool[:, WIDTH : 2 * WIDTH]], rows, rows + 3)
    expected = torch.zeros_like(pool)
    expected[7, WIDTH : 2 * WIDTH] = 1
    assert torch.equal(pool, expected)
