"""Thirty shapes of data as it comes: few columns, copies, far rows, lines, uneven lengths.

    base, queries = shapes.SHAPES["one far row"](50_000, 200, seed=1)
    plain, asked = shapes.plain(50_000, 200, base.shape[1])       # the same size, well shaped

Each makes float32 rows [rows x columns] and queries of the same kind.
"""

from collections.abc import Callable

import numpy as np

WIDE = 24  # columns of shapes whose columns do not matter


def _split(x, queries: int):
    """Rows and the queries among them, which stand anywhere."""
    x = np.ascontiguousarray(x, np.float32)
    return x[queries:], x[:queries]


def plain(rows: int, queries: int, columns: int, seed: int = 1):
    """Normal rows in every column, centred, all different."""
    rng = np.random.default_rng(seed)
    return _split(rng.standard_normal((rows + queries, columns)), queries)


def _shape(make: Callable) -> Callable:
    def made(rows: int, queries: int, seed: int = 1):
        return _split(make(np.random.default_rng(seed), rows + queries), queries)

    return made


def _uniform(columns: int):
    return _shape(lambda rng, n: rng.random((n, columns)))


def _clusters(apart: float):
    def make(rng, n):
        centres = rng.standard_normal((5, WIDE)) * apart
        return centres[rng.integers(0, 5, n)] + rng.standard_normal((n, WIDE))

    return _shape(make)


def _copies(share: float):
    def make(rng, n):
        x = rng.standard_normal((n, WIDE))
        copied = rng.random(n) < share
        x[copied] = x[rng.integers(0, max(1, n // 100), int(copied.sum()))]
        return x

    return _shape(make)


def _line(rng, n):
    return rng.random((n, 1)) * rng.standard_normal((1, 16)) + 1e-6 * rng.standard_normal((n, 16))


def _circle(rng, n):
    angle = rng.random(n) * 2 * np.pi
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def _places(rng, n):
    towns = rng.random((200, 2)) * [120, 360] - [60, 180]
    return towns[rng.integers(0, 200, n)] + 0.2 * rng.standard_normal((n, 2))


def _zero_rows(rng, n):
    return rng.standard_normal((n, WIDE)) * (rng.random((n, 1)) >= 0.2)


def _one_far_row(rng, n):
    x = rng.standard_normal((n, WIDE))
    x[-1] = 1000
    return x


def _uneven_columns(factor: float):
    return _shape(lambda rng, n: rng.random((n, WIDE)) * np.geomspace(factor, 1, WIDE))


def _uneven_lengths(draw: Callable):
    return _shape(lambda rng, n: rng.standard_normal((n, WIDE)) * draw(rng, (n, 1)))


def _one_hot(rng, n):
    x = np.zeros((n, 64))
    for first in (0, 16, 32, 48):
        x[np.arange(n), first + np.minimum(rng.geometric(0.3, n) - 1, 15)] = 1
    return x


def _length_one(rng, n):
    x = rng.standard_normal((n, WIDE)) + 0.5
    return x / np.linalg.norm(x, axis=1, keepdims=True)


SHAPES: dict[str, Callable] = {
    **{f"uniform, {d} columns": _uniform(d) for d in (1, 2, 3, 8, 16)},
    "normal, 16 columns": _shape(lambda rng, n: rng.standard_normal((n, 16))),
    "Student t of 2, 16 columns": _shape(lambda rng, n: rng.standard_t(2, (n, 16))),
    "lognormal of 2, 16 columns": _shape(lambda rng, n: rng.lognormal(0, 2, (n, 16))),
    **{f"clusters {apart:g} apart": _clusters(apart) for apart in (1e1, 1e2, 1e4, 1e6)},
    "line": _shape(_line),
    "circle": _shape(_circle),
    "time and value": _shape(lambda rng, n: np.stack([np.arange(n), rng.standard_normal(n)], 1)),
    "latitude and longitude": _shape(_places),
    **{f"{100 * share:g} % copies": _copies(share) for share in (0.001, 0.1, 0.5, 0.9)},
    "20 % zero rows": _shape(_zero_rows),
    "one far row": _shape(_one_far_row),
    **{f"columns uneven by {f:g}": _uneven_columns(f) for f in (1e2, 1e4)},
    "lengths lognormal of 1": _uneven_lengths(lambda rng, size: rng.lognormal(0, 1, size)),
    "lengths Pareto of 1": _uneven_lengths(lambda rng, size: 1 + rng.pareto(1, size)),
    "one-hot": _shape(_one_hot),
    "counts": _shape(lambda rng, n: rng.negative_binomial(0.2, 0.02, (n, WIDE))),
    "offset 1e6": _shape(lambda rng, n: 1e6 + 100 * rng.standard_normal((n, WIDE))),
    "length one": _shape(_length_one),
}


def recall(base, queries, ids, exact, metric: str) -> float:
    """The share of neighbours that were found. Another row of the same distance as the last one
    that is wanted counts too, so that copies do not."""
    hits, wanted = 0, exact.ids.shape[1]
    for query, found, last in zip(queries, ids, exact.distances[:, -1], strict=True):
        found = np.unique(found[found >= 0])
        x, q = base[found].astype(np.float64), query.astype(np.float64)
        if metric == "l2":
            distances = np.square(x - q).sum(1)
        else:
            distances = -(x @ q)
            if metric == "cosine":
                lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(q)
                distances = 1 + distances / np.where(lengths > 0, lengths, 1)
        last = -float(last) if metric == "ip" else float(last)
        hits += min(wanted, int((distances <= last + 1e-6 * abs(last) + 1e-12).sum()))
    return hits / exact.ids.size
