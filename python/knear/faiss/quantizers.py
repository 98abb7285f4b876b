"""Vectors as codes: ProductQuantizer and ScalarQuantizer, with FAISS's codes and attributes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from .._search import knn
from .base import (
    Sealed,
    faiss_errors,
    fill,
    first_rows,
    matrix,
    refuse,
    threads,
    training_rows,
)
from .clustering import ClusteringParameters, cluster
from .fields import whole
from .saying import say
from .vectors import Float32Vector


def packed(values: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Numbers [n x m] of so many bits each as bytes [n x ceil(m bits / 8)], low bits first."""
    n, m = values.shape
    if bits == 8:
        return values.astype(np.uint8, copy=False)
    if bits == 4:
        out = np.zeros((n, (m + 1) // 2), np.uint8)
        out[:] = values[:, 0::2]
        out[:, : m // 2] |= values[:, 1::2].astype(np.uint8, copy=False) << 4
        return out
    if bits == 6:  # four numbers in three bytes
        four = np.zeros((n, (m + 3) // 4, 4), np.uint8)
        four.reshape(n, four.shape[1] * 4)[:, :m] = values
        a, b, c, d = (four[:, :, i] for i in range(4))
        out = np.stack([a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2], axis=2)
        return np.ascontiguousarray(out.reshape(n, out.shape[1] * 3)[:, : (m * bits + 7) // 8])
    values = values.astype(np.int64, copy=False)
    places = (values[:, :, None] >> np.arange(bits)) & 1
    return np.packbits(places.reshape(n, m * bits).astype(np.uint8), axis=1, bitorder="little")


def unpacked(codes: NDArray[np.uint8], m: int, bits: int) -> NDArray[np.int64]:
    """The numbers [n x m] of such bytes."""
    if bits == 8:
        return codes.astype(np.int64)
    if bits == 4:
        halves = np.stack([codes & 15, codes >> 4], axis=2)
        return halves.reshape(len(codes), halves.shape[1] * 2)[:, :m].astype(np.int64)
    if bits == 6:
        three = np.zeros((len(codes), (m + 3) // 4, 3), np.uint8)
        three.reshape(len(codes), three.shape[1] * 3)[:, : codes.shape[1]] = codes
        a, b, c = (three[:, :, i] for i in range(3))
        four = np.stack([a & 63, (a >> 6 | b << 2) & 63, (b >> 4 | c << 4) & 63, c >> 2], axis=2)
        return four.reshape(len(codes), four.shape[1] * 4)[:, :m].astype(np.int64)
    places = np.unpackbits(codes, axis=1, bitorder="little")[:, : m * bits]
    return places.reshape(len(codes), m, bits).astype(np.int64) @ (1 << np.arange(bits))


class Quantizer(Sealed):
    """The base of both."""

    d: int
    code_size: int

    def __init__(self, d: int) -> None:
        self.d = whole("d", d)
        self.verbose = False

    def compute_codes(self, x: ArrayLike) -> NDArray[np.uint8]:
        """The codes [n x code_size] of `x` [n x d]."""
        rows = matrix(x, self.d)
        with faiss_errors():
            return self._codes_of(rows)

    def decode(self, codes: Any) -> NDArray[np.float32]:
        """What `codes` [n x code_size] stand for [n x d]."""
        n, size = np.shape(codes)
        if np.asarray(codes).dtype != np.uint8:
            raise TypeError(f"codes must be uint8, but are {np.asarray(codes).dtype}")
        assert size == self.code_size, f"codes have {size} bytes, where {self.code_size} are due"
        with faiss_errors():
            return self._vectors_of(np.ascontiguousarray(codes))

    def _codes_of(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        raise NotImplementedError

    def _vectors_of(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise NotImplementedError


class KeptAs(NamedTuple):
    """How a knear.Index keeps rows: as "vectors", "f16", "bf16", or as "codes" of so many parts, 0
    for one of each column, of so many bits, which these numbers make."""

    kind: str
    parts: int = 0
    bits: int = 8
    numbers: NDArray[np.float32] = np.empty(0, np.float32)


class PolysemousTraining(Sealed):
    """How FAISS orders the centroids of a product quantizer for its Hamming filters. Remembered
    alone: there are no such filters, and the order of centroids changes no distance."""

    OT_None, OT_ReproduceDistances_affine, OT_Ranking_weighted_diff = range(3)

    def __init__(self) -> None:
        self.optimization_type = self.OT_ReproduceDistances_affine
        self.ntrain_permutation, self.dis_weight_factor = 0, float(np.log(2))
        self.max_memory, self.log_pattern = 20 << 30, ""
        self.init_temperature, self.temperature_decay = 0.7, float(0.9 ** (1 / 500))
        self.n_iter, self.n_redo, self.seed, self.verbose = 500000, 2, 123, 0
        self.only_bit_flips = self.init_random = False


class ProductQuantizer(Quantizer):
    """Each of M equal parts of a vector by the number, of nbits, of its nearest centroid."""

    Train_default, Train_hot_start, Train_shared, Train_hypercube, Train_hypercube_pca = range(5)

    def __init__(self, d: int, M: int, nbits: int) -> None:
        super().__init__(d)
        self.M, self.nbits = whole("M", M), whole("nbits", nbits)
        self.train_type = self.Train_default
        self.cp = ClusteringParameters()
        self.centroids, self.sdc_table = Float32Vector(), Float32Vector()
        self.transposed_centroids, self.centroids_sq_lengths = Float32Vector(), Float32Vector()
        self.assign_index: Any = None
        self.set_derived_values()

    def _kept_as(self) -> KeptAs:
        if self.nbits not in (4, 8):
            return KeptAs("vectors")
        return KeptAs("codes", self.M, self.nbits, self.centroids.array.ravel())

    def set_derived_values(self) -> None:
        if self.M < 1 or self.d % self.M:
            refuse(
                f"The dimension of the vector (d={self.d}) should be a multiple of the number of "
                f"subquantizers (M={self.M})"
            )
        if not 1 <= self.nbits <= 24:
            refuse(f"nbits must be 1 to 24, but is {self.nbits}")
        self.dsub, self.ksub = self.d // self.M, 1 << self.nbits
        self.code_size = (self.M * self.nbits + 7) // 8
        if self.centroids.size() != self.d * self.ksub:
            self.centroids.set(np.zeros(self.d * self.ksub, np.float32))

    def _books(self) -> NDArray[np.float32]:
        """The centroids [M x ksub x dsub]."""
        return self.centroids.array.reshape(self.M, self.ksub, self.dsub)

    def train(self, x: ArrayLike) -> None:
        """Learns the centroids from the rows of `x` [n x d], n >= ksub."""
        rows = training_rows(x, self.d, "codes")
        if self.train_type not in (self.Train_default, self.Train_hot_start, self.Train_shared):
            raise NotImplementedError(
                "Train_hypercube and Train_hypercube_pca are not there: Train_default begins at "
                "rows drawn at random, Train_hot_start at the centroids that the quantizer has"
            )
        with faiss_errors():
            parts = rows.reshape(len(rows), self.M, self.dsub)
            if self.train_type == self.Train_shared:
                book = cluster(parts.reshape(-1, self.dsub), self.ksub, self.cp)[0]
                self.centroids.set(np.broadcast_to(book, (self.M, *book.shape)))
                return
            hot = self.train_type == self.Train_hot_start
            first = self._books()
            books = []
            for m in range(self.M):
                say(self.verbose, f"Training PQ slice {m}/{self.M}")
                part = np.ascontiguousarray(parts[:, m])
                begin = first[m] if hot else None
                books.append(cluster(part, self.ksub, self.cp, initial=begin)[0])
            self.centroids.set(books)

    def _codes_of(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        parts = x.reshape(len(x), self.M, self.dsub)
        numbers = np.empty((len(x), self.M), np.int64)
        for m, book in enumerate(self._books()):
            part = np.ascontiguousarray(parts[:, m])
            numbers[:, m] = _core.nearest_centroids(book, part, "f32", "l2", threads())[1]
        return packed(numbers, self.nbits)

    def _vectors_of(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        numbers = unpacked(codes, self.M, self.nbits)
        return self._books()[np.arange(self.M), numbers].reshape(len(codes), self.d)

    # FAISS's own: tables and searches by codes.
    def set_params(self, centroids: Any, m: int) -> None:
        """Makes the first ksub rows of `centroids`, of dsub columns, those of sub-quantizer m."""
        books = self._books().copy()
        books[m] = first_rows(self.ksub, centroids, self.dsub)
        self.centroids.set(books)

    def compute_code(self, x: Any, code: Any) -> None:
        """Puts the code of `x` [d] into an array."""
        fill(code, self.compute_codes(first_rows(1, x, self.d)))

    def compute_code_from_distance_table(self, tab: Any, code: Any) -> None:
        """The same by its distances [M x ksub] from all centroids."""
        nearest = first_rows(self.M, tab, self.ksub).argmin(1)
        fill(code, packed(nearest[None], self.nbits))

    def search(
        self, x: Any, nx: int, codes: Any, ncodes: int, res: Any, init_finalize_heap: bool = True
    ) -> None:
        """Puts those of the first ncodes codes whose vectors are nearest to each of the first nx
        rows of `x` into a float_maxheap_array_t, which is emptied before unless told not to."""
        self._into_heap("l2", first_rows(nx, x, self.d), codes, ncodes, res, init_finalize_heap)

    def search_ip(
        self, x: Any, nx: int, codes: Any, ncodes: int, res: Any, init_finalize_heap: bool = True
    ) -> None:
        """The same by inner products, into a float_minheap_array_t."""
        self._into_heap("ip", first_rows(nx, x, self.d), codes, ncodes, res, init_finalize_heap)

    def search_sdc(
        self,
        qcodes: Any,
        nq: int,
        bcodes: Any,
        ncodes: int,
        res: Any,
        init_finalize_heap: bool = True,
    ) -> None:
        """search() of the vectors that nq codes stand for."""
        queries = self.decode(self._codes_at(qcodes, nq))
        self._into_heap("l2", queries, bcodes, ncodes, res, init_finalize_heap)

    def _codes_at(self, codes: Any, n: int) -> NDArray[np.uint8]:
        return np.ravel(codes)[: n * self.code_size].reshape(n, self.code_size)

    def _into_heap(
        self,
        metric: str,
        queries: NDArray[np.float32],
        codes: Any,
        ncodes: int,
        heap: Any,
        new: bool,
    ) -> None:
        if new:
            heap.heapify()
        if not ncodes or not len(queries):
            return
        base = self.decode(self._codes_at(codes, ncodes))
        with faiss_errors():
            found = knn(queries, base, min(heap.k, ncodes), metric, threads=threads())
        heap._take(found.distances, found.ids)

    def get_centroids(self, m: int, i: int) -> NDArray[np.float32]:
        """The centroid [dsub] of number i, and all that follow of sub-quantizer m."""
        return self._books()[m, i:].ravel()

    def sync_transposed_centroids(self) -> None:
        """Makes the tables that FAISS encodes faster with. Codes are the same, and as fast."""
        books = self._books()
        self.transposed_centroids.set(books.transpose(2, 0, 1))
        self.centroids_sq_lengths.set((books**2).sum(2))

    def clear_transposed_centroids(self) -> None:
        self.transposed_centroids.clear()
        self.centroids_sq_lengths.clear()

    def compute_codes_with_assign_index(self, x: Any, codes: Any, n: int) -> None:
        """compute_codes() of the first n rows of `x` into the array `codes`, by assign_index, which
        gets the centroids of each part in turn."""
        index = self.assign_index
        if index is None or index.d != self.dsub:
            refuse(f"assign_index must be an index of {self.dsub} columns")
        parts = np.ravel(x)[: n * self.d].reshape(n, self.M, self.dsub)
        numbers = np.empty((n, self.M), np.int64)
        for m, book in enumerate(self._books()):
            index.reset()
            index.add(book)
            numbers[:, m] = index.assign(parts[:, m], 1).ravel()
        codes.reshape(-1)[: n * self.code_size] = packed(numbers, self.nbits).ravel()

    def _tables(self, x: Any, n: int, products: bool) -> NDArray[np.float32]:
        parts = np.ravel(x)[: n * self.d].reshape(n, self.M, self.dsub).astype(np.float64)
        books = self._books().astype(np.float64)
        out = np.einsum("nmd,mkd->nmk", parts, books)
        if not products:
            out = (parts**2).sum(2)[:, :, None] + (books**2).sum(2) - 2 * out
        return np.maximum(out, -np.inf if products else 0).astype(np.float32)

    def compute_distance_tables(self, nx: int, x: Any, dis_tables: Any) -> None:
        """The squared distances [nx x M x ksub] of the parts of `x` and all centroids, into an
        array."""
        dis_tables.reshape(-1)[: nx * self.M * self.ksub] = self._tables(x, nx, False).ravel()

    def compute_inner_prod_tables(self, nx: int, x: Any, dis_tables: Any) -> None:
        """The same of inner products."""
        dis_tables.reshape(-1)[: nx * self.M * self.ksub] = self._tables(x, nx, True).ravel()

    def compute_distance_table(self, x: Any, dis_table: Any) -> None:
        self.compute_distance_tables(1, x, dis_table)

    def compute_inner_prod_table(self, x: Any, dis_table: Any) -> None:
        self.compute_inner_prod_tables(1, x, dis_table)

    def compute_sdc_table(self) -> None:
        """Puts the squared distances [M x ksub x ksub] of centroids into sdc_table."""
        books = self._books()
        self.sdc_table.set(((books[:, :, None] - books[:, None]) ** 2).sum(3))


class ScalarQuantizer(Quantizer):
    """Each column by itself, in 8, 6 or 4 bits, halves or bfloat16."""

    QT_8bit, QT_4bit, QT_8bit_uniform, QT_4bit_uniform, QT_fp16 = range(5)
    QT_8bit_direct, QT_6bit, QT_bf16, QT_8bit_direct_signed = range(5, 9)
    # Types without codes here, which scripts ask for by name.
    QT_0bit, QT_1bit_tqmse, QT_2bit_tqmse, QT_3bit_tqmse, QT_4bit_tqmse, QT_8bit_tqmse = range(
        9, 15
    )
    QT_2bit_tq, QT_3bit_tq, QT_4bit_tq, QT_5bit_tq = range(15, 19)
    QT_1bit_eden, QT_2bit_eden, QT_3bit_eden, QT_4bit_eden = range(19, 23)
    QT_5bit_eden, QT_6bit_eden, QT_7bit_eden, QT_8bit_eden, QT_count = range(23, 28)
    RS_minmax, RS_meanstd, RS_quantiles, RS_optim = range(4)

    _BITS = {0: 8, 1: 4, 2: 8, 3: 4, 4: 16, 5: 8, 6: 6, 7: 16, 8: 8}

    def __init__(self, d: int, qtype: int = QT_8bit) -> None:
        super().__init__(d)
        qtype = whole("qtype", qtype)
        if qtype not in self._BITS:
            raise NotImplementedError(
                f"scalar quantizers of type {qtype} are not there; knear has SQ8, SQ4, SQfp16, "
                "SQbf16 and product quantizers"
            )
        self.qtype = qtype
        self.rangestat, self.rangestat_arg = self.RS_minmax, 0.0
        self.trained = Float32Vector()
        self._made: tuple[Any, int, Any] | None = None  # what _plain_code() made it of, and that
        self.set_derived_sizes()

    def set_derived_sizes(self) -> None:
        """Sets `bits` and code_size by qtype and d."""
        self.bits = self._BITS[self.qtype]
        self.code_size = (self.d * self.bits + 7) // 8

    @property
    def _has_levels(self) -> bool:
        return self.qtype in (0, 1, 2, 3, 6)

    @property
    def is_trained(self) -> bool:
        return not self._has_levels or self.trained.size() > 0

    def train(self, x: ArrayLike) -> None:
        """Learns the range of each column, or of all, from the rows of `x` [n x d]."""
        if not self._has_levels:
            matrix(x, self.d)
            return
        rows = training_rows(x, self.d, "codes")
        if not len(rows):
            refuse("a scalar quantizer cannot be trained on no vectors")
        if not np.isfinite(rows).all():
            refuse("input contains NaN's or Inf's")
        uniform = self.qtype in (self.QT_8bit_uniform, self.QT_4bit_uniform)
        values = rows.reshape(-1, 1) if uniform else rows
        low, span = self._range(values)
        self.trained.set(np.concatenate([low, span]))

    def _range(self, values: NDArray[np.float32]) -> tuple[Any, Any]:
        """(least, largest - least) of each column, stretched or cut as rangestat says."""
        by = self.rangestat_arg
        if self.rangestat == self.RS_minmax:
            low, high = values.min(0), values.max(0)
            more = (high - low) * np.float32(by)
            return low - more, high + more - (low - more)
        if self.rangestat == self.RS_meanstd:
            mean, deviation = values.mean(0, np.float64), values.std(0, np.float64)
            deviation[deviation == 0] = 1
            return mean - deviation * by, 2 * deviation * by
        if self.rangestat == self.RS_quantiles:
            ordered = np.sort(values, 0)
            cut = min(max(int(by * len(ordered)), 0), (len(ordered) - 1) // 2)
            low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
            return low, high - low
        raise NotImplementedError("of ranges of scalar quantizers, RS_optim is not there")

    def _levels(self) -> tuple[Any, Any]:
        if not self.trained.size():
            refuse("the scalar quantizer is not trained")
        low, span = self.trained.array.reshape(2, -1)
        return low, span

    def _codes_of(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        out = np.empty((len(x), self.code_size), np.uint8)
        self._code_into(x, out)
        return out

    def _code_into(
        self,
        x: NDArray[np.float32],
        out: NDArray[np.uint8],
        centroids: NDArray[np.float32] | None = None,
        lists: NDArray[np.int64] | None = None,
    ) -> None:
        """Puts the codes of `x` [n x d] into `out` [n x code_size]; with centroids, the codes of
        what is left of each row beside that of its list [n]."""
        if self.qtype in (self.QT_8bit_direct, self.QT_8bit_direct_signed):
            if centroids is not None:
                x = x - centroids[lists]
            _refuse_infinite(x, x, "finite")
            shift = 128 if self.qtype == self.QT_8bit_direct_signed else 0
            out[:] = np.clip(np.trunc(x + shift), 0, 255)
            return
        row = self._plain_code().encode(x, centroids, lists, threads(), out)
        if row == len(x):
            return
        some = x[row : row + 1]
        if centroids is not None and lists is not None:
            some = some - centroids[lists[row : row + 1]]
        _refuse_infinite(some, some, "finite", row)
        # From half a step above the largest number on.
        first = np.array(0x477FF000 if self.qtype == self.QT_fp16 else 0x7F7F8000, np.uint32)
        beyond = np.where(np.abs(some) >= first.view(np.float32), np.inf, some)
        _refuse_infinite(beyond, some, "what 16 bits hold", row)

    def _plain_code(self) -> Any:
        """What makes the codes, by the present `trained`."""
        learned = self.trained.array
        if self._made is None or self._made[0] is not learned or self._made[1] != self.qtype:
            low = span = np.empty(0, np.float32)
            if self._has_levels:
                low, span = (
                    np.ascontiguousarray(np.broadcast_to(each, self.d)) for each in self._levels()
                )
            kind = {self.QT_fp16: "fp16", self.QT_bf16: "bf16"}.get(self.qtype, str(self.bits))
            code = _core.PlainCode(kind, self.d, low, span)
            self._made = learned, self.qtype, code
        return self._made[2]

    def _kept_as(self) -> KeptAs:
        if self.qtype == self.QT_6bit:
            return KeptAs("vectors")
        if self.qtype in (self.QT_fp16, self.QT_bf16):
            return KeptAs("f16" if self.qtype == self.QT_fp16 else "bf16")
        if not self._has_levels:
            least = -128 if self.qtype == self.QT_8bit_direct_signed else 0
            return KeptAs("codes", 0, 8, np.repeat(np.float32([least, 1]), self.d))
        low, span = (np.broadcast_to(each, self.d) for each in self._levels())
        # A code stands for the middle of its range.
        top = np.float32((1 << self.bits) - 1)
        with np.errstate(all="ignore"):  # what is not finite is refused by knear
            numbers = np.concatenate([low + span * np.float32(0.5) / top, span / top])
        return KeptAs("codes", 0, self.bits, numbers)

    def _plain_options(
        self, centroids: NDArray[np.float32] | None = None
    ) -> tuple[Any, ...] | None:
        """(kind, low, span, centroids) of a _core.PlainSearch of these codes."""
        none = np.empty(0, np.float32)
        if self.qtype in (self.QT_fp16, self.QT_bf16):
            return ("fp16" if self.qtype == self.QT_fp16 else "bf16"), none, none, centroids
        if self.qtype == self.QT_6bit and self.is_trained:
            low, span = self._levels()
            return "6", low.copy(), span.copy(), centroids
        if self._has_levels and self.is_trained:
            return str(self.bits), none, none, None
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def _vectors_of(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        if self.qtype == self.QT_fp16:
            return codes.view("<f2").reshape(len(codes), self.d).astype(np.float32)
        if self.qtype == self.QT_bf16:
            upper = codes.view("<u2").reshape(len(codes), self.d).astype(np.uint32)
            return (upper << 16).view(np.float32)
        if self.qtype in (self.QT_8bit_direct, self.QT_8bit_direct_signed):
            shift = 128 if self.qtype == self.QT_8bit_direct_signed else 0
            return codes.astype(np.float32) - np.float32(shift)
        low, span = self._levels()
        numbers = unpacked(codes, self.d, self.bits).astype(np.float32)
        top = np.float32((1 << self.bits) - 1)
        return low + (numbers + np.float32(0.5)) / top * span


def _refuse_infinite(
    values: NDArray[Any], given: NDArray[np.float32], due: str, first: int = 0
) -> None:
    """Refuses rows with a value that is not finite; `first` is the number of the first row."""
    finite = np.isfinite(values)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        number = f"row {first + row} column {column}"
        refuse(f"vectors must be {due}, but {number} is {given[row, column]:g}")
