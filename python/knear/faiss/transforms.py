"""Vectors to vectors: linear maps, PCA, OPQ, normalisation, centring, other columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
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
from .fields import whole
from .randomness import randn, subsample
from .saying import say
from .vectors import Float32Vector, Int32Vector


class VectorTransform(Sealed):
    """A map from d_in columns to d_out."""

    def __init__(self, d_in: int, d_out: int) -> None:
        self.d_in, self.d_out = whole("d_in", d_in), whole("d_out", d_out)
        self.is_trained = True

    def train(self, x: ArrayLike, *, numeric_type: int = 0) -> None:
        """Learns from the rows of `x` [n x d_in]."""
        learns = not self.is_trained
        rows = (
            training_rows(x, self.d_in, "transformed vectors") if learns else matrix(x, self.d_in)
        )
        with faiss_errors():
            self._train(rows)

    def apply(self, x: ArrayLike) -> NDArray[np.float32]:
        """[n x d_out] of `x` [n x d_in]."""
        rows = matrix(x, self.d_in)
        if not self.is_trained:
            refuse("Transformation not trained yet")
        with faiss_errors():
            return self._apply(rows)

    apply_py = apply

    def apply_noalloc(self, n: int, x: Any, xt: Any) -> None:
        """apply() of the first n rows of `x`, put into the array `xt`."""
        fill(xt, self.apply(first_rows(n, x, self.d_in)))

    def reverse_transform(self, x: ArrayLike) -> NDArray[np.float32]:
        """[n x d_in] of `x` [n x d_out]."""
        rows = matrix(x, self.d_out)
        with faiss_errors():
            return self._reverse(rows)

    def check_identical(self, other: Any) -> None:
        """RuntimeError unless the other maps alike."""
        same = type(self) is type(other) and (self.d_in, self.d_out) == (other.d_in, other.d_out)
        if not same or any(
            not np.array_equal(a, b) for a, b in zip(self._numbers(), other._numbers(), strict=True)
        ):
            refuse("the transforms are different")

    def _numbers(self) -> tuple[Any, ...]:
        return ()

    def _train(self, x: NDArray[np.float32]) -> None: ...

    def _apply(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        raise NotImplementedError

    def _reverse(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        refuse("reverse transform not implemented")


class LinearTransform(VectorTransform):
    """y = A x + b, with A [d_out x d_in] and b [d_out] if have_bias."""

    def __init__(self, d_in: int = 0, d_out: int = 0, have_bias: bool = False) -> None:
        super().__init__(d_in, d_out)
        self.have_bias = bool(have_bias)
        self.is_orthonormal = False
        self.verbose = False
        self.A, self.b = Float32Vector(), Float32Vector()
        self.is_trained = False

    def set_is_orthonormal(self) -> None:
        """Sets is_orthonormal where the rows of A, or its columns if these are fewer, are of length
        1 and at right angles."""
        if not self.A.size():
            self.is_orthonormal = False
            return
        a = self._a().astype(np.float64)
        a = a if self.d_out <= self.d_in else a.T
        self.is_orthonormal = bool(np.abs(a @ a.T - np.eye(len(a))).max() < 4e-5)

    def _a(self) -> NDArray[np.float32]:
        if self.A.size() != self.d_out * self.d_in:
            refuse("Transformation matrix not initialized")
        return self.A.array.reshape(self.d_out, self.d_in)

    def _b(self) -> NDArray[np.float32]:
        return self.b.array if self.have_bias else np.zeros(self.d_out, np.float32)

    def _set(self, a: NDArray[Any], b: NDArray[Any] | None = None) -> None:
        self.A.set(a)
        if self.have_bias:
            self.b.set(np.zeros(self.d_out) if b is None else b)
        self.is_trained = True
        self.set_is_orthonormal()

    def _numbers(self) -> tuple[Any, ...]:
        return self.A.array, self.b.array

    def _apply(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return _core.Transform.linear(self._a(), self._b()).apply(x, "f32", threads())

    def transform_transpose(self, x: ArrayLike) -> NDArray[np.float32]:
        """A' (y - b)"""
        rows = matrix(x, self.d_out) - self._b()
        back = np.ascontiguousarray(self._a().T)
        return _core.Transform.linear(back, np.zeros(self.d_in, np.float32)).apply(
            rows, "f32", threads()
        )

    def _reverse(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self.is_orthonormal:
            refuse("reverse transform not implemented for non-orthonormal matrices")
        return self.transform_transpose(x)


def _rotation(rows: int, columns: int, seed: int) -> NDArray[np.float64]:
    """FAISS's random rotation [rows x columns], with orthonormal rows, or columns where these are
    fewer."""
    long = max(rows, columns)
    q, _ = np.linalg.qr(randn((rows, long), seed).T.astype(np.float64))
    return q.T[:, :columns]


class RandomRotationMatrix(LinearTransform):
    """A random rotation to d_out columns."""

    def __init__(self, d_in: int = 0, d_out: int = 0) -> None:
        super().__init__(d_in, d_out)

    def init(self, seed: int) -> None:
        self._set(_rotation(self.d_out, self.d_in, seed))

    def _train(self, x: NDArray[np.float32]) -> None:
        self.init(12345)


def _completed(
    values: NDArray[np.float64], along: NDArray[np.float64], least: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eigenvalues [d] and directions [d x d] of length 1, of n < d directions of any length. At
    least `least` are orthonormal, completed by any others of the eigenvalue 0; the rest is 0."""
    d = along.shape[1]
    lengths = np.linalg.norm(along, axis=1)
    there = along[lengths > 1e-10 * lengths.max(initial=0)]
    n = len(there)
    rest = np.random.default_rng(1).standard_normal((max(0, least - n), d))
    rows = np.linalg.qr(np.vstack([there, rest]).T)[0].T
    rows[:n] *= np.where((rows[:n] * there).sum(1) < 0, -1.0, 1.0)[:, None]
    out_values, out = np.zeros(d), np.zeros((d, d))
    out_values[:n], out[: len(rows)] = values[:n], rows
    return out_values, out


class PCAMatrix(LinearTransform):
    """To the d_out principal components, each times its eigenvalue to the power of eigen_power:
    -0.5 makes the sums of squares of the training rows 1. Then a random rotation if wanted."""

    def __init__(
        self, d_in: int = 0, d_out: int = 0, eigen_power: float = 0, random_rotation: bool = False
    ) -> None:
        super().__init__(d_in, d_out, True)
        self.eigen_power, self.random_rotation = float(eigen_power), bool(random_rotation)
        self.epsilon, self.balanced_bins, self.max_points_per_d = 0.0, 0, 1000
        self.mean, self.eigenvalues, self.PCAMat = (Float32Vector() for _ in range(3))

    def _train(self, x: NDArray[np.float32]) -> None:
        if self.d_in < self.d_out:
            refuse(f"{self.d_out} components cannot be found of {self.d_in} columns")
        x = subsample(x, self.max_points_per_d * self.d_in)
        if len(x) < min(self.d_in, self.d_out):
            refuse(
                f"PCA matrix cannot output {self.d_out} dimensions from {self.d_in}: it is trained "
                f"on {len(x)} vectors, where {self.d_out} are the least"
            )
        if not len(x) or not np.isfinite(x).all():
            refuse("a PCA needs vectors, without NaN's or Inf's")
        mean = x.mean(0, np.float64)
        say(self.verbose, f"mean=[{' '.join(f'{each:g}' for each in mean)}]")
        apart = x.astype(np.float64) - mean
        if len(x) < self.d_in:  # the products of the rows are fewer than those of the columns
            values, turn = np.linalg.eigh(apart @ apart.T)
            values, vectors = _completed(
                np.maximum(values[::-1], 0), (apart.T @ turn[:, ::-1]).T, self.d_out
            )
        else:
            values, vectors = np.linalg.eigh(apart.T @ apart)
            values, vectors = np.maximum(values[::-1], 0), vectors.T[::-1]
        if self.eigen_power < 0 and not values[0] > 0:
            refuse("rows do not vary, so that whitening would divide by nothing")
        self.mean.set(mean)
        self.eigenvalues.set(values)
        self.PCAMat.set(vectors)
        self.prepare_Ab()

    def prepare_Ab(self) -> None:
        """Makes A and b of PCAMat, eigenvalues and mean."""
        a = self.PCAMat.array.reshape(self.d_in, self.d_in)[: self.d_out].astype(np.float64)
        values = self.eigenvalues.array[: self.d_out].astype(np.float64)
        if self.eigen_power:
            values = values + self.epsilon
            # Rows of fewer dimensions than columns have no variance in the others: what rounding
            # leaves there is no component, and whitening would make it as large as the first one.
            there = values > (0 if self.epsilon else 1e-12 * values.max(initial=0))
            with np.errstate(divide="ignore"):
                factors = np.where(there, values, 1) ** self.eigen_power
            a = a * np.where(there | (self.eigen_power > 0), factors, 0)[:, None]
        if self.balanced_bins:
            a = a[_balanced(values, self.balanced_bins)]
        if self.random_rotation:
            a = _rotation(self.d_out, self.d_out, 5) @ a
        self._set(a, -a @ self.mean.array.astype(np.float64))

    def copy_from(self, other: PCAMatrix) -> None:
        for name in ("mean", "eigenvalues", "PCAMat"):
            getattr(self, name).set(getattr(other, name).array)
        self.prepare_Ab()


def _balanced(values: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    """The components in an order in which each of so many parts has about the same product."""
    if len(values) % bins:
        refuse(f"{len(values)} components cannot be put into {bins} bins")
    room = len(values) // bins
    chosen: list[list[int]] = [[] for _ in range(bins)]
    weight = np.zeros(bins)
    for place, value in enumerate(values):
        free = [b for b in range(bins) if len(chosen[b]) < room]
        least = min(free, key=lambda b: weight[b])
        chosen[least].append(place)
        weight[least] += np.log(max(value, 1e-300))
    return np.array([place for each in chosen for place in each])


class OPQMatrix(LinearTransform):
    """The rotation after which a product quantizer with M parts loses least, to d2 columns."""

    def __init__(self, d: int = 0, M: int = 1, d2: int = -1) -> None:
        super().__init__(d, d if d2 == -1 else d2)
        self.M = whole("M", M)
        self.niter, self.niter_pq, self.niter_pq_0 = 50, 4, 40
        self.max_train_points = 256 * 256
        self.pq = None

    def _train(self, x: NDArray[np.float32]) -> None:
        # FAISS learns from fewer rows than centroids, too; by fewer bits here.
        bits = 8 if self.pq is None else self.pq.nbits
        bits = bits if bits in (4, 8) and len(x) >= 1 << bits else 4
        say(
            self.verbose,
            f"OPQMatrix: training an OPQ rotation matrix for M={self.M} from {len(x)} vectors in "
            f"{self.d_in}D -> {self.d_out}D",
        )
        made = _core.Transform.opq(
            x,
            "f32",
            self.M,
            bits,
            self.d_out,
            max(1, self.niter),
            1234,
            self.max_train_points,
            threads(),
            None,
        )
        a = np.eye(self.d_in)
        for kind, *what in made.steps():
            assert kind == "linear"
            a = what[0] @ a
        self._set(a)


class NormalizationTransform(VectorTransform):
    """To length 1; vectors of zeros stay."""

    def __init__(self, d: int = 0, norm: float = 2.0) -> None:
        super().__init__(d, d)
        self.norm = float(norm)

    def _apply(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.norm != 2:
            raise NotImplementedError("vectors are normalised by the norm 2 alone")
        return normalized(x)

    def _reverse(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x.copy()

    def _numbers(self) -> tuple[Any, ...]:
        return (self.norm,)


def normalized(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows at length 1, by sums in float64; those of zeros stay."""
    lengths = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))[:, None]
    return (x / np.where(lengths > 0, lengths, 1)).astype(np.float32)


