"""knear.dask: an index of vectors that lie in the partitions of a Dask array, or in files.

    from dask.distributed import Client
    import knear.dask

    client = Client("scheduler:8786")
    index = knear.dask.build(x)                      # a Dask array, chunks of rows
    distances, ids = index.search(q, k=10)           # the bits of knear.knn(q, x.compute(), 10)

    index = knear.dask.build(["a.npy", "b.fvecs"], "IVF4096,PQ32", metric="ip")
    distances, ids = index.search(q, k=10, probes=16)

Each partition becomes a knear.Index on a worker, whose rows have the numbers that they have in the
whole. A search sends the queries to all of them, and what they find is merged on workers, in a
tree, on float64 keys (knear.merge_parts): a flat index answers what a single process answers, to
the bit, and so do inverted lists and codes that are not refined, with the same probes and seed:
centroids and codes are learned once, from a sample, on one worker, and are those of all partitions.
Vectors, queries and answers travel by Dask alone.

dask and distributed are needed: pip install ".[dask]" in a clone of knear. They are imported
with this module alone, not with knear.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    import dask.array
    import dask.sizeof
    import distributed
except ImportError as error:
    raise ImportError(
        'knear.dask needs dask and distributed: pip install ".[dask]" in a clone of knear'
    ) from error

from . import _arrays, errors
from ._files import read_vectors
from ._index import Index
from ._parts import PartResult, merge_parts
from ._results import SearchResult
from .errors import InvalidArgument, ShapeMismatch

__all__ = ["DistributedIndex", "build"]

# Parts that one worker merges at a time.
_FAN_IN = 8


# Dask sends tasks to the worker from which the least has to be moved, and watches the memory of
# workers: without this an index is an object of 56 bytes, which is copied to whoever is idle.
@dask.sizeof.sizeof.register(Index)
def _bytes_of(index: Index) -> int:
    return index.memory_bytes


class DistributedIndex:
    """An index on the workers of a Dask cluster, made by knear.dask.build().

    >>> import dask.array, knear.dask, numpy as np
    >>> from dask.distributed import Client
    >>> x = np.random.default_rng(1).standard_normal((100, 8)).astype(np.float32)
    >>> with Client(processes=False, dashboard_address="127.0.0.1:0") as client:
    ...     index = knear.dask.build(dask.array.from_array(x, chunks=(30, 8)))
    ...     found = index.search(x[:2], k=3)
    >>> same = bool((found.ids == knear.knn(x[:2], x, k=3).ids).all())
    >>> same, len(index), index.partitions
    (True, 100, 4)

    It lives as long as the client and the workers do. A worker that is lost takes its partitions
    along, and searches raise what Dask does: build it again.
    """

    def __init__(
        self,
        client: distributed.Client,
        parts: list[distributed.Future],
        names: list[str],
        rows: list[int],
        like: Index,
    ) -> None:
        self._client, self._parts, self._names = client, parts, names
        self._rows, self._like = rows, like

    def __len__(self) -> int:
        return sum(self._rows)

    def __repr__(self) -> str:
        return (
            f"<knear.dask.DistributedIndex {self.factory!r}, {len(self)} x {self.dim}, "
            f"{self.partitions} partitions>"
        )

    @property
    def partitions(self) -> int:
        """How many indexes there are."""
        return len(self._parts)

    @property
    def dim(self) -> int:
        """Columns of the vectors."""
        return self._like.dim

    @property
    def metric(self) -> str:
        """ "l2", "ip", "cosine", "l1" or "hamming"."""
        return self._like.metric

    @property
    def factory(self) -> str:
        """The kind of index that each partition is."""
        return self._like.factory

    def search(
        self,
        q: ArrayLike,
        k: int,
        *,
        probes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
        threads: int = 0,
    ) -> SearchResult:
        """The k nearest vectors of each row of `q` [n x dim]: (distances, ids), both [n x k].

        probes: how many of the lists nearest to a query are searched, of inverted lists: those of
            the whole, of which every partition has a part.
        refine_factor: of refined codes: how many each partition measures for each neighbour.
        ef: of a graph ("Graph32"), which needs it: how many of the nearest vectors that it has seen
            a search keeps, in each partition, whose graph is its own.
        threads: of each worker; 0: all that its process may use.

        Ids are the numbers of the rows in the whole array, or in the files one after another.
        Errors are those of knear.Index.search, beginning with the partition's name; the result has
        no `plan`.
        """
        rows = _as_they_are("q", q)
        k = _arrays.integer("k", k)
        how = {
            "probes": probes,
            "refine_factor": refine_factor,
            "ef": ef,
            "threads": _arrays.integer("threads", threads),
        }
        queries = self._client.scatter(rows, broadcast=True, hash=False)
        # Where it lies, since the queries, which all workers have, would draw it anywhere.
        lie = self._client.who_has(self._parts)
        level = [
            self._client.submit(
                _searched,
                part,
                name,
                queries,
                k,
                how,
                pure=False,
                workers=lie.get(part.key) or None,
                allow_other_workers=bool(lie.get(part.key)),
            )
            for part, name in zip(self._parts, self._names, strict=True)
        ]
        while len(level) > 1:
            level = [
                self._client.submit(_merged, level[first : first + _FAN_IN], k, pure=False)
                for first in range(0, len(level), _FAN_IN)
            ]
        return level[0].result().rounded(k, self.metric)


def build(
    x: dask.array.Array | Sequence[str | os.PathLike[str]],
    factory: str = "Flat",
    *,
    metric: str = "l2",
    client: distributed.Client | None = None,
    train_rows: int | None = None,
    seed: int = 1,
    threads: int = 0,
) -> DistributedIndex:
    """An index of all rows of `x`, a part of it on the worker that has each partition.

    >>> import dask.array, knear.dask, numpy as np
    >>> from dask.distributed import Client
    >>> x = np.random.default_rng(1).standard_normal((4000, 8)).astype(np.float32)
    >>> with Client(processes=False, dashboard_address="127.0.0.1:0") as client:
    ...     chunks = dask.array.from_array(x, chunks=(1000, 4))
    ...     index = knear.dask.build(chunks, "IVF16,Flat")
    ...     found = index.search(x[:2], k=1, probes=2)
    >>> index.factory, found.ids.ravel().tolist()
    ('IVF16,Flat', [0, 1])

    x: a Dask array [n x dim], whose chunks of rows are the partitions, or the paths of files, each
        of which is one and which every worker can read: what knear.read_vectors takes (.npy,
        .fvecs, .fbin, ...).
    factory: as of knear.Index, but for "auto".
    client: None: the client that there is (distributed.get_client).
    train_rows: how many rows centroids and codes are learned from, drawn from all partitions at
        random by `seed`; None: 100,000, or all where there are fewer. An index that learns nothing
        ("Flat") takes none.
    threads: of each worker; 0: all that its process may use.

    Raises InvalidArgument for an array whose chunks have unknown sizes, and what knear.Index does,
    with the name of the partition or file.
    """
    client = _client(client)
    if factory == "auto":
        raise InvalidArgument("factory is 'auto', which knear.dask does not take")
    threads, seed = _arrays.integer("threads", threads), _arrays.integer("seed", seed)
    if isinstance(x, dask.array.Array):
        blocks, names, rows, dim = _of_array(x, client)
    else:
        blocks, names, rows, dim = _of_files(x, client)
    like = Index(factory, dim=dim, metric=metric)
    if like.is_trained and train_rows is not None:
        raise InvalidArgument(
            f"train_rows is {train_rows}, but index {factory} learns nothing from vectors"
        )
    if not like.is_trained:
        if sum(rows) == 0:
            raise InvalidArgument(f"x has no rows, and index {factory} learns from some")
        sample = client.submit(
            _sample, _drawn(client, blocks, names, rows, train_rows, seed), pure=False
        )
        like = client.submit(_trained, like, sample, seed, threads, pure=False).result()
    spread = client.scatter(like, broadcast=True, hash=False)
    firsts = np.cumsum([0, *rows])[:-1].tolist()
    parts = [
        client.submit(_part, spread, block, name, first, threads, pure=False)
        for block, name, first in zip(blocks, names, firsts, strict=True)
    ]
    client.gather([client.submit(len, part, pure=False) for part in parts])  # raises what they do
    return DistributedIndex(client, parts, names, rows, like)


def _client(client: Any) -> distributed.Client:
    if client is None:
        try:
            return distributed.get_client()
        except ValueError:
            raise InvalidArgument(
                "client is None, and there is no other: start one (dask.distributed.Client)"
            ) from None
    if not isinstance(client, distributed.Client):
        raise InvalidArgument(
            f"client must be a dask.distributed.Client, but is a {type(client).__name__}"
        )
    return client


def _of_array(x: dask.array.Array, client: distributed.Client) -> tuple:
    """(futures of the blocks, their names, their rows, columns)"""
    if x.ndim != 2:
        raise ShapeMismatch(f"x must have two dimensions, but has {x.ndim}")
    if any(np.isnan(size) for sizes in x.chunks for size in sizes):
        raise InvalidArgument(
            "x has chunks of unknown sizes, so that its rows have no numbers: "
            "compute_chunk_sizes() finds them"
        )
    x = x.rechunk({1: -1})
    rows = [int(size) for size in x.chunks[0]]
    blocks = client.compute([block for block in x.to_delayed().ravel()])
    names = [f"partition {number}" for number in range(len(rows))]
    return blocks, names, rows, int(x.shape[1])


def _of_files(paths: Any, client: distributed.Client) -> tuple:
    if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Sequence) or not paths:
        raise InvalidArgument(
            f"x must be a Dask array, or the paths of files, but is {paths!r:.80}"
        )
    names = [os.fspath(path) for path in paths]
    blocks = [client.submit(_read, name, pure=False) for name in names]
    shapes = client.gather([client.submit(np.shape, block, pure=False) for block in blocks])
    dim = shapes[0][1]
    for name, shape in zip(names, shapes, strict=True):
        if shape[1] != dim:
            raise ShapeMismatch(f"{name} has {shape[1]} columns, {names[0]} has {dim}")
    return blocks, names, [shape[0] for shape in shapes], dim


def _drawn(
    client: distributed.Client,
    blocks: list[Any],
    names: list[str],
    rows: list[int],
    train_rows: Any,
    seed: int,
) -> list[Any]:
    """Futures of the rows of each partition that are in the sample: without one twice, in order."""
    total = sum(rows)
    wanted = 100_000 if train_rows is None else _arrays.integer("train_rows", train_rows)
    if wanted < 1:
        raise InvalidArgument(f"train_rows must be at least 1, but is {wanted}")
    ends = np.cumsum(rows)
    if wanted >= total:
        chosen = np.arange(total)
    else:
        random = np.random.default_rng(seed % 2**64)  # as knear.Index.train takes a negative one
        chosen = np.sort(random.choice(total, wanted, replace=False))
    cuts = np.searchsorted(chosen, ends)
    starts = [0, *cuts[:-1].tolist()]
    return [
        client.submit(_rows_of, block, name, chosen[a:b] - (end - count), pure=False)
        for block, name, a, b, end, count in zip(
            blocks, names, starts, cuts.tolist(), ends.tolist(), rows, strict=True
        )
        if b > a
    ]


def _as_they_are(name: str, x: Any) -> NDArray[Any]:
    """A matrix in an element type that knear takes, of NumPy's own or of ml_dtypes."""
    array, kind = _arrays.matrix(name, x)
    return np.asarray(x) if kind == "bf16" else array


