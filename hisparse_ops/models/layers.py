"""One layer of the decoder: latent attention to selected rows, and an MLP.

Every tensor has the N new tokens first. A token's history is rows [C, width] that all tokens share, or rows
[N, K, width] of its own; both broadcast alike, so that prefill, decoding and batched decoding share the arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hisparse_ops.models.config import DecoderConfig
from hisparse_ops.models.kv import KV


def weight(*shape: int) -> nn.Parameter:
    """[..., in, out], filled by the decoder."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)


def normed(hidden: Tensor) -> Tensor:
    """RMSNorm over the last dimension, with gains of one."""
    return F.rms_norm(hidden, hidden.shape[-1:])


def rotate(states: Tensor, turns: Tensor) -> Tensor:
    """Rope: [N, ..., dim], turned by the cosines and sines `turns` [N, 2, dim / 2] of its token's position."""
    cos, sin = turns.view(len(turns), 2, *[1] * (states.dim() - 2), -1).unbind(1)
    left, right = states.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)


class LatentAttention(nn.Module):
    """MLA in its absorbed form: queries and values are carried into the latent space, so that a row is read as it
    is cached, by all heads."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        heads, latent = config.heads, config.latent_dim
        self.to_query = weight(config.hidden, heads * (config.nope_dim + config.rope_dim))
        self.to_row = weight(config.hidden, config.width)
        self.key_to_latent = weight(heads, config.nope_dim, latent)
        self.latent_to_value = weight(heads, latent, config.value_dim)
        self.to_hidden = weight(heads * config.value_dim, config.hidden)

    def row(self, hidden: Tensor, turns: Tensor) -> Tensor:
        """What is cached of each token: [N, width]."""
        latent, key = (hidden @ self.to_row).split([self.config.latent_dim, self.config.rope_dim], dim=-1)
        return torch.cat((normed(latent), rotate(key, turns)), dim=-1)

    def forward(self, hidden: Tensor, turns: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """Attends to `rows` [C, width] or [N, K, width] where `mask` [N, C or K] allows: [N, hidden]."""
        config = self.config
        query = (hidden @ self.to_query).unflatten(-1, (config.heads, -1))
        nope, rope = query.split([config.nope_dim, config.rope_dim], dim=-1)
        nope = torch.einsum("nhd,hdl->nhl", nope, self.key_to_latent)
        query = torch.cat((nope, rotate(rope, turns)), dim=-1) * config.width**-0.5  # [N, heads, width]

        scores = (query @ rows.transpose(-1, -2)).float()
        # Finite, so that a padding token, to which all is masked, gets no NaN.
        scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        mixed = scores.softmax(dim=-1).to(rows.dtype) @ rows[..., : config.latent_dim]
        values = torch.einsum("nhl,hlv->nhv", mixed, self.latent_to_value)
        return values.flatten(1) @ self.to_hidden


class Indexer(nn.Module):
    """The lightning indexer: many small heads score every position, ReLU keeps what they agree on."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.to_query = weight(config.hidden, config.index_heads * config.index_dim)
        self.to_key = weight(config.hidden, config.index_dim)
        self.to_head_weight = weight(config.hidden, config.index_heads)

    def forward(self, hidden: Tensor, turns: Tensor, leader: int, kv: KV) -> Tensor:
        """Stores the new tokens' keys and selects for each: [N, min(top_k, C)] int32, -1 where there is no more."""
        kv.write_index(leader, self._placed(hidden @ self.to_key, turns))
        keys = kv.index_rows(leader)
        query = self._placed((hidden @ self.to_query).unflatten(-1, (self.config.index_heads, -1)), turns)
        matches = (query @ keys.transpose(-1, -2)).relu_()  # [N, heads, C]: by far the largest tensor
        scores = ((hidden @ self.to_head_weight)[:, None] @ matches)[:, 0].float()
        later = torch.arange(scores.shape[1], device=scores.device) > kv.positions[:, None]
        scores = scores.masked_fill(later, -torch.inf)
        values, topk = scores.topk(min(self.config.top_k, scores.shape[1]), dim=-1)
        return topk.masked_fill(values == -torch.inf, -1).int()

    def _placed(self, states: Tensor, turns: Tensor) -> Tensor:
        """[N, ..., index_dim]: the first dimensions know their position, without which equal tokens would tie."""
        rope, rest = states.split([self.config.rope_dim, self.config.index_dim - self.config.rope_dim], dim=-1)
        return torch.cat((rotate(rope, turns), rest), dim=-1)


class Mlp(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.up = weight(config.hidden, 2 * config.mlp)
        self.down = weight(config.mlp, config.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        gate, up = (hidden @ self.up).chunk(2, dim=-1)
        return (F.silu(gate) * up) @ self.down


class DecoderLayer(nn.Module):
    """Layer `number`; a leader has an indexer."""

    def __init__(self, config: DecoderConfig, number: int) -> None:
        super().__init__()
        self.number = number
        self.indexer = Indexer(config) if number in config.leaders else None
        self.attention = LatentAttention(config)
        self.mlp = Mlp(config)

    def forward(self, hidden: Tensor, turns: Tensor, kv: KV, topk: Tensor | None) -> tuple[Tensor, Tensor]:
        """`topk` is what the leader before selected. Returns the new hidden states and the selection to go on with."""
        states = normed(hidden)
        kv.write(self.number, self.attention.row(states, turns))
        if self.indexer is not None:
            topk = self.indexer(states, turns, self.number, kv)
        assert topk is not None, "layer 0 is a leader"
        if kv.prefill:
            rows = kv.context_rows(self.number)
            mask = positions_mask(topk, len(rows))
        else:
            rows, mask = kv.selected_rows(self.number, None if self.indexer is None else topk)
        hidden = hidden + self.attention(states, turns, rows, mask)
        return hidden + self.mlp(normed(hidden)), topk


def positions_mask(topk: Tensor, context: int) -> Tensor:
    """[N, context] bool: True at the positions `topk` [N, K]; -1 names none."""
    mask = topk.new_zeros(len(topk), 1 + context, dtype=torch.bool)
    return mask.scatter_(1, topk.long() + 1, True)[:, 1:]  # column 0 took the -1
