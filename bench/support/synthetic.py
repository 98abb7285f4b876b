"""Synthetic vectors that resemble embeddings: clusters of unequal size and shape.

A row is  mean + centre_c + size_row * (shared loadings + own loadings of cluster c) * z,  z normal:

- the number of rows per cluster falls like 1 / (10 + rank), the clusters' radii differ by two;
- loadings are dense matrices whose columns decay by a power law, so that the spectrum does, but
  no coordinate says more than another (vectors come as a network gives them, not as PCA does);
- the centres lie in the same shared directions, plus some of their own, and carry about half of
  the variance: neighbours of a query come from several clusters;
- the radius of each row varies, so that clusters have a dense core and outliers.

The same bits on every run: one PCG64 stream per purpose, float32 sums in a written order
(element by element, no BLAS, whose order depends on machine and threads). NumPy may change its
normal generator in a later version; bench/support/sets.py compares with recorded checksums.
"""

import numpy as np

CLUSTERS = 1000


def normal(seed: int, purpose: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.Generator(np.random.PCG64([seed, *purpose]))
    return random.standard_normal(shape, dtype=np.float32)


def product(x: np.ndarray, loadings: np.ndarray) -> np.ndarray:
    """x [n x d] times loadings [d x d], summed in the order of the inner index."""
    out = np.zeros((len(x), loadings.shape[1]), np.float32)
    together = max(1, (1 << 17) // loadings.shape[1])  # rows that stay in the second-level cache
    for begin in range(0, len(x), together):
        rows, sums = x[begin : begin + together], out[begin : begin + together]
        for j in range(loadings.shape[0]):
            sums += rows[:, j : j + 1] * loadings[j]
    return out


def power_law(dim: int, exponent: float) -> np.ndarray:
    """1, 2^-exponent, 3^-exponent, ... with squares summing to 1, on a grid of 2^-16, so that a
    last bit of the power function does not matter."""
    values = np.arange(1, dim + 1, dtype=np.float64) ** -exponent
    values /= np.sqrt(np.sum(values**2))
    return (np.round(values * 65536) / 65536).astype(np.float32)


def clustered(rows: int, dim: int, seed: int) -> np.ndarray:
    """[rows x dim] f32 as the head of this file says; variance about 1 per row in total."""
    scale = np.float32(dim**-0.5)
    # Row j of each is the direction that z_j moves along; directions have length about 1.
    shared = normal(seed, (1,), (dim, dim)) * scale * power_law(dim, 0.5)[:, None]
    decay = power_law(dim, 0.4)[:, None]
    centres = np.float32(0.6) * product(normal(seed, (2,), (CLUSTERS, dim)), shared)
    centres += np.float32(0.35) * scale * normal(seed, (3,), (CLUSTERS, dim))
    mean = np.float32(0.4) * scale * normal(seed, (4,), (dim,))

    random = np.random.Generator(np.random.PCG64([seed, 5]))
    weight = np.floor(1e6 / (10.0 + np.arange(CLUSTERS))).astype(np.int64)
    upto = np.cumsum(weight)
    cluster = np.searchsorted(upto, random.integers(0, upto[-1], rows), side="right")
    radius = np.float32(0.5) + random.random(CLUSTERS, dtype=np.float32) * np.float32(0.5)
    size = np.float32(0.5) + random.random(rows, dtype=np.float32)

    out = np.empty((rows, dim), np.float32)
    order = np.argsort(cluster, kind="stable")
    ends = np.searchsorted(cluster[order], np.arange(CLUSTERS + 1))
    for c in range(CLUSTERS):
        members = order[ends[c] : ends[c + 1]]
        own = normal(seed, (6, c), (dim, dim)) * scale * decay
        loadings = (np.float32(0.6) * shared + np.float32(0.8) * own) * radius[c]
        for begin in range(0, len(members), 4096):
            some = members[begin : begin + 4096]
            z = normal(seed, (7, c, begin), (len(some), dim))
            out[some] = mean + centres[c] + size[some, None] * product(z, loadings)
    return out


def unit(rows: int, dim: int, seed: int) -> np.ndarray:
    """clustered() rows scaled to length 1 (the squares summed in order, in float64)."""
    out = clustered(rows, dim, seed)
    squares = np.zeros(rows)
    for j in range(dim):
        squares += out[:, j].astype(np.float64) ** 2
    out /= np.sqrt(squares).astype(np.float32)[:, None]
    return out


def bytes_like(rows: int, dim: int, seed: int) -> np.ndarray:
    """clustered() rows as whole numbers of 8 bits: skewed, a quarter of them zero, as gradient
    histograms and quantised activations are."""
    values = clustered(rows, dim, seed)
    values *= np.float32(45 * dim**0.5)
    values += np.float32(30)
    np.rint(values, out=values)
    return np.clip(values, 0, 255, out=values).astype(np.uint8)
