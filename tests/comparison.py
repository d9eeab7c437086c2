"""Equality bit for bit, with the first difference named."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes: equal where NaNs are, too."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def assert_equal(found: Any, expected: Any) -> None:
    """Bit for bit, whatever the dtype."""
    found, expected = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        wrong = (bits(one) != bits(other)).nonzero()
        assert not wrong.numel(), f"tensor {number} differs first at byte {int(wrong[0])}"
