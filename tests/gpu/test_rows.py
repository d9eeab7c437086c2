"""Row copies on a GPU: every layout, alignment and kind of host memory; pools and offsets beyond 4 GiB."""

from __future__ import annotations

import pytest
import torch
from comparison import assert_equal
from torch import Tensor
from worlds import ints

from hisparse_ops import reference

pytestmark = pytest.mark.gpu

CANARY = 0xA5


def layers(
    rows: int, count: int, width: int, token_major: bool, shift: int, device: str
) -> tuple[Tensor, list[Tensor]]:
    """Layers of random bytes, `shift` bytes off the start of a tensor, with canaries before, between and behind."""
    gap = 4
    stride = count * (width + (0 if token_major else gap)) + 8
    memory = torch.randint(0, 256, (shift + rows * stride + 64,), dtype=torch.uint8).to(device)
    step = width if token_major else width + gap
    views = [memory[shift + i * step :].as_strided((rows, width), (stride, 1)) for i in range(count)]
    return memory, views


@pytest.mark.parametrize("width", [4, 12, 48, 352, 528, 576, 656, 1152, 5000])
@pytest.mark.parametrize("shift", [0, 4, 8])
@pytest.mark.parametrize("token_major", [True, False])
@pytest.mark.parametrize("op", ["gather_plan", "mirror_rows"])
def test_widths_and_alignments(op: str, token_major: bool, shift: int, width: int) -> None:
    host_memory, host = layers(70, 5, width, token_major, shift, "cpu")
    device_memory, device = layers(50, 5, width, not token_major, 4, "cuda")
    host_memory = host_memory.pin_memory()
    host = [host_memory.as_strided(h.shape, h.stride(), h.storage_offset()) for h in host]
    ends = {"host": 70, "device": 50}
    pairs = {name: [*torch.randperm(end)[:40].tolist(), -1, end, -3, 2**31 - 1] for name, end in ends.items()}
    pairs["host"][0] = 2**31 - 1
    copies = host_memory.clone(), device_memory.cpu()
    oracle = [
        [copy.as_strided(v.shape, v.stride(), v.storage_offset()) for v in views]
        for copy, views in zip(copies, (host, device), strict=True)
    ]
    if op == "gather_plan":
        torch.ops.hisparse.gather_plan(host, device, ints(pairs["host"], "cuda"), ints(pairs["device"], "cuda"))
        reference.gather_plan(*oracle, ints(pairs["host"]), ints(pairs["device"]))
    else:
        torch.ops.hisparse.mirror_rows(device, host, ints(pairs["device"], "cuda"), ints(pairs["host"], "cuda"))
        reference.mirror_rows(oracle[1], oracle[0], ints(pairs["device"]), ints(pairs["host"]))
    torch.cuda.synchronize()
    assert_equal((host_memory, device_memory), copies)


@pytest.mark.parametrize("count", [1, 3, 60, 64, 65, 130])
def test_many_layers(count: int) -> None:
    _, host = layers(20, count, 24, True, 0, "cuda")
    _, device = layers(20, count, 24, False, 0, "cuda")
    torch.ops.hisparse.gather_plan(host, device, ints([3, 19, 7], "cuda"), ints([0, 5, 19], "cuda"))
    for h, d in zip(host, device, strict=True):
        assert torch.equal(h[[3, 19, 7]], d[[0, 5, 19]])


def test_layers_of_several_tensors() -> None:
    """All layers of a model in one call: some groups of layers lie side by side, of different sizes."""
    host = [view for size in (4, 2, 6) for view in layers(30, size, 20, True, 0, "cuda")[1]]
    _, device = layers(30, 12, 20, False, 0, "cuda")
    torch.ops.hisparse.mirror_rows(device, host, ints([1, 29], "cuda"), ints([28, 0], "cuda"))
    for h, d in zip(host, device, strict=True):
        assert torch.equal(h[[28, 0]], d[[1, 29]])