# On workers. An error that knear raises is raised again with the name of the partition before it.


def _named(name: str, work: Any, *words: Any, **more: Any) -> Any:
    try:
        return work(*words, **more)
    except errors.Error as error:
        raise type(error)(f"{name}: {error}") from None


def _read(name: str) -> NDArray[Any]:
    return _named(name, read_vectors, name)


def _rows_of(block: Any, name: str, chosen: NDArray[np.int64]) -> NDArray[Any]:
    return _named(name, lambda: _as_they_are("x", block)[chosen])


def _sample(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts)


def _trained(like: Index, sample: NDArray[Any], seed: int, threads: int) -> Index:
    like.train(sample, seed=seed, threads=threads)
    return like


def _part(like: Index, block: Any, name: str, first: int, threads: int) -> Index:
    def made() -> Index:
        index = like.__copy__()  # the one given stays empty, for the other partitions
        rows = _as_they_are("x", block)
        index.add(rows, ids=np.arange(first, first + len(rows)), threads=threads)
        return index

    return _named(name, made)


def _searched(
    part: Index, name: str, queries: NDArray[Any], k: int, how: dict[str, Any]
) -> PartResult:
    return _named(name, part.search_part, queries, k, **how)


def _merged(parts: list[PartResult], k: int) -> PartResult:
    return merge_parts(parts, k)
