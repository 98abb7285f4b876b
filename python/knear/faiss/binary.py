"""Indexes of vectors of bits, eight in a byte, searched exactly by Hamming distances."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _search
from .._index import Index as KnearIndex
from .base import Sealed, faiss_errors, id_array, into, raised, refuse, threads
from .fields import neighbors, whole
from .interrupts import interruptions
from .io import Reader, Writer, _of_array, _read, _write, _written
from .numbering import Numbering
from .parameters import SearchParameters
from .selectors import rows_named, selector_of
from .vectors import Copy, IdVector, UInt8Vector

_FARTHEST = np.iinfo(np.int32).max  # beside id -1
_MOST_NESTED = 10


def _bits(x: Any, size: int | None = None) -> NDArray[np.uint8]:
    """`x` as a matrix of bytes. TypeError for another type, AssertionError for another width."""
    given = np.asarray(x)
    if given.dtype != np.uint8:
        raise TypeError(f"vectors of bits must be uint8, eight bits a byte, but are {given.dtype}")
    n, bytes_ = given.shape
    assert size is None or bytes_ == size, f"vectors have {bytes_} bytes, where {size} are due"
    return np.ascontiguousarray(given)


def _found(distances: Any, ids: Any) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    far = np.where(ids < 0, np.float64(_FARTHEST), distances).astype(np.int32)
    return far, np.array(ids, np.int64)


class IndexBinary(Sealed):
    """The base of all: d bits a vector, a multiple of 8."""

    def __init__(self, d: int = 0) -> None:
        self.d = whole("d", d)
        if self.d < 0 or self.d % 8:
            refuse(f"d, the number of bits, must be a multiple of 8, but is {d}")
        self.code_size = self.d // 8
        self.metric_type = 1
        self.is_trained = True
        self.verbose = False

    def __repr__(self) -> str:
        return f"<knear.faiss.{type(self).__name__} d={self.d}, {self.ntotal} vectors>"

    def train(self, x: ArrayLike) -> None:
        """Learns nothing: `x` [n x d / 8] is looked at alone."""
        _bits(x, self.code_size)

    def add(self, x: ArrayLike) -> None:
        """Adds the rows of `x` [n x d / 8], under ids from ntotal on."""
        rows = _bits(x, self.code_size)
        with faiss_errors():
            self._add(rows, None)

    def add_with_ids(self, x: ArrayLike, ids: ArrayLike) -> None:
        """Adds the rows of `x` [n x d / 8] under `ids` [n]."""
        rows = _bits(x, self.code_size)
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
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(distances, ids), both [n x k]: numbers of bits that differ, nearest first, ties by id;
        2147483647 and -1 where nothing is left."""
        rows, k = _bits(x, self.code_size), neighbors(k)
        if not (params is None or isinstance(params, SearchParameters)):
            raise TypeError(f"params must be SearchParameters, but are {type(params).__name__}")
        with faiss_errors():
            distances, ids = self._search(rows, k, getattr(params, "sel", None))
        return into(D, distances), into(I, ids)

    def range_search(
        self, x: ArrayLike, thresh: int, *, params: SearchParameters | None = None
    ) -> tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.int64]]:
        """(lims [n + 1], distances, ids): those of query i stand at lims[i] : lims[i + 1], all at a
        distance below `thresh`, in order of ids."""
        rows = _bits(x, self.code_size)
        if not (params is None or isinstance(params, SearchParameters)):
            raise TypeError(f"params must be SearchParameters, but are {type(params).__name__}")
        with faiss_errors():
            return self._within(rows, whole("thresh", thresh), getattr(params, "sel", None))

    def assign(self, x: ArrayLike, k: int = 1, labels: Any = None) -> NDArray[np.int64]:
        """The ids [n x k] of search()."""
        return into(labels, self.search(x, k)[1])

    def reconstruct(self, key: int, x: Any = None) -> NDArray[np.uint8]:
        """The vector [d / 8] of this id."""
        with faiss_errors():
            return into(x, self._vectors_of(np.array([whole("key", key)], np.int64))[0])

    def reconstruct_n(self, n0: int = 0, ni: int = -1, x: Any = None) -> NDArray[np.uint8]:
        """Those of ids n0, n0 + 1, ...: ni of them, or all that follow."""
        n0, ni = whole("n0", n0), whole("ni", ni)
        ni = self.ntotal - n0 if ni == -1 else ni
        with faiss_errors():
            return into(x, self._vectors_of(np.arange(n0, n0 + ni)))

    def search_and_reconstruct(
        self, x: ArrayLike, k: int, *, params: SearchParameters | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
        """search(), and the vectors that were found [n x k x d / 8], 255 where there are none."""
        distances, ids = self.search(x, k, params=params)
        vectors = np.full((*ids.shape, self.code_size), 255, np.uint8)
        with faiss_errors():
            vectors[ids >= 0] = self._vectors_of(ids[ids >= 0])
        return distances, ids, vectors

    def remove_ids(self, x: Any) -> int:
        """Removes the vectors that an IDSelector or an array of ids names, and says how many."""
        with faiss_errors():
            return self._remove(selector_of(x))

    def check_compatible_for_merge(self, otherIndex: Any) -> None:
        if type(otherIndex) is not type(self):
            refuse(f"a {type(otherIndex).__name__} cannot be merged into {type(self).__name__}")
        if otherIndex is self:
            refuse("otherIndex is the index itself: its vectors would be lost")
        if otherIndex.d != self.d:
            refuse("indexes of other dimensions cannot be merged")

    def merge_from(self, otherIndex: Any, add_id: int = 0) -> None:
        """Takes over the vectors of another index of the same kind, which is empty then."""
        self.check_compatible_for_merge(otherIndex)
        with faiss_errors():
            self._merge(otherIndex, add_id)

    def display(self) -> None:
        """Prints what it is."""
        print(f"Index: {type(self).__name__}  -> {self.ntotal} elements")

    def sa_code_size(self) -> int:
        return self.code_size

    def add_sa_codes(self, codes: Any, ids: Any = None) -> None:
        """Adds codes, which are the vectors themselves."""
        if ids is None:
            self.add(codes)
        else:
            self.add_with_ids(codes, ids)

    # A class defines the methods below.
    @property
    def ntotal(self) -> int:
        raise NotImplementedError

    def reset(self) -> None:
        """Removes all vectors."""
        raise NotImplementedError

    def _add(self, x: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        raise NotImplementedError

    def _search(self, x: NDArray[np.uint8], k: int, selector: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def _within(self, x: NDArray[np.uint8], radius: int, selector: Any) -> Any:
        raise NotImplementedError

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        raise NotImplementedError

    def _remove(self, selector: Any) -> int:
        raise NotImplementedError

    def _merge(self, other: Any, add_id: int) -> None:
        raise NotImplementedError


class IndexBinaryFlat(IndexBinary):
    """Vectors of d bits under ids 0, 1, ...: after remove_ids those that follow move up.

    use_heap, query_batch_size and approx_topk_mode are taken and change nothing: searches are exact
    and choose by themselves."""

    def __init__(self, d: int = 0) -> None:
        super().__init__(d)
        self.use_heap = True
        self.query_batch_size = 32
        self.approx_topk_mode = 0
        self.reset()

    @property
    def ntotal(self) -> int:
        return 0 if self._kept is None else len(self._kept)

    @property
    def xb(self) -> UInt8Vector:
        """The bytes of all vectors: a copy."""
        return Copy(self._vectors_of(np.arange(self.ntotal)))

    def reset(self) -> None:
        self._kept: KnearIndex | None = None
        self._places = Numbering(0)
        if self.d:
            with faiss_errors():
                self._kept = KnearIndex("Flat", dim=self.code_size, metric="hamming")

    def _index(self) -> KnearIndex:
        if self._kept is None:
            refuse("the index has vectors of 0 bits")
        return cast(KnearIndex, self._kept)

    def _add(self, x: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        if ids is not None:
            refuse("add_with_ids not implemented for this type of index: take an IndexBinaryIDMap")
        kept = self._index()
        first = kept.next_id
        kept.add(x, threads=threads())
        self._places = self._places.with_rows(first, len(x))

    def _filter(self, selector: Any) -> NDArray[np.bool_] | None:
        if selector is None:
            return None
        chosen: NDArray[np.bool_] = selector.mask_to(self.ntotal)
        if self._places.is_plain():
            return chosen
        mask = np.zeros(self._index().next_id, np.bool_)
        mask[self._places.all()] = chosen
        return mask

    def _search(self, x: NDArray[np.uint8], k: int, selector: Any) -> tuple[Any, Any]:
        distances, kept = self._index().search(
            x, k, filter=self._filter(selector), threads=threads(), progress=interruptions()
        )
        return _found(distances, self._places.rows(kept))

    def _within(self, x: NDArray[np.uint8], radius: int, selector: Any) -> Any:
        # One that equals the radius does not count.
        begin, distances, kept = self._index().range_search(
            x,
            radius - 1,
            filter=self._filter(selector),
            threads=threads(),
            progress=interruptions(),
        )
        ids = self._places.rows(kept)
        asked = np.repeat(np.arange(len(x)), np.diff(begin))
        order = np.lexsort((ids, asked))
        return begin.astype(np.uint64), distances[order], ids[order]

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        if ids.size and not (ids.min() >= 0 and ids.max() < self.ntotal):
            refuse(f"a key is not among the ids 0 to {self.ntotal - 1}")
        if not ids.size:
            return np.empty((0, self.code_size), np.uint8)
        return np.asarray(self._index().reconstruct(self._places.first(ids)), np.uint8)

    def _remove(self, selector: Any) -> int:
        gone = rows_named(selector, self.ntotal)
        if len(gone):
            self._index().remove(self._places.first(gone))
            self._places = self._places.without(gone)
        return len(gone)

    def _merge(self, other: Any, add_id: int) -> None:
        if add_id:
            refuse(f"ids go on from ntotal: add_id must be 0, but is {add_id}")
        if other.ntotal:
            self._add(other._vectors_of(np.arange(other.ntotal)), None)
        other.reset()


class IndexBinaryIDMap(IndexBinary):
    """Vectors under ids of your own, around an index that numbers them."""

    def __init__(self, index: Any) -> None:
        if not isinstance(index, IndexBinary):
            refuse(f"index must be a binary one, but is a {type(index).__name__}")
        super().__init__(index.d)
        if index.ntotal:
            refuse("index must be empty on input")
        self.index = index
        self.id_map = IdVector()
        self.own_fields = False

    @property
    def ntotal(self) -> int:
        return int(self.index.ntotal)

    def _ids(self) -> NDArray[np.int64]:
        return self.id_map.array

    def _add(self, x: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        if ids is None:
            refuse("add does not make sense with IndexBinaryIDMap, use add_with_ids")
        self.index._add(x, None)
        self.id_map.append(cast("NDArray[np.int64]", ids))

    def _outer(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        ids = self._ids()
        if not ids.size:
            return rows
        return np.where(rows < 0, -1, ids[np.maximum(rows, 0)])

    def _inner(self, selector: Any) -> Any:
        return None if selector is None else selector_of(np.flatnonzero(selector.mask(self._ids())))

    def _search(self, x: NDArray[np.uint8], k: int, selector: Any) -> tuple[Any, Any]:
        distances, rows = self.index._search(x, k, self._inner(selector))
        return distances, self._outer(rows)

    def _within(self, x: NDArray[np.uint8], radius: int, selector: Any) -> Any:
        begin, distances, rows = self.index._within(x, radius, self._inner(selector))
        return begin, distances, self._outer(rows)

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        refuse("reconstruct not implemented for this type of index: take an IndexBinaryIDMap2")

    def _remove(self, selector: Any) -> int:
        gone = selector.mask(self._ids())
        self.index.remove_ids(np.flatnonzero(gone))
        self.id_map.array = self._ids()[~gone]
        return int(gone.sum())

    def reset(self) -> None:
        self.index.reset()
        self.id_map.clear()

    def _merge(self, other: Any, add_id: int) -> None:
        self.index._merge(other.index, 0)
        self.id_map.append(raised(other._ids(), add_id))
        other.id_map.clear()


class IndexBinaryIDMap2(IndexBinaryIDMap):
    """An IndexBinaryIDMap that finds vectors by their ids, for reconstruct()."""

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        places = self.id_map.places_of(ids)
        if (places < 0).any():
            refuse(f"key not found: id {ids[places < 0][0]} is not in the index")
        return cast("NDArray[np.uint8]", self.index._vectors_of(places))

    def construct_rev_map(self) -> None: ...

    def check_consistency(self) -> None:
        if self.id_map.size() != self.index.ntotal:
            refuse("there are other numbers of ids and of vectors")


def index_binary_factory(d: int, description: str, own_invlists: bool = True) -> IndexBinary:
    """The index of a description: "BFlat", "IDMap,BFlat", "IDMap2,BFlat"."""
    maps = {"IDMap": IndexBinaryIDMap, "IDMap2": IndexBinaryIDMap2}
    *before, kind = description.split(",")
    if kind != "BFlat" or not all(name in maps for name in before):
        refuse(
            f"description {description!r} is of no binary index that is there: BFlat, IDMap,BFlat "
            "and IDMap2,BFlat are"
        )
    out: IndexBinary = IndexBinaryFlat(d)
    for name in reversed(before):
        out = maps[name](out)
    return out


def knn_hamming(
    xq: ArrayLike, xb: ArrayLike, k: int, variant: str = "hc"
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(distances, ids) [nq x k] of the k nearest rows of `xb` for each row of `xq`, both of bits.
    variant, how FAISS does it, changes nothing."""
    queries = _bits(xq)
    base = _bits(xb, queries.shape[1])
    if variant not in ("hc", "mc"):
        refuse(f"variant must be 'hc' or 'mc', but is {variant!r}")
    with faiss_errors():
        found = _search.knn(
            queries, base, neighbors(k), "hamming", threads=threads(), progress=interruptions()
        )
    return _found(found.distances, found.ids)


def clone_binary_index(index: IndexBinary) -> IndexBinary:
    """A copy with vectors of its own."""
    return deserialize_index_binary(serialize_index_binary(index))


# FAISS's files: the letters of a type, d, bytes a vector, rows, whether it is trained, the metric.
_HEADER = "iiq?i"
_MAPS = {b"IBMp": IndexBinaryIDMap, b"IBM2": IndexBinaryIDMap2}


def _put(out: Writer, index: Any) -> None:
    head = index.d, index.code_size, index.ntotal, True, index.metric_type
    if isinstance(index, IndexBinaryIDMap):
        out._write(b"IBM2" if isinstance(index, IndexBinaryIDMap2) else b"IBMp")
        out._put(_HEADER, *head)
        _put(out, index.index)
        out._vector(index._ids(), "<i8")
    else:
        out._write(b"IBxF")
        out._put(_HEADER, *head)
        out._vector(index._vectors_of(np.arange(index.ntotal)), "u1")


def _get(source: Reader, depth: int = 0) -> IndexBinary:
    letters = bytes(source._take(4))
    if letters not in (b"IBxF", *_MAPS):
        refuse(
            f"Index type {letters.decode('latin1')!r} not recognized: of binary indexes "
            "IndexBinaryFlat, IndexBinaryIDMap and IndexBinaryIDMap2 are read"
        )
    if depth > _MOST_NESTED:
        refuse("indexes are nested too deeply")
    d, size, rows, _, _ = source._get(_HEADER)
    if d < 0 or d % 8 or size != d // 8 or rows < 0:
        refuse(f"the header of an index is none: {d} bits, {size} bytes a vector, {rows} rows")
    if letters in _MAPS:
        inner = _get(source, depth + 1)
        ids = source._vector("<i8")
        if inner.d != d or not len(ids) == rows == inner.ntotal:
            refuse(f"{len(ids)} ids are given to {inner.ntotal} vectors")
        out = _MAPS[letters](IndexBinaryFlat(d))
        out.index = inner
        out.id_map.set(ids)
        return out
    codes = source._vector("u1")
    if len(codes) != rows * size:
        refuse(f"{rows} vectors of {size} bytes are announced, not {len(codes)} bytes")
    flat = IndexBinaryFlat(d)
    if rows and size:
        flat.add(codes.reshape(rows, size))
    return flat


def _checked(index: Any) -> IndexBinary:
    if not isinstance(index, IndexBinary):
        raise TypeError(f"index must be a binary index, but is a {type(index).__name__}")
    return index


def write_index_binary(index: Any, to: Any) -> None:
    """To a file by its name, or to a VectorIOWriter or PyCallbackIOWriter."""
    checked = _checked(index)
    _write(to, lambda out: _put(out, checked))


def read_index_binary(source: Any, io_flags: int = 0) -> IndexBinary:
    """From a file by its name, a VectorIOReader or a PyCallbackIOReader. Flags change nothing."""
    return cast(IndexBinary, _read(source, _get))


def serialize_index_binary(index: Any) -> NDArray[np.uint8]:
    """What write_index_binary() writes, as an array of uint8."""
    checked = _checked(index)
    return np.frombuffer(_written(lambda out: _put(out, checked)), np.uint8).copy()


def deserialize_index_binary(data: Any) -> IndexBinary:
    """The index of such an array, or of its bytes."""
    return _get(_of_array(data))
