"""GLM MoE DSA through a SparseKV equals stock transformers, which masks a full history with its own top-k."""

from __future__ import annotations

import pytest
import torch
from integrations.dense_kv import DenseHistory
from integrations.stock import stock_logits

from hisparse_ops.integrations.transformers import TransformersModel, load, sample_prompts

PROMPT, TOTAL = 180, 200
DENSE, SPARSE = 256, 16  # top_k above and far below the length of the history


@pytest.fixture(scope="module", params=[DENSE, SPARSE], ids=["dense", "sparse"])
def model(request: pytest.FixtureRequest) -> TransformersModel:
    return load("glm-tiny", top_k=request.param)


@pytest.fixture(scope="module")
def tokens(model: TransformersModel) -> list[int]:
    return sample_prompts(model, 1, TOTAL)[0][1]


@pytest.fixture(scope="module")
def expected(model: TransformersModel, tokens: list[int]) -> torch.Tensor:
    return stock_logits(model, tokens)


@pytest.mark.parametrize("chunk", [PROMPT, 64, 17])
def test_prefill_then_decode_equals_stock(model, tokens, expected, chunk):
    history = DenseHistory(model, TOTAL)
    logits = history.prefill(tokens[:PROMPT], chunk)
    torch.testing.assert_close(logits, expected[PROMPT - 1], rtol=1e-4, atol=1e-4)
    for position in range(PROMPT, TOTAL):
        logits = history.compute([tokens[position]], prefill=False)
        torch.testing.assert_close(logits, expected[position], rtol=1e-4, atol=1e-4)


def test_decode_from_the_first_token(model, tokens, expected):
    """The history is shorter than top_k for a while: every position is selected, and nothing else is read."""
    history = DenseHistory(model, TOTAL)
    for position in range(3 * SPARSE):
        logits = history.compute([tokens[position]], prefill=False)
        torch.testing.assert_close(logits, expected[position], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("start", [0, PROMPT])
def test_several_tokens_in_a_decode_pass(model, tokens, expected, start):
    """A verification pass: each token sees its own selection, and none of the tokens after it."""
    history = DenseHistory(model, TOTAL)
    if start:
        history.prefill(tokens[:start], 64)
    for first in range(start, start + 20, 4):
        logits = history.compute(tokens[first : first + 4], prefill=False)
        torch.testing.assert_close(logits, expected[first + 3], rtol=1e-4, atol=1e-4)


def test_the_selection_matters(tokens):
    """The sparse model is another function than the dense one: otherwise the tests above prove little."""
    dense, sparse = (stock_logits(load("glm-tiny", top_k=top_k), tokens)[-1] for top_k in (DENSE, SPARSE))
    assert (dense - sparse).abs().max() > 0.1


def test_bfloat16_is_as_close_to_the_truth_as_stock():
    """A different order of sums may send a token to another expert, so only averages compare, and loosely."""
    model = load("glm-tiny", top_k=SPARSE, dtype=torch.bfloat16)
    tokens = sample_prompts(model, 1, TOTAL)[0][1]
    history = DenseHistory(model, TOTAL)
    history.prefill(tokens[:PROMPT], 64)
    ours = torch.stack([history.compute([token], prefill=False) for token in tokens[PROMPT:]])
    truth = stock_logits(model, tokens, dtype=torch.float32)[PROMPT:]
    stock = stock_logits(model, tokens)[PROMPT:]
    assert (ours - truth).pow(2).mean() < 4 * (stock - truth).pow(2).mean()
    assert (ours - truth).pow(2).mean() < 0.5 * truth.var()  # unrelated logits: 2


def test_every_pass_repeats_bit_for_bit(model, tokens):
    def run() -> torch.Tensor:
        history = DenseHistory(model, TOTAL)
        return torch.stack(
            [history.prefill(tokens[:PROMPT], 64)]
            + [history.compute([token], prefill=False) for token in tokens[PROMPT:]]
        )

    assert torch.equal(run(), run())


def test_layout_follows_the_indexer_types():
    model = load("glm-tiny", top_k=32, block_size=16, hot_slots=48)
    assert model.spec.leaders == (0, 4) and model.spec.num_layers == 8
    assert (model.width, model.index_width) == (64, 32)
    assert (model.spec.row_bytes, model.spec.index_row_bytes) == (256, 128)
    assert (model.spec.top_k, model.spec.block_size, model.spec.hot_slots) == (32, 16, 48)


def test_the_seed_names_the_weights_and_disturbs_no_other_randomness():
    torch.manual_seed(7)
    undisturbed = torch.rand(1)
    torch.manual_seed(7)
    weights = [load("glm-tiny", seed=seed).module.state_dict() for seed in (3, 3, 4)]
    assert torch.equal(torch.rand(1), undisturbed)
    same, other = (all(torch.equal(weights[0][k], w[k]) for k in weights[0]) for w in weights[1:])
    assert same and not other
