"""The host pool's tensors and what is cut from them, on the host or as the device sees them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hisparse_ops.memory.layout import Layout, LayoutError


def elements(num_bytes: int, dtype: torch.dtype, name: str) -> int:
    """`num_bytes` counted in elements. Raises `LayoutError` naming the size that `dtype` does not divide."""
    if num_bytes % dtype.itemsize:
        raise LayoutError(f"{name}={num_bytes} is not a whole number of {dtype} elements")
    return num_bytes // dtype.itemsize


class HostViews:
    """One tensor [host_blocks * block_size, len(unit.layers) * width] per unit: token-major, a token's
    rows of all layers of the unit side by side. A layer is a strided column view of its unit's tensor."""

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor]) -> None:
        self._layout = layout
        self._tensors = tuple(tensors)
        self._columns = [
            tensor.chunk(len(unit.layers), dim=1) for tensor, unit in zip(tensors, layout.units, strict=True)
        ]

    def unit_tensor(self, unit: int) -> torch.Tensor:
        """[host_blocks * block_size, len(unit.layers) * width]."""
        return self._tensors[unit]

    def unit_rows(self, unit: int) -> list[torch.Tensor]:
        """The unit's layers, each [host_blocks * block_size, width]."""
        return list(self._columns[unit])

    def layer_rows(self, layer: int) -> torch.Tensor:
        """[host_blocks * block_size, width]; row `block * block_size + offset`."""
        unit = self._layout.unit_of(layer)
        return self._columns[unit][self._layout.units[unit].layers.index(layer)]
