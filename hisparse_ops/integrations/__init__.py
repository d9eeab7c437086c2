"""Bridges to other libraries. Each imports its third party only when it is used."""

from __future__ import annotations

from importlib.util import find_spec


def require(*modules: str, extra: str) -> None:
    """Raise ImportError with the command to run if one of `modules` is not installed."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise ImportError(f"{' and '.join(missing)} not installed: pip install 'hisparse_ops[{extra}]'")
