"""The attention function by itself, on the cases that a whole model seldom meets."""

from __future__ import annotations

import pytest
import torch
from integrations.dense_kv import DenseHistory, DenseKV
from integrations.stock import tiny_llama
from torch import Tensor, nn

from hisparse_ops.integrations.transformers.attention import causal_mask, heaviest, sparse_attention
from hisparse_ops.integrations.transformers.cache import SparseCache

HEADS, KV_HEADS, DIM = 6, 2, 16
SCALING = DIM**-0.5
CONTEXT = 1500  # many times the key block of a fused attention kernel


def attend(history: DenseHistory, length: int, prefill: bool, selected: list[int]) -> tuple[Tensor, Tensor]:
    """Attention of `length` new tokens to `selected` positions, and the same in float64 from the formula."""
    start = CONTEXT - length
    kv = DenseKV(history, start, length, prefill)
    layer = SparseCache(kv, leaders=(0,), num_layers=1).layers[0]
    query = torch.randn(1, HEADS, length, DIM)
    new = torch.randn(2, 1, KV_HEADS, length, DIM)
    arguments: dict[str, object] = {}
    layer.update(*new, kwargs=arguments)
    indices = torch.tensor(selected, dtype=torch.int32).expand(1, length, -1)
    output, _ = sparse_attention(
        nn.Module(), query, *new, causal_mask(length, CONTEXT, start), SCALING, indices=indices, **arguments
    )

    expected = torch.empty(1, length, HEADS, DIM)
    for row in range(length):
        seen = [position for position in selected if position <= start + row]
        keys, values = history.rows[0, seen].double().view(-1, 2, KV_HEADS, DIM).unbind(1)
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            weights = (keys[:, kv_head] @ query[0, head, row].double() * SCALING).softmax(0)
            expected[0, row, head] = weights @ values[:, kv_head]
    return output, expected


@pytest.fixture
def history() -> DenseHistory:
    torch.manual_seed(0)
    history = DenseHistory(tiny_llama(top_k=8), CONTEXT)
    history.rows[0] = torch.randn(CONTEXT, history.model.width)
    return history


@pytest.mark.parametrize("prefill", [True, False])
@pytest.mark.parametrize("selected", [range(8), range(700, 708), range(CONTEXT - 8, CONTEXT)])
def test_a_selection_far_from_everything_else(history, prefill, selected):
    """All other blocks of keys are masked from end to end; late tokens in the selection are not seen by early ones."""
    output, expected = attend(history, length=5, prefill=prefill, selected=list(selected))
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_decode_reads_nothing_but_the_selection(history):
    selected = [0, 3, 700, CONTEXT - 1]
    others = torch.ones(CONTEXT, dtype=torch.bool)
    others[selected] = False
    history.rows[0, others] = torch.nan
    output, expected = attend(history, length=1, prefill=False, selected=selected)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_heaviest_ranks_by_mass_over_all_heads():
    torch.manual_seed(0)
    query, keys = torch.randn(1, HEADS, 4, DIM), torch.randn(1, KV_HEADS, 40, DIM)
    causal = causal_mask(4, 40, 36)[0, 0]
    topk = heaviest(query, keys, causal, SCALING, 10)
    scores = query[0] @ keys[0].repeat_interleave(HEADS // KV_HEADS, 0).transpose(1, 2) * SCALING
    mass = scores.masked_fill(~causal, -torch.inf).softmax(-1).sum(0)
    assert topk.dtype == torch.int32
    for row in range(4):
        assert set(topk[row].tolist()) == set(mass[row].argsort(descending=True)[:10].tolist())


def test_heaviest_prefers_weightless_positions_to_later_ones():
    """One key outweighs all others by more than float32 can say: their mass is 0, as is that of the future."""
    query, keys = torch.ones(1, 1, 4, DIM), torch.zeros(1, 1, 12, DIM)
    keys[0, 0, 2] = 1000
    topk = heaviest(query, keys, causal_mask(4, 12, 6)[0, 0], scaling=1.0, top_k=8)
    for row, position in enumerate(range(6, 10)):
        seen = [p for p in topk[row].tolist() if p <= position]
        assert len(seen) == min(8, position + 1) and 2 in seen


def test_heaviest_takes_a_short_history_whole():
    topk = heaviest(torch.randn(1, 1, 2, DIM), torch.randn(1, 1, 5, DIM), causal_mask(2, 5, 3)[0, 0], 1.0, top_k=8)
    assert topk.dtype == torch.int32 and topk.tolist() == 2 * [[0, 1, 2, 3, 4]]


def test_misuse_is_refused():
    model = tiny_llama(top_k=8)
    tokens = [1, 2, 3]
    kv = DenseKV(DenseHistory(model, 8), start=0, length=3, prefill=True)
    with pytest.raises(ValueError, match=r"tokens must be as many as kv\.length, 3, got 2"):
        model.forward(kv, tokens[:2])
    kv.top_k = 9
    with pytest.raises(ValueError, match=r"kv\.top_k must be the model's, 8, got 9"):
        model.forward(kv, tokens)
    with pytest.raises(ValueError, match="needs a SparseCache"):
        model.module(input_ids=torch.tensor([tokens]))
    with pytest.raises(ValueError, match="attention_mask must be None"):
        model.module(input_ids=torch.tensor([tokens]), attention_mask=torch.ones(1, 3))
