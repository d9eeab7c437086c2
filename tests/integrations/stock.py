"""Stock transformers to compare with: the same weights, full history, no cache."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from hisparse_ops.integrations.transformers import TransformersModel
from hisparse_ops.integrations.transformers.models import dense_spec

LLAMA_LEADERS = (0, 1, 4)


def tiny_llama(top_k: int, dtype: torch.dtype = torch.float32, block_size: int = 64) -> TransformersModel:
    """A random Llama with grouped-query attention: 6 layers, 6 query heads over 2 kv heads."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.15,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return TransformersModel("tiny-llama", module, dense_spec(module, LLAMA_LEADERS, top_k, block_size, None))


@torch.no_grad()
def stock_logits(
    model: TransformersModel, tokens: list[int], attention: str = "eager", dtype: torch.dtype | None = None
) -> Tensor:
    """Logits after every token, [tokens, vocab] float32, by another attention implementation."""
    module = copy.deepcopy(model.module)
    module.set_attn_implementation(attention)
    if dtype is not None:
        module = module.to(dtype)
    return module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
