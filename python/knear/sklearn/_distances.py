"""Distances of pairs that a search found, in float64.

knear orders neighbours by their distance in float64 but returns that distance rounded to float32.
Here it is computed again for the pairs that were found: from differences, which keep the digits
that |q|^2 + |b|^2 - 2 q b loses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._blocks import each_block


def of_pairs(
    queries: NDArray[Any],
    base: NDArray[Any],
    rows: NDArray[np.int64],
    ids: NDArray[np.int64],
    metric: str,
    threads: int,
) -> NDArray[np.float64]:
    """The distance of query rows[i] and base row ids[i] [n], for each i: squared for "l2"; for
    "cosine" 1 - cos, which is 1 if one of them is zero; for "l1" the sum of absolute differences.
    """
    out = np.empty(len(ids), np.float64)

    def measure(part: slice) -> bool:
        q = np.asarray(queries[rows[part]], np.float64)
        b = np.asarray(base[ids[part]], np.float64)
        if metric == "cosine":
            lengths = [np.sqrt(np.einsum("nd,nd->n", x, x)) for x in (q, b)]
            zero = (lengths[0] == 0) | (lengths[1] == 0)
            for x, length in zip((q, b), lengths, strict=True):
                x /= np.where(zero, 1, length)[:, None]
        b -= q
        if metric == "l1":
            out[part] = np.abs(b, out=b).sum(1)
            return True
        out[part] = np.einsum("nd,nd->n", b, b)
        if metric == "cosine":  # |q - b|^2 = 2 - 2 cos for vectors of length 1
            out[part] = np.where(zero, 1, out[part] / 2)
        return True

    each_block(len(ids), base.shape[1], threads, measure)
    return out
