"""A SparseKV without pools, pages or plans: every row ever written, in one tensor per layer.

The oracle of the models' tests. Unwritten rows are NaN, so that reading one shows in the logits.
"""

from __future__ import annotations

from bisect import bisect_right

import torch
from torch import Tensor

from hisparse_ops.engine import ModelRunner


class DenseHistory:
    """The rows of one request, and the SparseKV of each of its forward passes."""

    def __init__(self, model: ModelRunner, capacity: int) -> None:
        spec = model.spec
        self.model = model
        width, index_width = (size // model.dtype.itemsize for size in (spec.row_bytes, spec.index_row_bytes))
        self.rows = torch.full((spec.num_layers, capacity, width), torch.nan, dtype=model.dtype)
        self.index = {
            leader: torch.full((capacity, index_width), torch.nan, dtype=model.dtype) for leader in spec.leaders
        }
        self.length = 0

    def compute(self, tokens: list[int], *, prefill: bool) -> Tensor:
        """One forward pass over the next tokens; the logits after the last one."""
        kv = DenseKV(self, self.length, len(tokens), prefill)
        self.length += len(tokens)
        return self.model.forward(kv, tokens)

    def prefill(self, tokens: list[int], chunk: int) -> Tensor:
        """The prompt in chunks; the logits after its last token."""
        for first in range(0, len(tokens), chunk):
            logits = self.compute(tokens[first : first + chunk], prefill=True)
        return logits


class DenseKV:
    def __init__(self, history: DenseHistory, start: int, length: int, prefill: bool) -> None:
        self.history = history
        self.start, self.length, self.context = start, length, start + length
        self.prefill = prefill
        self.positions = torch.arange(start, start + length)
        self.top_k = history.model.spec.top_k
        self.selections: dict[int, Tensor] = {}  # leader -> topk

    def write(self, layer: int, rows: Tensor) -> None:
        self.history.rows[layer, self.start : self.context] = rows

    def write_index(self, leader: int, rows: Tensor) -> None:
        self.history.index[leader][self.start : self.context] = rows

    def index_rows(self, leader: int) -> Tensor:
        return self.history.index[leader][: self.context]

    def selected_rows(self, layer: int, topk: Tensor | None) -> tuple[Tensor, Tensor]:
        assert not self.prefill, "a prefill pass reads context_rows"
        leaders = self.history.model.spec.leaders
        leader = leaders[bisect_right(leaders, layer) - 1]
        if layer == leader:
            assert topk is not None and topk.dtype == torch.int32 and len(topk) == self.length
            assert (topk <= self.positions[:, None]).all(), "the selection looks ahead"
            self.selections[leader] = topk
        else:
            assert topk is None, "a follower reuses its leader's selection"
        topk = self.selections[leader]
        valid = topk >= 0
        rows = self.history.rows[layer][topk.clamp(min=0)]
        return rows.masked_fill(~valid[..., None], 0), valid

    def context_rows(self, layer: int) -> Tensor:
        assert self.prefill, "a decode pass reads selected_rows"
        return self.history.rows[layer, : self.context]
