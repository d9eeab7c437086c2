"""`python -m protocol`, from `tests/`: explore the real coordinator within bounds, or walk it for volume."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # the model; last, so that the installed package wins

from protocol.cli import main

sys.exit(main())
