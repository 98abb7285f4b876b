"""A search of many queries list by list, which can stop and go on."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import knear.faiss as faiss
from knear._regular import regular


def big_batch_search(
    index: Any,
    xq: Any,
    k: int,
    method: str = "knn_function",
    pairwise_distances: Any = faiss.pairwise_distances,
    knn: Any = faiss.knn,
    verbose: int = 0,
    threaded: int = 0,
    use_float16: bool = False,
    prefetch_threads: int = 1,
    computation_threads: int = 1,
    q_assign: Any = None,
    checkpoint: Any = None,
    checkpoint_freq: float = 7200,
    start_list: int = 0,
    end_list: int | None = None,
    crash_at: int = -1,
) -> tuple[Any, Any]:
    """(distances, ids) [n x k] of a search of an index of lists. Each list is compared at once with
    all queries that probe it: by the function `knn`, by `pairwise_distances`, or by the "index".

    q_assign [n x nprobe] are the lists of the queries, where they are known. `checkpoint` is a file
    that gets the results so far every checkpoint_freq seconds, from which the next call goes on.
    At list crash_at it ends with a ZeroDivisionError. Numbers of threads change nothing: the
    comparisons take as many as omp_set_num_threads() said.
    """
    if method not in ("knn_function", "pairwise_distances", "index"):
        raise RuntimeError(f"method {method!r} is none of knn_function, pairwise_distances, index")
    if use_float16:
        raise NotImplementedError("vectors of lists are compared in float32")
    xq = np.ascontiguousarray(xq, np.float32)
    metric = index.metric_type
    largest = faiss.is_similarity_metric(metric)
    if q_assign is None:
        q_assign = index.quantizer.search(xq, index.nprobe)[1]
    best = faiss.ResultHeap(len(xq), k, keep_max=largest)
    if checkpoint is not None and os.path.exists(checkpoint):
        with np.load(checkpoint) as saved:
            start_list, best.D, best.I = int(saved["list"]), saved["D"], saved["I"]
    saved_at = time.perf_counter()
    for list_no in range(start_list, index.nlist if end_list is None else end_list):
        if list_no == crash_at:
            raise ZeroDivisionError(f"the search was to crash at list {crash_at}")
        queries = np.flatnonzero((q_assign == list_no).any(1))
        if len(queries) and index.get_list_size(list_no):
            asked = xq[queries]
            if method == "index":
                distances, ids = _in_list(index, asked, k, list_no)
            else:
                vectors = index._decode_rows(index.invlists._rows(list_no))
                if method == "knn_function":
                    distances, places = knn(asked, vectors, k, metric=metric)
                else:
                    table = pairwise_distances(asked, vectors, metric=metric)
                    distances, places = (faiss.kmax if largest else faiss.kmin)(
                        table, min(k, len(vectors))
                    )
                ids = np.where(places < 0, -1, index.invlists.get_ids(list_no)[places])
            best.add_result_subset(queries, distances, ids)
        if verbose:
            print(f"list {list_no}: {len(queries)} queries")
        if checkpoint is not None and time.perf_counter() - saved_at > checkpoint_freq:
            with regular(f"{checkpoint}.tmp", "wb") as file:
                np.savez(file, list=list_no + 1, D=best.D, I=best.I)
            os.replace(f"{checkpoint}.tmp", checkpoint)
            saved_at = time.perf_counter()
    best.finalize()
    return best.D, best.I


def _in_list(index: Any, x: Any, k: int, list_no: int) -> tuple[Any, Any]:
    lists = np.full((len(x), index.nprobe), -1)
    lists[:, 0] = list_no
    return index.search_preassigned(x, k, lists)
