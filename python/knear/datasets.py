"""knear.datasets: knear as the index of a column of a Hugging Face dataset.

    import knear.datasets

    knear.datasets.add_index(dataset, "embeddings", metric="cosine")
    scores, examples = dataset.get_nearest_examples("embeddings", query, k=10)
    knear.datasets.save_index(dataset, "embeddings", "embeddings.knear")

    knear.datasets.load_index(dataset, "embeddings", "embeddings.knear")     # another day

The dataset's own methods do the rest, as after its add_faiss_index: search, search_batch,
get_nearest_examples, get_nearest_examples_batch, get_index, list_indexes, drop_index. They hand
keywords on to knear.Index.search, which refuses those it does not know: recall=, probes=, filter=
(numbers of rows, or a bool for each), threads= and so on.

    dataset.get_nearest_examples("embeddings", query, k=10, filter=[3, 5, 8], recall=0.95)

Scores are knear's distances: squared for "l2", 1 - cos for "cosine", and products for "ip"; nearest
first, equal ones by the number of the row. Where fewer than k rows can be found, search() and
search_batch() fill up with the row -1 and an infinite score, as with FAISS; examples are fewer.

A dataset offers no public way to attach an index of another kind than its own two: this module puts
a datasets.search.BaseIndex into the dict `_indexes` where the dataset keeps those. A version of
datasets without that dict is refused. FAISS need not be installed.

datasets is needed: pip install ".[datasets]" in a clone of knear. It is imported with this module
alone, not with knear.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

try:
    import datasets
    from datasets.search import BaseIndex, BatchedSearchResults, SearchResults
except ImportError as error:
    raise ImportError(
        'knear.datasets needs datasets: pip install ".[datasets]" in a clone of knear'
    ) from error

from . import _arrays, _foreign
from ._index import Index
from .errors import InvalidArgument, ShapeMismatch

__all__ = [
    "KnearIndex",
    "add_index",
    "add_index_from_external_arrays",
    "load_index",
    "save_index",
]


class KnearIndex(BaseIndex):
    """A knear.Index as datasets searches it: row i of the dataset has the id i.

    >>> import knear, numpy as np
    >>> from knear.datasets import KnearIndex
    >>> index = knear.Index("Flat", dim=2)
    >>> index.add(np.eye(2, dtype=np.float32))
    >>> scores, indices = KnearIndex(index).search(np.array([0.9, 0.0]), k=1)
    >>> indices.tolist()
    [0]

    Copies of a dataset, which its with_format() and others make, have the same index, not one more.
    """

    def __init__(self, index: Index) -> None:
        if not isinstance(index, Index):
            raise InvalidArgument(f"index must be a knear.Index, but is {type(index).__name__}")
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def __deepcopy__(self, memo: dict[int, Any]) -> KnearIndex:
        return self

    def search(self, query: ArrayLike, k: int = 10, **options: Any) -> SearchResults:
        """(scores, indices), both [k], of the rows nearest to `query`, [dim] or [1 x dim].

        options: those of knear.Index.search, as are the errors.
        """
        array = _foreign.array_of("query", query)
        if array.ndim == 1:
            array = array[np.newaxis]
        if array.ndim != 2 or len(array) != 1:
            raise InvalidArgument(
                f"query must be one vector, [dim] or [1 x dim], but has shape {array.shape}: "
                "search_batch() takes several"
            )
        found = self.index.search(array, k, **options)
        return SearchResults(found.distances[0], found.ids[0])

    def search_batch(self, queries: ArrayLike, k: int = 10, **options: Any) -> BatchedSearchResults:
        """(scores, indices), both [q x k], of the rows nearest to each of `queries` [q x dim].

        options: those of knear.Index.search, as are the errors.
        """
        return BatchedSearchResults(*self.index.search(queries, k, **options))

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes a .knear file, whole or not at all. Raises IoError."""
        self.index.save(file)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> KnearIndex:
        """Opens a .knear file, as knear.Index.load does. Raises IoError; CorruptFile."""
        return cls(Index.load(file))


