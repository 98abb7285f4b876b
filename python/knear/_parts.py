"""Answers of indexes that are parts of one base, merged as the library merges shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _arrays, _core, _results
from ._results import SearchResult
from .errors import InvalidArgument


class PartResult(NamedTuple):
    """What one part of a base found, before it is rounded: (keys, ids), both [q x at most k].

    >>> import knear, numpy as np
    >>> part = knear.Index("Flat", dim=2)
    >>> part.add(np.array([[0.0, 0.0], [3.0, 4.0]]), ids=[10, 11])
    >>> found = part.search_part(np.array([[3.0, 3.0]]), k=2)
    >>> found.ids.tolist(), found.keys.tolist()
    ([[11, 10]], [[1.0, 18.0]])

    Keys are float64 and ascend; a smaller one is nearer, whatever the metric (products with the
    sign turned). Places without a vector have the id -1 and an infinite key.
    """

    keys: NDArray[np.float64]
    ids: NDArray[np.int64]

    def rounded(self, k: int, metric: str = "l2", *, threads: int = 0) -> SearchResult:
        """The answer of knear.Index.search: float32 distances, [q x k], padded with the id -1. It
        has no `plan`, which is that of a search.

        >>> import knear, numpy as np
        >>> part = knear.Index("Flat", dim=2)
        >>> part.add(np.eye(2))
        >>> found = part.search_part(np.eye(2), k=1)
        >>> found.rounded(1).distances.tolist()
        [[0.0], [0.0]]

        metric: that of the index; threads: as that of knn().
        """
        distances, ids = _core.round_part(
            *_contiguous(0, self),
            _arrays.text("metric", metric),
            _positive("k", k),
            _arrays.integer("threads", threads),
        )
        return _results.SearchResult(distances, ids)


def merge_parts(parts: Iterable[PartResult], k: int, *, threads: int = 0) -> PartResult:
    """The k nearest of what several parts of one base found for the same queries, ties to the
    smaller id: those that one index with all rows finds, to the bit, where the parts compare what
    that compares (every row, or the same lists).

    >>> import knear, numpy as np
    >>> x = np.random.default_rng(1).standard_normal((100, 8))
    >>> parts = []
    >>> for first in (0, 50):
    ...     part = knear.Index("Flat", dim=8)
    ...     part.add(x[first : first + 50], ids=np.arange(first, first + 50))
    ...     parts.append(part.search_part(x[:3], k=5))
    >>> merged = knear.merge_parts(parts, k=5).rounded(5)
    >>> whole = knear.knn(x[:3], x, k=5)
    >>> bool((merged.ids == whole.ids).all() and (merged.distances == whole.distances).all())
    True

    parts: at least one; no id may be in two of them, which is not looked for. Merging may be done
        in steps, some parts first.
    threads: as that of knn().

    Raises ShapeMismatch where they are of different numbers of queries.
    """
    if not isinstance(parts, Iterable):
        raise InvalidArgument(f"parts must be several PartResult, but is a {type(parts).__name__}")
    pairs = [_contiguous(number, part) for number, part in enumerate(parts)]
    if not pairs:
        raise InvalidArgument("parts must be at least one, but there is none")
    merged = _core.merge_parts(pairs, _positive("k", k), _arrays.integer("threads", threads))
    return PartResult(*merged)


def _contiguous(number: int, part: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    if not isinstance(part, tuple) or len(part) != 2:
        raise InvalidArgument(
            f"part {number} must be a knear.PartResult, but is a {type(part).__name__}"
        )
    keys, ids = (np.asarray(each) for each in part)
    if keys.dtype != np.float64 or ids.dtype != np.int64 or keys.ndim != 2 or ids.ndim != 2:
        raise InvalidArgument(
            f"part {number} must have keys of float64 and ids of int64 in two dimensions, but has "
            f"{keys.dtype} in {keys.ndim} and {ids.dtype} in {ids.ndim}"
        )
    return np.ascontiguousarray(keys), np.ascontiguousarray(ids)


def _positive(name: str, value: Any) -> int:
    number = _arrays.integer(name, value)
    if number < 1:
        raise InvalidArgument(f"{name} must be at least 1, but is {number}")
    return number
