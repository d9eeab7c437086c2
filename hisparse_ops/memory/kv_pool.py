"""The GPU pool: one tensor, many views.

| view | shape | over |
|---|---|---|
| layer | [rows, width], row `block * block_stride + offset` | the layer's slot of every block |
| index | [num_blocks, block_size, index_width] | the leader's slot of every block |

Views overlap; that two leases never hold the same block is what keeps them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hisparse_ops.memory.layout import Layout
from hisparse_ops.memory.views import elements, layer_rows

_CPU_IS_FULL = ("can't allocate memory", "Storage size calculation overflowed")  # torch has no class for it


class KVPool:
    """Owns `layout.device_bytes` on `device`. Bytes are as they come, only the null block is zeros:
    a masked entry may be pointed at it, and garbage there could be a NaN.

    Raises `LayoutError` if `row_bytes` or `index_row_bytes` is no whole number of `dtype` elements, MemoryError if
    the device has too little left.
    """

    def __init__(self, layout: Layout, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.width = elements(layout.spec.row_bytes, dtype, "row_bytes")
        self.index_width = elements(layout.spec.index_row_bytes, dtype, "index_row_bytes")
        self.storage = _allocate(layout, dtype, torch.device(device))
        self._null_block().zero_()
        # Made once: a forward pass asks for them again and again.
        self._layers = [layer_rows(self.storage, layout, self.width, layer) for layer in range(layout.spec.num_layers)]
        self._index = {leader: self._index_view(leader) for leader in layout.spec.leaders}

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    @property
    def device(self) -> torch.device:
        return self.storage.device

    @property
    def bytes(self) -> int:
        return self.storage.nbytes

    def layer_rows(self, layer: int) -> torch.Tensor:
        """[rows, width]: the flat row view of one layer, see `views.layer_rows`."""
        self.layout.slot_of(layer)  # refuses a layer that is not there, -1 too
        return self._layers[layer]

    def unit_rows(self, unit: int) -> list[torch.Tensor]:
        """`layer_rows` of all layers of a unit."""
        return [self._layers[layer] for layer in self.layout.units[unit].layers]

    def index_rows(self, leader: int) -> torch.Tensor:
        """[num_blocks, block_size, index_width]: the index keys of one leader."""
        self.layout.index_slot_of(leader)
        return self._index[leader]

    def _null_block(self) -> torch.Tensor:
        return self.storage[: self.layout.block_bytes // self.dtype.itemsize]

    def _index_view(self, leader: int) -> torch.Tensor:
        layout = self.layout
        return self.storage.as_strided(
            (layout.num_blocks, layout.block_size, self.index_width),
            (len(self._null_block()), self.index_width, 1),
            layout.index_slot_of(leader) * layout.block_size * self.index_width,
        )


@contextmanager
def allocating(does_not_fit: str) -> Iterator[None]:
    """MemoryError with this sentence where torch finds too little memory; what else goes wrong stays what it is."""
    try:
        yield
    except RuntimeError as error:
        full = isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _CPU_IS_FULL)
        if not full:
            raise
        raise MemoryError(does_not_fit) from error


def _allocate(layout: Layout, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    with allocating(f"the device pool does not fit: device_bytes={layout.device_bytes} on {device}"):
        return torch.empty(layout.device_bytes // dtype.itemsize, dtype=dtype, device=device)
