"""Exact searches of a base that comes block by block, and range searches with so many results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import knear.faiss as faiss

knn = faiss.knn


def _without_gpus(ngpu: int) -> None:
    if ngpu > 0:
        raise NotImplementedError(
            "GPUs are not here; knear.knn(..., device='cuda') searches on a GPU"
        )


def knn_ground_truth(
    xq: Any,
    db_iterator: Iterable[Any],
    k: int,
    metric_type: int = faiss.METRIC_L2,
    shard: bool = False,
    ngpu: int = -1,
) -> tuple[Any, Any]:
    """(distances, ids) [n x k] of the nearest rows of all blocks together."""
    _without_gpus(ngpu)
    best = faiss.ResultHeap(len(xq), k, keep_max=faiss.is_similarity_metric(metric_type))
    before = 0
    for block in db_iterator:
        distances, ids = faiss.knn(xq, block, k, metric_type)
        best.add_result(distances, np.where(ids < 0, -1, ids + before))
        before += len(block)
    best.finalize()
    return best.D, best.I


def range_ground_truth(
    xq: Any,
    db_iterator: Iterable[Any],
    threshold: float,
    metric_type: int = faiss.METRIC_L2,
    shard: bool = False,
    ngpu: int = -1,
) -> tuple[Any, Any, Any]:
    """(lims, distances, ids) of a range search of all blocks together."""
    _without_gpus(ngpu)
    n, d = xq.shape
    queries, distances, ids = [np.empty(0, np.int64)], [np.empty(0, np.float32)], []
    before = 0
    for block in db_iterator:
        index = faiss.IndexFlat(d, metric_type)
        index.add(block)
        lims, near, which = index.range_search(xq, threshold)
        queries.append(np.repeat(np.arange(n), np.diff(lims.astype(np.int64))))
        distances.append(near)
        ids.append(which + before)
        before += len(block)
    query = np.concatenate(queries)
    order = np.argsort(query, kind="stable")
    lims = np.searchsorted(query[order], np.arange(n + 1)).astype(np.uint64)
    found = np.concatenate([np.empty(0, np.int64), *ids])
    return lims, np.concatenate(distances)[order], found[order]


def threshold_radius_nres(
    nres: Any, dis: Any, ids: Any, thresh: float, keep_max: bool = False
) -> tuple[Any, Any, Any]:
    """Of results with so many of each query, those within a radius."""
    inside = dis > thresh if keep_max else dis < thresh
    ends = np.cumsum(np.asarray(nres).astype(np.int64))
    counts = np.diff(np.concatenate([[0], np.cumsum(inside)])[np.concatenate([[0], ends])])
    return counts.astype(np.asarray(nres).dtype), dis[inside], ids[inside]


def threshold_radius(
    lims: Any, dis: Any, ids: Any, thresh: float, keep_max: bool = False
) -> tuple[Any, Any, Any]:
    """The same of the results of a range search."""
    counts = np.diff(np.asarray(lims).astype(np.int64))
    counts, dis, ids = threshold_radius_nres(counts, dis, ids, thresh, keep_max)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.asarray(lims).dtype), dis, ids


def apply_maxres(
    res_batches: list[Any], target_nres: int, keep_max: bool = False
) -> tuple[float, int]:
    """(the radius, the number of results) with which target_nres results at most stay in
    res_batches, which has (numbers, distances, ids) of each batch."""
    all_of_them = np.concatenate([dis for _, dis, _ in res_batches])
    assert len(all_of_them) > target_nres, "there are not so many results"
    order = np.sort(all_of_them)[::-1] if keep_max else np.sort(all_of_them)
    radius = float(order[target_nres])
    res_batches[:] = [threshold_radius_nres(*each, radius, keep_max) for each in res_batches]
    return radius, sum(len(dis) for _, dis, _ in res_batches)


def range_search_max_results(
    index: Any,
    query_iterator: Iterable[Any],
    radius: float,
    max_results: int | None = None,
    min_results: int | None = None,
    shard: bool = False,
    ngpu: int = 0,
    clip_to_min: bool = False,
) -> tuple[float, Any, Any, Any]:
    """(radius, lims, distances, ids) of a range search of batches of queries: once it finds more
    than max_results in all, the radius is one that min_results are in."""
    _without_gpus(ngpu)
    assert max_results is not None or min_results is not None, "how many results are wanted?"
    if min_results is None:
        min_results = int(0.8 * max_results)
    if max_results is None:
        max_results = int(1.5 * min_results)
    keep_max = faiss.is_similarity_metric(index.metric_type)
    batches: list[Any] = []
    count = 0
    for queries in query_iterator:
        lims, distances, ids = index.range_search(queries, radius)
        batches.append((np.diff(lims.astype(np.int64)), distances, ids))
        count += len(ids)
        if count > max_results:
            radius, count = apply_maxres(batches, min_results, keep_max)
    if clip_to_min and count > min_results:
        radius, count = apply_maxres(batches, min_results, keep_max)
    counts, distances, ids = (np.concatenate(each) for each in zip(*batches, strict=True))
    return radius, np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64), distances, ids


def exponential_query_iterator(xq: Any, start_bs: int = 32, max_bs: int = 20000) -> Iterator[Any]:
    """Batches that double in size, so that a radius that finds too much is seen early."""
    begin, size = 0, start_bs
    while begin < len(xq):
        yield xq[begin : begin + size]
        begin += size
        size = size * 2 if size < max_bs else size
