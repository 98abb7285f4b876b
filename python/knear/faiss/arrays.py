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
