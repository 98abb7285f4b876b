"""Vectors that are kept and searched often: knear.Index."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _choice, _core, _device, _options, _results
from ._parts import PartResult
from ._progress import Progress, reporting
from ._results import RangeResult, SearchResult
from ._sealed import Sealed
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import SearchOptions


class Index(Sealed):
    """Vectors that are added, changed, and searched often.

    >>> import knear, numpy as np
    >>> base = np.random.default_rng(1).standard_normal((1000, 16), dtype=np.float32)
    >>> index = knear.Index("Flat", dim=16, metric="l2")
    >>> index.add(base)                                  # [n x 16], copied
    >>> distances, ids = index.search(base[:5], k=10)    # both [5 x 10]
    >>> ids[:, 0].tolist()
    [0, 1, 2, 3, 4]
    >>> index.factory, index.dim, index.metric, len(index)
    ('Flat', 16, 'l2', 1000)

    >>> index = knear.Index("IVF16,Flat", dim=16)
    >>> index.train(base)
    >>> index.add(base)
    >>> found = index.search(base[:5], k=10, recall=0.9)
    >>> found.expected_recall >= 0.9  # a promise needs more queries: docs/recall.md
    True
    >>> index.lists, index.centroids.shape
    (16, (16, 16))

    factory: the kind of index. "Flat": exact search of vectors that are kept as they came, in the
        element type of the first add. "IVF1024,Flat": the same vectors in 1024 inverted lists, of
        which a search looks at the few nearest to each query. "IVF1024_SOAR,Flat": each vector in
        two lists, for clusters that overlap, as those of text do. "IVF1024,PQ32": codes of 32 bytes
        instead of vectors; "PQ32x4" has half a byte a part, "SQ8" a byte a column, "SQfp16" rounds
        to halves; ",RFlat" behind codes keeps the vectors too and measures the nearest codes by
        them, ",Refine(SQ8)" finer codes; "Graph32" keeps the vectors and a graph of 32 links each,
        for one query at a time at a high recall; "PCA64,", "OPQ16_64,", "RR64," and "L2norm,"
        transform vectors first (RR64 to more columns too, which changes no distance but for
        rounding; PCA64 and OPQ16_64 take as many columns at least; PCA64 subtracts the mean by
        "l2" alone, since products and cosines would change). "auto": as
        knear.choose_index() says for `rows`, `memory`, `recall`, `batch` and `dtype`, which are for
        that alone. That is a guess until train(), or the first add(), measures the vectors that it
        is given: `factory` and `reason` say what was chosen then.
    dim: number of columns of every matrix, from 1 to 65536.
    metric: "l2", squared distances, "ip" or "cosine"; "l1" and "hamming", of bits packed in uint8,
        for "Flat". Other usual words are taken for these: "euclidean" and "sqeuclidean" for "l2",
        "dot" and "inner_product" for "ip", "angular" for "cosine", "manhattan" for "l1".

    Ids count from 0 in the order of adding, or are given with the vectors. An id belongs to its
    vector: removing others does not change it, and no other vector gets it unless you say so.

    Memory: the vectors, about a quarter of float32 vectors more, and 16 bytes a row; whole numbers
    of 8 bits ("l2", "ip") take one byte each whatever their type, 5 % and 16 bytes a row. Searches
    of many queries by "l2" or "cosine" may make a prefix of up to 128 principal coordinates, if
    that is forecast to be faster and they set no memory limit: at most dim + 154 bytes a row more;
    or codes by which rows that 8 bits leave are scored again ("refine"): dim + 16 bytes. Any method
    may be called from any thread at any time: a search sees the index as it was when it began, and
    neither waits for the other.

    shards: divide the vectors into so many parts, which searches go through at the same time and
        save() writes to files of their own, for bases that grow beyond one file or one group of
        processors. What the parts find is merged before it is rounded: answers are those of one
        index to the bit, where both search the same (docs/architecture.md says when).
    replicas: divide the queries of a batch between so many groups of processors, by the speed that
        each had before. They share the vectors, and no answer depends on them. Groups are memory
        nodes (NUMA), or what the environment variable KNEAR_CPU_GROUPS says ("0-7:8-15"); in one
        group threads share all queries.

    device: where searches are made that do not say otherwise: "cpu", "cuda" (the first GPU),
        "cuda:N", or several GPUs as "cuda:0,1,2,3": of an index in shards each has some, of others
        each has all vectors, and the queries of a batch are divided between them. None: where the
        queries are. The first search sends the vectors there, where they stay; after a change those
        that changed are sent again. A GPU that is not there is DeviceUnavailable, at once.

        >>> knear.Index("Flat", dim=16, device="cpu").device
        'cpu'

    audit: the share of the time of searches, from 0 to 1, that the index may spend on exact answers
        to a sample of its queries, such as 0.02 (`audit`). Searches for a recall then go by what
        such queries find. For inverted lists, graphs and codes with their vectors (",RFlat").

    The index keeps its vectors in the processor's memory, whatever the device. Vectors in that of a
    GPU are copied to it, once, if their rows or columns are contiguous; what may be in them is the
    same. Queries in the memory of the GPU on which a "Flat" index is searched are used in place
    (`search`).
    """

    _reason: str | None = None
    # What "auto" was made for, until vectors have decided which kind of index it is.
    _open_needs: dict[str, Any] | None = None
    # Until "auto" has chosen: the arguments of the index that it becomes.
    _open_audit: float = 0.0
    _open_reserve: int = 0
    _device: str | None = None
    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            ("nprobe", "probes"),
            "search(queries, k, probes=4) looks at 4 lists, recall=0.9 at as many as that takes",
        ),
        **dict.fromkeys(
            ("efSearch", "ef"),
            "search(queries, k, ef=64) looks at 64 vectors, recall=0.9 at as many as that takes",
        ),
        "nlist": "index.lists is the number of lists",
        "d": "index.dim is the number of columns",
        "metric_type": "index.metric is 'l2', 'ip' or 'cosine'",
        "verbose": "train(), add() and search() take progress=True",
        "hnsw": 'knear.Index("Graph32", dim=...) has a graph, and search(queries, k, ef=64) looks '
        "at 64 vectors",
    }

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
        shards: int = 1,
        replicas: int = 1,
        device: str | None = None,
        audit: float = 0.0,
    ) -> None:
        device = _device_of_searches(device)
        needs = {"rows": rows, "memory": memory, "recall": recall, "batch": batch, "dtype": dtype}
        name, choice = _choice.choice_of(_arrays.text("factory", factory), dim, metric, needs)
        self._index = _core.Index(
            name,
            _arrays.integer("dim", dim),
            _arrays.text("metric", metric),
            _arrays.integer("shards", shards),
            _arrays.integer("replicas", replicas),
        )
        if choice is not None:
            self._reason = choice.reason
            if choice.guessed:
                del needs["dtype"]  # which the vectors have
                self._open_needs = {
                    name: value for name, value in needs.items() if value is not None
                }
        if device is not None:
            self._device = device
        if audit:
            self.audit = audit

    def save(self, path: str | os.PathLike[str], *, progress: Progress = None) -> None:
        """Writes the index to a .knear file, whole or not at all. Raises IoError.

        Shards go to files of their own beside it, under names that no file had, and `path` is their
        manifest, which is replaced last: whoever moves the index moves all of them.

        >>> import knear, numpy as np, os, tempfile
        >>> index = knear.Index("Flat", dim=3)
        >>> index.add(np.eye(3))
        >>> path = os.path.join(tempfile.mkdtemp(), "index.knear")
        >>> index.save(path)
        >>> len(knear.Index.load(path))
        3

        progress: as that of knn().
        """
        reporting(
            progress,
            self._index.save,
            _arrays.path(path),
        )

    def write_faiss(self, path: str | os.PathLike[str], *, progress: Progress = None) -> None:
        """Writes the index for faiss.read_index, whole or not at all: "Flat" as IndexFlat,
        "SQfp16" as IndexScalarQuantizer, inverted lists as IndexIVFFlat, codes as IndexIVFPQ and so
        on, in an IDMap2 where ids are not 0, 1, ...

        >>> import knear, numpy as np, os, tempfile
        >>> index = knear.Index("Flat", dim=3)
        >>> index.add(np.eye(3))
        >>> path = os.path.join(tempfile.mkdtemp(), "index.faiss")
        >>> index.write_faiss(path)                      # for faiss.read_index(path)
        >>> import knear.faiss
        >>> knear.faiss.read_index(path).ntotal
        3

        progress: as that of knn().

        Raises InvalidArgument for the metric cosine, which FAISS has not, for lists of "ip" that
        are found by an index, for codes in lists that are found by an index that rounds the
        centroids ("IVF64(SQ8),PQ8"), and for vectors that float32 does not hold exactly; IoError.
        """
        reporting(
            progress,
            self._index.write_faiss,
            _arrays.path(path),
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        replicas: int | None = None,
        allow_partial: bool = False,
        device: str | None = None,
        audit: float = 0.0,
        progress: Progress = None,
    ) -> Index:
        """Opens a .knear file without reading the vectors: they stay in the file until used, and
        are compared with their checksums then; the file must not be cut off or written to
        meanwhile (save() replaces it, which is fine). A file of FAISS (flat, product or scalar
        codes, halves, inverted lists of these, with transforms, IndexRefine, IndexIDMap) is read
        into memory; its centroids and lists stay as they are. CorruptFile names any other type of
        FAISS. `progress` is that of what is made for the rows of such a file, once they are read.

        >>> import knear, numpy as np, os, tempfile
        >>> index = knear.Index("Flat", dim=3)
        >>> index.add(np.eye(3))
        >>> path = os.path.join(tempfile.mkdtemp(), "index.knear")
        >>> index.save(path)
        >>> knear.Index.load(path).search([[0.0, 0.9, 0.0]], k=1).ids.tolist()
        [[1]]

        replicas: those between which queries are divided; None: as many as it was saved with.
        allow_partial: of an index in shards, leave out those that are missing or altered, now or
            when a search comes to them, instead of raising: plan["unsearched_shards"] names them,
            plan["unsearched_rows"] counts their vectors, nothing is promised or certified, and the
            index takes no changes.
        device, audit: as at construction; no file keeps them.

        Raises IoError; CorruptFile, naming the section that was cut off or altered, as searches
        may later, and the shard; InvalidArgument for allow_partial of an index in one file.
        """
        index, file = cls.__new__(cls), _arrays.path(path)
        if device is not None:
            index._device = _device_of_searches(device)
        count = 0 if replicas is None else _arrays.integer("replicas", replicas)
        if replicas is not None and count < 1:
            raise InvalidArgument(f"replicas must be between 1 and 4096, but is {replicas}")
        index._index = reporting(progress, _core.Index.load, file, count, bool(allow_partial))
        if audit:
            index.audit = audit
        return index

    @property
    def factory(self) -> str:
        """The kind of index, as it is written at construction."""
        return self._index.factory

    @property
    def reason(self) -> str | None:
        """Why an index that was made as "auto" is of this kind, as knear.choose_index() says it:
        a guess, or once vectors were measured, with the figures. None for one whose kind was given,
        and for one from a file, which does not keep it.

        >>> import knear
        >>> knear.Index("auto", dim=96, rows=1000).reason[:45]
        'Flat: 1000 x 96 are compared faster than list'
        """
        return self._reason

    @property
    def device(self) -> str | None:
        """Where searches are made that do not say otherwise, as it was given; None: where the
        queries are.

        >>> import knear
        >>> knear.Index("Flat", dim=8).device is None
        True
        """
        return self._device

    @property
    def audit(self) -> float:
        """The share of the time of searches that the index may spend on auditing itself; 0: it does
        not. May be set at any time.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((2000, 8), dtype=np.float32)
        >>> index = knear.Index("IVF16,Flat", dim=8, audit=0.02)
        >>> index.audit
        0.02
        >>> index.train(x)
        >>> index.add(x)
        >>> questions = 2 * x[:300]                      # unlike the vectors
        >>> for q in questions:
        ...     found = index.search([q], k=5, recall=0.9, traffic="questions")
        >>> found.plan["audited_queries"], found.expected_recall >= 0.9
        (256, True)

        The index answers a sample of the queries of each `traffic` and k exactly, once 256, 1,000
        and 2,000 of them have come (of graphs 256 and 1,000, of codes 256 and 500), and goes by
        what these find from then on. Later samples wait until this share of the time of searches,
        by the model of costs, has paid for them. So the answer of a search for a recall depends on
        the searches before it: the same calls in the same order give the same answers. 0 stops the
        audits and leaves in use what they found; tune(k) forgets it. Files, copies and pickles keep
        neither (docs/recall.md).

        Raises InvalidArgument for a number outside [0, 1], and above 0 for an index that answers
        exactly ("Flat"), lacks the vectors as they were added, or lacks a shard.
        """
        return self._index.audit if self._open_needs is None else self._open_audit

    @audit.setter
    def audit(self, share: float) -> None:
        share = _arrays.number("audit", share)
        if self._open_needs is None:
            self._index.set_audit(share)
            return
        if not 0 <= share <= 1:
            raise InvalidArgument(f"audit must be between 0 and 1, but is {share:g}")
        self._open_audit = share

    def audits(self) -> list[dict[str, Any]]:
        """What audits have found: a dict for each traffic and k, with "served_queries" (searched
        for), "audited_queries" (behind the curve of recall; 0 before the first audit), "recall"
        (that the latest search asked for), "measured_recall" (the mean of the audited queries by
        the rule of that recall) and "interval" (of 95 %).

        >>> import knear
        >>> knear.Index("IVF16,Flat", dim=8, audit=0.02).audits()
        []
        """
        return self._index.audits()

    @property
    def lists(self) -> int:
        """The number of inverted lists; 0 for "Flat"."""
        return self._index.lists

    @property
    def shards(self) -> int:
        """The number of parts that the vectors are divided into.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((1000, 8))
        >>> index = knear.Index("Flat", dim=8, shards=3)
        >>> index.add(x)
        >>> index.shards, index.shard_sizes.tolist()
        (3, [334, 333, 333])
        >>> (index.search(x, k=5).ids == knear.knn(x, x, k=5).ids).all().item()
        True
        """
        return self._index.shards

    @property
    def replicas(self) -> int:
        """Between how many groups of processors queries are divided, where there are several.

        >>> import knear
        >>> knear.Index("Flat", dim=8, replicas=2).replicas
        2
        """
        return self._index.replicas

    @property
    def shard_sizes(self) -> NDArray[np.int64]:
        """The number of vectors of each shard [shards]; of a missing one, of what it had."""
        return self._index.shard_sizes()

    @property
    def missing_shards(self) -> list[str]:
        """The names of shards that load(allow_partial=True) could not open.

        >>> import knear, numpy as np, pathlib, tempfile
        >>> index = knear.Index("Flat", dim=2, shards=2)
        >>> index.add(np.eye(2))
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> index.save(folder / "base.knear")
        >>> sorted(folder.glob("*.1.shard"))[0].unlink()
        >>> index = knear.Index.load(folder / "base.knear", allow_partial=True)
        >>> len(index.missing_shards), len(index)
        (1, 1)
        """
        return self._index.missing_shards()

    @property
    def centroids(self) -> NDArray[np.float32]:
        """Those of the inverted lists [lists x dim]; none before training."""
        return self._index.centroids()

    @property
    def is_trained(self) -> bool:
        """Whether vectors may be added. "Flat" learns nothing and always is. False for "auto" until
        vectors have decided what it is; add() then trains it by what it is given.
        """
        return self._open_needs is None and self._index.is_trained

    @property
    def dim(self) -> int:
        """Number of columns of every matrix."""
        return self._index.dim

    @property
    def metric(self) -> str:
        """ "l2", "ip", "cosine", "l1" or "hamming"."""
        return self._index.metric

    def __len__(self) -> int:
        return self._index.size

    @property
    def ntotal(self) -> int:
        """The number of vectors, as len(index) has it, by the name that FAISS gives it."""
        return self._index.size

    def __repr__(self) -> str:
        what = f"{self.factory!r}, dim={self.dim}, metric={self.metric!r}"
        size = _results.bytes_shown(self.memory_bytes)
        return f"<knear.Index {what}, {len(self):,} vectors, {size}>"

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
        hold_out: bool = True,
        seed: int = 1,
        threads: int = 0,
        progress: Progress = None,
    ) -> None:
        """Learns the centroids of inverted lists, quantisers and transforms from the rows of `x`
        [n x dim], before any are added: vectors like those to come, as many as there are lists at
        least, and 256 for codes of 8 bits.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((1000, 8), dtype=np.float32)
        >>> index = knear.Index("IVF16,Flat", dim=8)
        >>> index.is_trained
        False
        >>> index.train(x)
        >>> index.is_trained, len(index)
        (True, 0)

        iterations: of k-means for inverted lists, on a quarter of the rows, and half as many on
            all of them.
        rows: as many of `x` are used, drawn at random; None: 256 for each list, and 65,536 for
            codes.
        hold_out: whether a tenth of the vectors, 1,000 at most, is kept out of what is learned.
            Lists know by them how far new queries are from centroids; codes keep them and their
            neighbours to know what recall a search has: without them search(recall=) needs tune()
            with a base.
        seed: the same vectors and seed give the same index on every machine.
        progress: a function of the stage and of the share done, which may stop the work by raising;
            True draws a bar with tqdm. The same for the other calls that take it.

        "auto" measures vectors of `x` first, and becomes the index that suits them; one that learns
        nothing ("Flat", "Graph32") then ignores how to learn.

        threads: as that of knn().

        Raises InvalidArgument for a NaN or infinity, for too few rows, when the index holds
        vectors, for `iterations` of an index without inverted lists, and for arguments that say how
        an index learns that learns nothing ("Flat"); ShapeMismatch for another number of columns.
        """
        vectors, kind = _arrays.matrix("x", x)
        words = (
            _arrays.integer("iterations", iterations),
            0 if rows is None else _arrays.positive("rows", rows),
            bool(hold_out),
            _arrays.integer("seed", seed) % 2**64,
            _arrays.integer("threads", threads),
        )
        with self._deciding(vectors, kind, threads, progress) as index:
            if index is None or not index.is_trained:
                target = self._index if index is None else index
                reporting(progress, target.train, vectors, kind, *words)

    def add(
        self,
        x: ArrayLike,
        ids: ArrayLike | None = None,
        *,
        convert: bool = False,
        threads: int = 0,
        progress: Progress = None,
    ) -> None:
        """Adds copies of the rows of `x` [n x dim] under `ids` [n], or next_id and those after it.

        >>> import knear, numpy as np
        >>> index = knear.Index("Flat", dim=2)
        >>> index.add(np.array([[0.0, 0.0], [3.0, 4.0]]), ids=[7, 5])
        >>> index.add(np.array([[6.0, 8.0]]))
        >>> index.ids.tolist(), index.next_id, index.version
        ([5, 7, 8], 9, 2)

        convert: round numbers that the element type of the first rows cannot hold exactly, as 0.1
            of float64 in an index of float32, to the nearest one that it has.
        threads, progress: as those of knn().

        Raises ShapeMismatch for another number of columns; InvalidArgument for a NaN or infinity,
        for a value that the element type of the first rows cannot hold exactly, with `convert` for
        one beyond its range, and for an id that is negative, there already or given twice. Then
        nothing is added.
        """
        vectors, kind = self._rows("x", x, convert)
        words = (
            None if ids is None else _arrays.ids_of("ids", ids),
            _arrays.integer("threads", threads),
        )
        if self._open_needs is not None and vectors.shape == (0, self.dim):
            return
        with self._deciding(vectors, kind, threads, progress) as index:
            target = self._index if index is None else index
            if index is not None and not index.is_trained:
                _train_as_usual(index, vectors, kind, threads, progress)
            reporting(progress, target.add, vectors, kind, *words)

    @contextlib.contextmanager
    def _deciding(
        self, x: NDArray[Any], kind: str, threads: int, progress: Progress
    ) -> Iterator[_core.Index | None]:
        """The index that suits `x`, which "auto" becomes if nothing fails inside; None where it is
        decided what this index is."""
        if self._open_needs is None or not len(x) or x.shape[1] != self.dim:
            yield None
            return
        with _decision:
            if self._open_needs is None:  # another thread was first
                yield None
                return
            needs = dict(self._open_needs)
            rows = max(needs.pop("rows"), len(x))
            try:
                choice = _choice.chosen(
                    rows,
                    self.dim,
                    self.metric,
                    x,
                    kind,
                    threads=threads,
                    progress=progress,
                    **needs,
                )
            except InvalidArgument as error:
                raise InvalidArgument(str(error).replace("sample must", "x must", 1)) from None
            index = _core.Index(choice.factory, self.dim, self.metric, self.shards, self.replicas)
            reason = choice.reason
            if self._open_reserve:
                index.reserve(self._open_reserve)
            if self._open_audit:
                try:
                    index.set_audit(self._open_audit)
                except InvalidArgument as error:
                    reason += f"; it does not audit itself: {error}"
            yield index
            self._index, self._reason, self._open_needs = index, reason, None

    def remove(self, ids: ArrayLike) -> None:
        """Removes the vectors with these ids. Raises InvalidArgument for one that is not there;
        then nothing is removed.

        >>> import knear, numpy as np
        >>> index = knear.Index("Flat", dim=3)
        >>> index.add(np.eye(3))
        >>> index.remove([1])
        >>> index.ids.tolist(), 1 in index
        ([0, 2], False)
        """
        self._index.remove(_arrays.ids_of("ids", ids))

    def _rows(self, name: str, x: Any, convert: bool) -> tuple[NDArray[Any], str]:
        """`x` as _core takes it, with `convert` in the element type that the index keeps."""
        if not convert:
            return _arrays.matrix(name, x)
        wide = isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.dtype.itemsize >= 4
        if len(self) and wide:
            x = x.astype(np.float64)  # which is rounded to the type of the index below
        array, kind = _arrays.matrix(name, x)
        own = self._index.element_type
        if not len(self) or own == kind:
            return array, kind
        return _arrays.rounded_to(own, name, array, kind), own

    def replace(
        self,
        ids: ArrayLike,
        x: ArrayLike,
        *,
        convert: bool = False,
        progress: Progress = None,
    ) -> None:
        """Row i of `x` takes the place of the vector with ids[i]. Errors as for add and remove.

        >>> import knear, numpy as np
        >>> index = knear.Index("Flat", dim=2)
        >>> index.add(np.eye(2))
        >>> index.replace([1], np.array([[5.0, 6.0]]))
        >>> index.reconstruct([0, 1]).tolist()
        [[1.0, 0.0], [5.0, 6.0]]

        convert: as that of add().
        progress: as that of knn().
        """
        reporting(
            progress,
            self._index.replace,
            _arrays.ids_of("ids", ids),
            *self._rows("x", x, convert),
        )

    def reconstruct(self, ids: ArrayLike, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The vectors with these ids [n x dim], as they were added, in the index's element type: an
        array of NumPy, wherever `ids` are, or `out`, which takes them. An index that keeps no
        vectors has those that its codes stand for, in float32.

        >>> import knear, numpy as np
        >>> index = knear.Index("Flat", dim=2)
        >>> index.add(np.array([[0, 0], [3, 4], [6, 8]], np.uint8))
        >>> index.reconstruct([2, 0])
        array([[6, 8],
               [0, 0]], dtype=uint8)

        Raises InvalidArgument for an id that is not there.
        """
        which = _arrays.ids_of("ids", ids)
        data, kind = self._index.reconstruct(which)
        found = _arrays.rows_of(data, kind, len(which), self.dim)
        _results.check_array(out, found.shape, found.dtype)
        return _results.into(out, found)

    def merge(self, other: Index, ids: str = "keep") -> None:
        """Takes over the vectors of `other`, an index of the same kind, which stays as it is. Codes
        and transforms have to be of the same training, as of two copies of a trained index.

        >>> import knear, numpy as np
        >>> index, other = knear.Index("Flat", dim=2), knear.Index("Flat", dim=2)
        >>> index.add(np.eye(2))
        >>> other.add(np.eye(2))
        >>> index.merge(other, "shifted")
        >>> index.ids.tolist(), len(other)
        ([0, 1, 2, 3], 2)

        ids: "keep", where an id in both indexes is an error, or "shifted", where next_id is added
            to each.

        Vectors of each shard of `other` go to the shard with the fewest vectors.

        Raises InvalidArgument for an id in both, and for an index of another kind.
        """
        if not isinstance(other, Index):
            raise InvalidArgument(f"other must be a knear.Index, but is {type(other).__name__}")
        if ids not in ("keep", "shifted"):
            raise InvalidArgument(f"ids must be 'keep' or 'shifted', but is {ids!r}")
        with _decision:
            self._index.merge(other._index, ids == "keep")
            if len(self):
                self._open_needs = None

    def reserve(self, rows: int) -> None:
        """Makes the next allocation large enough for `rows` vectors in all.

        >>> import knear, numpy as np
        >>> index = knear.Index("Flat", dim=2)
        >>> index.reserve(2000)
        >>> for block in np.ones((2, 1000, 2)):
        ...     index.add(block)
        >>> len(index)
        2000

        Raises InvalidArgument for fewer than none; MemoryBudgetError.
        """
        rows = _arrays.integer("rows", rows)
        self._index.reserve(rows)
        if self._open_needs is not None:
            self._open_reserve = rows

    def compact(self) -> None:
        """Frees the memory of removed vectors, which otherwise waits until they are half.

        >>> import knear, numpy as np
        >>> index = knear.Index("Flat", dim=16)
        >>> index.add(np.ones((10_000, 16)))
        >>> before = index.memory_bytes
        >>> index.remove(np.arange(4000))
        >>> index.compact()
        >>> index.memory_bytes < before, len(index)
        (True, 6000)
        """
        self._index.compact()

    def optimize(self, *, threads: int = 0, progress: Progress = None) -> int:
        """Makes now, and has save() keep, what many searches would come to make.

        >>> import knear, numpy as np
        >>> index = knear.Index("Flat", dim=16)
        >>> index.add(np.random.default_rng(1).random((1000, 16)))
        >>> index.optimize()                             # so few vectors are searched as they are
        0

        "Flat": the prefix by which most vectors are ruled out on a few coordinates; the first
        search goes by it then. An index of fewer than 8,192 vectors or 32 columns, and data for
        which it is not forecast to be faster, go without. No answer changes. Vectors added later
        are searched beside it until the next call. Returns how many vectors are reached by a
        prefix. "Graph32": the graph, which else the first search makes. Inverted lists: what many
        changes left in many pieces is put together; returns the number of vectors, as for a graph.

        threads, progress: as those of knn().
        """
        return reporting(
            progress,
            self._index.optimize,
            _arrays.integer("threads", threads),
        )

    def tune(
        self,
        k: int,
        q: ArrayLike | None = None,
        *,
        base: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        threads: int = 0,
        progress: Progress = None,
    ) -> list[dict[str, float]]:
        """Calibrates search(recall=) of inverted lists and codes for k neighbours, and has save()
        keep that.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((2000, 8), dtype=np.float32)
        >>> index = knear.Index("IVF16,Flat", dim=8)
        >>> index.train(x)
        >>> index.add(x)
        >>> points = index.tune(k=5)
        >>> sorted(points[0])
        ['expected_recall', 'probes', 'promised_recall', 'rows']
        >>> points[0]["rows"] < points[-1]["rows"] <= len(index)
        True

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

        Of an index that has vectors transformed or rounded (PCA64, SQfp16) recall is with respect
        to these: its searches promise nothing of the vectors that were added.

        tune() forgets which other kinds of queries the index has learned by itself (search).

        Returns what a recall costs, from the cheapest on: dicts with "promised_recall" (to batches
        of 1,000 queries), "expected_recall" (without the margin for chance), and "probes" and
        "rows" of a query.

        threads, progress: as those of knn().
        """
        data, kind = (None, "f32") if q is None else _arrays.matrix("q", q)
        names = ("promised_recall", "expected_recall", "probes", "rows")
        vectors, of = (None, "f32") if base is None else _arrays.matrix("base", base)
        if ids is not None and base is None:
            raise InvalidArgument("ids are given, but no base whose rows they are of")
        points = reporting(
            progress,
            self._index.tune,
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
        k: int = 10,
        *,
        probes: int | None = None,
        recall: float | None = None,
        filter: ArrayLike | None = None,
        threads: int = 0,
        widen: bool = False,
        certify: bool = False,
        refine_factor: int | None = None,
        ef: int | None = None,
        traffic: str | None = None,
        return_vectors: bool = False,
        memory: int | str | None = None,
        device: str | None = None,
        out: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None,
        progress: Progress = None,
        report: dict[str, Any] | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The k nearest vectors of each row of `q` [n x dim]: (distances, ids), both [n x k]; of
        one vector `q` [dim] both [k].

        The result also has `certified`, `promised_recall`, `expected_recall` and `plan`
        (knear.SearchResult).

        >>> import knear, numpy as np
        >>> index = knear.Index("Flat", dim=2)
        >>> index.add(np.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]))
        >>> distances, ids = index.search(np.array([[3.0, 3.0]]), k=2)
        >>> ids.tolist(), distances.tolist()
        ([[1, 0]], [[1.0, 18.0]])
        >>> index.search(np.array([[3.0, 3.0]]), k=2, filter=[0, 2]).ids.tolist()
        [[0, 2]]
        >>> found = index.search([3.0, 3.0], k=2, return_vectors=True)
        >>> found.ids.tolist(), found.vectors.tolist()
        ([1, 0], [[3.0, 4.0], [0.0, 0.0]])

        probes: how many of the lists nearest to a query are searched (inverted lists); or
        recall: the least mean share of the k nearest to find, in (0, 1]: each query probes as many
            lists as it takes, by a rule that was calibrated on vectors of the index (tune). It is
            promised to batches of 1,000 queries; of fewer, promised_recall is less, and 0 of one.
            Queries unlike these vectors, by their distances from the lists or from what they find,
            and filters, are noticed: plan["note"] then says that nothing is promised. Where the
            index keeps its vectors, a batch of 256 (",Flat", which keeps what it learned for later
            batches, until tune()) or 1,000 (",RFlat") is calibrated by itself instead. A few
            queries whose distances are those of the vectors too are taken for such. 1 goes on until
            the radii of the lists prove that no other list holds anything nearer; codes refuse what
            they are not known to reach. One of the two is needed. A
            flat index takes a recall too (tune), and answers exactly where that is as fast. A graph
            finds out how far its searches have to go in the same way.
        filter: ids, each of which the index must hold;
            or one bool for each of the ids 0, 1, ..., where ids beyond the last bool are left out.
        widen: a query that finds fewer than k vectors in its lists goes on to more of them; without
            it the row is padded with id -1.
        certify: prove of which queries the answer is that of exact search: `certified` says which.
        refine_factor: of codes with their vectors (",RFlat"): how many of the nearest codes are
            measured by the vectors for each neighbour; None: 4.
        ef: of a graph ("Graph32"), how many of the nearest vectors that it has seen a search keeps,
            k at least; there it is what probes are elsewhere: one of ef and recall is needed.
        traffic: of an index that audits itself (`audit`), the name of the kind of queries that
            these are, such as "questions": each has a curve of recall of its own, 16 at most. For
            searches with a recall below 1; those with a filter are not audited.
        return_vectors: whether the result has the vectors that were found, as reconstruct() gives
            them once the search is done, in `vectors` [n x k x dim]; zeros where there is no
            neighbour. One that another thread replaced meanwhile is the new one.
        device: None means that of the index, or where `q` is if it has none. For queries on a GPU
            "cuda" means that GPU, "cpu" the processor, and the results are arrays on that GPU,
            whatever `device` is. Where a "Flat" index without shards is searched on the GPU on
            which `q` is, [n x dim] and C-contiguous, neither queries nor answers cross the bus, but
            for queries that are looked at again (plan["repeated_queries"]): docs/gpu.md says which.

        threads, memory, out, progress, report, options and errors are those of knear.knn.
        """
        if return_vectors:
            return self._with_vectors(
                lambda: self.search(
                    q,
                    k,
                    probes=probes,
                    recall=recall,
                    filter=filter,
                    threads=threads,
                    widen=widen,
                    certify=certify,
                    refine_factor=refine_factor,
                    ef=ef,
                    traffic=traffic,
                    memory=memory,
                    device=device,
                    out=out,
                    progress=progress,
                    report=report,
                    **options,
                )
            )
        if options:
            _options.checked("search", options, _options.ALL)
        elif traffic is None:
            found: Any = _core.usual_search(
                self._index,
                q,
                k,
                probes,
                recall,
                threads,
                refine_factor,
                ef,
                widen,
                certify,
                filter,
                memory,
                device,
                self._device,
                out,
                progress,
                report,
            )
            if found is not None:
                return found
        k = _arrays.integer("k", k)
        report = _arrays.report(report)
        number = None if type(q) is np.ndarray else _device.number_of("q", q)
        if out is not None and number is not None:
            raise InvalidArgument("out is given, but q is on a GPU, where the answer is too")
        where = _device.of_queries(self._device if device is None else device, number)
        settings = _options.settings(
            options,
            threads,
            memory,
            where,
            recall,
            probes,
            widen,
            certify,
            refine_factor,
            ef,
            traffic,
        )
        if number is not None and where == f"cuda:{number}" and self.shards == self.replicas == 1:
            there = _device.rows_in_place("q", q)
            if there is not None:
                *found, about = reporting(
                    progress,
                    _core.search_on_device,
                    self._index,
                    (there.address, there.kind, there.rows, there.cols),
                    number,
                    k,
                    settings,
                    *_arrays.filter_of(filter, None, len(self), self.next_id),
                )
                shape = (there.rows, k)
                found = _device.answers(q, found, (shape, np.float32), (shape, np.int64))
                return _results.searched(SearchResult, found, about, report)
        one = False
        if number is None:
            rows, kind, one = _arrays.row_or_matrix("q", q)
        else:
            rows, kind = _arrays.matrix("q", q)
        out = _results.rows_of_one(out, k) if one else out
        *found, about = reporting(
            progress,
            self._index.search,
            rows,
            kind,
            k,
            settings,
            *_arrays.filter_of(filter, None, len(self), self.next_id),
            _results.room(out, len(rows), k, options),
        )
        found = _device.sent(q, number, _results.into(out, found))
        if one:
            found = [each[0] for each in found]
        return _results.searched(SearchResult, found, about, report)

    def _with_vectors(self, search: Callable[[], SearchResult]) -> SearchResult:
        """What `search` finds, with its vectors as the index has them then. Where another thread
        has removed one of them meanwhile, the search is made again."""
        for left in reversed(range(100)):
            version = self.version
            found = search()
            ids = np.asarray(_device.to_processor("found", found.ids))
            there = ids >= 0
            which, place = np.unique(ids[there], return_inverse=True)
            try:
                vectors = self.reconstruct(which)
                break
            except InvalidArgument:
                if self.version == version or left == 0:
                    raise
        found.vectors = np.zeros((*ids.shape, self.dim), vectors.dtype)
        found.vectors[there] = vectors[place.reshape(-1)]
        return found

    def search_part(
        self,
        q: ArrayLike,
        k: int,
        *,
        probes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
        threads: int = 0,
        memory: int | str | None = None,
        progress: Progress = None,
        report: dict[str, Any] | None = None,
    ) -> PartResult:
        """As search(), of an index that is one part of a base: (keys, ids) before anything is
        rounded, for knear.merge_parts to merge with what the other parts found. Give the vectors of
        each part ids of the whole (`add(x, ids=...)`).

        >>> import knear, numpy as np
        >>> part = knear.Index("Flat", dim=2)
        >>> part.add(np.array([[0.0, 0.0], [3.0, 4.0]]), ids=[10, 11])
        >>> keys, ids = part.search_part(np.array([[3.0, 3.0]]), k=1)
        >>> keys.tolist(), ids.tolist()
        ([[1.0]], [[11]])

        Its arguments and errors are those of search(), which has more: a recall, which each part
        would reach by itself, and filters are not for parts. An index of several shards is
        InvalidArgument, as these merge by themselves.
        """
        if self.shards > 1:
            raise InvalidArgument(
                f"search_part() is for one part, but this index has {self.shards} shards, which "
                "search() merges"
            )
        report = _arrays.report(report)
        settings = _options.settings(
            {}, threads, memory, "cpu", probes=probes, refine_factor=refine_factor, ef=ef
        )
        found, about = reporting(
            progress,
            _core.search_part,
            self._index,
            *_arrays.matrix("q", q),
            _arrays.integer("k", k),
            settings,
        )
        if report is not None:
            report.clear()
            report.update(about.as_dict())
        return PartResult(*found)

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
        device: str | None = None,
        progress: Progress = None,
        report: dict[str, Any] | None = None,
        **options: Unpack[SearchOptions],
    ) -> RangeResult:
        """All vectors within `radius` of each row of `q`: (begin, distances, ids).

        >>> import knear, numpy as np
        >>> index = knear.Index("Flat", dim=2)
        >>> index.add(np.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]))
        >>> q = np.array([[3.0, 3.0], [9.0, 9.0]])
        >>> begin, distances, ids = index.range_search(q, radius=18)
        >>> begin.tolist(), distances.tolist(), ids.tolist()
        ([0, 2, 3], [1.0, 18.0, 10.0], [1, 0, 2])

        As knear.range_search; one vector [dim] is taken as one query. Of inverted lists, those in
        the `probes` lists nearest to each query, or with recall = 1 all. `device` and queries on a
        GPU are as in search().

        filter, threads, memory, progress, report: as those of knn().
        """
        if options:
            _options.checked("range_search", options, _options.OF_RANGES)
        report = _arrays.report(report)
        number = _device.number_of("q", q)
        *found, about = reporting(
            progress,
            self._index.range_search,
            *_arrays.row_or_matrix("q", q)[:2],
            _arrays.number("radius", radius),
            _options.settings(
                options,
                threads,
                memory,
                _device.of_queries(self._device if device is None else device, number),
                recall,
                probes,
            ),
            *_arrays.filter_of(filter, None, len(self), self.next_id),
        )
        return _results.searched(RangeResult, _device.sent(q, number, found), about, report)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies are those of the .knear file, or of the files of all shards."""
        with tempfile.TemporaryDirectory() as folder:
            self._index.save(os.fsencode(os.path.join(folder, _FILE)), None)
            files = {}
            for name in sorted(os.listdir(folder)):
                with open(os.path.join(folder, name), "rb") as file:
                    files[name] = file.read()
            return _index_of_files, (type(self), files), self._more()

    def _more(self) -> dict[str, Any] | None:
        """What a class made of this one keeps beside the index."""
        return {name: it for name, it in self.__dict__.items() if name != "_index"} or None

    def __copy__(self) -> Index:
        return copy.deepcopy(self)


