"""IndexIVF: searches of rows in lists.

They go to a knear.Index made of the same rows where that finds the same lists for a query as the
quantizer, and else list by list (scans.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base import (
    METRIC_L2,
    best_of,
    faiss_errors,
    into,
    matrix,
    no_neighbors,
    padded,
    parameters_of,
    refuse,
    threads,
    within,
)
from ..fields import neighbors
from ..flat import IndexFlat
from ..interrupts import interruptions
from ..parameters import SearchParameters, SearchParametersIVF
from ..quantizers import KeptAs
from .rows import Listed
from .scans import nearest_in, within_lists
from .stats import count, count_pairs, count_rows


class IndexIVF(Listed):
    """Each row is in the list of the centroid that `quantizer` finds for it; a query is compared
    with the rows of `nprobe` lists. Ids are from ntotal on, or given; any may come twice."""

    PARALLEL_MODE_NO_HEAP_INIT = 1024

    def __init__(
        self, quantizer: Any, d: int, nlist: int, metric: int = METRIC_L2, own_invlists: bool = True
    ) -> None:
        super().__init__(quantizer, d, nlist, metric, own_invlists)
        self.nprobe = 1
        self.max_codes, self.parallel_mode = 0, 0

    # The index that is searched.
    def _sources(self) -> tuple[Any, ...]:
        kept = getattr(self.quantizer, "_kept", None)  # of an IndexFlat
        return self.quantizer, kept, None if kept is None else kept.version

    def _kept_as(self) -> KeptAs:
        return KeptAs("vectors")

    def _by_residual(self) -> bool:
        return bool(self.by_residual)

    def _list_centroids(self) -> NDArray[np.float32]:
        """What the quantizer finds rows by."""
        quantizer = self.quantizer
        if not isinstance(quantizer, IndexIVF):
            return np.ascontiguousarray(quantizer.reconstruct_n(0, self.nlist), np.float32)
        out = np.empty((self.nlist, self.d), np.float32)  # it may have no map of its ids
        out[quantizer._store.ids] = quantizer._decode_rows(np.arange(quantizer.ntotal))
        return out

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
        if of.nprobe < 1:
            refuse(f"nprobe must be 1 at least, but is {of.nprobe}")
        selector = getattr(params, "sel", None)
        rows = None if selector is None else selector.mask(self._store.ids)
        return (
            min(of.nprobe, self.nlist),
            of.max_codes,
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

    # Searches.
    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        distances, rows = self._search_rows(x, k, params)
        return distances, self._ids_of(rows)

    def _search_rows(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        """(distances, row numbers of the store)."""
        probes, most, allowed, of_quantizer = self._asked(params)
        most, whole = self._most(params, most, k)
        count(x, probes)
        if not self._store.size or not len(x):
            return no_neighbors((len(x), k), self.metric_type)
        if self._probes_by_knear() and not most and of_quantizer is None:
            near = self._near_in_lists(x, k, allowed, probes)
            if near is not None:
                return padded(*near, self.metric_type)
            report: dict[str, Any] = {}
            distances, rows = self._index().search(
                x,
                k,
                probes=probes,
                filter=allowed,
                threads=threads(),
                report=report,
                progress=interruptions(),
            )
            count_rows(report, len(x))
            return padded(distances, rows, self.metric_type)
        lists = self.quantizer.search(x, probes, params=of_quantizer)[1]
        return nearest_in(self, x, k, lists, allowed, most, whole)

    def _lists_by_index(self, x: NDArray[np.float32], probes: int) -> NDArray[np.int64]:
        return self.quantizer.search(x, probes)[1]

    def _near_in_lists(
        self, x: NDArray[np.float32], k: int, allowed: Any, probes: int, lists: Any = None
    ) -> Any:
        """(distances, row numbers) of the rows in the nearest `probes` lists, or in these lists;
        None where the search goes to the index of all rows."""
        near = self._near_plainly(x, k, allowed, probes, self.nlist, lists)
        if near is None:
            return None
        distances, rows, pairs = near
        count_pairs(pairs if allowed is None else pairs * float(allowed.mean()))
        return distances, rows

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        probes, _, allowed, of_quantizer = self._asked(params)
        count(x, probes)
        empties = self._empties(params)
        by_knear = self._probes_by_knear() and of_quantizer is None and not empties
        if self._store.size and len(x) and by_knear:
            report: dict[str, Any] = {}
            begin, distances, rows = self._index().range_search(
                x,
                radius,
                probes=probes,
                filter=allowed,
                threads=threads(),
                report=report,
                progress=interruptions(),
            )
            count_rows(report, len(x))
            lims, distances, rows = within(begin, distances, rows, radius, self.metric_type)
            return lims, distances, self._ids_of(rows)
        lists = self.quantizer.search(x, probes, params=of_quantizer)[1]
        return within_lists(self, x, radius, lists, allowed, empties)

    def _empties(self, params: Any) -> int:
        """After how many lists without results a range search ends; 0: after none."""
        empties = 0 if params is None else int(params.max_empty_result_buckets)
        if empties and self.parallel_mode & ~self.PARALLEL_MODE_NO_HEAP_INIT:
            refuse("max_empty_result_buckets is supported only for parallel_mode = 0")
        return empties

    # In lists that are given.
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
        rows, k = matrix(x, self.d), neighbors(k)
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

    def _nearest_in(
        self, x: NDArray[np.float32], k: int, lists: Any, allowed: Any, most: int, whole: bool
    ) -> tuple[Any, Any]:
        """nearest_in(), by knear where it searches such lists: it looks at each of them once."""
        twice = False
        if lists.shape[1] > 1:
            in_order = np.sort(lists, axis=1)
            same = (in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] >= 0)
            twice = bool(same.any())
        if most or not self._store.size or not self._probes_by_knear() or twice:
            return nearest_in(self, x, k, lists, allowed, most, whole)
        given = np.maximum(lists, -1)
        near = self._near_in_lists(x, k, allowed, lists.shape[1], given)
        if near is not None:
            return padded(*near, self.metric_type)
        report: dict[str, Any] = {}
        found = self._index().search_lists(x, k, given, allowed, report)
        count_rows(report, len(x))
        return padded(*found, self.metric_type)

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
            return within_lists(self, rows, radius, lists, allowed, empties)

    def _preassigned(self, Iq: ArrayLike, n: int, params: Any) -> NDArray[np.int64]:
        lists = np.ascontiguousarray(Iq, np.int64)
        probes = (self if params is None else params).nprobe
        assert lists.shape == (n, probes), f"Iq is {lists.shape}, but should be {(n, probes)}"
        if (lists >= self.nlist).any():
            refuse(f"a list is not among {self.nlist}")
        return lists

    def get_InvertedListScanner(
        self, store_pairs: bool = False, sel: Any = None, params: Any = None
    ) -> Any:
        raise NotImplementedError(
            "InvertedListScanner is not there; search_preassigned() and range_search_preassigned() "
            "search given lists, and invlists.get_ids() and get_codes() show what is in one"
        )

    # With what was found.
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
        rows_of_x, k = matrix(x, self.d), neighbors(k)
        with faiss_errors():
            distances, rows = self._search_rows(rows_of_x, k, params)
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
        rows_of_x, k = matrix(x, self.d), neighbors(k)
        with faiss_errors():
            distances, rows = self._search_rows(rows_of_x, k, params)
            vectors = np.full((*rows.shape, self.d), np.nan, np.float32)
            vectors[rows >= 0] = self._decode_rows(rows[rows >= 0])
        return into(D, distances), into(I, self._ids_of(rows)), into(R, vectors)


IndexIVFInterface = Level1Quantizer = IndexIVF  # what FAISS's is made of
