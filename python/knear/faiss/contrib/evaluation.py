"""How much two results have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def knn_intersection_measure(I1: ArrayLike, I2: ArrayLike) -> float:
    """The share of ids [n x k] that two results have in common, of all; -1 is one, too."""
    a, b = np.asarray(I1), np.asarray(I2)
    assert a.shape == b.shape, f"results {a.shape} and {b.shape} do not compare"
    return sum(len(np.intersect1d(x, y)) for x, y in zip(a, b, strict=True)) / a.size


def check_ref_knn_with_draws(
    Dref: Any, Iref: Any, Dnew: Any, Inew: Any, rtol: float = 1e-5
) -> None:
    """AssertionError unless two results have the same distances, and the same ids but for those of
    equal distances."""
    np.testing.assert_allclose(Dref, Dnew, rtol=rtol)
    for distances, a, b in zip(Dref, Iref, Inew, strict=True):
        for value in np.unique(distances):
            places = distances == value
            if not places[-1]:  # of the last ones, others may be as far
                assert set(a[places]) == set(b[places])


def check_ref_range_results(
    Lref: Any, Dref: Any, Iref: Any, Lnew: Any, Dnew: Any, Inew: Any
) -> None:
    """AssertionError unless two range searches found the same, in any order."""
    np.testing.assert_array_equal(Lref, Lnew)
    for begin, end in zip(Lref[:-1].astype(int), Lref[1:].astype(int), strict=True):
        a, b = np.argsort(Iref[begin:end]), np.argsort(Inew[begin:end])
        np.testing.assert_array_equal(Iref[begin:end][a], Inew[begin:end][b])
        np.testing.assert_allclose(Dref[begin:end][a], Dnew[begin:end][b], rtol=1e-4, atol=1e-4)
