"""k-NN graphs of a whole base, and the smoothest path through one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _core
from ._progress import Progress, reporting
from .errors import InvalidArgument, ShapeMismatch

if TYPE_CHECKING:
    import scipy.sparse

Path = str | bytes | os.PathLike[Any]


class _Edges(NamedTuple):
    distances: NDArray[np.float32]
    ids: NDArray[np.int64]


class KnnGraph(_Edges):
    """(distances, ids), both [n x k]: the neighbours of each row of a base, as knn_graph() finds
    them and read_graph() reads them. The arrays cannot be written to.

    >>> import knear, numpy as np
    >>> graph = knear.knn_graph(np.array([[0.0], [1.0], [3.0], [3.0]]), k=1)
    >>> distances, ids = graph
    >>> ids.ravel().tolist(), graph.metric, graph.promised_recall
    ([1, 0, 3, 2], 'l2', 1.0)
    """

    _core: Any = None
    _report: dict[str, Any] | None = None

    @classmethod
    def _made(cls, core: Any, report: dict[str, Any] | None) -> KnnGraph:
        self = cls(core.distances, core.ids)
        self._core, self._report = core, report
        return self

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # The arrays and what is known of them: a graph that was read keeps no file then.
        if self._core is None:
            return KnnGraph, (self.distances, self.ids)
        core = self._core
        known = (core.metric, core.promised_recall, core.recall_argument, core.distinct, core.base)
        return _restored, (self.distances, self.ids, known, self._report)

    def _of_knear(self, name: str) -> Any:
        if self._core is None:
            raise InvalidArgument(f"{name} is that of a graph of knn_graph() or of a file")
        return self._core

    @property
    def metric(self) -> str:
        """ "l2", "ip", "cosine", "l1" or "hamming"."""
        return self._of_knear("metric").metric

    @property
    def promised_recall(self) -> float:
        """The mean share of the true neighbours that is promised to be among these: 1 for an exact
        graph."""
        return self._of_knear("promised_recall").promised_recall

    @property
    def plan(self) -> dict[str, Any]:
        """What was done: "method" ("self-join", "search", "lists" or "nn-descent"), "seconds",
        "rows", "predicted_seconds" where that was expected before rows were searched for, of an
        approximate graph "lists" and "probes", of a refined one what refine_graph() says; of a
        graph that was read what the file says.

        >>> import knear, numpy as np
        >>> knear.knn_graph(np.eye(3), k=1).plan["rows"]
        3
        """
        core = self._of_knear("plan")
        if self._report is not None:
            return dict(self._report)
        return {
            "promised_recall": core.promised_recall,
            "recall_argument": core.recall_argument,
            "rows": len(self.ids),
        }

    def save(self, path: Path, *, progress: Progress = None) -> None:
        """Writes the graph to a .knear file, whole or not at all.

        >>> import knear, numpy as np, os, tempfile
        >>> graph = knear.knn_graph(np.eye(3), k=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph.save(os.path.join(folder, "graph.knear"))
        ...     knear.read_graph(os.path.join(folder, "graph.knear")).ids.tolist()
        [[1, 2], [0, 2], [0, 1]]

        progress: as that of knn_graph().

        Raises IoError.
        """
        reporting(progress, self._of_knear("save()").save, _arrays.path(path))

    def check_base(self, base: ArrayLike) -> None:
        """Raises InvalidArgument unless this is the graph of these vectors [n x d].

        >>> import knear, numpy as np
        >>> graph = knear.knn_graph(np.eye(3), k=2)
        >>> graph.check_base(np.eye(3))
        >>> try:
        ...     graph.check_base(2 * np.eye(3))
        ... except knear.InvalidArgument:
        ...     print("another base")
        another base
        """
        self._of_knear("check_base()").check_base(*_arrays.matrix("base", base))

    def to_csr(
        self, closure: str = "union", *, euclidean: bool = False, threads: int = 0
    ) -> scipy.sparse.csr_matrix:
        """A symmetric SciPy matrix [n x n] of the distances.

        >>> import knear, numpy as np
        >>> graph = knear.knn_graph(np.array([[0.0], [1.0], [3.0], [3.0]]), k=1)
        >>> graph.to_csr().nnz, graph.to_csr("mutual")[2, 3]
        (4, np.float32(0.0))

        closure: "union", an edge where one of both rows has the other among its neighbours;
            "mutual", where each has.
        euclidean: roots of the squared distances of "l2", as scikit-learn and UMAP have them.

        Copies of a vector are at a distance of 0, which is kept: such an edge is stored. Raises
        InvalidArgument.

        threads: as that of knn_graph().
        """
        return _csr_of(self, closure, euclidean, threads)

    def statistics(self, hubs: int = 10) -> dict[str, Any]:
        """What the graph is like.

        >>> import knear, numpy as np
        >>> said = knear.knn_graph(np.array([[0.0], [1.0], [3.0], [3.5]]), k=1).statistics(hubs=1)
        >>> said["edges"], said["mutual_edges"], said["components"], said["hubs"]
        (4, 4, 2, [(0, 1)])

        "edges" and how many of them go both ways; "components", which edges connect whichever way
        they point, and the rows of the largest; "in_degrees": how many rows are neighbours of 0, 1,
        2 to 3, 4 to 7, ... others; "hubs": (id, in-degree) of those that are neighbours of most.
        """
        return self._of_knear("statistics()").statistics(_arrays.integer("hubs", hubs))

    def accuracy(
        self,
        base: ArrayLike,
        *,
        sample: int = 10000,
        seed: int = 1,
        threads: int = 0,
        progress: Progress = None,
    ) -> tuple[float, tuple[float, float]]:
        """How much of the true graph of `base` [n x d] this one has: the mean over `sample` rows,
        drawn at random, of the share of their exact neighbours that are here, and the interval
        that holds it with 95 %.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).random((500, 8))
        >>> knear.knn_graph(x, k=5).accuracy(x)[0]
        1.0

        seed: of the drawing. threads, progress: as those of knn_graph(). Raises InvalidArgument
        for another base than that of the graph.
        """
        of = _arrays.matrix("base", base)
        self._of_knear("accuracy()").check_base(*of)
        mean, low, high = reporting(
            progress,
            self._core.accuracy,
            *of,
            _arrays.integer("sample", sample),
            _arrays.integer("seed", seed) % 2**64,
            _arrays.integer("threads", threads),
        )
        return mean, (low, high)


def knn_graph(
    base: ArrayLike,
    k: int = 10,
    metric: str = "l2",
    *,
    recall: float = 1.0,
    distinct: bool = False,
    as_csr: str | None = None,
    euclidean: bool = False,
    threads: int = 0,
    memory: int | str | None = None,
    progress: Progress = None,
) -> Any:
    """The k nearest other rows of each row of `base` [n x d]: (distances, ids), both [n x k].

    >>> import knear, numpy as np
    >>> distances, ids = knear.knn_graph(np.array([[0.0], [1.0], [3.0]]), k=1)
    >>> ids.tolist()
    [[1], [0], [1]]

    Nearest first, ties by ascending id, padded with -1 where there are fewer rows. Exact unless
    `recall` is below 1. The result is a KnnGraph, which can be saved and knows what was done.

    metric: "l2", squared distances; "ip", inner products, largest first; "cosine", 1 - cos; "l1",
        sums of absolute differences; "hamming", how many bits differ, of rows of uint8 that hold
        eight bits a byte, as numpy.packbits() makes them. The last two are measured for every pair
        on the processor: of the options they have "direct" and "exact".
    recall: the least mean share of the true neighbours that is found, in (0, 1]; below 1 rows are
        put into inverted lists, where there are 100,000 or more.
    distinct: neighbours are distinct vectors: of rows with equal elements only the first is one,
        and none that is equal to the row itself.
    as_csr: "union" or "mutual", for a symmetric SciPy matrix of the distances instead
        (KnnGraph.to_csr); with euclidean=True of their roots.
    threads: how many to use; 0 for all that the process may use.
    memory: what it may take beside base and graph, in bytes or as "512M"; None for no limit.
    progress: a function of the stage and of the share done, which is called now and then and stops
        the work by raising; True draws a bar with tqdm.

    Raises InvalidArgument, MemoryBudgetError.
    """
    if as_csr is None and euclidean:
        raise InvalidArgument("euclidean is for as_csr, but that is None")
    if as_csr is not None:
        _check_csr(as_csr, euclidean, metric)
    b, b_type = _arrays.matrix("base", base)
    core, report = reporting(
        progress,
        _core.knn_graph,
        b,
        b_type,
        _arrays.integer("k", k),
        _arrays.text("metric", metric),
        _arrays.number("recall", recall),
        bool(distinct),
        _arrays.integer("threads", threads),
        _arrays.size("memory", memory),
    )
    graph = KnnGraph._made(core, report)
    return graph if as_csr is None else _csr_of(graph, as_csr, euclidean, threads)


def build_graph(
    base: ArrayLike,
    k: int,
    path: Path,
    metric: str = "l2",
    *,
    recall: float = 1.0,
    distinct: bool = False,
    resume: bool = False,
    threads: int = 0,
    memory: int | str | None = None,
    progress: Progress = None,
) -> KnnGraph:
    """The graph of knn_graph(), in a .knear file: made block by block, and gone on with after a
    kill.

    >>> import knear, numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     knear.build_graph(np.eye(3), 2, os.path.join(folder, "graph.knear")).ids.tolist()
    [[1, 2], [0, 2], [0, 1]]

    Blocks that are finished lie in PATH.partial, each safe on disk before it counts; at the end
    `path` appears whole. `base` may be a memory-mapped array that is larger than memory.

    resume: go on with the blocks of a call that was stopped or killed. Without it a PATH.partial
        that is there is an error; with it one of another base or of other arguments.

    Returns the graph, mapped. Raises InvalidArgument, IoError, CorruptFile, MemoryBudgetError.

    k, metric, recall, distinct, threads, progress: as those of knn_graph().
    """
    b, b_type = _arrays.matrix("base", base)
    to = _arrays.path(path)
    report = reporting(
        progress,
        _core.build_graph_file,
        b,
        b_type,
        _arrays.integer("k", k),
        to,
        _arrays.text("metric", metric),
        _arrays.number("recall", recall),
        bool(distinct),
        _arrays.integer("threads", threads),
        _arrays.size("memory", memory),
        bool(resume),
    )
    return KnnGraph._made(_core.load_graph(to), report)


def read_graph(path: Path, *, progress: Progress = None) -> KnnGraph:
    """The graph of a .knear file, which is mapped and compared with its checksums.

    >>> import knear, numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     name = os.path.join(folder, "graph.knear")
    ...     knear.knn_graph(np.eye(3), k=2).save(name)
    ...     knear.read_graph(name).metric
    'l2'

    progress: as that of knn_graph().

    Raises IoError; CorruptFile for a file that is no graph, was cut off or altered.
    """
    return KnnGraph._made(reporting(progress, _load, _arrays.path(path)), None)


def refine_graph(
    graph: Any,
    base: ArrayLike,
    metric: str | None = None,
    *,
    recall: float | None = None,
    seed: int = 1,
    threads: int = 0,
    memory: int | str | None = None,
    progress: Progress = None,
) -> KnnGraph:
    """A graph of `base` [n x d] made better: neighbours of neighbours are likely to be neighbours
    (NN-descent; Dong, Moses, Li 2011).

    >>> import knear, numpy as np
    >>> x = np.random.default_rng(1).random((2000, 4))
    >>> near = knear.knn_graph(x, k=8).ids.copy()
    >>> near[:, ::2] = -1                              # half of it is lost
    >>> better = knear.refine_graph(near, x, recall=0.95)
    >>> better.plan["reached"], better.plan["found_before"] < 0.6, better.accuracy(x)[0] > 0.95
    (True, True, True)

    graph: of knn_graph() or read_graph(), the ids [n x k] that another library found, or a pair
        (distances, ids) [n x k]; -1 where there is no neighbour.
    metric: that of the graph; None for its own, "l2" where it has none.
    recall: rounds end once a sample of 2,000 rows promises this mean share of the true neighbours;
        None: once hardly anything changes. It is not reached for certain: plan["reached"] says so.
    seed: of what is drawn. The same graph for the same seed and any number of threads.

    Distances are measured anew, in float64, and are those of knn_graph() for the same rows. plan
    has "rounds", "measured" pairs and "changed" neighbours; with a recall also "reached",
    "found_before", "found" and "promised" of the sample. Raises InvalidArgument, ShapeMismatch,
    MemoryBudgetError.

    threads, memory, progress: as those of knn_graph().
    """
    b, b_type = _arrays.matrix("base", base)
    own = graph._core if isinstance(graph, KnnGraph) else None
    if own is not None and metric is not None and metric != own.metric:
        raise InvalidArgument(f"metric is {metric!r}, but the graph is one of {own.metric!r}")
    arguments = (
        None if recall is None else _arrays.number("recall", recall),
        _arrays.integer("seed", seed) % 2**64,
        _arrays.integer("threads", threads),
        _arrays.size("memory", memory),
    )
    if own is not None:
        return KnnGraph._made(*reporting(progress, own.refine, b, b_type, *arguments))
    if isinstance(graph, (tuple, list)) and len(graph) == 2:
        graph = graph[1]
    ids = np.asarray(graph)
    if ids.dtype.kind not in "iu" or ids.ndim != 2:
        raise InvalidArgument(
            f"graph's ids must be whole numbers [n x k], but are {ids.dtype} with {ids.ndim} "
            "dimensions"
        )
    return KnnGraph._made(
        *reporting(
            progress,
            _core.refined_graph,
            np.ascontiguousarray(ids, dtype=np.int64),
            b,
            b_type,
            _arrays.text("metric", metric or "l2"),
            *arguments,
        )
    )


def _restored(
    distances: NDArray[np.float32],
    ids: NDArray[np.int64],
    known: tuple[Any, ...],
    report: dict[str, Any] | None,
) -> KnnGraph:
    core = _core.restored_graph(np.ascontiguousarray(ids), np.ascontiguousarray(distances), *known)
    return KnnGraph._made(core, report)


def _load(path: bytes, progress: Any) -> Any:
    return _core.load_graph(path, progress)


def _check_csr(closure: Any, euclidean: bool, metric: Any) -> None:
    if closure not in ("union", "mutual"):
        raise InvalidArgument(f"as_csr must be 'union' or 'mutual', but is {closure!r}")
    if euclidean and metric != "l2":
        raise InvalidArgument(f"euclidean is for the metric 'l2', but metric is {metric!r}")


def _csr_of(graph: KnnGraph, closure: str, euclidean: bool, threads: int) -> Any:
    _check_csr(closure, euclidean, graph.metric)
    try:
        from scipy.sparse import csr_matrix
    except ImportError:
        raise InvalidArgument(
            "a sparse matrix needs the package scipy, which is not installed"
        ) from None
    begin, ids, distances = _core.symmetric(
        graph.ids, graph.distances, graph.metric, closure, _arrays.integer("threads", threads)
    )
    if euclidean:
        np.sqrt(distances, out=distances)
    return csr_matrix((distances, ids, begin), shape=(len(graph.ids),) * 2)


class _Walk(NamedTuple):
    path: NDArray[np.int64]
    largest_step: float


class SmoothPath(_Walk):
    """(path, largest_step): the ids from one end to the other, none where no path connects both,
    and the distance of the longest step, infinity there; also `sum_of_steps`.

    >>> import knear, numpy as np
    >>> graph = knear.knn_graph(np.array([[0.0], [1.0], [3.0]]), k=1)
    >>> knear.smoothest_path(graph, 0, 2).sum_of_steps
    5.0
    """

    sum_of_steps: float = 0.0


class PathFinder:
    """Finds smoothest paths in one graph, many of them.

    >>> import knear, numpy as np
    >>> finder = knear.PathFinder(knear.knn_graph(np.array([[0.0], [1.0], [3.0], [4.0]]), k=2))
    >>> path, largest = finder.path(0, 3)
    >>> path.tolist(), largest, finder.largest_step(0, 1), finder.components
    ([0, 1, 2, 3], 4.0, 1.0, 1)

    graph: of knn_graph(), a pair (distances, ids) [n x k] of neighbours, or a SciPy matrix of
        distances; its edges are walked in both directions. Distances are compared as float32, to
        which those of another type are rounded.
    metric: that of the distances; None for that of the graph, "l2" where it has none, as a SciPy
        matrix and a pair: name it there if it is another.
    base: the vectors [n x d] of the graph. With them components are connected by the exact nearest
        pairs of their rows, so that there is a path between any two rows; if the graph has roots of
        squared distances (euclidean=True), so has what is added.
    threads: for making it; 0 for all that the process may use. Paths may be asked for by any number
        of threads.

    progress: as that of knn_graph().

    Raises InvalidArgument for a graph that is none: another shape, an id that is no row, a NaN, a
    negative distance of "l2", one of "cosine" that is not between 0 and 2 (2^-10 are allowed for
    rounding); and for one that is not of `base`.
    """

    def __init__(
        self,
        graph: Any,
        metric: str | None = None,
        *,
        base: ArrayLike | None = None,
        threads: int = 0,
        progress: Progress = None,
    ) -> None:
        threads = _arrays.integer("threads", threads)
        own = graph.metric if isinstance(graph, KnnGraph) and graph._core else None
        metric = _arrays.text("metric", metric or own or "l2")
        if own and metric != own:
            raise InvalidArgument(f"metric is {metric!r}, but the graph is one of {own!r}")
        edges = _edges_of(graph, metric, threads)
        if base is not None:
            b, b_type = _arrays.matrix("base", base)
            if isinstance(graph, KnnGraph) and graph._core:
                graph._core.check_base(b, b_type)
            elif len(b) != len(edges[0]) - 1:
                raise ShapeMismatch(
                    f"base has {len(b)} rows, but the graph has {len(edges[0]) - 1}"
                )
            edges = reporting(progress, _core.bridged, b, b_type, *edges, metric, threads)
        self._core = _core.PathFinder(*edges, metric, threads)

    @property
    def components(self) -> int:
        """The number of parts of the graph that no edge connects."""
        return self._core.component_count

    def largest_step(self, start: int, end: int) -> float:
        """The largest step of the smoothest path from row `start` to row `end`; infinity where
        there is none.

        >>> import knear, numpy as np
        >>> graph = knear.knn_graph(np.array([[0.0], [1.0], [3.0]]), k=1)
        >>> knear.PathFinder(graph).largest_step(0, 2)
        4.0
        """
        return self._core.largest_step(self._row("start", start), self._row("end", end))

    def _row(self, name: str, row: int) -> int:
        row = _arrays.integer(name, row)
        if not 0 <= row < self._core.rows:
            raise InvalidArgument(f"{name} is row {row}, but the graph has {self._core.rows} rows")
        return row

    def path(self, start: int, end: int) -> SmoothPath:
        """(path, largest_step) of the smoothest path from row `start` to row `end`, as
        smoothest_path() says.

        >>> import knear, numpy as np
        >>> graph = knear.knn_graph(np.array([[0.0], [1.0], [3.0]]), k=1)
        >>> knear.PathFinder(graph).path(2, 0).path.tolist()
        [2, 1, 0]
        """
        ids, largest, total = self._core.path(self._row("start", start), self._row("end", end))
        found = SmoothPath(ids, largest)
        found.sum_of_steps = total
        return found


def smoothest_path(
    graph: Any,
    start: int,
    end: int,
    *,
    metric: str | None = None,
    base: ArrayLike | None = None,
    threads: int = 0,
) -> SmoothPath:
    """The path from row `start` to row `end` whose largest step is as small as can be:
    (path, largest_step), of several the one with the least sum of steps, then with the smaller
    id where they part first.

    >>> import knear, numpy as np
    >>> graph = knear.knn_graph(np.array([[0.0], [1.0], [3.0], [4.5]]), k=2)
    >>> path, largest = knear.smoothest_path(graph, 0, 3)
    >>> path.tolist(), largest
    ([0, 1, 2, 3], 4.0)

    Johnson et al., section 6.6. Where no path connects both, the path is empty and the step
    infinity; with `base` other components are crossed to by the nearest pairs of rows. Arguments
    are those of PathFinder, which is the faster way to many paths. For "ip" the largest step is the
    smallest product, and the fewest steps decide instead of their sum.

    metric, threads: as those of PathFinder: a SciPy matrix and a pair do not know their metric.

    Raises InvalidArgument for a row that is not there.
    """
    return PathFinder(graph, metric, base=base, threads=threads).path(start, end)


def _edges_of(graph: Any, metric: str, threads: int) -> tuple[Any, Any, Any]:
    """(begin, ids, distances) of compressed sparse rows, both directions of each edge."""
    if all(hasattr(graph, name) for name in ("indptr", "indices", "data", "shape")):
        if getattr(graph, "format", "csr") != "csr":
            graph = graph.tocsr()
        rows, columns = graph.shape
        if rows != columns:
            raise ShapeMismatch(f"graph is {rows} x {columns}, but should be square")
        data = graph.data.astype(np.float32) if graph.data.dtype == bool else graph.data
        return (
            np.ascontiguousarray(graph.indptr, dtype=np.int64),
            np.ascontiguousarray(graph.indices, dtype=np.int64),
            _arrays.floats("graph's distances", data, 1),
        )
    if hasattr(graph, "tocsr"):
        return _edges_of(graph.tocsr(), metric, threads)
    if not isinstance(graph, (tuple, list)) or len(graph) != 2:
        raise InvalidArgument(
            "graph must be of knn_graph(), a pair (distances, ids), or a sparse matrix of SciPy, "
            f"but is {type(graph).__name__}"
        )
    distances, ids = (np.asarray(part) for part in graph)
    if ids.dtype.kind not in "iu" or ids.ndim != 2:
        raise InvalidArgument(
            f"graph's ids must be whole numbers [n x k], but are {ids.dtype} with {ids.ndim} "
            "dimensions; the pair is (distances, ids)"
        )
    return _core.symmetric(
        np.ascontiguousarray(ids, dtype=np.int64),
        _arrays.floats("graph's distances", distances, 2),
        metric,
        "union",
        threads,
    )
