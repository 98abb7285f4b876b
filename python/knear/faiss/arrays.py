"""FAISS's functions of arrays that begin at an address, as swig_ptr() has it, and of bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def _rows(x: Any, n: int, d: int) -> NDArray[np.float64]:
    return np.ravel(x)[: n * d].reshape(n, d).astype(np.float64)


def fvec_madd(n: int, a: Any, bf: float, b: Any, c: Any) -> None:
    """c = a + bf b, of the first n numbers."""
    c.reshape(-1)[:n] = np.ravel(a)[:n] + np.float32(bf) * np.ravel(b)[:n]


def fvec_madd_and_argmin(n: int, a: Any, bf: float, b: Any, c: Any) -> int:
    """The same, and where the least of them stands."""
    fvec_madd(n, a, bf, b, c)
    return int(np.argmin(c.reshape(-1)[:n]))


def fvec_L2sqr(x: Any, y: Any, d: int) -> float:
    return float(np.square(_rows(x, 1, d) - _rows(y, 1, d)).sum())


def fvec_inner_product(x: Any, y: Any, d: int) -> float:
    return float((_rows(x, 1, d) * _rows(y, 1, d)).sum())


def fvec_L2sqr_ny(dis: Any, x: Any, y: Any, d: int, ny: int) -> None:
    """The squared distances of a vector to ny others, into an array."""
    dis.reshape(-1)[:ny] = np.square(_rows(x, 1, d) - _rows(y, ny, d)).sum(1)


def fvec_inner_products_ny(ip: Any, x: Any, y: Any, d: int, ny: int) -> None:
    ip.reshape(-1)[:ny] = (_rows(x, 1, d) * _rows(y, ny, d)).sum(1)


def fvec_norms_L2sqr(norms: Any, x: Any, d: int, nx: int) -> None:
    norms.reshape(-1)[:nx] = np.square(_rows(x, nx, d)).sum(1)


def fvec_norms_L2(norms: Any, x: Any, d: int, nx: int) -> None:
    norms.reshape(-1)[:nx] = np.sqrt(np.square(_rows(x, nx, d)).sum(1))


def _pairs(d: int, n: int, x: Any, ix: Any, y: Any, iy: Any) -> Any:
    of_x, of_y = np.ravel(ix)[:n], np.ravel(iy)[:n]
    return np.ravel(x).reshape(-1, d)[of_x].astype(np.float64), np.ravel(y).reshape(-1, d)[of_y]


def pairwise_indexed_L2sqr(d: int, n: int, x: Any, ix: Any, y: Any, iy: Any, dis: Any) -> None:
    """The squared distances of n pairs, row ix[i] of `x` and iy[i] of `y`, into an array."""
    a, b = _pairs(d, n, x, ix, y, iy)
    dis.reshape(-1)[:n] = np.square(a - b).sum(1)


def pairwise_indexed_inner_product(
    d: int, n: int, x: Any, ix: Any, y: Any, iy: Any, dis: Any
) -> None:
    a, b = _pairs(d, n, x, ix, y, iy)
    dis.reshape(-1)[:n] = (a * b).sum(1)


def fvec_L1(x: Any, y: Any, d: int) -> float:
    return float(np.abs(_rows(x, 1, d) - _rows(y, 1, d)).sum())


def fvec_Linf(x: Any, y: Any, d: int) -> float:
    return float(np.abs(_rows(x, 1, d) - _rows(y, 1, d)).max(initial=0))


def fvec_norm_L2sqr(x: Any, d: int) -> float:
    return float(np.square(_rows(x, 1, d)).sum())


def fvec_add(d: int, a: Any, b: Any, c: Any) -> None:
    """c = a + b, of the first d numbers; b may be one number."""
    c.reshape(-1)[:d] = np.ravel(a)[:d] + (np.float32(b) if np.isscalar(b) else np.ravel(b)[:d])


def fvec_sub(d: int, a: Any, b: Any, c: Any) -> None:
    c.reshape(-1)[:d] = np.ravel(a)[:d] - np.ravel(b)[:d]


def fvec_argsort(n: int, vals: Any, perm: Any) -> None:
    """The places of the first n numbers, from the least to the largest, into an array."""
    perm.reshape(-1)[:n] = np.argsort(np.ravel(vals)[:n], kind="stable")


fvec_argsort_parallel = fvec_argsort


def pairwise_L2sqr(
    d: int,
    nq: int,
    xq: Any,
    nb: int,
    xb: Any,
    dis: Any,
    ldq: int = -1,
    ldb: int = -1,
    ldd: int = -1,
) -> None:
    """The squared distances [nq x nb] into an array. Rows begin ldq, ldb and ldd numbers apart; -1:
    without gaps."""
    ldq, ldb, ldd = d if ldq < 0 else ldq, d if ldb < 0 else ldb, nb if ldd < 0 else ldd
    out = dis.reshape(-1)
    for i in range(nq):
        query = np.ravel(xq)[i * ldq : i * ldq + d].astype(np.float64)
        for j in range(nb):
            apart = query - np.ravel(xb)[j * ldb : j * ldb + d]
            out[i * ldd + j] = apart @ apart


def memcpy(dest: Any, src: Any, n: int) -> Any:
    """Copies the first n bytes of an array into another."""
    dest.reshape(-1).view(np.uint8)[:n] = np.ravel(src).view(np.uint8)[:n]
    return dest


def ranklist_intersection_size(k1: int, v1: Any, k2: int, v2: Any) -> int:
    """How many ids the first k1 and k2 have in common. -1, which stands where nothing was found, is
    no id."""
    common = np.intersect1d(np.ravel(v1)[:k1], np.ravel(v2)[:k2])
    return int((common != -1).sum())


def imbalance_factor(n: int, k: int, assign: Any) -> float:
    """Of n rows in k lists: 1 where all are as long, k where one has all."""
    sizes = np.bincount(np.ravel(assign)[:n], minlength=k).astype(np.float64)
    return float((sizes**2).sum() * k / max(1.0, sizes.sum()) ** 2)


def ivec_checksum(n: int, a: Any) -> int:
    """FAISS's number that tells whether n numbers of 32 bits are the same."""
    values = np.ravel(a).view(np.uint32)[:n].astype(np.uint64) * np.uint64(1686049)
    powers = np.cumprod(np.concatenate([[1], np.full(n, 65713)]).astype(np.uint64))
    with np.errstate(over="ignore"):
        terms = (values & np.uint64(0xFFFFFFFF)) * powers[:n]
        return int(terms.sum(dtype=np.uint64) + powers[n] * np.uint64(112909))


