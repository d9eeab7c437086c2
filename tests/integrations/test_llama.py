"""A model without an indexer: leaders select by attention mass. Compared with two full-history computations."""

from __future__ import annotations

import pytest
import torch
from integrations.dense_kv import DenseHistory
from integrations.stock import LLAMA_LEADERS, stock_logits, tiny_llama
from torch import Tensor, nn
from transformers import AttentionInterface

from hisparse_ops.integrations.transformers import TransformersModel, sample_prompts

PROMPT, TOTAL = 180, 200
DENSE, SPARSE = 256, 24


class MassOracle:
    """Attention over a full history, in one pass and in float64, keeping the `top_k` heaviest positions.

    Leaders rank by mass, a follower keeps its leader's choice: the definition, without cache or chunks.
    """

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_
    ) -> tuple[Tensor, None]:
        groups = query.shape[1] // key.shape[1]
        key, value = (states.double().repeat_interleave(groups, dim=1)[0] for states in (key, value))
        length = query.shape[2]
        scores = query[0].double() @ key.transpose(1, 2) * scaling
        scores += torch.full((length, length), -torch.inf).triu(1)
        if module.layer_idx in LLAMA_LEADERS:
            mass = scores.softmax(-1).sum(0)
            self.kept = torch.zeros(length, length, dtype=torch.bool)
            for position in range(length):
                self.kept[position, mass[position, : position + 1].argsort(descending=True)[: self.top_k]] = True
        output = scores.masked_fill(~self.kept, -torch.inf).softmax(-1) @ value
        return output.transpose(0, 1)[None].to(query.dtype), None


@pytest.mark.parametrize("top_k", [DENSE, SPARSE])
@pytest.mark.parametrize("chunk", [PROMPT, 64, 17])
def test_equals_the_full_history_computation(top_k, chunk):
    model = tiny_llama(top_k)
    tokens = sample_prompts(model, 1, TOTAL)[0][1]
    AttentionInterface.register("mass-oracle", MassOracle(top_k))
    expected = stock_logits(model, tokens, "mass-oracle")
    history = DenseHistory(model, TOTAL)
    logits = history.prefill(tokens[:PROMPT], chunk)
    torch.testing.assert_close(logits, expected[PROMPT - 1], rtol=1e-4, atol=1e-4)
    for first in range(PROMPT, TOTAL, 2):  # one token, or a verification of two
        if first % 4:
            history.compute([tokens[first]], prefill=False)
            logits = history.compute([tokens[first + 1]], prefill=False)
        else:
            logits = history.compute(tokens[first : first + 2], prefill=False)
        torch.testing.assert_close(logits, expected[first + 1], rtol=1e-4, atol=1e-4)


def decode(model: TransformersModel, tokens: list[int]) -> Tensor:
    """Logits after the prompt and after each later token, [TOTAL - PROMPT + 1, vocab]."""
    history = DenseHistory(model, TOTAL)
    logits = [history.prefill(tokens[:PROMPT], 64)]
    return torch.stack(logits + [history.compute([token], prefill=False) for token in tokens[PROMPT:]])


def test_with_everything_selected_equals_stock_eager():
    model = tiny_llama(DENSE)
    tokens = sample_prompts(model, 1, TOTAL)[0][1]
    expected = stock_logits(model, tokens)[PROMPT - 1 :]
    torch.testing.assert_close(decode(model, tokens), expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_is_as_close_to_the_truth_as_stock():
    model = tiny_llama(DENSE, torch.bfloat16)
    tokens = sample_prompts(model, 1, TOTAL)[0][1]
    truth = stock_logits(model, tokens, dtype=torch.float32)[PROMPT - 1 :]
    stock = stock_logits(model, tokens)[PROMPT - 1 :]
    assert (decode(model, tokens) - truth).pow(2).mean() < 2 * (stock - truth).pow(2).mean()


def test_the_selection_matters():
    tokens = sample_prompts(tiny_llama(DENSE), 1, TOTAL)[0][1]
    dense, sparse = (DenseHistory(tiny_llama(top_k), TOTAL).prefill(tokens, TOTAL) for top_k in (DENSE, SPARSE))
    assert (dense - sparse).abs().max() > 0.1
