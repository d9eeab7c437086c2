"""The decode step over a batch: compiled whole, without a copy of a pool, and the same wherever rows lie."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from comparison import assert_equal
from decode_world import BLOCK, CONFIG, STEPS, Call, DecodeWorld
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import ReinplaceCounters
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch.fx import GraphModule

from hisparse_ops import HotState, KVPool
from hisparse_ops.memory.layout import plan_layout
from hisparse_ops.models import Decoded, Decoder, DecodeStep
from hisparse_ops.models.layers import Indexer

REQUESTS = 4
SPARE_BLOCKS = 4000  # make a copy of the pool larger than all else that a step allocates


@pytest.fixture
def world() -> Iterator[DecodeWorld]:
    world = DecodeWorld("cpu", REQUESTS, spare_blocks=SPARE_BLOCKS)
    yield world
    world.close()


def hot_states(world: DecodeWorld) -> list[HotState]:
    return copy.deepcopy(list(world.step.hot_states))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_rows_from_host_and_hot_slots_change_no_bit(device: str, dtype: torch.dtype) -> None:
    world = DecodeWorld(device, REQUESTS, dtype)
    resident = world.run(world.step, offload=False)
    assert world.counts()["hit"] == world.counts()["miss"] == 0
    offloaded = world.run(world.step, offload=True)
    assert min(world.counts()[name] for name in ("resident", "hit", "miss")) > 0 == world.counts()["fault"]
    assert_equal(offloaded, resident)
    assert all(step.logits.isfinite().all() for step in resident)
    world.close()


def test_compiled_by_inductor(world: DecodeWorld, fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit-identical, resident or not. To eager only the ops are: for the same selections they leave the same hot
    state; sums of floats have another order."""
    changed, fixed = set(), set()

    def note_inputs(graph: GraphModule, inputs: Sequence[Tensor], **settings: Any) -> Any:
        code = compile_fx_inner(graph, inputs, **settings)
        changed.update(code.mutated_input_idxs)
        fixed.update(settings["static_input_idxs"])
        return code

    def inductor(graph: GraphModule, inputs: Sequence[Tensor]) -> Any:
        return compile_fx(graph, inputs, inner_compile=note_inputs)

    ReinplaceCounters.clear()
    compiled = torch.compile(world.step, fullgraph=True, backend=inductor)
    resident = world.run(compiled, offload=False)
    assert ReinplaceCounters.get_total_missed_bytes() == 0
    assert changed and changed <= fixed, "a CUDA graph takes no input that changes, unless it lies where it lay"
    offloaded = world.run(compiled, offload=True)
    assert_equal(offloaded, resident)
    assert min(world.counts()[name] for name in ("resident", "hit", "miss")) > 0 == world.counts()["fault"]
    assert largest_allocation(world, compiled) < world.kv_pool.bytes // 2

    offloaded = world.run(compiled, offload=True)
    found = hot_states(world)
    chosen = iter([topk for step in offloaded for topk in step.topk])

    def choose(self: Indexer, hidden: Tensor, *_: object) -> Tensor:
        topk = next(chosen)
        return torch.nn.functional.pad(topk, (0, 0, 0, len(hidden) - len(topk)), value=-1)

    monkeypatch.setattr(Indexer, "forward", choose)
    eager = world.run(world.step, offload=True)
    for ours, theirs in zip(offloaded, eager, strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-3)
        assert_equal(ours.topk, theirs.topk)
    expected = hot_states(world)
    for ours, theirs in zip(found, expected, strict=True):
        assert_equal(list(ours.buffers()), list(theirs.buffers()))


def largest_allocation(world: DecodeWorld, compiled: torch.nn.Module) -> int:
    batch = next(itertools.islice(world.batches(), STEPS // 2, None))
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        compiled(*batch)
    return max(event.cpu_memory_usage for event in profile.events())


def test_batch_sizes_share_a_graph(fresh_compiler: None) -> None:
    """One graph for a batch of one, one for all others. Through eager's own kernels every bit is eager's, those of
    the tensors that changed too."""
    world = DecodeWorld("cpu", REQUESTS)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(world.step, fullgraph=True, backend=counter)

    def run(step: Call) -> tuple[list[Decoded], list[Tensor]]:
        """Without padding: the batch grows as requests join."""

        def call(tokens: Tensor, positions: Tensor, states: Tensor) -> Decoded:
            live = int((states >= 0).sum())
            return step(tokens[:live], positions[:live], states[:live])

        return world.run(call, offload=True, steps=4 * BLOCK), [buffer.clone() for buffer in world.step.buffers()]

    found = run(compiled)
    assert counter.frame_count == 2
    assert world.counts()["miss"] > 0
    assert_equal(found, run(world.step))
    world.close()


def test_index_keys_that_do_not_divide_a_block_are_refused() -> None:
    config = replace(CONFIG, index_dim=20)
    layout = plan_layout(config.spec(torch.float32, block_size=1), 1 << 20, 0)
    with pytest.raises(ValueError, match="kv_pool: an index key of 20 elements must divide a block of 96"):
        DecodeStep(Decoder(config), KVPool(layout, torch.float32), None, None)
