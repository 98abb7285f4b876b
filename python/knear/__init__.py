"""knear: the k nearest neighbours of dense vectors, exactly.

    distances, ids = knear.knn(queries, base, k=10)              # one shot

    index = knear.Index("Flat", dim=128, metric="l2")            # prepared once, searched often
    index.add(base)
    distances, ids = index.search(queries, k=10)

Arrays are NumPy matrices [n x dim] of float64, float32, float16, uint8, int8 or
ml_dtypes.bfloat16, and anything that numpy.asarray makes one of. They are read in place, without a
copy, if each row is contiguous (the rows may lie apart); other layouts are copied once. int64 and
other numbers are taken if float32 holds every value exactly, else refused. float64 is measured as
it is, within the range of float32; float32 needs half the memory.

Arrays may also be in the memory of an NVIDIA GPU, where knear was built with CUDA: those with
`__dlpack_device__` (torch, CuPy, JAX) or `__cuda_array_interface__` (Numba). Functions read them
there, without a copy; an Index copies them to the processor. Answers are new arrays on the same
GPU, of the library of the first argument, or knear.DeviceArray where that is none of these three
(ids of JAX have 32 bits unless jax_enable_x64 is set). The work is ordered after that which made
the arrays, as their protocol says: DLPack names the producer's current stream, the interface a
stream of its own. Answers are complete when the call returns, for any stream. Lists of ids, filters
and lengths may be on a GPU anywhere; the processor gets a copy.

Metrics: "l2", squared Euclidean distances; "ip", inner products, largest first; "cosine",
1 - cos. Equal distances are ordered by id. Places beyond the number of rows hold the id -1 and
the distance +inf (-inf for "ip").

"Exactly" means: the k smallest by the distance computed in float64 in a fixed order, ties by id,
and that distance rounded to float32; the same bits for any number of threads and any machine.

Every function may be called from several threads; the interpreter lock is released during the
work, and Ctrl-C stops it. After os.fork(), the child may go on calling them.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _choice, _core, _device
from ._choice import IndexChoice, choose_index
from ._device import DeviceArray
from .errors import (
    Cancelled,
    CorruptFile,
    DeviceUnavailable,
    Error,
    InvalidArgument,
    IoError,
    MemoryBudgetError,
    ShapeMismatch,
)

__version__: str = _core.version
__all__ = [
    "Cancelled",
    "CorruptFile",
    "DeviceArray",
    "DeviceUnavailable",
    "Error",
    "Index",
    "IndexChoice",
    "InvalidArgument",
    "IoError",
    "KMeans",
    "MemoryBudgetError",
    "ProductQuantizer",
    "ShapeMismatch",
    "choose_index",
    "knn",
    "range_search",
    "select_k",
    "self_join",
]


def knn(
    queries: ArrayLike,
    base: ArrayLike,
    k: int,
    metric: str = "l2",
    *,
    threads: int = 0,
    memory: int | str | None = None,
    first_pass: str = "auto",
    choices: Mapping[str, Any] | None = None,
    method: str = "auto",
    recall: float = 1.0,
    samples: int | None = None,
    logical_rows: int | None = None,
    aggregate_to_topk: bool = True,
    device: str | None = None,
    filter: ArrayLike | None = None,
    report: dict[str, Any] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The k nearest rows of `base` [n x d] for each row of `queries` [q x d]: (distances, ids).

    Both results are [q x k], nearest first. The element types may differ.

    threads: how many to use; 0 for all that the process may use.
    memory: what the search may take beside its arguments, in bytes or as "512M"; None for no limit.
    first_pass: how rows are scored before the few that matter are measured in float64: "auto",
        "integer", "int8", "int16", "fp32", "direct", "prefix" ("l2" and "cosine"). It changes the
        time, never the answer.
    choices: overrides what else the search chooses by itself; the answer is the same. Any of
        "group" (queries scored side by side: 1, 4 or 12), "parts" (of the base for the same
        queries), "columns" and "clusters" (of a prefix), "tile" (KiB of codes that many queries
        are scored against before the next), "guess" (False: thresholds for many neighbours are not
        estimated), "refine" (whether rows that 8 bits leave are scored again by per-row codes
        before they are measured). `report` says what was chosen.
    method: "exact"; "threshold-heap", exact by thresholds that are the k-th distance to `samples`
        random rows (8 k if None); "partial-reduce", the best few rows of each of many bins, of
        which `report` says the numbers; "auto": exact, or partial-reduce where less recall is
        asked for and it is forecast to be faster.
    recall: the least mean share of the k nearest that is found, in (0, 1]; below 1 for "auto" and
        "partial-reduce". The promise holds for any queries and any order of `base` that was not
        made against knear's own hash of row numbers; `report` has "promised_recall",
        "expected_recall", and in "uncertified" the queries whose answer is not proven to be exact.
    logical_rows: `base` is a random shard of a base of this many rows, and the promise is for the
        answer merged from all shards; None: it holds for any shards ("partial-reduce").
    aggregate_to_topk: False: all rows that were kept, report["kept_per_bin"] of each bin one after
        the other, instead of the k nearest of them ("partial-reduce").
    device: where the rows are scanned: "cpu", or "cuda" and "cuda:N" for a GPU, where knear was
        built with CUDA; every method. The answer is the same. None: where the arrays are.
    filter: the rows that may be found, as ids in any order or as one bool per row; None for all.
        The answer is that of these rows alone, padded with -1 where they are fewer than k.
    report: a dict that is emptied and filled with what was planned and what happened: "first_pass",
        "seconds", "survivors_per_query", "memory_bytes", ...

    Both may be in the memory of one GPU (help(knear) says how), of float64, float32, float16,
    bfloat16, uint8 or int8, C-contiguous. The base is not copied and nothing is converted: another
    type or layout, or one of the two elsewhere, is an error. The results are arrays there.
    `device` is None, "cuda" or that GPU's own name, `method` "auto" or "exact".

    Raises ShapeMismatch if the numbers of columns differ; InvalidArgument for k < 1 and for a NaN
    or infinity, naming the row; MemoryBudgetError; DeviceUnavailable.
    """
    if _device.on_gpu(queries, base):
        q, b = _device.matrix("queries", queries), _device.matrix("base", base)
        number = _device.same_device(q, b)
        shape = (q.rows, _arrays.integer("k", k))
        found = _core.knn_on_device(
            q[:4],
            b[:4],
            number,
            shape[1],
            _arrays.text("metric", metric),
            _arrays.integer("threads", threads),
            _arrays.size("memory", memory),
            _arrays.text("first_pass", first_pass),
            _arrays.choices(choices),
            _arrays.method_options(method, recall, samples, logical_rows, aggregate_to_topk),
            _arrays.text("device", _device.asked(device, number)),
            *_arrays.filter_of(filter, b.rows)[:2],
            _arrays.report(report),
        )
        return _device.answers(queries, found, (shape, np.float32), (shape, np.int64))
    return _core.knn(
        *_arrays.matrix("queries", queries),
        *_arrays.matrix("base", base),
        _arrays.integer("k", k),
        _arrays.text("metric", metric),
        _arrays.integer("threads", threads),
        _arrays.size("memory", memory),
        _arrays.text("first_pass", first_pass),
        _arrays.choices(choices),
        _arrays.method_options(method, recall, samples, logical_rows, aggregate_to_topk),
        _arrays.text("device", _device.of_queries(device, None)),
        *_arrays.filter_of(filter, len(np.asarray(base)))[:2],
        _arrays.report(report),
    )


