"""The lists of an index and the map of its ids, to look at: InvertedLists and DirectMap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base import Sealed, refuse
from ..fields import whole
from ..missing import LISTS
from ..vectors import Int64Vector

if TYPE_CHECKING:
    from .rows import Listed


class DirectMap(Sealed):
    """Whether ids can be looked up, and which: NoMap, Array (ids 0, 1, ...) or Hashtable."""

    NoMap, Array, Hashtable, DMT_count = range(4)

    def __init__(self, type: int = NoMap) -> None:
        self.type = type
        self._of: Listed | None = None  # the index, which says so of itself

    def no(self) -> bool:
        return self.type == self.NoMap

    def get(self, id: int) -> int:
        """Where this id is: list << 32 | place in it."""
        index = self._of
        if index is None or self.no():
            refuse("direct map not initialized")
        return int(self._places(index)[index._rows_of(np.array([id], np.int64))[0]])

    @property
    def array(self) -> Int64Vector:
        """get() of the ids 0, 1, ..., -1 for those that are not there; of a map of type Array."""
        index = self._of
        if index is None or self.type != self.Array:
            return Int64Vector()
        out = np.full(index.ntotal, -1)
        out[index._store.ids] = self._places(index)
        return Int64Vector(out)

    @staticmethod
    def _places(index: Listed) -> NDArray[np.int64]:
        """get() of each row of the store."""
        order, begin = index._store.by_list(index.nlist)
        lists = index._store.lists
        out = np.empty(len(order), np.int64)
        out[order] = np.arange(len(order)) - begin[lists[order]]
        return out | lists << 32

    def check_can_add(self, ids: Any) -> None:
        if self.type == self.Array and ids is not None:
            refuse("cannot have array direct map and add with ids")


class InvertedLists(Sealed):
    """The lists of an index, to look at: what the get_ functions return are copies."""

    INVALID_CODE_SIZE = 2**64 - 1
    SUBSET_TYPE_ID_RANGE, SUBSET_TYPE_ID_MOD, SUBSET_TYPE_ELEMENT_RANGE = range(3)
    SUBSET_TYPE_INVLIST_FRACTION, SUBSET_TYPE_INVLIST = 3, 4

    def __init__(self, index: Listed, *sizes: Any) -> None:
        if not hasattr(type(index), "invlists"):  # a size: FAISS's may be of no index
            raise NotImplementedError(LISTS)
        self._of = index

    @property
    def nlist(self) -> int:
        return self._of.nlist

    @property
    def code_size(self) -> int:
        return self._of.code_size

    def _rows(self, list_no: int) -> NDArray[np.int64]:
        if not 0 <= list_no < self.nlist:
            refuse(f"list {list_no} is not among {self.nlist}")
        rows, begin = self._of._store.by_list(self.nlist)
        return rows[begin[list_no] : begin[list_no + 1]]

    def list_size(self, list_no: int) -> int:
        return len(self._rows(list_no))

    def get_ids(self, list_no: int) -> NDArray[np.int64]:
        return self._of._store.ids[self._rows(list_no)]

    def get_codes(self, list_no: int) -> NDArray[np.uint8]:
        return self._of._store.codes[self._rows(list_no)].ravel()

    def get_single_id(self, list_no: int, offset: int) -> int:
        return int(self.get_ids(list_no)[offset])

    def get_single_code(self, list_no: int, offset: int) -> NDArray[np.uint8]:
        return self._of._store.codes[self._rows(list_no)[offset]]

    use_iterator = False

    def prefetch_lists(self, list_nos: Any, nlist_in: int) -> None: ...

    def release_ids(self, list_no: int, ids: Any) -> None: ...

    def release_codes(self, list_no: int, codes: Any) -> None: ...

    def is_empty(self, list_no: int) -> bool:
        return self.list_size(list_no) == 0

    def compute_ntotal(self) -> int:
        return self._of._store.size

    def _sizes(self) -> NDArray[np.int64]:
        return np.diff(self._of._store.by_list(self.nlist)[1])

    def permute_invlists(self, map: ArrayLike) -> None:
        """List map[i] becomes list i."""
        order = np.ascontiguousarray(map, np.int64).ravel()
        if not np.array_equal(np.sort(order), np.arange(self.nlist)):
            refuse(f"the permutation is none of {self.nlist} lists")
        store = self._of._store
        store.replace(slice(None), store.codes, np.argsort(order)[store.lists])

    def copy_subset_to(self, other: InvertedLists, subset_type: int, a1: int, a2: int) -> int:
        """Adds a part of the rows to the lists of another index, and says how many: those with
        a1 <= id < a2 (ID_RANGE), or id % a1 == a2 (ID_MOD); about a2 - a1 rows, of each list in
        proportion to its length, from a1 / ntotal of it on (ELEMENT_RANGE); part a2 of a1 equal
        parts of each list (INVLIST_FRACTION); lists a1 to a2 - 1 (INVLIST)."""
        rows = self._of._store
        if (other.nlist, other.code_size) != (self.nlist, self.code_size):
            refuse("indexes with other lists or codes take no rows of this one")
        if not other._of.direct_map.no():
            refuse("direct map copy not implemented")
        a1, a2 = whole("a1", a1), whole("a2", a2)
        order, begin = rows.by_list(self.nlist)
        ids = rows.ids[order]
        if subset_type == self.SUBSET_TYPE_ID_RANGE:
            chosen = order[(ids >= a1) & (ids < a2)]
        elif subset_type == self.SUBSET_TYPE_ID_MOD:
            if a1 == 0:
                refuse("ids have no remainder by a1 = 0")
            chosen = order[np.fmod(ids, a1) == a2]  # -5 % 3 is -2 in C++
        elif subset_type == self.SUBSET_TYPE_ELEMENT_RANGE:
            # Of the rows of lists 0 to l together, a share of a1 / n lies before the part and one
            # of a2 / n before its end: what list l adds to both is where the part is in it.
            first, last = (begin * a // max(1, rows.size) for a in (a1, a2))
            chosen = self._between(np.diff(first), np.diff(last))
        elif subset_type == self.SUBSET_TYPE_INVLIST_FRACTION:
            if a1 == 0:
                refuse("lists are not split into a1 = 0 parts")
            sizes = np.diff(begin)
            chosen = self._between(sizes * a2 // a1, sizes * (a2 + 1) // a1)
        elif subset_type == self.SUBSET_TYPE_INVLIST:
            lists = rows.lists[order]
            chosen = order[(lists >= a1) & (lists < a2)]
        else:
            refuse(f"subset type {subset_type} not implemented")
        other._of._store.add(rows.codes[chosen], rows.ids[chosen], rows.lists[chosen])
        return len(chosen)

    def _between(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of each list from place first[l] on, up to last[l]."""
        order, begin = self._of._store.by_list(self.nlist)
        lists = self._of._store.lists[order]
        place = np.arange(len(order)) - begin[lists]
        return order[(place >= first[lists]) & (place < last[lists])]

    def imbalance_factor(self) -> float:
        """1 where all lists are as long; nlist where one has all."""
        sizes = self._sizes().astype(np.float64)
        return float((sizes**2).sum() * self.nlist / max(1.0, sizes.sum()) ** 2)

    def print_stats(self) -> None:
        """Prints how many lists are shorter than 1, 2, 4, ..., each in one line."""
        bits = np.frexp(self._sizes())[1]  # size >> bits is 0
        for each, lists in enumerate(np.bincount(bits)):
            if lists:
                print(f"list size in < {1 << each}: {lists} instances")

    def reset(self) -> None:
        self._of.reset()


ArrayInvertedLists = InvertedLists
