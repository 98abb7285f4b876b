"""knear in ann-benchmarks: exact search, inverted lists, recall as an argument, refined codes.

Stands in a checkout of ann-benchmarks as ann_benchmarks/algorithms/knear/module.py. Vectors get the
form that knear takes, rows of float32, before any clock of a query runs: those of the index in
fit(), the queries in prepare_query() and prepare_batch_query(). A query alone is searched for by
one thread, a batch by all that the process may use.
"""

import numpy

import knear

from ..base.module import BaseANN

METRICS = {"euclidean": "l2", "angular": "cosine"}


def rows_of(X) -> numpy.ndarray:
    """`X` as contiguous rows of float32; `X` itself where it is that."""
    return numpy.ascontiguousarray(X, numpy.float32)


def parts_of(dimension: int) -> int:
    """Into how many parts a vector is cut for codes: of two columns, or of one where two do not
    divide it."""
    return dimension // 2 if dimension % 2 == 0 else dimension


class Knear(BaseANN):
    """Any index that is searched without arguments: knear(metric, "Flat").

    factory: the kind of index, as knear.Index takes it; {parts} in it stands for parts_of() the
    dimension of the vectors.
    """

    arguments: tuple[str, ...] = ()  # of search(), in the order of set_query_arguments()

    def __init__(self, metric: str, factory: str):
        if metric not in METRICS:
            raise ValueError(f"metric is {metric!r}, but knear has {', '.join(METRICS)}")
        self._metric, self._factory = METRICS[metric], factory
        self._index = self._found = None
        self._scored = 0.0
        self._given = {}

    @property
    def name(self) -> str:
        given = "".join(f", {name}={value}" for name, value in self._given.items())
        return f"knear({self._factory}{given})"

    def fit(self, X) -> None:
        vectors = rows_of(X)
        self._factory = self._factory.replace("{parts}", str(parts_of(vectors.shape[1])))
        index = knear.Index(self._factory, dim=vectors.shape[1], metric=self._metric)
        if not index.is_trained:
            index.train(vectors)
        index.add(vectors)
        index.optimize()  # what searches would otherwise come to make, in their own time
        self._index = index

    def set_query_arguments(self, *values) -> None:
        self._given = dict(zip(self.arguments, values, strict=True))
        self._scored = 0.0

    def query(self, q, n: int) -> numpy.ndarray:
        self.prepare_query(q, n)
        self.run_prepared_query()
        return self.get_prepared_query_results()

    def prepare_query(self, q, n: int) -> None:
        self._queries, self._n = rows_of(q).reshape(1, -1), n

    def run_prepared_query(self) -> None:
        self._found = self._index.search(self._queries, self._n, threads=1, **self._given)

    def get_prepared_query_results(self) -> numpy.ndarray:
        return self._ids()[0]

    def batch_query(self, X, n: int) -> None:
        self.prepare_batch_query(X, n)
        self.run_batch_query()

    def prepare_batch_query(self, X, n: int) -> None:
        self._queries, self._n = rows_of(X), n

    def run_batch_query(self) -> None:
        self._found = self._index.search(self._queries, self._n, **self._given)

    def get_batch_results(self) -> list[numpy.ndarray]:
        return self._ids()

    def _ids(self) -> list[numpy.ndarray]:
        """Those found by each query of the last search: fewer where there is nothing more."""
        plan, ids = self._found.plan, self._found.ids
        rows = plan.get("probed_rows", plan["rows"]) + plan.get("lists", 0)  # of one query, mean
        self._scored += rows * plan["queries"]
        return [row if row[-1] >= 0 else row[row >= 0] for row in ids]

    def get_additional(self) -> dict:
        """Rows and centroids whose distance, or a bound of it, was computed since the arguments
        were set; a list counts with what fills its last block."""
        return {"dist_comps": self._scored}

    def done(self) -> None:
        self._index = self._found = None


class KnearLists(Knear):
    """Inverted lists, of which a query searches the nearest few."""

    arguments = ("probes",)


class KnearRefined(Knear):
    """Codes in inverted lists; of the nearest codes the vectors are measured, `refine_factor` for
    each neighbour."""

    arguments = ("probes", "refine_factor")


class KnearRecall(Knear):
    """The recall is the argument: each query searches as many lists as it takes, by a rule that is
    calibrated on rows of the index, for `count` neighbours, when it is built."""

    arguments = ("recall",)

    def __init__(self, metric: str, count: int, factory: str):
        super().__init__(metric, factory)
        self._count = count

    def fit(self, X) -> None:
        super().fit(X)
        self._index.tune(self._count)
