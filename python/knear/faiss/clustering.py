"""k-means with FAISS's parameters: Kmeans, Clustering, kmeans_clustering."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from . import metrics
from .base import (
    METRIC_INNER_PRODUCT,
    METRIC_L2,
    Sealed,
    faiss_errors,
    matrix,
    refuse,
    threads,
    training_rows,
)
from .fields import whole
from .interrupts import InterruptCallback, interruptions
from .randomness import permutation
from .saying import say, warn
from .vectors import Float32Vector, Objects

ClusteringInitMethod_RANDOM = 0
ClusteringInitMethod_KMEANS_PLUS_PLUS = 1
ClusteringInitMethod_AFK_MC2 = 2


class ClusteringParameters(Sealed):
    """FAISS's, with its defaults. update_index, decode_block_size, use_faster_subsampling and
    use_super_kmeans change nothing here. AFK_MC2, which approximates it, is k-means++ by distances;
    by inner products alone it draws chains of afkmc2_chain_length. A negative seed is one from the
    clock. Fewer than min_points_per_centroid are warned of, and verbose prints iterations, once a
    run has ended."""

    def __init__(self) -> None:
        self.niter = 25
        self.nredo = 1
        self.verbose = False
        self.spherical = False
        self.int_centroids = False
        self.update_index = False
        self.frozen_centroids = False
        self.min_points_per_centroid = 39
        self.max_points_per_centroid = 256
        self.seed = 1234
        self.decode_block_size = 32768
        self.check_input_data_for_NaNs = True
        self.use_faster_subsampling = False
        self.init_method = ClusteringInitMethod_RANDOM
        self.afkmc2_chain_length = 50
        self.early_stop_threshold = 0.0
        self.use_super_kmeans = False


class ClusteringIterationStats(Sealed):
    """How an iteration went."""

    def __init__(
        self,
        obj: float = 0.0,
        time: float = 0.0,
        time_search: float = 0.0,
        imbalance_factor: float = 0.0,
        nsplit: int = 0,
    ) -> None:
        self.obj, self.time, self.time_search = obj, time, time_search
        self.imbalance_factor, self.nsplit = imbalance_factor, nsplit


def cluster(
    x: NDArray[np.float32],
    k: int,
    cp: ClusteringParameters,
    *,
    initial: NDArray[np.float32] | None = None,
    weights: Any = None,
    products: bool = False,
) -> tuple[NDArray[np.float32], list[ClusteringIterationStats]]:
    """The centroids [k x d] of `x` [n x d], and the iterations up to the last of the best run.

    Rows are drawn, and centroids begun, as FAISS does by its random numbers, so that both find the
    same. With `products` a row goes to the centroid of the largest inner product.
    """
    n, d = x.shape
    if n < k:
        refuse(
            f"Number of training points ({n}) should be at least as large as number of clusters "
            f"({k})"
        )
    if cp.check_input_data_for_NaNs and not np.isfinite(x).all():
        refuse("input contains NaN's or Inf's")
    weights = None if weights is None else np.ascontiguousarray(weights, np.float32)
    seed = cp.seed if cp.seed >= 0 else time.time_ns() % 2**31
    most = k * cp.max_points_per_centroid
    if n > most:
        say(cp.verbose, f"Sampling a subset of {most} / {n} for training")
        rows = permutation(n, seed, most)
        x, weights = x[rows], None if weights is None else weights[rows]
    elif n < (least := k * cp.min_points_per_centroid):
        warn(
            f"clustering {n} points to {k} centroids: please provide at least {least} training "
            "points"
        )
    given = np.empty((0, d), np.float32) if initial is None else initial
    if len(x) == k and not len(given):  # FAISS's shortcut: every point is a centroid
        say(cp.verbose, f"Number of training points ({n}) same as number of clusters: copied")
        return _after(x.copy(), cp), []
    _say_how(x, k, cp, len(given))
    best, lowest, stats, kept = None, np.inf, [], 0
    for redo in range(max(1, cp.nredo)):
        say(cp.verbose and cp.nredo > 1, f"Outer iteration {redo} / {cp.nredo}")
        first = given
        if cp.init_method == ClusteringInitMethod_RANDOM:
            drawn = permutation(len(x), seed + 1 + redo * 15486557, k)[len(given) :]
            first = np.concatenate([given, _after(x[drawn], cp)])
        elif products and not cp.spherical:
            first = np.concatenate([given, _drawn_apart(x, k, given, cp, seed + 1 + redo)])
        if cp.niter < 1 and len(first) == k:
            return _after(first, cp), []
        frozen = len(given) if cp.frozen_centroids else 0
        if products and not cp.spherical:
            centroids, steps = _by_products(x, first, cp, frozen, weights, max(1, cp.niter))
        else:
            centroids, steps = _lloyd(x, k, cp, first, frozen, weights, seed + redo)
        _say_steps(steps, cp)
        stats += steps
        objective = steps[-1].obj * (-1 if products or cp.spherical else 1)
        if best is None or objective < lowest:
            say(cp.verbose and cp.nredo > 1, "Objective improved: keep new clusters")
            best, lowest, kept = centroids, objective, len(stats)
    return _after(best, cp), stats[:kept]


def _drawn_apart(
    x: NDArray[np.float32], k: int, given: NDArray[np.float32], cp: ClusteringParameters, seed: int
) -> NDArray[np.float32]:
    """Rows that are far from one another and from the centroids given, k together with these."""
    rows = ClusteringInitialization(x.shape[1], k - len(given))
    rows.method, rows.seed = cp.init_method, seed
    rows.afkmc2_chain_length = cp.afkmc2_chain_length
    out = np.empty((rows.k, rows.d), np.float32)
    rows.init_centroids(len(x), x, out, len(given), given)
    return _after(out, cp)


def refuse_other_metrics(index: Any) -> None:
    """k-means is by L2 or inner products, whatever IndexFlat has beside."""
    if metrics.is_other(index.metric_type):
        raise NotImplementedError(
            "k-means is by METRIC_L2 or METRIC_INNER_PRODUCT, but the index that takes the "
            f"centroids has metric {index.metric_type}"
        )


def _say_how(x: NDArray[np.float32], k: int, cp: ClusteringParameters, given: int) -> None:
    say(
        cp.verbose,
        f"Clustering {len(x)} points in {x.shape[1]}D to {k} clusters, redo {cp.nredo} times, "
        f"{cp.niter} iterations",
    )
    frozen = "frozen" if cp.frozen_centroids else "not frozen"
    say(cp.verbose and given > 0, f"  Using {given} centroids provided as input ({frozen})")


def _say_steps(steps: list[ClusteringIterationStats], cp: ClusteringParameters) -> None:
    for i, step in enumerate(steps):
        say(
            cp.verbose,
            f"  Iteration {i} ({step.time:.2f} s, search {step.time_search:.2f} s): "
            f"objective={step.obj:g} nsplit={step.nsplit}",
        )


def _lloyd(
    x: NDArray[np.float32],
    k: int,
    cp: ClusteringParameters,
    first: NDArray[np.float32],
    frozen: int,
    weights: Any,
    seed: int,
) -> tuple[NDArray[np.float32], list[ClusteringIterationStats]]:
    """knear's k-means from the centroids `first`, of which so many stay as they are."""

    def run(first: NDArray[np.float32], iterations: int) -> tuple[Any, Any]:
        return _core.k_means(
            x,
            "f32",
            k,
            "ip" if cp.spherical else "l2",
            iterations,
            seed,
            "random" if cp.init_method == ClusteringInitMethod_RANDOM else "k-means++",
            1,
            float(cp.early_stop_threshold),
            0,
            1,
            threads(),
            first if len(first) else None,
            frozen,
            weights,
            interruptions(),
        )

    if not cp.int_centroids:
        centroids, steps = run(first, max(1, cp.niter))
        return centroids, _stats(steps, cp)
    stats: list[ClusteringIterationStats] = []
    rounds = max(1, cp.niter)
    for done in range(rounds):  # each begins with whole numbers
        if cp.spherical and len(first) == k and not first.any(axis=1).all():
            # At length 1, most rounded centroids are zero, which knear's k-means refuses.
            first, more = _by_products(x, first, cp, frozen, weights, rounds - done)
            return first, stats + more
        first, steps = run(first, 1)
        first = _after(first, cp)
        stats += _stats(steps, cp)[:1]
        if len(stats) > 1 and stats[-1].obj == stats[-2].obj:
            break
    return first, stats


