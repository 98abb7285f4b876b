"""What searches return: tuples that also know how the search went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _core, _device
from .errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow


class _Searched:
    """How a search went, as _core reports it: a dict is made of it when someone asks."""

    _told: Any = None

    @property
    def plan(self) -> dict[str, Any]:
        """What was planned and what happened: "method", "first_pass", "seconds",
        "survivors_per_query", "memory_bytes", ... The same as a `report=` dict gets."""
        if self._told is None:
            raise InvalidArgument("plan is that of a search, but this result was made by hand")
        if not isinstance(self._told, dict):
            self._told = self._told.as_dict()
        return self._told

    @property
    def promised_recall(self) -> float:
        """The mean share of the true neighbours that a batch of this many queries has, but for one
        batch in 1,000: 1 where the answer is exact, 0 where nothing is promised (plan["note"] says
        why, as of an index that keeps vectors transformed or rounded) and of a single query whose
        answer is not exact."""
        return self.plan["promised_recall"]

    @property
    def expected_recall(self) -> float:
        """The mean share of the true neighbours that queries like these have, as calibration found
        it: 1 where the answer is exact, 0 where nothing is known."""
        return self.plan["expected_recall"]

    @property
    def certified(self) -> NDArray[np.bool_]:
        """Whether the answer of each query [q] is proven to be that of an exact search; [1] of one
        vector."""
        plan = self.plan
        queries, certified = plan["queries"], plan["certified_queries"]
        out = np.full(queries, certified > 0)
        if certified < queries:
            out[plan.get("uncertified", [])] = False
        return out

    def _replace(self, **fields: Any) -> Any:
        made = super()._replace(**fields)  # type: ignore[misc]
        made._told = self._told
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"_told": None if self._told is None else self.plan}


class _Nearest(NamedTuple):
    distances: NDArray[np.float32]
    ids: NDArray[np.int64]


class SearchResult(_Searched, _Nearest):
    """(distances, ids), both [q x k], nearest first; and `plan`, `certified`,
    `promised_recall`, `expected_recall`.

    >>> import knear, numpy as np
    >>> base = np.eye(4, dtype=np.float32)
    >>> found = knear.knn(base[:2], base, k=1)
    >>> distances, ids = found
    >>> ids.tolist(), found.ids is ids
    ([[0], [1]], True)
    >>> found.certified.tolist(), found.promised_recall, found.plan["method"]
    ([True, True], 1.0, 'exact')
    >>> found.expected_recall
    1.0

    Both are [k] where one vector was searched for, and not a matrix of one row. `vectors` has those
    that were found, [q x k x dim], where Index.search() was asked for them, and is None otherwise.
    """

    vectors: NDArray[Any] | None = None

    def _replace(self, **fields: Any) -> Any:
        made = super()._replace(**fields)
        made.vectors = self.vectors
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "vectors": self.vectors}

    def to_arrow(self) -> pyarrow.Table:
        """The neighbours as a table of Arrow, for SQL and data frames to join: a row for each, with
        the columns "query" and "rank" (int64, from 0), "id" (int64), "distance" (float32), in this
        order of the queries and ranks. Places without a neighbour (id -1) are left out.

        >>> import knear, numpy as np
        >>> base = np.array([[0.0], [1.0], [3.0]])
        >>> table = knear.knn(base[:2], base, k=2).to_arrow()
        >>> table.column_names, table.num_rows
        (['query', 'rank', 'id', 'distance'], 4)
        >>> table["id"].to_pylist()
        [0, 1, 1, 0]

        Raises InvalidArgument where the package pyarrow is not installed.
        """
        distances, ids = (np.atleast_2d(_device.to_processor("found", each)) for each in self)
        query, rank = np.nonzero(ids >= 0)
        return _table(query, rank, ids[query, rank], distances[query, rank])


_core.set_result_types(np.ndarray, np.empty, np.dtype(np.float32), np.dtype(np.int64), SearchResult)


class _Within(NamedTuple):
    begin: NDArray[np.int64]
    distances: NDArray[np.float32]
    ids: NDArray[np.int64]


class RangeResult(_Searched, _Within):
    """(begin, distances, ids): those of query i stand at begin[i] : begin[i + 1]; and `plan`.

    >>> import knear, numpy as np
    >>> base = np.array([[0.0], [1.0], [3.0]])
    >>> found = knear.range_search([[0.0], [9.0]], base, radius=1)
    >>> [found.ids[a:b].tolist() for a, b in zip(found.begin, found.begin[1:])]
    [[0, 1], []]
    >>> found.certified.tolist(), found.promised_recall, found.plan["queries"]
    ([True, True], 1.0, 2)
    >>> found.expected_recall
    1.0
    """

    def to_arrow(self) -> pyarrow.Table:
        """As SearchResult.to_arrow: "rank" counts from the nearest of each query.

        >>> import knear, numpy as np
        >>> base = np.array([[0.0], [1.0], [3.0]])
        >>> knear.range_search([[0.0], [3.0]], base, radius=4).to_arrow()["rank"].to_pylist()
        [0, 1, 0, 1]
        """
        begin, distances, ids = (_device.to_processor("found", each) for each in self)
        begin = np.asarray(begin)
        query = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
        return _table(query, np.arange(len(query)) - begin[query], ids, distances)


def _table(query: Any, rank: Any, ids: Any, distances: Any) -> pyarrow.Table:
    try:
        import pyarrow
    except ImportError:
        raise InvalidArgument(
            "to_arrow() needs the package pyarrow, but that is not installed"
        ) from None
    columns = {"query": query, "rank": rank, "id": ids, "distance": distances}
    return pyarrow.table({name: np.asarray(column) for name, column in columns.items()})


def searched(kind: type, arrays: Any, told: Any, report: dict | None) -> Any:
    """A `kind` of these arrays; `report` is emptied and filled, if there is one."""
    result: Any = tuple.__new__(kind, arrays)
    result._told = told
    if report is not None:
        report.clear()
        report.update(result.plan)
    return result


# Copying this many numbers is faster than making an array of the library's memory.
_FEW = 4096


def room(
    out: Any, rows: int, k: int, options: Mapping[str, Any] | None = None
) -> tuple[Any, Any] | None:
    """(distances, ids) [rows x k] for _core to write to: those of `out`, or new ones where they are
    small; None where _core makes them."""
    if out is None and not options:
        return _few(rows, k)
    if options and not options.get("aggregate_to_topk", True):
        if out is not None:
            raise InvalidArgument(
                "out is given, but aggregate_to_topk is False, which keeps more than k columns"
            )
        return None
    if out is None:
        return _few(rows, k)
    check_pair(out, (rows, k), distances=np.float32, ids=np.int64)
    return out if all(array.flags.c_contiguous for array in out) else None


def rows_of_one(out: Any, k: int) -> Any:
    """`out`, two arrays [k] for the answer to one vector, as arrays [1 x k] in the same memory."""
    check_pair(out, (k,), distances=np.float32, ids=np.int64)
    return None if out is None else tuple(array[np.newaxis] for array in out)


def bytes_shown(count: int) -> str:
    """A number of bytes as people read it: 1.5 MB."""
    size, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"


def check_pair(out: Any, shape: tuple[int, ...], **types: Any) -> None:
    """Refuses what is no tuple of two arrays of these types and this shape; None is taken."""
    if out is None:
        return
    if not (isinstance(out, tuple) and len(out) == 2):
        raise InvalidArgument(
            f"out must be a tuple ({', '.join(types)}), but is {type(out).__name__}"
        )
    for (name, dtype), array in zip(types.items(), out, strict=True):
        _check(f"out: {name}", array, dtype, shape, "are")


def check_array(out: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuses what is no array of this type and shape; None is taken."""
    if out is not None:
        _check("out", out, dtype, shape, "is")


def _check(name: str, array: Any, dtype: Any, shape: tuple[int, ...], verb: str) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        what = getattr(array, "dtype", type(array).__name__)
        raise InvalidArgument(f"{name} must be a NumPy array of {np.dtype(dtype).name}: {what}")
    if array.shape != shape:
        raise InvalidArgument(f"{name} must be {shape}, but {verb} {array.shape}")
    if not array.flags.writeable:
        raise InvalidArgument(f"{name} cannot be written to")


def _few(rows: int, k: int) -> tuple[Any, Any] | None:
    if 0 < rows * k <= _FEW and k > 0:
        return np.empty((rows, k), np.float32), np.empty((rows, k), np.int64)
    return None


def into(out: Any, found: Any) -> Any:
    """`found`, an array or several, or if there is `out`, this with the same content."""
    if out is None:
        return found
    if isinstance(out, np.ndarray):
        np.copyto(out, found)
        return out
    for to, values in zip(out, found, strict=True):
        if to is not values:
            np.copyto(to, values)
    return out
