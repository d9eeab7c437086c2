"""Prompts for models whose vocabulary means nothing."""

from __future__ import annotations

import torch


def random_prompts(vocab_size: int, count: int, tokens: int, *, seed: int = 0) -> list[list[int]]:
    """`count` prompts of `tokens` random tokens each."""
    generator = torch.Generator().manual_seed(seed)
    prompts: list[list[int]] = torch.randint(vocab_size, (count, tokens), generator=generator).tolist()
    return prompts
