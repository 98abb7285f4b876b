"""The neighbours of rows: the search that all estimators share, NearestNeighbors, and
KNeighborsTransformer."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn import get_config
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted

from .. import _search
from .._index import Index
from . import _distances
from ._checks import as_bytes, as_knear_reads, own, threads_of, validate_data, whole_number

# knear's metric for each of scikit-learn's.
_METRICS = {
    "euclidean": "l2",
    "l2": "l2",
    "sqeuclidean": "l2",
    "cosine": "cosine",
    "manhattan": "l1",
    "cityblock": "l1",
    "l1": "l1",
}
_ROOTS = ("euclidean", "l2")


class _Neighbors(MultiOutputMixin, BaseEstimator):
    """Rows X [n x d] that were fitted, and their k nearest. Parameters are kept as they came and
    looked at by fit(), as scikit-learn wants it."""

    def _fit(self, X: NDArray[Any], given: Any) -> None:
        """Takes over validated rows of `given`, what the caller has."""
        self.effective_metric_ = self._effective_metric()
        self.effective_metric_params_ = {}
        threads_of(self.n_jobs)
        recall = self.recall
        if not isinstance(recall, numbers.Real) or not 0 < recall <= 1:
            raise ValueError(f"recall must be in (0, 1], but is {recall!r}")
        self._fit_X = own(as_knear_reads(X), given)
        self._fit_method = "brute"
        self.n_samples_fit_ = len(X)
        self._index = self._make_index(self.factory)

    def _effective_metric(self) -> str:
        there = ", ".join(sorted(repr(metric) for metric in _METRICS))
        there += " and 'minkowski' with p=2 or p=1"
        if self.algorithm not in ("auto", "brute"):
            raise ValueError(
                f"algorithm must be 'auto' or 'brute', but is {self.algorithm!r}: no trees here"
            )
        if self.metric_params:
            raise ValueError(f"metric_params must be None, but are {self.metric_params!r}")
        if not isinstance(self.metric, str):
            raise ValueError(f"metric={self.metric!r}; there are {there}")
        if self.metric == "minkowski":
            if self.p not in (1, 2):
                raise ValueError(f"p={self.p!r} for metric='minkowski'; there are {there}")
            return "euclidean" if self.p == 2 else "manhattan"
        if self.metric not in _METRICS:
            raise ValueError(f"metric={self.metric!r}; there are {there}")
        return self.metric

    @property
    def _exact(self) -> bool:
        return self._fit_factory == "Flat" and self.recall == 1

    def _make_index(self, factory: str) -> Index:
        X, metric = self._fit_X, _METRICS[self.effective_metric_]
        threads = threads_of(self.n_jobs)
        rows = as_bytes(X, threads)
        needs = {"rows": len(X), "recall": self.recall} if factory == "auto" else {}
        index = Index(factory, dim=X.shape[1], metric=metric, **needs)
        if not index.is_trained:
            index.train(rows, threads=threads)
        index.add(rows, threads=threads)
        self._fit_factory = index.factory  # which "auto" is by its first rows
        return index

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        # The second copy of the rows is made again quickly.
        if getattr(self, "_fit_factory", None) == "Flat":
            state.pop("_index", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_fit_X" in state and "_index" not in state:
            self._index = self._make_index("Flat")

    def _queries(self, X: Any) -> NDArray[Any]:
        return as_knear_reads(validate_data(self, X, reset=False, order="C"))

    def kneighbors(
        self, X: ArrayLike | None = None, n_neighbors: int | None = None,
        return_distance: bool = True,
    ) -> Any:  # fmt: skip
        """(distances, indices), both [q x n_neighbors], of the nearest fitted rows of each row of
        `X` [q x d], nearest first, equal distances by index; the indices alone without
        return_distance.

        X: None for the fitted rows, each without itself; copies of a row are rows like any other.
        n_neighbors: None for the parameter of that name.

        Distances are float64: Euclidean, squared for metric="sqeuclidean", 1 - cos for "cosine",
        sums of absolute differences for "manhattan".
        Raises ValueError for more neighbours than rows, other columns, NaN and infinity;
        NotFittedError.
        """
        check_is_fitted(self)
        k = whole_number("n_neighbors", self.n_neighbors if n_neighbors is None else n_neighbors)
        own = X is None
        queries = self._fit_X if own else self._queries(X)
        if k > self.n_samples_fit_ - own:
            raise ValueError(
                f"Expected n_neighbors {'<' if own else '<='} n_samples_fit, but n_neighbors = {k},"
                f" n_samples_fit = {self.n_samples_fit_}, n_samples = {len(queries)}"
            )
        threads = threads_of(self.n_jobs)
        if not self._exact:
            ids, squares = self._approximate(queries, k, own, threads)
        else:
            if own:
                metric = _METRICS[self.effective_metric_]
                ids = _search.self_join(queries, k, metric, threads=threads).ids
            else:
                ids = self._index.search(queries, k, threads=threads).ids
            if return_distance:
                squares = self._measured(queries, ids, threads)
                # knear added the squares in another order, so that rows whose distances differ in
                # the last bit may be the other way round here.
                squares = np.maximum.accumulate(squares, axis=1)
        ids = ids.astype(np.intp, copy=False)
        return (self._distances_of(squares), ids) if return_distance else ids

    def _approximate(
        self, queries: NDArray[Any], k: int, own: bool, threads: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices and distances by the index; those of codes are put in the order of the rows."""
        widen = self._index.lists > 0
        ids = self._index.search(
            queries, k + own, recall=float(self.recall), widen=widen, threads=threads
        ).ids
        if own:
            others = ids != np.arange(len(ids))[:, None]
            others[others.all(axis=1), -1] = False  # the row itself was not found
            ids = ids[others].reshape(len(ids), k)
        if (ids < 0).any():
            raise ValueError(
                f"{self._fit_factory!r} found fewer than n_neighbors = {k} of "
                f"{self.n_samples_fit_} rows for some query: raise recall, or ask for fewer"
            )
        squares = self._measured(queries, ids, threads)
        order = np.lexsort((ids, squares), axis=1)
        return np.take_along_axis(ids, order, 1), np.take_along_axis(squares, order, 1)

    def _measured(
        self, queries: NDArray[Any], ids: NDArray[np.int64], threads: int
    ) -> NDArray[np.float64]:
        rows = np.repeat(np.arange(len(ids)), ids.shape[1])
        metric = _METRICS[self.effective_metric_]
        flat = _distances.of_pairs(queries, self._fit_X, rows, ids.ravel(), metric, threads)
        return flat.reshape(ids.shape)

    def _distances_of(self, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.sqrt(squares) if self.effective_metric_ in _ROOTS else squares

    def kneighbors_graph(
        self, X: ArrayLike | None = None, n_neighbors: int | None = None, mode: str = "connectivity"
    ) -> Any:
        """The graph [q x n] of kneighbors() in CSR format, with n_neighbors entries a row, nearest
        first.

        mode: "connectivity", every entry is 1; "distance", it is the distance.
        """
        check_is_fitted(self)
        _check_mode(mode)
        k = self.n_neighbors if n_neighbors is None else n_neighbors
        if mode == "distance":
            distances, ids = self.kneighbors(X, k)
        else:
            ids = self.kneighbors(X, k, return_distance=False)
            distances = np.ones(ids.shape)
        begin = np.arange(0, ids.size + 1, ids.shape[1])
        return _graph(distances.ravel(), ids.ravel(), begin, self.n_samples_fit_)


class NearestNeighbors(_Neighbors):
    """The nearest rows of other rows, as sklearn.neighbors.NearestNeighbors with brute force.

    >>> import numpy as np
    >>> from knear.sklearn import NearestNeighbors
    >>> X = np.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    >>> nearest = NearestNeighbors(n_neighbors=2, radius=5.0).fit(X)
    >>> distances, indices = nearest.kneighbors([[0.0, 0.0]])
    >>> distances.tolist(), indices.tolist()
    ([[0.0, 5.0]], [[0, 1]])
    >>> nearest.kneighbors(return_distance=False).tolist()      # each without itself
    [[1, 2], [0, 2], [1, 0]]
    >>> nearest.radius_neighbors([[0.0, 0.0]])[1][0].tolist()
    [0, 1]

    n_neighbors, radius: what the methods of those names take where nothing is said.
    algorithm: "auto" or "brute", which are the same.
    metric: "euclidean", "l2", "minkowski" with p=2, "sqeuclidean", "cosine", or "manhattan",
        "cityblock", "l1", "minkowski" with p=1.
    metric_params: None.
    n_jobs: threads; None and -1 are all that the process may use.
    factory: the index of the rows, a string as knear.Index takes it: "IVF256,Flat", or "auto".
    recall: the least mean share of the neighbours that kneighbors() finds, in (0, 1]; 1 is exact
        where the index keeps the rows. Distances are those of the rows and in float64 whatever the
        index is, and radius searches exact.

    Attributes: effective_metric_, effective_metric_params_ (empty), n_features_in_,
    feature_names_in_, n_samples_fit_.

    Rows are float64, float32, float16, uint8 or int8, read as they are, other numbers in float64;
    values beyond the range of float32 are refused. fit() keeps a copy of the rows and an index of
    them: changes of `X` in place afterwards have no effect, where scikit-learn's brute force reads
    the changed rows. Pickles leave out the index where it is "Flat": it is made again when they are
    loaded.
    """

    def __init__(
        self,
        *,
        n_neighbors: int = 5,
        radius: float = 1.0,
        algorithm: str = "auto",
        metric: str = "minkowski",
        p: float = 2,
        metric_params: dict[str, Any] | None = None,
        n_jobs: int | None = None,
        factory: str = "Flat",
        recall: float = 1.0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.algorithm = algorithm
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.n_jobs = n_jobs
        self.factory = factory
        self.recall = recall

    def fit(self, X: ArrayLike, y: Any = None) -> NearestNeighbors:
        """Takes over the rows of `X` [n x d] and returns the object itself; `y` is not used.

        Raises ValueError for a NaN or infinity and for parameters that there are not; TypeError for
        a sparse matrix.
        """
        whole_number("n_neighbors", self.n_neighbors)
        _radius_of(self.radius)
        self._fit(validate_data(self, X, order="C"), X)
        return self

    def radius_neighbors(
        self, X: ArrayLike | None = None, radius: float | None = None,
        return_distance: bool = True, sort_results: bool = False,
    ) -> Any:  # fmt: skip
        """(distances, indices) of all fitted rows within `radius` of each row of `X` [q x d], those
        at that distance included: arrays [q] of arrays; the indices alone without return_distance.

        X: None for the fitted rows, each without itself.
        radius: None for the parameter of that name; in the units of the metric.
        sort_results: nearest first, equal distances by index; False: by index.

        Raises ValueError for a radius that is negative or NaN, for sort_results without
        return_distance, and as kneighbors().
        """
        begin, squares, ids = self._within(X, radius, return_distance, sort_results)
        neighbours = _object_array(np.split(ids, begin[1:-1]))
        if not return_distance:
            return neighbours
        return _object_array(np.split(self._distances_of(squares), begin[1:-1])), neighbours

    def _within(
        self, X: Any, radius: Any, measure: bool, nearest_first: bool
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[Any]]:
        """Those within a radius: row i's stand at begin[i] : begin[i + 1] of the other two."""
        check_is_fitted(self)
        if nearest_first and not measure:
            raise ValueError("return_distance must be True if sort_results is True.")
        radius = _radius_of(self.radius if radius is None else radius)
        own = X is None
        queries = self._fit_X if own else self._queries(X)
        threads = threads_of(self.n_jobs)
        if self.effective_metric_ in _ROOTS:
            radius *= radius
        radius = min(radius, float(np.finfo(np.float64).max))
        metric = _METRICS[self.effective_metric_]
        if self._fit_factory == "Flat":
            found = self._index.range_search(queries, radius, threads=threads)
        else:
            found = _search.range_search(queries, self._fit_X, radius, metric, threads=threads)
        ids = found.ids.astype(np.intp, copy=False)
        rows = np.repeat(np.arange(len(queries)), np.diff(found.begin))
        if own:
            others = rows != ids
            rows, ids = rows[others], ids[others]
        keys: list[NDArray[Any]] = [ids, rows]
        squares = np.empty(0)
        if measure:
            squares = _distances.of_pairs(queries, self._fit_X, rows, ids, metric, threads)
        if nearest_first:
            keys.insert(1, squares)
        order = np.lexsort(keys)
        begin = np.searchsorted(rows, np.arange(len(queries) + 1))
        return begin, squares[order] if measure else squares, ids[order]

    def radius_neighbors_graph(
        self, X: ArrayLike | None = None, radius: float | None = None,
        mode: str = "connectivity", sort_results: bool = False,
    ) -> Any:  # fmt: skip
        """The graph [q x n] of radius_neighbors() in CSR format.

        mode: "connectivity", every entry is 1; "distance", it is the distance.
        sort_results: entries of a row nearest first, with mode="distance"; False: by index.
        """
        check_is_fitted(self)
        _check_mode(mode)
        measure = mode == "distance"
        begin, squares, ids = self._within(X, radius, measure, sort_results and measure)
        values = self._distances_of(squares) if measure else np.ones(len(ids))
        return _graph(values, ids, begin, self.n_samples_fit_)


class KNeighborsTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Neighbors):
    """Rows as the graph of their nearest fitted rows, as sklearn.neighbors.KNeighborsTransformer:
    for estimators that take metric="precomputed".

    >>> import numpy as np
    >>> from knear.sklearn import KNeighborsTransformer
    >>> X = np.array([[0.0], [1.0], [3.0]])
    >>> graph = KNeighborsTransformer(n_neighbors=1).fit_transform(X)   # itself, and one more
    >>> graph.toarray().tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
    >>> graph.nnz
    6

    mode: "distance", entries are distances, and there are n_neighbors + 1 a row, since each fitted
        row is the nearest of itself; "connectivity", n_neighbors entries of 1.

    The other parameters and the attributes are those of NearestNeighbors. The graph has no names
    that set_output could give to its columns: it is sparse.
    """

    def __init__(
        self,
        *,
        mode: str = "distance",
        n_neighbors: int = 5,
        algorithm: str = "auto",
        metric: str = "minkowski",
        p: float = 2,
        metric_params: dict[str, Any] | None = None,
        n_jobs: int | None = None,
        factory: str = "Flat",
        recall: float = 1.0,
    ) -> None:
        self.mode = mode
        self.n_neighbors = n_neighbors
        self.algorithm = algorithm
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.n_jobs = n_jobs
        self.factory = factory
        self.recall = recall

    def fit(self, X: ArrayLike, y: Any = None) -> KNeighborsTransformer:
        """Takes over the rows of `X` [n x d] and returns the object itself; `y` is not used.
        Errors as those of NearestNeighbors.fit."""
        whole_number("n_neighbors", self.n_neighbors)
        _check_mode(self.mode)
        self._fit(validate_data(self, X, order="C"), X)
        self._n_features_out = self.n_samples_fit_
        return self

    def transform(self, X: ArrayLike) -> Any:
        """The graph [q x n] of the rows of `X` [q x d] in CSR format, nearest first."""
        check_is_fitted(self)
        more = int(self.mode == "distance")
        return self.kneighbors_graph(X, n_neighbors=self.n_neighbors + more, mode=self.mode)

    def fit_transform(self, X: ArrayLike, y: Any = None) -> Any:
        """fit(X).transform(X)."""
        return self.fit(X).transform(X)


def _check_mode(mode: Any) -> None:
    if mode not in ("connectivity", "distance"):
        raise ValueError(
            'Unsupported mode, must be one of "connectivity", or "distance" but got '
            f'"{mode}" instead'
        )


def _radius_of(radius: Any) -> float:
    if not isinstance(radius, numbers.Real) or not radius >= 0:
        raise ValueError(f"radius must be a number of at least 0, but is {radius!r}")
    return float(radius)


def _object_array(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    out = np.empty(len(arrays), dtype=object)
    out[:] = arrays
    return out


def _graph(values: NDArray[Any], ids: NDArray[Any], begin: NDArray[Any], columns: int) -> Any:
    """A CSR matrix, or a CSR array where scikit-learn is configured to return these."""
    arrays = get_config().get("sparse_interface") == "sparray"
    kind = sparse.csr_array if arrays else sparse.csr_matrix
    return kind((values, ids, begin), shape=(len(begin) - 1, columns))
