"""Indexes around indexes: ids of one's own, transforms before, a second measure behind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import (
    METRIC_L2,
    DistanceComputer,
    Index,
    best_of,
    faiss_errors,
    fill,
    first_rows,
    matrix,
    no_neighbors,
    parameters_of,
    raised,
    ranges,
    refuse,
)
from .flat import IndexFlat
from .interrupts import InterruptCallback
from .parameters import (
    IndexRefineSearchParameters,
    SearchParameters,
    SearchParametersPreTransform,
    translated,
)
from .saying import say
from .selectors import IDSelector
from .transforms import VectorTransform
from .vectors import IdVector, Map, Objects


class _Around(Index):
    """Passes to `index` what it does itself."""

    index: Any = None

    def _take_metric(self, metric: int) -> None:
        if self.index is not None and metric != self.index.metric_type:
            super()._take_metric(metric)

    def _takes_nan(self) -> bool:
        return self.index._takes_nan()

    def _selecting(self, params: Any, selector: IDSelector) -> SearchParameters:
        return self.index._selecting(params, selector)

    @property
    def ntotal(self) -> int:
        return self.index.ntotal

    def reset(self) -> None:
        self.index.reset()

    def get_distance_computer(self) -> DistanceComputer:
        return DistanceComputer(self.index)


class IndexIDMap(_Around):
    """The vectors of an index under ids of one's own, which add_with_ids() takes; one may come
    twice."""

    def __init__(self, index: Index) -> None:
        if index.ntotal:
            refuse("index must be empty on input")
        super().__init__(index.d, index.metric_type)
        self.index = index
        self.is_trained = index.is_trained
        self.id_map = IdVector()

    def _ids(self) -> NDArray[np.int64]:
        return self.id_map.array

    def _train(self, x: NDArray[np.float32]) -> None:
        self.index.train(x)
        self.is_trained = self.index.is_trained

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        if ids is None:
            refuse(f"add does not make sense with {type(self).__name__}, use add_with_ids")
        self.index.add(x)
        self.id_map.append(ids)

    def _add_codes(self, codes: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        if ids is None:
            refuse(f"codes are added to {type(self).__name__} with ids")
        self.index.add_sa_codes(codes)
        self.id_map.append(ids)

    def _inner(self, params: Any) -> Any:
        return translated(params, self.id_map)

    def _outer(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self.id_map.size():
            return rows
        return np.where(rows < 0, -1, self._ids()[rows])

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        distances, rows = self.index.search(x, k, params=self._inner(params))
        return distances, self._outer(rows)

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        begin, distances, rows = self.index.range_search(x, radius, params=self._inner(params))
        return begin, distances, self._outer(rows)

    def _remove(self, selector: Any) -> int:
        gone = selector.mask(self._ids())
        self.index.remove_ids(np.flatnonzero(gone))
        self.index._close_up(~gone)
        self.id_map.array = self._ids()[~gone]
        return int(gone.sum())

    def reset(self) -> None:
        self.index.reset()
        self.id_map.clear()

    def _has_ids(self) -> bool:
        return True

    def check_compatible_for_merge(self, otherIndex: Any) -> None:
        super().check_compatible_for_merge(otherIndex)
        self.index.check_compatible_for_merge(otherIndex.index)

    def _merge(self, other: Any, add_id: int) -> None:
        self.index._merge(other.index, self.ntotal)
        self.id_map.append(raised(other._ids(), add_id))
        other.id_map.clear()

    def sa_code_size(self) -> int:
        return self.index.sa_code_size()

    def _encode(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return self.index.sa_encode(x)

    def _decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.index.sa_decode(codes)


class IndexIDMap2(IndexIDMap):
    """An IndexIDMap that finds vectors by their ids, for reconstruct()."""

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        places = self.id_map.places_of(ids)
        if (places < 0).any():
            refuse(f"key not found: id {ids[places < 0][0]} is not in the index")
        return self.index.reconstruct_batch(places)

    def construct_rev_map(self) -> None: ...

    @property
    def rev_map(self) -> Map:
        """The place of each id in the index inside, the last of those that come twice."""
        return Map(zip(self._ids().tolist(), range(self.id_map.size()), strict=True))

    def check_consistency(self) -> None:
        if self.id_map.size() != self.index.ntotal:
            refuse("there are other numbers of ids and of vectors")


class IndexPreTransform(_Around):
    """Transforms vectors and queries, in the order of `chain`, before an index gets them."""

    def __init__(self, *given: Any) -> None:
        """(index), or (transform, index)."""
        *transforms, index = given
        super().__init__(index.d, index.metric_type)
        self.index = index
        self.chain = Objects()
        self.is_trained = index.is_trained
        for transform in transforms:
            self.prepend_transform(transform)

    def prepend_transform(self, ltrans: VectorTransform) -> None:
        """Puts a transform before all others."""
        if ltrans.d_out != self.d:
            refuse(f"the transform makes {ltrans.d_out} columns, but the next takes {self.d}")
        self.chain.insert(0, ltrans)
        self.d = ltrans.d_in
        self.is_trained = self.is_trained and ltrans.is_trained

    def _train(self, x: NDArray[np.float32]) -> None:
        of = len(self.chain)
        for i, transform in enumerate(self.chain):
            if not transform.is_trained:
                say(self.verbose, f"IndexPreTransform: training chain component {i}/{of}")
                transform.train(x)
            say(self.verbose, f"IndexPreTransform: applying transform {i}/{of}")
            x = transform.apply(x)
        if not self.index.is_trained:
            say(self.verbose, "IndexPreTransform: training sub-index")
            self.index.train(x)
        self.is_trained = True

    def _changed(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self.is_trained:
            refuse("the index is not trained")
        for transform in self.chain:
            x = transform.apply(x)
        return x

    def get_distance_computer(self) -> DistanceComputer:
        return DistanceComputer(self.index, self._changed)

    def apply_chain(self, *given: Any) -> NDArray[np.float32]:
        """(x), or as FAISS has it (n, swig_ptr(x)): the vectors that the index inside gets [n x its
        d], which rev_swig_ptr() takes, too."""
        rows = matrix(given[0], self.d) if len(given) == 1 else first_rows(*given, self.d)
        with faiss_errors():
            return self._changed(rows)

    def _back(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        for transform in reversed(self.chain):
            x = transform.reverse_transform(x)
        return x

    def reverse_chain(self, *given: Any) -> Any:
        """(x): vectors of the index inside back in the columns of this one [n x d]. (n, xt, x), as
        FAISS has it: those of `xt`, put into the array `x`."""
        if len(given) == 1:
            return self._back(matrix(given[0], self.index.d))
        n, xt, x = given
        with faiss_errors():
            fill(x, self._back(first_rows(n, xt, self.index.d)))
        return None

    @staticmethod
    def _inner(params: Any) -> Any:
        if isinstance(params, SearchParametersPreTransform):
            return params.index_params
        return params

    def _selecting(self, params: Any, selector: IDSelector) -> SearchParameters:
        return super()._selecting(self._inner(params), selector)

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        x = self._changed(x)
        if ids is None:
            self.index.add(x)
        else:
            self.index.add_with_ids(x, ids)

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        return self.index.search(self._changed(x), k, params=self._inner(params))

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        return self.index.range_search(self._changed(x), radius, params=self._inner(params))

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._back(self.index.reconstruct_batch(ids))

    def _vectors_from(self, first: int, count: int) -> NDArray[np.float32]:
        return self._back(self.index.reconstruct_n(first, count))

    def _vectors_of_found(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._back(self.index._vectors_of_found(ids))

    def _remove(self, selector: Any) -> int:
        return self.index.remove_ids(selector)

    def _close_up(self, kept: NDArray[np.bool_]) -> None:
        self.index._close_up(kept)

    def _has_ids(self) -> bool:
        return self.index._has_ids()

    def check_compatible_for_merge(self, otherIndex: Any) -> None:
        super().check_compatible_for_merge(otherIndex)
        if len(self.chain) != len(otherIndex.chain):
            refuse("indexes with other transforms cannot be merged")
        for a, b in zip(self.chain, otherIndex.chain, strict=True):
            a.check_identical(b)
        self.index.check_compatible_for_merge(otherIndex.index)

    def _merge(self, other: Any, add_id: int) -> None:
        self.index._merge(other.index, add_id)

    def sa_code_size(self) -> int:
        return self.index.sa_code_size()

    def _encode(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return self.index.sa_encode(self._changed(x))

    def _decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self._back(self.index.sa_decode(codes))

    def _add_codes(self, codes: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        self.index.add_sa_codes(codes, ids)


class IndexRefine(Index):
    """k * k_factor neighbours of `base_index` are measured again by the vectors of `refine_index`,
    in float64."""

    def __init__(self, base_index: Index, refine_index: Index | None = None) -> None:
        super().__init__(base_index.d, base_index.metric_type)
        if refine_index is None:
            refine_index = IndexFlat(base_index.d, base_index.metric_type)
        if (refine_index.d, refine_index.metric_type) != (self.d, self.metric_type):
            refuse("the two indexes have other dimensions or metrics")
        if base_index.ntotal != refine_index.ntotal:
            refuse("the two indexes have other numbers of vectors")
        self.base_index, self.refine_index = base_index, refine_index
        self.own_refine_index = False
        self.k_factor = 1.0
        self.is_trained = base_index.is_trained and refine_index.is_trained

    @property
    def ntotal(self) -> int:
        return self.refine_index.ntotal

    def reset(self) -> None:
        self.base_index.reset()
        self.refine_index.reset()

    def _train(self, x: NDArray[np.float32]) -> None:
        self.base_index.train(x)
        self.refine_index.train(x)
        self.is_trained = True

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        if not self.is_trained:
            refuse("the index is not trained")
        if ids is not None:
            refuse("add_with_ids not implemented for this type of index: take an IndexIDMap")
        codes = self.refine_index.sa_encode(x)  # before anything is stored: it may be refused
        self.base_index.add(x)
        self.refine_index.add_sa_codes(codes)

    def _parameters(self) -> IndexRefineSearchParameters:
        return IndexRefineSearchParameters(k_factor=self.k_factor)

    def _asked(self, params: Any) -> tuple[float, Any]:
        """(k_factor, parameters of the base index, which has to apply a selector)."""
        parameters_of(params, IndexRefineSearchParameters, "IndexRefine")
        if params is None:
            return self.k_factor, None
        of_base = params.base_index_params
        if params.sel is not None:
            of_base = self.base_index._selecting(of_base, params.sel)
        return params.k_factor, of_base

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        factor, of_base = self._asked(params)
        wanted = max(int(k * factor), 1)
        if wanted < k:
            refuse(f"k_factor must be 1 at least, but is {factor}")
        if not self.ntotal:
            return no_neighbors((len(x), k), self.metric_type)
        ids = self.base_index.search(x, wanted, params=of_base)[1]
        distances, _ = no_neighbors(ids.shape, self.metric_type)
        query, place = np.nonzero(ids >= 0)
        distances[query, place] = self._measured(x, query, ids[query, place])
        return best_of(distances, ids, k, self.metric_type)

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        """Of those that the base index has within k_factor times the radius, those within it."""
        factor, of_base = self._asked(params)
        begin, _, ids = self.base_index.range_search(x, radius * factor, params=of_base)
        query = np.repeat(np.arange(len(x)), np.diff(begin.astype(np.int64)))
        distances = self._measured(x, query, ids)
        return ranges(len(x), query, distances, ids, radius, self.metric_type)

    def _measured(self, x: NDArray[np.float32], query: Any, ids: Any) -> NDArray[np.float32]:
        """The distances of pairs: from row query[i] of `x` to the vector ids[i]."""
        out = np.empty(len(ids), np.float32)
        block = max(1, (1 << 22) // self.d)
        for begin in range(0, len(ids), block):
            InterruptCallback.check()
            some = slice(begin, begin + block)
            each, at = np.unique(ids[some], return_inverse=True)
            vectors = self.refine_index.reconstruct_batch(each)[at].astype(np.float64)
            asked = x[query[some]].astype(np.float64)
            if self.metric_type == METRIC_L2:
                out[some] = np.square(asked - vectors).sum(1)
            else:
                out[some] = (asked * vectors).sum(1)
        return out

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.refine_index.reconstruct_batch(ids)

    def _remove(self, selector: Any) -> int:
        gone = selector.mask(np.arange(self.ntotal))
        self.base_index.remove_ids(selector)
        self.base_index._close_up(~gone)
        return self.refine_index.remove_ids(selector)

    def check_compatible_for_merge(self, otherIndex: Any) -> None:
        super().check_compatible_for_merge(otherIndex)
        self.base_index.check_compatible_for_merge(otherIndex.base_index)
        self.refine_index.check_compatible_for_merge(otherIndex.refine_index)

    def _merge(self, other: Any, add_id: int) -> None:
        first = self.ntotal
        self.base_index._merge(other.base_index, first)
        self.refine_index._merge(other.refine_index, first)

    def sa_code_size(self) -> int:
        return self.base_index.sa_code_size() + self.refine_index.sa_code_size()

    def _encode(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.concatenate([self.base_index.sa_encode(x), self.refine_index.sa_encode(x)], 1)

    def _decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.refine_index.sa_decode(codes[:, self.base_index.sa_code_size() :])

    def _add_codes(self, codes: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        size = self.base_index.sa_code_size()
        self.base_index.add_sa_codes(codes[:, :size], ids)
        self.refine_index.add_sa_codes(codes[:, size:], ids)


class IndexRefineFlat(IndexRefine):
    """By the vectors themselves: IndexRefineFlat(base), or (base, the vectors that it has)."""

    def __init__(self, base_index: Index, xb: Any = None) -> None:
        flat = IndexFlat(base_index.d, base_index.metric_type)
        if xb is not None:
            flat.add(np.ravel(xb)[: base_index.ntotal * base_index.d].reshape(-1, base_index.d))
        super().__init__(base_index, flat)
        self.own_refine_index = True
