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
        np.concatenate([row[order], np.full(none, fill, row.dtype)]),
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


@pytest.mark.parametrize("largest", [False, True])
def test_float64_is_selected_from_as_it_is(rng, largest):
    """Values that float32 does not tell apart, and such as it does not have."""
    for n, k in [(1, 1), (50, 7), (50, 60), (3000, 10), (9000, 3500), (700000, 100)]:
        x = 1 + rng.integers(-n, n, (3, n)) * 2.0**-40
        x[0, ::7] = np.nan
        x[1, : n // 4] = np.sort(x[1, : n // 4])[::-1]
        x[2, ::5] *= 1e300
        x[2, 1::9] = [np.inf, -np.inf][n % 2]
        for in_order in (True, False):
            for threads in (1, 3):
                values, indices = knear.select_k(
                    x, k, largest=largest, sorted=in_order, threads=threads
                )
                assert values.dtype == np.float64 and indices.dtype == np.int64
                for i in range(3):
                    want = wanted(x[i], k, largest, not in_order)
                    np.testing.assert_array_equal(indices[i], want[1])
                    np.testing.assert_array_equal(values[i], want[0])
    values, indices = knear.select_k(rng.random((3, 10)), 2, lengths=[0, 1, 10])
    assert indices[:2].tolist() == [[-1, -1], [0, -1]] and np.isinf(values[1, 1])
    zeros = np.array([0.0, -0.0, 0.0])
    values, indices = knear.select_k(zeros, 2, largest=largest)
    assert indices.tolist() == [0, 1] and np.signbit(values).tolist() == [False, True]
    np.testing.assert_array_equal(  # strided, of the other byte order
        knear.select_k(x[:, ::3].astype(">f8"), 4)[1], knear.select_k(x[:, ::3].copy(), 4)[1]
    )
    assert knear.select_k(np.zeros((0, 5)), 2)[0].shape == (0, 2)
    assert knear.select_k(np.zeros((3, 0)), 2)[1].tolist() == [[-1, -1]] * 3
    with pytest.raises(knear.InvalidArgument, match="method is partition, but values of type f64"):
        knear.select_k(x, 1, method="partition")
    with pytest.raises(knear.InvalidArgument, match="k must be between 1 and 2.31 - 1, but is 0"):
        knear.select_k(x, 0)
    with pytest.raises(knear.InvalidArgument, match=r"lengths\[1\] is -1"):
        knear.select_k(x, 1, lengths=[1, -1, 3])


def test_columns_of_pandas_and_arrow(rng):
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    x = rng.standard_normal((9, 20)).astype(np.float32)
    lists = pyarrow.array(list(x))
    want = knear.select_k(x, 3)
    in_table = pyarrow.table({"x": lists})["x"]
    for column in (pandas.Series(list(x)), pandas.DataFrame(x), lists, in_table, x.tolist()):
        got = knear.select_k(column, 3)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
    for row in (pandas.Series(x[0]), pyarrow.array(x[0]), x[0].tolist()):
        values, indices = knear.select_k(row, 3)
        np.testing.assert_array_equal(values, want[0][0])
        np.testing.assert_array_equal(indices, want[1][0])
    with pytest.raises(knear.InvalidArgument, match="x is a Table of Arrow: give its column"):
        knear.select_k(pyarrow.table({"x": lists}), 3)


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
