"""Control is pure Python: the standard library and itself, nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import hisparse_ops.control

FILES = sorted(Path(hisparse_ops.control.__file__).parent.glob("*.py"))


def imported(tree: ast.Module) -> set[str]:
    """Top-level names that a module imports; relative imports count as "."."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level or (node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_imports_only_the_standard_library_and_control(file: Path) -> None:
    assert imported(ast.parse(file.read_text())) - sys.stdlib_module_names <= {"."}


def test_the_scan_sees_every_kind_of_import() -> None:
    source = "import torch.nn\ndef f():\n    from numpy import x\n    from ..memory import y\n    from . import z"
    assert imported(ast.parse(source)) == {"torch", "numpy", "..", "."}


def test_files_are_short() -> None:
    assert {file.name: length for file in FILES if (length := len(file.read_text().splitlines())) > 300} == {}
