"""k-means with scikit-learn's parameters and attributes: KMeans.

Most iterations are those of knear.KMeans, whose centroids are float32. The last one, and those in
which scikit-learn's tolerance is looked at, take the means in float64 and assign by these.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.cluster import kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import euclidean_distances
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import _clustering, _search
from . import _distances
from ._blocks import blocks
from ._checks import as_bytes, threads_of, validate_data, whole_number

_BETWEEN_CHECKS = 10  # iterations after which the tolerance is looked at: each look costs one more
_SAMPLE = 1000  # rows by which it is decided how the rows are passed on
# Rows whose mean is this many times their spread are shifted, since float32 cannot separate them.
_FAR = 1000.0

Init = str | ArrayLike | Callable[..., ArrayLike]


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Rows in n_clusters clusters around their means, as sklearn.cluster.KMeans.

    >>> import numpy as np
    >>> from knear.sklearn import KMeans
    >>> X = np.array([[0.0], [1.0], [10.0], [11.0]])
    >>> model = KMeans(n_clusters=2, random_state=0).fit(X)
    >>> sorted(model.cluster_centers_.ravel().tolist()), model.inertia_
    ([0.5, 10.5], 1.0)
    >>> (model.predict([[2.0], [9.0]]) == model.labels_[[0, 3]]).tolist()
    [True, True]

    n_clusters: at most the number of rows.
    init: "k-means++", "random" rows, the first centres [n_clusters x d], or a function of X,
        n_clusters and random_state that returns them. With the same random_state the first centres
        are those of scikit-learn.
    n_init: how often, from other first centres; the best is kept. "auto": 10 for "random" and a
        function, else 1.
    max_iter: at most so many iterations each time.
    tol: end once the centres moved by no more than this: the sum of the squares of their ways, over
        the mean variance of the columns. Looked at in every 11th iteration; the end is where no row
        moves in any case, and with tol=0 only there.
    verbose: whether each iteration prints a line.
    copy_x: `X` is never changed, whatever this is.
    algorithm: "lloyd".
    n_jobs: threads; None and -1 are all that the process may use.

    Attributes: cluster_centers_ [n_clusters x d], labels_ [n], inertia_ (the weighted sum of the
    squared distances to the nearest centre), n_iter_, n_features_in_, feature_names_in_. Centres
    have the element type of the rows: float64 or float32.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Init = "k-means++",
        n_init: int | str = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: Any = None,
        copy_x: bool = True,
        algorithm: str = "lloyd",
        n_jobs: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> KMeans:
        """Clusters the rows of `X` [n x d] with weights [n], not negative, and returns the object
        itself; `y` is not used.

        Warns (ConvergenceWarning) where fewer clusters than n_clusters have rows. Raises ValueError
        for fewer rows than clusters, a NaN or infinity, and parameters that there are not;
        TypeError for a sparse matrix.
        """
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C")
        restarts = self._check(X)
        random = check_random_state(self.random_state)
        weights = _weights_of(sample_weight, X)
        if np.abs(X).max(initial=0) > np.finfo(np.float32).max:
            raise ValueError("X has a value beyond the range of float32")
        rows = _Rows(X, weights, threads_of(self.n_jobs))
        least = self.tol * _mean_variance(X) if self.tol > 0 else 0.0
        best: tuple[Any, ...] | None = None
        for _ in range(restarts):
            centers = self._first(X, weights, random)
            if self.verbose:
                print("Initialization complete")
            found = self._lloyd(rows, centers, least)
            if best is None or found[2] < best[2]:
                best = found
        self.cluster_centers_, self.labels_, self.inertia_, self.n_iter_ = best
        self._n_features_out = len(self.cluster_centers_)
        distinct = len(np.unique(self.labels_))
        if distinct < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({distinct}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _check(self, X: NDArray[Any]) -> int:
        """How many restarts there are; ValueError or TypeError for what there is not."""
        whole_number("n_clusters", self.n_clusters)
        whole_number("max_iter", self.max_iter)
        threads_of(self.n_jobs)
        if self.algorithm != "lloyd":
            raise ValueError(f"algorithm must be 'lloyd', but is {self.algorithm!r}")
        if not isinstance(self.copy_x, (bool, np.bool_)):
            raise ValueError(f"copy_x must be True or False, but is {self.copy_x!r}")
        if not isinstance(self.tol, numbers.Real) or not self.tol >= 0:
            raise ValueError(f"tol must be a number of at least 0, but is {self.tol!r}")
        if len(X) < self.n_clusters:
            raise ValueError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}.")
        if isinstance(self.init, str) and self.init not in ("k-means++", "random"):
            raise ValueError(
                "init must be 'k-means++', 'random', an array of centres or a function, but is "
                f"{self.init!r}"
            )
        drawn = callable(self.init) or isinstance(self.init, str)
        if isinstance(self.n_init, str):
            if self.n_init != "auto":
                raise ValueError(f"n_init must be 'auto' or a number, but is {self.n_init!r}")
            return 10 if callable(self.init) or (drawn and self.init == "random") else 1
        restarts = whole_number("n_init", self.n_init)
        if not drawn and restarts > 1:
            warnings.warn(
                "Explicit initial center position passed: performing only one init in KMeans "
                f"instead of n_init={restarts}.",
                RuntimeWarning,
                stacklevel=3,
            )
            return 1
        return restarts

    def _first(self, X: NDArray[Any], weights: NDArray[Any] | None, random: Any) -> NDArray[Any]:
        """The first centres [n_clusters x d]."""
        k = self.n_clusters
        if isinstance(self.init, str):
            if self.init == "k-means++":
                heavy = np.ones(len(X), X.dtype) if weights is None else weights
                # As scikit-learn: without the mean, which digits would be lost to far from 0.
                near = X - X.mean(axis=0)
                return X[kmeans_plusplus(near, k, sample_weight=heavy, random_state=random)[1]]
            heavy = np.ones(len(X)) if weights is None else weights
            return X[random.choice(len(X), size=k, replace=False, p=heavy / heavy.sum())]
        made = self.init(X, k, random_state=random) if callable(self.init) else self.init
        centers = check_array(made, dtype=X.dtype, copy=True, order="C")
        if centers.shape != (k, X.shape[1]):
            what = "number of clusters" if len(centers) != k else "number of features of the data"
            raise ValueError(
                f"The shape of the initial centers {centers.shape} does not match the {what} "
                f"{k if len(centers) != k else X.shape[1]}."
            )
        return centers

    def _lloyd(
        self, rows: _Rows, centers: NDArray[Any], least: float
    ) -> tuple[NDArray[Any], NDArray[np.int32], float, int]:
        """(centres, labels, inertia, iterations) from these first centres."""
        done, settled = 0, False
        now: NDArray[np.int32] | None = None  # the nearest centre of each row, where it is known
        while True:
            many = self.max_iter - done - 1
            if least > 0:
                many = min(many, _BETWEEN_CHECKS)
            if many > 0 and not settled:
                centers, steps = rows.iterate(centers, many)
                for step in steps:
                    self._say(done, step["objective"])
                    done += 1
                settled = steps[-1]["moved"] == 0
                now = None
            labels = rows.nearest(centers) if now is None else now
            before, centers = centers, rows.means(labels, centers)
            if self.verbose:
                self._say(done, rows.inertia(labels, before))
            done += 1
            way = np.square(centers.astype(np.float64) - before).sum()
            last = way <= least or done >= self.max_iter
            if settled or last:
                now = rows.nearest(centers)
                if last or np.array_equal(now, labels):
                    break
        return centers, now, rows.inertia(now, centers), done

    def _say(self, iteration: int, inertia: float) -> None:
        if self.verbose:
            print(f"Iteration {iteration}, inertia {inertia}.")

    def _rows(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=[np.float64, np.float32], order="C")

    def predict(self, X: ArrayLike) -> NDArray[np.int32]:
        """The nearest centre of each row of `X` [q x d], ties to the smaller number: [q]."""
        return _nearest(self._rows(X), self.cluster_centers_, threads_of(self.n_jobs))

    def fit_predict(
        self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> NDArray[np.int32]:
        """fit(X, sample_weight=sample_weight).labels_."""
        return self.fit(X, sample_weight=sample_weight).labels_

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """The Euclidean distances of the rows of `X` [q x d] to all centres: [q x n_clusters]."""
        X, centers = self._rows(X), self.cluster_centers_
        middle = centers.mean(axis=0)  # around it euclidean_distances() loses the fewest digits
        return euclidean_distances(X - middle, centers - middle)

    def fit_transform(
        self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> NDArray[Any]:
        """fit(X, sample_weight=sample_weight).transform(X)."""
        return self.fit(X, sample_weight=sample_weight).transform(X)

    def score(
        self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> float:  # fmt: skip
        """Minus the weighted sum of the squared distances of the rows of `X` to their centres."""
        X = self._rows(X)
        labels = _nearest(X, self.cluster_centers_, threads_of(self.n_jobs))
        return -_inertia(X, self.cluster_centers_, labels, _weights_of(sample_weight, X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _more_tags(self) -> dict[str, Any]:  # before scikit-learn 1.6
        return {"preserves_dtype": [np.float64, np.float32]}


class _Rows:
    """The rows that are clustered, as they are and as knear gets them."""

    def __init__(self, X: NDArray[Any], weights: NDArray[Any] | None, threads: int) -> None:
        self.X, self.weights, self.threads = X, weights, threads
        self.exact = as_bytes(X, threads)
        sample = np.asarray(X[:: -(-len(X) // _SAMPLE)], np.float64)
        mean, spread = sample.mean(axis=0), sample.std(axis=0)
        far = np.square(mean).sum() > np.square(_FAR) * np.square(spread).sum()
        self.offset = mean if far and spread.any() else 0.0
        self.near = X - mean if far and spread.any() else self.exact
        self.shares = None if weights is None else weights / weights.max()

    def iterate(self, centers: NDArray[Any], many: int) -> tuple[NDArray[Any], list[dict]]:
        """Centres after at most so many iterations of knear, and what these did."""
        km = _clustering.KMeans(len(centers), iterations=many, threads=self.threads)
        km.train(self.near, weights=self.shares, initial=centers - self.offset)
        return (km.centroids + self.offset).astype(self.X.dtype), km.steps

    def nearest(self, centers: NDArray[Any]) -> NDArray[np.int32]:
        return _nearest(self.exact, centers, self.threads)

    def means(self, labels: NDArray[np.int32], centers: NDArray[Any]) -> NDArray[Any]:
        """The means of the clusters. One without rows gets that which is farthest from its own."""
        k, weights = len(centers), self.weights
        heavy = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
        empty = np.flatnonzero(np.bincount(labels, heavy, minlength=k) == 0)
        if len(empty):
            labels = labels.copy()
            far = _squares(self.X, centers, labels) * (heavy > 0)
            labels[np.argsort(-far, kind="stable")[: len(empty)]] = empty
        sums = np.zeros(centers.shape)
        for part in blocks(*self.exact.shape):
            block = np.asarray(self.exact[part], np.float64)
            n = len(block)
            of_rows = sparse.csr_matrix((heavy[part], labels[part], np.arange(n + 1)), (n, k))
            sums += of_rows.T @ block
        total = np.bincount(labels, heavy, minlength=k)[:, None]
        with np.errstate(invalid="ignore"):
            return np.where(total > 0, sums / total, centers).astype(centers.dtype)

    def inertia(self, labels: NDArray[np.int32], centers: NDArray[Any]) -> float:
        return _inertia(self.exact, centers, labels, self.weights)


def _nearest(X: NDArray[Any], centers: NDArray[Any], threads: int) -> NDArray[np.int32]:
    return _search.knn(X, centers, 1, threads=threads).ids[:, 0].astype(np.int32)


def _squares(
    X: NDArray[Any], centers: NDArray[Any], labels: NDArray[np.int32]
) -> NDArray[np.float64]:
    """The squared distance of each row to its centre [n], in float64."""
    every = np.arange(len(X))
    return _distances.of_pairs(X, centers, every, labels, "l2", threads=1)


def _inertia(
    X: NDArray[Any], centers: NDArray[Any], labels: NDArray[np.int32], weights: Any
) -> float:
    squares = _squares(X, centers, labels)
    return float(squares.sum() if weights is None else squares @ weights.astype(np.float64))


def _mean_variance(X: NDArray[Any]) -> float:
    """The mean of the variances of the columns."""
    mean = X.mean(axis=0, dtype=np.float64)
    total = sum(np.square(X[part] - mean).sum() for part in blocks(*X.shape))
    return float(total / X.size)


def _weights_of(weights: Any, X: NDArray[Any]) -> NDArray[Any] | None:
    if weights is None:
        return None
    if isinstance(weights, numbers.Real):
        weights = np.full(len(X), weights)
    weights = check_array(weights, dtype=X.dtype, ensure_2d=False, input_name="sample_weight")
    if weights.shape != (len(X),):
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(len(X),)}!")
    if weights.min() < 0 or not weights.any():
        raise ValueError("sample_weight must not be negative, nor all zero")
    return weights
