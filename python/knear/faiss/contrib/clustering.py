"""k-means in two levels, and of data that says by itself which centroid is nearest, as sparse
matrices."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import knear.faiss as faiss


def two_level_clustering(
    xt: Any,
    nc1: int,
    nc2: int,
    rebalance: bool = True,
    clustering_niter: int = 25,
    **args: Any,
) -> tuple[Any, list[Any]]:
    """(nc2 centroids [nc2 x d], the iterations of each k-means): rows are put into nc1 clusters,
    and each of these by itself into as many as its share of rows, or of the same number for all
    without `rebalance`. Others are arguments of Kmeans."""
    d = xt.shape[1]
    first = faiss.Kmeans(d, nc1, niter=clustering_niter, max_points_per_centroid=2000, **args)
    first.train(xt)
    clusters = first.assign(xt)[1]
    stats, centroids = [first.iteration_stats], []
    share = np.cumsum(np.bincount(clusters, minlength=nc1)) if rebalance else np.arange(1, nc1 + 1)
    numbers = np.diff(np.concatenate([[0], share * nc2 // share[-1]]))
    order = clusters.argsort()
    ends = np.cumsum(np.bincount(clusters, minlength=nc1))[:-1]
    for rows, number in zip(np.split(order, ends), numbers.tolist(), strict=True):
        if number:
            km = faiss.Kmeans(d, number, **args)
            km.train(xt[rows])
            stats.append(km.iteration_stats)
            centroids.append(km.centroids)
    return np.vstack(centroids), stats


def train_ivf_index_with_2level(index: Any, xt: Any, **args: Any) -> None:
    """Trains an index of lists, or one behind transforms, with centroids in two levels."""
    if isinstance(index, faiss.IndexPreTransform):
        for transform in index.chain:
            transform.train(xt)
            xt = transform.apply(xt)
        train_ivf_index_with_2level(index.index, xt, **args)
        index.is_trained = True
        return
    assert isinstance(index, faiss.IndexIVF), f"{type(index).__name__} has no inverted lists"
    assert index.metric_type == faiss.METRIC_L2, "two levels are for L2"
    centroids, _ = two_level_clustering(xt, int(np.sqrt(index.nlist)), index.nlist, **args)
    index.quantizer.train(centroids)
    index.quantizer.add(centroids)
    index.train(xt)


def balanced_assignment_with_penalties(
    x: Any, centroids: Any, alpha: float = 0.03, num_iter: int = 20, maxk: int = 100
) -> tuple[Any, dict[str, Any]]:
    """(the centroid [n] of each row, what came of it): one of the maxk nearest, whose squared
    distance grows by a penalty that is larger the more rows a centroid has (Tavenard et al.,
    2011)."""
    k = len(centroids)
    distances, near = faiss.knn(x, centroids, min(maxk, k))
    penalties = np.ones(k)
    numbers, sizes = near[:, 0], np.bincount(near[:, 0], minlength=k)
    for _ in range(num_iter):
        least = (distances + np.square(penalties)[near]).argmin(1)
        numbers = np.take_along_axis(near, least[:, None], 1).ravel()
        sizes = np.bincount(numbers, minlength=k)
        penalties *= (sizes * k / len(x)) ** alpha
    stats = {
        "alpha": alpha,
        "imf": imbalance_factor(k, numbers),
        "mse": float(np.square(x - centroids[numbers]).sum(1).mean()),
        "binsize_min": int(sizes.min()),
        "binsize_max": int(sizes.max()),
        "penalty_min": float(penalties.min()),
        "penalty_max": float(penalties.max()),
    }
    return numbers, stats


class DatasetAssign:
    """Rows [n x d] that kmeans() assigns to centroids."""

    def __init__(self, x: Any) -> None:
        self.x = np.ascontiguousarray(x, np.float32)

    def count(self) -> int:
        return self.x.shape[0]

    def dim(self) -> int:
        return self.x.shape[1]

    def get_subset(self, indices: Any) -> Any:
        return self.x[indices]

    def perform_search(self, centroids: Any) -> tuple[Any, Any]:
        return faiss.knn(self.x, centroids, 1)

    def assign_to(self, centroids: Any, weights: Any = None) -> tuple[Any, Any, Any]:
        """(numbers [n] of the nearest centroids, distances [n], sums of the rows of each
        centroid)."""
        distances, numbers = (each.ravel() for each in self.perform_search(centroids))
        return numbers, distances, self._sums(numbers, len(centroids), weights)

    def _sums(self, numbers: Any, k: int, weights: Any) -> Any:
        sums = np.zeros((k, self.dim()))
        np.add.at(sums, numbers, self.x if weights is None else weights[:, None] * self.x)
        return sums.astype(np.float32)


def sparse_assign_to_dense(
    xq: Any, xb: Any, xq_norms: Any = None, xb_norms: Any = None
) -> tuple[Any, Any]:
    """(squared distances [n], numbers [n]) of the row of `xb` that is nearest to each row of the
    sparse matrix `xq`; the squared lengths of both may be given."""
    norms = np.square(xb).sum(1) if xb_norms is None else xb_norms
    own = np.asarray(xq.power(2).sum(1)) if xq_norms is None else xq_norms
    distances = norms - 2 * np.asarray(xq @ xb.T)
    numbers = distances.argmin(1)
    nearest = np.take_along_axis(distances, numbers[:, None], 1).ravel()
    return nearest + np.ravel(own), numbers


def sparse_assign_to_dense_blocks(
    xq: Any,
    xb: Any,
    xq_norms: Any = None,
    xb_norms: Any = None,
    qbs: int = 16384,
    bbs: int = 16384,
    nt: int | None = None,
) -> tuple[Any, Any]:
    """The same by blocks of qbs rows of `xq` and bbs rows of `xb`, so that less memory is needed.
    `nt` changes nothing."""
    n = xq.shape[0]
    distances, numbers = np.full(n, np.inf, np.float32), np.full(n, -1)
    norms = np.square(xb).sum(1) if xb_norms is None else xb_norms
    own = np.asarray(xq.power(2).sum(1)) if xq_norms is None else xq_norms
    for q in range(0, n, qbs):
        some = slice(q, q + qbs)
        for b in range(0, len(xb), bbs):
            part = slice(b, b + bbs)
            near, which = sparse_assign_to_dense(xq[some], xb[part], own[some], norms[part])
            nearer = near < distances[some]
            distances[some][nearer] = near[nearer]
            numbers[some][nearer] = which[nearer] + b
    return distances, numbers


class DatasetAssignSparse(DatasetAssign):
    """The rows of a matrix of scipy.sparse in CSR form."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.squared_norms = np.asarray(x.power(2).sum(1))

    def get_subset(self, indices: Any) -> Any:
        return self.x[indices].toarray()

    def perform_search(self, centroids: Any) -> tuple[Any, Any]:
        return sparse_assign_to_dense_blocks(self.x, centroids, xq_norms=self.squared_norms)

    def _sums(self, numbers: Any, k: int, weights: Any) -> Any:
        import scipy.sparse

        n = self.count()
        of = np.ones(n, np.float32) if weights is None else weights
        chosen = scipy.sparse.csc_matrix((of, numbers, np.arange(n + 1)), shape=(k, n))
        return (chosen @ self.x).toarray()


