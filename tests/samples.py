"""Sample arguments of every op: usual and edge cases. `test_contract.py` puts each through the same table of checks,
so an op added here is checked like its siblings; one that is missing here fails a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from worlds import block_major, ints, named_rows, random_world

from hisparse_ops import reference

LAYERS = 3
WIDTH = 12
BLOCK = 4
HOST_ROWS = 96
DEVICE_BLOCKS = 8
STRIDE = LAYERS * BLOCK


@dataclass(frozen=True)
class Sample:
    op: str
    case: str
    build: Callable[[str], tuple[Any, ...]]

    def arguments(self, device: str = "cpu") -> tuple[Any, ...]:
        """Fresh arguments of `torch.ops.hisparse.<op>`."""
        return self.build(device)

    @property
    def overload(self) -> torch._ops.OpOverload:
        return getattr(torch.ops.hisparse, self.op).default

    @property
    def reference(self) -> Callable[..., Any]:
        return getattr(reference, self.op)

    @property
    def written(self) -> list[int]:
        """Numbers of the arguments that the op changes, as its schema says."""
        arguments = self.overload._schema.arguments
        return [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]

    def __str__(self) -> str:
        return f"{self.op}-{self.case}"


SAMPLES: list[Sample] = []
OPS = sorted(name.removeprefix("hisparse::") for name in torch._C._dispatch_get_all_op_names() if "hisparse::" in name)


def sample(op: str, case: str) -> Callable[[Callable[[str], tuple[Any, ...]]], None]:
    return lambda build: SAMPLES.append(Sample(op, case, build))


def _resolve(device: str, **world: Any) -> tuple[Any, ...]:
    return random_world(seed=1, device=device, **world).arguments()


for case, world in {
    "decode": {},
    "verification": {"query_rows": (3, 1, 4), "padding_rows": 2},
    "padding-requests": {"query_rows": (1, -1, 2, -2), "padding_rows": 3},
    "no-requests": {"query_rows": (), "padding_rows": 2},
    "no-rows": {"query_rows": ()},
    "no-columns": {"columns": 0},
    "one": {"query_rows": (1,), "columns": 1, "slots": 1, "pages": 1, "mapped": 1, "leased": 1, "resident": 0},
    "all-resident": {"resident": 1.0},
    "all-misses": {"resident": 0, "cached": 0, "mapped": 1, "leased": 1, "slots": 32},
    "evictions": {"resident": 0, "cached": 1, "mapped": 1, "leased": 1, "query_rows": (2, 2)},
    "more-misses-than-slots": {"resident": 0, "mapped": 1, "leased": 1, "columns": 24, "slots": 5},
    "nothing-leased": {"leased": 0},
    "nothing-mapped": {"mapped": 0, "resident": 0},
    "odd-sizes": {"slots": 33, "columns": 31, "pages": 13, "block_size": 5},
}.items():
    sample("resolve", case)(partial(_resolve, **world))


@sample("resolve", "impossible-state-rows")
def _(device: str) -> tuple[Any, ...]:
    """One beyond the tensors, one named twice."""
    topk, starts, states, *rest = _resolve(device, query_rows=(1, 2, 1, 1))
    first = int(states[0])
    return (topk, starts, ints([first, 99, first, int(states[3])], device), *rest)


@sample("resolve", "starts-that-run-backwards")
def _(device: str) -> tuple[Any, ...]:
    topk, _, *rest = _resolve(device, query_rows=(1, 2, 1, 1))
    return (topk, ints([1, 4, 2, 5, 99], device), *rest)


def _pools(device: str) -> tuple[list[Tensor], list[Tensor]]:
    """Host layers full of names; device layers full of a value that is no name."""
    return (
        named_rows(HOST_ROWS, LAYERS, WIDTH, device),
        block_major(DEVICE_BLOCKS, BLOCK, LAYERS, WIDTH, fill=255, device=device),
    )


def _separate_pools(device: str, dtype: torch.dtype, width: int) -> tuple[list[Tensor], list[Tensor]]:
    """The same, of any dtype, and every layer a tensor of its own."""
    host = [layer.contiguous().view(dtype) for layer in named_rows(HOST_ROWS, 2, width * dtype.itemsize, device)]
    return host, [torch.zeros(DEVICE_BLOCKS * STRIDE, width, dtype=dtype, device=device) for _ in range(2)]


@sample("gather_compact", "plan")
def _(device: str) -> tuple[Any, ...]:
    host_rows = [[7, 3, 90], [41, -1, -1], [5, 6, -1], [-1, -1, -1]]
    device_rows = [[12, 1, 50], [26, -1, -1], [3, 2, -1], [-1, -1, -1]]
    plan = (ints(host_rows, device), ints(device_rows, device), ints([0, 2, 3, 4], device), ints([4, 2, 0], device))
    return (*_pools(device), *plan)


@sample("gather_compact", "counts-too-large")
def _(device: str) -> tuple[Any, ...]:
    """Entries of the next request, and rows beyond the last, must stay where they are."""
    host_rows, device_rows = ints([[7, 3], [5, 6], [8, 9]], device), ints([[12, 1], [3, 2], [0, 24]], device)
    return (*_pools(device), host_rows, device_rows, ints([0, 1, 2], device), ints([99, -5], device))


@sample("gather_compact", "empty")
def _(device: str) -> tuple[Any, ...]:
    none = ints([], device)
    return (*_pools(device), none.reshape(0, 4), none.reshape(0, 4), ints([0], device), none)


def _pairs(source_end: int, target_end: int, device: str) -> tuple[Tensor, Tensor]:
    """Good pairs, pairs with a negative side, and pairs on and beyond the ends. Targets are apart in every layer of
    a pool whose layers are views of the same blocks."""
    source = [0, 5, source_end - 1, -1, 4, source_end, 9, source_end + 7, -3, 2**31 - 1]
    target = [3, 0, target_end - 1, 6, -1, 10, target_end, target_end + 7, -(2**31), 13]
    return ints(source, device), ints(target, device)


DEVICE_ROWS = (DEVICE_BLOCKS - 1) * STRIDE + BLOCK


@sample("gather_plan", "pairs")
def _(device: str) -> tuple[Any, ...]:
    return (*_pools(device), *_pairs(HOST_ROWS, DEVICE_ROWS, device))


@sample("gather_plan", "any-shape")
def _(device: str) -> tuple[Any, ...]:
    shape = (2, 1, 5)
    return (*_pools(device), *(t.reshape(shape) for t in _pairs(HOST_ROWS, DEVICE_ROWS, device)))


@sample("gather_plan", "empty")
def _(device: str) -> tuple[Any, ...]:
    return (*_pools(device), ints([], device), ints([], device))


@sample("gather_plan", "bfloat16")
def _(device: str) -> tuple[Any, ...]:
    return (*_separate_pools(device, torch.bfloat16, 9), *_pairs(HOST_ROWS, DEVICE_BLOCKS * STRIDE, device))


@sample("mirror_rows", "pairs")
def _(device: str) -> tuple[Any, ...]:
    host, rows = _pools(device)
    return (rows, host, *_pairs(DEVICE_ROWS, HOST_ROWS, device))


@sample("mirror_rows", "scalar-shape")
def _(device: str) -> tuple[Any, ...]:
    host, rows = _pools(device)
    return (rows, host, ints(5, device), ints(17, device))


def _slots(device: str) -> Tensor:
    return random_world(seed=2, device=device, cached=0.8).hot.slot_rows


@sample("invalidate", "pairs")
def _(device: str) -> tuple[Any, ...]:
    slots = _slots(device)
    states, cached = (slots >= 0).nonzero()[::3].unbind(1)
    host_rows = slots[states, cached].tolist()
    # Also rows that nobody caches, and numbers that mean nothing.
    states_and_rows = [*zip(states.tolist(), host_rows, strict=True), (0, 1), (-1, host_rows[0]), (99, 4100), (1, -1)]
    return (slots, *ints(states_and_rows, device).T.contiguous())


@sample("invalidate", "empty")
def _(device: str) -> tuple[Any, ...]:
    return (_slots(device), ints([], device), ints([], device))


@sample("invalidate_blocks", "blocks")
def _(device: str) -> tuple[Any, ...]:
    slots = _slots(device)
    cached = (slots[slots >= 0] // BLOCK).unique()
    return (slots, ints([*cached[::2].tolist(), 7, -1, 2**31 - 1], device), BLOCK)


@sample("invalidate_blocks", "empty")
def _(device: str) -> tuple[Any, ...]:
    return (_slots(device), ints([], device), BLOCK)


@sample("reset_rows", "rows")
def _(device: str) -> tuple[Any, ...]:
    hot = random_world(seed=3, device=device).hot
    return (hot.slot_rows, hot.slot_stamps, hot.clock, ints([2, -1, 0, 99, 2], device))


@sample("reset_rows", "empty")
def _(device: str) -> tuple[Any, ...]:
    hot = random_world(seed=3, device=device).hot
    return (hot.slot_rows, hot.slot_stamps, hot.clock, ints([], device))


@sample("translate", "positions")
def _(device: str) -> tuple[Any, ...]:
    tables = random_world(seed=4, device=device).tables
    beyond = tables.host.shape[1] * BLOCK
    positions = [0, 3, 4, 5, beyond - 1, beyond, beyond + 1, 2**31 - 1, -1, -(2**31), 2, 2, 2]
    states = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, -1, 2**31 - 1]
    return (ints(positions, device), ints(states, device), tables.resident, BLOCK, STRIDE)


@sample("translate", "empty")
def _(device: str) -> tuple[Any, ...]:
    return (ints([], device), ints([], device), ints([[7]], device), BLOCK, BLOCK)


@sample("copy_blocks", "restore")
def _(device: str) -> tuple[Any, ...]:
    host, rows = _pools(device)
    last_host, last_device = HOST_ROWS // BLOCK - 1, DEVICE_BLOCKS - 1
    source = [9, last_host, 0, 3, last_host + 1, 5, -1, 2**31 - 1]
    target = [2, last_device, 3, 0, 4, last_device + 1, 5, 6]
    return (host, rows, ints(source, device), ints(target, device), BLOCK, BLOCK, STRIDE)


@sample("copy_blocks", "contiguous")
def _(device: str) -> tuple[Any, ...]:
    host, rows = _separate_pools(device, torch.int16, 6)
    return (host, rows, ints([3, 4, 8], device), ints([5, 1, 2], device), BLOCK, 2 * BLOCK, BLOCK)


@sample("copy_blocks", "empty")
def _(device: str) -> tuple[Any, ...]:
    return (*_pools(device), ints([], device), ints([], device), BLOCK, BLOCK, STRIDE)


@sample("stage_prefill", "contexts")
def _(device: str) -> tuple[Any, ...]:
    tables = random_world(seed=5, device=device, mapped=0.8).tables
    lengths, states = [13, 0, 99, 1, 8, -4], [1, 2, 0, -1, 4, 3]
    return (ints(lengths, device), ints(states, device), tables.resident, tables.host, BLOCK, 20)


@sample("stage_prefill", "area-too-small")
def _(device: str) -> tuple[Any, ...]:
    tables = random_world(seed=5, device=device).tables
    return (ints([24, 24], device), ints([3, 0], device), tables.resident, tables.host, BLOCK, 7)


@sample("stage_prefill", "empty")
def _(device: str) -> tuple[Any, ...]:
    tables = random_world(seed=5, device=device).tables
    return (ints([], device), ints([], device), tables.resident, tables.host, BLOCK, 0)


def of(op: str) -> Iterator[Sample]:
    """The samples of one op."""
    return (sample for sample in SAMPLES if sample.op == op)