class CenteringTransform(VectorTransform):
    """Less the mean of what was learned from."""

    def __init__(self, d: int = 0) -> None:
        super().__init__(d, d)
        self.mean = Float32Vector()
        self.is_trained = False

    def _train(self, x: NDArray[np.float32]) -> None:
        if not len(x):
            refuse("need at least one training vector")
        self.mean.set(x.mean(0, np.float64))
        self.is_trained = True

    def _apply(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x - self.mean.array

    def _reverse(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x + self.mean.array

    def _numbers(self) -> tuple[Any, ...]:
        return (self.mean.array,)


class RemapDimensionsTransform(VectorTransform):
    """Column i is column map[i] of what comes in, or 0 for -1. Without a map: `uniform` spreads the
    columns, or leaves out some of them evenly; else the first ones, then zeros."""

    def __init__(self, d_in: int = 0, d_out: int = 0, uniform: Any = True) -> None:
        super().__init__(d_in, d_out)
        if isinstance(uniform, (bool, int)):
            chosen = np.full(d_out, -1)
            if not uniform:
                chosen[: min(d_in, d_out)] = np.arange(min(d_in, d_out))
            elif d_in < d_out:
                chosen[np.arange(d_in) * d_out // max(1, d_in)] = np.arange(d_in)
            else:
                chosen = np.arange(d_out) * d_in // max(1, d_out)
        else:
            chosen = np.asarray(getattr(uniform, "array", uniform))[:d_out]
        self.map = Int32Vector(chosen)

    def _apply(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.zeros((len(x), self.d_out), np.float32)
        to = self.map.array
        out[:, to >= 0] = x[:, to[to >= 0]]
        return out

    def _reverse(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.zeros((len(x), self.d_in), np.float32)
        to = self.map.array
        out[:, to[to >= 0]] = x[:, to >= 0]
        return out

    def _numbers(self) -> tuple[Any, ...]:
        return (self.map.array,)
