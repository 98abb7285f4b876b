"""The systems that bench/peers compares, behind one shape: prepared once, then search(count).

Each gets the base and the queries in the form that it works on (float32 for FAISS and NumPy,
normalised for cosine) before any clock runs; only the search is timed, and how long it took to
build what is searched is kept beside it. The exception is 'knear knn', one call without an index,
which prepares the base within its time.
"""

import importlib.metadata
import time
from collections.abc import Callable

import faiss
import numpy as np
import threadpoolctl

import knear

Answer = tuple[np.ndarray, np.ndarray]  # distances, ids, both [q x k]


class System:
    """A name for the table and a search of the first `count` queries."""

    def __init__(self, name: str, version: str, search: Callable[[int], Answer]):
        self.name = name
        self.version = version
        self.search = search
        self.one: Callable[[int], Answer] | None = None  # a search of one query, by number
        self.latencies: list[float] = []  # of the last search, one query at a time
        self.passed: list[float] = []  # rows that passed the first pass, by the same calls
        self.report: dict = {}  # of the last search, where the system gives one
        self.settles = False  # whether later searches may go another way than the first
        self.exact = True  # whether all of the k nearest are meant to be found
        self.exhaustive = True  # whether every row is scored, so that operations can be counted
        self.build_seconds: float | None = None  # where that takes long


def one_by_one(system: System) -> System:
    """As `system`, with each query in a call of its own; keeps how long each took."""
    single = system.one

    def search(count: int) -> Answer:
        system.latencies, system.passed = [], []
        answers = []
        for i in range(count):
            start = time.perf_counter()
            answers.append(single(i))
            system.latencies.append(time.perf_counter() - start)
            if "hits_per_query" in system.report:
                system.passed.append(system.report["hits_per_query"])
        distances, ids = zip(*answers, strict=True)
        return np.concatenate(distances), np.concatenate(ids)

    system.search = search
    return system


def as_float32(x: np.ndarray, metric: str) -> np.ndarray:
    out = np.ascontiguousarray(x, np.float32)
    if metric == "cosine":
        lengths = np.sqrt(np.einsum("ij,ij->i", out, out))
        out = out / np.where(lengths > 0, lengths, 1)[:, None]
    return out


def knear_index(base, queries, k: int, metric: str, threads: int, allowed=None) -> System:
    index = knear.Index("Flat", dim=base.shape[1], metric=metric)
    index.add(base)
    system = System("knear index", knear.__version__, lambda count: answer(queries[:count]))
    system.settles = True
    system.one = lambda i: answer(queries[i : i + 1])

    def answer(some) -> Answer:
        return index.search(some, k, threads=threads, filter=allowed, report=system.report)

    return system


def knear_plain(base, queries, k: int, metric: str, threads: int) -> System:
    """The index without a prefix."""
    index = knear.Index("Flat", dim=base.shape[1], metric=metric)
    index.add(base)
    first_pass = "integer" if base.dtype == np.uint8 and metric != "cosine" else "int8"
    system = System(f"knear, {first_pass}", knear.__version__, lambda count: None)

    def one(i: int) -> Answer:
        return index.search(
            queries[i : i + 1], k, threads=threads, first_pass=first_pass, report=system.report
        )

    system.one = one
    return system


def knear_unfiltered(base, queries, k: int, metric: str, threads: int, allowed=None) -> System:
    system = knear_index(base, queries, k, metric, threads)
    system.name = "without filter"
    return system


def knear_knn(base, queries, k: int, metric: str, threads: int, allowed=None) -> System:
    system = System("knear knn", knear.__version__, lambda count: answer(queries[:count]))

    def answer(some) -> Answer:
        return knear.knn(
            some, base, k, metric, threads=threads, filter=allowed, report=system.report
        )

    return system


