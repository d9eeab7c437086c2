"""A rig on its own, closed after the test; and all the kinds that content tests run through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from worker.harness import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture(params=[1, 16, 64], ids=lambda size: f"block{size}")
def block_size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def any_rig(request: pytest.FixtureRequest, block_size: int) -> Iterator[Rig]:
    rig = Rig(block_size, request.param)
    yield rig
    rig.close()
