"""The host pool: one mapping, one token-major tensor per unit, pinned exactly where there is a GPU.

| held | from | until |
|---|---|---|
| memory | construction, after the budget was asked | `close` |
| registrations | construction, if pinned | `close`, after the device has come to rest |
| tensors | construction | `close`; views handed out must not be used after it |
"""

from __future__ import annotations

import mmap
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch

from hisparse_ops.memory import host_budget
from hisparse_ops.memory.layout import Layout, LayoutError
from hisparse_ops.memory.mapping import Mapping, create_shared, join_shared, private_mapping
from hisparse_ops.memory.pinning import REGISTRATION_LIMIT, CudaRegistrar, PinnedMemory, PinningError
from hisparse_ops.memory.ranges import Extent, plan_ranges
from hisparse_ops.memory.views import HostViews, elements

JOIN_TIMEOUT_SECONDS = 30.0


class HostPoolClosedError(RuntimeError):
    """The host pool was used after `close`."""


class Shared(NamedTuple):
    """One pool for all ranks of a machine, under `path`. The creator is the one rank that writes it."""

    path: Path
    creator: bool
    timeout_seconds: float = JOIN_TIMEOUT_SECONDS


class _DeviceBytes:
    """Tells torch of `size` bytes at a device address; torch keeps this object, and so the memory, alive."""

    def __init__(self, address: int, size: int, memory: memoryview) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class HostPool:
    """Owns `layout.host_bytes` of host memory, all zeros at first.

    `pin`: register the memory with the GPU; None = if there is one. `shared`: one mapping for several
    processes instead of a private one. `writer` tells whether this process is the one that copies rows
    into it.

    Raises `HostMemoryError` before anything is taken if the machine or the container has too little
    left, `LayoutError` for a layout without a host tier or a `dtype` that does not fit, `MappingError`
    for a shared region, `PinningError` with code and size if the driver refuses. A failed start leaves
    nothing behind.
    """

    def __init__(
        self,
        layout: Layout,
        dtype: torch.dtype,
        pin: bool | None = None,
        shared: Shared | None = None,
    ) -> None:
        if layout.host_blocks == 0:
            raise LayoutError("host_bytes=0: this layout has no host tier")
        self.layout = layout
        self.dtype = dtype
        self.width = elements(layout.spec.row_bytes, dtype, "row_bytes")
        self._mapping = _mapping(layout.host_bytes, shared)
        self._pinned: PinnedMemory | None = None
        try:
            if torch.cuda.is_available() if pin is None else pin:
                self._pinned = _pin(layout, self._mapping)
        except BaseException:
            self._mapping.close()
            raise
        self._views: HostViews | None = HostViews(layout, _unit_tensors(layout, dtype, self._mapping))

    @property
    def views(self) -> HostViews:
        """The pool's tensors. Raises `HostPoolClosedError` after `close`."""
        if self._views is None:
            raise HostPoolClosedError("the host pool is closed")
        return self._views

    @property
    def pinned(self) -> bool:
        return self._pinned is not None

    @property
    def writer(self) -> bool:
        return self._mapping.writer

    @property
    def bytes(self) -> int:
        return self._mapping.size

    def unit_tensor(self, unit: int) -> torch.Tensor:
        """[host_blocks * block_size, len(unit.layers) * width]."""
        return self.views.unit_tensor(unit)

    def unit_rows(self, unit: int) -> list[torch.Tensor]:
        """The unit's layers, each a column view [host_blocks * block_size, width]."""
        return self.views.unit_rows(unit)

    def layer_rows(self, layer: int) -> torch.Tensor:
        """[host_blocks * block_size, width]: a column view."""
        return self.views.layer_rows(layer)

    def device_view(self) -> HostViews:
        """The same memory as CUDA tensors, which compiled CUDA graphs need. Raises `PinningError` if the
        pool is not pinned, `HostPoolClosedError` after `close`."""
        views = self.views
        if self._pinned is None:
            raise PinningError("pin: only a pinned host pool has a device view")
        return HostViews(
            self.layout,
            [self._alias(self._pinned, views.unit_tensor(unit)) for unit in range(len(self.layout.units))],
        )

    def _alias(self, pinned: PinnedMemory, tensor: torch.Tensor) -> torch.Tensor:
        address = pinned.device_address(tensor.data_ptr(), tensor.nbytes)
        alias = torch.as_tensor(_DeviceBytes(address, tensor.nbytes, self._mapping.view), device="cuda")
        return alias.view(self.dtype).view(tensor.shape)

    def close(self) -> None:
        """Gives the memory back now; idempotent. Views handed out before must not be used any more."""
        if self._views is None:
            return
        self._views = None
        if self._pinned is not None:
            self._pinned.release()
            self._pinned = None
        self._mapping.close()

    def __enter__(self) -> HostPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _mapping(size: int, shared: Shared | None) -> Mapping:
    if shared is not None and not shared.creator:
        return join_shared(shared.path, size, shared.timeout_seconds)
    host_budget.require(size)
    return private_mapping(size) if shared is None else create_shared(shared.path, size)


def _unit_tensors(layout: Layout, dtype: torch.dtype, mapping: Mapping) -> list[torch.Tensor]:
    """Each in a storage of its own: torch.compile misreads the column views of a tensor that begins inside one."""
    rows = layout.host_blocks * layout.block_size
    sizes = [rows * len(unit.layers) * layout.spec.row_bytes for unit in layout.units]
    starts = accumulate(sizes, initial=0)
    return [
        torch.frombuffer(mapping.view, dtype=dtype, count=size // dtype.itemsize, offset=start).view(rows, -1)
        for start, size in zip(starts, sizes, strict=False)
    ]


def _pin(layout: Layout, mapping: Mapping) -> PinnedMemory:
    extents: list[Extent] = []
    start = 0
    for number, unit in enumerate(layout.units):
        extents.append(
            Extent(f"host tensor of unit {number}", start, len(unit.layers) * layout.page_bytes, layout.host_blocks)
        )
        start = extents[-1].end
    ranges = plan_ranges(extents, mapping.size, mmap.PAGESIZE, REGISTRATION_LIMIT)
    base = torch.frombuffer(mapping.view, dtype=torch.uint8).data_ptr()
    return PinnedMemory(CudaRegistrar(), base, ranges)
