"""Numbers of the types that FAISS's C++ has: fields keep theirs, arguments are checked."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Fields that FAISS keeps as size_t.
UNSIGNED = frozenset(["nprobe", "max_codes", "nlist", "max_lists_num", "max_empty_result_buckets"])


def whole(name: str, value: Any) -> int:
    """`value`, which must be a whole number of Python or NumPy. TypeError for 4.0 and "4"."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, but is {value!r}") from None


def whole_ids(name: str, ids: Any) -> NDArray[np.int64]:
    """`ids` as int64. TypeError unless they are whole numbers, ValueError for one that int64 cannot
    hold: FAISS takes 1.7 as 1, and 2^63 as a negative number."""
    given = np.asarray(getattr(ids, "array", ids))
    if not given.size:
        return np.zeros(given.shape, np.int64)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be whole numbers, but are of type {given.dtype}")
    if given.dtype.kind == "f" and (broken := given[given != np.floor(given)]).size:
        raise TypeError(f"{name} must be whole numbers, but one is {broken[0]}")
    if given.dtype.kind != "i" and (far := given[(given >= 2.0**63) | (given < -(2.0**63))]).size:
        raise ValueError(f"{name} must be from -2^63 to 2^63 - 1, but one is {far[0]}")
    return np.ascontiguousarray(given, np.int64)


def neighbors(k: Any) -> int:
    """How many neighbours a search is for: a whole number from 1 on."""
    if isinstance(k, (bool, np.bool_)):
        raise TypeError(f"k must be a whole number, but is {k!r}")
    k = whole("k", k)
    assert k > 0, f"k must be 1 at least, but is {k}"
    return k


def number(name: str, value: Any) -> float:
    """`value`, which must be a number."""
    if not isinstance(value, (int, float, np.number, np.bool_)):
        raise TypeError(f"{name} must be a number, but is {value!r}")
    return float(value)


def of_type(name: str, had: Any, value: Any) -> Any:
    """`value` for a field that `had` one of the same type: a bool, a whole number or a number.
    TypeError for what is not, OverflowError for a negative size; fields of other types take
    everything."""
    kind = type(had)
    if kind is bool:
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{name} must be True or False, but is {value!r}")
        return bool(value)
    if kind is int:
        out = whole(name, value)
        if out < 0 and name in UNSIGNED:
            raise OverflowError(f"{name} must not be negative, but is {out}")
        return out
    if kind is float:
        return number(name, value)
    return value
