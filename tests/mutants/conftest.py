"""The model lives beside the package, not in it. The root goes last: the installed package wins."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
