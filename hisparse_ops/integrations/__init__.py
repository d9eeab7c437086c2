"""Bridges to other libraries. Each imports its third party only when it is used."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

OLDEST_TRANSFORMERS = (5, 24)  # the first whose models take our cache by that name


def require(*modules: str, extra: str) -> None:
    """Raise ImportError with the command to run if one of `modules` is not installed."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise ImportError(f"{' and '.join(missing)} not installed: pip install 'hisparse_ops[{extra}]'")


def require_transformers(*others: str) -> None:
    """`require` transformers, new enough, and `others`."""
    extra = "transformers"
    require("transformers", *others, extra=extra)
    found = version("transformers")
    if tuple(map(int, found.split(".")[:2])) < OLDEST_TRANSFORMERS:
        oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
        raise ImportError(f"transformers {found} is too old, {oldest} is needed: pip install 'hisparse_ops[{extra}]'")