def bvec_checksum(n: int, a: Any) -> int:
    """The same of bytes."""
    values = np.ravel(a).view(np.uint8)[:n]
    whole = n // 4 * 4
    out = ivec_checksum(n // 4, np.ascontiguousarray(values[:whole]))
    for value in values[whole:].tolist():
        out = (out * 65713 + value * 1686049) % 2**64
    return out


def bvecs_checksum(n: int, d: int, a: Any, cs: Any) -> None:
    """Those of n rows of d bytes, into an array."""
    rows = np.ravel(a).view(np.uint8)[: n * d].reshape(n, d)
    cs.reshape(-1)[:n] = [bvec_checksum(d, np.ascontiguousarray(row)) for row in rows]


def checksum(a: NDArray[Any]) -> Any:
    """That of an array, or of each row of a matrix [n]."""
    values = a.view(np.uint8)
    if values.ndim == 1:
        return bvec_checksum(values.size, values)
    out = np.zeros(len(values), np.uint64)
    bvecs_checksum(*values.shape, values, out)
    return out


def fourcc(letters: str) -> int:
    """The four letters by which FAISS's files name a type, as a number."""
    a = letters.encode("latin1")
    assert len(a) == 4, f"there must be 4 letters, but are {letters!r}"
    return int.from_bytes(a, "little")


def fourcc_inv(number: int) -> str:
    return number.to_bytes(4, "little").decode("latin1")


class BitstringWriter:
    """Puts whole numbers of so many bits one after another into an array of bytes, low bits
    first."""

    def __init__(self, code: NDArray[np.uint8], code_size: int) -> None:
        self._code, self.code_size, self.i = code.reshape(-1), int(code_size), 0
        self._code[: self.code_size] = 0

    def write(self, x: int, nbit: int) -> None:
        assert self.i + nbit <= 8 * self.code_size, "the array is full"
        first, last = self.i // 8, (self.i + nbit + 7) // 8
        bits = (int(x) & ((1 << nbit) - 1)) << self.i % 8
        had = int.from_bytes(self._code[first:last].tobytes(), "little")
        new = (had | bits).to_bytes(last - first, "little")
        self._code[first:last] = np.frombuffer(new, np.uint8)
        self.i += nbit


class BitstringReader:
    """Reads what a BitstringWriter has put there."""

    def __init__(self, code: NDArray[np.uint8], code_size: int) -> None:
        self._code, self.code_size, self.i = code.reshape(-1), int(code_size), 0

    def read(self, nbit: int) -> int:
        assert self.i + nbit <= 8 * self.code_size, "the array ends before"
        bits = self._code[self.i // 8 : (self.i + nbit + 7) // 8].tobytes()
        value = int.from_bytes(bits, "little") >> self.i % 8 & ((1 << nbit) - 1)
        self.i += nbit
        return value