class Alias:
    """The CUDA view of a piece of pinned memory."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes,), "typestr": "|u1", "data": (memory.data_ptr(), False), "version": 3,
        }  # fmt: skip


def test_alias_equals_pinned_tensor_and_may_not_meet_it() -> None:
    memory = torch.randint(0, 256, (64, 32), dtype=torch.uint8).pin_memory()
    alias = torch.as_tensor(Alias(memory), device="cuda").view(64, 32)
    found = [torch.zeros(8, 32, dtype=torch.uint8, device="cuda") for _ in range(2)]
    rows = ints([9, 63, 0], "cuda"), ints([7, 0, 3], "cuda")
    for host, device in zip((memory, alias), found, strict=True):
        torch.ops.hisparse.gather_plan([host], [device], *rows)
    assert torch.equal(*found)
    assert torch.equal(found[0][7].cpu(), memory[9])
    with pytest.raises(RuntimeError, match="overlap"):
        torch.ops.hisparse.mirror_rows([alias], [memory], *rows)


@pytest.mark.parametrize("op", ["gather_plan", "mirror_rows", "gather_compact", "copy_blocks"])
def test_pageable_memory_is_refused(op: str) -> None:
    pageable = [torch.zeros(64, 16, dtype=torch.uint8)]
    device = [torch.zeros(64, 16, dtype=torch.uint8, device="cuda")]
    one = ints([1], "cuda")
    rest = {
        "gather_plan": (one, one),
        "mirror_rows": (one, one),
        "gather_compact": (one.view(1, 1), one.view(1, 1), ints([0, 1], "cuda"), one),
        "copy_blocks": (one, one, 4, 4, 4),
    }[op]
    name = {"mirror_rows": "host", "copy_blocks": "src"}.get(op, "host")
    pools = (device, pageable) if op == "mirror_rows" else (pageable, device)
    with pytest.raises(RuntimeError, match=f"{name} must .* pinned"):
        getattr(torch.ops.hisparse, op)(*pools, *rest)
    torch.cuda.synchronize()
    assert not device[0].any() and not pageable[0].any()


def test_beyond_four_gib() -> None:
    """A host pool of 5 GiB, a device pool of 5 GiB; rows on both sides of 2^31 and 2^32 bytes."""
    width, size = 4096, 5 << 30
    rows = size // width
    host = torch.empty(rows, width, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(rows, width, dtype=torch.uint8, device="cuda")
    picked = [0, 2**31 // width - 1, 2**31 // width, 2**32 // width - 1, 2**32 // width, rows - 1]
    for i, row in enumerate(picked):
        host[row] = i + 1
    torch.ops.hisparse.gather_plan([host], [device], ints(picked, "cuda"), ints(picked[::-1], "cuda"))
    for i, row in enumerate(picked[::-1]):
        assert (device[row] == i + 1).all()
    torch.ops.hisparse.mirror_rows([device], [host], ints(picked, "cuda"), ints(picked, "cuda"))
    torch.cuda.synchronize()
    for i, row in enumerate(picked[::-1]):
        assert (host[row] == i + 1).all()
    pages = ints([2**31 // width // 64, 2**32 // width // 64, rows // 64 - 1], "cuda")
    torch.ops.hisparse.copy_blocks([host], [device], pages, pages, 64, 64, 64)
    for page in pages.tolist():
        assert torch.equal(device[page * 64 : page * 64 + 64].cpu(), host[page * 64 : page * 64 + 64])


@pytest.mark.parametrize("requests", [1, 7, 64, 513, 1024])
def test_compact_plans_of_large_batches(requests: int) -> None:
    draw = torch.Generator().manual_seed(requests)
    columns, width = 20, 32
    rows = torch.randint(0, 4, (requests,), generator=draw)
    starts = torch.cat((torch.zeros(1), rows.cumsum(0))).int()
    total = int(starts[-1]) + 2
    host = torch.randint(0, 256, (5000, width), generator=draw, dtype=torch.uint8)
    device = torch.zeros(total * columns, width, dtype=torch.uint8)
    host_rows = torch.randint(-1, 5010, (total, columns), generator=draw, dtype=torch.int32)
    device_rows = torch.randperm(total * columns, generator=draw).int().view(total, columns)
    counts = torch.randint(-3, 90, (requests,), generator=draw, dtype=torch.int32)
    for backwards in (False, True):
        if backwards:
            starts = starts[torch.randperm(requests + 1, generator=draw)]
        plan = host_rows, device_rows, starts, counts
        found = device.cuda()
        torch.ops.hisparse.gather_compact([host.cuda()], [found], *(t.cuda() for t in plan))
        torch.ops.hisparse.gather_compact([host], [device], *plan)
        assert torch.equal(found.cpu(), device)
