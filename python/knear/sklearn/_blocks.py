"""Matrices gone over in blocks that stay in a cache, on several threads where that pays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from .._process import cores

_BLOCK = 1 << 18  # elements of a block: 2 MB of float64
_WORTH_THREADS = 1 << 23


def blocks(rows: int, dim: int, elements: int = 4 * _BLOCK) -> Iterator[slice]:
    """The rows of a matrix [rows x dim] in blocks of so many elements."""
    step = max(1, elements // max(1, dim))
    for begin in range(0, rows, step):
        yield slice(begin, begin + step)


def each_block(rows: int, dim: int, threads: int, work: Callable[[slice], bool]) -> bool:
    """Calls work(block) for the blocks of a matrix [rows x dim]; False, and the rest is left, where
    a call returns False. `threads`: 0 for all cores."""
    parts = blocks(rows, dim, _BLOCK)
    workers = threads or cores()
    if workers == 1 or rows * dim < _WORTH_THREADS:
        return all(map(work, parts))
    going = True

    def go_on(part: slice) -> bool:
        nonlocal going
        going = going and work(part)
        return going

    with ThreadPoolExecutor(workers) as pool:
        return all(pool.map(go_on, parts))
