"""What every test needs: devices, poisoned memory, reproducible compiles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._functorch.config
import torch._inductor.config


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Every device that the ops run on."""
    name: str = request.param
    return name


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fresh tensors hold the largest integer, or NaN, until somebody writes them."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """No graph of an earlier test is reused, nor one from disk: what is counted while compiling must not be skipped."""
    torch.compiler.reset()
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    torch.compiler.reset()
