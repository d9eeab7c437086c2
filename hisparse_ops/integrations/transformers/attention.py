"""The "hisparse" attention of transformers: leaders select positions, every layer attends to them.

A model with an indexer brings its selection along (`indices`). In any other model a leader selects the
positions that carry the most attention mass. Prefill and decode are two computations, and each is always
the same one, wherever the rows come from: a row's last bit depends on its own history only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface

from hisparse_ops.integrations.transformers.cache import SparseLayer, flatten_heads, split_heads

IMPLEMENTATION = "hisparse"


def register() -> None:
    """Make `attn_implementation="hisparse"` known to transformers."""
    AttentionInterface.register(IMPLEMENTATION, sparse_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, causal_mask)


def causal_mask(
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    attention_mask: Tensor | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Tensor:
    """[1, 1, q_length, kv_length] bool: True where a query may look.

    Raises ValueError if there is an `attention_mask`: a pass holds one request, so nothing is padding.
    """
    if attention_mask is not None:
        raise ValueError("attention_mask must be None: a hisparse forward pass holds one request without padding")
    keys = torch.arange(kv_length, device=device)
    queries = torch.arange(q_offset, q_offset + q_length, device=device)
    return (keys <= queries[:, None])[None, None]


def sparse_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    sparse_layer: SparseLayer | None = None,
    indices: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend from T new tokens to the selected part of their history.

    Args:
        module: the attention module; one with `expand_kv` caches compressed keys and values.
        query: [1, heads, T, dim].
        key, value: of the new tokens only; `SparseLayer.update` has stored them.
        attention_mask: [1, 1, T, context] bool from `causal_mask`.
        indices: [1, T, K] int32, the model's own selection; may name later positions, which are ignored.

    Returns [1, T, heads, value dim]. Raises ValueError without a `SparseCache`.
    """
    if sparse_layer is None:
        raise ValueError('attention "hisparse" needs a SparseCache: pass cache=SparseCache(kv, leaders, num_layers)')
    kv, causal = sparse_layer.cache.kv, attention_mask[0, 0]
    topk = None
    if sparse_layer.leads and indices is not None:
        topk = indices[0]
    elif sparse_layer.leads:
        index_keys = sparse_layer.update_indexer(flatten_heads(key))
        topk = heaviest(query, split_heads(index_keys, key.shape[1]), causal, scaling, kv.top_k)

    if kv.prefill:
        keys, values, mask = sparse_layer.context_states(topk, causal)
    else:
        keys, values, mask = sparse_layer.selected_states(topk)
        query = query.transpose(0, 2)  # every token has keys of its own: a batch of T, one query each
    if expand := getattr(module, "expand_kv", None):
        keys, values = expand(keys, values)
    output = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2).reshape(1, kv.length, output.shape[1], -1), None


def heaviest(query: Tensor, keys: Tensor, causal: Tensor, scaling: float, top_k: int) -> Tensor:
    """The positions with the most attention mass, summed over all heads: [T, min(top_k, context)] int32.

    A query with fewer than `top_k` positions gets them all, and later ones in the places left.

    Args:
        query: [1, heads, T, dim].
        keys: [1, kv heads, context, dim]; `heads` is a multiple of `kv heads`.
        causal: [T, context] bool.
    """
    context = keys.shape[2]
    if context <= top_k:
        return torch.arange(context, dtype=torch.int32, device=keys.device).expand(len(causal), -1)
    grouped = (query * scaling).reshape(1, keys.shape[1], -1, keys.shape[3])  # heads of one kv head: one long batch
    scores = (grouped @ keys.transpose(2, 3)).float().view(-1, *causal.shape)
    mass = scores.masked_fill_(~causal, -torch.inf).softmax(dim=-1).sum(dim=0)
    # Below zero, so that a causal position whose mass underflows still comes before any later position.
    return mass.masked_fill_(~causal, -1).topk(top_k).indices.int()