def self_join(
    base: ArrayLike,
    k: int,
    metric: str = "l2",
    *,
    threads: int = 0,
    memory: int | str | None = None,
    first_pass: str = "auto",
    choices: Mapping[str, Any] | None = None,
    device: str | None = None,
    filter: ArrayLike | None = None,
    report: dict[str, Any] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The k nearest other rows of each row of `base` [n x d]: (distances, ids), both [n x k].

    Row i is what knn() would give for row i, without i itself; copies of a row are rows like any
    other. For "l2" and "cosine" each pair is scored once, for both rows, where that is faster.
    Arguments and errors are those of knn().

    On a GPU it is a search for every row. `base` may be in its memory, as that of knn(): it is not
    moved, and the processor gets a copy as the queries.
    """
    if _device.is_on_gpu("base", base):
        b = _device.matrix("base", base)
        shape = (b.rows, _arrays.integer("k", k))
        found = _core.self_join_on_device(
            b[:4],
            b.number,
            shape[1],
            _arrays.text("metric", metric),
            _arrays.integer("threads", threads),
            _arrays.size("memory", memory),
            _arrays.text("first_pass", first_pass),
            _arrays.choices(choices),
            _arrays.text("device", _device.asked(device, b.number)),
            *_arrays.filter_of(filter, b.rows)[:2],
            _arrays.report(report),
        )
        return _device.answers(base, found, (shape, np.float32), (shape, np.int64))
    return _core.self_join(
        *_arrays.matrix("base", base),
        _arrays.integer("k", k),
        _arrays.text("metric", metric),
        _arrays.integer("threads", threads),
        _arrays.size("memory", memory),
        _arrays.text("first_pass", first_pass),
        _arrays.choices(choices),
        _arrays.text("device", _device.of_queries(device, None)),
        *_arrays.filter_of(filter, len(np.asarray(base)))[:2],
        _arrays.report(report),
    )


def range_search(
    queries: ArrayLike,
    base: ArrayLike,
    radius: float,
    metric: str = "l2",
    *,
    threads: int = 0,
    memory: int | str | None = None,
    first_pass: str = "auto",
    device: str | None = None,
    filter: ArrayLike | None = None,
    report: dict[str, Any] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """All rows of `base` within `radius` of each row of `queries`: (begin, distances, ids).

    These have a distance of at most `radius` for "l2" (squared) and "cosine", or a product of at
    least `radius` for "ip", compared in float64. Those of query i stand at begin[i] : begin[i + 1]
    of the other two, nearest first. Options and errors are those of knear.knn.

    Both may be in the memory of one GPU, as those of knear.knn. The results pass through the
    processor's memory and are arrays on that GPU.
    """
    if _device.on_gpu(queries, base):
        q, b = _device.matrix("queries", queries), _device.matrix("base", base)
        number = _device.same_device(q, b)
        found = _core.range_search_on_device(
            q[:4],
            b[:4],
            number,
            _arrays.number("radius", radius),
            _arrays.text("metric", metric),
            _arrays.integer("threads", threads),
            _arrays.size("memory", memory),
            _arrays.text("first_pass", first_pass),
            _arrays.text("device", _device.asked(device, number)),
            *_arrays.filter_of(filter, b.rows)[:2],
            _arrays.report(report),
        )
        return _device.sent(queries, number, found)
    return _core.range_search(
        *_arrays.matrix("queries", queries),
        *_arrays.matrix("base", base),
        _arrays.number("radius", radius),
        _arrays.text("metric", metric),
        _arrays.integer("threads", threads),
        _arrays.size("memory", memory),
        _arrays.text("first_pass", first_pass),
        _arrays.text("device", _device.of_queries(device, None)),
        *_arrays.filter_of(filter, len(np.asarray(base)))[:2],
        _arrays.report(report),
    )


def select_k(
    x: ArrayLike,
    k: int,
    *,
    largest: bool = False,
    sorted: bool = True,
    lengths: ArrayLike | None = None,
    threads: int = 0,
    method: str = "auto",
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The k smallest, or largest, of each row of `x` [n x m]: (values, indices), both [n x k].

    A one-dimensional `x` is one row, and the results are [k]. Of equal values the one further to
    the left comes first; NaN is never kept; infinities are values like others. Places beyond what
    a row has hold the index -1 and +inf (-inf if the largest are wanted). The same bits for any
    number of threads, any method and any machine.

    sorted: best first; False: by ascending index, which is faster for large k.
    lengths: how many values of each row count, from its beginning; None for all.
    method: "auto", by k and m; or a method, with the same answer: "threshold" (a threshold from a
        sample, partition of what passes it), "partition"; and for comparison "list", "radix",
        "threshold-heap", "bitonic", and "warp-select", which is emulated and very slow.

    `x` of float32 may be in the memory of a GPU, where it is selected from without a copy: each row
    contiguous, whatever the distance between rows. The results are arrays there. Other types are
    refused, as are `threads` and `method` other than 0 and "auto".

    Raises InvalidArgument for k < 1 and for a length beyond the row; ShapeMismatch if there are
    more or fewer lengths than rows.
    """
    if _device.is_on_gpu("x", x):
        rows, one = _device.rows_to_select_from("x", x)
        _device.refuse_words(rows.number, threads=(threads, 0), method=(method, "auto"))
        k = _arrays.integer("k", k)
        found = _core.select_on_device(
            (rows.address, rows.rows, rows.cols, rows.stride),
            rows.number,
            k,
            bool(largest),
            bool(sorted),
            None if lengths is None else _arrays.ids_of("lengths", lengths),
            one,
        )
        shape = (k,) if one else (rows.rows, k)
        return _device.answers(x, found, (shape, np.float32), (shape, np.int64))
    one = np.ndim(x) == 1
    values, indices = _core.select_k(
        *_arrays.matrix("x", np.asarray(x)[np.newaxis] if one else x, floats=True),
        _arrays.integer("k", k),
        bool(largest),
        bool(sorted),
        None if lengths is None else _arrays.ids_of("lengths", lengths),
        _arrays.integer("threads", threads),
        _arrays.text("method", method),
    )
    return (values[0], indices[0]) if one else (values, indices)


class KMeans:
    """Vectors in k clusters around centroids, by Lloyd's iterations.

        km = knear.KMeans(256, iterations=20, seed=1)
        km.train(x)                                      # [n x dim], k <= n
        km.centroids                                     # [256 x dim] float32
        distances, ids = km.assign(x)                    # the nearest centroid of each row

    k: the number of centroids.
    iterations: at most so many; fewer where no row moves any more.
    metric: "l2"; or spherical k-means with centroids of length 1, by "ip" of rows as they are or
        by "cosine".
    seed: the same centroids for the same seed, data and options, with any number of threads on any
        machine.
    seeding: the first centroids: "random" rows, or "k-means++", each far from those before.
    restarts: as often from other seeds; the best is kept.
    tolerance: end once an iteration improves the objective by no more than this share of it.
    rows_per_centroid: with more rows, use a random sample of so many for each centroid; 0: all.
    levels: 2 clusters the rows around about sqrt(k) centroids first, then each cluster by itself:
        for very many centroids; "l2".
    threads: 0 for all that the process may use.

    Every row goes to the centroid that is nearest in float64, ties to the smaller number.
    """

    def __init__(
        self,
        k: int,
        *,
        iterations: int = 25,
        metric: str = "l2",
        seed: int = 1,
        seeding: str = "random",
        restarts: int = 1,
        tolerance: float = 0.0,
        rows_per_centroid: int = 0,
        levels: int = 1,
        threads: int = 0,
    ) -> None:
        self.k = _arrays.integer("k", k)
        self._metric = _arrays.text("metric", metric)
        self._threads = _arrays.integer("threads", threads)
        self._options = (
            _arrays.integer("iterations", iterations),
            _arrays.integer("seed", seed) % 2**64,
            _arrays.text("seeding", seeding),
            _arrays.integer("restarts", restarts),
            _arrays.number("tolerance", tolerance),
            _arrays.integer("rows_per_centroid", rows_per_centroid),
            _arrays.integer("levels", levels),
        )
        self._centroids: NDArray[np.float32] | None = None
        self._steps: list[dict[str, Any]] = []

    def train(
        self,
        x: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        initial: ArrayLike | None = None,
        frozen: bool = False,
    ) -> "KMeans":
        """Finds the centroids of `x` [n x dim] and returns the object itself.

        weights: one for each row, not negative; None: all 1.
        initial: the first centroids [g x dim], g <= k; the others are seeded. With `frozen` these
            stay as they are.

        Raises InvalidArgument for k above the number of rows and for a NaN or infinity, with its
        row; ShapeMismatch. Then the centroids are those of before.
        """
        rows = _arrays.matrix("x", x)
        first = None if initial is None else _arrays.floats("initial", initial, 2)
        heavy = None if weights is None else _arrays.floats("weights", weights, 1)
        centroids, steps = _core.k_means(
            *rows, self.k, self._metric, *self._options, self._threads, first, bool(frozen), heavy
        )
        names = ("restart", "iteration", "objective", "moved", "empty", "seconds")
        self._centroids = centroids
        self._steps = [dict(zip(names, step, strict=True)) for step in steps]
        return self

    @property
    def centroids(self) -> NDArray[np.float32]:
        """The centroids [k x dim]. Raises InvalidArgument before train()."""
        if self._centroids is None:
            raise InvalidArgument("there are no centroids yet: call train() first")
        return self._centroids

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What each iteration did: "objective" of the assignment that it began with (the sum of
        squared distances, of inner products, or of 1 - cosine), how many rows "moved" to another
        centroid, how many centroids were "empty", "seconds". None with two levels."""
        return self._steps

    def assign(self, x: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(distances [n], ids [n]): the nearest centroid of each row of `x` [n x dim], exactly.

        Raises InvalidArgument before train(); ShapeMismatch for another number of columns.
        """
        rows = _arrays.matrix("x", x)
        return _core.nearest_centroids(self.centroids, *rows, self._metric, self._threads)

    def __repr__(self) -> str:
        state = "not trained" if self._centroids is None else f"dim={self._centroids.shape[1]}"
        return f"<knear.KMeans k={self.k}, metric={self._metric!r}, {state}>"


class ProductQuantizer:
    """Vectors as a few bytes: each part of a vector by the number of its nearest centroid.

        pq = knear.ProductQuantizer(32)                  # 32 sub-quantizers of 8 bits
        pq.train(x)                                      # [n x dim], n >= 256
        codes = pq.encode(x)                             # [n x 32] uint8
        rough = pq.decode(codes)                         # [n x dim] float32, near x
        distances = pq.distances(queries, codes)         # [q x n] float32

    sub_quantizers: into so many equal parts vectors are cut; must divide dim.
    bits: 8, or 4: then two parts share a byte, the first one in its lower half.
    iterations: of k-means, at most.
    seed: the same centroids for the same seed, data and options, with any number of threads on any
        machine.
    most_rows: train on a random sample of so many rows; 0: on all.
    threads: 0 for all that the process may use.

    Codes are those of float64 distances, ties to the smaller number.
    """

    def __init__(
        self,
        sub_quantizers: int,
        bits: int = 8,
        *,
        iterations: int = 25,
        seed: int = 1,
        most_rows: int = 65536,
        threads: int = 0,
    ) -> None:
        self.sub_quantizers = _arrays.integer("sub_quantizers", sub_quantizers)
        self.bits = _arrays.integer("bits", bits)
        self._options = (
            _arrays.integer("iterations", iterations),
            _arrays.integer("seed", seed) % 2**64,
            _arrays.integer("most_rows", most_rows),
        )
        self._threads = _arrays.integer("threads", threads)
        self._core: _core.ProductQuantizer | None = None

    def train(self, x: ArrayLike) -> "ProductQuantizer":
        """Finds the centroids by `x` [n x dim] and returns the object itself.

        Raises InvalidArgument for fewer rows than 2^bits, where sub_quantizers does not divide dim,
        and for a NaN or infinity, with its row. Then the centroids are those of before.
        """
        rows = _arrays.matrix("x", x)
        self._core = _core.ProductQuantizer.train(
            *rows, self.sub_quantizers, self.bits, *self._options, self._threads
        )
        return self

    def _trained(self) -> _core.ProductQuantizer:
        if self._core is None:
            raise InvalidArgument("the quantizer has no centroids yet: call train() first")
        return self._core

    @property
    def centroids(self) -> NDArray[np.float32]:
        """The centroids [sub_quantizers x 2^bits x dim / sub_quantizers], a copy."""
        return self._trained().centroids.reshape(self.sub_quantizers, 2**self.bits, -1)

    @property
    def code_size(self) -> int:
        """Bytes of a code."""
        return self._trained().code_size

    def encode(self, x: ArrayLike) -> NDArray[np.uint8]:
        """The codes [n x code_size] of `x` [n x dim]."""
        trained = self._trained()
        return trained.encode(*_arrays.matrix("x", x), self._threads)

    def decode(self, codes: ArrayLike) -> NDArray[np.float32]:
        """The vectors [n x dim] that `codes` [n x code_size] stand for."""
        trained = self._trained()
        return trained.decode(_arrays.codes("codes", codes), self._threads)

    def distances(
        self, queries: ArrayLike, codes: ArrayLike, metric: str = "l2"
    ) -> NDArray[np.float32]:
        """Distances [q x n] of `queries` [q x dim] to what `codes` [n x code_size] stand for.

        metric: "l2" for squared distances, "ip" for inner products. Raises InvalidArgument for
        "cosine": distances of parts do not add up to it; take "ip" of vectors of unit length.
        """
        trained = self._trained()
        return trained.distances(
            *_arrays.matrix("queries", queries),
            _arrays.codes("codes", codes),
            _arrays.text("metric", metric),
            self._threads,
        )

    def __repr__(self) -> str:
        state = "not trained" if self._core is None else f"dim={self._core.dim}"
        return f"<knear.ProductQuantizer {self.sub_quantizers}x{self.bits}, {state}>"


class Index:
    """Vectors that are added, changed, and searched often.

        index = knear.Index("Flat", dim=128, metric="l2")
        index.add(base)                                  # [n x 128], copied
        distances, ids = index.search(queries, k=10)

    factory: the kind of index. "Flat": exact search of vectors that are kept as they came, in the
        element type of the first add. "IVF1024,Flat": the same vectors in 1024 inverted lists, of
        which a search looks at the few nearest to each query. "IVF1024,PQ32": codes of 32 bytes
        instead of vectors; "PQ32x4" has half a byte a part, "SQ8" a byte a column, "SQfp16" rounds
        to halves; ",RFlat" behind codes keeps the vectors too and measures the nearest codes by
        them, ",Refine(SQ8)" finer codes; "PCA64,", "OPQ16_64,", "RR64," and "L2norm," transform
        vectors first. "auto": as knear.choose_index() says for `rows`, `memory`, `recall`, `batch`
        and `dtype`, which are for that alone.
    dim: number of columns of every matrix, from 1 to 65536.
    metric: "l2", "ip" or "cosine".

    Ids count from 0 in the order of adding, or are given with the vectors. An id belongs to its
    vector: removing others does not change it, and no other vector gets it unless you say so.

    Memory: the vectors, about a quarter of float32 vectors more, and 16 bytes a row; whole numbers
    of 8 bits ("l2", "ip") take one byte each whatever their type, 5 % and 16 bytes a row. Searches
    of many queries by "l2" or "cosine" may make a prefix of up to 128 principal coordinates, if
    that is forecast to be faster and they set no memory limit: at most dim + 154 bytes a row more;
    or codes by which rows that 8 bits leave are scored again ("refine"): dim + 16 bytes. Any method
    may be called from any thread at any time: a search sees the index as it was when it began, and
    neither waits for the other.

    The index keeps its vectors in the processor's memory. Vectors and queries in that of a GPU are
    copied to it, once, if their rows or columns are contiguous; what may be in them is the same.
    """

    def __init__(
        self,
        factory: str,
        *,
        dim: int,
        metric: str = "l2",
        rows: int | None = None,
        memory: int | str | None = None,
        recall: float | None = None,
        batch: int | None = None,
        dtype: Any = None,
    ) -> None:
        needs = {"rows": rows, "memory": memory, "recall": recall, "batch": batch, "dtype": dtype}
        self._index = _core.Index(
            _choice.factory_of(_arrays.text("factory", factory), dim, metric, needs),
            _arrays.integer("dim", dim),
            _arrays.text("metric", metric),
        )

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Writes the index to a .knear file, whole or not at all. Raises IoError."""
        self._index.save(os.fspath(path))

    def write_faiss(self, path: "str | os.PathLike[str]") -> None:
        """Writes the index for faiss.read_index, whole or not at all: "Flat" as IndexFlat,
        "SQfp16" as IndexScalarQuantizer, inverted lists as IndexIVFFlat, codes as IndexIVFPQ and so
        on, in an IDMap2 where ids are not 0, 1, ...

        Raises InvalidArgument for the metric cosine, which FAISS has not, for lists of "ip" that
        are found by an index, and for vectors that float32 does not hold exactly; IoError.
        """
        self._index.write_faiss(os.fspath(path))

    @classmethod
    def load(cls, path: "str | os.PathLike[str]") -> "Index":
        """Opens a .knear file without reading the vectors: they stay in the file until used, and
        are compared with their checksums then. A file of FAISS (flat, product or scalar codes,
        halves, inverted lists of these, with transforms, IndexRefine, IndexIDMap) is read into
        memory; its centroids and lists stay as they are. CorruptFile names any other type of FAISS.

        Raises IoError; CorruptFile, naming the section that was cut off or altered, as searches
        may later.
        """
        index = cls.__new__(cls)
        index._index = _core.Index.load(os.fspath(path))
        return index

    @property
    def factory(self) -> str:
        """The kind of index, as it is written at construction."""
        return self._index.factory

    @property
    def lists(self) -> int:
        """The number of inverted lists; 0 for "Flat"."""
        return self._index.lists

    @property
    def centroids(self) -> NDArray[np.float32]:
        """Those of the inverted lists [lists x dim]; none before training."""
        return self._index.centroids()

    @property
    def is_trained(self) -> bool:
        """Whether vectors may be added. "Flat" learns nothing and always is."""
        return self._index.is_trained

    @property
    def dim(self) -> int:
        """Number of columns of every matrix."""
        return self._index.dim

    @property
    def metric(self) -> str:
        """ "l2", "ip" or "cosine"."""
        return self._index.metric

    def __len__(self) -> int:
        return self._index.size

    def __repr__(self) -> str:
        what = f"{self.factory!r}, dim={self.dim}, metric={self.metric!r}"
        return f"<knear.Index {what}, {len(self)} vectors>"

    def __contains__(self, id: int) -> bool:
        return self._index.contains(_arrays.integer("id", id))

    @property
    def next_id(self) -> int:
        """Above every id so far: the id of the next vector that is added without one."""
        return self._index.next_id

    @property
    def version(self) -> int:
        """The number of changes made so far. The report of a search has the one that it saw."""
        return self._index.version

    @property
    def memory_bytes(self) -> int:
        """Bytes of vectors, ids and packed codes."""
        return self._index.memory_bytes()

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        return self._index.ids()

    def train(
        self,
        x: ArrayLike,
        *,
        iterations: int = 10,
        rows: int | None = None,
        seed: int = 1,
        threads: int = 0,
    ) -> None:
        """Learns the centroids of inverted lists, quantisers and transforms from the rows of `x`
        [n x dim], before any are added: vectors like those to come, as many as there are lists at
        least, and 256 for codes of 8 bits.

        iterations: of k-means on a quarter of the rows, and half as many on all of them.
        rows: as many of `x` are used, drawn at random; None: 256 for each list, and 65,536 for
            codes.
        seed: the same vectors and seed give the same index on every machine.

        Raises InvalidArgument for a NaN or infinity, for too few rows, and when the index holds
        vectors; ShapeMismatch for another number of columns.
        """
        self._index.train(
            *_arrays.matrix("x", x),
            _arrays.integer("iterations", iterations),
            0 if rows is None else _arrays.integer("rows", rows),
            _arrays.integer("seed", seed),
            _arrays.integer("threads", threads),
        )

    def add(self, x: ArrayLike, ids: ArrayLike | None = None, *, threads: int = 0) -> None:
        """Adds copies of the rows of `x` [n x dim] under `ids` [n], or next_id and those after it.

        Raises ShapeMismatch for another number of columns; InvalidArgument for a NaN or infinity,
        for a value that the element type of the first rows cannot hold, and for an id that is
        negative, there already or given twice. Then nothing is added.
        """
        self._index.add(
            *_arrays.matrix("x", x),
            None if ids is None else _arrays.ids_of("ids", ids),
            _arrays.integer("threads", threads),
        )

    def remove(self, ids: ArrayLike) -> None:
        """Removes the vectors with these ids. Raises InvalidArgument for one that is not there;
        then nothing is removed.
        """
        self._index.remove(_arrays.ids_of("ids", ids))

    def replace(self, ids: ArrayLike, x: ArrayLike) -> None:
        """Row i of `x` takes the place of the vector with ids[i]. Errors as for add and remove."""
        self._index.replace(_arrays.ids_of("ids", ids), *_arrays.matrix("x", x))

    def reconstruct(self, ids: ArrayLike) -> NDArray[Any]:
        """The vectors with these ids [n x dim], as they were added, in the index's element type: an
        array of NumPy, wherever `ids` are.
        """
        which = _arrays.ids_of("ids", ids)
        data, kind = self._index.reconstruct(which)
        return _arrays.rows_of(data, kind, len(which), self.dim)

    def merge(self, other: "Index", ids: str = "keep") -> None:
        """Takes over the vectors of `other`, which stays as it is.

        ids: "keep", where an id in both indexes is an error, or "shifted", where next_id is added
            to each.
        """
        if not isinstance(other, Index):
            raise InvalidArgument(f"other must be a knear.Index, but is {type(other).__name__}")
        if ids not in ("keep", "shifted"):
            raise InvalidArgument(f"ids must be 'keep' or 'shifted', but is {ids!r}")
        self._index.merge(other._index, ids == "keep")

    def reserve(self, rows: int) -> None:
        """Makes the next allocation large enough for `rows` vectors in all."""
        self._index.reserve(_arrays.integer("rows", rows))

    def compact(self) -> None:
        """Frees the memory of removed vectors, which otherwise waits until they are half."""
        self._index.compact()

    def optimize(self, *, threads: int = 0) -> int:
        """Makes now, and has save() keep, what many searches would come to make.

        "Flat": the prefix by which most vectors are ruled out on a few coordinates; the first
        search goes by it then. An index of fewer than 8,192 vectors or 32 columns, and data for
        which it is not forecast to be faster, go without. No answer changes. Vectors added later
        are searched beside it until the next call. Returns how many vectors are reached by a
        prefix. Inverted lists: what many changes left in many pieces is put together; returns the
        number of vectors.
        """
        return self._index.optimize(threads)

    def tune(
        self,
        k: int,
        q: ArrayLike | None = None,
        *,
        base: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        threads: int = 0,
    ) -> list[dict[str, float]]:
        """Calibrates search(recall=) of inverted lists and codes for k neighbours, and has save()
        keep that.

        q: queries like those to come [n x dim]. None: 2,000 vectors of the index, each left out of
            its own answer; the first search for a recall does that by itself, and again once
            rows added and taken out are more than a quarter of it. An index of codes keeps 1,000 of
            the vectors that it was trained on, with their neighbours, and takes queries only if it
            keeps all vectors to refine codes by (RFlat), or with
        base: the vectors that the codes were made of [n x dim], and
        ids: their ids [n]; None: 0, 1, ... Their neighbours are kept instead: for queries unlike
            the vectors, after a merge, for files of FAISS, and where much was removed.

        A flat index of 16,384 vectors or more makes inverted lists of them for searches with a
        recall below 1, which it comes to do by itself where that pays; save() does not keep them.

        Returns what a recall costs, from the cheapest on: dicts with "promised_recall",
        "expected_recall" (without the margin for chance), and "probes" and "rows" of a query.
        """
        data, kind = (None, "f32") if q is None else _arrays.matrix("q", q)
        names = ("promised_recall", "expected_recall", "probes", "rows")
        vectors, of = (None, "f32") if base is None else _arrays.matrix("base", base)
        if ids is not None and base is None:
            raise InvalidArgument("ids are given, but no base whose rows they are of")
        points = self._index.tune(
            _arrays.integer("k", k),
            data,
            kind,
            vectors,
            of,
            None if ids is None else _arrays.ids_of("ids", ids),
            _arrays.integer("threads", threads),
        )
        return [dict(zip(names, point, strict=True)) for point in points]

    def search(
        self,
        q: ArrayLike,
        k: int,
        *,
        probes: int | None = None,
        recall: float | None = None,
        filter: ArrayLike | None = None,
        threads: int = 0,
        memory: int | str | None = None,
        first_pass: str = "auto",
        choices: Mapping[str, Any] | None = None,
        method: str = "auto",
        samples: int | None = None,
        logical_rows: int | None = None,
        aggregate_to_topk: bool = True,
        widen: bool = False,
        certify: bool = False,
        refine_factor: int | None = None,
        device: str | None = None,
        report: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The k nearest vectors of each row of `q` [n x dim]: (distances, ids), both [n x k].

        Options and errors are those of knear.knn, and for inverted lists
        probes: how many of the lists nearest to a query are searched; or
        recall: the least mean share of the k nearest to find, in (0, 1]: each query probes as many
            lists as it takes, by a rule that was calibrated on vectors of the index (tune). Queries
            unlike these, and filters, are noticed: a batch of 1,000 is then calibrated by itself,
            of fewer report["note"] says that nothing is promised. 1 goes on until the radii of
            the lists prove that no other list holds anything nearer. One of the two is needed. A
            flat index takes a recall too (tune), and answers exactly where that is as fast.
        widen: a query that finds fewer than k vectors in its lists goes on to more of them; without
            it the row is padded with id -1.
        certify: prove of which queries the answer is that of exact search: `report` then has their
            number in "certified_queries", and the others in "uncertified".
        refine_factor: of codes with their vectors (",RFlat"): how many of the nearest codes are
            measured by the vectors for each neighbour; None: 4.

        filter: ids, each of which the index must hold;
        or one bool for each of the ids 0, 1, ..., where ids beyond the last bool are left out.
        device: None means where `q` is. For queries on a GPU "cuda" means that GPU, "cpu" the
        processor, and the results are arrays on that GPU, whatever `device` is.
        """
        number = _device.number_of("q", q)
        found = self._index.search(
            *_arrays.matrix("q", q),
            _arrays.integer("k", k),
            _arrays.integer("threads", threads),
            _arrays.size("memory", memory),
            _arrays.text("first_pass", first_pass),
            _arrays.choices(choices),
            _arrays.method_options(
                method,
                recall,
                samples,
                logical_rows,
                aggregate_to_topk,
                probes,
                widen,
                certify,
                refine_factor,
            ),
            _arrays.text("device", _device.of_queries(device, number)),
            *_arrays.filter_of(filter, None),
            _arrays.report(report),
        )
        return _device.sent(q, number, found)

    def range_search(
        self,
        q: ArrayLike,
        radius: float,
        *,
        probes: int | None = None,
        recall: float | None = None,
        filter: ArrayLike | None = None,
        threads: int = 0,
        memory: int | str | None = None,
        first_pass: str = "auto",
        device: str | None = None,
        report: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """All vectors within `radius` of each row of `q`: (begin, distances, ids).

        As knear.range_search. Of inverted lists, those in the `probes` lists nearest to each query,
        or with recall = 1 all. `device` and queries on a GPU are as in search().
        """
        number = _device.number_of("q", q)
        found = self._index.range_search(
            *_arrays.matrix("q", q),
            _arrays.number("radius", radius),
            _arrays.integer("threads", threads),
            _arrays.size("memory", memory),
            _arrays.text("first_pass", first_pass),
            _arrays.method_options(recall=recall, probes=probes),
            _arrays.text("device", _device.of_queries(device, number)),
            *_arrays.filter_of(filter, None),
            _arrays.report(report),
        )
        return _device.sent(q, number, found)
