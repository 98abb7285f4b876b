"""What all indexes of knear.faiss share: the checks of arguments, and what follows from search(),
reconstruct_batch() and a few others of each class."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from .._process import cores
from ..errors import Error, MemoryBudgetError, printable
from . import metrics
from .fields import neighbors, of_type, whole, whole_ids
from .missing import Lacking
from .parameters import SearchParameters
from .selectors import IDSelector, selector_of
from .vectors import Ownership

METRIC_INNER_PRODUCT = 0
METRIC_L2 = 1
Float32, Float16, UInt8, Int8 = range(4)  # numeric_type; arrays are converted whatever it says

# The largest id that may be given: those above are left for vectors that are added without ids.
LAST_GIVEN_ID = 2**62

_FLOAT32, _INT64 = np.dtype(np.float32), np.dtype(np.int64)

FAR = np.finfo(np.float32).max  # FAISS's distance of places that no vector fills


class faiss_errors:
    """with faiss_errors(): errors of the library are RuntimeError, as FAISS's are; MemoryError
    stays. A class of its own, since a generator takes longer than a short call."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, Error) and not isinstance(error, MemoryBudgetError):
            raise RuntimeError(str(error)) from error


_threads: list[int] = []
_of_this_thread = threading.local()


def threads() -> int:
    """As omp_set_num_threads() said; 0 for all that the process may use."""
    share = getattr(_of_this_thread, "share", 0)
    return share or (_threads[0] if _threads else 0)


@contextlib.contextmanager
def share_of_threads(parts: int) -> Iterator[None]:
    """Has calls of this thread take one of `parts` equal shares of the threads."""
    before = getattr(_of_this_thread, "share", 0)
    all_threads = threads() or cores()
    _of_this_thread.share = max(1, all_threads // parts)
    try:
        yield
    finally:
        _of_this_thread.share = before


def set_threads(count: int) -> None:
    _threads[:] = [max(1, int(count))]


def refuse(what: str) -> NoReturn:
    raise RuntimeError(printable(what))


def metric_name(metric: int) -> str:
    """knear's name of FAISS's metric."""
    if metric == METRIC_L2:
        return "l2"
    if metric == METRIC_INNER_PRODUCT:
        return "ip"
    raise NotImplementedError(
        f"metric {metric} is not there, only METRIC_L2 and METRIC_INNER_PRODUCT, of IndexFlat and "
        'knn others, too; knear.Index(..., metric="cosine") has the cosine'
    )


def flat_metric_name(metric: int) -> str:
    """knear's name of a metric of FAISS by which an IndexFlat searches."""
    return "l1" if metric == metrics.METRIC_L1 else metric_name(metric)


def matrix(x: Any, columns: int | None = None) -> NDArray[np.float32]:
    """`x` as a contiguous float32 matrix. ValueError unless it has two dimensions; AssertionError
    for another number of columns."""
    if type(x) is np.ndarray and x.dtype == np.float32 and x.flags.c_contiguous:
        n, d = x.shape
        assert columns is None or d == columns, f"there are {d} columns, where {columns} are due"
        return x
    n, d = np.shape(x)
    assert columns is None or d == columns, f"there are {d} columns, where {columns} are due"
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x, np.float32)


def training_rows(
    x: Any, columns: int | None = None, made: str = "codes and centroids"
) -> NDArray[np.float32]:
    """matrix(x, columns) for something to learn from by L2. RuntimeError for float64 rows that
    float32 cannot tell apart: `made` would be the same for all of them."""
    if getattr(x, "dtype", None) == np.float64 and np.ndim(x) == 2 and np.size(x):
        with faiss_errors():
            rows = np.ascontiguousarray(x, np.float64)
            _core.check_float32_tells_apart(rows, "f64", "x", made)
    return matrix(x, columns)


def first_rows(n: int, x: Any, columns: int) -> NDArray[np.float32]:
    """The first n rows of what stands for an address, an array of swig_ptr(), as a matrix."""
    values = np.ravel(x)
    assert values.size >= n * columns, f"{values.size} numbers are no {n} rows of {columns}"
    return matrix(values[: n * columns].reshape(n, columns))


def fill(out: Any, values: NDArray[Any]) -> None:
    """Puts `values` into the first places of what stands for an address."""
    out.reshape(-1)[: values.size] = values.ravel()


FEW_NUMBERS = 1 << 13


def has_nan(x: NDArray[np.float32]) -> bool:
    """Whether a number is NaN; quick for few."""
    if x.dtype is _FLOAT32 and x.flags.c_contiguous:
        return _core.has_nan(x)
    return bool(np.isnan(x).any())


