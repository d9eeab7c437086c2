"""The decoder: embedding, layers, logits. Weights are random, and a function of the seed alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hisparse_ops.models.config import DecoderConfig
from hisparse_ops.models.kv import KV
from hisparse_ops.models.layers import DecoderLayer, normed, weight

ROPE_BASE = 10_000.0


class Decoder(nn.Module):
    """Made on the CPU in float32; `.to(device, dtype)` moves it. Weights are the same for every dtype and device,
    up to rounding."""

    turns: Tensor

    def __init__(self, config: DecoderConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embedding = weight(config.vocab_size, config.hidden)
        self.layers = nn.ModuleList(DecoderLayer(config, number) for number in range(config.layers))
        self.register_buffer("turns", _turns(config), persistent=False)
        draw = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():  # every product keeps its input's scale
            parameter.normal_(std=parameter.shape[-2] ** -0.5, generator=draw)
        self.embedding.normal_(generator=draw)

    def forward(self, tokens: Tensor, kv: KV) -> tuple[Tensor, list[Tensor]]:
        """Computes `tokens` [N] int64 at `kv.positions`. Returns hidden states [N, hidden] and what each leader
        selected, [N, K] int32."""
        hidden, turns = self.embedding[tokens], self.turns[kv.positions]
        selections: list[Tensor] = []
        topk = None
        for layer in self.layers:
            hidden, topk = layer(hidden, turns, kv, topk)
            if layer.indexer is not None:
                selections.append(topk)
        return hidden, selections

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, vocab] float32."""
        return (normed(hidden) @ self.embedding.T).float()


def _turns(config: DecoderConfig) -> Tensor:
    """Cosine and sine of every position's angles, [max_positions, 2, rope_dim / 2]. A table: looked up, they are the
    same bits however the code around is compiled."""
    half = config.rope_dim // 2
    angles = torch.arange(config.max_positions)[:, None] * ROPE_BASE ** (-torch.arange(half) / half)
    return torch.stack((angles.cos(), angles.sin()), dim=1)
