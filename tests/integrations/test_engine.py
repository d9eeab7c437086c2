"""The models in the engine: whatever its pools do, the logits are those of a plain full history, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from integrations.dense_kv import DenseHistory
from integrations.stock import tiny_llama

from hisparse_ops.engine import Engine, EngineConfig, Request
from hisparse_ops.integrations.transformers import TransformersModel, load, sample_prompts
from hisparse_ops.memory.layout import Layout, plan_layout

TOP_K, BLOCK_SIZE, CHUNK = 24, 16, 32
PROMPT, NEW = 200, 16
PLENTY = 1 << 26


def glm(dtype: torch.dtype) -> TransformersModel:
    return load("glm-tiny", dtype=dtype, top_k=TOP_K, block_size=BLOCK_SIZE)


def llama(dtype: torch.dtype) -> TransformersModel:
    return tiny_llama(TOP_K, dtype, BLOCK_SIZE)


def smallest_layout(model: TransformersModel) -> Layout:
    """A device pool that holds one request only with most of its history on the host."""
    layout = plan_layout(model.spec, PLENTY, PLENTY)
    blocks = layout.reserve_blocks(PROMPT + NEW, CHUNK) + 1
    assert blocks < layout.request_blocks(PROMPT + NEW)
    return plan_layout(model.spec, blocks * layout.block_bytes, PLENTY)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("make", [glm, llama])
def test_logits_from_host_and_hot_rows_are_those_of_a_full_history(
    make: Callable[[torch.dtype], TransformersModel], dtype: torch.dtype
):
    model = make(dtype)
    requests = [Request(title, tuple(ids), NEW) for title, ids in sample_prompts(model, 2, PROMPT)]
    config = EngineConfig(max_requests=2, max_context=PROMPT + NEW, prefill_chunk=CHUNK)
    with Engine(model, smallest_layout(model), config) as engine:
        for request in requests:
            engine.add(request)
        engine.run()
        figures = engine.figures()
    assert figures.misses > 0 and figures.hot_hits > 0 and figures.faults == 0
    for request in requests:
        history = DenseHistory(model, PROMPT + NEW)
        expected = [history.prefill(list(request.prompt), CHUNK)]
        expected += [history.compute([token], prefill=False) for token in request.output[:-1]]
        assert request.output == [int(logits.argmax()) for logits in expected]
        for step, (ours, dense) in enumerate(zip(request.logits, expected, strict=True)):
            assert torch.equal(ours, dense), f"{request.id}: logits of output token {step} differ"
