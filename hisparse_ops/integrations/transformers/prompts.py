"""Long distinct prompts: real text for a model that has a tokenizer, random tokens for one that has none."""

from __future__ import annotations

from pydoc_data.topics import topics

from hisparse_ops.integrations.transformers.model import TransformersModel
from hisparse_ops.models.prompts import random_prompts


def sample_prompts(model: TransformersModel, count: int, tokens: int, *, seed: int = 0) -> list[tuple[str, list[int]]]:
    """`count` distinct prompts of exactly `tokens` tokens, each with a title.

    Text comes from Python's own help topics: first the beginning of every topic that is long enough, longest
    first, then the next window of those that are longer still, and so on. `seed` is for random tokens only.

    Raises ValueError if there is not that much text.
    """
    if count < 0 or tokens < 1:
        raise ValueError(f"count must be >= 0 and tokens >= 1, got {count} and {tokens}")
    if model.tokenizer is None:
        prompts = random_prompts(model.vocab_size, count, tokens, seed=seed)
        return [(f"random {number + 1}", prompt) for number, prompt in enumerate(prompts)]
    # No token is shorter than a character: a topic with fewer characters need not be encoded.
    texts = {title: model.encode(text) for title, text in topics.items() if len(text) >= tokens}
    windows = [
        (part, -len(ids), title, ids[part * tokens : (part + 1) * tokens])
        for title, ids in texts.items()
        for part in range(len(ids) // tokens)
    ]
    if len(windows) < count:
        raise ValueError(f"count must be at most {len(windows)} for prompts of {tokens} tokens, got {count}")
    return [(f"{title} {part + 1}" if part else title, ids) for part, _, title, ids in sorted(windows)[:count]]
