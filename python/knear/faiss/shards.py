"""Several indexes as one: IndexShards has the vectors divided between them, IndexReplicas the
queries. knear.Index(shards=, replicas=) does the same with one index and one file."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._search import knn
from .base import (
    METRIC_L2,
    Index,
    best_of,
    metric_name,
    no_neighbors,
    ranges,
    refuse,
    share_of_threads,
)
from .fields import whole
from .flat import IndexFlat
from .ivf import IndexIVFFlat
from .metrics import is_similarity
from .parameters import translated
from .selectors import IDSelectorTranslated, selector_of
from .vectors import Objects


class _Several(Index):
    """Indexes of the same columns and metric, on as many threads at the same time, or one after
    another."""

    _one = "index"

    def __init__(self, d: Any, threaded: bool) -> None:
        self._indexes = Objects()
        super().__init__(max(1, whole("d", d)) if d is not None else 1)
        if not d:
            self.d = 0  # that of the first index
        self._threaded = bool(threaded)
        self.own_indices = False

    def _take_metric(self, metric: int) -> None:
        if not self.count() or metric != self.at(0).metric_type:
            super()._take_metric(metric)

    def _takes_nan(self) -> bool:
        return self.count() > 0 and all(index._takes_nan() for index in self._indexes)

    def count(self) -> int:
        """How many indexes there are."""
        return len(self._indexes)

    def at(self, i: int) -> Any:
        """One of them."""
        if not 0 <= whole("i", i) < self.count():
            refuse(f"there is no {self._one} {i} among {self.count()}")
        return self._indexes[i]

    def addIndex(self, index: Index) -> None:
        """Adds an index, of the same columns and metric as those before."""
        if any(index is other for other in self._indexes):
            refuse(f"the {self._one} is among them already")
        if self.d and index.d != self.d:
            refuse(f"the {self._one} has {index.d} columns, where {self.d} are due")
        if self.count() and index.metric_type != self.metric_type:
            refuse(f"the {self._one} has metric {index.metric_type}, not {self.metric_type}")
        self._check_new(index)
        self.d = index.d
        self._indexes.append(index)
        self.metric_type = index.metric_type
        self.syncWithSubIndexes()

    def removeIndex(self, index: Index) -> None:
        """Takes an index out, which stays as it is."""
        places = [i for i, other in enumerate(self._indexes) if other is index]
        if not places:
            refuse(f"the {self._one} is not among the {self.count()}")
        del self._indexes[places[0]]
        self.syncWithSubIndexes()

    def runOnIndex(self, f: Callable[[int, Any], Any]) -> None:
        """Calls f(i, index) for each of them."""
        self._run(f)

    def syncWithSubIndexes(self) -> None:
        """Looks again whether all are trained. How many vectors there are is always known."""
        self.is_trained = all(index.is_trained for index in self._indexes)

    def _check_new(self, index: Index) -> None: ...

    def _run(self, f: Callable[[int, Any], Any]) -> list[Any]:
        """What f(i, index) returns for each."""
        if not self.count():
            refuse(f"there is no {self._one} yet")

        def called(i: int) -> Any:
            try:
                return f(i, self._indexes[i])
            except RuntimeError as error:
                raise RuntimeError(f"{self._one} {i}: {error}") from error

        if not self._threaded or self.count() == 1:
            return [called(i) for i in range(self.count())]

        def on_its_threads(i: int) -> Any:
            with share_of_threads(self.count()):
                return called(i)

        with ThreadPoolExecutor(self.count()) as pool:
            return list(pool.map(on_its_threads, range(self.count())))

    def _train(self, x: NDArray[np.float32]) -> None:
        self._run(lambda _, index: index.train(x))
        self.syncWithSubIndexes()

    def reset(self) -> None:
        """Empties all of them."""
        for index in self._indexes:
            index.reset()


class IndexShards(_Several):
    """IndexShards(d, threaded=False, successive_ids=True), or without d: the vectors are divided
    between indexes, add_shard(). With successive_ids those of the second go on where those of the
    first end; without, each index has ids of its own."""

    _one = "shard"

    def __init__(self, *given: Any, **named: Any) -> None:
        d, threaded, successive = _arguments(
            "IndexShards", given, named, {"threaded": False, "successive_ids": True}
        )
        super().__init__(d, threaded)
        self.successive_ids = bool(successive)

    add_shard, remove_shard = _Several.addIndex, _Several.removeIndex

    @property
    def ntotal(self) -> int:
        return sum(index.ntotal for index in self._indexes)

    def _begins(self) -> NDArray[np.int64]:
        """What is added to the ids of each shard, and to those of one more."""
        if not self.successive_ids:
            return np.zeros(self.count() + 1, np.int64)
        return np.cumsum([0, *(index.ntotal for index in self._indexes)], dtype=np.int64)

    def _has_ids(self) -> bool:
        return not self.successive_ids

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        if ids is not None and self.successive_ids:
            refuse("shards with successive_ids give ids themselves: make them without, or add()")
        if self.successive_ids and self.ntotal:
            refuse("shards with successive_ids take vectors once: ids would move")
        if ids is None and not self.successive_ids:
            ids = np.arange(self.ntotal, self.ntotal + len(x))
        begins = [len(x) * i // max(1, self.count()) for i in range(self.count() + 1)]

        def add(i: int, index: Any) -> None:
            part = slice(begins[i], begins[i + 1])
            if ids is None:
                index.add(x[part])
            else:
                index.add_with_ids(x[part], ids[part])

        self._run(add)

    def _of_shard(self, begin: int, index: Any, params: Any) -> Any:
        """Parameters for a shard, whose ids begin at `begin`: a selector is of the ids of all."""
        if not self.successive_ids:
            return params
        return translated(params, np.arange(begin, begin + index.ntotal), twice=True)

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        begins = self._begins()

        def search(i: int, index: Any) -> tuple[Any, Any]:
            params_of_it = self._of_shard(begins[i], index, params)
            distances, ids = index.search(x, k, params=params_of_it)
            return distances, np.where(ids < 0, ids, ids + begins[i])

        found = self._run(search)
        distances, ids = (np.concatenate(each, 1) for each in zip(*found, strict=True))
        if self.successive_ids:
            # Each shard keeps its order, and ties of several are in that of shards.
            key = -distances if is_similarity(self.metric_type) else distances
            order = np.lexsort((key, ids < 0), axis=1)
            distances, ids = (np.take_along_axis(each, order, 1) for each in (distances, ids))
        else:
            distances, ids = best_of(distances, ids, distances.shape[1], self.metric_type)
        if self._by_vectors():
            self._order_ties(x, distances, ids, k)
        distances, ids = distances[:, :k], ids[:, :k]
        none = no_neighbors(ids.shape, self.metric_type)[0]
        return np.where(ids < 0, none, distances), np.ascontiguousarray(ids)

    def _by_vectors(self) -> bool:
        """Whether distances are those of vectors that are kept."""
        return self.successive_ids and all(
            isinstance(index, (IndexFlat, IndexIVFFlat)) and metric_is_known(index)
            for index in self._indexes
        )

    def _order_ties(self, x: Any, distances: Any, ids: Any, k: int) -> None:
        """Puts what is equally far in float32 in the order of float64, in which each shard has its
        own: the answer is that of one index."""
        equal = (distances[:, 1:] == distances[:, :-1]) & (ids[:, 1:] >= 0)
        begins = self._begins()
        if ids.size and ids.max() >= begins[-1]:  # shards with ids of their own
            return
        shard = np.searchsorted(begins, ids, side="right")
        apart = equal & (shard[:, 1:] != shard[:, :-1])
        for q in np.flatnonzero(apart.any(1)):
            edges = np.flatnonzero(~equal[q]) + 1
            for begin, end in zip([0, *edges], [*edges, ids.shape[1]], strict=True):
                if begin >= k or not apart[q, begin : end - 1].any():
                    continue
                some = np.sort(ids[q, begin:end])
                order = knn(
                    x[q : q + 1],
                    self._vectors_of_found(some),
                    end - begin,
                    metric_name(self.metric_type),
                    threads=1,
                ).ids[0]
                ids[q, begin:end] = some[order]

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        begins = self._begins()

        def search(i: int, index: Any) -> tuple[Any, Any, Any]:
            params_of_it = self._of_shard(begins[i], index, params)
            lims, distances, ids = index.range_search(x, radius, params=params_of_it)
            query = np.repeat(np.arange(len(x)), np.diff(lims.astype(np.int64)))
            return query, distances, ids + begins[i]

        query, distances, ids = (
            np.concatenate(each) for each in zip(*self._run(search), strict=True)
        )
        return ranges(len(x), query, distances, ids, radius, self.metric_type)

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        if not self.successive_ids:
            refuse("reconstruct not implemented for shards with ids of their own: ask the shards")
        begins = self._begins()
        if len(ids) and not (ids.min() >= 0 and ids.max() < begins[-1]):
            refuse("key not found: an id is not in the index")
        return self._of_shards(ids, lambda index, its_ids: index.reconstruct_batch(its_ids))

    def _vectors_of_found(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._of_shards(ids, lambda index, its_ids: index._vectors_of_found(its_ids))

    def _of_shards(self, ids: NDArray[np.int64], vectors: Any) -> NDArray[np.float32]:
        """What vectors(index, its ids) returns of each shard, in the order of successive ids."""
        begins = self._begins()
        out = np.empty((len(ids), self.d), np.float32)
        shard = np.searchsorted(begins, ids, side="right") - 1
        for i in np.unique(shard):
            out[shard == i] = vectors(self.at(i), ids[shard == i] - begins[i])
        return out

    def _remove(self, selector: Any) -> int:
        begins = self._begins()

        def remove(i: int, index: Any) -> int:
            if not self.successive_ids:
                return index.remove_ids(selector)
            its_ids = np.arange(begins[i], begins[i + 1])
            gone = IDSelectorTranslated(its_ids, selector).mask(np.arange(len(its_ids)))
            removed = index.remove_ids(selector_of(np.flatnonzero(gone)))
            index._close_up(~gone)
            return removed

        return sum(self._run(remove))


class IndexReplicas(_Several):
    """IndexReplicas(d, threaded=False), or without d: indexes with the same vectors, add_replica(),
    between which the queries of a search are divided."""

    _one = "replica"

    def __init__(self, *given: Any, **named: Any) -> None:
        d, threaded = _arguments("IndexReplicas", given, named, {"threaded": False})
        super().__init__(d, threaded)

    add_replica, remove_replica = _Several.addIndex, _Several.removeIndex

    @property
    def ntotal(self) -> int:
        return self.at(0).ntotal if self.count() else 0

    def _check_new(self, index: Index) -> None:
        if self.count() and index.ntotal != self.ntotal:
            refuse(f"the replica has {index.ntotal} vectors, the others {self.ntotal}")

    def syncWithSubIndexes(self) -> None:
        """Looks again whether all are trained. RuntimeError where they have other numbers of
        vectors."""
        totals = [index.ntotal for index in self._indexes]
        if len(set(totals)) > 1:
            refuse(f"replicas have other numbers of vectors: {totals}")
        super().syncWithSubIndexes()

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        if ids is None:
            self._run(lambda _, index: index.add(x))
        else:
            self._run(lambda _, index: index.add_with_ids(x, ids))

    def _divided(self, x: NDArray[np.float32], f: Callable[[Any, Any], Any]) -> list[Any]:
        """What f(index, queries) returns for the queries of each replica."""
        self.syncWithSubIndexes()
        begins = [len(x) * i // max(1, self.count()) for i in range(self.count() + 1)]
        return self._run(lambda i, index: f(index, x[begins[i] : begins[i + 1]]))

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        found = self._divided(x, lambda index, some: index.search(some, k, params=params))
        distances, ids = (np.concatenate(each) for each in zip(*found, strict=True))
        return distances, ids

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        found = self._divided(
            x, lambda index, some: index.range_search(some, radius, params=params)
        )
        counts = np.concatenate([np.diff(lims.astype(np.int64)) for lims, _, _ in found])
        lims = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        distances, ids = (np.concatenate([each[i] for each in found]) for i in (1, 2))
        return lims, distances, ids

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.at(0).reconstruct_batch(ids)

    def _remove(self, selector: Any) -> int:
        return self._run(lambda _, index: index.remove_ids(selector))[0]


def metric_is_known(index: Any) -> bool:
    """Whether the index goes by a metric that knear.knn has."""
    return index.metric_type in (0, METRIC_L2)


def _arguments(
    what: str, given: tuple[Any, ...], named: dict[str, Any], options: dict[str, bool]
) -> list[Any]:
    """[d or None, *options] of a constructor whose first argument may be left out."""
    values = dict(options)
    d = named.pop("d", None)
    if given and not isinstance(given[0], (bool, np.bool_)):
        d, *given = given  # type: ignore[assignment]
    if len(given) > len(values):
        raise TypeError(f"{what} takes d and {len(values)} more arguments, but got {len(given)}")
    values.update(zip(values, given, strict=False))
    for name, value in named.items():
        if name not in values:
            raise TypeError(f"{what} has no argument {name!r}")
        values[name] = value
    return [d, *values.values()]
