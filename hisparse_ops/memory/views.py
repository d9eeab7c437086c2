"""What is cut from the pools' tensors: layers of the GPU pool, and units and layers of the host pool, as the host
or the device sees them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hisparse_ops.memory.layout import Layout, LayoutError


def elements(num_bytes: int, dtype: torch.dtype, name: str) -> int:
    """`num_bytes` counted in elements. Raises `LayoutError` naming the size that `dtype` does not divide."""
    if num_bytes % dtype.itemsize:
        raise LayoutError(f"{name}={num_bytes} is not a whole number of {dtype} elements")
    return num_bytes // dtype.itemsize


def layer_rows(storage: torch.Tensor, layout: Layout, width: int, layer: int) -> torch.Tensor:
    """[rows, width]: the flat row view of one layer of the GPU pool `storage` [elements]. It ends with the layer's
    page in the last block, so that the views of all layers have equally many rows."""
    first = layout.slot_of(layer) * layout.block_size
    rows = (layout.num_blocks - 1) * layout.block_stride + layout.block_size
    return storage.view(-1, width)[first : first + rows]


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
