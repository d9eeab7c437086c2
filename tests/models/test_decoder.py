"""The decoder on a plain full history: attention and selection against their definitions, prefill against decoding."""

from __future__ import annotations

import pytest
import torch
from integrations.dense_kv import DenseHistory, DenseKV
from torch import Tensor

from hisparse_ops.models import CompactModel, Decoder, DecoderConfig, load, random_prompts
from hisparse_ops.models.layers import normed, rotate

PROMPT, TOTAL = 60, 80
ALL, FEW = 128, 8  # top_k above and far below the length of the history


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return random_prompts(512, 1, TOTAL)[0]


@pytest.mark.parametrize("top_k", [ALL, FEW])
@pytest.mark.parametrize("chunk", [PROMPT, 17])
def test_prefill_and_decoding_compute_the_same(tokens: list[int], top_k: int, chunk: int) -> None:
    model = load(top_k=top_k)
    one_by_one, in_chunks = DenseHistory(model, TOTAL), DenseHistory(model, TOTAL)
    for token in tokens[:PROMPT]:
        expected = one_by_one.compute([token], prefill=False)
    torch.testing.assert_close(in_chunks.prefill(tokens[:PROMPT], chunk), expected, rtol=1e-3, atol=1e-3)
    for token in tokens[PROMPT:]:
        ours, expected = (history.compute([token], prefill=False) for history in (in_chunks, one_by_one))
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


def test_attention_to_latents_is_attention_to_the_keys_and_values_they_stand_for(tokens: list[int]) -> None:
    config = DecoderConfig(top_k=ALL, layers=1, unit_layers=1)
    decoder = Decoder(config)
    found = DenseHistory(CompactModel(decoder, config.spec(torch.float32)), TOTAL).prefill(tokens, TOTAL)

    layer, turns = decoder.layers[0], decoder.turns[:TOTAL]
    attention = layer.attention
    hidden = decoder.embedding[tokens]
    states = normed(hidden)
    latents, rope_keys = attention.row(states, turns).split([config.latent_dim, config.rope_dim], dim=-1)
    nope, rope = (
        (states @ attention.to_query).view(TOTAL, config.heads, -1).split([config.nope_dim, config.rope_dim], -1)
    )
    heads = []
    for head in range(config.heads):
        keys, values = latents @ attention.key_to_latent[head].T, latents @ attention.latent_to_value[head]
        scores = nope[:, head] @ keys.T + rotate(rope[:, head], turns) @ rope_keys.T
        scores = scores * config.width**-0.5 + torch.full_like(scores, -torch.inf).triu(1)
        heads.append(scores.softmax(-1) @ values)
    hidden = hidden + torch.cat(heads, dim=-1) @ attention.to_hidden
    hidden = hidden + layer.mlp(normed(hidden))
    torch.testing.assert_close(found, decoder.logits(hidden[-1:])[0], rtol=1e-4, atol=1e-4)


def test_the_indexer_picks_what_most_heads_match(tokens: list[int]) -> None:
    model = load(top_k=FEW)
    decoder, history = model.decoder, DenseHistory(model, TOTAL)
    _, (picked, _) = decoder(torch.tensor(tokens), DenseKV(history, 0, TOTAL, prefill=True))

    indexer, states, turns = decoder.layers[0].indexer, normed(decoder.embedding[tokens]), decoder.turns[:TOTAL]

    def placed(rows: Tensor) -> Tensor:
        return torch.cat((rotate(rows[:, :16], turns), rows[:, 16:]), dim=-1)

    keys = placed(states @ indexer.to_key)
    queries = [placed(rows) for rows in (states @ indexer.to_query).split(32, dim=-1)]
    for row in range(TOTAL):
        scores = torch.zeros(row + 1)
        for head, weight in enumerate(states[row] @ indexer.to_head_weight):
            scores += weight * (keys[: row + 1] @ queries[head][row]).clamp(min=0)
        expected = set(scores.topk(min(FEW, row + 1)).indices.tolist())
        assert set(picked[row].tolist()) - {-1} == expected


def test_rope_tells_distances() -> None:
    turns = Decoder(DecoderConfig()).turns
    query, key = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(1))

    def score(query_position: int, key_position: int) -> Tensor:
        at = (rotate(states, turns[[p]]) for states, p in ((query, query_position), (key, key_position)))
        return torch.mul(*at).sum()

    torch.testing.assert_close(score(1000, 900), score(100, 0), rtol=1e-3, atol=1e-3)
    assert (score(1000, 900) - score(1000, 901)).abs() > 1e-2


def test_the_seed_names_the_weights_and_the_dtype_rounds_them() -> None:
    one, same, other = (load(seed=seed).decoder.state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) and not torch.equal(one[name], other[name]) for name in one)
    rounded = load(seed=3, dtype=torch.bfloat16)
    assert rounded.dtype == torch.bfloat16 and rounded.spec.row_bytes == 2 * (48 + 16)
    assert all(torch.equal(one[name].bfloat16(), weight) for name, weight in rounded.decoder.state_dict().items())


def test_bad_sizes_are_named() -> None:
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        DecoderConfig(heads=0)
    with pytest.raises(ValueError, match="rope_dim must be even and at most index_dim = 32, got 5"):
        DecoderConfig(rope_dim=5)
    with pytest.raises(ValueError, match="layers must be a multiple of unit_layers = 4, got 6"):
        DecoderConfig(layers=6)
    with pytest.raises(ValueError, match=r"tokens must be as many as kv\.length, 2, got 1"):
        model = load()
        model.forward(DenseKV(DenseHistory(model, 2), 0, 2, prefill=True), [1])
