"""Loads the compiled halves of the package and declares ops: all that knows `torch.library`.

An op is declared once, in Python: its schema, its contract (the docstring) and its fake are one decorated
function. C++ implements it for each device and declares nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

NAMESPACE = "hisparse"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def declare(schema: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declares `torch.ops.hisparse.<name>` with `schema`; the decorated function is its fake.

    Returns a function with the fake's signature and docstring that calls the op."""

    def decorate(fake: Callable[P, R]) -> Callable[P, R]:
        name = schema.partition("(")[0].strip()
        _LIBRARY.define(" ".join(schema.split()), tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
        overload = getattr(torch.ops.hisparse, name).default

        @functools.wraps(fake)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result: R = overload(*args, **kwargs)
            return result

        return call

    return decorate


def load() -> None:
    """Loads the CPU kernels, and the CUDA ones where torch has CUDA and they were built."""
    cpu = _find("_C")
    if cpu is None:
        raise ImportError(
            "hisparse_ops has no compiled library (_C): install the package with `pip install --no-deps .` "
            "from its source folder, after torch"
        )
    torch.ops.load_library(cpu)
    if torch.version.cuda and (cuda := _find("_C_cuda")):
        torch.ops.load_library(cuda)


def has_cuda_kernels() -> bool:
    """Whether the ops run on a GPU: the CUDA half was built, and torch is one for CUDA."""
    return bool(torch.version.cuda) and _find("_C_cuda") is not None


def _find(name: str) -> str | None:
    spec = importlib.util.find_spec(f"hisparse_ops.{name}")
    if spec is not None:
        return spec.origin
    # Python started in the source folder finds the sources before the installed package: same version,
    # but the libraries lie only with the latter.
    installed = Path(sysconfig.get_path("platlib")) / "hisparse_ops" / f"{name}.so"
    return str(installed) if installed.is_file() else None
