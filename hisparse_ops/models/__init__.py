"""A compact sparse-MLA decoder with random weights: what GLM-5 and DeepSeek-V3.2 compute, at a size for tests, demo
and benchmarks.

| file       | holds                                                                        |
|------------|------------------------------------------------------------------------------|
| config.py  | its sizes, and the memory layout they need                                   |
| kv.py      | what models ask of a KV cache                                                |
| layers.py  | latent attention, indexer, MLP: one layer                                    |
| decoder.py | the layers, one after the other                                              |
| runner.py  | one request a pass, on the engine's `SparseKV`                               |
| step.py    | one token of every request of a batch, as one graph for `torch.compile`      |
| prompts.py | random tokens to feed it                                                     |

Both ways of running it share all arithmetic; they differ in the cache that they hand to the layers.
"""

from hisparse_ops.models.config import DecoderConfig
from hisparse_ops.models.decoder import Decoder
from hisparse_ops.models.prompts import random_prompts
from hisparse_ops.models.runner import CompactModel, load
from hisparse_ops.models.step import Decoded, DecodeStep, StepTables

__all__ = ["CompactModel", "DecodeStep", "Decoded", "Decoder", "DecoderConfig", "StepTables", "load", "random_prompts"]
