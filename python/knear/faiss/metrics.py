"""Distances beside L2 and inner products, of pairwise_distances(), knn() and IndexFlat: in NumPy,
every pair, float64 sums; knn() and IndexFlat have METRIC_L1 from knear itself. No other index has
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .interrupts import InterruptCallback

METRIC_L1, METRIC_Linf, METRIC_Lp = 2, 3, 4
METRIC_Canberra, METRIC_BrayCurtis, METRIC_JensenShannon = 20, 21, 22
METRIC_Jaccard, METRIC_NaNEuclidean, METRIC_GOWER = 23, 24, 25

_AT_ONCE = 1 << 22  # coordinates of pairs


def _quotient(a: Any, b: Any, of_zeros: float = 0.0) -> Any:
    """a / b, and `of_zeros` where both are zero: FAISS has NaN there, by which a row with a zero in
    it would not find itself."""
    return np.where((a == 0) & (b == 0), of_zeros, a / b)


def _shannon(x: Any, y: Any) -> Any:
    """The divergence from the mean of both. A column that is 0 in one of them adds nothing to its
    sum, since p log p goes to 0 with p."""
    middle = (x + y) / 2
    terms = [np.where(z == 0, 0.0, z * np.log(z / middle)) for z in (x, y)]
    return (terms[0] + terms[1]).sum(-1) / 2


def _of_known(x: Any, y: Any) -> Any:
    """Squared distances of the columns that both have, stretched to all."""
    squares = np.square(x - y)
    known = (~np.isnan(squares)).sum(-1)
    return x.shape[-1] / np.where(known, known, np.nan) * np.nansum(squares, -1)


def _gower(x: Any, y: Any) -> Any:
    """The mean of the columns that both have: differences of numbers from 0 to 1, and whether
    classes, which are negative, differ. NaN where one is a number, the other a class, or beyond
    1."""
    differ = np.where((x < 0) & (y < 0), x != y, np.abs(x - y))
    known = ~(np.isnan(x) | np.isnan(y))
    wrong = known & (((x < 0) != (y < 0)) | (x > 1) | (y > 1))
    count = known.sum(-1)
    sums = np.where(known, differ, 0).sum(-1)
    return np.where(wrong.any(-1) | (count == 0), np.nan, sums / np.maximum(count, 1))


_DISTANCES: dict[int, Callable[[Any, Any], Any]] = {
    METRIC_L1: lambda x, y: np.abs(x - y).sum(-1),
    METRIC_Linf: lambda x, y: np.abs(x - y).max(-1),
    METRIC_Canberra: lambda x, y: _quotient(np.abs(x - y), np.abs(x) + np.abs(y)).sum(-1),
    METRIC_BrayCurtis: lambda x, y: _quotient(np.abs(x - y).sum(-1), np.abs(x + y).sum(-1)),
    METRIC_JensenShannon: _shannon,
    METRIC_Jaccard: lambda x, y: _quotient(np.minimum(x, y).sum(-1), np.maximum(x, y).sum(-1), 1.0),
    METRIC_NaNEuclidean: _of_known,
    METRIC_GOWER: _gower,
}


def is_other(metric: int) -> bool:
    return metric == METRIC_Lp or metric in _DISTANCES


def is_by_table(metric: int) -> bool:
    """Whether searches go over all pairs here: by METRIC_L1 knear searches itself."""
    return is_other(metric) and metric != METRIC_L1


def is_similarity(metric: int) -> bool:
    """Whether the largest are the nearest: of inner products, and of METRIC_Jaccard."""
    return metric in (0, METRIC_Jaccard)


def distances(x: Any, y: Any, metric: int, p: float) -> NDArray[np.float32]:
    """All of them [n x m] of the rows of `x` [n x d] and `y` [m x d]; METRIC_Lp: of powers."""
    of = _DISTANCES.get(metric, lambda x, y: (np.abs(x - y) ** p).sum(-1))
    out = np.empty((len(x), len(y)), np.float32)
    rows = max(1, _AT_ONCE // max(1, y.size))
    many = y.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for begin in range(0, len(x), rows):
            InterruptCallback.check()
            out[begin : begin + rows] = of(x[begin : begin + rows, None].astype(np.float64), many)
    return out
