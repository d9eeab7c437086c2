"""The same questions to every op and every sample: see `samples.py`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from comparison import assert_equal, bits
from samples import OPS, SAMPLES, Sample, of
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import ReinplaceCounters
from torch._inductor.utils import run_and_get_code
from torch.testing._internal.optests import OpCheckError
from torch.utils import _pytree as pytree
from worlds import random_world

all_samples = pytest.mark.parametrize("sample", SAMPLES, ids=str)


def test_every_op_has_samples_and_a_reference() -> None:
    assert len(OPS) == 10
    assert {sample.op for sample in SAMPLES} == set(OPS)
    assert all(sample.reference for sample in SAMPLES)


@all_samples
def test_equals_the_reference(sample: Sample, device: str, poisoned: None) -> None:
    arguments, expected = sample.arguments(device), sample.arguments("cpu")
    for _ in range(3):  # again, on the state that the call before left behind
        outputs = sample.overload(*arguments)
        assert_equal(outputs, sample.reference(*expected))
        assert_equal(arguments, expected)


@pytest.mark.parametrize("op", OPS)
def test_declared_mutations_happen(op: str) -> None:
    changed: set[int] = set()
    for sample in of(op):
        arguments = sample.arguments()
        before = copy.deepcopy(arguments)
        sample.overload(*arguments)
        for i, (one, other) in enumerate(zip(arguments, before, strict=True)):
            leaves = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
            if any(isinstance(a, torch.Tensor) and not torch.equal(bits(a), bits(b)) for a, b in leaves):
                changed.add(i)
    assert changed == set(next(of(op)).written)


@all_samples
def test_opcheck(sample: Sample, device: str) -> None:
    torch.library.opcheck(sample.overload, sample.arguments(device))


def test_opcheck_finds_an_undeclared_mutation() -> None:
    with torch.library._scoped_library("hisparse_negative", "FRAGMENT") as library:
        library.define("bump(Tensor clock) -> ()")
        library.impl("bump", lambda clock: [clock.add_(1)].clear(), "CPU")
        library.impl("bump", lambda clock: None, "Meta")
        with pytest.raises(OpCheckError, match="mutate"):
            torch.library.opcheck(torch.ops.hisparse_negative.bump.default, (torch.zeros(3),))


@all_samples
def test_fake_on_meta_tensors(sample: Sample) -> None:
    """The fake answers with the shapes and dtypes of the real outputs, and runs where nothing is."""
    arguments = sample.arguments()
    real = sample.overload(*arguments)
    on_meta = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), arguments)
    fake = sample.overload(*on_meta)
    described = [[(t.dtype, t.shape) for t in pytree.tree_leaves(outputs) if t is not None] for outputs in (real, fake)]
    assert described[0] == described[1]


class Pool(NamedTuple):
    """Layers of one pool as compiled code should be given them: the whole tensor, and where each layer lies in it."""

    whole: torch.Tensor
    places: list[tuple[slice, slice]]

    @classmethod
    def of(cls, layers: list[torch.Tensor]) -> Pool:
        whole = layers[0]._base
        assert whole is not None
        places = []
        for layer in layers:
            row, column = divmod(layer.storage_offset(), whole.stride(0))
            places.append((slice(row, row + layer.shape[0]), slice(column, column + layer.shape[1])))
        return cls(whole, places)

    def layers(self) -> list[torch.Tensor]:
        return [self.whole[place] for place in self.places]


def is_one_pool(argument: Any) -> bool:
    return isinstance(argument, list) and all(layer._base is argument[0]._base is not None for layer in argument)


def compile_and_run(call: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], Any, bool]:
    """The compiled function, its first result, and whether its code holds a copy of anything.

    Our ops make their outputs themselves, so code that calls nothing else has nothing to allocate."""
    compiled = torch.compile(call, fullgraph=True, backend="inductor")
    ReinplaceCounters.clear()
    result, (code,) = run_and_get_code(compiled, *arguments)
    return compiled, result, "= empty_strided" in code or ReinplaceCounters.get_total_missed_bytes() > 0


@all_samples
def test_compiles_whole_without_clones(sample: Sample, device: str, fresh_compiler: None) -> None:
    def call(*arguments: Any) -> Any:
        return sample.overload(*(a.layers() if isinstance(a, Pool) else a for a in arguments))

    arguments, expected = sample.arguments(device), sample.arguments(device)
    given = [Pool.of(a) if is_one_pool(a) else a for a in arguments]
    compiled, result, clones = compile_and_run(call, *given)
    assert not clones
    assert_equal(result, sample.overload(*expected))
    assert_equal(arguments, expected)

    assert_equal(compiled(*given), sample.overload(*expected))
    assert_equal(arguments, expected)


def test_the_clone_guard_sees_a_clone(device: str, fresh_compiler: None) -> None:
    """Columns of one tensor as separate inputs: the compiler copies the whole pool out and back, and reports
    nothing. So layer views are made inside compiled code, as above."""
    arguments = next(of("mirror_rows")).arguments(device)
    *_, clones = compile_and_run(torch.ops.hisparse.mirror_rows.default, *arguments)
    assert clones


@pytest.mark.parametrize("op", ["resolve", "gather_compact"])
def test_batch_sizes_share_a_graph(op: str, device: str, fresh_compiler: None) -> None:
    """One graph for a batch of one, one for all others."""
    overload = getattr(torch.ops.hisparse, op).default
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda *arguments: overload(*arguments), fullgraph=True, backend=counter)
    for requests in (1, 2, 3, 5, 8):
        arguments, expected = (batch_arguments(op, requests, device) for _ in range(2))
        assert_equal(compiled(*arguments), overload(*expected))
        assert_equal(arguments, expected)
    assert counter.frame_count <= 2


def batch_arguments(op: str, requests: int, device: str) -> tuple[Any, ...]:
    world = random_world(seed=requests, device=device, query_rows=(1,) * requests, spare_states=10 - requests)
    if op == "resolve":
        return world.arguments()
    _, _, *plan, counts = torch.ops.hisparse.resolve(*world.arguments())
    host, device_layers, *_ = next(of("gather_compact")).arguments(device)
    return (host, device_layers, *plan, world.batch.query_start, counts)


@pytest.mark.parametrize("op", OPS)
def test_exports(op: str) -> None:
    sample = next(of(op))

    class Step(torch.nn.Module):
        def forward(self, *arguments: Any) -> Any:
            return sample.overload(*arguments)

    program = torch.export.export(Step(), sample.arguments()).module()
    arguments, expected = sample.arguments(), sample.arguments()
    assert_equal(program(*arguments), sample.overload(*expected))
    assert_equal(arguments, expected)
