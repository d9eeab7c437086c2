"""What a worker refuses, by name. A refusal has changed nothing."""


class WorkerError(RuntimeError):
    """A worker was asked for something it cannot do."""


class WorkerOrderError(WorkerError):
    """A call at the wrong moment of a step, or of a forward pass."""


class EpochError(WorkerError):
    """A plan of another life of the worker than the present one."""


class PlanError(WorkerError):
    """A plan names a state row, page, block or group that the worker does not have."""


class UnreadableError(WorkerError):
    """A forward pass would read or write a page that has no place for it."""
