"""Searches of arrays, random arrays, and what scripts call beside indexes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _search
from .._search import select_k
from . import metrics, tables
from .base import (
    METRIC_INNER_PRODUCT,
    METRIC_L2,
    Index,
    best_of,
    faiss_errors,
    flat_metric_name,
    matrix,
    metric_name,
    no_neighbors,
    padded,
    places_of,
    refuse,
    threads,
)
from .fields import neighbors, whole
from .interrupts import interruptions
from .ivf import IndexIVF, indexIVF_stats
from .missing import LISTS
from .transforms import normalized
from .wrappers import IndexIDMap, IndexPreTransform, IndexRefine


def _count(k: Any) -> int:
    """How many are asked for: 0 of nothing, where an index takes 1 at least."""
    return 0 if not isinstance(k, (bool, np.bool_)) and whole("k", k) == 0 else neighbors(k)


def knn(
    xq: ArrayLike, xb: ArrayLike, k: int, metric: int = METRIC_L2, metric_arg: float = 0.0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(distances, ids) [nq x k] of the k nearest rows of `xb` for each row of `xq`."""
    queries = matrix(xq)
    base = matrix(xb, queries.shape[1])
    k = _count(k)
    if k == 0:
        return no_neighbors((len(queries), 0), metric)
    if metrics.is_by_table(metric):
        return tables.nearest(queries, base, k, metric, metric_arg)
    with faiss_errors():
        found = _search.knn(
            queries, base, k, flat_metric_name(metric), threads=threads(), progress=interruptions()
        )
    return padded(found.distances, found.ids, metric)


