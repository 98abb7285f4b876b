"""Other libraries behind ann-benchmarks' interface, for bench/ann to hold knear against.

Each gets its vectors as rows of float32, for angular of unit length, before any clock of a query
runs; one query is searched for by one thread, a batch by all.
"""

import json
import os
from typing import Any

import numpy as np

from .ann_protocol import BaseANN


def threads() -> int:
    return len(os.sched_getaffinity(0))


class Peer(BaseANN):
    """What they share. A class says in _fit() how its index is built, and in _search(), which is
    what is timed, how it is searched; _ids() makes lists of what that gave."""

    package = ""  # as it is imported; the same name installs it unless `installs` says another
    installs = ""
    arguments: tuple[str, ...] = ()

    def __init__(self, metric: str, *built: int):
        self._angular, self._built = metric == "angular", built
        self._given: dict[str, Any] = {}

    @property
    def name(self) -> str:
        given = "".join(f", {name}={value}" for name, value in self._given.items())
        return f"{type(self).__name__}({', '.join(map(str, self._built))}{given})"

    def _form(self, X) -> np.ndarray:
        out = np.ascontiguousarray(X, np.float32)
        if self._angular:
            lengths = np.sqrt((out**2).sum(axis=1, keepdims=True))
            out = out / np.where(lengths > 0, lengths, 1)
        return out

    def fit(self, X) -> None:
        self._fit(self._form(X), *self._built)

    def set_query_arguments(self, *values) -> None:
        self._given = dict(zip(self.arguments, values, strict=True))
        self._set(**self._given)

    def _set(self, **given) -> None:
        pass

    def prepare_query(self, q, n: int) -> None:
        self._queries, self._n = self._form(np.reshape(q, (1, -1))), n
        self._threads(1)

    def run_prepared_query(self) -> None:
        self._found = self._search(self._queries, self._n, 1)

    def get_prepared_query_results(self):
        return self._ids(self._found)[0]

    def prepare_batch_query(self, X, n: int) -> None:
        self._queries, self._n = self._form(X), n
        self._threads(threads())

    def run_batch_query(self) -> None:
        self._found = self._search(self._queries, self._n, threads())

    def get_batch_results(self):
        return self._ids(self._found)

    def _threads(self, count: int) -> None:
        """Where a library is told so beforehand."""

    def _ids(self, found) -> list:
        return [row[row >= 0] for row in found]


class Faiss(Peer):
    package, installs = "faiss", "faiss-cpu"

    def _index(self, dimension: int, factory: str):
        import faiss

        metric = faiss.METRIC_INNER_PRODUCT if self._angular else faiss.METRIC_L2
        return faiss.index_factory(dimension, factory, metric)

    def _threads(self, count: int) -> None:
        import faiss

        faiss.omp_set_num_threads(count)

    def _search(self, queries, n: int, threads: int):
        return self.index.search(queries, n)[1]


class FaissLists(Faiss):
    """IVF{lists},Flat."""

    arguments = ("probes",)

    def _fit(self, X, lists: int) -> None:
        self.index = self._index(X.shape[1], f"IVF{lists},Flat")
        self.index.train(X)
        self.index.add(X)

    def _set(self, probes: int) -> None:
        self.index.nprobe = probes


class FaissGraph(Faiss):
    """HNSW{links},Flat."""

    arguments = ("ef",)

    def _fit(self, X, links: int, construction: int) -> None:
        self.index = self._index(X.shape[1], f"HNSW{links},Flat")
        self.index.hnsw.efConstruction = construction
        self.index.add(X)

    def _set(self, ef: int) -> None:
        self.index.hnsw.efSearch = ef


class Hnswlib(Peer):
    package = installs = "hnswlib"
    arguments = ("ef",)

    def _fit(self, X, links: int, construction: int) -> None:
        import hnswlib

        self.index = hnswlib.Index("ip" if self._angular else "l2", X.shape[1])
        self.index.init_index(len(X), links, construction, random_seed=1)
        self.index.add_items(X, num_threads=threads())

    def _set(self, ef: int) -> None:
        self.index.set_ef(ef)

    def _search(self, queries, n: int, threads: int):
        return self.index.knn_query(queries, n, num_threads=threads)[0]


