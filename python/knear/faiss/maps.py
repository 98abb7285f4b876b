"""Small things of FAISS: numbers by numbers, codes that have been seen, statistics of a matrix."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .base import Sealed, refuse
from .fields import whole, whole_ids


class MapLong2Long(Sealed):
    """A whole number for each of those that were added, -1 for others."""

    def __init__(self) -> None:
        self._map: dict[int, int] = {}

    def add(self, keys: ArrayLike, vals: ArrayLike) -> None:
        """The numbers vals [n] for keys [n], instead of those that they had."""
        names, values = whole_ids("keys", keys), whole_ids("vals", vals)
        assert names.ndim == 1 and names.shape == values.shape, "there must be a value for each key"
        self._map.update(zip(names.tolist(), values.tolist(), strict=True))

    def search(self, key: int) -> int:
        return self._map.get(int(key), -1)

    def search_multiple(self, keys: ArrayLike) -> NDArray[np.int64]:
        """Those of keys [n]."""
        return np.array([self.search(key) for key in whole_ids("keys", keys)], np.int64)


class MapInt64ToInt64(Sealed):
    """The same for arrays of keys, with places for so many."""

    def __init__(self, capacity: int) -> None:
        self.capacity = whole("capacity", capacity)
        if self.capacity < 1:
            refuse(f"capacity must be 1 at least, but is {capacity}")
        self._map = MapLong2Long()

    def add(self, keys: ArrayLike, vals: ArrayLike) -> None:
        """The numbers vals [n] for keys [n]. RuntimeError where there is no place for all; then
        nothing is added."""
        new = set(whole_ids("keys", keys).tolist()) - self._map._map.keys()
        count = len(self._map._map) + len(new)
        if count > self.capacity:
            refuse(f"the table has places for {self.capacity} keys, but they would be {count}")
        self._map.add(keys, vals)

    def search(self, keys: ArrayLike) -> NDArray[np.int64]:
        """The numbers [n] of keys [n], -1 for others."""
        return self._map.search_multiple(keys)


class CodeSet(Sealed):
    """Codes of d bytes, each once."""

    def __init__(self, d: int) -> None:
        self.d = int(d)
        self._seen: set[bytes] = set()

    def insert(self, codes: Any, inserted: Any = None) -> NDArray[np.bool_]:
        """Which of codes [n x d] are new, the first of equal ones."""
        n, d = codes.shape
        assert d == self.d and codes.dtype == np.uint8, f"codes must be uint8 of {self.d} bytes"
        new = np.zeros(n, np.bool_) if inserted is None else inserted
        for row, code in enumerate(codes):
            new[row] = (key := code.tobytes()) not in self._seen
            self._seen.add(key)
        return new


class MatrixStats(Sealed):
    """What stands out in a matrix [n x d]: `comments` has a line for each of FAISS's questions."""

    def __init__(self, m: ArrayLike) -> None:
        x = np.ascontiguousarray(m, np.float32)
        self.n, self.d = x.shape
        self.n0 = 0
        # Equal for equal matrices; not FAISS's number.
        self.hash_value = int.from_bytes(hashlib.blake2b(x, digest_size=8).digest(), "little")
        lines = [f"analyzing {self.n} vectors of size {self.d}"]
        finite = np.isfinite(x).all(1)
        self.n_valid = int(finite.sum())
        bad = self.n - self.n_valid
        lines.append(f"{bad} vectors contain NaN or Inf" if bad else "no NaN or Infs in data")
        lines.append(self._copies(x))
        x = x[finite].astype(np.float64)
        if len(x):
            lines += self._lengths(x) + self._columns(x)
        self.comments = "\n".join(lines) + "\n"

    def _copies(self, x: NDArray[np.float32]) -> str:
        rows = np.ascontiguousarray(x).view(np.dtype((np.void, 4 * self.d))).ravel()
        _, first, counts = np.unique(rows, return_index=True, return_counts=True)
        if len(first) == self.n:
            return "all vectors are distinct"
        most = int(counts.argmax())
        share = 100 * len(first) / self.n
        copies = f"vector {first[most]} has {counts[most]} copies"
        return f"{len(first)} vectors are distinct ({share:.2f}%)\n{copies}"

    def _lengths(self, x: NDArray[np.float64]) -> list[str]:
        norms = np.sqrt(np.square(x).sum(1))
        self.n0 = int((norms == 0).sum())
        there = norms[norms > 0]
        low, high = (there.min(), there.max()) if len(there) else (0.0, 0.0)
        lines = [f"range of L2 norms=[{low:g}, {high:g}] ({self.n0} null vectors)"]
        if high - low < 1e-4 * high:
            lines.append("vectors are normalized, inner product and L2 search are equivalent")
        zeros = 100 * float((x == 0).mean())
        lines.append(
            f"matrix contains {zeros:.2f} % 0 entries" if zeros else "matrix contains no 0s"
        )
        return lines

    def _columns(self, x: NDArray[np.float64]) -> list[str]:
        means, deviations = x.mean(0), x.std(0)
        constant = int((x.min(0) == x.max(0)).sum())
        far = int((np.abs(means) > 4096 * deviations)[x.min(0) != x.max(0)].sum())
        lines = ["no constant dimensions", "no dimension has a too large mean"]
        if constant:
            lines[0] = f"{constant} dimensions are constant: they can be removed"
        if far:
            lines[1] = f"{far} dimensions are too large wrt. their variance: center them"
        low, high = deviations.min(), deviations.max()
        return [*lines, f"stddevs per dimension are in [{low:g} {high:g}]"]
