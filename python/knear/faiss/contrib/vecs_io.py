"""Files of vectors: fvecs, ivecs and bvecs, in which each row begins with its length."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def _matrix(data: Any, name: str) -> Any:
    """Rows of 4-byte numbers, each after its length."""
    assert data.size, f"{name} is empty"
    columns = int(data[0])
    assert columns > 0 and data.size % (columns + 1) == 0, f"{name} has rows of other lengths"
    return data.reshape(-1, columns + 1)[:, 1:]


def ivecs_read(fname: Any) -> NDArray[np.int32]:
    return _matrix(np.fromfile(fname, "<i4"), fname).copy()


def fvecs_read(fname: Any) -> NDArray[np.float32]:
    return ivecs_read(fname).view(np.float32)


def ivecs_mmap(fname: Any) -> Any:
    return _matrix(np.memmap(fname, "<i4", "r"), fname)


def fvecs_mmap(fname: Any) -> Any:
    return ivecs_mmap(fname).view(np.float32)


def bvecs_mmap(fname: Any) -> Any:
    data = np.memmap(fname, np.uint8, "r")
    columns = int(data[:4].view("<i4")[0])
    return data.reshape(-1, columns + 4)[:, 4:]


def ivecs_write(fname: Any, m: Any) -> None:
    lengths = np.full((len(m), 1), m.shape[1], "<i4")
    np.hstack([lengths, np.asarray(m, "<i4")]).tofile(fname)


def fvecs_write(fname: Any, m: Any) -> None:
    ivecs_write(fname, np.ascontiguousarray(m, np.float32).view(np.int32))
