"""select_k against a stable sort by NumPy."""

import numpy as np
import pytest

import knear


def wanted(row, k, largest, by_index):
    order = np.argsort(-row if largest else row, kind="stable")  # NaN last
    order = order[~np.isnan(row[order])][:k]
    if by_index:
        order = np.sort(order)
    none = k - len(order)
    fill = -np.inf if largest else np.inf
    return (
        np.concatenate([row[order], np.full(none, fill, np.float32)]),
        np.concatenate([order, np.full(none, -1)]),
    )


@pytest.mark.parametrize("method", ["auto", "threshold", "partition"])
@pytest.mark.parametrize("largest", [False, True])
def test_equals_a_stable_sort(rng, method, largest):
    for n, k in [(1, 1), (50, 7), (50, 60), (3000, 10), (3000, 500), (40000, 100)]:
        x = rng.integers(-n, n, (3, n)).astype(np.float32) / 4
        x[0, ::7] = np.nan
        for in_order in (True, False):
            values, indices = knear.select_k(
                x, k, largest=largest, sorted=in_order, method=method, threads=2
            )
            assert values.dtype == np.float32 and indices.dtype == np.int64
            for i in range(3):
                want = wanted(x[i], k, largest, not in_order)
                np.testing.assert_array_equal(indices[i], want[1])
                np.testing.assert_array_equal(values[i], want[0])


def test_one_row_ragged_rows_and_types(rng):
    x = rng.standard_normal(1000).astype(np.float32)
    values, indices = knear.select_k(x, 5)
    assert values.shape == indices.shape == (5,)
    np.testing.assert_array_equal(indices, np.argsort(x, kind="stable")[:5])
    rows = np.tile(x, (3, 1))
    values, indices = knear.select_k(rows, 2, lengths=[0, 1, 1000])
    assert indices[0].tolist() == [-1, -1] and values[0].tolist() == [np.inf, np.inf]
    assert indices[1].tolist() == [0, -1]
    assert indices[2].tolist() == np.argsort(x, kind="stable")[:2].tolist()
    whole = rng.integers(0, 255, (4, 200)).astype(np.uint8)
    for dtype in (np.uint8, np.int64, np.float64, np.float16):
        got = knear.select_k(whole.astype(dtype), 9, largest=True)
        np.testing.assert_array_equal(got[0], np.sort(whole, axis=1)[:, ::-1][:, :9])
    np.testing.assert_array_equal(
        knear.select_k(rows[:, ::3], 4)[1], knear.select_k(rows[:, ::3].copy(), 4)[1]
    )


def test_bad_arguments_are_one_clear_line(rng):
    x = np.zeros((2, 5), np.float32)
    with pytest.raises(knear.InvalidArgument, match="k must be between 1 and 2.31 - 1, but is 0"):
        knear.select_k(x, 0)
    with pytest.raises(knear.InvalidArgument, match=r"lengths\[1\] is 6"):
        knear.select_k(x, 1, lengths=[1, 6])
    for lengths, count in [([], 0), ([1, 2, 3], 3)]:
        with pytest.raises(knear.ShapeMismatch, match=f"lengths has {count} values"):
            knear.select_k(x, 1, lengths=lengths)
    with pytest.raises(knear.InvalidArgument, match="method must be one of"):
        knear.select_k(x, 1, method="quick")
    with pytest.raises(knear.InvalidArgument, match="x must be a matrix"):
        knear.select_k(np.zeros((2, 2, 2), np.float32), 1)
