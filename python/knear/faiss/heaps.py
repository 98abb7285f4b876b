"""What FAISS's searches of pointers fill: heaps and RangeSearchResult; and these searches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._search import knn as knear_knn
from .._search import range_search as knear_range_search
from .base import (
    METRIC_INNER_PRODUCT,
    METRIC_L2,
    best_of,
    faiss_errors,
    no_neighbors,
    padded,
    threads,
    within,
)
from .vectors import Ownership


class _Heap:
    """`nh` lists of the `k` best, of which `val` and `ids` are the arrays."""

    _metric = METRIC_L2

    def __init__(self) -> None:
        self.nh = self.k = 0
        self.val: Any = None
        self.ids: Any = None

    def _tables(self) -> tuple[NDArray[Any], NDArray[Any]]:
        size, shape = self.nh * self.k, (self.nh, self.k)
        return self.val.reshape(-1)[:size].reshape(shape), self.ids.reshape(-1)[:size].reshape(
            shape
        )

    def get_val(self, key: int) -> NDArray[Any]:
        return self._tables()[0][key]

    def get_ids(self, key: int) -> NDArray[Any]:
        return self._tables()[1][key]

    def heapify(self) -> None:
        """Makes all of them empty."""
        for to, none in zip(
            self._tables(), no_neighbors((self.nh, self.k), self._metric), strict=True
        ):
            to[...] = none

    def addn(self, nj: int, vin: Any, j0: int = 0, i0: int = 0, ni: int = -1) -> None:
        """The values vin [ni x nj] for the lists from i0 on, under the ids from j0 on."""
        ni = self.nh - i0 if ni < 0 else ni
        values = np.ravel(vin)[: ni * nj].reshape(ni, nj)
        self._take(values, np.broadcast_to(np.arange(j0, j0 + nj), values.shape), i0)

    def _take(self, values: NDArray[Any], ids: NDArray[Any], i0: int = 0) -> None:
        """Keeps the best of what the lists from i0 on have and of these [ni x any]."""
        had = [each[i0 : i0 + len(ids)] for each in self._tables()]
        both = np.concatenate([had[0], values], 1), np.concatenate([had[1], ids], 1)
        for to, best in zip(had, best_of(*both, self.k, self._metric), strict=True):
            to[...] = best

    def reorder(self) -> None:
        """Puts the best first: they are already."""


class float_maxheap_array_t(_Heap):  # noqa: N801
    """Of the smallest values."""


class float_minheap_array_t(_Heap):  # noqa: N801
    """Of the largest values."""

    _metric = METRIC_INNER_PRODUCT


class RangeSearchResult:
    """What range searches found: those of query i stand at lims[i] : lims[i + 1] of `labels` and
    `distances`."""

    this, thisown = Ownership(), True

    def __init__(self, nq: int, alloc_lims: bool = True) -> None:
        self.nq, self.buffer_size = int(nq), 1024 * 256
        self.lims = np.zeros(self.nq + 1, np.uint64)
        self.labels, self.distances = np.empty(0, np.int64), np.empty(0, np.float32)

    def do_allocation(self) -> None:
        """Makes room for as many as `lims`, which are counts before, say."""
        self.lims = np.concatenate([[0], np.cumsum(self.lims[:-1])]).astype(np.uint64)
        size = int(self.lims[-1])
        self.labels, self.distances = np.empty(size, np.int64), np.empty(size, np.float32)

    def _take(self, found: Any) -> None:
        self.lims, self.distances, self.labels = found


def _rows(x: Any, n: int, d: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(np.ravel(x)[: n * d].reshape(n, d), np.float32)


def _filter(sel: Any, ny: int) -> Any:
    return None if sel is None else sel.mask(np.arange(ny))


def _nearest(metric: str, x: Any, y: Any, d: int, nx: int, ny: int, *to: Any) -> None:
    """`to`: a heap; or k, the arrays, what is not needed here, and a selector."""
    if isinstance(to[0], _Heap):
        k, vals, ids, sel = to[0].k, to[0].val, to[0].ids, (*to[1:], None, None)[1]
    else:
        k, vals, ids = to[:3]
        others = [each for each in to[3:] if hasattr(each, "mask")]
        sel = others[0] if others else None
    with faiss_errors():
        found = knear_knn(
            _rows(x, nx, d), _rows(y, ny, d), k, metric, filter=_filter(sel, ny), threads=threads()
        )
    by = METRIC_L2 if metric == "l2" else METRIC_INNER_PRODUCT
    for out, values in zip((vals, ids), padded(found.distances, found.ids, by), strict=True):
        out.reshape(-1)[: nx * k] = values.ravel()


def knn_L2sqr(x: Any, y: Any, d: int, nx: int, ny: int, *to: Any) -> None:
    """The nearest of ny vectors for each of nx: (x, y, d, nx, ny, heap), or k and two arrays
    [nx x k] instead of the heap; then norms, which are not needed, and a selector."""
    _nearest("l2", x, y, d, nx, ny, *to)


def knn_inner_product(x: Any, y: Any, d: int, nx: int, ny: int, *to: Any) -> None:
    """The same of inner products."""
    _nearest("ip", x, y, d, nx, ny, *to)


def _in_range(
    metric: str, x: Any, y: Any, nx: int, ny: int, d: int, radius: float, sel: Any
) -> Any:
    by = METRIC_L2 if metric == "l2" else METRIC_INNER_PRODUCT
    with faiss_errors():
        found = knear_range_search(
            _rows(x, nx, d),
            _rows(y, ny, d),
            float(radius),
            metric,
            filter=_filter(sel, ny),
            threads=threads(),
        )
    return within(*found, radius, by)


def range_search_L2sqr(
    x: Any, y: Any, d: int, nx: int, ny: int, radius: float, result: Any, sel: Any = None
) -> None:
    """Those of ny vectors within the radius of each of nx, into a RangeSearchResult."""
    result._take(_in_range("l2", x, y, nx, ny, d, radius, sel))


def range_search_inner_product(
    x: Any, y: Any, d: int, nx: int, ny: int, radius: float, result: Any, sel: Any = None
) -> None:
    """The same of inner products."""
    result._take(_in_range("ip", x, y, nx, ny, d, radius, sel))