def add_index(
    dataset: datasets.Dataset,
    column: str,
    index_name: str | None = None,
    *,
    factory: str = "Flat",
    metric: str = "l2",
    batch_size: int = 10_000,
    train_size: int | None = None,
    threads: int = 0,
) -> datasets.Dataset:
    """Indexes a column of vectors of `dataset`, which is also returned.

    >>> import datasets, knear.datasets, numpy as np
    >>> dataset = datasets.Dataset.from_dict({"at": [[0.0, 0.0], [3.0, 4.0]], "is": ["a", "b"]})
    >>> dataset = knear.datasets.add_index(dataset, "at")
    >>> scores, examples = dataset.get_nearest_examples("at", np.array([3.0, 3.0]), k=1)
    >>> scores.tolist(), examples["is"]
    ([1.0], ['b'])

    column: of lists of one length (List(Value("float32"), length=...) or without the length), with
        elements of any type that knear takes; read from Arrow `batch_size` rows at a time, in the
        order of the dataset, whatever its format.
    index_name: what the index is called in the dataset's methods; None: as the column. One of that
        name that is there already is replaced.
    factory: the kind of index, as in knear.Index; "auto" chooses for so many rows.
    metric: "l2", "ip" or "cosine".
    train_size: for an index that has to learn: from as many rows, drawn at random; None: 256 for
        each inverted list, 65,536 at least, or all where there are fewer.
    threads: how many to use; 0 for all that the process may use.

    Raises InvalidArgument where there is no such column, for what are no vectors, for a row without
    a value, a NaN or infinity, and for too few rows to learn from; that or ShapeMismatch for
    vectors of different lengths. Then the dataset is as it was.
    """
    _checked(dataset)
    _arrays.text("column", column)
    if column not in dataset.column_names:
        there = ", ".join(map(repr, dataset.column_names))
        raise InvalidArgument(f"column {column!r} is none of the dataset's: {there}")
    rows = dataset.with_format("arrow", columns=[column])

    def taken(which: Any) -> np.ndarray:
        return _foreign.array_of("vectors", rows[which].column(column))

    _attach(dataset, column if index_name is None else index_name, f"column {column!r}", taken,
            factory, metric, batch_size, train_size, threads)  # fmt: skip
    return dataset


def add_index_from_external_arrays(
    dataset: datasets.Dataset,
    external_arrays: ArrayLike,
    index_name: str,
    *,
    factory: str = "Flat",
    metric: str = "l2",
    batch_size: int = 10_000,
    train_size: int | None = None,
    threads: int = 0,
) -> datasets.Dataset:
    """Indexes vectors that are no column of `dataset`: row i of the matrix `external_arrays`
    [n x dim] is that of example i. It may be whatever knear takes, bfloat16 too, which Arrow has
    not. Other arguments and errors are those of add_index; ShapeMismatch for more or fewer vectors
    than the dataset has rows.
    """
    _checked(dataset)
    matrix = _foreign.array_of("external_arrays", external_arrays)
    if matrix.ndim != 2 or len(matrix) != len(dataset):
        raise ShapeMismatch(
            f"external_arrays have shape {matrix.shape}, but the dataset has {len(dataset)} rows"
        )
    _attach(dataset, index_name, "external_arrays", matrix.__getitem__, factory, metric,
            batch_size, train_size, threads)  # fmt: skip
    return dataset


def save_index(dataset: datasets.Dataset, index_name: str, file: str | os.PathLike[str]) -> None:
    """Writes an index of `dataset` to a .knear file, whole or not at all; on a disk, not to a
    remote URI. Raises InvalidArgument for an index of another kind; IoError.
    """
    index = _checked(dataset).get_index(index_name)
    if not isinstance(index, KnearIndex):
        raise InvalidArgument(
            f"index_name {index_name!r} is a {type(index).__name__}, not one of knear"
        )
    index.save(file)


