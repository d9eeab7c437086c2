"""A SparseKV as a transformers `Cache`. One `SparseCache` serves one forward pass.

| state | owner | written by | read by |
|---|---|---|---|
| KV rows, index keys | the SparseKV | `SparseLayer.update`, `.update_indexer` | the attention function |
| `SparseCache.selection` | the cache | a leader's `context_states` | its and its followers' `context_states` |
| `SparseLayer.heads`, `.key_width` | the layer | `update` | the same layer, to unpack rows |
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from hisparse_ops.models.kv import SparseKV

LAYER_ARGUMENT = "sparse_layer"  # the attention function's keyword for the SparseLayer it works on


class SparseCache(Cache):  # type: ignore[misc]
    """The layers of one request's SparseKV, for the one forward pass that computes its new tokens.

    Args:
        kv: the request's cache, positioned at the tokens to compute.
        leaders: the layers that select for themselves; the others follow the last leader before them.
        num_layers: layers of the model.
    """

    def __init__(self, kv: SparseKV, leaders: Collection[int], num_layers: int) -> None:
        super().__init__(layers=[SparseLayer(self, layer, layer in leaders) for layer in range(num_layers)])
        self.kv = kv
        self.selection: Tensor | None = None  # prefill only: [T, context] bool, what each new token attends to


class SparseLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's side of a `SparseCache`. Rows hold keys and values, heads side by side."""

    def __init__(self, cache: SparseCache, layer: int, leads: bool) -> None:
        super().__init__()
        self.cache, self.layer, self.leads = cache, layer, leads
        self.heads = (0, 0)
        self.key_width = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store the new rows of [1, heads, T, dim] keys and values (latents, in a compressed model).

        The new states alone come back: the attention function reads the history it needs. It finds this
        layer among its own arguments, because `kwargs["kwargs"]` is what it will be called with.
        """
        self.heads = (key_states.shape[1], value_states.shape[1])
        keys, values = flatten_heads(key_states), flatten_heads(value_states)
        self.key_width = keys.shape[-1]
        self.cache.kv.write(self.layer, torch.cat((keys, values), dim=-1)[0])
        kwargs["kwargs"][LAYER_ARGUMENT] = self
        return key_states, value_states

    def update_indexer(self, index_keys: Tensor) -> Tensor:
        """Store the new tokens' index keys [1, T, index_width]; return all of them, [1, context, index_width]."""
        self.cache.kv.write_index(self.layer, index_keys[0])
        return self.cache.kv.index_rows(self.layer)[None]

    def context_states(self, topk: Tensor | None, causal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Prefill: the whole context, and which of it each token attends to.

        A leader passes its selection `topk` [T, K], a follower None; `causal` is [T, context] bool.
        Returns keys and values [1, heads, context, dim] and the mask [T, context].
        """
        if topk is not None:
            self.cache.selection = torch.zeros_like(causal).scatter_(1, topk.long(), True) & causal
        assert self.cache.selection is not None, "layer 0 must be a leader"
        rows = self.cache.kv.context_rows(self.layer)[None]
        return *self._unpack(rows), self.cache.selection

    def selected_states(self, topk: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Decode: the rows that each token's leader selected for it, as a batch of T.

        A leader passes its selection `topk` [T, K] int32, in which later positions are ignored, a follower None.
        Returns keys and values [T, heads, K, dim] and the mask [T, 1, 1, K].
        """
        kv = self.cache.kv
        if topk is not None:
            topk = topk.masked_fill(topk > kv.positions[:, None], -1)
        rows, valid = kv.selected_rows(self.layer, topk)
        return *self._unpack(rows), valid[:, None, None]

    def _unpack(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [B, S, width] as the keys and values they were stored from, [B, heads, S, dim] each."""
        keys, values = rows[..., : self.key_width], rows[..., self.key_width :]
        return split_heads(keys, self.heads[0]), split_heads(values, self.heads[1])

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to make: the pools exist before the first token."""

    def get_seq_length(self) -> int:
        return self.cache.kv.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.kv.context, 0

    def get_max_length(self) -> int:
        return -1  # transformers' word for "no limit of its own"


def flatten_heads(states: Tensor) -> Tensor:
    """[B, heads, S, dim] -> [B, S, heads * dim]"""
    return states.transpose(1, 2).flatten(2)


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """[B, S, heads * dim] -> [B, heads, S, dim]"""
    return rows.view(*rows.shape[:-1], heads, -1).transpose(1, 2)
