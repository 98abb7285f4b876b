"""How much two results have in common, and how long something takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import knear.faiss as faiss


def knn_intersection_measure(I1: ArrayLike, I2: ArrayLike) -> float:
    """The share of ids [n x k] that two results have in common, of all; -1 is one, too."""
    a, b = np.asarray(I1), np.asarray(I2)
    assert a.shape == b.shape, f"results {a.shape} and {b.shape} do not compare"
    return sum(len(np.intersect1d(x, y)) for x, y in zip(a, b, strict=True)) / a.size


def check_ref_knn_with_draws(
    Dref: Any, Iref: Any, Dnew: Any, Inew: Any, rtol: float = 1e-5, atol: float = 0
) -> None:
    """AssertionError unless two results have the same distances, and the same ids but for those of
    equal distances."""
    np.testing.assert_allclose(Dref, Dnew, rtol=rtol, atol=atol)
    for distances, a, b in zip(Dref, Iref, Inew, strict=True):
        if np.array_equal(a, b):
            continue
        order = np.argsort(distances, kind="stable")
        apart = np.abs(np.diff(distances[order])) > rtol * np.abs(distances).max() + atol
        group = np.empty(len(order), np.int64)
        group[order] = np.concatenate([[0], np.cumsum(apart)])
        for one in np.unique(group[group != group[-1]]):  # of the last, others may be as far
            assert set(a[group == one]) == set(b[group == one])


def _parts(lims: Any) -> Iterator[slice]:
    edges = np.asarray(lims).astype(int)
    return (slice(begin, end) for begin, end in zip(edges, edges[1:], strict=False))


def check_ref_range_results(
    Lref: Any, Dref: Any, Iref: Any, Lnew: Any, Dnew: Any, Inew: Any
) -> None:
    """AssertionError unless two range searches found the same, in any order."""
    np.testing.assert_array_equal(Lref, Lnew)
    for part in _parts(Lref):
        a, b = np.argsort(Iref[part]), np.argsort(Inew[part])
        np.testing.assert_array_equal(Iref[part][a], Inew[part][b])
        np.testing.assert_allclose(Dref[part][a], Dnew[part][b], rtol=1e-4, atol=1e-4)


def sort_range_res_2(lims: Any, D: Any, I: Any) -> tuple[Any, Any]:  # noqa: E741
    """(ids, distances) of a range search, those of each query by their distances."""
    ids, distances = np.empty_like(I), np.empty_like(D)
    for part in _parts(lims):
        order = np.argsort(D[part])
        ids[part], distances[part] = I[part][order], D[part][order]
    return ids, distances


def sort_range_res_1(lims: Any, I: Any) -> Any:  # noqa: E741
    """The ids of a range search, those of each query in order."""
    ids = np.empty_like(I)
    for part in _parts(lims):
        ids[part] = np.sort(I[part])
    return ids


def filter_range_results(lims: Any, D: Any, I: Any, thresh: float) -> tuple[Any, Any, Any]:  # noqa: E741
    """Those with a distance below a threshold."""
    near = thresh > D
    counts = [0, *(int(near[part].sum()) for part in _parts(lims))]
    return np.cumsum(counts).astype(np.asarray(lims).dtype), D[near], I[near]


def counts_to_PR(ngt: Any, nres: Any, ninter: Any, mode: str = "overall") -> tuple[float, float]:
    """(precision, recall) of the numbers of each query: due, found, and found of those due; of all
    queries together, or the "average" of each. Of nothing found the precision is 1, and the recall
    where nothing is due."""
    due, found, right = (np.asarray(each, np.float64) for each in (ngt, nres, ninter))
    assert mode in ("overall", "average"), f"mode is {mode!r}"
    if mode == "overall":
        due, found, right = (np.atleast_1d(each.sum()) for each in (due, found, right))
    precision = np.where(found > 0, right / np.maximum(found, 1), 1.0)
    recall = np.where(due > 0, right / np.maximum(due, 1), found == 0)
    return float(precision.mean()), float(recall.mean())


def range_PR(
    lims_ref: Any, Iref: Any, lims_new: Any, Inew: Any, mode: str = "overall"
) -> tuple[float, float]:
    """(precision, recall) of the ids of a range search by those of another."""
    pairs = zip(_parts(lims_ref), _parts(lims_new), strict=True)
    common = [len(np.intersect1d(Iref[a], Inew[b])) for a, b in pairs]
    due, found = (np.diff(np.asarray(lims).astype(int)) for lims in (lims_ref, lims_new))
    return counts_to_PR(due, found, common, mode)


def range_PR_multiple_thresholds(
    lims_ref: Any,
    Iref: Any,
    lims_new: Any,
    Dnew: Any,
    Inew: Any,
    thresholds: Any,
    mode: str = "overall",
    do_sort: str = "ref,new",
) -> tuple[Any, Any]:
    """(precisions, recalls) of what a range search found below each threshold; do_sort says which
    of both are not in order yet."""
    if "new" in do_sort:
        Inew, Dnew = sort_range_res_2(lims_new, Dnew, Inew)
    due = np.diff(np.asarray(lims_ref).astype(int))
    found = np.zeros((len(thresholds), len(due)), np.int64)
    right = np.zeros_like(found)
    for query, (a, b) in enumerate(zip(_parts(lims_ref), _parts(lims_new), strict=True)):
        found[:, query] = np.searchsorted(Dnew[b], thresholds)
        so_far = np.concatenate([[0], np.cumsum(np.isin(Inew[b], Iref[a]))])
        right[:, query] = so_far[found[:, query]]
    pairs = [counts_to_PR(due, f, r, mode) for f, r in zip(found, right, strict=True)]
    return np.array([p for p, _ in pairs]), np.array([r for _, r in pairs])


class OperatingPoints:
    """(key, performance, time) of experiments: operating_points are those that no other one beats
    in both, suboptimal_points the rest. A class has compare_keys()."""

    def __init__(self) -> None:
        self.operating_points: list[tuple[Any, float, float]] = []
        self.suboptimal_points: list[tuple[Any, float, float]] = []

    def compare_keys(self, k1: Any, k2: Any) -> int:
        """1 where k1 is slower and better in all, -1 where k2 is, else 0."""
        raise NotImplementedError("a class says by itself how keys compare")

    def is_pareto_optimal(self, perf_new: float, t_new: float) -> bool:
        return not any(perf >= perf_new and t <= t_new for _, perf, t in self.operating_points)

    def predict_bounds(self, key: Any) -> tuple[float, float]:
        """(the best performance, the least time) that other experiments leave to this key."""
        best, least = 1.0, 0.0
        for other, perf, t in self.operating_points + self.suboptimal_points:
            order = self.compare_keys(key, other)
            if order > 0:
                least = max(least, t)
            elif order < 0:
                best = min(best, perf)
        return best, least

    def should_run_experiment(self, key: Any) -> bool:
        return self.is_pareto_optimal(*self.predict_bounds(key))

    def add_operating_point(self, key: Any, perf: float, t: float) -> bool:
        """Whether it is better than all so far in one of both."""
        better = self.is_pareto_optimal(perf, t)
        if better:
            beaten = [p for p in self.operating_points if perf >= p[1] and t <= p[2]]
            self.operating_points = [p for p in self.operating_points if p not in beaten]
            self.suboptimal_points += beaten
        (self.operating_points if better else self.suboptimal_points).append((key, perf, t))
        return better


class OperatingPointsWithRanges(OperatingPoints):
    """Keys are places in ranges of parameters [(name, values)], whose values go from fast to
    good."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[str, list[Any]]] = []

    def add_range(self, name: str, values: list[Any]) -> None:
        self.ranges.append((name, values))

    def compare_keys(self, k1: Any, k2: Any) -> int:
        if np.all(k1 >= k2):
            return 1
        return -1 if np.all(k2 >= k1) else 0

    def do_nothing_key(self) -> Any:
        return np.zeros(len(self.ranges), np.int64)

    def num_experiments(self) -> int:
        return int(np.prod([len(values) for _, values in self.ranges]))

    def sample_experiments(self, n_autotune: int, rs: Any = np.random) -> list[int]:
        """Numbers of n_autotune experiments, or of all for 0: the first, the last, and others in
        any order."""
        assert n_autotune == 0 or n_autotune >= 2, "two experiments at least"
        every = self.num_experiments()
        order = np.random.RandomState(123).permutation(every - 2) + 1
        most = len(order) if n_autotune == 0 else n_autotune - 2
        return [0, every - 1, *order[:most].tolist()]

    def cno_to_key(self, cno: int) -> Any:
        """The key of an experiment by its number."""
        sizes = [len(values) for _, values in self.ranges]
        return np.array(np.unravel_index(cno, sizes, order="F"), np.int64)

    def get_parameters(self, k: Any) -> dict[str, Any]:
        return {name: values[i] for (name, values), i in zip(self.ranges, k, strict=True)}

    def restrict_range(self, name: str, max_val: Any) -> None:
        """Leaves values below max_val to a parameter."""
        for own, values in self.ranges:
            if own == name:
                values[:] = [value for value in values if value < max_val]
                return
        raise RuntimeError(f"there is no parameter {name!r}")


