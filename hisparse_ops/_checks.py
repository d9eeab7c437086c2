"""What the fakes of `ops.py` check, so that a wrong shape, dtype or device surfaces while tracing.

The compiled halves check the same and more (strides, overlap) on every call, in the same words. Every failure is
a RuntimeError that names the argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_ROWS = 2**31


class Checks:
    """The checks of one call, all against the device of one tensor."""

    def __init__(self, op: str, anchor: Tensor) -> None:
        self.op = op
        self.device = anchor.device

    def require(self, holds: bool, message: str) -> None:
        torch._check(holds, lambda: f"hisparse::{self.op}: {message}")

    def tensor(self, name: str, value: Tensor, *shape: int | None, dtype: torch.dtype = torch.int32) -> torch.Size:
        """Checks dtype, device and shape (None = any size) and returns the shape."""
        self.require(value.dtype == dtype, f"{name} must have dtype {dtype}, got {value.dtype}")
        self.require(value.dim() == len(shape), f"{name} must have {len(shape)} dimensions, got {value.dim()}")
        self.require(value.device == self.device, f"{name} must be on the same device as the other arguments")
        for dim, size in enumerate(shape):
            if size is not None:
                got = value.shape[dim]
                self.require(got == size, f"{name} must have size {size} in dimension {dim}, got {got}")
        return value.shape

    def pairs(self, source_name: str, source: Tensor, destination_name: str, destination: Tensor) -> None:
        """Checks two index tensors of any equal shape."""
        self.tensor(source_name, source, *source.shape)
        self.tensor(destination_name, destination, *source.shape)

    def pools(
        self, source_name: str, source: Sequence[Tensor], destination_name: str, destination: Sequence[Tensor]
    ) -> None:
        """Checks the two pools of a copy."""
        self.require(
            len(source) == len(destination) and len(source) > 0,
            f"{source_name} and {destination_name} must hold the same layers, got {len(source)} and {len(destination)}",
        )
        self._pool(source_name, source, source[0])
        self._pool(destination_name, destination, source[0])

    def _pool(self, name: str, layers: Sequence[Tensor], sample: Tensor) -> None:
        """A pool lies beside the indices, or in CPU memory that a GPU reads."""
        for layer in layers:
            dims = layer.dim()
            self.require(dims == 2, f"{name} must hold [rows, width] tensors, got {dims} dimensions")
            (rows, width), dtype, device = layer.shape, layer.dtype, layer.device
            expected = sample.shape[1]
            self.require(
                dtype == sample.dtype, f"pools must agree in dtype: {name} has {dtype}, expected {sample.dtype}"
            )
            self.require(width == expected, f"pools must agree in width: {name} has {width}, expected {expected}")
            first = layers[0].shape[0]
            self.require(rows == first, f"the layers of {name} must have equal numbers of rows, got {first} and {rows}")
            self.require(rows <= MAX_ROWS, f"{name} must have at most 2^31 rows, got {rows}")
            self.require(
                device == self.device or (self.device.type == "cuda" and device.type == "cpu"),
                f"{name} must be on the same device as the indices",
            )

    def block_sizes(self, block_size: int, *strides: int) -> None:
        """Checks that blocks are not empty, do not overlap, and can be counted in int32."""
        self.require(block_size > 0, f"block_size must be positive, got {block_size}")
        for stride in (block_size, *strides):
            self.require(
                stride >= block_size, f"a block stride must be at least block_size ({block_size}), got {stride}"
            )
            self.require(stride < MAX_ROWS, f"a block stride must stay below 2^31, got {stride}")
