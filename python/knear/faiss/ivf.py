"""Inverted lists: IndexIVFFlat, IndexIVFPQ, IndexIVFScalarQuantizer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._search import knn, range_search
from .base import (
    METRIC_INNER_PRODUCT,
    METRIC_L2,
    Sealed,
    best_of,
    faiss_errors,
    into,
    matrix,
    metric_name,
    no_neighbors,
    padded,
    parameters_of,
    places_of,
    ranges,
    refuse,
    threads,
    within,
)
from .clustering import ClusteringParameters, cluster
from .codes import Coded
from .flat import IndexFlat
from .missing import LISTS
from .parameters import SearchParameters, SearchParametersIVF
from .quantizers import PolysemousTraining, ProductQuantizer, ScalarQuantizer
from .randomness import subsample
from .selectors import IDSelectorArray

_AT_ONCE = 1 << 22  # neighbours of probed lists that are merged at a time


class DirectMap(Sealed):
    """Whether ids can be looked up, and which: NoMap, Array (ids 0, 1, ...) or Hashtable."""

    NoMap, Array, Hashtable = range(3)

    def __init__(self, type: int = NoMap) -> None:
        self.type = type

    def no(self) -> bool:
        return self.type == self.NoMap


class InvertedLists(Sealed):
    """The lists of an index, to look at: what the get_ functions return are copies."""

    INVALID_CODE_SIZE = 2**64 - 1

    def __init__(self, index: IndexIVF, *sizes: Any) -> None:
        if not isinstance(index, IndexIVF):
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

    def imbalance_factor(self) -> float:
        """1 where all lists are as long; nlist where one has all."""
        sizes = self._sizes().astype(np.float64)
        return float((sizes**2).sum() * self.nlist / max(1.0, sizes.sum()) ** 2)

    def reset(self) -> None:
        self._of.reset()


ArrayInvertedLists = InvertedLists


class IndexIVFStats(Sealed):
    """What searches of inverted lists did since reset(): FAISS's indexIVF_stats."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.nq = self.nlist = self.ndis = self.nheap_updates = 0
        self.quantization_time = self.search_time = 0.0


indexIVF_stats = IndexIVFStats()


def _count(x: NDArray[np.float32], probes: int) -> None:
    indexIVF_stats.nq += len(x)
    indexIVF_stats.nlist += len(x) * probes


def _count_rows(report: dict[str, Any], queries: int) -> None:
    """Those of a search by knear: as many of the rows in its lists as are allowed of all."""
    allowed = report["allowed_rows"] / max(1, report["rows"])
    indexIVF_stats.ndis += round(report["probed_rows"] * queries * allowed)