def load(path: str | os.PathLike[str], **options: Any) -> Index:
    """Opens a .knear file, or one of FAISS: Index.load(path), with its options and errors.

    >>> import knear, numpy as np, os, tempfile
    >>> index = knear.Index("Flat", dim=3)
    >>> index.add(np.eye(3))
    >>> path = os.path.join(tempfile.mkdtemp(), "index.knear")
    >>> index.save(path)
    >>> knear.load(path).search([0.0, 0.9, 0.0], k=1).ids.tolist()
    [1]
    """
    return Index.load(path, **options)


_FILE = "index.knear"

# Held while vectors decide what an "auto" index is.
_decision = threading.RLock()


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global _decision
    _decision = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _train_as_usual(
    index: _core.Index, x: NDArray[Any], kind: str, threads: int, progress: Progress
) -> None:
    """Trains `index` by the vectors `x` as Index.train() does where nothing else is said."""
    reporting(progress, index.train, x, kind, 10, 0, True, 1, _arrays.integer("threads", threads))


def _device_of_searches(device: str | None) -> str | None:
    """Checks the device of an index: that it can be searched there."""
    if device is None:
        return None
    _core.check_device(_arrays.text("device", device))
    return device


def _index_of_files(kind: type[Index], files: dict[str, bytes]) -> Index:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        # This keeps the files open after their names are gone.
        return kind.load(os.path.join(folder, _FILE))
