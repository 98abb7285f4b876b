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