def faiss_flat(base, queries, k: int, metric: str, threads: int, allowed=None) -> System:
    faiss.omp_set_num_threads(threads)
    kind = faiss.IndexFlatL2 if metric == "l2" else faiss.IndexFlatIP
    index = kind(base.shape[1])
    index.add(as_float32(base, metric))
    asked = as_float32(queries, metric)
    bits = None if allowed is None else np.packbits(allowed, bitorder="little")
    selector = parameters = None
    if bits is not None:
        selector = faiss.IDSelectorBitmap(len(base), faiss.swig_ptr(bits))
        parameters = faiss.SearchParameters(sel=selector)

    def search(count: int) -> Answer:
        distances, ids = index.search(asked[:count], k, params=parameters)
        return (1 - distances if metric == "cosine" else distances), ids

    system = System(
        "faiss-cpu", f"{faiss.__version__} {faiss.get_compile_options().strip()}", search
    )
    system.one = lambda i: index.search(asked[i : i + 1], k, params=parameters)
    system.kept = bits, selector  # the selector points into the bits and does not own them
    return system


def faiss_panorama(base, queries, k: int, metric: str, threads: int, allowed=None) -> System:
    """FAISS's own exact pruning: partial distances over principal coordinates, level by level."""
    if metric != "l2" or allowed is not None:
        raise ValueError("panorama is for l2 without a filter here")
    faiss.omp_set_num_threads(threads)
    dim = base.shape[1]
    # These were the fastest of 4 to 98 levels and batches of 128 to 1024 on Fashion-MNIST; on SIFT
    # 8 levels were.
    levels = max(1, min(32, dim // 16))
    start = time.perf_counter()
    index = faiss.index_factory(dim, f"PCA{dim},FlatL2Panorama{levels}_512")
    rows = as_float32(base, metric)
    index.train(rows)
    index.add(rows)
    built = time.perf_counter() - start
    asked = as_float32(queries, metric)
    system = System(
        f"faiss-cpu Panorama, {levels} levels",
        faiss.__version__,
        lambda count: index.search(asked[:count], k),
    )
    system.one = lambda i: index.search(asked[i : i + 1], k)
    system.exhaustive, system.build_seconds = False, built
    return system


HNSW_LINKS = 16
HNSW_CONSTRUCTION = 200


def hnswlib_graph(
    base, queries, k: int, metric: str, threads: int, efs: list[int]
) -> dict[str, System]:
    """One graph, searched with each ef: the usual approximate search to hold exact ones against."""
    import hnswlib

    start = time.perf_counter()
    index = hnswlib.Index(metric, base.shape[1])
    index.init_index(len(base), HNSW_LINKS, HNSW_CONSTRUCTION, random_seed=1)
    index.add_items(as_float32(base, metric), num_threads=threads)
    built = time.perf_counter() - start
    asked = as_float32(queries, metric)

    def search(begin: int, end: int, ef: int) -> Answer:
        index.set_ef(ef)
        ids, distances = index.knn_query(asked[begin:end], k, num_threads=threads)
        ids = ids.astype(np.int64)
        return (1 - distances if metric == "ip" else distances), ids

    def system(ef: int) -> System:
        version = importlib.metadata.version("hnswlib")
        out = System(f"hnswlib, ef {ef}", version, lambda count: search(0, count, ef))
        out.one = lambda i: search(i, i + 1, ef)
        out.exact, out.exhaustive, out.build_seconds = False, False, built
        return out

    return {f"hnswlib-{ef}": system(ef) for ef in efs}


def numpy_gemm(base, queries, k: int, metric: str, threads: int, allowed=None) -> System:
    """Products by BLAS, block by block; argpartition for the k smallest; sort of those."""
    if allowed is not None:
        raise ValueError("numpy has no filtered search here")
    rows = as_float32(base, metric)
    asked = as_float32(queries, metric)
    norms = np.einsum("ij,ij->i", rows, rows)
    block = max(1, min(256, (64 << 20) // len(rows)))  # scores of a block: at most 256 MiB
    k_found = min(k, len(rows))

    def search(count: int) -> Answer:
        distances = np.empty((count, k_found), np.float32)
        ids = np.empty((count, k_found), np.int64)
        with threadpoolctl.threadpool_limits(threads, "blas"):
            for begin in range(0, count, block):
                part = asked[begin : min(begin + block, count)]
                scores = part @ rows.T
                scores *= -2 if metric == "l2" else -1
                if metric == "l2":
                    scores += norms
                near = np.argpartition(scores, k_found - 1, axis=1)[:, :k_found]
                values = np.take_along_axis(scores, near, 1)
                order = np.argsort(values, axis=1)
                ids[begin : begin + len(part)] = np.take_along_axis(near, order, 1)
                values = np.take_along_axis(values, order, 1)
                if metric == "l2":
                    values += np.einsum("ij,ij->i", part, part)[:, None]
                else:
                    values = 1 + values if metric == "cosine" else -values
                distances[begin : begin + len(part)] = values
        return distances, ids

    blas = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    about = " ".join(f"{pool['internal_api']} {pool['version']}" for pool in blas)
    return System("numpy", f"{np.__version__} {about}", search)


def knear_range(base, queries, radius: float, metric: str, threads: int) -> System:
    index = knear.Index("Flat", dim=base.shape[1], metric=metric)
    index.add(base)
    system = System("knear index", knear.__version__, lambda count: answer(queries[:count]))

    def answer(some):
        return index.range_search(some, radius, threads=threads, report=system.report)

    return system


def faiss_range(base, queries, radius: float, metric: str, threads: int) -> System:
    """Its comparison is strict, in float32: a radius between two distances is the same to both."""
    faiss.omp_set_num_threads(threads)
    index = (faiss.IndexFlatL2 if metric == "l2" else faiss.IndexFlatIP)(base.shape[1])
    index.add(as_float32(base, metric))
    asked = as_float32(queries, metric)
    bound = 1 - radius if metric == "cosine" else radius

    def search(count: int):
        return index.range_search(asked[:count], bound)

    return System("faiss-cpu", f"{faiss.__version__} {faiss.get_compile_options().strip()}", search)


def with_self(answer: Answer) -> Answer:
    """The answer of a self-join as that of a search for every row: each row is its own nearest."""
    distances, ids = answer
    rows = np.arange(len(ids))[:, None]
    return np.hstack([np.zeros_like(distances[:, :1]), distances]), np.hstack([rows, ids])


def join_systems(base, k: int, metric: str, threads: int, wanted: list[str]) -> dict[str, System]:
    """Self-joins: pairs scored once; rows as queries, by the first pass that is chosen and by all
    columns; and faiss."""

    def system(name: str, run: Callable[[dict], Answer]) -> System:
        made = System(name, knear.__version__, lambda count: run(made.report))
        return made

    def joined(report: dict) -> Answer:
        return with_self(knear.self_join(base, k, metric, threads=threads, report=report))

    def searched(report: dict, first_pass: str) -> Answer:
        return knear.knn(
            base, base, k + 1, metric, threads=threads, first_pass=first_pass, report=report
        )

    whole = base.dtype == np.uint8 and metric != "cosine"
    out = {}
    if "knear" in wanted:
        out["knear"] = system("knear self_join", joined)
    if "knear-knn" in wanted:
        out["knear-knn"] = system("knear knn", lambda report: searched(report, "auto"))
        plain = "integer" if whole else "int8"
        out["knear-plain"] = system(f"knear knn, {plain}", lambda report: searched(report, plain))
    if "faiss" in wanted:
        out["faiss"] = faiss_flat(base, base, k + 1, metric, threads)
    return out


RANGE_SYSTEMS = {"knear": knear_range, "faiss": faiss_range}
SYSTEMS = {
    "knear": knear_index,
    "knear-knn": knear_knn,
    "faiss": faiss_flat,
    "numpy": numpy_gemm,
}
# By name only, since the one is for l2 alone and to build the other takes minutes.
ALSO = {"panorama": faiss_panorama, "hnswlib": hnswlib_graph}
UNFILTERED = "unfiltered"  # runs beside the others where there is a filter
