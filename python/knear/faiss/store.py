"""The rows of an index of codes: a code, an id and a list each, in the order of adding."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .numbering import Numbering

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
        self._rows = Numbering(len(ids))  # first numbers are places in these arrays
        self._end = len(ids)  # of these places
        self._ascending = False  # whether the ids go up, as far as is known
        self._renumber = False  # whether ids have to become 0, 1, ...
        self._changed()

    @property
    def size(self) -> int:
        return self._rows.size

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

    def _settle(self) -> None:
        """Closes the gaps that removals left."""
        if self._rows.is_plain():
            return
        rows = self._rows.all()
        gone = np.setdiff1d(np.arange(self._end), rows, assume_unique=True)
        if len(gone) <= _FEW:
            for array in (self._codes, self._lists, self._ids):
                _close_gaps(array, gone, self._end)
        else:
            self._codes, self._lists = self._codes[rows], self._lists[rows]
            self._ids = self._ids[rows]
        self._end = len(rows)
        self._rows = Numbering(self._end)
        if self._renumber:
            self._ids[: self._end] = np.arange(self._end)
            self._renumber = False

    @property
    def codes(self) -> NDArray[np.uint8]:
        """[n x code_size]"""
        self._settle()
        return self._codes[: self._end]

    @property
    def ids(self) -> NDArray[np.int64]:
        self._settle()
        return self._ids[: self._end]

    @property
    def lists(self) -> NDArray[np.int64]:
        self._settle()
        return self._lists[: self._end]

    def at(self, rows: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """(codes, lists) of these rows."""
        places = self._rows.first(np.asarray(rows))
        return self._codes[places], self._lists[places]

    def ids_at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of these rows."""
        return self._ids[self._rows.first(rows)]

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The rows of these ids, -1 for those that are not there; None where ids do not go up, so
        that all have to be looked at."""
        if not self._ascending or self._renumber:
            return None
        there = self._ids[: self._end]
        at = np.searchsorted(there, ids)
        found = at < len(there)
        found[found] = there[at[found]] == ids[found]
        found &= ~self._rows.is_gone(at)
        return np.where(found, self._rows.rows(at), -1)

    def behind(self, row: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """(codes, lists) of the rows from this one on."""
        if self._rows.gone_behind(row):
            self._settle()
        first = self._end - (self.size - row)
        return self._codes[first : self._end], self._lists[first : self._end]

    def add(self, codes: Any, ids: Any, lists: Any = 0) -> None:
        self.room(len(codes))[:] = codes
        self.fill(len(codes), ids, lists)

    def room(self, rows: int) -> NDArray[np.uint8]:
        """Where the codes of this many rows go that fill() then adds."""
        end = self._end + rows
        if end > len(self._ids):
            size = max(end, 2 * self._end)
            for name in ("_codes", "_ids", "_lists"):
                old = getattr(self, name)
                new = np.empty((size, *old.shape[1:]), old.dtype)
                new[: self._end] = old[: self._end]
                setattr(self, name, new)
        return self._codes[self._end : end]

    def fill(self, rows: int, ids: Any, lists: Any = 0) -> None:
        """Adds the rows whose codes are in room()."""
        first, end = self._end, self._end + rows
        self._ids[first:end] = ids
        self._lists[first:end] = lists
        if rows:
            up = self._ids[max(0, first - 1) : end]
            self._ascending = (self._ascending or not first) and bool((up[1:] > up[:-1]).all())
        self._rows = self._rows.with_rows(first, rows)
        self._end = end
        self._changed(traced=True)

    def keep(self, rows: NDArray[np.bool_], renumber: bool = False) -> None:
        """These rows alone. renumber: under ids 0, 1, ..."""
        self.remove(np.flatnonzero(~rows), renumber)

    def remove(self, gone: NDArray[np.int64], renumber: bool = False) -> None:
        """Takes out these rows, whose numbers go up."""
        self._rows = self._rows.without(gone)
        self._renumber |= renumber
        if self._rows.has_own_numbers():  # many went
            self._settle()
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
        self._ascending = False

    def clear(self) -> None:
        self._end, self._rows = 0, Numbering(0)  # the memory stays, for the next rows
        self._ascending = self._renumber = False
        self._changed()

    def by_list(self, lists: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows, begin): those of list i stand at begin[i] : begin[i + 1], in order of adding."""
        if self._order is None or len(self._order[1]) != lists + 1:
            self._order = _core.rows_by_list(self.lists, lists)
        return self._order

    def is_in_order(self, lists: int) -> bool:
        """Whether nothing has to be done for all rows to go through those of a list; of 0: for
        all rows to be one after another."""
        return self._rows.is_plain() and (not lists or self.has_order(lists))

    def has_order(self, lists: int) -> bool:
        """Whether by_list() has its answer already."""
        return self._order is not None and len(self._order[1]) == lists + 1
