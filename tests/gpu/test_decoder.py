"""The compact decoder's step under `mode="reduce-overhead"`: every step is one replay of one CUDA graph, over pools
that stay where they are, with the bits of full residency."""

from __future__ import annotations

import pytest
import torch
from comparison import assert_equal
from decode_world import STEPS, DecodeWorld
from torch import Tensor
from torch._dynamo.utils import ReinplaceCounters
from torch._inductor import config as inductor_config

from hisparse_ops.models import Decoded

pytestmark = pytest.mark.gpu

REQUESTS = 6
SPARE_BLOCKS = 1 << 18  # each pool tensor is larger than all else that a step takes, library workspaces included
ALL_ELSE = 300 << 20
WARM_UP_STEPS = 3  # compiled and run, captured, replayed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_step_is_one_replay_and_gives_the_bits_of_full_residency(
    dtype: torch.dtype, fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = DecodeWorld("cuda", REQUESTS, dtype, SPARE_BLOCKS)
    host = [world.host_pool.unit_tensor(unit) for unit in range(len(world.layout.units))]
    assert min(tensor.nbytes for tensor in (world.kv_pool.storage, *host)) > ALL_ELSE

    replayed: list[torch.cuda.CUDAGraph] = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replayed.append(graph), replay(graph))[1])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ReinplaceCounters.clear()
    compiled = torch.compile(world.step, fullgraph=True, mode="reduce-overhead")

    def call(*batch: Tensor) -> Decoded:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*batch)

    with inductor_config.patch({"triton.cudagraph_or_error": True}):
        world.run(call, offload=True, steps=WARM_UP_STEPS)
        assert ReinplaceCounters.get_total_missed_bytes() == 0
        replayed.clear()
        resident = world.run(call, offload=False)
        assert world.counts()["hit"] == world.counts()["miss"] == 0
        offloaded = world.run(call, offload=True)
    assert len(replayed) == 2 * STEPS and len(set(replayed)) == 1
    assert min(world.counts()[name] for name in ("resident", "hit", "miss")) > 0 == world.counts()["fault"]
    assert_equal(offloaded, resident)
    assert all(step.logits.isfinite().all() for step in resident)
    assert torch.cuda.max_memory_allocated() - before < ALL_ELSE
    world.close()