def _by_products(
    x: NDArray[np.float32],
    first: NDArray[np.float32],
    cp: ClusteringParameters,
    frozen: int,
    weights: Any,
    iterations: int,
) -> tuple[NDArray[np.float32], list[ClusteringIterationStats]]:
    """k-means with centroids of any length to which rows go by inner products. A centroid without
    rows becomes one of the rows that fit theirs least."""
    centroids, stats = first, []
    weight = np.ones(len(x)) if weights is None else weights.astype(np.float64)
    for _ in range(iterations):
        InterruptCallback.check()
        start = time.perf_counter()
        products, ids = _core.nearest_centroids(centroids, x, "f32", "ip", threads())
        searched = time.perf_counter()
        weights_in = np.bincount(ids, weight, len(centroids))
        sums = np.zeros(centroids.shape)
        np.add.at(sums, ids, x * weight[:, None])
        empty = np.flatnonzero(weights_in == 0)
        weights_in[empty] = 1
        moved = sums / weights_in[:, None]
        moved[empty] = x[np.argsort(products, kind="stable")[: len(empty)]]
        moved[:frozen] = first[:frozen]
        centroids = _after(moved, cp)
        stats.append(
            ClusteringIterationStats(
                float((weight * products).sum()),
                time.perf_counter() - start,
                searched - start,
                1.0,
                len(empty),
            )
        )
    return centroids, stats


