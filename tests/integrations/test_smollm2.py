"""The real weights of SmolLM2. They must be installed: without them these tests fail, they do not skip."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from integrations.dense_kv import DenseHistory
from integrations.stock import stock_logits

from hisparse_ops.integrations.transformers import TransformersModel, load, sample_prompts

PROMPT, TOTAL = 600, 620


@pytest.fixture(scope="module")
def model() -> TransformersModel:
    return load("smollm2")


@pytest.fixture(scope="module")
def tokens(model: TransformersModel) -> list[int]:
    return sample_prompts(model, 1, TOTAL)[0][1]


@pytest.fixture(scope="module")
def expected(model: TransformersModel, tokens: list[int]) -> torch.Tensor:
    return stock_logits(model, tokens)


def decode(model: TransformersModel, tokens: list[int]) -> torch.Tensor:
    """Logits after the prompt and after each later token, [TOTAL - PROMPT + 1, vocab]."""
    history = DenseHistory(model, TOTAL)
    logits = [history.prefill(tokens[:PROMPT], 256)]
    logits += [history.compute([token], prefill=False) for token in tokens[PROMPT:]]
    return torch.stack(logits)


def test_layout(model):
    assert model.spec.leaders == (0, 1, 2, 6, 10, 14, 18, 22, 26) and model.spec.num_layers == 30
    assert (model.spec.row_bytes, model.spec.index_row_bytes, model.spec.top_k) == (1536, 768, 256)


def test_with_everything_selected_equals_stock_eager(model, tokens, expected):
    everything = replace(model, spec=replace(model.spec, top_k=1024))
    torch.testing.assert_close(decode(everything, tokens), expected[PROMPT - 1 :], rtol=1e-3, atol=1e-3)


def test_the_selection_keeps_what_the_model_says(model, tokens, expected):
    """256 of 600 positions carry the meaning: the likeliest next token is nearly always the same."""
    same = decode(model, tokens).argmax(-1) == expected[PROMPT - 1 :].argmax(-1)
    assert same.float().mean() > 0.8


def test_it_speaks(model):
    tokens = model.encode("The capital of France is")
    history = DenseHistory(model, len(tokens))
    assert model.decode([int(history.prefill(tokens, 64).argmax())]) == " Paris"


def test_prompts_are_distinct_pieces_of_real_text(model):
    prompts = sample_prompts(model, 30, 2000)
    titles = [title for title, _ in prompts]
    assert titles[:3] == ["specialnames", "compound", "types"] and "specialnames 2" in titles
    assert len(set(titles)) == 30 and len({tuple(ids) for _, ids in prompts}) == 30
    assert all(len(ids) == 2000 for _, ids in prompts)
    assert model.decode(prompts[0][1]).startswith("Special method names")
    with pytest.raises(ValueError, match="count must be at most 1 for prompts of 15000 tokens, got 2"):
        sample_prompts(model, 2, 15000)
