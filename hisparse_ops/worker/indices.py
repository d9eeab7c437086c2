"""Index tensors on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def index_tensor(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """int32, in memory of its own: queued work keeps the numbers it was given, whatever becomes of the
    caller's. To a GPU without waiting, from pinned memory that lives until the copy has run."""
    on_gpu = device.type == "cuda"
    return torch.tensor(values, dtype=torch.int32, pin_memory=on_gpu).to(device, non_blocking=True)
