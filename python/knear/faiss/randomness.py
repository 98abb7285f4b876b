"""FAISS's random numbers, the same for the same seeds: rand, randn, randint, and permutations.

They are Mersenne twisters, one for each of 1024 blocks; of a permutation one in all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import refuse


def _words(seed: int, count: int) -> NDArray[np.uint64]:
    return np.random.RandomState(seed % 2**32)._bit_generator.random_raw(count)


def _blocks(n: int, seed: int) -> Any:
    """(first, last, seed) of the blocks of n numbers."""
    blocks = 1 if n < 1024 else 1024
    a, b = (int(word) & 0x7FFFFFFF for word in _words(seed, 2))
    for j in range(blocks):
        yield n * j // blocks, n * (j + 1) // blocks, a + j * b


def _random(shape: Any, seed: int, dtype: Any, of_block: Any) -> NDArray[Any]:
    out = np.empty(shape, dtype)
    flat = out.reshape(-1)
    for first, last, of in _blocks(flat.size, seed):
        flat[first:last] = of_block(of, last - first)
    return out


def rand(n: Any, seed: int = 12345) -> NDArray[np.float32]:
    """Numbers from 0 to 1; n: how many, or a shape."""

    def uniform(of: int, count: int) -> Any:
        return _words(of, count).astype(np.float32) / np.float32(0xFFFFFFFF)

    return _random(n, seed, np.float32, uniform)


def randn(n: Any, seed: int = 12345) -> NDArray[np.float32]:
    """Normally distributed numbers; n: how many, or a shape."""
    return _random(n, seed, np.float32, _normal)


def _normal(seed: int, count: int) -> NDArray[np.float64]:
    """By Marsaglia's polar method, two numbers of each pair that falls into the circle."""
    words = _words(seed, 4 * count + 64).reshape(-1, 2) / np.float64(0xFFFFFFFF)
    a, b = (2 * words - 1).T
    s = a * a + b * b
    inside = (s < 1) & (s > 0)
    a, b, s = a[inside], b[inside], s[inside]
    out = np.sqrt(-2 * np.log(s) / s)[:, None] * np.stack([a, b], 1)
    if out.size < count:  # hardly ever
        refuse("too few random numbers fell into the circle")
    return out.ravel()[:count]


def float_rand(x: NDArray[np.float32], n: int, seed: int) -> None:
    """rand() into the first n numbers of `x`."""
    x.reshape(-1)[:n] = rand(n, seed)


def float_randn(x: NDArray[np.float32], n: int, seed: int) -> None:
    """randn() into the first n numbers of `x`."""
    x.reshape(-1)[:n] = randn(n, seed)


def randint(n: Any, seed: int = 12345, vmax: int | None = None) -> NDArray[np.int64]:
    """Whole numbers below vmax, or of 62 bits; n: how many, or a shape."""

    def whole(of: int, count: int) -> Any:
        words = _words(of, 2 * count).astype(np.int64) & 0x7FFFFFFF
        values = words[::2] | words[1::2] << 31
        return values if vmax is None else values % vmax

    return _random(n, seed, np.int64, whole)


lrand = randint


def rand_perm(perm: NDArray[np.int32], n: int, seed: int) -> None:
    """The numbers below n in some order, into an array."""
    perm.reshape(-1)[:n] = permutation(n, seed)


def byte_rand(x: NDArray[np.uint8], n: int, seed: int) -> None:
    """Bytes, into an array."""
    x.reshape(-1)[:n] = randint(n, seed) & 255


def int64_rand(x: NDArray[np.int64], n: int, seed: int) -> None:
    """randint(), into an array."""
    x.reshape(-1)[:n] = randint(n, seed)


def int64_rand_max(x: NDArray[np.int64], n: int, max: int, seed: int) -> None:
    """randint() below max, into an array."""
    x.reshape(-1)[:n] = randint(n, seed, max)


class _Generator:
    _most: int  # of _word()

    def _word(self) -> int:
        raise NotImplementedError

    def rand_int(self, max: int | None = None) -> int:
        """From 0 on, of 31 bits, or below `max`."""
        return self._word() & 0x7FFFFFFF if max is None else self._word() % max

    def rand_float(self) -> float:
        """From 0 to 1."""
        return float(np.float32(self._word()) / np.float32(self._most))

    def rand_double(self) -> float:
        return self._word() / float(self._most)


class RandomGenerator(_Generator):
    """FAISS's, a Mersenne twister: the same numbers one after another for the same seed."""

    _most = 2**32 - 1

    def __init__(self, seed: int = 1234) -> None:
        self._bits = np.random.RandomState(seed % 2**32)._bit_generator

    def _word(self) -> int:
        return int(self._bits.random_raw())

    def rand_int64(self) -> int:
        low = self.rand_int()
        return low | self.rand_int() << 31


class SplitMix64RandomGenerator(_Generator):
    """FAISS's faster one: SplitMix64."""

    _most = 2**64 - 1

    def __init__(self, seed: int = 1234) -> None:
        self._state = seed % 2**64

    def _word(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) % 2**64
        z = self._state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    def rand_int64(self) -> int:
        return self._word() & 0x7FFFFFFFFFFFFFFF


def rand_perm_splitmix64(perm: NDArray[np.int32], n: int, seed: int) -> None:
    """rand_perm() by the other generator."""
    luck, out = SplitMix64RandomGenerator(seed), list(range(n))
    for i in range(n - 1):
        j = i + luck.rand_int(n - i)
        out[i], out[j] = out[j], out[i]
    perm.reshape(-1)[:n] = out


def rand_smooth_vectors(n: int, d: int, seed: int = 1234) -> NDArray[np.float32]:
    """Vectors [n x d] that 10 hidden numbers make: easier to search than independent columns."""
    hidden = randn((n, 10), seed)
    out = hidden @ rand((10, d), seed + 1)
    return np.sin(out * (rand(d, seed + 2) * 4 + np.float32(0.1))).astype(np.float32)


def permutation(n: int, seed: int, first: int | None = None) -> NDArray[np.int64]:
    """The first so many numbers of FAISS's rand_perm(n, seed), or all n: each place in turn is
    exchanged with one behind it."""
    first = n if first is None else min(first, n)
    places = np.arange(first)
    words = _words(seed, first).astype(np.int64)
    moved: dict[int, int] = {}
    out = []
    for place, other in enumerate((places + words % (n - places)).tolist()):
        out.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return np.array(out, np.int64)


def subsample(x: NDArray[Any], most: int, seed: int = 1234) -> NDArray[Any]:
    """The rows of `x`, or `most` of these, those that FAISS takes."""
    return x if len(x) <= most else x[permutation(len(x), seed, most)]
