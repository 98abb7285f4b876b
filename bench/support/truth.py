"""The reference for the answers of every system: brute force in float64, in the direct form."""

import dataclasses

import numpy as np

_ROWS = 8192  # of the base at a time


def exact_distances(query: np.ndarray, base: np.ndarray, metric: str) -> np.ndarray:
    """The distances of one query [d] to every row of base [n x d], in float64."""
    out = np.empty(len(base))
    x = query.astype(np.float64)
    for begin in range(0, len(base), _ROWS):
        rows = base[begin : begin + _ROWS].astype(np.float64)
        if metric == "l2":
            rows -= x
            out[begin : begin + _ROWS] = np.einsum("ij,ij->i", rows, rows)
        else:
            products = rows @ x
            if metric == "cosine":
                lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows) * (x @ x))
                products = 1 - products / np.where(lengths > 0, lengths, np.inf)
            out[begin : begin + _ROWS] = products
    return out


@dataclasses.dataclass
class Verdict:
    """recall: share of the answers whose exact distance is no greater than the true k-th one;
    recall_ids: share of the true k (ties by id) that were given; error: the largest difference
    of a distance from the exact one of the same row, as a share of the query's k-th distance."""

    recall: float
    recall_ids: float
    error: float


def judge(
    answers: dict[str, tuple[np.ndarray, np.ndarray]],
    sample: np.ndarray,
    queries: np.ndarray,
    base: np.ndarray,
    metric: str,
) -> dict[str, Verdict]:
    """answers: by system, (distances, ids) [q x k] of the first q queries; sample: which ones to
    look at."""
    sign = -1.0 if metric == "ip" else 1.0
    sums = {name: np.zeros(3) for name in answers}
    for q in sample:
        exact = exact_distances(queries[q], base, metric)
        for name, (distances, ids) in answers.items():
            k = min(ids.shape[1], len(base))
            true = _first(sign * exact, k)
            given, said = ids[q, :k], distances[q, :k].astype(np.float64)
            kth = exact[true[-1]]
            valid = (given >= 0) & (given < len(base))
            of_given = np.where(valid, exact[np.where(valid, given, 0)], sign * np.inf)
            distinct = len(np.unique(given[valid]))
            good = min(int(np.count_nonzero(sign * of_given <= sign * kth)), distinct)
            sums[name][0] += good / k
            sums[name][1] += len(np.intersect1d(given, true)) / k
            scale = abs(kth) if kth != 0 else 1.0
            off = np.abs(said - of_given).max() / scale if valid.all() else np.inf
            sums[name][2] = max(sums[name][2], off)
    count = len(sample)
    return {
        name: Verdict(float(s[0] / count), float(s[1] / count), float(s[2]))
        for name, s in sums.items()
    }


def recall_of_all(
    ids: np.ndarray, exact: tuple[np.ndarray, np.ndarray], queries, base, metric: str
) -> tuple[float, float]:
    """Recall by distance and by id, as in Verdict, of all queries [q x k] beside an exact answer:
    what an approximate search loses does not show on a few."""
    distances, true = exact
    sign = -1.0 if metric == "ip" else 1.0
    k, good, same = true.shape[1], 0, 0
    for q, given in enumerate(ids):
        given = np.unique(given[(given >= 0) & (given < len(base))])
        measured = exact_distances(queries[q], base[given], metric).astype(np.float32)
        good += min(k, np.count_nonzero(sign * measured <= sign * distances[q, -1]))
        same += len(np.intersect1d(given, true[q]))
    return good / true.size, same / true.size


