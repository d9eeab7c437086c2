"""The decoder as the engine runs it: one request a pass, on whatever cache it is handed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hisparse_ops.memory.layout import ModelSpec
from hisparse_ops.models.config import DecoderConfig
from hisparse_ops.models.decoder import Decoder
from hisparse_ops.models.kv import SparseKV


@dataclass(frozen=True)
class CompactModel:
    """A decoder and the memory layout it needs. A row's bits depend on nothing but its own history: a pass holds one
    request, and every kernel it calls gives the same bits for the same shapes."""

    decoder: Decoder
    spec: ModelSpec

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, rows and index keys."""
        return self.decoder.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where weights, rows and index keys lie."""
        return self.decoder.embedding.device

    @property
    def vocab_size(self) -> int:
        return self.decoder.config.vocab_size

    @property
    def max_positions(self) -> int:
        """Positions that the model was made for."""
        return self.decoder.config.max_positions

    @torch.no_grad()
    def forward(self, kv: SparseKV, tokens: list[int]) -> Tensor:
        """Compute `tokens` at `kv.positions`, writing their rows into `kv`.

        Returns the logits after the last token, [vocab_size] float32. Raises ValueError if `tokens` are not
        `kv.length` many.
        """
        if len(tokens) != kv.length:
            raise ValueError(f"tokens must be as many as kv.length, {kv.length}, got {len(tokens)}")
        hidden, _ = self.decoder(torch.tensor(tokens, device=self.device), kv)
        logits: Tensor = self.decoder.logits(hidden[-1:])[0]
        return logits


def load(
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    top_k: int | None = None,
    block_size: int = 64,
    hot_slots: int | None = None,
    device: torch.device | str = "cpu",
) -> CompactModel:
    """The compact decoder in its default sizes, with the weights of `seed`.

    `top_k` None = the config's; `block_size` and `hot_slots` are as in `ModelSpec`. Raises ValueError naming the
    argument.
    """
    config = DecoderConfig() if top_k is None else DecoderConfig(top_k=top_k)
    decoder = Decoder(config, seed).to(device, dtype).eval()
    return CompactModel(decoder, config.spec(dtype, block_size, hot_slots))
