"""Orders of a base: those that occur, and those that an adversary would choose.

Each is a permutation [n]: row i of the reordered base is row order[i] of the base as it comes.
"""

import numpy as np

import knear

from . import truth

ORDERS = {
    "given": "as it comes",
    "random": "by a seed",
    "class": "by label, or by the nearest of 100 rows at random",
    "distance": "by distance from the first query",
    "mean": "by distance from the mean of all rows",
    "front": "the nearest of the first query one after the other at the front",
    "stride": "by distance from the first query, each a bin count of rows behind the one before",
}
CENTRES = 100


def strided(count: int, stride: int) -> np.ndarray:
    """The places 0, stride, 2 stride, ..., then 1, stride + 1, ..., of all `count`."""
    places = np.arange(count)
    return np.argsort(places % stride, kind="stable")


def order_of(
    name: str,
    base: np.ndarray,
    queries: np.ndarray,
    labels: np.ndarray | None,
    *,
    front: int,
    bins: int,
    seed: int,
) -> np.ndarray:
    """front: how many rows are put there; bins: the stride."""
    rows = len(base)
    random = np.random.Generator(np.random.PCG64([seed, rows]))
    if name == "given":
        return np.arange(rows)
    if name == "random":
        return random.permutation(rows)
    if name == "class":
        if labels is None:
            centres = base[np.sort(random.permutation(rows)[:CENTRES])]
            labels = knear.knn(base, centres, 1)[1][:, 0]
        return np.argsort(labels, kind="stable")
    from_point = base.mean(axis=0, dtype=np.float64) if name == "mean" else queries[0]
    nearest = np.argsort(truth.exact_distances(from_point, base, "l2"), kind="stable")
    if name == "front":
        at_front = np.zeros(rows, bool)
        at_front[nearest[:front]] = True
        return np.concatenate([nearest[:front], np.flatnonzero(~at_front)])
    if name == "stride":
        order = np.empty(rows, np.int64)
        order[strided(rows, bins)] = nearest
        return order
    return nearest
