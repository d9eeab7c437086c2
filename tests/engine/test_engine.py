"""End to end on a toy model: whatever the pools do, the logits are those of full residency, bit for bit."""

from __future__ import annotations

import random

import pytest
import torch
from engine.toy_model import VOCAB, ToyModel

from hisparse_ops.engine import Engine, EngineConfig, Request
from hisparse_ops.memory.layout import plan_layout

TOP_K = 8
CONTEXT = 112


def prompts(count: int, length: int, shared: int = 0, seed: int = 0) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    prefix = tuple(draw.randrange(VOCAB) for _ in range(shared))
    return [prefix + tuple(draw.randrange(VOCAB) for _ in range(length - shared)) for _ in range(count)]


def model(block_size=16, dtype=torch.float32, hot=2) -> ToyModel:
    return ToyModel(top_k=TOP_K, block_size=block_size, dtype=dtype, hot_slots=hot * TOP_K)


def small_layout(toy: ToyModel, requests: float, chunk: int, host_tokens: int = 64 * CONTEXT):
    """Device blocks for `requests` times what one request needs at least with its history on the host."""
    anything = plan_layout(toy.spec, 1 << 24, 1 << 24)
    blocks = int(requests * anything.reserve_blocks(CONTEXT, chunk)) + 1
    pages = anything.pages(host_tokens) + 1
    return plan_layout(toy.spec, blocks * anything.block_bytes, pages * anything.host_block_bytes)


def resident_layout(toy: ToyModel):
    return plan_layout(toy.spec, 1 << 24, 0)


def start(toy: ToyModel, layout, chunk: int, max_requests: int = 8) -> Engine:
    return Engine(toy, layout, EngineConfig(max_requests=max_requests, max_context=CONTEXT + 16, prefill_chunk=chunk))


def decode(toy: ToyModel, layout, requests: list[Request], chunk: int) -> Engine:
    with start(toy, layout, chunk) as engine:
        for request in requests:
            engine.add(request)
        engine.run(lambda e: e.check())
        return engine


def alone(toy: ToyModel, requests: list[Request], chunk: int) -> list[Request]:
    """The same requests, one after the other, on a device that holds everything."""
    fresh = [Request(r.id, r.prompt, r.max_new_tokens) for r in requests]
    for request in fresh:
        decode(toy, resident_layout(toy), [request], chunk)
    return fresh


def assert_same(got: list[Request], want: list[Request]) -> None:
    for mine, reference in zip(got, want, strict=True):
        assert mine.output == reference.output, f"request {mine.id}: other tokens"
        for step, (a, b) in enumerate(zip(mine.logits, reference.logits, strict=True)):
            assert torch.equal(a, b), f"request {mine.id}: logits of output token {step} differ"


@pytest.mark.parametrize("hot", [1, 2, 3, 5])
@pytest.mark.parametrize("block_size, chunk", [(1, 8), (16, 32), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_small_pool_gives_the_logits_of_full_residency(hot, block_size, chunk, dtype):
    toy = model(block_size, dtype, hot)
    requests = [Request(str(i), p, 12) for i, p in enumerate(prompts(3, 96))]
    want = alone(toy, requests, chunk)
    layout = small_layout(toy, 1.6, chunk)
    assert layout.num_blocks - 1 < 3 * layout.request_blocks(CONTEXT), "the pool must be too small for all"
    engine = decode(toy, layout, requests, chunk)
    assert_same(requests, want)
    figures = engine.figures()
    assert figures.faults == 0 and figures.spilled_pages > 0
