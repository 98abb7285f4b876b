"""knear in big-ann-benchmarks: the classes of its tracks.

Knear: T1 of 2021 and out-of-distribution queries of 2023; searches within a radius too.
KnearFilter: neighbours among the vectors that have all tags of a query (2023).
KnearStreaming: vectors come, go and are searched by a runbook (2023).

Vectors of bytes stay bytes and the others float32, as the sets have them: nothing is converted.
"""

import os
import re
from multiprocessing.pool import ThreadPool

import numpy as np
from benchmark.algorithms.base import BaseANN
from benchmark.datasets import DATASETS

import knear

METRICS = {"euclidean": "l2", "ip": "ip", "angular": "cosine"}


def parts_of(dimension: int) -> int:
    """Into how many parts a vector is cut for codes: of two columns, or of one where two do not
    divide it."""
    return dimension // 2 if dimension % 2 == 0 else dimension


class Common(BaseANN):
    """index_params: "factory", as knear.Index takes it, where {parts} stands for parts_of() the
    dimension; "train_rows", of the first vectors, that lists and codes are learned from (default
    1,000,000); "tune": calibrated for so many neighbours when it is built, so that a recall may be
    a query argument.

    Query arguments are a dict of those of knear.Index.search(): probes, refine_factor, recall.
    """

    known = frozenset({"factory", "train_rows", "tune"})

    def __init__(self, metric: str, index_params: dict):
        if metric not in METRICS:
            raise ValueError(f"metric is {metric!r}, but knear has {', '.join(METRICS)}")
        if unknown := sorted(set(index_params) - self.known):
            there = ", ".join(sorted(self.known))
            raise ValueError(f"index_params has {', '.join(unknown)}, but there are {there}")
        self._metric, self._params = METRICS[metric], index_params
        self._given, self._index = {}, None
        self._scored, self._last = 0.0, None  # the last answer is not counted before it is asked

    @property
    def name(self) -> str:
        given = "".join(f", {name}={value}" for name, value in self._given.items())
        return f"knear({self._params['factory']}{given})"

    def set_query_arguments(self, query_args: dict) -> None:
        self._given, self._scored = dict(query_args), 0.0

    def query(self, X, k: int) -> None:
        """All queries in one call; a place for which there is no neighbour is -1."""
        self._last = self._index.search(X, k, **self._given)
        self.res = self._last.ids

    def get_results(self):
        """[nq, k], or (lims, distances, ids) of a search within a radius."""
        self._count()
        return self.res

    def get_additional(self) -> dict:
        """Rows and centroids whose distance, or a bound of it, was computed."""
        self._count()
        return {"dist_comps": self._scored}

    def done(self) -> None:
        self._index = None

    def _count(self) -> None:
        if self._last is not None:
            plan = self._last.plan
            rows = plan.get("probed_rows", plan["rows"]) + plan.get("lists", 0)
            self._scored += rows * plan["queries"]
            self._last = None

    def _new(self, dimension: int):
        factory = self._params["factory"].replace("{parts}", str(parts_of(dimension)))
        return knear.Index(factory, dim=dimension, metric=self._metric)


class Knear(Common):
    """Searches among the neighbours of a whole set, or within a radius."""

    def track(self) -> str:
        return "T1"

    def index_name(self, dataset: str) -> str:
        factory = re.sub(r"\W+", "_", self._params["factory"]).strip("_")
        tuned = f".tuned{self._params['tune']}" if "tune" in self._params else ""
        return os.path.join("data", "indices", "knear", f"{dataset}.{factory}{tuned}.knear")

    def index_files_to_store(self, dataset: str) -> tuple[str, str, list[str]]:
        folder, file = os.path.split(self.index_name(dataset))
        return folder, file, [""]

    def fit(self, dataset: str) -> None:
        ds = DATASETS[dataset]()
        index = self._new(ds.d)
        if not index.is_trained:
            rows = min(ds.nb, self._params.get("train_rows", 1_000_000))
            index.train(next(ds.get_dataset_iterator(bs=rows)))
        for block in ds.get_dataset_iterator(bs=1_000_000):
            index.add(block)
        index.optimize()
        if "tune" in self._params:
            index.tune(self._params["tune"])
        path = self.index_name(dataset)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        index.save(path)
        self._use(index, ds)

    def load_index(self, dataset: str) -> bool:
        path = self.index_name(dataset)
        if not os.path.exists(path):
            return False
        self._use(knear.Index.load(path), DATASETS[dataset]())
        return True

    def _use(self, index, ds) -> None:
        self._index = index

    def range_query(self, X, radius: float) -> None:
        """`radius` is the square of a distance where the metric is Euclidean, as in the sets."""
        self._last = self._index.range_search(X, radius, **self._given)
        self.res = tuple(self._last)

    get_range_results = Common.get_results


