"""The compiled part; its arguments are those that knear/_arrays.py has checked."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

version: str

def knn(
    queries: NDArray[Any],
    queries_type: str,
    base: NDArray[Any],
    base_type: str,
    k: int,
    metric: str,
    threads: int,
    memory: int,
    first_pass: str,
    choices: str,
    filter_ids: NDArray[np.int64] | None,
    filter_bits: NDArray[np.uint64] | None,
    report: dict[str, Any] | None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]: ...
def self_join(
    base: NDArray[Any],
    base_type: str,
    k: int,
    metric: str,
    threads: int,
    memory: int,
    first_pass: str,
    choices: str,
    filter_ids: NDArray[np.int64] | None,
    filter_bits: NDArray[np.uint64] | None,
    report: dict[str, Any] | None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]: ...

class FlatIndex:
    def __init__(self, dim: int, metric: str) -> None: ...
    def add(self, vectors: NDArray[Any], type: str) -> None: ...
    def search(
        self,
        queries: NDArray[Any],
        queries_type: str,
        k: int,
        threads: int,
        memory: int,
        first_pass: str,
        report: dict[str, Any] | None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]: ...
    @property
    def dim(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def element_type(self) -> str: ...
