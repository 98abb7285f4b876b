"""Searches by the metrics beside L2 and inner products: of tables of all distances, in blocks of
queries. A distance that is not finite is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._search import select_k
from . import metrics
from .base import padded, threads, within

_AT_ONCE = 1 << 22  # distances


def nearest(
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    k: int,
    metric: int,
    arg: float,
    chosen: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(distances, ids) [n x k] of the rows of `x` among those of `y`, or among the chosen ones."""
    out = np.empty((len(x), k), np.float32), np.empty((len(x), k), np.int64)
    largest = metrics.is_similarity(metric)
    for begin, table in _tables(x, y, metric, arg, chosen):
        found = select_k(table, k, largest=largest, threads=threads())
        for to, values in zip(out, found, strict=True):
            to[begin : begin + len(table)] = values
    return padded(*out, metric)


def around(
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    radius: float,
    metric: int,
    arg: float,
    chosen: NDArray[np.bool_] | None = None,
) -> Any:
    """What range_search() finds."""
    counts, distances, ids = [np.zeros(1, np.int64)], [], []
    for _, table in _tables(x, y, metric, arg, chosen):
        inside = table > radius if metrics.is_similarity(metric) else table < radius
        counts.append(inside.sum(1))
        distances.append(table[inside])
        ids.append(np.nonzero(inside)[1])
    none = np.empty(0, np.float32), np.empty(0, np.int64)
    return within(
        np.cumsum(np.concatenate(counts)),
        np.concatenate([none[0], *distances]),
        np.concatenate([none[1], *ids]),
        radius,
        metric,
    )


def _tables(
    x: Any, y: Any, metric: int, arg: float, chosen: NDArray[np.bool_] | None
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The first query of a block, and its distances to all of `y`; NaN is no distance."""
    rows = max(1, _AT_ONCE // max(1, len(y)))
    for begin in range(0, len(x), rows):
        table = metrics.distances(x[begin : begin + rows], y, metric, arg)
        table[~np.isfinite(table)] = np.nan
        if chosen is not None:
            table[:, ~chosen] = np.nan
        yield begin, table
