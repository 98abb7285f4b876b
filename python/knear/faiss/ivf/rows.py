"""Rows in lists: how they are trained, added, removed, merged and reconstructed; no searches."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ... import _core
from ...errors import InvalidArgument
from ..base import (
    METRIC_INNER_PRODUCT,
    METRIC_L2,
    faiss_errors,
    fill,
    first_rows,
    id_array,
    into,
    matrix,
    metric_name,
    places_of,
    raised,
    refuse,
    threads,
)
from ..clustering import ClusteringParameters, cluster, refuse_other_metrics
from ..codes import Coded, is_same
from ..fields import whole, whole_ids
from ..flat import IndexFlat
from ..interrupts import interruptions
from ..missing import LISTS
from ..randomness import subsample
from ..saying import say
from ..selectors import IDSelectorArray, few_ids
from .lists import DirectMap, InvertedLists

_MANY_ROWS = 16  # whose lists are found together
_FEW_PAIRS = 1 << 14  # of rows and centroids, which are compared as they are


class Listed(Coded):
    """Each row is in the list of the centroid that `quantizer` finds for it. Ids are from ntotal
    on, or given; any may come twice. A class below says what a row is kept as: _code(), _uncode().
    """

    def __init__(
        self, quantizer: Any, d: int, nlist: int, metric: int = METRIC_L2, own_invlists: bool = True
    ) -> None:
        super().__init__(d, metric)
        if not own_invlists:
            raise NotImplementedError(LISTS)
        if quantizer.d != self.d:
            refuse(f"the quantizer has {quantizer.d} columns, not {self.d}")
        self.quantizer = quantizer
        self.nlist = whole("nlist", nlist)
        if self.nlist < 1:
            refuse(f"nlist must be 1 at least, but is {nlist}")
        self.quantizer_trains_alone = 0
        self.clustering_index = None
        self.cp = ClusteringParameters()
        self.cp.niter = 10
        self.cp.spherical = metric == METRIC_INNER_PRODUCT
        self.by_residual = True
        self.own_invlists = True
        self.direct_map = DirectMap()
        self.is_trained = False
        # What _flat_centroids() took the centroids of, and these.
        self._centroids: tuple[Any, NDArray[np.float32] | None] | None = None
        self._finder: Any = None  # what compares few rows with these
        self._unlisted = 0  # rows that add_core() put into no list, which FAISS counts

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_centroids": None, "_finder": None}

    def _empty_copy(self) -> Any:
        out = super()._empty_copy()
        out._direct_map, out._unlisted = DirectMap(), 0
        return out

    @property
    def direct_map(self) -> DirectMap:
        self._direct_map._of = self
        return self._direct_map

    @direct_map.setter
    def direct_map(self, map: DirectMap) -> None:
        self._direct_map = map

    @property
    def ntotal(self) -> int:
        return self._store.size + self._unlisted

    def reset(self) -> None:
        super().reset()
        self._unlisted = 0

    def _quantizer_is_ready(self) -> bool:
        return self.quantizer.is_trained and self.quantizer.ntotal == self.nlist

    @property
    def invlists(self) -> InvertedLists:
        return InvertedLists(self)

    def get_list_size(self, list_no: int) -> int:
        return self.invlists.list_size(list_no)

    def print_stats(self) -> None:
        """Prints how long the lists are."""
        sizes, imbalance = self.invlists._sizes(), self.invlists.imbalance_factor()
        print(
            f"list size in {sizes.min()} ... {sizes.max()}, mean {sizes.mean():.1f}, "
            f"imbalance factor {imbalance:.3f}"
        )

    def replace_invlists(self, *args: Any) -> None:
        raise NotImplementedError(LISTS)

    # Training.
    def train_q1(self, n: int, x: Any, verbose: bool = False, metric_type: Any = None) -> None:
        """Trains the quantizer of the lists by the first n rows of `x`, and by its own metric."""
        verbose_before, self.verbose = self.verbose, bool(verbose)
        try:
            with faiss_errors():
                self._train_quantizer(first_rows(n, x, self.d))
        finally:
            self.verbose = verbose_before

    def _train_quantizer(self, x: NDArray[np.float32]) -> None:
        quantizer = self.quantizer
        if self._quantizer_is_ready():
            return
        if self.quantizer_trains_alone == 1:
            quantizer.train(x)
            if quantizer.ntotal != self.nlist:
                refuse(f"nlist is {self.nlist}, but the quantizer has {quantizer.ntotal} entries")
            return
        refuse_other_metrics(quantizer)
        say(self.verbose, f"Training level-1 quantizer on {len(x)} vectors in {self.d}D")
        products = quantizer.metric_type == METRIC_INNER_PRODUCT
        centroids, _ = cluster(x, self.nlist, self.cp, products=products)
        if self.quantizer_trains_alone == 0:
            quantizer.reset()
        if not quantizer.is_trained:
            quantizer.train(centroids)
        quantizer.add(centroids)

    def _train(self, x: NDArray[np.float32]) -> None:
        self._train_quantizer(x)
        most = self._train_rows_for_codes()
        say(self.verbose and most is None, "IndexIVF: no residual training")
        if most is not None:
            x = subsample(x, most or len(x))
            say(self.verbose, f"Training IVF residual on {len(x)} vectors")
            if self.by_residual:
                lists = self._lists_of(x)
                x = x - self.quantizer.reconstruct_batch(lists)
            self._train_codes(x)
        self.is_trained = True

    def _train_rows_for_codes(self) -> int | None:
        """How many rows a code learns from, 0 for all; None if it learns nothing."""
        return None

    def train_encoder_num_vectors(self) -> int:
        return self._train_rows_for_codes() or 0

    def _train_codes(self, x: NDArray[np.float32]) -> None: ...

    def train_encoder(self, n: int, x: Any, assign: Any = None) -> None:
        """Trains the codes alone by the first n rows of `x`, which are residuals if the index has
        codes of these."""
        with faiss_errors():
            self._train_codes(first_rows(n, x, self.d))

    # Rows.
    def _ready(self) -> None:
        if not self.is_trained:
            refuse("the index is not trained")

    def _code(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The codes of vectors, or of what is left of them beside centroids."""
        raise NotImplementedError

    def _uncode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise NotImplementedError

    def _code_in_lists(self, x: NDArray[np.float32], lists: NDArray[np.int64]) -> NDArray[np.uint8]:
        if self.by_residual:
            x = x - self.quantizer.reconstruct_batch(np.maximum(lists, 0))
        return self._code(x)

    def _code_into(
        self, x: NDArray[np.float32], lists: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> None:
        """Puts the codes of `x` [n x d] in these lists [n] into an array."""
        out[:] = self._code_in_lists(x, lists)

    def _flat_centroids(self) -> NDArray[np.float32] | None:
        """The centroids [nlist x d], where the quantizer keeps them as they are and finds them by
        their distances; else None."""
        quantizer = self.quantizer
        if type(quantizer).search is not IndexFlat.search or not isinstance(quantizer, IndexFlat):
            return None
        now = quantizer, quantizer._kept, quantizer._kept.version
        if self._centroids is None or not all(map(is_same, self._centroids[0], now)):
            plain = quantizer.ntotal == self.nlist and not quantizer._unfound
            plain = plain and not quantizer._by_table()
            self._centroids = now, quantizer._all() if plain else None
            if plain:
                none, by = np.empty(0, np.float32), metric_name(quantizer.metric_type)
                self._finder = _core.PlainSearch("f32", by, self.d, None, none, none, None, None)
        return self._centroids[1]

    def _lists_of(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """The list [n] of each row, -1 for a row of NaN. RuntimeError for an infinity."""
        # For few rows the quantizer's index is quicker than packing the centroids.
        centroids = self._flat_centroids()
        if centroids is None:
            _refuse_infinite(x)
            return self.quantizer.assign(x, 1).ravel()
        if len(x) >= max(_MANY_ROWS, self.nlist // 4):
            by = metric_name(self.quantizer.metric_type)
            with contextlib.suppress(InvalidArgument):  # not finite
                return _core.nearest_centroids(centroids, x, "f32", by, threads(), interruptions())[
                    1
                ]
        elif len(x) * self.nlist <= _FEW_PAIRS and self._finder is not None:
            rows = centroids.view(np.uint8).reshape(self.nlist, 4 * self.d)
            found = self._finder.nearest(rows, None, None, None, None, x, None, 0, 1, threads())
            if found is not None:
                return found[1].reshape(-1)
        _refuse_infinite(x)
        return self.quantizer.assign(x, 1).ravel()

    def encode_vectors(self, *given: Any) -> Any:
        """(x, lists): the codes [n x code_size] of `x` in these lists [n]. (n, x, list_nos, codes,
        include_listno=False), as FAISS has it: the same, put into the array `codes`, zeros for list
        -1; include_listno: those of sa_encode(), which begin with the list."""
        if len(given) == 2:
            x, lists = given
            return self._code_in_lists(matrix(x, self.d), np.asarray(lists, np.int64))
        n, x, list_nos, codes, include_listno = (*given, False)[:5]
        lists = np.ravel(list_nos)[:n].astype(np.int64)
        with faiss_errors():
            out = self._code_in_lists(first_rows(n, x, self.d), lists)
        if include_listno:
            out = self._listed(out, lists)
        out[lists < 0] = 0
        fill(codes, out)
        return None

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        self._ready()
        self.direct_map.check_can_add(ids)
        if not len(x):
            return
        lists = self._lists_of(x)
        there = lists >= 0
        say(self.verbose, f"{type(self).__name__}: added {int(there.sum())} / {len(x)} vectors")
        if there.all():
            self._append(x, ids, lists)
            return
        if ids is None:  # a vector of NaN is in no list, but has an id
            ids = np.arange(self.ntotal, self.ntotal + len(x))
        if there.any():
            self._append(x[there], ids[there], lists[there])
        self._unlisted += int((~there).sum())

    def _append(self, x: NDArray[np.float32], ids: Any, lists: NDArray[np.int64]) -> None:
        if ids is None:
            ids = np.arange(self.ntotal, self.ntotal + len(x))
        self._code_into(x, lists, self._store.room(len(x)))
        self._store.fill(len(x), ids, lists)
        if self._plain_search() is not None and 8 * len(x) >= self._store.size:
            self._store.by_list(self.nlist)  # for the first search: a hundredth of adding the rows

    def add_core(
        self, n: int, x: Any, xids: Any, precomputed_idx: Any, inverted_list_context: Any = None
    ) -> None:
        """Adds the first n rows of `x` under `xids`, or from ntotal on, to these lists; rows of a
        list -1 are counted alone."""
        self._ready()
        rows = first_rows(n, x, self.d)
        lists = np.ascontiguousarray(precomputed_idx, np.int64).ravel()[:n]
        ids = np.arange(self.ntotal, self.ntotal + n)
        if xids is not None:
            ids = id_array(np.ravel(xids)[:n], n)
        if n and lists.max() >= self.nlist:
            refuse(f"list {lists.max()} is not among {self.nlist}")
        there = lists >= 0
        with faiss_errors():
            codes = self._code_in_lists(rows[there], lists[there])
        self._store.add(codes, ids[there], lists[there])
        self._unlisted += n - int(there.sum())

    def _add_codes(self, codes: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        lists, codes = self._lists_and_codes(codes)
        if ids is None:
            ids = np.arange(self.ntotal, self.ntotal + len(codes))
        self._store.add(codes, ids, lists)

    def _remove(self, selector: Any) -> int:
        if self.direct_map.type == DirectMap.Array:
            refuse("remove not supported with this direct_map format")
        if self.direct_map.type == DirectMap.Hashtable and not isinstance(
            selector, IDSelectorArray
        ):
            refuse("remove with hashtable works only with IDSelectorArray")
        few = few_ids(selector, self._store.size)
        found = None if few is None else self._store.find(few)
        if found is None:
            gone = np.flatnonzero(selector.mask(self._store.ids))
        else:
            gone = found[found >= 0]
        if len(gone):
            self._store.remove(gone)
        return len(gone)

    def _close_up(self, kept: NDArray[np.bool_]) -> None:
        self._store.close_up(kept)
        self._unlisted = int(kept.sum()) - self._store.size

    def update_vectors(self, keys: ArrayLike, x: ArrayLike) -> None:
        """Row i of `x` takes the place of the vector with keys[i], and goes to its list."""
        rows = matrix(x, self.d)
        keys = _id_keys(keys, len(rows))
        with faiss_errors():
            places = self._rows_of(keys)
            lists = self._lists_of(rows)
            self._store.replace(places, self._code_in_lists(rows, lists), lists)

    def _has_ids(self) -> bool:
        return True

    def check_compatible_for_merge(self, otherIndex: Any) -> None:
        super().check_compatible_for_merge(otherIndex)
        if (otherIndex.nlist, otherIndex.code_size) != (self.nlist, self.code_size):
            refuse("indexes with other lists or codes cannot be merged")
        if otherIndex.quantizer.ntotal != self.quantizer.ntotal:  # one may not be trained
            refuse(
                f"the quantizers have {self.quantizer.ntotal} and {otherIndex.quantizer.ntotal} "
                "centroids: indexes that are trained apart cannot be merged"
            )
        if otherIndex.by_residual != self.by_residual:
            refuse("codes of residuals and of vectors cannot be merged")
        if not (self.direct_map.no() and otherIndex.direct_map.no()):
            refuse("merge_from: direct map copy not implemented")
        self._check_learned(otherIndex)

    def _check_learned(self, other: Any) -> None:
        super()._check_learned(other)
        if self.quantizer is other.quantizer:
            return
        try:
            same = np.array_equal(*(_centroids(each.quantizer) for each in (self, other)))
        except RuntimeError as error:
            refuse(
                f"the quantizer, an {type(self.quantizer).__name__}, does not reconstruct its "
                f"centroids ({error}), so that nothing tells whether both indexes have the same: "
                "give them the same quantizer object, or add the vectors"
            )
        if not same:
            self._refuse_trained_apart()

    def _merge(self, other: Any, add_id: int) -> None:
        rows = other._store
        self._store.add(rows.codes, raised(rows.ids, add_id), rows.lists)
        self._unlisted += other._unlisted
        other.reset()

    def check_ids_sorted(self) -> bool:
        """Whether the ids of each list go up."""
        order, begin = self._store.by_list(self.nlist)
        up = np.diff(self._store.ids[order]) >= 0
        up[begin[1:-1][(begin[1:-1] > 0) & (begin[1:-1] < len(order))] - 1] = True
        return bool(up.all())

    def copy_subset_to(self, other: Any, subset_type: int, a1: int, a2: int) -> None:
        """Adds to `other` a part of the rows: InvertedLists.copy_subset_to()."""
        self.invlists.copy_subset_to(other.invlists, subset_type, a1, a2)

    # Ids.
    def make_direct_map(self, new_maintain_direct_map: bool = True) -> None:
        """Lets reconstruct() and update_vectors() look ids up, which must be 0, 1, ..."""
        self.set_direct_map_type(DirectMap.Array if new_maintain_direct_map else DirectMap.NoMap)

    def set_direct_map_type(self, type: int) -> None:
        ids = self._store.ids
        if (
            type == DirectMap.Array
            and len(ids)
            and not (ids.min() >= 0 and ids.max() < self.ntotal)
        ):
            refuse("direct map supported only for sequential ids")
        self.direct_map.type = type

    def _rows_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.direct_map.no():
            refuse("direct map not initialized")
        found = self._store.find(ids)
        if found is None:
            return places_of(self._store.ids, ids)
        if (found < 0).any():
            refuse("key not found: an id is not in the index")
        return found

    def _decode_stored(
        self, codes: NDArray[np.uint8], lists: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        return self._uncode_in_lists(codes, lists)

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._decode_rows(self._rows_of(ids))

    def _vectors_from(self, first: int, count: int) -> NDArray[np.float32]:
        rows = np.flatnonzero((self._store.ids >= first) & (self._store.ids < first + count))
        out = np.zeros((count, self.d), np.float32)
        out[self._store.ids[rows] - first] = self._decode_rows(rows)
        return out

    def reconstruct_from_offset(self, list_no: int, offset: int, recons: Any = None) -> Any:
        rows = self.invlists._rows(list_no)[offset : offset + 1]
        return into(recons, self._decode_rows(rows)[0])

    def _ids_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._store.size:
            return rows
        ids = self._store.ids_at(rows)  # those of -1 are of the last row
        if rows.size and rows.min() < 0:
            ids[rows < 0] = -1
        return ids

    def _vectors_of_found(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """By the ids that a search found: no map is needed for these."""
        return self._decode_rows(places_of(self._store.ids, ids))

    # Codes by themselves: the number of the list, low byte first, and the code.
    def coarse_code_size(self) -> int:
        return ((self.nlist - 1).bit_length() + 7) // 8

    def sa_code_size(self) -> int:
        return self.code_size + self.coarse_code_size()

    def _listed(self, codes: NDArray[np.uint8], lists: NDArray[np.int64]) -> NDArray[np.uint8]:
        numbers = lists.astype("<i8").view(np.uint8).reshape(len(lists), 8)
        return np.concatenate([numbers[:, : self.coarse_code_size()], codes], axis=1)

    def _lists_and_codes(self, codes: NDArray[np.uint8]) -> tuple[Any, Any]:
        size = self.coarse_code_size()
        lists = codes[:, :size].astype(np.int64) @ (1 << 8 * np.arange(size, dtype=np.int64))
        if len(lists) and lists.max() >= self.nlist:
            refuse(f"a code names list {lists.max()} of {self.nlist}")
        return lists, codes[:, size:]

    def _encode(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        self._ready()
        lists = self.quantizer.assign(x, 1).ravel()
        return self._listed(self._code_in_lists(x, lists), lists)

    def _decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self._uncode_in_lists(*self._lists_and_codes(codes)[::-1])

    def _uncode_in_lists(
        self, codes: NDArray[np.uint8], lists: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        vectors = self._uncode(np.ascontiguousarray(codes))
        if self.by_residual and len(vectors):
            vectors = vectors + self.quantizer.reconstruct_batch(lists)
        return vectors

    def encode_listno(self, list_no: int, code: Any) -> None:
        """Puts the number of a list into an array, as codes of sa_encode() begin with it."""
        fill(code, self._listed(np.empty((1, 0), np.uint8), np.array([whole("list_no", list_no)])))

    def decode_listno(self, code: Any) -> int:
        """The list that a code of sa_encode() begins with."""
        return int(self._lists_and_codes(np.ravel(code)[None, : self.coarse_code_size()])[0][0])

    def decode_vectors(self, n: int, codes: Any, list_nos: Any, x: Any) -> None:
        """Puts what the first n of `codes`, those of encode_vectors(), stand for in these lists
        into an array [n x d]."""
        rows = np.ravel(codes)[: n * self.code_size].reshape(n, self.code_size)
        lists = np.ravel(list_nos)[:n].astype(np.int64)
        with faiss_errors():
            fill(x, self._uncode_in_lists(rows, lists))


def _centroids(quantizer: Any) -> NDArray[np.float32]:
    return quantizer.reconstruct_n(0, quantizer.ntotal)


def _refuse_infinite(x: NDArray[np.float32]) -> None:
    """Of the rows that are added, before the quantizer takes them for queries."""
    with np.errstate(all="ignore"):
        squares = np.dot(x.reshape(-1), x.reshape(-1))
    if math.isfinite(squares):
        return  # no number is infinite if the sum of their squares is finite
    if (bad := np.isinf(x)).any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        refuse(f"x must be finite, but row {row} column {column} is {x[row, column]}")


def _id_keys(keys: ArrayLike, n: int) -> NDArray[np.int64]:
    keys = whole_ids("keys", keys)
    assert keys.shape == (n,), f"there are {keys.shape} keys for {n} rows"
    return keys
