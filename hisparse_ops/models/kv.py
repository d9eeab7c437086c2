"""What models ask of a KV cache while N new tokens are computed."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class KV(Protocol):
    """The N tokens belong to one request, which shares its history (`SparseKV`), or to N requests, each with a
    history of its own (`BatchKV`). C is the length of the history, new tokens included; places behind a token's own
    position hold anything, and the layers mask them."""

    @property
    def prefill(self) -> bool:
        """True: attend through `context_rows`; False: through `selected_rows`."""

    @property
    def positions(self) -> Tensor:
        """[N] int64: positions of the new tokens."""

    def write(self, layer: int, rows: Tensor) -> None:
        """Store the new tokens' rows [N, width] of a layer, before the layer reads any."""

    def write_index(self, leader: int, rows: Tensor) -> None:
        """Store the new tokens' index keys [N, index_width]."""

    def index_rows(self, leader: int) -> Tensor:
        """Index keys in order of position: [C, index_width], or [N, C, index_width] for N requests."""

    def selected_rows(self, layer: int, topk: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows [N, K, width] at the positions that the unit's leader selected, and which are valid [N, K].

        A leader passes `topk` [N, K] int32 (causal, -1 = none), its followers None. Invalid rows are zeros."""

    def context_rows(self, layer: int) -> Tensor:
        """[C, width]: every row of a layer, in order of position."""


class SparseKV(KV, Protocol):
    """The cache of one request, in one forward pass of `length` new tokens at positions `start .. context - 1`."""

    @property
    def start(self) -> int:
        """Position of the first new token = tokens that are already cached."""

    @property
    def length(self) -> int:
        """New tokens of this pass: N."""

    @property
    def context(self) -> int:
        """`start + length`: C."""

    @property
    def top_k(self) -> int:
        """Positions that a query attends to, at most."""
