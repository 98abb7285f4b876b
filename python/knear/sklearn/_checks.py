"""What the estimators check and convert in the same way."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._process import cores
from ._blocks import each_block

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before scikit-learn 1.6

    def validate_data(estimator: Any, X: Any, y: Any = "no_validation", **how: Any) -> Any:
        return estimator._validate_data(X, y, **how)


__all__ = ["as_bytes", "as_knear_reads", "own", "threads_of", "validate_data", "whole_number"]

_READ_AS_THEY_ARE = {"float64", "float32", "float16", "uint8", "int8"}


def as_knear_reads(X: NDArray[Any]) -> NDArray[Any]:
    """`X` itself if knear reads its element type, else in float64, as scikit-learn converts."""
    return X if X.dtype.name in _READ_AS_THEY_ARE else X.astype(np.float64)


def own(array: NDArray[Any], given: Any) -> NDArray[Any]:
    """`array`, or a copy of it if the caller, who gave `given`, may change it in place."""
    made_here = array is not given and array.base is None and array.flags.owndata
    return array if made_here else array.copy()


def as_bytes(X: NDArray[Any], threads: int = 0) -> NDArray[Any]:
    """`X` in uint8 if that changes no value, since an eighth of the memory is read faster."""
    if X.dtype == np.uint8:
        return X
    out = np.empty(X.shape, np.uint8)

    def convert(part: slice) -> bool:
        with np.errstate(invalid="ignore"):  # another number comes out, which is seen below
            out[part] = X[part]
        return bool((out[part] == X[part]).all())

    return out if each_block(*X.shape, threads, convert) else X


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """`value`, a whole number of at least `least`; else ValueError, or TypeError."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name} does not take {type(value)} value, enter integer value")
    if value < least:
        raise ValueError(f"Expected {name} >= {least}. Got {value}")
    return int(value)


def threads_of(n_jobs: int | None) -> int:
    """The `threads` of knear for scikit-learn's n_jobs: None and -1 are all that the process may
    use, -2 all but one."""
    if n_jobs is None:
        return 0
    if not isinstance(n_jobs, numbers.Integral) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None or a whole number other than 0, but is {n_jobs!r}")
    if n_jobs > 0:
        return int(n_jobs)
    return 0 if n_jobs == -1 else max(1, cores() + 1 + int(n_jobs))
