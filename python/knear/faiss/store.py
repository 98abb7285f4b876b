"""The rows of an index of codes: a code, an id and a list each, in the order of adding."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core

_FEW = 64  # rows that are removed in place


def _close_gaps(array: NDArray[Any], gone: NDArray[np.int64], size: int) -> None:
    """Moves the rows behind each of these, which go up, of the first `size` rows of an array."""
    numbers = array.reshape(-1)  # of one dimension, in which NumPy moves without a copy
    width = len(numbers) // max(1, len(array))
    for back, (row, end) in enumerate(zip(gone, [*gone[1:], size], strict=True)):
        numbers[(row - back) * width : (end - back - 1) * width] = numbers[
            (row + 1) * width : end * width
        ]


class Store:
    """Arrays that grow at their ends. `version` tells one content from another, and removed_since()
    says how rows of an earlier one became those of now."""

    def __init__(self, code_size: int) -> None:
        self.version = 0
        self._made_of_all(
            np.empty((0, code_size), np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
        )

    def _made_of_all(self, codes: Any, ids: Any, lists: Any) -> None:
        self._codes, self._ids, self._lists = codes, ids, lists
        self.size = len(ids)
        self._changed()

    def _changed(self, traced: bool = False) -> None:
        """A new version, of which `_removed` says all: rows were added at the end, or it has those
        that are gone. Otherwise nothing is known of the rows of before."""
        self.version += 1
        if not traced:
            self._traced_since = self.version
            self._removed: list[NDArray[np.int64]] = []
            self._versions: list[int] = []  # after each of these
            self._gone = 0  # rows in `_removed`
        self._order: tuple[Any, Any] | None = None

    def removed_since(self, version: int) -> list[NDArray[np.int64]] | None:
        """The numbers of the rows that went, of each removal since that version. Others were added
        at the end; None where more has changed."""
        if version < self._traced_since:
            return None
        return self._removed[bisect_right(self._versions, version) :]

    @property
    def codes(self) -> NDArray[np.uint8]:
        """[n x code_size]"""
        return self._codes[: self.size]

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: self.size]

    @property
    def lists(self) -> NDArray[np.int64]:
        return self._lists[: self.size]

    def add(self, codes: Any, ids: Any, lists: Any = 0) -> None:
        self.room(len(codes))[:] = codes
        self.fill(len(codes), ids, lists)

    def room(self, rows: int) -> NDArray[np.uint8]:
        """Where the codes of this many rows go that fill() then adds."""
        end = self.size + rows
        if end > len(self._ids):
            room = max(end, 2 * self.size)
            for name in ("_codes", "_ids", "_lists"):
                old = getattr(self, name)
                new = np.empty((room, *old.shape[1:]), old.dtype)
                new[: self.size] = old[: self.size]
                setattr(self, name, new)
        return self._codes[self.size : end]

    def fill(self, rows: int, ids: Any, lists: Any = 0) -> None:
        """Adds the rows whose codes are in room()."""
        end = self.size + rows
        self._ids[self.size : end] = ids
        self._lists[self.size : end] = lists
        self.size = end
        self._changed(traced=True)

    def keep(self, rows: NDArray[np.bool_], renumber: bool = False) -> None:
        """These rows alone. renumber: under ids 0, 1, ..."""
        gone = np.flatnonzero(~rows)
        if len(gone) <= _FEW:
            for array in (self._codes, self._lists, self._ids):
                _close_gaps(array, gone, self.size)
            self.size -= len(gone)
        else:
            self._codes, self._lists = self.codes[rows], self.lists[rows]
            self._ids = self.ids[rows]
            self.size = len(self._ids)
        if renumber:
            self._ids[: self.size] = np.arange(self.size)
        self._changed(traced=True)
        self._removed.append(gone)
        self._versions.append(self.version)
        self._gone += len(gone)
        if self._gone > self.size:  # to be made anew
            self._changed()

    def replace(self, rows: Any, codes: Any, lists: Any) -> None:
        self.codes[rows] = codes
        self.lists[rows] = lists
        self._changed()

    def close_up(self, kept: NDArray[np.bool_]) -> None:
        """Moves the ids up into the places of those that were not kept, of 0, 1, ..."""
        self.ids[:] = (np.cumsum(kept) - 1)[self.ids]

    def clear(self) -> None:
        self.size = 0  # the memory stays, for the next rows
        self._changed()

    def by_list(self, lists: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows, begin): those of list i stand at begin[i] : begin[i + 1], in order of adding."""
        if self._order is None or len(self._order[1]) != lists + 1:
            self._order = _core.rows_by_list(self.lists, lists)
        return self._order

    def has_order(self, lists: int) -> bool:
        """Whether by_list() has its answer already."""
        return self._order is not None and len(self._order[1]) == lists + 1
