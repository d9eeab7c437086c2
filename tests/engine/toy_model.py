"""A sparse-attention model of a few small matrices: enough that one wrong row changes every later logit."""

from __future__ import annotations

import torch
from torch import Tensor

from hisparse_ops.memory.layout import ModelSpec

HIDDEN = 16
KEY = 8  # a row is a key and a value of this size
INDEX = 4
VOCAB = 64


class ToyModel:
    """By default four layers, leaders 0, 1 and 3: units of one, two and one layers."""

    def __init__(
        self,
        *,
        top_k: int,
        block_size: int,
        dtype: torch.dtype,
        hot_slots: int | None = None,
        layers: int = 4,
        leaders: tuple[int, ...] = (0, 1, 3),
    ) -> None:
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.max_positions = 1 << 20
        self.spec = ModelSpec(
            num_layers=layers,
            leaders=leaders,
            row_bytes=2 * KEY * dtype.itemsize,
            index_row_bytes=INDEX * dtype.itemsize,
            block_size=block_size,
            top_k=top_k,
            hot_slots=hot_slots,
        )
        generator = torch.Generator().manual_seed(7)

        def weight(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        self._embed = weight(VOCAB, HIDDEN)
        self._qkv = [weight(HIDDEN, 3 * KEY) / HIDDEN**0.5 for _ in range(layers)]
        self._index = {leader: weight(HIDDEN, 2 * INDEX) / HIDDEN**0.5 for leader in leaders}
        self._out = [weight(KEY, HIDDEN) for _ in range(layers)]

    def forward(self, kv, tokens: list[int]) -> Tensor:
        positions = kv.positions.to(self.dtype)[:, None]
        hidden = self._embed[tokens] + torch.sin(positions * torch.arange(1, HIDDEN + 1).to(self.dtype))
        topk = None
        for layer, weight in enumerate(self._qkv):
            hidden = hidden / hidden.square().mean(-1, keepdim=True).sqrt()
            query, rows = (hidden @ weight).split([KEY, 2 * KEY], dim=-1)
            kv.write(layer, rows.contiguous())
            if layer in self._index:
                topk = self._select(kv, layer, hidden)
                chosen = topk
            else:
                chosen = None
            hidden = hidden + self._attend(kv, layer, query, topk, chosen) @ self._out[layer]
        return (hidden[-1] @ self._embed.T).float()

    def _select(self, kv, layer: int, hidden: Tensor) -> Tensor:
        query, key = (hidden @ self._index[layer]).split(INDEX, dim=-1)
        kv.write_index(layer, key.contiguous())
        scores = (query @ kv.index_rows(layer).T).float()
        causal = torch.arange(kv.context)[None, :] <= kv.positions[:, None]
        scores = scores.masked_fill(~causal, -torch.inf)
        values, topk = scores.topk(min(self.spec.top_k, kv.context), dim=-1)
        topk = topk.masked_fill(values == -torch.inf, -1).to(torch.int32)
        return torch.nn.functional.pad(topk, (0, self.spec.top_k - topk.shape[1]), value=-1)

    def _attend(self, kv, layer: int, query: Tensor, topk: Tensor, chosen: Tensor | None) -> Tensor:
        if kv.prefill:
            rows = kv.context_rows(layer)
            valid = torch.zeros(len(query), kv.context + 1, dtype=torch.bool)
            valid.scatter_(1, topk.long() + 1, True)  # column 0 collects the masked entries
            valid = valid[:, 1:]
            keys, values = rows.split(KEY, dim=-1)
            scores = (query @ keys.T).float()
            return torch.softmax(scores.masked_fill(~valid, -torch.inf), -1).to(self.dtype) @ values
        rows, valid = kv.selected_rows(layer, chosen)
        keys, values = rows.split(KEY, dim=-1)
        scores = torch.einsum("tk,tsk->ts", query, keys).float()
        return torch.einsum(
            "ts,tsv->tv", torch.softmax(scores.masked_fill(~valid, -torch.inf), -1).to(self.dtype), values
        )
