"""What write_index() writes to and read_index() reads from, beside a file by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._regular import regular
from .base import refuse
from .missing import Lacking
from .vectors import Ownership, UInt8Vector


class IOWriter(Lacking):
    """The base of what write_index() writes to."""

    this, thisown = Ownership(), True
    name = ""

    def _write_all(self, data: bytes) -> None:
        raise NotImplementedError("an index is written to one of the writers below IOWriter")


class VectorIOWriter(IOWriter):
    """Takes what is written into `data`."""

    def __init__(self) -> None:
        self.data = UInt8Vector()

    def _write_all(self, data: bytes) -> None:
        self.data.set(np.frombuffer(data, np.uint8))


class IOReader:
    """The base of what read_index() reads from."""

    this, thisown = Ownership(), True
    name = ""

    def _take(self, size: int) -> Any:
        raise NotImplementedError

    def __call__(self, ptr: NDArray[Any], size: int, nitems: int) -> int:
        """Fills an array with nitems numbers of so many bytes, or as many as there are."""
        room = ptr.reshape(-1).view(np.uint8)
        at = 0
        while at < size * nitems and len(some := self._take(size * nitems - at)):
            room[at : at + len(some)] = np.frombuffer(some, np.uint8)
            at += len(some)
        return at // size


class VectorIOReader(IOReader):
    """Gives what is in `data`."""

    def __init__(self) -> None:
        self.data = UInt8Vector()
        self.rp = 0

    def _take(self, size: int) -> Any:
        out = self.data.array[self.rp : self.rp + size]
        self.rp += len(out)
        return out.data


class ZeroCopyIOReader(VectorIOReader):
    """Gives the first `size` bytes of an array. What is read from it is a copy."""

    def __init__(self, data: Any, size: int) -> None:
        super().__init__()
        self.data.array = np.ravel(data).view(np.uint8)[:size]

    def reset(self) -> None:
        """Begins again."""
        self.rp = 0


class PyCallbackIOWriter(IOWriter):
    """Calls a function with bytes, `bs` of them at most."""

    def __init__(self, callback: Callable[[bytes], Any], bs: int = 1 << 20) -> None:
        self._callback, self._at_most = callback, bs

    def _write_all(self, data: bytes) -> None:
        for begin in range(0, len(data), self._at_most):
            self._callback(data[begin : begin + self._at_most])


class PyCallbackIOReader(IOReader):
    """Calls a function with a number of bytes for as many at most, `bs` of them at a time."""

    def __init__(self, callback: Callable[[int], bytes], bs: int = 1 << 20) -> None:
        self._callback, self._at_most = callback, bs

    def _take(self, size: int) -> Any:
        return self._callback(min(size, self._at_most))


class FileIOWriter(IOWriter):
    def __init__(self, name: str) -> None:
        self.name = name

    def _write_all(self, data: bytes) -> None:
        to_file(self.name, lambda write: write(data))


class FileIOReader(IOReader):
    def __init__(self, name: str) -> None:
        self.name = name
        self._file: Any = None
        self._file = opened(name)

    def _take(self, size: int) -> bytes:
        return some_of(self._file, size)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


class BufferedIOWriter(IOWriter):
    """Hands what is written to another writer, `bsz` bytes at a time."""

    def __init__(self, writer: Any, bsz: int = 1 << 20) -> None:
        self.writer, self.bsz = writer, int(bsz)

    def _write_all(self, data: bytes) -> None:
        self.writer._write_all(data)


class BufferedIOReader(IOReader):
    """Reads `bsz` bytes at a time from another reader."""

    def __init__(self, reader: Any, bsz: int = 1 << 20) -> None:
        self.reader, self.bsz = reader, int(bsz)
        self._had, self._at = b"", 0

    def _take(self, size: int) -> bytes:
        if self._at == len(self._had):
            self._had, self._at = bytes(self.reader._take(self.bsz)), 0
        out = self._had[self._at : self._at + size]
        self._at += len(out)
        return out


def to_file(name: Any, put: Callable[[Any], Any]) -> None:
    try:
        with regular(name, "wb") as file:
            put(file.write)
    except OSError as error:
        refuse(f"could not open {name} for writing: {error.strerror}")


def opened(name: Any) -> Any:
    try:
        return regular(name)
    except OSError as error:
        return refuse(f"could not open {name} for reading: {error.strerror}")


def some_of(file: Any, size: int) -> bytes:
    """Up to so many bytes: a damaged file may announce more than memory holds."""
    return file.read(min(size, 1 << 26))
