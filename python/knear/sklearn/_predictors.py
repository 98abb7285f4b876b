"""Predictions from the nearest rows: KNeighborsClassifier and KNeighborsRegressor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from ._checks import own, validate_data, whole_number
from ._neighbors import _Neighbors

Weights = str | Callable[[NDArray[np.float64]], ArrayLike] | None

_WEIGHTS = (None, "uniform", "distance")


class _Predictor(_Neighbors):
    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        weights: Weights = "uniform",
        algorithm: str = "auto",
        metric: str = "minkowski",
        p: float = 2,
        metric_params: dict[str, Any] | None = None,
        n_jobs: int | None = None,
        factory: str = "Flat",
        recall: float = 1.0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.algorithm = algorithm
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.n_jobs = n_jobs
        self.factory = factory
        self.recall = recall

    def _checked(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        whole_number("n_neighbors", self.n_neighbors)
        named = self.weights is None or isinstance(self.weights, str)
        if not (callable(self.weights) or (named and self.weights in _WEIGHTS)):
            raise ValueError(
                "weights must be 'uniform', 'distance', None or a function of distances, but is "
                f"{self.weights!r}"
            )
        if issparse(y):  # which scikit-learn takes here, and cannot predict by
            raise TypeError(
                "Sparse data was passed for y, but dense data is required. Use '.toarray()' to "
                "convert to a dense numpy array."
            )
        return validate_data(self, X, y, multi_output=True, order="C")

    def _weighted(self, X: Any) -> tuple[NDArray[np.intp], NDArray[Any] | None]:
        """Indices of the neighbours [q x k], and their weights; None where all are the same."""
        check_is_fitted(self)
        if not callable(self.weights) and self.weights != "distance":
            return self.kneighbors(X, return_distance=False), None
        distances, ids = self.kneighbors(X)
        if callable(self.weights):
            weights = np.asarray(self.weights(distances))
            if weights.shape != distances.shape:
                raise ValueError(
                    f"weights returned an array of shape {weights.shape} for distances of shape "
                    f"{distances.shape}"
                )
            return ids, weights
        with np.errstate(divide="ignore"):
            weights = 1.0 / distances
        same = np.isinf(weights)  # rows equal to the query count alone
        equal = same.any(axis=1)
        weights[equal] = same[equal]
        return ids, weights


class KNeighborsClassifier(ClassifierMixin, _Predictor):
    """The class that most of the nearest rows have, as sklearn.neighbors.KNeighborsClassifier.

    >>> import numpy as np
    >>> from knear.sklearn import KNeighborsClassifier
    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array(["a", "a", "b", "b"])
    >>> model = KNeighborsClassifier(n_neighbors=3).fit(X, y)
    >>> model.predict([[1.1]]).tolist(), model.predict_proba([[0.9]]).round(2).tolist()
    (['a'], [[0.67, 0.33]])

    weights: "uniform" or None, each neighbour counts the same; "distance", by 1 / distance, and
        rows equal to the query alone if there are any; or a function that makes weights [q x k] of
        distances [q x k].

    Of classes with the same weight the first in order is predicted. The other parameters and the
    attributes are those of NearestNeighbors, with classes_ (a list for targets [n x outputs]) and
    outputs_2d_.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> KNeighborsClassifier:
        """Takes over the rows of `X` [n x d] and their classes `y` [n] or [n x outputs], and
        returns the object itself. Errors as those of NearestNeighbors.fit."""
        given, (X, y) = X, self._checked(X, y)
        if y.ndim == 2 and y.shape[1] == 1:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected. Please change the shape"
                " of y to (n_samples,), for example using ravel().",
                DataConversionWarning,
                stacklevel=2,
            )
            y = y.ravel()
        check_classification_targets(y)
        self.outputs_2d_ = y.ndim == 2
        columns = [np.unique(column, return_inverse=True) for column in np.atleast_2d(y.T)]
        self.classes_ = [classes for classes, _ in columns]
        self._y = np.column_stack([np.ravel(numbers) for _, numbers in columns]).astype(np.intp)
        if not self.outputs_2d_:
            self.classes_ = self.classes_[0]
        self._fit(X, given)
        return self

    def predict(self, X: ArrayLike | None) -> NDArray[Any]:
        """The classes [q] or [q x outputs] of the rows of `X` [q x d]; of the fitted rows, each
        without itself, for None."""
        shares = self._shares(X)
        if self.outputs_2d_:
            best = [c[np.argmax(s, axis=1)] for c, s in zip(self.classes_, shares, strict=True)]
            return np.stack(best, axis=1)
        return self.classes_[np.argmax(shares[0], axis=1)]

    def predict_proba(self, X: ArrayLike | None) -> Any:
        """The share of each class in the weights of the neighbours [q x classes], or a list of such
        for several outputs. `X` as in predict()."""
        shares = self._shares(X)
        return shares if self.outputs_2d_ else shares[0]

    def score(
        self, X: ArrayLike | None, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> float:
        """The mean accuracy of predict(X) for the classes `y`; None leaves each row out of its own
        prediction."""
        return super().score(X, y, sample_weight)

    def _shares(self, X: Any) -> list[NDArray[np.float64]]:
        ids, weights = self._weighted(X)
        if weights is None:
            weights = np.ones(ids.shape)
        elif not weights.any(axis=1).all():
            raise ValueError(
                "All neighbors of some sample is getting zero weights. Please modify 'weights' to "
                "avoid this case if you are using a user-defined function."
            )
        queries = np.arange(len(ids))
        out = []
        for output, classes in enumerate(self.classes_ if self.outputs_2d_ else [self.classes_]):
            shares = np.zeros((len(ids), len(classes)))
            for column, of_column in zip(self._y[ids, output].T, weights.T, strict=True):
                shares[queries, column] += of_column
            out.append(shares / shares.sum(axis=1, keepdims=True))
        return out

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _more_tags(self) -> dict[str, bool]:  # before scikit-learn 1.6
        return {"multilabel": True}


class KNeighborsRegressor(RegressorMixin, _Predictor):
    """The mean of the targets of the nearest rows, as sklearn.neighbors.KNeighborsRegressor.

    >>> import numpy as np
    >>> from knear.sklearn import KNeighborsRegressor
    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.0, 0.0, 1.0, 1.0])
    >>> KNeighborsRegressor(n_neighbors=2).fit(X, y).predict([[1.5]]).tolist()
    [0.5]

    weights: as of KNeighborsClassifier. The other parameters and the attributes are those of
    NearestNeighbors.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> KNeighborsRegressor:
        """Takes over the rows of `X` [n x d] and their targets `y` [n] or [n x outputs], and
        returns the object itself. Errors as those of NearestNeighbors.fit."""
        given, (X, targets) = X, self._checked(X, y)
        self._y = own(targets, y)
        self._fit(X, given)
        return self

    def predict(self, X: ArrayLike | None) -> NDArray[Any]:
        """The means [q] or [q x outputs] of the rows of `X` [q x d]; of the fitted rows, each
        without itself, for None."""
        ids, weights = self._weighted(X)
        of_neighbours = self._y[ids]
        if weights is None:
            return of_neighbours.mean(axis=1)
        sums = np.einsum("qk,qk...->q...", weights, of_neighbours)
        total = weights.sum(axis=1)
        return sums / (total if sums.ndim == 1 else total[:, None])