def imbalance_factor(k: int, assign: Any) -> float:
    """1 where all clusters have as many rows, k where one has all."""
    sizes = np.bincount(assign, minlength=k).astype(np.float64)
    return float((sizes**2).sum() * k / max(1.0, sizes.sum()) ** 2)


def reassign_centroids(hassign: Any, centroids: Any, rs: Any = None) -> int:
    """Puts each centroid without rows beside one that has many, drawn at random, and says how many
    there were."""
    random = np.random if rs is None else rs
    empty = np.flatnonzero(hassign == 0)
    for one in empty:
        share = np.maximum(hassign - 1, 0).astype(np.float64)
        other = random.choice(len(hassign), p=share / share.sum())
        step = np.where(np.arange(centroids.shape[1]) % 2 == 0, 1, -1) / 1024
        centroids[one] = centroids[other] * (1 + step)
        centroids[other] = centroids[other] * (1 - step)
        hassign[one] = hassign[other] // 2
        hassign[other] -= hassign[one]
    return len(empty)


def kmeans(
    k: int,
    data: DatasetAssign,
    niter: int = 25,
    seed: int = 1234,
    checkpoint: Any = None,
    verbose: bool = True,
    return_stats: bool = False,
) -> Any:
    """The centroids [k x d] of a DatasetAssign, and with return_stats the iterations. `checkpoint`
    is a file that gets them after each; verbose: prints the objectives."""
    random = np.random.RandomState(seed)
    centroids = data.get_subset(random.choice(data.count(), size=k, replace=False))
    stats = []
    start, searching = time.perf_counter(), 0.0
    for iteration in range(niter):
        before = time.perf_counter()
        numbers, distances, sums = data.assign_to(centroids)
        searching += time.perf_counter() - before
        sizes = np.bincount(numbers, minlength=k)
        centroids = (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)
        balance = imbalance_factor(k, numbers)
        stats.append(
            {
                "obj": float(distances.sum()),
                "time": time.perf_counter() - start,
                "time_search": searching,
                "imbalance_factor": balance,
                "nsplit": reassign_centroids(sizes, centroids, random),
            }
        )
        if verbose:
            print(f"iteration {iteration}: objective {stats[-1]['obj']:g}, imbalance {balance:.3f}")
        if checkpoint is not None:
            np.save(checkpoint, centroids)
    return (centroids, stats) if return_stats else centroids