class RepeatTimer:
    """for _ in timer: runs something `runs` times, or for max_secs seconds; ms() is the mean of all
    but the first `warmup` of them. With `nt` threads, where it is not -1."""

    def __init__(
        self, warmup: int = 0, nt: int = -1, runs: int = 1, max_secs: float = np.inf
    ) -> None:
        assert warmup < runs, f"all of {runs} runs are for warming up"
        self.warmup, self.nt, self.runs, self.max_secs = warmup, nt, runs, max_secs
        self.times: list[float] = []

    def __iter__(self) -> Iterator[None]:
        self.times = []
        threads = faiss.omp_get_max_threads()
        if self.nt != -1:
            faiss.omp_set_num_threads(self.nt)
        try:
            begin = time.perf_counter()
            for _ in range(self.runs):
                start = time.perf_counter()
                yield
                self.times.append(time.perf_counter() - start)
                if time.perf_counter() - begin > self.max_secs:
                    return
            del self.times[: self.warmup]
        finally:
            if self.nt != -1:
                faiss.omp_set_num_threads(threads)

    def ms(self) -> float:
        return float(np.mean(self.times)) * 1000

    def ms_std(self) -> float:
        return float(np.std(self.times)) * 1000 if len(self.times) > 1 else 0.0

    def nruns(self) -> int:
        return len(self.times)