def _after(centroids: NDArray[np.float32], cp: ClusteringParameters) -> NDArray[np.float32]:
    """What FAISS does to centroids at the end."""
    if cp.spherical:
        lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
        centroids = centroids / np.where(lengths > 0, lengths, 1)
    if cp.int_centroids:
        centroids = np.rint(centroids)
    return np.ascontiguousarray(centroids, np.float32)


def _stats(steps: list[tuple[Any, ...]], cp: ClusteringParameters) -> list[Any]:
    """The iterations of a run. It ends once no row moves, which FAISS sees by an objective that
    comes twice."""
    out = [
        ClusteringIterationStats(objective, seconds, seconds, 1.0, empty)
        for _, _, objective, _, empty, seconds, _ in steps
    ][: cp.niter]
    return out + out[-1:] if len(out) < cp.niter and not cp.early_stop_threshold else out


class Clustering(ClusteringParameters):
    """k centroids of vectors of d columns; train() puts them into an index."""

    def __init__(self, d: int, k: int, cp: ClusteringParameters | None = None) -> None:
        super().__init__()
        if cp is not None:
            self.__dict__.update({n: v for n, v in vars(cp).items() if n != "_sealed"})
        self.d, self.k = whole("d", d), whole("k", k)
        self.centroids = Float32Vector()
        self.iteration_stats = Objects()

    def train(self, x: ArrayLike, index: Any, weights: Any = None) -> None:
        """Finds the centroids of `x` [n x d], beginning with those that `centroids` holds, and adds
        them to `index`, which is emptied first. Rows go to their nearest centroid by the metric of
        the index, whatever it would find."""
        by_l2 = index.metric_type == METRIC_L2 and not self.spherical
        rows = training_rows(x, self.d, "centroids") if by_l2 else matrix(x, self.d)
        assert index.d == self.d, "the index has other dimensions"
        refuse_other_metrics(index)
        if weights is not None:
            assert np.shape(weights) == (len(rows),), "there must be a weight for each row"
        first = self.centroids.array.reshape(-1, self.d) if self.centroids.size() else None
        with faiss_errors():
            centroids, stats = cluster(
                rows,
                self.k,
                self,
                initial=first,
                weights=weights,
                products=index.metric_type == METRIC_INNER_PRODUCT,
            )
        self.centroids.set(centroids)
        self.iteration_stats = Objects(stats)
        index.reset()
        if not index.is_trained:
            index.train(centroids)
        index.add(centroids)

    def train_encoded(self, x: Any, codec: Any, index: Any, weights: Any = None) -> None:
        """train() of the vectors that `x`, codes of the index `codec`, stand for."""
        self.train(codec.sa_decode(x), index, weights)

    def post_process_centroids(self) -> None:
        self.centroids.set(_after(self.centroids.array.reshape(-1, self.d), self))