class KnearFilter(Knear):
    """A query has one tag or more, and its neighbours all of them.

    index_params has "few" too: where no more vectors than that have the tags, all of these are
    measured (default 10,000), and otherwise the lists are searched with these as a filter.
    """

    known = Knear.known | {"few"}

    def _use(self, index, ds) -> None:
        super()._use(index, ds)
        if ds.search_type() != "knn_filtered":
            return
        self._base = ds.get_dataset()
        tags = ds.get_dataset_metadata().tocsc()
        tags.sort_indices()
        self._with_tag = np.split(tags.indices, tags.indptr[1:-1])

    def filtered_query(self, X, filter, k: int) -> None:
        self.res = np.full((len(X), k), -1, np.int64)
        groups = {}  # queries by their tags
        for q in range(len(X)):
            tags = filter.indices[filter.indptr[q] : filter.indptr[q + 1]]
            groups.setdefault(tuple(sorted(tags.tolist())), []).append(q)

        def answer(tags: tuple[int, ...], queries: list[int]) -> float:
            allowed = self._allowed(tags)
            if allowed is not None and len(allowed) == 0:
                return 0.0
            if allowed is not None and len(allowed) <= self._params.get("few", 10_000):
                found = knear.knn(X[queries], self._base[allowed], k, self._metric, threads=1)
                near = found.ids
                self.res[queries] = np.where(near >= 0, allowed[near], -1)
                return float(len(allowed) * len(queries))
            more = {"widen": True} if "probes" in self._given else {}
            found = self._index.search(
                X[queries], k, threads=1, filter=allowed, **more, **self._given
            )
            self.res[queries] = found.ids
            plan = found.plan
            rows = plan.get("probed_rows", plan["rows"]) + plan.get("lists", 0)
            return float(rows * plan["queries"])

        with ThreadPool(len(os.sched_getaffinity(0))) as pool:
            self._scored += sum(pool.starmap(answer, groups.items(), chunksize=1))

    def _allowed(self, tags: tuple[int, ...]):
        """The vectors that have all the tags, ascending; None where there is no tag: all."""
        lists = sorted((self._with_tag[tag] for tag in tags), key=len)
        if not lists:
            return None
        allowed = lists[0]
        for other in lists[1:]:
            place = np.searchsorted(other, allowed)
            place[place == len(other)] = 0
            allowed = allowed[other[place] == allowed] if len(other) else other
        return allowed


class KnearStreaming(Common):
    """The index is learned from the first vectors that come."""

    def track(self) -> str:
        return "stream"

    def setup(self, dtype: str, max_pts: int, ndims: int) -> None:
        self._index = self._new(ndims)
        self._dtype = np.dtype(dtype)

    def fit(self, dataset: str) -> None:
        raise NotImplementedError("a streaming index is set up, and not fitted to a whole set")

    def load_index(self, dataset: str) -> bool:
        return False

    def insert(self, X, ids) -> None:
        X = np.asarray(X, self._dtype)
        if not self._index.is_trained:
            self._index.train(X[: self._params.get("train_rows", 1_000_000)])
        self._index.add(X, np.asarray(ids, np.int64))

    def delete(self, ids) -> None:
        self._index.remove(np.asarray(ids, np.int64))
