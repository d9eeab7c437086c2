"""Prints the folder of the installed torch, or nothing. Run by CMake."""

import importlib.util
import sysconfig
from pathlib import Path

# In an isolated build the environment's packages are hidden from the import system, not from the disk.
installed = Path(sysconfig.get_path("platlib")) / "torch"
if (installed / "include").is_dir():
    print(installed)
elif (spec := importlib.util.find_spec("torch")) and spec.origin:
    print(Path(spec.origin).parent)