class ClusteringInitialization(Sealed):
    """The first k centroids of k-means by itself: rows drawn at random; k-means++, each far from
    those before; or AFK-MC2 (Bachem et al., 2016), which draws such rows by Markov chains."""

    def __init__(self, d: int, k: int) -> None:
        self.d, self.k = whole("d", d), whole("k", k)
        self.method = ClusteringInitMethod_RANDOM
        self.seed = 1234
        self.afkmc2_chain_length = 50

    def init_centroids(
        self,
        n: int,
        x: Any,
        centroids: Any,
        n_existing_centroids: int = 0,
        existing_centroids: Any = None,
    ) -> None:
        """Puts k of the first n rows of `x` into the array `centroids`. The other methods than
        random ones keep away from centroids that are there already."""
        rows = np.ravel(x)[: n * self.d].reshape(n, self.d)
        if n < self.k:
            refuse(f"{self.k} centroids cannot be drawn from {n} rows")
        if self.method == ClusteringInitMethod_RANDOM:
            chosen = permutation(n, self.seed, self.k)
        else:
            had = np.empty((0, self.d), np.float32)
            if n_existing_centroids:
                values = np.ravel(existing_centroids)[: n_existing_centroids * self.d]
                had = values.reshape(-1, self.d)
            far = self.method == ClusteringInitMethod_KMEANS_PLUS_PLUS
            draw = self._far_apart if far else self._by_chains
            chosen = draw(rows, had, np.random.RandomState(self.seed % 2**32))
        centroids.reshape(-1)[: self.k * self.d] = rows[chosen].ravel()

    def _far_apart(self, rows: Any, had: Any, random: Any) -> list[int]:
        chosen: list[int] = []
        nearest = np.full(len(rows), np.inf)
        for centroid in had:
            nearest = np.minimum(nearest, _squares(rows, centroid))
        while len(chosen) < self.k:
            chosen.append(_drawn(nearest, random))
            nearest = np.minimum(nearest, _squares(rows, rows[chosen[-1]]))
        return chosen

    def _by_chains(self, rows: Any, had: Any, random: Any) -> list[int]:
        chosen = [] if len(had) else [int(random.randint(len(rows)))]
        at = np.concatenate([had, rows[chosen]])
        first = _core.nearest_centroids(np.ascontiguousarray(at), rows, "f32", "l2", threads())[0]
        total = float(first.sum(dtype=np.float64))
        share = np.full(len(rows), 1 / len(rows))
        if total > 0:
            share = first / total / 2 + share / 2
        ends = np.cumsum(share, dtype=np.float64)
        while len(chosen) < self.k:
            # A stream of its own for each, so that a longer chain goes on where a shorter one ends.
            luck = np.random.RandomState([self.seed % 2**32, len(chosen)])
            pairs = luck.rand(max(1, self.afkmc2_chain_length), 2)
            chain = np.searchsorted(ends, pairs[:, 0] * ends[-1], side="right").clip(
                0, len(rows) - 1
            )
            cost = _core.nearest_centroids(
                np.ascontiguousarray(at), np.ascontiguousarray(rows[chain]), "f32", "l2", threads()
            )[0]
            now = 0
            for i in range(1, len(chain)):
                if cost[i] * share[chain[now]] > pairs[i, 1] * cost[now] * share[chain[i]]:
                    now = i
            chosen.append(int(chain[now]))
            at = np.concatenate([at, rows[chain[now] : chain[now] + 1]])
        return chosen