class IndexIVF(Coded):
    """Each row is in the list of the centroid that `quantizer` finds for it; a query is compared
    with the rows of `nprobe` lists. Ids are from ntotal on, or given; any may come twice."""

    PARALLEL_MODE_NO_HEAP_INIT = 1024

    def __init__(
        self, quantizer: Any, d: int, nlist: int, metric: int = METRIC_L2, own_invlists: bool = True
    ) -> None:
        super().__init__(d, metric)
        if not own_invlists:
            raise NotImplementedError(LISTS)
        if quantizer.d != self.d:
            refuse(f"the quantizer has {quantizer.d} columns, not {self.d}")
        if int(nlist) < 1:
            refuse(f"nlist must be 1 at least, but is {nlist}")
        self.quantizer = quantizer
        self.nlist, self.nprobe = int(nlist), 1
        self.max_codes, self.parallel_mode = 0, 0
        self.quantizer_trains_alone = 0
        self.clustering_index = None
        self.cp = ClusteringParameters()
        self.cp.niter = 10
        self.cp.spherical = metric == METRIC_INNER_PRODUCT
        self.by_residual = True
        self.own_invlists = True
        self.direct_map = DirectMap()
        self.is_trained = False
        self._unlisted = 0  # rows that add_core() put into no list, which FAISS counts

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
    def train_q1(self, x: NDArray[np.float32]) -> None:
        """Trains the quantizer of the lists."""
        quantizer = self.quantizer
        if self._quantizer_is_ready():
            return
        if self.quantizer_trains_alone == 1:
            quantizer.train(x)
            if quantizer.ntotal != self.nlist:
                refuse(f"nlist is {self.nlist}, but the quantizer has {quantizer.ntotal} entries")
            return
        products = quantizer.metric_type == METRIC_INNER_PRODUCT
        centroids, _ = cluster(x, self.nlist, self.cp, products=products)
        if self.quantizer_trains_alone == 0:
            quantizer.reset()
        if not quantizer.is_trained:
            quantizer.train(centroids)
        quantizer.add(centroids)

    def _train(self, x: NDArray[np.float32]) -> None:
        self.train_q1(x)
        most = self._train_rows_for_codes()
        if most is not None:
            x = subsample(x, most or len(x))
            if self.by_residual:
                lists = self.quantizer.assign(x, 1).ravel()
                x = x - self.quantizer.reconstruct_batch(lists)
            self._train_codes(x)
        self.is_trained = True

    def _train_rows_for_codes(self) -> int | None:
        """How many rows a code learns from, 0 for all; None if it learns nothing."""
        return None

    def _train_codes(self, x: NDArray[np.float32]) -> None: ...

    def train_encoder(self, n: int, x: NDArray[np.float32], assign: Any = None) -> None:
        self._train_codes(matrix(x, self.d))

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

    def encode_vectors(self, x: ArrayLike, lists: ArrayLike) -> NDArray[np.uint8]:
        """The codes [n x code_size] of `x` in these lists [n]."""
        return self._code_in_lists(matrix(x, self.d), np.asarray(lists, np.int64))

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        self._ready()
        if ids is not None and self.direct_map.type == DirectMap.Array:
            refuse("cannot have array direct map and add with ids")
        if not len(x):
            return
        lists = self.quantizer.assign(x, 1).ravel()
        there = lists >= 0
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
        self._store.add(self._code_in_lists(x, lists), ids, lists)

    def add_core(self, n: int, x: Any, xids: Any, precomputed_idx: Any, ctx: Any = None) -> None:
        """Adds the first n rows of `x` under `xids`, or from ntotal on, to these lists; rows of a
        list -1 are counted alone."""
        self._ready()
        rows = matrix(np.reshape(x, (-1, self.d))[:n], self.d)
        lists = np.ascontiguousarray(precomputed_idx, np.int64).ravel()[:n]
        ids = np.arange(self.ntotal, self.ntotal + n)
        if xids is not None:
            ids = np.ascontiguousarray(xids, np.int64).ravel()[:n]
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
        gone = selector.mask(self._store.ids)
        if gone.any():
            self._store.keep(~gone)
        return int(gone.sum())

    def _close_up(self, kept: NDArray[np.bool_]) -> None:
        self._store.close_up(kept)
        self._unlisted = int(kept.sum()) - self._store.size

    def update_vectors(self, keys: ArrayLike, x: ArrayLike) -> None:
        """Row i of `x` takes the place of the vector with keys[i], and goes to its list."""
        rows = matrix(x, self.d)
        keys = id_keys(keys, len(rows))
        with faiss_errors():
            places = self._rows_of(keys)
            lists = self.quantizer.assign(rows, 1).ravel()
            self._store.replace(places, self._code_in_lists(rows, lists), lists)

    def _has_ids(self) -> bool:
        return True

    def check_compatible_for_merge(self, otherIndex: Any) -> None:
        super().check_compatible_for_merge(otherIndex)
        if (otherIndex.nlist, otherIndex.code_size) != (self.nlist, self.code_size):
            refuse("indexes with other lists or codes cannot be merged")
        if otherIndex.by_residual != self.by_residual:
            refuse("codes of residuals and of vectors cannot be merged")
        if not (self.direct_map.no() and otherIndex.direct_map.no()):
            refuse("merge_from: direct map copy not implemented")

    def _merge(self, other: Any, add_id: int) -> None:
        rows = other._store
        self._store.add(rows.codes, rows.ids + add_id, rows.lists)
        self._unlisted += other._unlisted
        other.reset()

    def check_ids_sorted(self) -> bool:
        """Whether the ids of each list go up."""
        order, begin = self._store.by_list(self.nlist)
        up = np.diff(self._store.ids[order]) >= 0
        up[begin[1:-1][(begin[1:-1] > 0) & (begin[1:-1] < len(order))] - 1] = True
        return bool(up.all())

    def copy_subset_to(self, other: Any, subset_type: int, a1: int, a2: int) -> None:
        """Adds to `other` the rows with a1 <= id < a2 (type 0), or id % a1 == a2 (type 1)."""
        rows = self._store
        if subset_type == 0:
            chosen = (rows.ids >= a1) & (rows.ids < a2)
        elif subset_type == 1:
            chosen = rows.ids % a1 == a2
        elif subset_type == 2:
            order = rows.by_list(self.nlist)[0]
            chosen = order[a1:a2]
        else:
            raise NotImplementedError(f"subsets of type {subset_type} are not there")
        other._store.add(rows.codes[chosen], rows.ids[chosen], rows.lists[chosen])

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
        return places_of(self._store.ids, ids)

    def _decode_rows(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        vectors = self._uncode(self._store.codes[rows])
        if self.by_residual and len(vectors):
            vectors = vectors + self.quantizer.reconstruct_batch(self._store.lists[rows])
        return vectors

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._decode_rows(self._rows_of(ids))

    def _vectors_from(self, first: int, count: int) -> NDArray[np.float32]:
        rows = np.flatnonzero((self._store.ids >= first) & (self._store.ids < first + count))
        out = np.zeros((count, self.d), np.float32)
        out[self._store.ids[rows] - first] = self._decode_rows(rows)
        return out

    def reconstruct_from_offset(self, list_no: int, offset: int, x: Any = None) -> Any:
        rows = self.invlists._rows(list_no)[offset : offset + 1]
        return into(x, self._decode_rows(rows)[0])

    # Searches.
    def _sources(self) -> tuple[Any, ...]:
        quantizer = self.quantizer
        return quantizer, quantizer._kept, quantizer._kept.version

    def _knear_has_it(self) -> bool:
        """Whether knear has such codes; else it gets the vectors that they stand for."""
        return True

    def _image(self, write: Any) -> None:
        from .io import Writer

        rows = np.arange(self._store.size)
        if self._knear_has_it():
            Writer(write).lists(self, rows, len(rows))
        else:
            Writer(write).lists_of_vectors(self, rows, self._decode_rows(rows))

    def _probes_by_knear(self) -> bool:
        """Whether knear finds the same lists for a query as the quantizer."""
        return (
            isinstance(self.quantizer, IndexFlat)
            and self.quantizer.metric_type == self.metric_type
            and self.quantizer.ntotal == self.nlist
        )

    def _parameters(self) -> SearchParametersIVF:
        return SearchParametersIVF(nprobe=self.nprobe, max_codes=self.max_codes)

    def _asked(self, params: Any) -> tuple[int, int, Any, Any]:
        """(nprobe, max_codes, the rows that may be found, parameters of the quantizer)."""
        self._ready()
        parameters_of(params, SearchParametersIVF, "IndexIVF")
        of = self if params is None else params
        if int(of.nprobe) < 1:
            refuse(f"nprobe must be 1 at least, but is {of.nprobe}")
        selector = getattr(params, "sel", None)
        rows = None if selector is None else selector.mask(self._store.ids)
        return (
            min(int(of.nprobe), self.nlist),
            int(of.max_codes),
            rows,
            getattr(params, "quantizer_params", None),
        )

    @staticmethod
    def _most(params: Any, most: int, k: int) -> tuple[int, bool]:
        """(how many codes a search for k looks at, 0 for all; whether lists are looked at as a
        whole, until there are so many)."""
        if params is None:
            return most, False
        if params.max_empty_result_buckets:
            raise NotImplementedError(
                "max_empty_result_buckets is for range_search; knear.Index.search(recall=0.9) "
                "chooses the probes"
            )
        whole = bool(params.ensure_topk_full and most)
        return max(most, k) if whole else most, whole

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        distances, rows = self._search_rows(x, k, params)
        return distances, self._ids_of(rows)

    def _ids_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._store.size:
            return rows
        return np.where(rows < 0, -1, self._store.ids[rows])

    def _search_rows(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        """(distances, row numbers of the store)."""
        probes, most, allowed, of_quantizer = self._asked(params)
        most, whole = self._most(params, most, k)
        _count(x, probes)
        if not self._store.size or not len(x):
            return no_neighbors((len(x), k), self.metric_type)
        if self._probes_by_knear() and not most and of_quantizer is None:
            report: dict[str, Any] = {}
            found = self._index().search(
                x, k, probes=probes, filter=allowed, threads=threads(), report=report
            )
            _count_rows(report, len(x))
            return padded(found.distances, found.ids, self.metric_type)
        lists = self.quantizer.search(x, probes, params=of_quantizer)[1]
        return self._nearest_in(x, k, lists, allowed, most, whole)

    def _queries_of_lists(
        self, lists: NDArray[np.int64], allowed: Any, most: int = 0, whole: bool = False
    ) -> Any:
        """Each probed list that holds anything: (its rows, the queries, which probe of theirs).
        With `most`, a query looks at so many codes of its first list, and at as many less those
        that were allowed of each that follows; `whole`: at all of each list that it comes to."""
        order, begin = self._store.by_list(self.nlist)
        seen = np.append(np.diff(begin), 0)[lists]  # of list -1 too
        if most:
            counts = np.ones(len(order), np.bool_) if allowed is None else allowed[order]
            before = np.append(0, np.cumsum(counts))
            room = np.full(len(lists), most)
            for start, of_probe in zip(begin[lists].T, seen.T, strict=True):
                of_probe[:] = (
                    np.where(room > 0, of_probe, 0) if whole else np.minimum(of_probe, room)
                )
                room -= before[start + of_probe] - before[start]
        seen = seen.ravel()
        probed = np.argsort(lists, axis=None, kind="stable")
        numbers = lists.ravel()[probed]
        for number in np.unique(numbers[numbers >= 0]):
            rows = order[begin[number] : begin[number + 1]]
            first, last = np.searchsorted(numbers, [number, number + 1])
            places = probed[first:last]
            for count in np.unique(seen[places]):
                some = rows[:count]
                some = some if allowed is None else some[allowed[some]]
                if len(some):
                    who = places[seen[places] == count]
                    indexIVF_stats.ndis += len(some) * len(who)
                    yield some, *np.divmod(who, lists.shape[1])

    def _nearest_in(
        self,
        x: NDArray[np.float32],
        k: int,
        lists: NDArray[np.int64],
        allowed: Any,
        most: int,
        whole: bool,
    ) -> tuple[Any, Any]:
        """The k nearest rows in these lists of each query [n x p]."""
        n, probes = lists.shape
        out = no_neighbors((n, k), self.metric_type)
        block = max(1, _AT_ONCE // (probes * k))
        for start in range(0, n, block):
            part = lists[start : start + block]
            distances, ids = no_neighbors((len(part), probes, k), self.metric_type)
            for rows, queries, probe in self._queries_of_lists(part, allowed, most, whole):
                asked = x[start + queries]
                found = knn(
                    asked,
                    self._decode_rows(rows),
                    k,
                    metric_name(self.metric_type),
                    threads=threads(),
                )
                each = np.where(found.ids < 0, -1, rows[found.ids])
                distances[queries, probe] = padded(found.distances, each, self.metric_type)[0]
                ids[queries, probe] = each
            distances, ids = distances.reshape(len(part), -1), ids.reshape(len(part), -1)
            best = best_of(distances, ids, k, self.metric_type)
            for each, values in zip(out, best, strict=True):
                each[start : start + block] = values
        return out

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        probes, _, allowed, of_quantizer = self._asked(params)
        _count(x, probes)
        empties = self._empties(params)
        by_knear = self._probes_by_knear() and of_quantizer is None and not empties
        if self._store.size and len(x) and by_knear:
            report: dict[str, Any] = {}
            begin, distances, rows = self._index().range_search(
                x, radius, probes=probes, filter=allowed, threads=threads(), report=report
            )
            _count_rows(report, len(x))
            lims, distances, rows = within(begin, distances, rows, radius, self.metric_type)
            return lims, distances, self._ids_of(rows)
        lists = self.quantizer.search(x, probes, params=of_quantizer)[1]
        return self._within_lists(x, radius, lists, allowed, empties)

    def _empties(self, params: Any) -> int:
        """After how many lists without results a range search ends; 0: after none."""
        empties = 0 if params is None else int(params.max_empty_result_buckets)
        if empties and self.parallel_mode & ~self.PARALLEL_MODE_NO_HEAP_INIT:
            refuse("max_empty_result_buckets is supported only for parallel_mode = 0")
        return empties

    def _within_lists(self, x: Any, radius: float, lists: Any, allowed: Any, empties: int) -> Any:
        asked, probed = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        distances, found = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
        name = metric_name(self.metric_type)
        for rows, queries, probe in self._queries_of_lists(lists, allowed):
            begin, near, which = range_search(
                x[queries], self._decode_rows(rows), radius, name, threads=threads()
            )
            asked.append(np.repeat(queries, np.diff(begin)))
            probed.append(np.repeat(probe, np.diff(begin)))
            distances.append(near)
            found.append(rows[which])
        hits = [np.concatenate(each) for each in (asked, distances, found)]
        if empties:
            inside = hits[1] < radius if self.metric_type == METRIC_L2 else hits[1] > radius
            any_in = np.zeros(lists.shape, np.bool_)
            any_in[hits[0][inside], np.concatenate(probed)[inside]] = True
            last = _last_probes(any_in, empties)
            kept = np.concatenate(probed) <= last[hits[0]]
            hits = [each[kept] for each in hits]
        lims, near, places = ranges(len(x), *hits, radius, self.metric_type)
        return lims, near, self._ids_of(places)

    def search_preassigned(
        self,
        x: ArrayLike,
        k: int,
        Iq: ArrayLike,
        Dq: Any = None,
        *,
        params: SearchParameters | None = None,
        D: Any = None,
        I: Any = None,  # noqa: E741
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """search() in the lists Iq [n x nprobe] instead of those that the quantizer finds; -1 is no
        list. Dq, the distances of their centroids, are not needed. Where parallel_mode has
        PARALLEL_MODE_NO_HEAP_INIT, what `D` and `I` have found before stays in the running."""
        rows = matrix(x, self.d)
        with faiss_errors():
            most, allowed = self._asked(params)[1:3]
            most, whole = self._most(params, most, k)
            lists = self._preassigned(Iq, len(rows), params)
            distances, found = self._nearest_in(rows, k, lists, allowed, most, whole)
        ids = self._ids_of(found)
        if self.parallel_mode & self.PARALLEL_MODE_NO_HEAP_INIT and D is not None and I is not None:
            both = np.concatenate([D, distances], 1), np.concatenate([I, ids], 1)
            distances, ids = best_of(*both, k, self.metric_type)
        return into(D, distances), into(I, ids)

    def range_search_preassigned(
        self,
        x: ArrayLike,
        thresh: float,
        Iq: ArrayLike,
        Dq: Any = None,
        *,
        params: SearchParameters | None = None,
    ) -> Any:
        """range_search() in the lists Iq [n x nprobe]."""
        rows = matrix(x, self.d)
        with faiss_errors():
            allowed = self._asked(params)[2]
            lists = self._preassigned(Iq, len(rows), params)
            radius, empties = float(np.float32(thresh)), self._empties(params)
            return self._within_lists(rows, radius, lists, allowed, empties)

    def _preassigned(self, Iq: ArrayLike, n: int, params: Any) -> NDArray[np.int64]:
        lists = np.ascontiguousarray(Iq, np.int64)
        probes = (self if params is None else params).nprobe
        assert lists.shape == (n, probes), f"Iq is {lists.shape}, but should be {(n, probes)}"
        if (lists >= self.nlist).any():
            refuse(f"a list is not among {self.nlist}")
        return lists

    def search_and_return_codes(
        self,
        x: ArrayLike,
        k: int,
        *,
        include_listnos: bool = False,
        params: SearchParameters | None = None,
        D: Any = None,
        I: Any = None,  # noqa: E741
        codes: Any = None,
    ) -> Any:
        """search(), and the codes that were found [n x k x size], 255 where there are none;
        include_listnos: those of sa_encode(), which begin with the list."""
        rows_of_x = matrix(x, self.d)
        with faiss_errors():
            distances, rows = self._search_rows(rows_of_x, int(k), params)
        found = rows >= 0
        listed = self._listed(self._store.codes[rows[found]], self._store.lists[rows[found]])
        out = np.full((*rows.shape, self.sa_code_size()), 255, np.uint8)
        out[found] = listed
        if not include_listnos:
            out = np.ascontiguousarray(out[..., self.coarse_code_size() :])
        return into(D, distances), into(I, self._ids_of(rows)), into(codes, out)

    def search_and_reconstruct(
        self,
        x: ArrayLike,
        k: int,
        *,
        params: SearchParameters | None = None,
        D: Any = None,
        I: Any = None,  # noqa: E741
        R: Any = None,
    ) -> Any:
        """By the rows that are found, of which several may have the same id."""
        rows_of_x = matrix(x, self.d)
        assert k > 0, f"k must be 1 at least, but is {k}"
        with faiss_errors():
            distances, rows = self._search_rows(rows_of_x, int(k), params)
            vectors = np.full((*rows.shape, self.d), np.nan, np.float32)
            vectors[rows >= 0] = self._decode_rows(rows[rows >= 0])
        return into(D, distances), into(I, self._ids_of(rows)), into(R, vectors)

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
        lists, codes = self._lists_and_codes(codes)
        vectors = self._uncode(np.ascontiguousarray(codes))
        if self.by_residual and len(lists):
            vectors = vectors + self.quantizer.reconstruct_batch(lists)
        return vectors


def _last_probes(found: NDArray[np.bool_], empties: int) -> NDArray[np.int64]:
    """The probe [n] at which a query ends, so many after another of which have found nothing."""
    n, probes = found.shape
    last, row = np.full(n, probes), np.zeros(n, np.int64)
    for probe in range(probes):
        row = np.where(found[:, probe], 0, row + 1)
        last[(row == empties) & (last == probes)] = probe
    return last


def id_keys(keys: ArrayLike, n: int) -> NDArray[np.int64]:
    keys = np.ascontiguousarray(keys, np.int64)
    assert keys.shape == (n,), f"there are {keys.shape} keys for {n} rows"
    return keys


class IndexIVFFlat(IndexIVF):
    """The vectors as they are. What changes lists and rows goes on with the index of before where
    it can: rows that are added are added to it."""

    def __init__(
        self, quantizer: Any, d: int, nlist: int, metric: int = METRIC_L2, own_invlists: bool = True
    ) -> None:
        super().__init__(quantizer, d, nlist, metric, own_invlists)
        self.by_residual = False
        self._set_code_size(4 * self.d)
        self.is_trained = self._quantizer_is_ready()

    def _append(self, x: NDArray[np.float32], ids: Any, lists: NDArray[np.int64]) -> None:
        current = self._searched
        first = self._store.size
        up_to_date = (
            current is not None
            and self.metric_type == METRIC_L2
            and self._probes_by_knear()
            and current[0] == self._now()
        )
        super()._append(x, ids, lists)
        if up_to_date:
            current[1].add(x, threads=threads(), ids=np.arange(first, self._store.size))
            self._searched = self._now(), current[1]

    def _code(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.ascontiguousarray(x).view(np.uint8).reshape(len(x), self.code_size)

    def _uncode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(codes).view(np.float32).reshape(len(codes), self.d)


class IndexIVFPQ(IndexIVF):
    """Codes of M sub-quantizers of nbits each. Polysemous filters and precomputed tables are not
    there: every code is measured."""

    def __init__(
        self,
        quantizer: Any,
        d: int,
        nlist: int,
        M: int,
        nbits: int,
        metric: int = METRIC_L2,
        own_invlists: bool = True,
    ) -> None:
        super().__init__(quantizer, d, nlist, metric, own_invlists)
        self.pq = ProductQuantizer(d, M, nbits)
        self.do_polysemous_training = False
        self.polysemous_training = PolysemousTraining()
        self.polysemous_ht = 0
        self.scan_table_threshold = 0
        self.use_precomputed_table = 0
        self._set_code_size(self.pq.code_size)

    def precompute_table(self) -> None:
        """Nothing has to be made before: a code has a number of its own instead of a table."""

    def _train_rows_for_codes(self) -> int | None:
        return self.pq.cp.max_points_per_centroid * self.pq.ksub

    def _train_codes(self, x: NDArray[np.float32]) -> None:
        self.pq.train(x)

    def _code(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return self.pq.compute_codes(x)

    def _uncode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.pq.decode(codes)

    def _sources(self) -> tuple[Any, ...]:
        return *super()._sources(), self.pq.centroids.array, int(self.by_residual)

    def _knear_has_it(self) -> bool:
        return self.pq.nbits in (4, 8)


class IndexIVFScalarQuantizer(IndexIVF):
    """Codes of a ScalarQuantizer of this type."""

    def __init__(
        self,
        quantizer: Any,
        d: int,
        nlist: int,
        qtype: int,
        metric: int = METRIC_L2,
        by_residual: bool = True,
        own_invlists: bool = True,
    ) -> None:
        super().__init__(quantizer, d, nlist, metric, own_invlists)
        self.sq = ScalarQuantizer(d, qtype)
        self.by_residual = bool(by_residual)
        self._set_code_size(self.sq.code_size)
        self.is_trained = False

    def _train_rows_for_codes(self) -> int | None:
        return 100_000

    def _train_codes(self, x: NDArray[np.float32]) -> None:
        self.sq.train(x)

    def _code(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return self.sq.compute_codes(x)

    def _uncode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.sq.decode(codes)

    def _sources(self) -> tuple[Any, ...]:
        return *super()._sources(), self.sq.trained.array, int(self.by_residual)

    def _knear_has_it(self) -> bool:
        return self.sq.qtype != ScalarQuantizer.QT_6bit
