"""The exceptions of knear: one for each class of knear/core/error.hpp, with the same name.

Each is also what Python calls such an error, so that `except ValueError` works. A message is one
line that names the argument and the values.
"""

import errno
import os
from typing import Any


def printable(text: str) -> str:
    """`text` with control characters as \\n, \\t, \\r, \\x1b or \\u009b: a path or a name in a
    message must not begin a line or change what a terminal shows."""
    if text.isprintable():
        return text
    names = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    controls: dict[str, str | int | None] = {
        chr(i): names.get(chr(i), f"\\x{i:02x}" if i < 128 else f"\\u{i:04x}")
        for i in (*range(32), *range(127, 160))
    }
    return text.translate(str.maketrans(controls))


class Error(Exception):
    """Every error that knear raises on purpose.

    >>> import knear, numpy as np
    >>> try:
    ...     knear.knn(np.ones((1, 3)), np.ones((5, 4)), k=1)
    ... except knear.Error as error:
    ...     print(f"{type(error).__name__}: {error}")
    ShapeMismatch: queries have 3 columns, base has 4

    `argument` is the name of the argument that the library refused; None where the message is not
    about one argument.
    """

    argument: str | None = None

    def __str__(self) -> str:
        return printable(super().__str__())


class InvalidArgument(Error, ValueError):
    """A value that no call accepts."""


class ShapeMismatch(Error, ValueError):
    """Two arguments that do not fit each other."""


class CorruptFile(Error, ValueError):
    """A file that is not what it says."""


class IoError(Error, OSError):
    """The system refused: permission, space, no such file. It is a FileNotFoundError,
    PermissionError, IsADirectoryError or FileExistsError too, where one of these is meant, and has
    `errno` and `filename` where the system named a reason.

    >>> import knear
    >>> try:
    ...     knear.Index.load("none.knear")
    ... except FileNotFoundError as error:
    ...     print(error, error.filename, isinstance(error, knear.IoError))
    cannot open 'none.knear': No such file or directory none.knear True
    """

    def __str__(self) -> str:
        return printable(str(self.args[0])) if self.args else ""


class _Kind(IoError):
    """What the classes below add to IoError: they are pickled by errno and file."""

    def __reduce__(self) -> Any:
        return _io_error, (str(self), self.errno or 0, self.filename or "")


class _FileNotFound(_Kind, FileNotFoundError):
    __doc__, __qualname__ = IoError.__doc__, "IoError"


class _NotPermitted(_Kind, PermissionError):
    __doc__, __qualname__ = IoError.__doc__, "IoError"


class _IsADirectory(_Kind, IsADirectoryError):
    __doc__, __qualname__ = IoError.__doc__, "IoError"


class _FileExists(_Kind, FileExistsError):
    __doc__, __qualname__ = IoError.__doc__, "IoError"


_KINDS = {
    errno.ENOENT: _FileNotFound,
    errno.EACCES: _NotPermitted,
    errno.EPERM: _NotPermitted,
    errno.EISDIR: _IsADirectory,
    errno.EEXIST: _FileExists,
}


def _io_error(message: str, number: int, path: str) -> IoError:
    """The IoError of an errno, 0 for none, and of a file."""
    error = _KINDS.get(number, IoError)(message)
    if number:
        error.errno, error.strerror = number, os.strerror(number)
        error.filename = path
    return error


class MemoryBudgetError(Error, MemoryError):
    """Does not fit into the memory that was given; raised before allocating."""


class DeviceUnavailable(Error, RuntimeError):
    """No such device here, or knear was built without it."""


class Cancelled(Error):
    """The work was asked to stop. (Ctrl-C raises KeyboardInterrupt, not this.)"""