def load_index(
    dataset: datasets.Dataset, index_name: str, file: str | os.PathLike[str]
) -> datasets.Dataset:
    """Opens a .knear file that save_index wrote as an index of `dataset`, which is also returned.

    The vectors stay in the file until they are used. Whether they are those of this dataset is for
    you to know: looked at is their number.

    Raises ShapeMismatch where the ids are not 0, 1, ... to the last row; IoError; CorruptFile.
    """
    _checked(dataset)
    index = KnearIndex.load(file)
    if not np.array_equal(index.index.ids, np.arange(len(dataset))):
        raise ShapeMismatch(
            f"{os.fspath(file)} has {len(index)} vectors, but the dataset {len(dataset)} rows, "
            "whose numbers are the ids"
        )
    dataset._indexes[_name(index_name)] = index
    return dataset


def _checked(dataset: Any) -> datasets.Dataset:
    if not isinstance(dataset, datasets.Dataset):
        raise InvalidArgument(
            f"dataset must be a datasets.Dataset, but is {type(dataset).__name__}"
        )
    if not isinstance(getattr(dataset, "_indexes", None), dict):
        raise InvalidArgument(
            f"datasets {datasets.__version__} keeps its indexes elsewhere than knear.datasets knows"
        )
    return dataset


def _name(index_name: Any) -> str:
    return _arrays.text("index_name", index_name)


def _attach(
    dataset: datasets.Dataset, index_name: str, name: str, taken: Any, factory: str, metric: str,
    batch_size: int, train_size: int | None, threads: int,
) -> None:  # fmt: skip
    """Makes an index of the vectors that `taken` gives for a slice or an array of rows."""
    _name(index_name)
    rows, step = len(dataset), _arrays.integer("batch_size", batch_size)
    if step < 1:
        raise InvalidArgument(f"batch_size must be at least 1, but is {step}")
    if rows == 0:
        raise InvalidArgument("the dataset has no rows, and so no vectors to make an index for")
    with _located(name, 0, 1):
        first = taken(slice(0, 1))
        if first.ndim != 2:
            raise InvalidArgument(f"vectors are of shape {first.shape[1:]}")
    needs: dict[str, Any] = {"rows": rows} if factory == "auto" else {}
    index = Index(factory, dim=first.shape[1], metric=metric, **needs)
    if not index.is_trained:
        sample = _sample(rows, train_size, index.lists)
        with _located(name, sample[0], sample[-1] + 1):
            parts = [taken(part) for part in np.split(sample, range(step, len(sample), step))]
            index.train(_stacked(parts), threads=threads)
    elif train_size is not None:
        raise InvalidArgument(f"train_size is {train_size}, but index {factory} learns nothing")
    index.reserve(rows)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        with _located(name, begin, end):
            index.add(taken(slice(begin, end)), threads=threads)
    dataset._indexes[index_name] = KnearIndex(index)


@contextmanager
def _located(name: str, begin: int, end: int) -> Iterator[None]:
    """Puts before what knear refuses where the vectors are from."""
    try:
        yield
    except (InvalidArgument, ShapeMismatch) as error:
        raise type(error)(f"{name}, rows {begin}:{end}: {error}") from error


def _stacked(parts: list[np.ndarray]) -> np.ndarray:
    lengths = sorted({part.shape[1:] for part in parts})
    if len(lengths) > 1:
        raise ShapeMismatch(f"vectors have shapes {lengths[0]} and {lengths[-1]}")
    return np.concatenate(parts)


def _sample(rows: int, train_size: int | None, lists: int) -> np.ndarray:
    """Ascending numbers of rows to learn from."""
    if train_size is None:
        size = min(rows, max(256 * lists, 65_536))
    else:
        size = _arrays.integer("train_size", train_size)
        if not 1 <= size <= rows:
            raise InvalidArgument(f"train_size must be from 1 to {rows}, but is {size}")
    return np.sort(np.random.default_rng(1).choice(rows, size, replace=False))