def _squares(rows: NDArray[np.float32], centroid: NDArray[np.float32]) -> NDArray[np.float32]:
    apart = rows - centroid
    return np.einsum("ij,ij->i", apart, apart)


def _drawn(weights: NDArray[Any], random: Any) -> int:
    """A row with the probability of its weight; any, where all are 0 or there are none yet."""
    ends = np.cumsum(weights, dtype=np.float64)
    if not 0 < ends[-1] < np.inf:
        return int(random.randint(len(weights)))
    return int(np.searchsorted(ends, random.rand() * ends[-1], side="right").clip(0, len(ends) - 1))


class Kmeans:
    """k-means of vectors of d columns: train(x) finds `centroids` [k x d], assign(x) the nearest.

    Other arguments are fields of ClusteringParameters. `obj` are the objectives of the iterations,
    `iteration_stats` all about them.
    """

    def __init__(self, d: int, k: int, **given: Any) -> None:
        self.d, self.k = whole("d", d), whole("k", k)
        self.gpu = False
        if given.pop("gpu", False):
            warn(
                "Kmeans(gpu=True) runs on the processor, as that of faiss-cpu does; "
                'knear.KMeans(k, device="cuda") is k-means on a GPU'
            )
        if given.pop("progressive_dim_steps", None):
            raise NotImplementedError(
                "Kmeans(progressive_dim_steps=) is not there; knear.KMeans(k, levels=2) is for "
                "many centroids"
            )
        self.cp = ClusteringParameters()
        for name, value in given.items():
            getattr(self.cp, name)
            setattr(self.cp, name, value)
        self.centroids: NDArray[np.float32] | None = None
        self.obj: Any = None
        self.iteration_stats: Any = None
        self.index: Any = None

    def set_index(self) -> None:
        from .flat import IndexFlatIP, IndexFlatL2

        self.index = (IndexFlatIP if self.cp.spherical else IndexFlatL2)(self.d)

    def reset(self, k: int | None = None) -> None:
        """Forgets the centroids; k: as many from now on."""
        self.k = self.k if k is None else whole("k", k)
        self.centroids = self.obj = self.iteration_stats = None

    def train(self, x: ArrayLike, weights: Any = None, init_centroids: Any = None) -> float:
        """Returns the last objective. `weights` [n] are of the rows; `init_centroids` [g x d] are
        the first g centroids to begin with."""
        rows = matrix(x) if self.cp.spherical else training_rows(x, made="centroids")
        assert rows.shape[1] == self.d, f"x has {rows.shape[1]} columns, not {self.d}"
        self.set_index()
        clustering = Clustering(self.d, self.k, self.cp)
        if init_centroids is not None:
            first = matrix(init_centroids)
            assert first.shape[1] == self.d and len(first) <= self.k
            clustering.centroids.set(first)
        clustering.train(rows, self.index, weights)
        self.centroids = clustering.centroids.array.reshape(self.k, self.d).copy()
        self.iteration_stats = [
            {name: value for name, value in vars(one).items() if name != "_sealed"}
            for one in clustering.iteration_stats
        ]
        self.obj = np.array([one["obj"] for one in self.iteration_stats])
        return float(self.obj[-1]) if self.obj.size else 0.0

    def assign(self, x: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(distances [n], numbers [n]) of the nearest centroid of each row."""
        rows = matrix(x, self.d)
        assert self.centroids is not None, "should train before assigning"
        self.index.reset()
        self.index.add(self.centroids)
        distances, ids = self.index.search(rows, 1)
        return distances.ravel(), ids.ravel()


def kmeans_clustering(d: int, n: int, k: int, x: Any, centroids: Any) -> float:
    """k-means of the first n rows of `x` into the array `centroids` [k x d]; the objective."""
    km = Kmeans(d, k)
    out = km.train(np.ravel(x)[: n * d].reshape(n, d))
    np.ravel(centroids)[:] = km.centroids.ravel()
    return out