def rows_of_nan(x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows have a NaN: by their sums, so that no matrix of booleans is made."""
    if x.size <= FEW_NUMBERS and not has_nan(x):
        return np.zeros(len(x), np.bool_)
    with np.errstate(all="ignore"):
        out = np.isnan(np.einsum("ij->i", x))
    if out.any():  # infinities of both signs make one, too
        out[out] = np.isnan(x[out]).any(1)
    return out


def id_array(ids: Any, rows: int) -> NDArray[np.int64]:
    """Ids for vectors that are added [rows]: from 0 to LAST_GIVEN_ID, since searches say by a
    negative one that nothing was found."""
    assert np.shape(ids) == (rows,), f"there are {np.shape(ids)} ids for {rows} rows"
    out = whole_ids("ids", ids)
    if rows and not 0 <= out.min() <= out.max() <= LAST_GIVEN_ID:
        wrong = out.min() if out.min() < 0 else out.max()
        raise ValueError(f"ids must be from 0 to 2^62, but one is {wrong}")
    return out


def raised(ids: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    """The ids of an index that is merged into another, with add_id added to each."""
    if len(ids) and by and not 0 <= int(ids.min()) + by <= int(ids.max()) + by <= LAST_GIVEN_ID:
        refuse(f"add_id is {by}, which takes the ids {ids.min()} to {ids.max()} out of 0 to 2^62")
    return ids + by


def no_neighbors(shape: tuple[int, ...], metric: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(distances, ids) of places that no vector fills."""
    far = -FAR if metrics.is_similarity(metric) else FAR
    return np.full(shape, far, np.float32), np.full(shape, -1, np.int64)


def padded(distances: NDArray[Any], ids: NDArray[Any], metric: int) -> Any:
    """(distances, ids) of knear with FAISS's distance where there is no neighbour."""
    # Missing neighbours come last.
    if len(ids) == 1 and ids.size and ids.item(-1) >= 0:
        return distances, ids if ids.dtype is _INT64 else ids.view(np.int64)
    if ids.ndim == 2 and ids.size and ids[:, -1].min() >= 0:
        return distances, ids.view(np.int64)
    distances[ids < 0] = -FAR if metrics.is_similarity(metric) else FAR
    return distances, ids.view(np.int64)  # of C's long, as what SWIG takes


def within(begin: Any, distances: Any, rows: Any, radius: float, metric: int) -> Any:
    """What knear's range_search() found as FAISS has it: without those right at the radius, and
    those of a query in order of their rows."""
    inside = distances > radius if metrics.is_similarity(metric) else distances < radius
    counts = np.concatenate([[0], np.cumsum(inside)])
    lims = counts[np.asarray(begin, np.int64)]
    distances, rows = distances[inside], rows[inside]
    order = np.lexsort((rows, np.repeat(np.arange(len(lims) - 1), np.diff(lims))))
    return lims.astype(np.uint64), distances[order], rows[order].view(np.int64)


def best_of(distances: Any, ids: Any, k: int, metric: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The k best of each row of (distances, ids), ties by id, those of id -1 last."""
    key = -distances if metrics.is_similarity(metric) else distances
    best = np.lexsort((ids, key, ids < 0), axis=1)[:, :k]
    return np.take_along_axis(distances, best, 1), np.take_along_axis(ids, best, 1)


def ranges(n: int, asked: Any, distances: Any, rows: Any, radius: float, metric: int) -> Any:
    """What n queries found, of each hit the query that asked, as range_search() has it."""
    order = np.argsort(asked, kind="stable")
    begin = np.searchsorted(asked[order], np.arange(n + 1))
    return within(begin, distances[order], rows[order], radius, metric)


def places_of(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of `wanted` stands among `ids`, the last place of those that come twice."""
    order = np.argsort(ids, kind="stable")
    there = ids[order]
    places = np.searchsorted(there, wanted, side="right") - 1
    if len(wanted) and (not len(there) or (places < 0).any() or (there[places] != wanted).any()):
        refuse("key not found: an id is not in the index")
    return order[places] if len(wanted) else wanted


def parameters_of(params: Any, kind: type, what: str) -> Any:
    """`params`, if they are of that kind or None."""
    if params is not None and not isinstance(params, kind):
        refuse(f"{what} params have incorrect type: {type(params).__name__}")
    return params


def _refuse_others(params: Any) -> None:
    if not (params is None or isinstance(params, SearchParameters)):
        raise TypeError(f"params must be SearchParameters, but are {type(params).__name__}")


class _Sealed(type):
    """Makes objects that refuse attributes which their class does not set up, and values of other
    types than these have, as FAISS's do."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        made = super().__call__(*args, **options)
        made.__dict__["_sealed"] = True
        return made


class Sealed(Lacking, metaclass=_Sealed):
    _sealed = False
    this, thisown = Ownership(), True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._sealed and not name.startswith("_"):
            known = name in self.__dict__ or hasattr(type(self), name)
            if not known and name != "referenced_objects":
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'.")
            value = of_type(name, self.__dict__.get(name), value)
        object.__setattr__(self, name, value)


class Index(Sealed):
    """The base of all. A class has search() and range_search() in form of _search(), _within(),
    and _decode_rows() to reconstruct; `ntotal` is a property of those that keep vectors."""

    def __init__(self, d: int, metric: int = METRIC_L2) -> None:
        self.d = whole("d", d)
        if self.d < 1:
            made = f": {type(self).__name__}(d) names it, read_index() reads it with the rest"
            refuse(f"d, the number of columns, must be 1 at least, but is {d}" + made * (d == 0))
        self.metric_type = metric
        self.metric_arg = 0.0
        self.verbose = False
        self.is_trained = True
        self.own_fields = False

    @property
    def metric_type(self) -> int:
        """By which metric the next search goes."""
        return self._metric

    @metric_type.setter
    def metric_type(self, metric: int) -> None:
        metric = whole("metric_type", metric)
        self._take_metric(metric)
        self._metric = metric

    # Members that the class itself defines.
    def _take_metric(self, metric: int) -> None:
        """Raises for a metric that the index has not."""
        metric_name(metric)

    def _takes_nan(self) -> bool:
        """Whether a query with NaN may find something."""
        return False

    def _train(self, x: NDArray[np.float32]) -> None: ...

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        raise NotImplementedError

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        refuse(f"range search not implemented for {type(self).__name__}")

    def _parameters(self) -> SearchParameters:
        """Those by which the index searches without any."""
        return SearchParameters()

    def _selecting(self, params: Any, selector: IDSelector) -> SearchParameters:
        """`params`, or the index's own, with a selector beside."""
        out = self._parameters() if params is None else copy.copy(params)
        if out.sel is not None:
            refuse("a selector is given twice: for the index and for its base")
        out.sel = selector
        return out

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of these ids; RuntimeError for one that is not there."""
        refuse("reconstruct not implemented for this type of index")

    def __repr__(self) -> str:
        return f"<knear.faiss.{type(self).__name__} d={self.d}, {self.ntotal} vectors>"

    # Shared.
    def train(self, x: ArrayLike, *, numeric_type: int = Float32, xq_train: Any = None) -> None:
        """Learns from the rows of `x` [n x d]."""
        learns = not self.is_trained and self.metric_type == METRIC_L2
        rows = (training_rows if learns else matrix)(x, self.d)
        with faiss_errors():
            self._train(rows)

    def add(self, x: ArrayLike, *, numeric_type: int = Float32) -> None:
        """Adds vectors to the index: the rows of `x` [n x d], under ids from ntotal on."""
        rows = matrix(x, self.d)
        with faiss_errors():
            self._add(rows, None)

    def add_with_ids(self, x: ArrayLike, ids: ArrayLike, *, numeric_type: int = Float32) -> None:
        """Adds the rows of `x` [n x d] under `ids` [n]."""
        rows = matrix(x, self.d)
        with faiss_errors():
            self._add(rows, id_array(ids, len(rows)))

    def search(
        self,
        x: ArrayLike,
        k: int,
        *,
        params: SearchParameters | None = None,
        D: Any = None,
        I: Any = None,  # noqa: E741
        numeric_type: int = Float32,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(distances, ids), both [n x k], nearest first, id -1 where nothing is left. `D` and `I`
        are arrays that take them."""
        rows = matrix(x, self.d)
        k = neighbors(k)
        _refuse_others(params)
        lost = None
        if rows.size > FEW_NUMBERS or has_nan(rows):
            lost = None if self._takes_nan() else rows_of_nan(rows)
            if lost is not None and lost.any():  # queries that find nothing
                rows = np.where(lost[:, None], np.float32(0), rows)
            else:
                lost = None
        with faiss_errors():
            distances, ids = self._search(rows, k, params)
        if lost is not None:
            distances[lost], ids[lost] = no_neighbors((k,), self.metric_type)
        return into(D, distances), into(I, ids)

    def range_search(
        self,
        x: ArrayLike,
        thresh: float,
        *,
        params: SearchParameters | None = None,
        numeric_type: int = Float32,
    ) -> tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.int64]]:
        """(lims [n + 1], distances, ids): those of query i stand at lims[i] : lims[i + 1], all with
        a distance below `thresh`, or an inner product above it; in order of adding."""
        rows = matrix(x, self.d)
        _refuse_others(params)
        radius = float(np.float32(float(thresh)))
        there = np.ones(len(rows), np.bool_)
        if not self._takes_nan():
            there = ~rows_of_nan(rows)  # a query of NaN finds nothing
        with faiss_errors():
            lims, distances, ids = self._within(rows[there], radius, params)
        if there.all():
            return lims, distances, ids
        return lims[np.concatenate([[0], np.cumsum(there)])], distances, ids

    def assign(self, x: ArrayLike, k: int = 1, labels: Any = None) -> NDArray[np.int64]:
        """The ids [n x k] of search()."""
        return into(labels, self.search(x, k)[1])

    def reconstruct(self, key: int, x: Any = None) -> NDArray[np.float32]:
        """The vector [d] of this id, or what its code stands for."""
        return into(x, self.reconstruct_batch(np.array([whole("key", key)], np.int64))[0])

    def reconstruct_batch(self, key: ArrayLike, x: Any = None) -> NDArray[np.float32]:
        """Those of these ids [n x d]."""
        keys = whole_ids("key", key)
        (_,) = keys.shape
        with faiss_errors():
            return into(x, self._vectors_of(keys))

    def reconstruct_n(self, n0: int = 0, ni: int = -1, x: Any = None) -> NDArray[np.float32]:
        """Those of ids n0, n0 + 1, ...: ni of them, or all that follow."""
        n0, ni = whole("n0", n0), whole("ni", ni)
        ni = self.ntotal - n0 if ni == -1 else ni
        if ni and not (n0 >= 0 and n0 + ni <= self.ntotal):
            refuse(f"reconstruct_n: {n0} to {n0 + ni} are not all among {self.ntotal}")
        with faiss_errors():
            return into(x, self._vectors_from(n0, max(0, ni)))

    def _vectors_from(self, first: int, count: int) -> NDArray[np.float32]:
        return self._vectors_of(np.arange(first, first + count))

    def search_and_reconstruct(
        self,
        x: ArrayLike,
        k: int,
        *,
        params: SearchParameters | None = None,
        D: Any = None,
        I: Any = None,  # noqa: E741
        R: Any = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
        """search(), and the vectors that were found [n x k x d], NaN where there are none."""
        distances, ids = self.search(x, k, params=params, D=D, I=I)
        vectors = np.full((*ids.shape, self.d), np.nan, np.float32)
        found = ids >= 0
        with faiss_errors():
            vectors[found] = self._vectors_of_found(ids[found])
        return distances, ids, into(R, vectors)

    def _vectors_of_found(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._vectors_of(ids)

    def get_distance_computer(self) -> DistanceComputer:
        """What measures single vectors of this index, as it does in a search."""
        return DistanceComputer(self)

    def compute_residual(self, x: Any, residual: Any, key: int) -> None:
        """Puts `x` [d] less the vector of this id into an array."""
        fill(residual, first_rows(1, x, self.d)[0] - self.reconstruct(key))

    def compute_residual_n(self, *given: Any) -> Any:
        """(x, keys): `x` less the vectors of these ids [n x d]. (n, x, residuals, keys), as FAISS
        has it: the same, put into an array."""
        if len(given) == 2:
            x, keys = given
            return matrix(x, self.d) - self.reconstruct_batch(keys)
        n, x, residuals, keys = given
        ids = np.ravel(keys)[:n]
        fill(residuals, first_rows(n, x, self.d) - self.reconstruct_batch(ids))
        return None

    def train_with_queries(self, n: int, x: Any, n_train_q: int, xq_train: Any) -> None:
        """train() by the first n rows of `x`: no index here learns from queries."""
        self.train(first_rows(n, x, self.d))

    def remove_ids(self, x: Any) -> int:
        """Removes the vectors that an IDSelector or an array of ids names, and says how many."""
        with faiss_errors():
            return int(self._remove(selector_of(x)))

    def _remove(self, selector: Any) -> int:
        refuse("remove_ids not implemented for this type of index")

    def _close_up(self, kept: NDArray[np.bool_]) -> None:
        """Moves ids up after _remove(), which left these of 0, 1, ..., for an index around this one
        that counts on it. Most do so by themselves."""

    def reset(self) -> None:
        """Removes all vectors."""
        raise NotImplementedError

    def merge_from(self, otherIndex: Any, add_id: int = 0) -> None:
        """Takes over the vectors of another index of the same kind, which is empty then; add_id is
        added to their ids, where an index has ids of its own."""
        self.check_compatible_for_merge(otherIndex)
        if add_id and not self._has_ids():
            refuse(f"ids go on from ntotal: add_id must be 0, but is {add_id}")
        with faiss_errors():
            self._merge(otherIndex, add_id)

    def _has_ids(self) -> bool:
        """Whether ids are kept: else they are places."""
        return False

    def check_compatible_for_merge(self, otherIndex: Any) -> None:
        if type(otherIndex) is not type(self) and not (
            isinstance(otherIndex, type(self)) or isinstance(self, type(otherIndex))
        ):
            refuse(f"a {type(otherIndex).__name__} cannot be merged into {type(self).__name__}")
        if otherIndex is self:
            refuse("otherIndex is the index itself: its vectors would be lost")
        if (otherIndex.d, otherIndex.metric_type) != (self.d, self.metric_type):
            refuse("indexes of other dimensions or metrics cannot be merged")

    def _merge(self, other: Any, add_id: int) -> None:
        refuse("merge_from not implemented for this type of index")

    # Codes of an index by itself.
    def sa_code_size(self) -> int:
        """Bytes of a code of sa_encode()."""
        refuse("standalone codec not implemented for this type of index")

    def _encode(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        refuse("standalone codec not implemented for this type of index")

    def _decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        refuse("standalone codec not implemented for this type of index")

    def sa_encode(self, x: ArrayLike, codes: Any = None) -> NDArray[np.uint8]:
        """The codes [n x sa_code_size()] of `x` [n x d]; nothing is added."""
        rows = matrix(x, self.d)
        with faiss_errors():
            return into(codes, self._encode(rows))

    def sa_decode(self, codes: Any, x: Any = None) -> NDArray[np.float32]:
        """What codes [n x sa_code_size()] of sa_encode() stand for [n x d]."""
        n, size = np.shape(codes)
        if np.asarray(codes).dtype != np.uint8:
            raise TypeError(f"codes must be uint8, but are {np.asarray(codes).dtype}")
        assert size == self.sa_code_size(), f"codes have {size} bytes, not {self.sa_code_size()}"
        with faiss_errors():
            return into(x, self._decode(np.ascontiguousarray(codes)))

    def add_sa_codes(self, codes: Any, ids: Any = None) -> None:
        """Adds codes of sa_encode()."""
        n, size = np.shape(codes)
        assert size == self.sa_code_size(), f"codes have {size} bytes, not {self.sa_code_size()}"
        with faiss_errors():
            self._add_codes(
                np.ascontiguousarray(codes, np.uint8), None if ids is None else id_array(ids, n)
            )

    def _add_codes(self, codes: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        refuse("add_sa_codes not implemented for this type of index")


def measured(
    x: NDArray[np.float32], y: NDArray[np.float32], metric: int, metric_arg: float
) -> NDArray[np.float32]:
    """The distances, or inner products, [n] of `x` [d] and the rows of `y` [n x d]."""
    if metrics.is_other(metric):
        return metrics.distances(x[None], y, metric, metric_arg)[0]
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(over="ignore"):
        return (np.square(a - b).sum(1) if metric == METRIC_L2 else b @ a).astype(np.float32)


class DistanceComputer(Sealed):
    """set_query(x), and then computer(i): the distance, or inner product, of the vector i."""

    def __init__(self, index: Index, change: Any = None) -> None:
        self._index, self._change = index, change
        self._query: Any = None

    def set_query(self, x: Any) -> None:
        query = np.ascontiguousarray(x, np.float32).reshape(1, -1)
        self._query = (query if self._change is None else self._change(query))[0]

    def _measured(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
        return float(measured(a, b[None], self._index.metric_type, self._index.metric_arg)[0])

    def __call__(self, i: int) -> float:
        if self._query is None:
            refuse("set_query() comes first")
        return self._measured(self._query, self._index.reconstruct(i))

    def symmetric_dis(self, i: int, j: int) -> float:
        """The distance of two vectors of the index."""
        return self._measured(self._index.reconstruct(i), self._index.reconstruct(j))


def into(out: Any, values: NDArray[Any]) -> Any:
    """`values`, or `out` with these, which must have their shape."""
    if out is None:
        return values
    assert out.shape == values.shape, f"an array {out.shape} cannot take {values.shape}"
    out[...] = values
    return out
