"""What control raises when it is asked for the impossible, or finds its own books wrong.

Bad arguments are `ValueError`s that name the argument; a refusal that may pass is an answer
(`types.Refused`), not an error.
"""


class ControlError(RuntimeError):
    """A call that the state does not allow: nothing was changed."""


class CountError(ControlError):
    """A reference count would have gone negative. Counts are never clamped: somebody holds less
    than they give back, and going on would hand one block to two owners."""
