"""`hisparse_ops.control` and `hisparse_ops.memory` without torch.

They are pure Python themselves, but the package above them loads torch and the compiled ops, through
which no symbolic integer gets.
"""

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType


def bare_package() -> ModuleType:
    """`hisparse_ops`, put into place without being executed. To be called before anything imports it."""
    found = find_spec("hisparse_ops")
    if found is None or "hisparse_ops" in sys.modules:
        raise ImportError("hisparse_ops is not installed, or loaded already")
    package = sys.modules["hisparse_ops"] = module_from_spec(found)
    return package
