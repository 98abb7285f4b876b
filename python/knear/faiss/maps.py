"""Small tables of FAISS: numbers by numbers, and codes that have been seen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .base import Sealed


class MapLong2Long(Sealed):
    """A whole number for each of those that were added, -1 for others."""

    def __init__(self) -> None:
        self._map: dict[int, int] = {}

    def add(self, keys: ArrayLike, vals: ArrayLike) -> None:
        """The numbers vals [n] for keys [n], instead of those that they had."""
        names, values = np.ascontiguousarray(keys, np.int64), np.ascontiguousarray(vals, np.int64)
        assert names.ndim == 1 and names.shape == values.shape, "there must be a value for each key"
        self._map.update(zip(names.tolist(), values.tolist(), strict=True))

    def search(self, key: int) -> int:
        return self._map.get(int(key), -1)

    def search_multiple(self, keys: ArrayLike) -> NDArray[np.int64]:
        """Those of keys [n]."""
        return np.array(
            [self.search(key) for key in np.ascontiguousarray(keys, np.int64)], np.int64
        )


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