def pairwise_distances(
    xq: ArrayLike, xb: ArrayLike, metric: int = METRIC_L2, metric_arg: float = 0.0
) -> NDArray[np.float32]:
    """All distances, or inner products, [nq x nb]."""
    queries = matrix(xq)
    base = matrix(xb, queries.shape[1])
    if metrics.is_other(metric):
        return metrics.distances(queries, base, metric, metric_arg)
    name = metric_name(metric)
    out = np.empty((len(queries), len(base)), np.float32)
    if not out.size:
        return out
    block = max(1, (1 << 24) // len(base))
    few = max(1, (1 << 20) // len(base))  # Ctrl-C does not stop NumPy
    with faiss_errors():
        for begin in range(0, len(queries), block):
            distances, ids = _search.knn(
                queries[begin : begin + block], base, len(base), name, threads=threads()
            )
            for i in range(0, len(ids), few):
                part = slice(i, i + few)
                np.put_along_axis(out[begin : begin + block][part], ids[part], distances[part], 1)
    return out


def _best(array: ArrayLike, k: int, largest: bool) -> tuple[Any, Any]:
    x = matrix(array)
    k = _count(k)
    if k == 0:
        return no_neighbors((len(x), 0), METRIC_L2)
    with faiss_errors():
        return select_k(x, k, largest=largest, threads=threads())


def kmin(array: ArrayLike, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(values, places) [n x k] of the k smallest numbers of each row, smallest first."""
    values, places = _best(array, k, False)
    return padded(values, places, METRIC_L2)


def kmax(array: ArrayLike, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Those of the k largest, largest first."""
    values, places = _best(array, k, True)
    return padded(values, places, METRIC_INNER_PRODUCT)


def normalize_L2(x: NDArray[np.float32]) -> None:
    """Gives the rows of `x` length 1, in place; those of zeros stay."""
    if not x.flags.c_contiguous:
        raise ValueError("array is not C-contiguous")
    if x.dtype != np.float32:
        raise TypeError(f"x must be float32, but is {x.dtype}")
    _, _ = x.shape
    x[...] = normalized(x)


def merge_knn_results(Dall: Any, Iall: Any, keep_max: bool = False) -> tuple[Any, Any]:
    """The k best of several results [shards x n x k]: (distances, ids) [n x k]."""
    shards, n, k = Dall.shape
    distances = np.swapaxes(Dall, 0, 1).reshape(n, shards * k)
    ids = np.swapaxes(Iall, 0, 1).reshape(n, shards * k)
    return best_of(distances, ids, k, METRIC_INNER_PRODUCT if keep_max else METRIC_L2)


class ResultHeap:
    """The k best of results that come one after another: add_result(), then finalize()."""

    def __init__(self, nq: int, k: int, keep_max: bool = False) -> None:
        self.nq, self.k, self.keep_max = nq, k, keep_max
        self.D, self.I = no_neighbors((nq, k), METRIC_INNER_PRODUCT if keep_max else METRIC_L2)

    def add_result(self, D: Any, I: Any) -> None:  # noqa: E741
        self.add_result_subset(np.arange(self.nq), D, I)

    def add_result_subset(self, subset: Any, D: Any, I: Any) -> None:  # noqa: E741
        distances = np.concatenate([self.D[subset], D], 1)
        ids = np.concatenate([self.I[subset], I], 1)
        metric = METRIC_INNER_PRODUCT if self.keep_max else METRIC_L2
        self.D[subset], self.I[subset] = best_of(distances, ids, self.k, metric)

    def finalize(self) -> None:
        """Nothing is left to be done: D and I are in order after each result."""


def eval_intersection(I1: ArrayLike, I2: ArrayLike) -> int:
    """How many ids the rows of two results have in common, in all."""
    a, b = np.asarray(I1), np.asarray(I2)
    assert len(a) == len(b), "there are results of other numbers of queries"
    return sum(len(np.intersect1d(x[x >= 0], y[y >= 0])) for x, y in zip(a, b, strict=True))


# Indexes.


def downcast_index(index: Any) -> Any:
    """The index itself: its class is what it is."""
    return index


downcast_VectorTransform = downcast_InvertedLists = downcast_Quantizer = downcast_index


def try_extract_index_ivf(index: Any) -> IndexIVF | None:
    """The inverted lists inside of an index, or None."""
    if isinstance(index, (IndexIDMap, IndexPreTransform)):
        return try_extract_index_ivf(index.index)
    if isinstance(index, IndexRefine):
        return try_extract_index_ivf(index.base_index)
    return index if isinstance(index, IndexIVF) else None


def extract_index_ivf(index: Any) -> IndexIVF:
    """The inverted lists inside of an index. RuntimeError if there are none."""
    out = try_extract_index_ivf(index)
    if out is None:
        refuse(f"{type(index).__name__} has no inverted lists")
    return out


def merge_into(index0: Index, index1: Index, shift_ids: bool) -> None:
    """Takes the rows of index1 over into index0."""
    index0.merge_from(index1, index0.ntotal if shift_ids else 0)


def check_compatible_for_merge(index0: Index, index1: Index) -> None:
    index0.check_compatible_for_merge(index1)


def _lists_of(index: Any, x: Any) -> NDArray[np.int64]:
    """The list [n] of each row of `x` [n x d]."""
    while not isinstance(index, IndexIVF):
        if isinstance(index, IndexPreTransform):
            x = index.apply_chain(matrix(x))
        elif not isinstance(index, (IndexIDMap, IndexRefine)):
            extract_index_ivf(index)  # says that there is none
        index = index.base_index if isinstance(index, IndexRefine) else index.index
    return index.quantizer.assign(x, 1).ravel()


def search_centroid(index: Any, x: Any, n: int, centroid_ids: Any) -> None:
    """Puts the lists of the first n rows of `x` into an array."""
    centroid_ids.reshape(-1)[:n] = _lists_of(index, np.ravel(x)[: n * index.d].reshape(n, index.d))


def search_and_return_centroids(
    index: Any,
    n: int,
    xin: Any,
    k: int,
    distances: Any,
    labels: Any,
    query_centroid_ids: Any,
    result_centroid_ids: Any,
) -> None:
    """A search of the first n rows of `xin` into arrays: distances and ids [n x k], the lists of
    the queries [n], and those of what was found [n x k], -1 for nothing."""
    queries = np.ravel(xin)[: n * index.d].reshape(n, index.d)
    near, ids = index.search(queries, k)
    lists = extract_index_ivf(index)
    found = ids >= 0
    where = np.full(ids.shape, -1)
    where[found] = lists._store.lists[places_of(lists._store.ids, ids[found])]
    results = (near, ids, _lists_of(index, queries), where)
    outs = (distances, labels, query_centroid_ids, result_centroid_ids)
    for out, values in zip(outs, results, strict=True):
        if out is not None:
            out.reshape(-1)[: values.size] = values.ravel()


def get_invlist_range(index: Any, i0: int, i1: int) -> Any:
    raise NotImplementedError(LISTS)


set_invlist_range = get_invlist_range


def _counted(index: Any, search: Any) -> tuple[Any, dict[str, Any]]:
    """What search() returns, and how many codes it looked at and how long it took."""
    extract_index_ivf(index)
    before, start = indexIVF_stats.ndis, time.perf_counter()
    found = search()
    stats = {"ndis": indexIVF_stats.ndis - before, "pre_transform_ms": 0.0}
    took = 1000 * (time.perf_counter() - start)
    return found, {**stats, "coarse_quantizer_ms": 0.0, "invlist_scan_ms": took}


def search_with_parameters(
    index: Any, x: ArrayLike, k: int, params: Any = None, output_stats: bool = False
) -> Any:
    """index.search(x, k, params=params); with output_stats a dict, too."""
    if not output_stats:
        return index.search(x, k, params=params)
    found, stats = _counted(index, lambda: index.search(x, k, params=params))
    return *found, stats


def range_search_with_parameters(
    index: Any, x: ArrayLike, radius: float, params: Any = None, output_stats: bool = False
) -> Any:
    """index.range_search(x, radius, params=params); with output_stats a dict, too."""
    if not output_stats:
        return index.range_search(x, radius, params=params)
    found, stats = _counted(index, lambda: index.range_search(x, radius, params=params))
    return *found, stats


def fvec_renorm_L2(d: int, nx: int, x: NDArray[np.float32]) -> None:
    rows = np.ravel(x)[: nx * d].reshape(nx, d)
    rows[...] = normalized(rows)


is_similarity_metric = metrics.is_similarity
