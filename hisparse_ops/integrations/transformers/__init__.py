"""Hugging Face transformers models that decode from a HiSparse KV cache.

    model = load("smollm2")
    logits = model.forward(kv, tokens)        # kv: a `models.kv.SparseKV` of `model.spec`'s layout

Everything goes through the extension points of transformers: an attention function, a mask function
and a cache. No model code is replaced.

| file | holds |
|---|---|
| cache.py | that cache as a transformers `Cache`, layer by layer |
| attention.py | the attention function: select at leaders, then attend to the selected rows |
| models.py | the models that `load` knows, and the layout they need |
| prompts.py | long distinct prompts to feed them |

Importing this package does not import transformers; `load` and `TransformersModel` do.
"""

from hisparse_ops.integrations.transformers.model import TransformersModel, load
from hisparse_ops.integrations.transformers.prompts import sample_prompts

__all__ = ["TransformersModel", "load", "sample_prompts"]
