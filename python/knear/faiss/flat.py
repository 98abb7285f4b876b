"""IndexFlat: vectors as they are, searched exactly by a knear.Index, or in NumPy by metrics that
this has not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._index import Index as KnearIndex
from . import metrics, tables
from .base import (
    FEW_NUMBERS,
    METRIC_INNER_PRODUCT,
    METRIC_L2,
    DistanceComputer,
    Index,
    faiss_errors,
    fill,
    first_rows,
    flat_metric_name,
    has_nan,
    into,
    measured,
    metric_name,
    padded,
    refuse,
    rows_of_nan,
    threads,
    within,
)
from .fields import whole
from .interrupts import interruptions
from .numbering import Numbering
from .selectors import rows_named
from .vectors import Copy, Float32Vector, UInt8Vector


class IndexFlatCodes(Index):
    """Codes, or the vectors themselves, under ids 0, 1, ...: after remove_ids those that follow
    move up."""

    def get_FlatCodesDistanceComputer(self) -> DistanceComputer:
        return self.get_distance_computer()


class IndexFlat(IndexFlatCodes):
    """Vectors of d columns under ids 0, 1, ...: after remove_ids those that follow move up.

    A knear.Index keeps them under ids of its own that never change; `_places` has these of
    FAISS's ids. It takes no vectors of NaN: `_unfound` has
    these, of which no search finds one, by the index's ids.
    """

    def __init__(self, d: int = 0, metric: int = METRIC_L2) -> None:
        super().__init__(d, metric)
        self.reset()

    @Index.metric_type.setter
    def metric_type(self, metric: int) -> None:
        vectors = self._all() if "_kept" in self.__dict__ else None
        Index.metric_type.fset(self, metric)
        if vectors is not None:
            self.reset()
            self._add(vectors, None)

    def _take_metric(self, metric: int) -> None:
        if not metrics.is_other(metric):
            metric_name(metric)

    def _by_table(self) -> bool:
        return metrics.is_by_table(self.metric_type)

    _takes_nan = _by_table

    @property
    def ntotal(self) -> int:
        return len(self._kept)

    @property
    def code_size(self) -> int:
        return 4 * self.d

    @property
    def codes(self) -> UInt8Vector:
        """The bytes of all vectors: a copy."""
        return Copy(self._all().view(np.uint8))

    def compute_distance_subset(self, n: int, x: Any, k: int, distances: Any, labels: Any) -> None:
        """Puts the distances of the first n rows of `x` to k vectors of their own, of the ids
        labels [n x k], into an array; infinity for id -1."""
        ids = np.ravel(labels)[: n * k].reshape(n, k)
        far = -np.inf if metrics.is_similarity(self.metric_type) else np.inf
        out = np.full((n, k), far, np.float32)
        for row, query in enumerate(first_rows(n, x, self.d)):
            there = ids[row] >= 0
            base = self.reconstruct_batch(ids[row][there])
            out[row, there] = measured(query, base, self.metric_type, self.metric_arg)
        fill(distances, out)

    def get_xb(self) -> NDArray[np.float32]:
        """All vectors, one after another: a copy."""
        return self._all().ravel()

    def _all(self) -> NDArray[np.float32]:
        return self._vectors_of(np.arange(self.ntotal))

    def _filter(self, params: Any) -> NDArray[np.bool_] | None:
        selector = getattr(params, "sel", None)
        if selector is None and not self._unfound:
            return None
        size = self.ntotal
        chosen = np.ones(size, np.bool_) if selector is None else selector.mask_to(size)
        if self._unfound:
            chosen &= ~np.isin(self._places.all(), list(self._unfound))
        if self._places.is_plain():
            return chosen
        mask = np.zeros(self._kept.next_id, np.bool_)
        mask[self._places.all()] = chosen
        return mask

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        if ids is not None:
            refuse("add_with_ids not implemented for this type of index: take an IndexIDMap")
        first = self._kept.next_id
        unfound = rows_of_nan(x) if x.size > FEW_NUMBERS or has_nan(x) else None
        if unfound is not None and unfound.any():
            self._kept.add(np.where(unfound[:, None], np.float32(0), x), threads=threads())
            self._unfound.update((first + int(i), x[i].copy()) for i in np.flatnonzero(unfound))
        else:
            self._kept.add(x, threads=threads())
        self._places = self._places.with_rows(first, len(x))

    def _chosen(self, params: Any) -> NDArray[np.bool_] | None:
        selector = getattr(params, "sel", None)
        return None if selector is None else selector.mask_to(self.ntotal)

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        if self._by_table():
            measure = self.metric_type, self.metric_arg
            return tables.nearest(x, self._all(), k, *measure, self._chosen(params))
        distances, kept = self._kept.search(
            x, k, filter=self._filter(params), threads=threads(), progress=interruptions()
        )
        return padded(distances, self._places.rows(kept), self.metric_type)

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        if self._by_table():
            measure = self.metric_type, self.metric_arg
            return tables.around(x, self._all(), radius, *measure, self._chosen(params))
        begin, distances, kept = self._kept.range_search(
            x, radius, filter=self._filter(params), threads=threads(), progress=interruptions()
        )
        return within(begin, distances, self._places.rows(kept), radius, self.metric_type)

    def reconstruct(self, key: int, x: Any = None) -> NDArray[np.float32]:
        """The vector [d] of this id."""
        row = whole("key", key)
        if self._unfound or not 0 <= row < self._places.size:
            return super().reconstruct(key, x)
        data, _ = self._kept._index.reconstruct(self._places.first(np.array([row])))
        return into(x, data.view(np.float32))

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        if ids.size and not (ids.min() >= 0 and ids.max() < self.ntotal):
            refuse(f"a key is not among the ids 0 to {self.ntotal - 1}")
        if not ids.size:
            return np.empty((0, self.d), np.float32)
        kept = self._places.first(ids)
        out = self._kept.reconstruct(kept)
        if self._unfound:
            for row in np.flatnonzero(np.isin(kept, list(self._unfound))):
                out[row] = self._unfound[int(kept[row])]
        return out

    def _remove(self, selector: Any) -> int:
        gone = rows_named(selector, self.ntotal)
        if len(gone):
            self._kept.remove(self._places.first(gone))
            self._places = self._places.without(gone)
        return len(gone)

    def reset(self) -> None:
        metric = "l2" if self._by_table() else flat_metric_name(self.metric_type)
        with faiss_errors():
            self._kept = KnearIndex("Flat", dim=self.d, metric=metric)
        self._places = Numbering(0)
        self._unfound: dict[int, NDArray[np.float32]] = {}

    def permute_entries(self, perm: NDArray[np.int64]) -> None:
        """Vector perm[i] gets the id i."""
        vectors = self._vectors_of(_permutation(perm, self.ntotal))
        self.reset()
        self._add(vectors, None)

    def _merge(self, other: Any, add_id: int) -> None:
        self._add(other._all(), None)
        other.reset()

    def sa_code_size(self) -> int:
        return 4 * self.d

    def _encode(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return x.view(np.uint8).reshape(len(x), 4 * self.d)

    def _decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return codes.view(np.float32).reshape(len(codes), self.d)

    def _add_codes(self, codes: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        self._add(self._decode(codes), ids)


def _permutation(perm: Any, size: int) -> NDArray[np.int64]:
    which = np.ascontiguousarray(perm, np.int64).ravel()
    if not np.array_equal(np.sort(which), np.arange(size)):
        refuse(f"the permutation is none of {size} ids")
    return which


class IndexFlatL2(IndexFlat):
    """By squared Euclidean distances."""

    def __init__(self, d: int = 0) -> None:
        super().__init__(d, METRIC_L2)
        self.cached_l2norms = Float32Vector()

    def sync_l2norms(self) -> None:
        """Puts the squared lengths of all vectors into cached_l2norms. Searches do not need it:
        knear keeps them by itself, as far as they help."""
        self.cached_l2norms.set(np.square(self._all()).sum(1))

    def clear_l2norms(self) -> None:
        self.cached_l2norms.clear()


class IndexFlatIP(IndexFlat):
    """By inner products, the largest first."""

    def __init__(self, d: int = 0) -> None:
        super().__init__(d, METRIC_INNER_PRODUCT)
