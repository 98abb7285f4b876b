"""What a row in a list is kept as: the vector (IndexIVFFlat), a code of a product quantizer
(IndexIVFPQ) or of a scalar quantizer (IndexIVFScalarQuantizer)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import METRIC_L2, fill, first_rows, refuse
from ..quantizers import KeptAs, PolysemousTraining, ProductQuantizer, ScalarQuantizer
from .index import IndexIVF

_LARGEST_TABLE = 2 << 30  # bytes: FAISS's precomputed_table_max_bytes


class IndexIVFFlat(IndexIVF):
    """The vectors as they are."""

    def __init__(
        self, quantizer: Any, d: int, nlist: int, metric: int = METRIC_L2, own_invlists: bool = True
    ) -> None:
        super().__init__(quantizer, d, nlist, metric, own_invlists)
        self.by_residual = False
        self._set_code_size(4 * self.d)
        self.is_trained = self._quantizer_is_ready()

    def _code_into(
        self, x: NDArray[np.float32], lists: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> None:
        if self.by_residual:
            super()._code_into(x, lists, out)
        else:
            out.view(np.float32)[:] = x

    def _plain_options(self) -> tuple[Any, ...] | None:
        none = np.empty(0, np.float32)
        if self.by_residual or self._flat_centroids() is None:
            return None
        return "f32", none, none, None

    def _code(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.ascontiguousarray(x).view(np.uint8).reshape(len(x), self.code_size)

    def _uncode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(codes).view(np.float32).reshape(len(codes), self.d)


class IndexIVFPQ(IndexIVF):
    """Codes of M sub-quantizers of nbits each. Polysemous filters and precomputed tables are not
    there: every code is measured."""

    ScannerMode_Precomputed, ScannerMode_OnTheFly = range(2)

    def __init__(
        self,
        quantizer: Any,
        d: int,
        nlist: int,
        M: int,
        nbits: int,
        metric: int = METRIC_L2,
        own_invlists: bool = True,
    ) -> None:
        super().__init__(quantizer, d, nlist, metric, own_invlists)
        self.pq = ProductQuantizer(d, M, nbits)
        self.do_polysemous_training = False
        self.polysemous_training = PolysemousTraining()
        self.polysemous_ht = 0
        self.scan_table_threshold = 0
        self.use_precomputed_table = 0
        self._set_code_size(self.pq.code_size)

    def precompute_table(self) -> None:
        """Says as FAISS that there is a table, unless told -1 or where it would be too large. None
        has to be made: a code has a number of its own instead."""
        if self.use_precomputed_table < 0 or not self.by_residual:
            return
        fits = 4 * self.nlist * self.pq.M * self.pq.ksub <= _LARGEST_TABLE
        both_l2 = self.metric_type == self.quantizer.metric_type == METRIC_L2
        self.use_precomputed_table = int(both_l2 and fits)

    def _train(self, x: NDArray[np.float32]) -> None:
        super()._train(x)
        self.precompute_table()

    def encode(self, key: int, x: Any, code: Any) -> None:
        """Puts the code of `x` [d] in this list into an array."""
        self.encode_vectors(1, x, np.array([key]), code)

    def encode_multiple(
        self, n: int, keys: Any, x: Any, codes: Any, compute_keys: bool = False
    ) -> None:
        """Those of the first n rows of `x` in the lists `keys` [n], into which compute_keys puts
        the nearest ones before."""
        if compute_keys:
            fill(keys, self.quantizer.assign(first_rows(n, x, self.d), 1))
        self.encode_vectors(n, x, keys, codes)

    def decode_multiple(self, n: int, keys: Any, xcodes: Any, x: Any) -> None:
        """Puts what n codes in the lists `keys` stand for into an array [n x d]."""
        self.decode_vectors(n, xcodes, keys, x)

    def _train_rows_for_codes(self) -> int | None:
        return self.pq.cp.max_points_per_centroid * self.pq.ksub

    def _train_codes(self, x: NDArray[np.float32]) -> None:
        self.pq.train(x)

    def _code(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return self.pq.compute_codes(x)

    def _uncode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.pq.decode(codes)

    def _sources(self) -> tuple[Any, ...]:
        return *super()._sources(), self.pq.centroids.array, int(self.by_residual)

    def _kept_as(self) -> KeptAs:
        return self.pq._kept_as()


class IndexIVFScalarQuantizer(IndexIVF):
    """Codes of a ScalarQuantizer of this type."""

    def __init__(
        self,
        quantizer: Any,
        d: int,
        nlist: int,
        qtype: int,
        metric: int = METRIC_L2,
        by_residual: bool = True,
        own_invlists: bool = True,
    ) -> None:
        # QT_8bit_direct holds numbers from 0 to 255 as they are, and residuals may be negative.
        by_residual = by_residual and qtype != ScalarQuantizer.QT_8bit_direct
        super().__init__(quantizer, d, nlist, metric, own_invlists)
        self.sq = ScalarQuantizer(d, qtype)
        self.by_residual = bool(by_residual)
        self._set_code_size(self.sq.code_size)
        self.is_trained = False

    def _train_rows_for_codes(self) -> int | None:
        return 100_000

    def _train_codes(self, x: NDArray[np.float32]) -> None:
        self.sq.train(x)

    def _code_into(
        self, x: NDArray[np.float32], lists: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> None:
        if not self.by_residual:
            return self.sq._code_into(x, out)
        centroids = self._flat_centroids()
        if centroids is None or (len(lists) and lists.min() < 0):
            return super()._code_into(x, lists, out)
        return self.sq._code_into(x, out, centroids, lists)

    def _code(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return self.sq.compute_codes(x)

    def _uncode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.sq.decode(codes)

    def _sources(self) -> tuple[Any, ...]:
        return *super()._sources(), self.sq.trained.array, int(self.by_residual)

    def _kept_as(self) -> KeptAs:
        kept = self.sq._kept_as()
        if self.by_residual and self.sq.qtype == ScalarQuantizer.QT_8bit_direct:
            refuse("by_residual is True, but QT_8bit_direct has no codes of negative numbers")
        # knear has no halves of what is left beside a centroid.
        return kept if kept.kind == "codes" or not self.by_residual else KeptAs("vectors")

    def _plain_options(self) -> tuple[Any, ...] | None:
        centroids = self._flat_centroids()
        if centroids is None:
            return None
        return self.sq._plain_options(centroids if self.by_residual else None)
