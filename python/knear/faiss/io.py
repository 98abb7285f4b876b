"""FAISS's files: write_index, read_index, serialize_index, and the same of transforms and product
quantizers. knear/index/faiss/faiss_reader.cpp reads the same files into a knear.Index."""

from __future__ import annotations

import copy
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .base import METRIC_INNER_PRODUCT, METRIC_L2, Index, refuse
from .codes import IndexPQ, IndexScalarQuantizer
from .flat import IndexFlat, IndexFlatIP, IndexFlatL2
from .ivf import (
    DirectMap,
    IndexIVF,
    IndexIVFFlat,
    IndexIVFPQ,
    IndexIVFScalarQuantizer,
)
from .quantizers import ProductQuantizer, ScalarQuantizer
from .streams import VectorIOReader, opened, some_of, to_file
from .transforms import (
    CenteringTransform,
    LinearTransform,
    NormalizationTransform,
    PCAMatrix,
    RandomRotationMatrix,
    RemapDimensionsTransform,
    VectorTransform,
)
from .wrappers import IndexIDMap, IndexIDMap2, IndexPreTransform, IndexRefine, IndexRefineFlat

IO_FLAG_SKIP_STORAGE = 1
IO_FLAG_READ_ONLY = 2
IO_FLAG_ONDISK_SAME_DIR = 4
IO_FLAG_SKIP_IVF_DATA = 8
IO_FLAG_SKIP_PRECOMPUTE_TABLE = 16
IO_FLAG_PQ_SKIP_SDC_TABLE = 32
IO_FLAG_MMAP = IO_FLAG_SKIP_IVF_DATA | 0x646F0000
IO_FLAG_MMAP_IFC = 1 << 9

_DUMMY = 1 << 20
_MOST_NESTED = 50


