"""The control plane: pure Python, knows ids and states, never bytes. `Coordinator` is its façade."""

from .config import CoordinatorConfig
from .coordinator import Coordinator
from .errors import ControlError, CountError

__all__ = ["ControlError", "Coordinator", "CoordinatorConfig", "CountError"]
