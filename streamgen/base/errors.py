"""The errors and warnings of streamgen, apart from plain ValueError and TypeError.

A bad argument (a size, a format, a shape) raises ValueError or TypeError at the call. The classes here stand
for failures with a cause outside the arguments: a model, a budget, a tool, a file, a device.
"""

from collections.abc import Sequence


class AccuracyWarning(UserWarning):
    """The chosen options cost accuracy that the user may not expect. The message says how much accuracy, and
    which options cost less."""


class GenerationWarning(UserWarning):
    """A checkpoint has generation settings that change its texts and that streamgen does not apply. The
    message names them."""


class StreamgenError(Exception):
    """Base of all errors below."""


class UnsupportedOperationError(StreamgenError):
    """A model has operations that streamgen cannot compile.

    The first line of the message says what is missing. At most eight lines follow; operations that repeat
    from layer to layer share a line. operations: a line for each call, with the line of source code that
    made the call, even if that line is in an installed package.
    """

    def __init__(self, message: str, operations: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.operations = tuple(operations) or (message,)


class GraphError(StreamgenError):
    """A graph breaks a law of the intermediate representation. The message names the node or the edge."""


class ImportMismatchError(StreamgenError):
    """An imported graph and its torch module compute different results. The message names the first operation
    that differs.

    operation: path of that operation in the graph. difference: norm of the difference of the results, as a
    share of the norm of the results.
    """

    def __init__(self, message: str, operation: str = "", difference: float = 0.0) -> None:
        super().__init__(message)
        self.operation, self.difference = operation, difference


class BudgetError(StreamgenError):
    """A design does not fit its budget. The message says which resource is short, by how much, and what would
    help.

    needed_bytes, available_bytes: if memory is short, the bytes that the design needs and the bytes of all
    channels that it may use; 0 otherwise. Channels may be short of memory though all together have enough.
    """

    def __init__(self, message: str, *, needed_bytes: int = 0, available_bytes: int = 0) -> None:
        super().__init__(message)
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes


class CheckpointError(StreamgenError):
    """A checkpoint file is corrupt or truncated, or a tensor is missing."""


class MissingToolError(StreamgenError):
    """A program or package that streamgen needs is not installed. The message gives the command that installs
    it."""


class ToolError(StreamgenError):
    """A program that streamgen calls has failed, or its release cannot be used. The message quotes the output
    of the program and says where its log is."""


class DeviceError(StreamgenError):
    """An accelerator ended a run with an error (bus error, wrong design, corrupt status)."""


class DeviceTimeoutError(DeviceError):
    """A run made no progress until the watchdog ended it. The message says which streams wait for which
    nodes."""


class StorageError(StreamgenError):
    """The storage of a search cannot be reached, or another release wrote it."""


class ProbeError(StreamgenError):
    """A token in the hardware differs from the token of the golden model. The message names edge, token,
    element and cycle."""