class Writer:
    """Writes what FAISS's files have one after another. Whole numbers are int32 (i), int64 (q) and
    uint64 (Q), little-endian; a vector is its length and its numbers."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self._write = write

    def _put(self, form: str, *values: Any) -> None:
        self._write(struct.pack("<" + form, *values))

    def _vector(self, values: Any, dtype: str, count: int | None = None) -> None:
        array = np.ascontiguousarray(values, dtype)
        self._put("Q", array.size if count is None else count)
        self._write(array.data.cast("B") if array.size else b"")

    def _header(self, letters: bytes, index: Index, rows: int | None = None) -> None:
        self._write(letters)
        count = index.ntotal if rows is None else rows
        trained = bool(index.is_trained)
        self._numbers(index.d, count, trained, index.metric_type, index.metric_arg)

    def _numbers(self, d: int, rows: int, trained: bool, metric: int, arg: float) -> None:
        self._put("iqqq?i", d, rows, _DUMMY, _DUMMY, trained, metric)
        if metric > METRIC_L2:
            self._put("f", arg)

    def index(self, index: Any) -> None:
        if isinstance(index, IndexFlat):
            self.vectors(index.d, index.metric_type, index._all(), index.metric_arg)
        elif isinstance(index, IndexPQ):
            self._header(b"IxPq", index)
            self.product(index.pq)
            self._vector(index._store.codes, "u1")
            self._put("i?i", index.search_type, index.encode_signs, index.polysemous_ht)
        elif isinstance(index, IndexScalarQuantizer):
            self._header(b"IxSQ", index)
            self._scalar(index.sq)
            self._vector(index._store.codes, "u1")
        elif isinstance(index, IndexIVF):
            self.lists(index, index._store.ids, index.ntotal)
        elif isinstance(index, IndexPreTransform):
            self._header(b"IxPT", index)
            self._put("i", len(index.chain))
            for one in index.chain:
                self.transform(one)
            self.index(index.index)
        elif isinstance(index, IndexIDMap):
            self._header(b"IxM2" if isinstance(index, IndexIDMap2) else b"IxMp", index)
            self.index(index.index)
            self._vector(index.id_map.array, "<i8")
        elif isinstance(index, IndexRefine):
            self._header(b"IxRF", index)
            self.index(index.base_index)
            self.index(index.refine_index)
            self._put("f", index.k_factor)
        else:
            raise NotImplementedError(f"{type(index).__name__} cannot be written to a file")

    def vectors(self, d: int, metric: int, x: NDArray[np.float32], arg: float = 0.0) -> None:
        """An IndexFlat."""
        letters = {METRIC_L2: b"IxF2", METRIC_INNER_PRODUCT: b"IxFI"}
        self._write(letters.get(metric, b"IxFl"))
        self._numbers(d, len(x), True, metric, arg)
        self._vector(x, "<f4")

    def lists(self, index: IndexIVF, ids: NDArray[np.int64], count: int) -> None:
        """Inverted lists, with these ids of the rows, and how many rows there are said to be."""
        if isinstance(index, IndexIVFFlat):
            self._inverted(b"IwFl", index, count)
        elif isinstance(index, IndexIVFPQ):
            self._inverted(b"IwPQ", index, count)
            self._put("?Q", index.by_residual, index.code_size)
            self.product(index.pq)
        else:
            assert isinstance(index, IndexIVFScalarQuantizer)
            self._inverted(b"IwSq", index, count)
            self._scalar(index.sq)
            self._put("Q?", index.code_size, index.by_residual)
        self._lists(index, index._store.codes, ids)

    def _inverted(self, letters: bytes, index: IndexIVF, count: int) -> None:
        self._header(letters, index, count)
        self._put("QQ", index.nlist, index.nprobe)
        self.index(index.quantizer)
        self._put("B", index.direct_map.type)
        rows, begin = index._store.by_list(index.nlist)
        ids = index._store.ids[rows]
        lists = index._store.lists[rows]
        entries = (lists << 32) | (np.arange(len(rows)) - begin[lists])
        if index.direct_map.type == DirectMap.Array:
            found = np.full(index.ntotal, -1, np.int64)
            found[ids] = entries
            self._vector(found, "<i8")
        else:
            self._vector((), "<i8")
        if index.direct_map.type == DirectMap.Hashtable:
            self._vector(np.stack([ids, entries], 1), "<i8", len(ids))

    def _lists(self, index: IndexIVF, codes: NDArray[np.uint8], ids: NDArray[np.int64]) -> None:
        rows, begin = index._store.by_list(index.nlist)
        sizes = np.diff(begin)
        self._write(b"ilar")
        self._put("QQ", index.nlist, codes.shape[1])
        if np.count_nonzero(sizes) > index.nlist // 2:
            self._write(b"full")
            self._vector(sizes, "<u8")
        else:
            self._write(b"sprs")
            some = np.flatnonzero(sizes)
            self._vector(np.stack([some, sizes[some]], 1), "<u8")
        for each in np.flatnonzero(sizes):
            of = rows[begin[each] : begin[each + 1]]
            self._write(codes[of].data.cast("B"))
            self._write(np.ascontiguousarray(ids[of], "<i8").data.cast("B"))

    def product(self, pq: ProductQuantizer) -> None:
        self._put("QQQ", pq.d, pq.M, pq.nbits)
        self._vector(pq.centroids.array, "<f4")

    def _scalar(self, sq: ScalarQuantizer) -> None:
        self._put("iifQQ", sq.qtype, sq.rangestat, sq.rangestat_arg, sq.d, sq.code_size)
        self._vector(sq.trained.array, "<f4")

    def transform(self, one: VectorTransform) -> None:
        if isinstance(one, PCAMatrix):
            self._write(b"Pcam")
            self._put("ff?i", one.eigen_power, one.epsilon, one.random_rotation, one.balanced_bins)
            for each in (one.mean, one.eigenvalues, one.PCAMat):
                self._vector(each.array, "<f4")
        elif isinstance(one, LinearTransform):
            self._write(b"rrot" if isinstance(one, RandomRotationMatrix) else b"LTra")
        elif isinstance(one, RemapDimensionsTransform):
            self._write(b"RmDT")
            self._vector(one.map.array, "<i4")
        elif isinstance(one, NormalizationTransform):
            self._write(b"VNrm")
            self._put("f", one.norm)
        elif isinstance(one, CenteringTransform):
            self._write(b"VCnt")
            self._vector(one.mean.array, "<f4")
        else:
            raise NotImplementedError(f"{type(one).__name__} cannot be written to a file")
        if isinstance(one, LinearTransform):
            self._put("?", one.have_bias)
            self._vector(one.A.array, "<f4")
            self._vector(one.b.array, "<f4")
        self._put("ii?", one.d_in, one.d_out, one.is_trained)


class Reader:
    """Reads what Writer writes, and FAISS's fields that come to the same. RuntimeError for a file
    that is cut off or whose numbers do not fit."""

    def __init__(self, take: Callable[[int], Any], name: str = "the file") -> None:
        """take(n) returns up to n bytes that come next, none at the end."""
        self._next, self._name = take, name
        self.at = 0
        self._arg = 0.0  # metric_arg of the header that was read last

    def _take(self, size: int) -> memoryview:
        parts, due = [], size
        while due:  # a pipe has a part at a time
            part = self._next(due)
            if not len(part):
                refuse(f"{self._name} is cut off at byte {self.at}: {size} more are due")
            parts.append(part)
            due -= len(part)
        self.at += size
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts)).cast("B")

    def _get(self, form: str) -> Any:
        values = struct.unpack("<" + form, self._take(struct.calcsize("<" + form)))
        return values if len(values) > 1 else values[0]

    def _vector(self, dtype: str, each: int = 1) -> NDArray[Any]:
        kind = np.dtype(dtype)
        return np.frombuffer(self._take(self._get("Q") * kind.itemsize * each), kind)

    def _header(self) -> tuple[int, int, bool, int]:
        d, rows, _, _, trained, metric = self._get("iqqq?i")
        if not 1 <= d <= 1 << 20 or rows < 0:
            refuse(f"the header of an index is none: {d} columns, {rows} rows")
        self._arg = self._get("f") if metric > METRIC_L2 else 0.0
        return d, rows, trained, metric

    def index(self, depth: int = 0) -> Any:
        if depth > _MOST_NESTED:
            refuse("indexes are nested too deeply")
        letters = bytes(self._take(4))
        if letters in _READ:
            return _READ[letters](self, letters, depth + 1)
        name = letters.decode("latin1")
        _refuse_known(name)
        return refuse(f"Index type {name!r} not recognized: {self._name} is no index of FAISS")

    def _flat(self, letters: bytes, depth: int) -> IndexFlat:
        d, rows, _, metric = self._header()
        kinds = {b"IxF2": IndexFlatL2, b"IxFI": IndexFlatIP}
        out = kinds[letters](d) if letters in kinds else IndexFlat(d, metric)
        out.metric_arg = self._arg
        x = self._vector("<f4")
        if x.size != rows * d:
            refuse(f"{rows} vectors of {d} columns are announced, but {x.size} numbers follow")
        out.add(x.reshape(rows, d))
        return out

    def _codes_of(self, out: Any, rows: int) -> None:
        codes = self._vector("u1")
        if codes.size != rows * out.code_size:
            refuse(f"{rows} codes of {out.code_size} bytes are announced, not {codes.size} bytes")
        out._add_codes(codes.reshape(rows, out.code_size), None)

    def _product_codes(self, letters: bytes, depth: int) -> IndexPQ:
        d, rows, trained, metric = self._header()
        pq = self.product(d)
        out = IndexPQ(d, pq.M, pq.nbits, metric)
        out.pq, out.is_trained = pq, trained
        self._codes_of(out, rows)
        out.search_type, out.encode_signs, out.polysemous_ht = self._get("i?i")
        return out

    def _scalar_codes(self, letters: bytes, depth: int) -> IndexScalarQuantizer:
        d, rows, trained, metric = self._header()
        sq = self._scalar(d)
        out = IndexScalarQuantizer(d, sq.qtype, metric)
        out.sq, out.is_trained = sq, trained
        self._codes_of(out, rows)
        return out

    def _inverted(self, letters: bytes, depth: int) -> IndexIVF:
        d, rows, trained, metric = self._header()
        nlist, nprobe = self._get("QQ")
        quantizer = self.index(depth)
        _refuse_ids_beyond(nlist, quantizer, "the quantizer of lists")
        direct = self._get("B")
        entries = self._vector("<i8")
        if direct == DirectMap.Array and len(entries) != rows:
            refuse(f"a direct map has {len(entries)} entries, where {rows} rows are announced")
        if direct == DirectMap.Hashtable:
            self._vector("<i8", 2)
        if letters == b"IwPf":
            by_residual, _, _, _, _, _ = self._get("?QiQiq")
            pq = self.product(d)
            out: Any = IndexIVFPQ(quantizer, d, nlist, pq.M, pq.nbits, metric)
            out.pq, out.by_residual = pq, by_residual
            out.precompute_table()
        elif letters == b"IwFl":
            out = IndexIVFFlat(quantizer, d, nlist, metric)
        elif letters == b"IwPQ":
            by_residual, _ = self._get("?Q")
            pq = self.product(d)
            out = IndexIVFPQ(quantizer, d, nlist, pq.M, pq.nbits, metric)
            out.pq, out.by_residual = pq, by_residual
            out.precompute_table()
        else:
            sq = self._scalar(d)
            _, by_residual = self._get("Q?")
            out = IndexIVFScalarQuantizer(quantizer, d, nlist, sq.qtype, metric, by_residual)
            if by_residual != out.by_residual:
                raise NotImplementedError(
                    "the file has residuals in codes of QT_8bit_direct, which holds numbers from 0 "
                    "to 255 alone: knear.faiss has no such lists"
                )
            out.sq = sq
        out.nprobe, out.is_trained, out.direct_map = nprobe, trained, DirectMap(direct)
        if letters == b"IwPf":
            self._lists_of_blocks(out, rows)
        else:
            self._lists(out, rows)
        return out

    def _product_blocks(self, letters: bytes, depth: int) -> IndexPQ:
        """An IndexPQFastScan: the same codes of 4 bits, which FAISS keeps in blocks of rows."""
        d, rows, trained, metric = self._header()
        pq = self.product(d)
        out = IndexPQ(d, pq.M, pq.nbits, metric)
        out.pq, out.is_trained = pq, trained
        _, block, _ = self._get("iii")
        _, parts = self._get("QQ")
        out._add_codes(self._codes_in_blocks(pq, block, parts, rows), None)
        return out

    def _codes_in_blocks(
        self, pq: ProductQuantizer, block: int, parts: int, rows: int
    ) -> NDArray[np.uint8]:
        """Codes [rows x code_size] of which each block of so many rows has, for every pair of parts
        and 32 rows, 32 bytes: the first 16 have the first of the two parts. Their lower halves are
        of rows 0, 8, 1, 9, ..., and their upper ones of those 16 behind."""
        size = pq.code_size
        if pq.nbits != 4 or not 32 <= block <= 1024 or block % 32 or parts != pq.M + pq.M % 2:
            refuse(f"blocks of {block} codes of {parts} parts are none of {pq.M} parts of 4 bits")
        data = self._vector("u1")
        if data.size != -(-rows // block) * block * size:
            refuse(f"{rows} codes in blocks of {block} are announced, not {data.size} bytes")
        order = np.arange(16).reshape(8, 2).T.ravel()  # where rows 0 to 15 lie
        groups = data.reshape(-1, size, block // 32, 2, 16)[..., order]
        halves = np.concatenate([groups & 15, groups >> 4], axis=-1)
        codes = halves[..., 0, :] | halves[..., 1, :] << 4
        return np.ascontiguousarray(codes.transpose(0, 2, 3, 1).reshape(-1, size)[:rows])

    def _lists_of_blocks(self, out: IndexIVFPQ, rows: int) -> None:
        letters = bytes(self._take(4))
        if letters != b"ilbl":
            refuse(f"inverted lists of FAISS's type {letters!r} hold no blocks of codes")
        lists, _, block, _ = self._get("QQQQ")
        if lists != out.nlist:
            refuse(f"there are {lists} lists, but the index has {out.nlist}")
        for each in range(out.nlist):
            ids = self._vector("<i8")
            if len(ids) + out._store.size > rows:
                refuse(f"lists hold more rows than the {rows} that are announced")
            parts = out.pq.M + out.pq.M % 2
            out._store.add(self._codes_in_blocks(out.pq, block, parts, len(ids)), ids, each)
        out._unlisted = rows - out._store.size

    def _lists(self, out: IndexIVF, rows: int) -> None:
        letters = bytes(self._take(4))
        out._unlisted = rows
        if letters == b"il00":
            return
        if letters != b"ilar":
            raise NotImplementedError(
                f"inverted lists of FAISS's type {letters!r} are not read; knear.Index.load maps "
                ".knear files from disk"
            )
        nlist, size = self._get("QQ")
        if (nlist, size) != (out.nlist, out.code_size):
            refuse(f"there are {nlist} lists of codes of {size} bytes, which do not fit the index")
        sizes = np.zeros(nlist, np.int64)
        full = bytes(self._take(4)) == b"full"
        numbers = self._vector("<u8").astype(np.int64)
        if len(numbers) != nlist if full else len(numbers) % 2:
            refuse(f"{len(numbers)} numbers are given for the sizes of {nlist} lists")
        if full:
            sizes[:] = numbers
        else:
            pairs = numbers.reshape(-1, 2)
            if len(pairs) and (pairs[:, 0].min() < 0 or pairs[:, 0].max() >= nlist):
                refuse("a list is not among those that are announced")
            sizes[pairs[:, 0]] = pairs[:, 1]
        out._unlisted = rows - int(sizes.sum())
        if sizes.min() < 0 or out._unlisted < 0:
            refuse(f"lists hold {sizes.sum()} rows, where {rows} are announced")
        for each in np.flatnonzero(sizes):
            count = int(sizes[each])
            codes = np.frombuffer(self._take(count * size), np.uint8).reshape(count, size)
            ids = np.frombuffer(self._take(count * 8), "<i8")
            out._store.add(codes, ids, each)

    def product(self, columns: int | None = None) -> ProductQuantizer:
        d, parts, bits = self._get("QQQ")
        if not (1 <= parts <= d <= 1 << 20 and bits <= 24 and columns in (None, d)):
            refuse(f"a product quantizer has {parts} parts of {d} columns and {bits} bits")
        out = ProductQuantizer(d, parts, bits)
        centroids = self._vector("<f4")
        if centroids.size != out.centroids.size():
            refuse(f"a product quantizer has {centroids.size} numbers")
        out.centroids.set(centroids)
        return out

    def _scalar(self, columns: int) -> ScalarQuantizer:
        kind, stat, by, d, _ = self._get("iifQQ")
        if d != columns:
            refuse(f"a scalar quantizer has {d} columns, but its index {columns}")
        out = ScalarQuantizer(d, kind)
        out.rangestat, out.rangestat_arg = stat, by
        out.trained.set(self._vector("<f4"))
        return out

    def _transformed(self, letters: bytes, depth: int) -> IndexPreTransform:
        _, _, trained, _ = self._header()
        count = self._get("i")
        chain = [self.transform() for _ in range(count)]
        out = IndexPreTransform(self.index(depth))
        for one in reversed(chain):
            out.prepend_transform(one)
        out.is_trained = trained
        return out

    def _mapped(self, letters: bytes, depth: int) -> IndexIDMap:
        d, rows, trained, metric = self._header()
        inner = self.index(depth)
        kind = IndexIDMap2 if letters == b"IxM2" else IndexIDMap
        out = kind(IndexFlat(inner.d, inner.metric_type))
        out.index, out.is_trained = inner, trained
        out.id_map.set(self._vector("<i8"))
        if out.id_map.size() != inner.ntotal:
            refuse(f"{out.id_map.size()} ids are given to {inner.ntotal} vectors")
        _refuse_ids_beyond(inner.ntotal, inner, "the index that an IndexIDMap is around")
        return out

    def _refined(self, letters: bytes, depth: int) -> IndexRefine:
        _, _, trained, _ = self._header()
        base, fine = self.index(depth), self.index(depth)
        out = IndexRefine(base, fine)
        if isinstance(fine, IndexFlat):
            out.__class__, out.own_refine_index = IndexRefineFlat, True
        out.k_factor, out.is_trained = self._get("f"), trained
        return out

    def transform(self) -> VectorTransform:
        letters = bytes(self._take(4))
        more: Any = ()
        if letters == b"Pcam":
            more = (self._get("ff?i"), [self._vector("<f4") for _ in range(3)])
        if letters in (b"Pcam", b"rrot", b"LTra"):
            bias, a, b = self._get("?"), self._vector("<f4"), self._vector("<f4")
        elif letters == b"RmDT":
            more = self._vector("<i4")
        elif letters == b"VNrm":
            more = self._get("f")
        elif letters == b"VCnt":
            more = self._vector("<f4")
        else:
            _refuse_known(letters.decode("latin1"))
            refuse(f"{letters!r} is no type of a transform")
        d_in, d_out, trained = self._get("ii?")
        if letters == b"RmDT":
            return RemapDimensionsTransform(d_in, d_out, more)
        if letters == b"VNrm":
            return NormalizationTransform(d_in, more)
        if letters == b"VCnt":
            centring = CenteringTransform(d_in)
            centring.mean.set(more)
            centring.is_trained = trained
            return centring
        if letters == b"Pcam":
            (power, epsilon, rotate, bins), numbers = more
            out: LinearTransform = PCAMatrix(d_in, d_out, power, rotate)
            out.epsilon, out.balanced_bins = epsilon, bins
            for each, values in zip((out.mean, out.eigenvalues, out.PCAMat), numbers, strict=True):
                each.set(values)
        elif letters == b"rrot":
            out = RandomRotationMatrix(d_in, d_out)
        else:
            out = LinearTransform(d_in, d_out)
        if trained and a.size != d_in * d_out:
            refuse(f"a transform of {d_in} columns to {d_out} has {a.size} numbers")
        out.have_bias, out.is_trained = bias, trained
        out.A.set(a)
        out.b.set(b)
        out.set_is_orthonormal()
        return out


def _refuse_known(letters: str) -> None:
    """Of what FAISS writes and knear.faiss has not, by its name."""
    if name := _core.name_of_faiss(letters):
        raise NotImplementedError(f"the file has {name} ({letters}), which knear.faiss has not")


def _refuse_ids_beyond(count: int, index: Any, what: str) -> None:
    """Unless a search of the index finds ids below `count` alone."""
    while isinstance(index, (IndexPreTransform, IndexRefine)):
        index = index.index if isinstance(index, IndexPreTransform) else index.base_index
    if isinstance(index, (IndexIDMap, IndexIVF)):
        ids = index._ids() if isinstance(index, IndexIDMap) else index._store.ids
    else:
        ids = np.arange(index.ntotal)
    if len(ids) and not 0 <= ids.min() <= ids.max() < count:
        refuse(f"{what} has ids from {ids.min()} to {ids.max()}, where 0 to {count - 1} are due")


_READ: dict[bytes, Callable[[Reader, bytes, int], Any]] = {
    b"IxF2": Reader._flat,
    b"IxFI": Reader._flat,
    b"IxFl": Reader._flat,
    b"IxPq": Reader._product_codes,
    b"IPfs": Reader._product_blocks,
    b"IxSQ": Reader._scalar_codes,
    b"IwFl": Reader._inverted,
    b"IwPQ": Reader._inverted,
    b"IwPf": Reader._inverted,
    b"IwSq": Reader._inverted,
    b"IxPT": Reader._transformed,
    b"IxMp": Reader._mapped,
    b"IxM2": Reader._mapped,
    b"IxRF": Reader._refined,
}


def _written(put: Callable[[Writer], Any]) -> bytes:
    out = bytearray()
    put(Writer(out.extend))
    return bytes(out)


def _write(to: Any, put: Callable[[Writer], Any]) -> None:
    if isinstance(to, (str, os.PathLike)):
        to_file(os.fspath(to), lambda write: put(Writer(write)))
    else:
        to._write_all(_written(put))


def _read(source: Any, read: Callable[[Reader], Any]) -> Any:
    if not isinstance(source, (str, os.PathLike)):
        if not hasattr(source, "_take"):
            raise TypeError(f"a file is read by its name or an IOReader, not {source!r}")
        return read(Reader(source._take))
    with opened(source) as file:
        return read(Reader(lambda size: some_of(file, size), f"the file {os.fspath(source)}"))


def _of_array(data: Any) -> Reader:
    if isinstance(data, (bytes, bytearray, memoryview)):
        data = np.frombuffer(data, np.uint8)
    if not isinstance(data, np.ndarray):
        raise TypeError(f"data must be an array of uint8 or bytes, but is {type(data).__name__}")
    assert data.dtype == np.uint8, f"data must be uint8, but are {data.dtype}"
    source = VectorIOReader()
    source.data.array = np.ascontiguousarray(data, np.uint8).ravel()
    return Reader(source._take)


def write_index(index: Index, to: Any, io_flags: int = 0) -> None:
    """To a file by its name, or to a VectorIOWriter or PyCallbackIOWriter."""
    if not isinstance(index, Index):
        raise TypeError(f"index must be an index of knear.faiss, but is {type(index).__name__}")
    _write(to, lambda out: out.index(index))


def read_index(source: Any, io_flags: int = 0) -> Any:
    """From a file by its name, a VectorIOReader or a PyCallbackIOReader. Flags change nothing: all
    is read into memory."""
    return _read(source, Reader.index)


def serialize_index(index: Index, io_flags: int = 0) -> NDArray[np.uint8]:
    """What write_index() writes, as an array of uint8."""
    return np.frombuffer(_written(lambda out: out.index(index)), np.uint8).copy()


def deserialize_index(data: Any, io_flags: int = 0) -> Any:
    """The index of such an array, or of its bytes."""
    return _of_array(data).index()


def clone_index(index: Index) -> Any:
    """A copy with vectors of its own."""
    return _copied("index", index)


def clone_Quantizer(quant: Any) -> Any:
    """A copy of a ProductQuantizer or ScalarQuantizer."""
    return _copied("quant", quant)


def _copied(name: str, value: Any) -> Any:
    if value is None:
        refuse(f"{name} is None, which cannot be copied: pass what is to be copied")
    return copy.deepcopy(value)


class Cloner:
    """clone_index(), and the same of transforms."""

    def clone_Index(self, index: Index) -> Any:
        return clone_index(index)

    def clone_IndexIVF(self, ivf: Index) -> Any:
        return clone_index(ivf)

    def clone_VectorTransform(self, vt: VectorTransform) -> Any:
        return _copied("vt", vt)


def write_VectorTransform(vt: VectorTransform, to: Any) -> None:
    _write(to, lambda out: out.transform(vt))


def read_VectorTransform(source: Any) -> VectorTransform:
    return _read(source, Reader.transform)


def write_ProductQuantizer(pq: ProductQuantizer, to: Any) -> None:
    _write(to, lambda out: out.product(pq))


def read_ProductQuantizer(source: Any) -> ProductQuantizer:
    return _read(source, Reader.product)
