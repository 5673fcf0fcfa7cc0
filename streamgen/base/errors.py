"""Every error that a user of streamgen can meet and that is not a plain ValueError or TypeError.

A bad argument (a size, a format, a shape) raises ValueError or TypeError at the call. The classes here
name the failures that have a cause outside the arguments: a model, a budget, a tool, a file, a device.
"""

from collections.abc import Sequence


class AccuracyWarning(UserWarning):
    """What was asked for costs accuracy that the user may not expect; says how much, and what costs less."""


class GenerationWarning(UserWarning):
    """A checkpoint has settings of generation that change its texts and are not applied; names them."""


class StreamgenError(Exception):
    """Base of all errors below."""


class UnsupportedOperationError(StreamgenError):
    """A model holds operations that streamgen cannot compile.

    The first line of the message says what is missing; at most eight lines follow, in which what repeats from
    layer to layer is said once. operations: all of it, a line for each call, with the line of the source that
    made it, be it of an installed package.
    """

    def __init__(self, message: str, operations: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.operations = tuple(operations) or (message,)


class GraphError(StreamgenError):
    """A graph breaks a law of the intermediate representation; names the node or the edge."""


class ImportMismatchError(StreamgenError):
    """An imported graph computes something else than its module does in torch; names the first operation that
    differs.

    operation: its path in the graph. difference: of the results, as a share of their norm.
    """

    def __init__(self, message: str, operation: str = "", difference: float = 0.0) -> None:
        super().__init__(message)
        self.operation, self.difference = operation, difference


class BudgetError(StreamgenError):
    """A design does not fit its budget; says which resource, by how much, and what would help."""


class CheckpointError(StreamgenError):
    """A checkpoint file is corrupt, truncated or lacks a tensor."""


class MissingToolError(StreamgenError):
    """A program that streamgen calls is not installed; says the command that installs it."""


class ToolError(StreamgenError):
    """A program that streamgen calls has failed, or is of a release that cannot be used; says what it
    printed, and where its log is."""


class DeviceError(StreamgenError):
    """An accelerator ended a run with an error (bus error, wrong design, corrupt status)."""


class DeviceTimeoutError(DeviceError):
    """A run made no progress for the length of the watchdog; says which streams wait for whom."""


class StorageError(StreamgenError):
    """The storage of a search cannot be reached, or is of another release."""


class ProbeError(StreamgenError):
    """A token in the hardware is not the one that golden has there; names edge, token, element and cycle."""
