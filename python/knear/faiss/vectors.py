"""Arrays that FAISS keeps as std::vector: attributes such as pq.centroids or index.id_map."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Ownership:
    """`this` of an object of FAISS: whether Python frees it. It always does here."""

    def own(self, owned: bool | None = None) -> bool:
        return True

    def acquire(self) -> None: ...

    def disown(self) -> None: ...


class Vector:
    """A list of numbers of one type, which vector_to_array() and copy_array_to_vector() take.

    Its array is replaced, never changed, so that what was made of it is seen to be out of date.
    """

    this, thisown = Ownership(), True
    dtype: Any = np.float32

    def __init__(self, values: ArrayLike = (), dtype: Any = None) -> None:
        self.dtype = np.dtype(self.dtype if dtype is None else dtype)
        self.set(values)

    def set(self, values: ArrayLike) -> None:
        """Takes a copy of all these numbers, in C order, instead of those that it has."""
        self.array: NDArray[Any] = np.array(values, self.dtype).ravel()

    def size(self) -> int:
        return self.array.size

    __len__ = size

    def at(self, place: int) -> Any:
        return self.array[place].item()

    __getitem__ = at

    def data(self) -> NDArray[Any]:
        return self.array

    def push_back(self, value: Any) -> None:
        self.set(np.append(self.array, value))

    def resize(self, size: int) -> None:
        out = np.zeros(size, self.dtype)
        kept = min(size, self.array.size)
        out[:kept] = self.array[:kept]
        self.array = out

    def clear(self) -> None:
        self.set(())

    def swap(self, other: Vector) -> None:
        """Exchanges the numbers of two vectors."""
        assert self.dtype == other.dtype, f"vectors of {self.dtype} and {other.dtype}"
        mine, theirs = self.array, other.array
        self.set(theirs)
        other.set(mine)


def _kind(name: str, dtype: Any) -> type[Vector]:
    return type(name, (Vector,), {"dtype": dtype, "__doc__": f"A list of {dtype.__name__}."})


Float32Vector = FloatVector = MaybeOwnedVectorFloat32 = _kind("Float32Vector", np.float32)
Float64Vector = DoubleVector = _kind("Float64Vector", np.float64)
UInt8Vector = ByteVector = MaybeOwnedVectorUInt8 = _kind("UInt8Vector", np.uint8)
Int8Vector = CharVector = _kind("Int8Vector", np.int8)
Int16Vector = _kind("Int16Vector", np.int16)
UInt16Vector = _kind("UInt16Vector", np.uint16)
Int32Vector = IntVector = _kind("Int32Vector", np.int32)
UInt32Vector = _kind("UInt32Vector", np.uint32)
Int64Vector = LongVector = LongLongVector = _kind("Int64Vector", np.int64)
UInt64Vector = Uint64Vector = _kind("UInt64Vector", np.uint64)


class IdVector(Int64Vector):
    """The ids of an IndexIDMap: an Int64Vector that appends without a copy of what it has, and
    finds the places of ids. It keeps the ids in order, and those that came since in a dictionary,
    until they are many."""

    _FEW = 1 << 12  # ids in the dictionary before they are a share of all

    @property
    def array(self) -> NDArray[np.int64]:  # type: ignore[override]
        return self._room[: self._size]

    @array.setter
    def array(self, values: NDArray[np.int64]) -> None:
        self._room, self._size = values, values.size
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._since: dict[int, int] = {}

    def append(self, ids: NDArray[np.int64]) -> None:
        end = self._size + len(ids)
        if end > len(self._room):
            room = np.empty(max(end, 2 * self._size), np.int64)
            room[: self._size] = self.array
            self._room = room
        self._room[self._size : end] = ids
        if self._sorted is not None:
            self._since.update(zip(ids.tolist(), range(self._size, end), strict=True))
        self._size = end

    def places_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each of `ids` stands, the last place of those that come twice; -1 for others."""
        if self._sorted is None or len(self._since) > max(self._FEW, len(self._sorted[0]) // 8):
            order = np.argsort(self.array, kind="stable")
            self._sorted, self._since = (self.array[order], order), {}
        there, order = self._sorted
        at = np.searchsorted(there, ids, side="right") - 1
        found = (at >= 0) & (there[at] == ids) if len(there) else np.zeros(len(ids), np.bool_)
        out = np.where(found, order[at], -1) if len(there) else np.full(len(ids), -1)
        if self._since and len(ids) <= self._FEW:
            out = np.array(
                [self._since.get(i, p) for i, p in zip(ids.tolist(), out.tolist(), strict=True)],
                np.int64,
            )
        elif self._since:
            new = np.fromiter(self._since, np.int64)
            order = np.argsort(new)
            at = np.searchsorted(new[order], ids).clip(max=len(new) - 1)
            places = np.fromiter(self._since.values(), np.int64)[order]
            out = np.where(new[order][at] == ids, places[at], out)
        return out


class Copy(UInt8Vector):
    """The bytes of an index as they were when it was asked: not a way to change it."""

    def __init__(self, values: ArrayLike) -> None:
        self.array = np.array(values, np.uint8).ravel()

    def set(self, values: ArrayLike) -> None:
        raise NotImplementedError(
            "the codes of an index are not written to: add_sa_codes() adds, reset() removes them"
        )

    def resize(self, size: int) -> None:
        self.set(())


class Map(dict):
    """A std::unordered_map: size(), at() and count() beside what a dict has."""

    at = dict.__getitem__

    def size(self) -> int:
        return len(self)

    def count(self, key: Any) -> int:
        return int(key in self)


class Objects(list):
    """A std::vector of objects: size(), at() and push_back() beside what a list has."""

    push_back = list.append

    def size(self) -> int:
        return len(self)

    def at(self, place: int) -> Any:
        return self[place]


def _vectors(name: str) -> type[Objects]:
    return type(name, (Objects,), {"__doc__": "A std::vector of objects."})


VectorTransformVector = _vectors("VectorTransformVector")
OperatingPointVector = _vectors("OperatingPointVector")
ParameterRangeVector = _vectors("ParameterRangeVector")
ClusteringIterationStatsVector = _vectors("ClusteringIterationStatsVector")
Float32VectorVector = FloatVectorVector = _vectors("Float32VectorVector")
UInt8VectorVector = ByteVectorVector = _vectors("UInt8VectorVector")
Int32VectorVector = _vectors("Int32VectorVector")
Int64VectorVector = LongVectorVector = _vectors("Int64VectorVector")


def vector_to_array(v: Vector) -> NDArray[Any]:
    """A copy of the numbers."""
    if not isinstance(v, Vector):
        raise NotImplementedError(f"vector_to_array takes no {type(v).__name__}")
    return v.array.copy()


vector_float_to_array = vector_to_array


def copy_array_to_vector(a: NDArray[Any], v: Vector) -> None:
    """Makes `v` hold the numbers of the 1-D array `a`, which has to have its type."""
    (_,) = a.shape
    assert a.dtype == v.dtype, f"cannot copy array of {a.dtype} to a vector of {v.dtype}"
    v.set(a)


def swig_ptr(a: NDArray[Any]) -> NDArray[Any]:
    """The array itself, which stands for its address wherever a function here takes one."""
    if not a.flags.c_contiguous:
        raise ValueError("array is not C-contiguous")
    return a


def rev_swig_ptr(ptr: NDArray[Any], n: int) -> NDArray[Any]:
    """The first `n` numbers of what swig_ptr() or a method here returned."""
    return np.ravel(ptr)[:n]
