"""Vectors and ids in files: read_vectors, write_vectors."""

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _core
from ._progress import Progress, reporting
from .errors import InvalidArgument

_IDS = (b".ivecs", b".ibin")
_BYTES = {b".bvecs": "uint8", b".u8bin": "uint8", b".i8bin": "int8"}


def read_vectors(
    path: "str | os.PathLike[str]",
    *,
    rows: slice | None = None,
    dtype: Any = None,
    progress: Progress = None,
) -> NDArray[Any]:
    """The vectors [n x dim] of a file: .fvecs, .bvecs, .fbin, .u8bin, .i8bin, .npy, MNIST's idx, or
    one of these gzipped; and the ids of .ivecs and .ibin, as int64.

    >>> import knear, numpy as np, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "base.fvecs")
    >>> knear.write_vectors(path, np.eye(3, dtype=np.float32))
    >>> knear.read_vectors(path, rows=slice(1, 3)).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]

    Plain files of float32, float16, float64, uint8 and int8 are mapped, not read: the array is
    read-only, its rows may lie apart, and pages come in as they are used; the file must not shrink
    meanwhile. All else is read into memory. HDF5 files: h5py.

    rows: a slice of step 1, not empty; None for all. Others of a mapped file are not even read.
    dtype: convert to this element type, rounding where it must; a value that it cannot hold at all
        is an error. None: as stored, where whole numbers beyond 16 bits must be exact in float32.
    progress: as of knear.knn; a mapped file is there at once.

    Raises IoError; CorruptFile, naming what was found and what was expected; InvalidArgument.
    """
    name = _arrays.path(path)
    begin, end = 0, -1
    if rows is not None:
        begin, end = _range(rows)
    if name.removesuffix(b".gz").endswith(_IDS):
        if dtype is not None:
            raise InvalidArgument(f"dtype is {dtype!r}, but {path!r} holds ids, which are int64")
        ids = reporting(progress, _core.read_ids, name)
        last = len(ids) if end < 0 else end
        if not begin < last <= len(ids):
            raise InvalidArgument(f"rows are {begin}:{last}, but {path!r} has {len(ids)}")
        return ids[begin:last] if rows is not None else ids
    kind = "" if dtype is None else _arrays.element_type("dtype", dtype)
    data, kind = reporting(progress, _core.read_vectors, name, kind, begin, end, "")
    return _arrays.typed(data, kind)


def write_vectors(
    path: "str | os.PathLike[str]", x: ArrayLike, *, progress: Progress = None
) -> None:
    """Writes `x` [n x dim] to a file, whole or not at all; the ending of the name says how.

    >>> import knear, numpy as np, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "ids.ivecs")
    >>> knear.write_vectors(path, np.array([[4, 2], [1, 3]]))
    >>> knear.read_vectors(path).tolist()
    [[4, 2], [1, 3]]

    .fvecs and .fbin take float32, .bvecs and .u8bin uint8, .i8bin int8, .npy all but bfloat16;
    .ivecs and .ibin whole numbers of 32 bits (ids). Numbers of other types are written as float32
    where that holds each of them exactly; else, and where the format has no such type, it is an
    InvalidArgument. Raises IoError. `progress`: as of knear.knn.
    """
    name = _arrays.path(path)
    if name.endswith(_IDS):
        ids = np.asarray(x)
        if ids.ndim != 2:
            raise InvalidArgument(
                f"x must be a matrix of whole numbers for {path!r}, but has {ids.ndim} dimensions"
            )
        flat = _arrays.ids_of("x", ids.ravel())
        reporting(progress, _core.write_ids, name, flat.reshape(ids.shape))
    else:
        _check_bytes(name, x)
        reporting(progress, _core.write_vectors, name, *_arrays.matrix("x", x))


def _check_bytes(name: bytes, x: Any) -> None:
    """Refuses numbers of another type where a format has bytes alone. Its message names the type
    that was given, not the float32 that it would become."""
    for ending, takes in _BYTES.items():
        given = np.asarray(x).dtype if isinstance(x, (list, tuple)) else getattr(x, "dtype", None)
        fits = given == takes or (given == np.bool_ and takes == "uint8")
        if name.endswith(ending) and isinstance(given, np.dtype) and not fits:
            raise InvalidArgument(
                f"x has type {given}, but {ending.decode()} takes {takes}: "
                f"x.astype(numpy.{takes}) makes it that, if every number fits"
            )


def _range(rows: Any) -> tuple[int, int]:
    if not isinstance(rows, slice) or rows.step not in (None, 1):
        raise InvalidArgument(f"rows must be a slice of step 1, but is {rows!r}")
    begin = 0 if rows.start is None else _arrays.integer("rows.start", rows.start)
    end = -1 if rows.stop is None else _arrays.integer("rows.stop", rows.stop)
    if begin < 0 or (rows.stop is not None and end < begin):
        raise InvalidArgument(f"rows must be a slice forwards from 0 on, but is {rows!r}")
    return begin, end
