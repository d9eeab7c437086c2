"""Every op refuses every kind of wrong argument in the same way: a RuntimeError that names it, nothing written."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from comparison import assert_equal
from samples import HOST_ROWS, LAYERS, OPS, WIDTH, Sample, of
from torch import Tensor
from torch.utils import _pytree as pytree
from worlds import ints, named_rows

Change = Callable[[Tensor], Tensor]

# Sizes that an argument brings itself, so that no other argument can contradict them.
FREE_SIZES = {
    ("resolve", "topk", 0),  # query_start is clamped to the query rows
    ("resolve", "topk", 1),
    ("invalidate", "slot_rows", 0),
    ("invalidate", "slot_rows", 1),
    ("invalidate_blocks", "slot_rows", 0),
    ("invalidate_blocks", "slot_rows", 1),
    ("invalidate_blocks", "host_blocks", 0),
    ("reset_rows", "state_rows", 0),
    ("translate", "table", 0),
    ("translate", "table", 1),
}

SEEN_WHILE_TRACING = re.compile("dtype|dimensions|size-")


def other_dtype(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int16 if tensor.dtype != torch.int16 else torch.int32)


def other_device(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


def another_dimension(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(0)


def one_less(dim: int) -> Change:
    return lambda tensor: tensor.narrow(dim, 0, tensor.shape[dim] - 1).contiguous()


def spread_out(tensor: Tensor) -> Tensor:
    """The same values, with gaps between neighbours in a row."""
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


def spread_rows(tensor: Tensor) -> Tensor:
    """The same values, with gaps between rows."""
    return torch.cat((tensor, tensor), 1)[:, : tensor.shape[1]]


class Case(NamedTuple):
    sample: Sample
    argument: int
    layer: int | None  # which tensor of a list
    change: Change
    what: str

    @property
    def name(self) -> str:
        return self.sample.overload._schema.arguments[self.argument].name

    @property
    def blamed(self) -> str:
        """An argument that disagrees with the changed one may be named in its place."""
        return "|".join(argument.name for argument in self.sample.overload._schema.arguments)

    def __str__(self) -> str:
        layer = "" if self.layer is None else f"[{self.layer}]"
        return f"{self.sample.op}-{self.name}{layer}-{self.what}"


def changes(op: str, name: str, tensor: Tensor, changed: bool) -> list[tuple[str, Change]]:
    found: list[tuple[str, Change]] = [
        ("dtype", other_dtype),
        ("device", other_device),
        ("dimensions", another_dimension),
        ("strides", spread_out),
    ]
    if changed and tensor.dim() == 2 and tensor.dtype == torch.int32:
        found.append(("row-strides", spread_rows))
    found += [(f"size-{dim}", one_less(dim)) for dim in range(tensor.dim()) if (op, name, dim) not in FREE_SIZES]
    return found


def cases() -> list[Case]:
    found = []
    for op in OPS:
        sample = next(of(op))
        for number, argument in enumerate(sample.arguments()):
            name = sample.overload._schema.arguments[number].name
            tensors = enumerate(argument) if isinstance(argument, list) else [(None, argument)]
            for layer, tensor in tensors:
                if isinstance(tensor, Tensor):
                    for what, change in changes(op, name, tensor, number in sample.written):
                        found.append(Case(sample, number, layer, change, what))
    return found


def refuse(call: Callable[..., Any], arguments: tuple[Any, ...], match: str) -> None:
    before = copy.deepcopy([a for a in arguments if not is_meta(a)])
    with pytest.raises(RuntimeError, match=match):
        call(*arguments)
    assert_equal([a for a in arguments if not is_meta(a)], before)


def is_meta(argument: Any) -> bool:
    return any(isinstance(t, Tensor) and t.is_meta for t in (argument if isinstance(argument, list) else [argument]))


def changed(case: Case) -> tuple[Any, ...]:
    arguments = [*case.sample.arguments()]
    if case.layer is None:
        arguments[case.argument] = case.change(arguments[case.argument])
    else:
        arguments[case.argument][case.layer] = case.change(arguments[case.argument][case.layer])
    return tuple(arguments)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_wrong_tensor(case: Case) -> None:
    refuse(case.sample.overload, changed(case), f"hisparse::{case.sample.op}: .*({case.blamed})")


@pytest.mark.parametrize("case", [case for case in cases() if SEEN_WHILE_TRACING.match(case.what)], ids=str)
def test_wrong_tensor_while_tracing(case: Case) -> None:
    """The fakes see dtypes and shapes, before anything is compiled."""
    on_meta = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("meta"), changed(case))
    with pytest.raises(RuntimeError, match=f"hisparse::{case.sample.op}: .*({case.blamed})"):
        case.sample.overload(*on_meta)


@pytest.mark.parametrize("op", OPS)
def test_wrong_block_sizes(op: str) -> None:
    sample = next(of(op))
    arguments = sample.arguments()
    names = [argument.name for argument in sample.overload._schema.arguments]
    for number, name in enumerate(names):
        if name == "block_size" or name.endswith("block_stride"):
            block_size = arguments[names.index("block_size")]
            for value in (0, -1, block_size - 1 if name != "block_size" else -block_size, 2**31, 2**62):
                refuse(sample.overload, (*arguments[:number], value, *arguments[number + 1 :]), "block")


def test_hot_table_must_name_a_block_for_every_slot() -> None:
    arguments = [*next(of("resolve")).arguments()]
    arguments[5] = arguments[5][:, :-1].contiguous()
    refuse(torch.ops.hisparse.resolve, tuple(arguments), "hot_table")


def test_staging_area_of_negative_size() -> None:
    arguments = next(of("stage_prefill")).arguments()
    refuse(torch.ops.hisparse.stage_prefill, (*arguments[:-1], -1), "staging_blocks")


POOL_OPS = ["gather_compact", "gather_plan", "mirror_rows"]


@pytest.mark.parametrize("op", [*POOL_OPS, "copy_blocks"])
def test_pools_of_different_layers(op: str) -> None:
    one, other, *rest = next(of(op)).arguments()
    refuse(getattr(torch.ops.hisparse, op), (one[:-1], other, *rest), "layers")
    refuse(getattr(torch.ops.hisparse, op), ([], [], *rest), "layers")


@pytest.mark.parametrize("op", [*POOL_OPS, "copy_blocks"])
def test_pools_of_overlapping_rows(op: str) -> None:
    one, other, *rest = next(of(op)).arguments()
    flat = torch.zeros(HOST_ROWS * WIDTH, dtype=torch.uint8)
    sliding = [flat.as_strided((layer.shape[0], WIDTH), (WIDTH // 2, 1)) for layer in other]
    refuse(getattr(torch.ops.hisparse, op), (one, sliding, *rest), "rows")


@pytest.mark.parametrize("op", POOL_OPS)
@pytest.mark.parametrize("case", ["same", "shifted", "columns", "wrapped", "strides"])
@pytest.mark.parametrize("layers", [1, LAYERS])
def test_source_and_destination_overlap(op: str, case: str, layers: int) -> None:
    rest = next(of(op)).arguments()[2:]
    apart = [torch.zeros(HOST_ROWS, WIDTH, dtype=torch.uint8) for _ in range(2 * layers)]
    whole = torch.zeros(HOST_ROWS + 8, 4 * WIDTH, dtype=torch.uint8)
    source, target = {
        "same": (whole[:HOST_ROWS, :WIDTH], whole[:HOST_ROWS, :WIDTH]),
        "shifted": (whole[:HOST_ROWS, :WIDTH], whole[8:, :WIDTH]),
        "columns": (whole[:HOST_ROWS, :WIDTH], whole[:HOST_ROWS, WIDTH - 1 : 2 * WIDTH - 1]),
        # Rows that begin in one row of the whole and end in the next.
        "wrapped": (whole[:HOST_ROWS, :WIDTH], whole.as_strided((HOST_ROWS, WIDTH), (4 * WIDTH, 1), 8 * WIDTH - 5)),
        # First rows apart, second ones not.
        "strides": (whole[:HOST_ROWS, :WIDTH], whole.view(-1, 2 * WIDTH)[1 : 1 + HOST_ROWS, :WIDTH]),
    }[case]
    one, other = [*apart[1:layers], source], [target, *apart[layers + 1 :]]
    refuse(getattr(torch.ops.hisparse, op), (one, other, *rest), "overlap")


def test_neighbouring_columns_are_no_overlap() -> None:
    """Layers of one token-major tensor share no byte, though each lies within the other's extent."""
    source, target, _ = named_rows(HOST_ROWS, 3, WIDTH)
    expected = source[4].clone()
    torch.ops.hisparse.gather_plan([source], [target], ints([4]), ints([9]))
    assert torch.equal(target[9], expected)


@pytest.mark.parametrize("op", [*POOL_OPS, "copy_blocks"])
def test_pools_beyond_int32_row_numbers(op: str) -> None:
    """Two GiB of address space, never touched."""
    rest = next(of(op)).arguments()[2:]
    fits, too_large = (torch.empty(2**31 + extra, 1, dtype=torch.uint8) for extra in (0, 1))
    small = torch.zeros(8, 1, dtype=torch.uint8)
    refuse_untouched = pytest.raises(RuntimeError, match="2\\^31 rows")
    with refuse_untouched:
        getattr(torch.ops.hisparse, op)([small], [too_large], *rest)
    nothing = tuple(r[:0] if isinstance(r, Tensor) else r for r in rest)
    if op != "gather_compact":
        getattr(torch.ops.hisparse, op)([small], [fits], *nothing)
