"""What the fakes of `ops.py` check, so that a wrong shape, dtype or device surfaces while tracing.

The compiled halves check the same and more (strides, overlap, sizes) on every call. Every failure is a
RuntimeError that names the argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

INDEX = torch.int32
COUNT = torch.int64


def tensor(name: str, value: Tensor, dtype: torch.dtype, *shape: int | None) -> torch.Size:
    """Checks dtype and shape (None = any size) and returns the shape."""
    torch._check(
        value.dtype == dtype and value.dim() == len(shape),
        lambda: f"{name} must have dtype {dtype} and {len(shape)} dimensions, got {value.dtype} and {value.dim()}",
    )
    for dim, size in enumerate(shape):
        if size is not None:
            torch._check(
                value.shape[dim] == size,
                lambda dim=dim, size=size: f"{name} must have size {size} in dimension {dim}, got {value.shape[dim]}",
            )
    return value.shape


def same_shape(**values: Tensor) -> torch.Size:
    """Checks that index tensors of any shape agree in it, and returns it."""
    (first_name, first), *others = values.items()
    for name, value in values.items():
        torch._check(value.dtype == INDEX, lambda name=name, value=value: f"{name} must be int32, got {value.dtype}")
    for name, value in others:
        torch._check(
            value.shape == first.shape,
            lambda name=name, value=value: (
                f"{name} must have the shape of {first_name}, {tuple(first.shape)}, got {tuple(value.shape)}"
            ),
        )
    return first.shape


def same_device(*values: Tensor) -> None:
    """Checks that all tensors of the call lie on one device."""
    device = values[0].device
    for value in values[1:]:
        torch._check(
            value.device == device,
            lambda value=value: f"all tensors must be on {device}, got one on {value.device}",
        )


def pools(layers: dict[str, Sequence[Tensor]], *indices: Tensor) -> None:
    """Checks the two pools of a copy, by name, and that they lie where the indices do. In a CUDA call either
    pool may also lie in (pinned) CPU memory."""
    same_device(*indices)
    here = indices[0].device
    (first_name, first), (second_name, second) = layers.items()
    torch._check(
        len(first) == len(second) and len(first) > 0,
        lambda: f"{first_name} and {second_name} must hold the same layers, got {len(first)} and {len(second)}",
    )
    sample = first[0]
    for name, pool in layers.items():
        for layer in pool:
            torch._check(layer.dim() == 2, lambda n=name, t=layer: f"{n} must be [rows, width], got {tuple(t.shape)}")
            torch._check(
                layer.dtype == sample.dtype and layer.shape[1] == sample.shape[1],
                lambda n=name, t=layer: (
                    f"pools must agree in dtype and width ({sample.dtype}, {sample.shape[1]}): "
                    f"{n} has {t.dtype}, {t.shape[1]}"
                ),
            )
            torch._check(
                layer.shape[0] == pool[0].shape[0],
                lambda n=name, t=layer: f"the layers of {n} must have equal numbers of rows, got {t.shape[0]}",
            )
            torch._check(
                layer.device == here or (here.type == "cuda" and layer.device.type == "cpu"),
                lambda n=name, t=layer: f"{n} must lie on {here} as the indices do, got {t.device}",
            )


def block_sizes(block_size: int, *strides: int) -> None:
    """Checks that blocks are not empty and do not overlap."""
    torch._check(block_size > 0, lambda: f"block_size must be positive, got {block_size}")
    for stride in strides:
        torch._check(
            stride >= block_size,
            lambda stride=stride: f"a block stride must be at least block_size ({block_size}), got {stride}",
        )


def hot_region(slots: int, hot_table: Tensor, block_size: int) -> None:
    """Checks that the hot table has a block for every slot."""
    torch._check(
        slots <= hot_table.shape[1] * block_size,
        lambda: f"hot_table must name blocks for all {slots} hot slots, has room for {hot_table.shape[1] * block_size}",
    )


def staging(blocks: int) -> None:
    """Checks the size of a staging area."""
    torch._check(blocks >= 0, lambda: f"staging_blocks must not be negative, got {blocks}")
