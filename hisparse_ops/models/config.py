"""The sizes of the compact decoder, and the memory layout they need."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hisparse_ops.memory.layout import ModelSpec


@dataclass(frozen=True)
class DecoderConfig:
    """A KV row is a latent and its rope key, side by side. One layer in `unit_layers` leads: it has the indexer,
    and the layers up to the next leader reuse what it selected.

    Raises ValueError naming the field: sizes are at least 1, `rope_dim` is even and fits into `index_dim`, `layers`
    are whole units.
    """

    vocab_size: int = 512
    hidden: int = 128
    layers: int = 8
    unit_layers: int = 4
    heads: int = 8
    nope_dim: int = 16  # the part of a query that is compared with latents
    rope_dim: int = 16  # the part of queries and keys that is rotated by their position
    latent_dim: int = 48
    value_dim: int = 16
    index_heads: int = 32
    index_dim: int = 32
    mlp: int = 256
    top_k: int = 64
    max_positions: int = 1 << 15

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if self.rope_dim % 2 or self.rope_dim > self.index_dim:
            raise ValueError(f"rope_dim must be even and at most index_dim = {self.index_dim}, got {self.rope_dim}")
        if self.layers % self.unit_layers:
            raise ValueError(f"layers must be a multiple of unit_layers = {self.unit_layers}, got {self.layers}")

    @property
    def width(self) -> int:
        """Elements of a KV row."""
        return self.latent_dim + self.rope_dim

    @property
    def leaders(self) -> tuple[int, ...]:
        return tuple(range(0, self.layers, self.unit_layers))

    def spec(self, dtype: torch.dtype, block_size: int = 64, hot_slots: int | None = None) -> ModelSpec:
        """What memory planning must know. Raises `LayoutError` for sizes that no layout serves."""
        return ModelSpec(
            num_layers=self.layers,
            leaders=self.leaders,
            row_bytes=self.width * dtype.itemsize,
            index_row_bytes=self.index_dim * dtype.itemsize,
            block_size=block_size,
            top_k=self.top_k,
            hot_slots=hot_slots,
        )
