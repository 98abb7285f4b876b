"""Numbers of rows from which some went: those of now, beside those that they had at first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FEW = 1024  # rows that went are kept as a list up to this many, or a share of the others
_NONE = np.empty(0, np.int64)


class Numbering:
    """Rows 0, 1, ... of now and the first number of each, which go up. A removal costs as much as
    the rows that went since there were few of them, however many are left. Never changed: changes
    make another one."""

    __slots__ = ("_end", "_first", "_gone", "_room", "_shift", "size")

    def __init__(self, size: int) -> None:
        self._set(size, None, None, _NONE)

    def _set(self, end: int, first: Any, room: Any, gone: NDArray[np.int64]) -> Numbering:
        # Of places 0 ... end, those in `gone` are no rows. first: their first numbers, None where
        # they are the places; room: an array that begins with these.
        self._end, self._first, self._room, self._gone = end, first, room, gone
        self._shift = gone - np.arange(len(gone)) if len(gone) else gone
        self.size = end - len(gone)
        return self

    def is_plain(self) -> bool:
        """Whether each row still has its first number."""
        return self._first is None and not len(self._gone)

    def has_own_numbers(self) -> bool:
        """Whether the first numbers of all rows are kept, since many went."""
        return self._first is not None

    def _places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(self._gone):
            return rows
        return rows + np.searchsorted(self._shift, rows, side="right")

    def first(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first numbers of these rows."""
        places = self._places(rows)
        return places if self._first is None else self._first[places]

    def rows(self, first: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of these first numbers, which must be there; -1 stays."""
        if self.is_plain():
            return first
        places = first if self._first is None else np.searchsorted(self._first, first)
        if len(self._gone):
            places = places - np.searchsorted(self._gone, places)
        return np.where(first < 0, -1, places)

    def is_gone(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether these places are no rows any more."""
        return np.searchsorted(self._gone, places, side="right") > np.searchsorted(
            self._gone, places
        )

    def all(self) -> NDArray[np.int64]:
        """The first numbers of all rows."""
        return self.first(np.arange(self.size))

    def without(self, rows: NDArray[np.int64]) -> Numbering:
        """Without these rows, which go up."""
        places = self._places(rows)
        gone = np.insert(self._gone, np.searchsorted(self._gone, places), places)
        out = object.__new__(Numbering)._set(self._end, self._first, self._room, gone)
        if len(gone) <= max(_FEW, out.size // 8):
            return out
        first = out.all()
        return out._set(len(first), first, first, _NONE)

    def with_rows(self, first: int, count: int) -> Numbering:
        """With so many rows behind, whose numbers begin with one that is above all others."""
        end = self._end + count
        out: Numbering = object.__new__(Numbering)
        if self._first is None and first == self._end:
            return out._set(end, None, None, self._gone)
        had = np.arange(self._end) if self._first is None else self._first
        room = self._room
        if room is None or end > len(room):
            room = np.concatenate([had, np.empty(end, np.int64)])
        room[self._end : end] = first + np.arange(count)
        return out._set(end, room[:end], room, self._gone)

    def gone_behind(self, row: int) -> bool:
        """Whether any went that were behind this row."""
        place = int(self._places(np.array([row]))[0])
        return bool(len(self._gone)) and int(self._gone[-1]) > place