def judge_ranges(
    answers: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]],
    sample: np.ndarray,
    queries: np.ndarray,
    base: np.ndarray,
    metric: str,
    radius: float,
) -> dict[str, Verdict]:
    """answers: by system, (begin, distances, ids). recall: share of the rows within the radius that
    were given; recall_ids: that and, of the rows given, the share that is within, whichever is
    less; error: as in judge, as a share of the radius."""
    found, given, right, errors = 0, dict.fromkeys(answers, 0), dict.fromkeys(answers, 0), {}
    errors = dict.fromkeys(answers, 0.0)
    for q in sample:
        exact = exact_distances(queries[q], base, metric)
        inside = np.flatnonzero(exact >= radius if metric == "ip" else exact <= radius)
        found += len(inside)
        for name, (begin, distances, ids) in answers.items():
            place = slice(int(begin[q]), int(begin[q + 1]))
            rows, said = ids[place], distances[place].astype(np.float64)
            given[name] += len(rows)
            right[name] += len(np.intersect1d(rows, inside))
            if len(rows):
                said = 1 - said if metric == "cosine" and name == "faiss" else said
                off = float(np.abs(said - exact[rows]).max())
                errors[name] = max(errors[name], off / abs(radius))
    out = {}
    for name in answers:
        recall = right[name] / found if found else 1.0
        precision = right[name] / given[name] if given[name] else 1.0
        out[name] = Verdict(recall, min(recall, precision), errors[name])
    return out


def _first(key: np.ndarray, k: int) -> np.ndarray:
    """The ids of the k smallest, ties by id, without sorting all."""
    kth = np.partition(key, k - 1)[k - 1]
    candidates = np.flatnonzero(key <= kth)
    return candidates[np.argsort(key[candidates], kind="stable")][:k]


def selection_mistake(values, indices, rows, order, ordered: bool) -> str | None:
    """What is wrong with the k smallest of `rows` [s x m], whose stable order is `order` [s x k]:
    all has to be the same to the bit, best first if `ordered`, else by ascending index."""
    if not ordered:
        order = np.sort(order, axis=1)
    if not np.array_equal(indices, order):
        return "other indices"
    best = np.take_along_axis(rows, order, 1)
    same = np.array_equal(values.view(np.uint32), best.view(np.uint32))
    return None if same else "other values"


def peer_mistake(values, indices, rows, order) -> str | None:
    """As selection_mistake, for an answer in any order, with any of equal values, perhaps without
    values."""
    if indices.min() < 0 or indices.max() >= rows.shape[1]:
        return "an index outside the row"
    if (np.diff(np.sort(indices, axis=1), axis=1) == 0).any():
        return "an index twice"
    found = np.take_along_axis(rows, indices, 1)
    if values is not None and not np.array_equal(values, found):
        return "values of other indices"
    best = np.take_along_axis(rows, order, 1)
    return None if np.array_equal(np.sort(found, axis=1), best) else "other values"


def found(answer: tuple, exact: tuple, metric: str) -> np.ndarray:
    """How many of the true k each query of `answer` has, (distances, ids) [q x k] as float32 and
    whole numbers: rows at a distance no greater than the k-th of `exact`, an id given twice once.
    """
    sign = -1 if metric == "ip" else 1
    distances, ids = answer
    good = sign * distances <= sign * exact[0][:, -1:]
    some = np.sort(np.where(good, ids, -1), axis=1)
    repeated = (np.diff(some, axis=1) == 0) & (some[:, 1:] >= 0)
    return np.count_nonzero(good & (ids >= 0), axis=1) - np.count_nonzero(repeated, axis=1)


def differs(answer: tuple, exact: tuple) -> np.ndarray:
    """Which queries have other ids, or distances with other bits."""
    bits = [part.view(np.uint32) for part in (answer[0], exact[0])]
    return (answer[1] != exact[1]).any(axis=1) | (bits[0] != bits[1]).any(axis=1)


def false_distances(
    answer: tuple, which: np.ndarray, queries: np.ndarray, base: np.ndarray, metric: str
) -> list[int]:
    """Those of the queries `which` whose answer has a distance that is not its row's, beyond the
    rounding to float32, or an id twice or outside the base."""
    out = []
    for q in which:
        distances, ids = answer[0][q].astype(np.float64), answer[1][q]
        if ids.min() < 0 or ids.max() >= len(base) or len(np.unique(ids)) < len(ids):
            out.append(int(q))
            continue
        of_rows = exact_distances(queries[q], base[ids], metric)
        if (np.abs(distances - of_rows) > 1e-7 * np.abs(of_rows) + 1e-12).any():
            out.append(int(q))
    return out
