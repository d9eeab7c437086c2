"""What a model touches in one forward pass: the new tokens of one request and its history."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class SparseKV(Protocol):
    """The KV cache of one request while `length` tokens at positions `start .. context-1` are computed.

    T = length; rows are of the cache's dtype, [T, width] or, for the indexer, [T, index_width].
    A layer's new rows are written before any row of that layer is read.
    """

    @property
    def start(self) -> int:
        """Position of the first new token = tokens that are already cached."""

    @property
    def length(self) -> int:
        """New tokens of this pass."""

    @property
    def context(self) -> int:
        """`start + length`."""

    @property
    def prefill(self) -> bool:
        """True: attend through `context_rows`; False: through `selected_rows`."""

    @property
    def positions(self) -> Tensor:
        """[T] int64: positions of the new tokens."""

    @property
    def top_k(self) -> int:
        """Positions that a query attends to, at most."""

    def write(self, layer: int, rows: Tensor) -> None:
        """Store the new tokens' rows [T, width] of one layer."""

    def write_index(self, leader: int, rows: Tensor) -> None:
        """Store the new tokens' index keys [T, index_width] of a leader."""

    def index_rows(self, leader: int) -> Tensor:
        """[context, index_width]: every index key of the request, in order of position."""

    def selected_rows(self, layer: int, topk: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows [T, K, width] at the positions that the unit's leader selected, and which are valid [T, K].

        A leader passes `topk` [T, K] int32 (causal, -1 = none), its followers None. Invalid rows are zeros.
        """

    def context_rows(self, layer: int) -> Tensor:
        """[context, width]: every row of one layer, in order of position."""
