"""Which ids a search or removal is about: IDSelector*."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .fields import whole_ids
from .missing import Lacking
from .vectors import Ownership


class IDSelector(Lacking):
    """A set of ids. mask() says it of many at once; is_member() of one."""

    this, thisown = Ownership(), True

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of each of `ids` whether it is in the set. A class of one's own may have is_member()
        alone."""
        if type(self).is_member is IDSelector.is_member:
            raise NotImplementedError("a selector needs is_member(id) or mask(ids)")
        return np.fromiter((bool(self.is_member(int(i))) for i in ids), np.bool_, len(ids))

    def is_member(self, id: int) -> bool:
        return bool(self.mask(np.array([id], np.int64))[0])

    def mask_to(self, size: int) -> NDArray[np.bool_]:
        """mask() of the ids 0, 1, ..., size - 1."""
        return self.mask(np.arange(size))


class IDSelectorRange(IDSelector):
    """imin <= id < imax."""

    def __init__(self, imin: int, imax: int, assume_sorted: bool = False) -> None:
        self.imin, self.imax = operator.index(imin), operator.index(imax)
        self.assume_sorted = bool(assume_sorted)

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (ids >= self.imin) & (ids < self.imax)

    def find_sorted_ids_bounds(self, list_size: int, ids: Any, jmin: Any, jmax: Any) -> None:
        """Where those of the first so many of `ids`, which go up, begin and end that are in it,
        into arrays of one number each."""
        jmin[0], jmax[0] = np.searchsorted(ids[:list_size], [self.imin, self.imax])


class _OfIds(IDSelector):
    """A set of given ids. Where they lie close together a table of bools has a place for each id
    from the least to the largest one, which takes no sorting."""

    _SPARSE = 32  # places of the table for each id, at most

    def __init__(self, *args: Any) -> None:
        self._given = whole_ids("ids", _array(args)).copy()
        self._first = int(self._given.min()) if self._given.size else 0
        places = int(self._given.max()) - self._first + 1 if self._given.size else 0
        self._table: NDArray[np.bool_] | None = None
        if places <= self._SPARSE * self._given.size + (1 << 16):
            self._table = np.zeros(places, np.bool_)
            self._table[self._given - self._first] = True
        else:
            self._ids = np.unique(self._given)

    def _size(self) -> int:
        """How many different ids there are."""
        return len(self._ids) if self._table is None else int(self._table.sum())

    def mask_to(self, size: int) -> NDArray[np.bool_]:
        if self._table is None or type(self).mask is not _OfIds.mask:
            return super().mask_to(size)
        out = np.zeros(size, np.bool_)
        begin, end = max(0, self._first), min(size, self._first + len(self._table))
        if begin < end:
            out[begin:end] = self._table[begin - self._first : end - self._first]
        return out

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self._table is None:
            at = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
            return self._ids[at] == ids
        last = self._first + len(self._table)
        out = (ids >= self._first) & (ids < last)
        if out.all():
            return self._table[ids - self._first]
        out[out] = self._table[ids[out] - self._first]
        return out


def few_ids(selector: IDSelector, size: int) -> NDArray[np.int64] | None:
    """The ids of a selector, each once, ascending, where they are few beside so many rows."""
    if not isinstance(selector, _OfIds) or type(selector).mask is not _OfIds.mask:
        return None
    return np.unique(selector._given) if 16 * selector._given.size <= size else None


def rows_named(selector: IDSelector, size: int) -> NDArray[np.int64]:
    """The rows of 0, 1, ..., size - 1 that are in a selector, ascending."""
    ids = few_ids(selector, size)
    if ids is None:
        return np.flatnonzero(selector.mask_to(size))
    return ids[(ids >= 0) & (ids < size)]


class IDSelectorBatch(_OfIds):
    """The ids of an array; IDSelectorBatch(n, array) takes the first n of them."""

    @property
    def n(self) -> int:
        return self._size()

    @property
    def nbits(self) -> int:
        """Of the Bloom filter that FAISS has: there is none here."""
        return max(0, len(self._given) - 1).bit_length() + 5


class IDSelectorArray(_OfIds):
    """The same, which FAISS goes through one by one."""

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._given

    @property
    def n(self) -> int:
        return len(self._given)


class IDSelectorBitmap(IDSelector):
    """id is in it where bit id % 8 of byte id / 8 of an array of uint8 is set."""

    def __init__(self, *args: Any) -> None:
        packed = np.asarray(_array(args))
        if packed.dtype != np.uint8:
            raise TypeError(f"a bitmap is bytes, of type uint8, but has type {packed.dtype}")
        self._bits = np.unpackbits(np.ascontiguousarray(packed), bitorder="little").astype(np.bool_)

    @property
    def n(self) -> int:
        """How many bytes there are."""
        return len(self._bits) // 8

    @property
    def bitmap(self) -> NDArray[np.uint8]:
        """The bytes [n], a copy."""
        return np.packbits(self._bits, bitorder="little")

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        there = (ids >= 0) & (ids < len(self._bits))
        out = np.zeros(len(ids), np.bool_)
        out[there] = self._bits[ids[there]]
        return out


class IDSelectorAll(IDSelector):
    """Every id."""

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(len(ids), np.bool_)


class IDSelectorNot(IDSelector):
    """Those that another selector leaves out."""

    def __init__(self, sel: IDSelector) -> None:
        self.sel = sel

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return ~self.sel.mask(ids)


class _Both(IDSelector):
    def __init__(self, lhs: IDSelector, rhs: IDSelector) -> None:
        self.lhs, self.rhs = lhs, rhs


class IDSelectorAnd(_Both):
    """Those in both."""

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.lhs.mask(ids) & self.rhs.mask(ids)


class IDSelectorOr(_Both):
    """Those in either."""

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.lhs.mask(ids) | self.rhs.mask(ids)


class IDSelectorXOr(_Both):
    """Those in exactly one of two."""

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.lhs.mask(ids) ^ self.rhs.mask(ids)


class IDSelectorTranslated(IDSelector):
    """i is in it where id_map[i] is in another selector."""

    def __init__(self, id_map: Any, sel: IDSelector) -> None:
        self.id_map, self.sel = id_map, sel

    def mask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        to = getattr(self.id_map, "id_map", self.id_map)  # of an index, or the ids themselves
        return self.sel.mask(np.asarray(getattr(to, "array", to), np.int64)[ids])


class PyCallbackIDSelector(IDSelector):
    """Those for which a function of the id says so."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def is_member(self, id: int) -> bool:
        return bool(self._function(id))


def _array(args: tuple[Any, ...]) -> NDArray[Any]:
    """The one argument, an array, or the first n numbers of the second."""
    if len(args) == 1:
        return np.ravel(getattr(args[0], "array", args[0]))
    n, values = args
    return np.ravel(values)[:n]


def selector_of(which: Any) -> IDSelector:
    """What remove_ids() takes, a selector or a 1-D array of ids, as a selector."""
    if isinstance(which, IDSelector):
        return which
    which = np.asarray(which)
    assert which.ndim == 1, "ids must be an array of one dimension"
    return IDSelectorArray(which)