class USearch(Peer):
    package = installs = "usearch"
    arguments = ("ef",)

    def _fit(self, X, links: int, construction: int) -> None:
        from usearch.index import Index

        self.index = Index(
            ndim=X.shape[1],
            metric="ip" if self._angular else "l2sq",
            dtype="f32",
            connectivity=links,
            expansion_add=construction,
        )
        self.index.add(np.arange(len(X)), X, threads=threads())

    def _set(self, ef: int) -> None:
        self.index.expansion_search = ef

    def _search(self, queries, n: int, threads: int):
        if len(queries) == 1:
            queries = queries[0]
        return self.index.search(queries, n, threads=threads)

    def _ids(self, found) -> list:
        keys = found.keys.astype(np.int64)
        if keys.ndim == 1:
            return [keys]
        return [row[:count] for row, count in zip(keys, found.counts, strict=True)]


class Scann(Peer):
    """A tree of `leaves`, codes of two columns with anisotropic loss, and vectors to reorder by."""

    package = installs = "scann"
    arguments = ("leaves", "reorder")

    def _fit(self, X, leaves: int) -> None:
        import scann

        metric = "dot_product" if self._angular else "squared_l2"
        self.index = (
            scann.scann_ops_pybind.builder(X, 10, metric)
            .tree(leaves, 1, training_sample_size=len(X), spherical=self._angular)
            .score_ah(2, anisotropic_quantization_threshold=0.2)
            .reorder(100)
            .build()
        )

    def _search(self, queries, n: int, threads: int):
        leaves, reorder = self._given["leaves"], max(n, self._given["reorder"])
        if len(queries) == 1:
            return self.index.search(queries[0], n, reorder, leaves)
        return self.index.search_batched_parallel(queries, n, reorder, leaves)

    def _ids(self, found) -> list:
        ids, distances = (np.atleast_2d(part) for part in found)
        given = np.isfinite(distances)  # a leaf that holds too few pads with NaN
        return [row[some].astype(np.int64) for row, some in zip(ids, given, strict=True)]


class SymphonyQG(Peer):
    """A graph with codes of 1 bit beside its links."""

    package = installs = "rabitqlib"
    arguments = ("ef",)

    def _fit(self, X, links: int, construction: int) -> None:
        import rabitqlib

        self.index = rabitqlib.SymqgIndex(X.shape[1], links, "ip" if self._angular else "l2")
        self.index.build(X, construction, num_threads=threads())

    def _search(self, queries, n: int, threads: int):
        found = self.index.search(queries, n, self._given["ef"], threads)
        return next(part for part in found if part.dtype.kind in "iu")


class ScalableVS(Peer):
    """Vamana over float32."""

    package, installs = "svs", "scalable-vs"
    arguments = ("ef",)

    def _fit(self, X, links: int, construction: int) -> None:
        import svs

        metric = svs.DistanceType.MIP if self._angular else svs.DistanceType.L2
        parameters = svs.VamanaBuildParameters(
            graph_max_degree=links, window_size=construction, alpha=0.95 if self._angular else 1.2
        )
        self.index = svs.Vamana.build(parameters, X, metric, num_threads=threads())

    def _set(self, ef: int) -> None:
        self.index.search_window_size = ef

    def _threads(self, count: int) -> None:
        self.index.num_threads = count

    def _search(self, queries, n: int, threads: int):
        return self.index.search(queries, n)[0]


class Vsag(Peer):
    """HGraph with codes of 8 bits, reordered by float32."""

    package = installs = "pyvsag"
    arguments = ("ef",)

    def _fit(self, X, links: int, construction: int) -> None:
        import pyvsag

        built = {
            "base_quantization_type": "sq8",
            "use_reorder": True,
            "precise_quantization_type": "fp32",
            "max_degree": links,
            "ef_construction": construction,
        }
        metric = "ip" if self._angular else "l2"
        about = {"dtype": "float32", "metric_type": metric, "dim": X.shape[1], "index_param": built}
        self.index = pyvsag.Index("hgraph", json.dumps(about))
        self.index.build(X.ravel(), np.arange(len(X)), len(X), X.shape[1])

    def _set(self, ef: int) -> None:
        self._parameters = json.dumps({"hgraph": {"ef_search": ef}})

    def _search(self, queries, n: int, threads: int):
        return np.array([self.index.knn_search(q, n, self._parameters)[0] for q in queries])
