"""Opens files that a user names, without being held up by a pipe or a device."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import IO, Any

_FLAGS = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC}


def regular(path: Any, mode: str = "rb", **how: Any) -> IO[Any]:
    """open(path, mode, **how) of a regular file, to be read or written from its beginning. OSError
    for anything else: open() of a pipe would wait for its other end, perhaps for ever."""
    path = os.fspath(path)
    try:
        number = os.open(path, _FLAGS[mode[0]] | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a pipe without a reader, or a socket
            raise
        raise OSError(errno.EINVAL, "is not a regular file", path) from None
    try:
        kind = os.fstat(number).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        os.set_blocking(number, True)
        return open(number, mode, **how)
    except BaseException:
        with suppress(OSError):  # open() may have closed it
            os.close(number)
        raise
