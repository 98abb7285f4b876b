"""The exceptions of knear: one for each class of knear/core/error.hpp, with the same name.

Each is also what Python calls such an error, so that `except ValueError` works. A message is one
line that names the argument and the values.
"""


class Error(Exception):
    """Every error that knear raises on purpose.

    >>> import knear, numpy as np
    >>> try:
    ...     knear.knn(np.ones((1, 3)), np.ones((5, 4)), k=1)
    ... except knear.Error as error:
    ...     print(f"{type(error).__name__}: {error}")
    ShapeMismatch: queries have 3 columns, base has 4
    """


class InvalidArgument(Error, ValueError):
    """A value that no call accepts."""


class ShapeMismatch(Error, ValueError):
    """Two arguments that do not fit each other."""


class CorruptFile(Error, ValueError):
    """A file that is not what it says."""


class IoError(Error, OSError):
    """The system refused: permission, space, no such file."""


class MemoryBudgetError(Error, MemoryError):
    """Does not fit into the memory that was given; raised before allocating."""


class DeviceUnavailable(Error, RuntimeError):
    """No such device here, or knear was built without it."""


class Cancelled(Error):
    """The work was asked to stop. (Ctrl-C raises KeyboardInterrupt, not this.)"""
