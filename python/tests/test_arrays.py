"""What may come in as an array: layouts without a copy, layouts with one, and what is refused."""

import mmap
import tracemalloc

import numpy as np
import pytest

import knear
from knear import _arrays

ACCEPTED = [np.float32, np.float16, np.uint8, np.int8]


def shares(x):
    array, _ = _arrays.matrix("x", x)
    return np.shares_memory(array, x)


@pytest.mark.parametrize("dtype", ACCEPTED)
def test_contiguous_rows_are_not_copied(dtype):
    x = np.zeros((20, 12), dtype)
    assert shares(x)
    assert shares(x[3:9])
    assert shares(x[::2])
    assert shares(x[:, 2:7])
    assert shares(x[:1, :])
    assert shares(x[::3, 4:5])
    read_only = x.copy()
    read_only.flags.writeable = False
    assert shares(read_only)


def test_what_cannot_be_read_in_place_is_copied_once_and_right(rng):
    x = rng.standard_normal((12, 9)).astype(np.float32)
    raw = np.zeros(12 * 36 + 1, np.uint8)
    odd = raw[1:].view()
    odd.flags.writeable = True
    unaligned = np.frombuffer(raw, np.float32, 12 * 9, offset=1).reshape(12, 9)
    unaligned[:] = x
    records = np.zeros(12, [("tag", "u1"), ("values", "f4", 9)])  # 37 bytes from row to row
    records["values"] = x
    layouts = {
        "Fortran order": np.asfortranarray(x),
        "every other column": np.repeat(x, 2, axis=1)[:, ::2],
        "rows backwards": x[::-1].copy()[::-1],
        "columns backwards": x[:, ::-1].copy()[:, ::-1],
        "unaligned": unaligned,
        "records": records["values"],
        "other byte order": x.astype(">f4"),
    }
    want = knear.knn(x[:4], x, 3)
    for name, layout in layouts.items():
        assert not shares(layout), name
        for got in (knear.knn(x[:4], layout, 3), knear.knn(layout[:4], x, 3)):
            np.testing.assert_array_equal(got[0], want[0], err_msg=name)
            np.testing.assert_array_equal(got[1], want[1], err_msg=name)
    repeated = np.broadcast_to(x[0], (5, 9))
    assert knear.knn(x[:1], repeated, 5)[1].tolist() == [[0, 1, 2, 3, 4]]


def test_rows_that_lie_apart_give_the_same_answer(rng):
    wide = rng.standard_normal((40, 30)).astype(np.float32)
    base, queries = wide[::2, 3:17], wide[1::5, 9:23]
    want = knear.knn(queries.copy(), base.copy(), 6)
    got = knear.knn(queries, base, 6)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


def test_a_matrix_spread_over_more_memory_than_there_is():
    # 200 rows, 1 GiB apart: a copy of what lies between would need 200 GiB.
    no_reserve = 0x4000  # of Linux; Python's mmap has a name for it from 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    try:
        space = mmap.mmap(-1, 200 << 30, flags)
    except OSError as error:
        pytest.skip(f"this system gives no 200 GiB of addresses: {error}")
    rows = np.ndarray((200, 16), np.float32, buffer=space, strides=(1 << 30, 4))
    rows[:] = np.arange(200)[:, None]
    distances, ids = knear.knn(rows[70:71], rows, 3)
    assert ids.tolist() == [[70, 69, 71]]
    assert distances.tolist() == [[0, 16, 16]]


def test_results_are_the_only_large_memory(rng):
    base = rng.integers(0, 256, (20_000, 64)).astype(np.uint8)
    tracemalloc.start()
    try:
        knear.knn(base[:3], base, 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < base.nbytes / 4


def test_results_live_on_their_own(rng):
    base = rng.standard_normal((30, 4)).astype(np.float32)
    distances, ids = knear.knn(base, base, 2)
    kept = distances.copy(), ids.copy()
    del base
    for _ in range(50):
        knear.knn(np.ones((30, 4), np.float32), np.ones((30, 4), np.float32), 2)
    np.testing.assert_array_equal(distances, kept[0])
    np.testing.assert_array_equal(ids, kept[1])
    distances[0, 0] = 5  # and may be written to
    assert ids.flags.c_contiguous


def test_anything_that_numpy_makes_an_array_of():
    assert knear.knn([[1, 2]], [[0, 0], [1, 2]], 1)[1].tolist() == [[1]]
    assert knear.knn(memoryview(np.eye(2, dtype=np.float32)), np.eye(2), 1)[1].tolist() == [
        [0],
        [1],
    ]


@pytest.mark.parametrize("argument", ["queries", "base"])
def test_wrong_dimensions_are_named(argument):
    good = np.zeros((3, 4), np.float32)

    def call(x):
        arguments = {"queries": good, "base": good, argument: x}
        knear.knn(k=1, **arguments)

    if argument == "base":  # queries may be one vector
        with pytest.raises(knear.InvalidArgument, match=r"base .*base\[None, :\]"):
            call(np.zeros(4, np.float32))
    with pytest.raises(knear.InvalidArgument, match=f"{argument} .* 3 dimensions"):
        call(np.zeros((2, 2, 2), np.float32))
    with pytest.raises(knear.InvalidArgument, match=f"{argument} .* 0 dimensions"):
        call(np.float32(1))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (2**24 + 1, np.int32),
        (2**63 - 1, np.int64),
        (2**64 - 1, np.uint64),
    ],
)
def test_values_that_float32_cannot_hold_are_refused(value, dtype):
    base = np.zeros((1000, 3), dtype)
    base[777, 2] = value
    with pytest.raises(knear.InvalidArgument, match="base .* in row 777, column 2"):
        knear.knn(np.zeros((1, 3), np.float32), base, 1)
    assert knear.knn(np.zeros((1, 3), np.float32), base[:777], 1)[1].tolist() == [[0]]


def test_float64_is_measured_as_it_is():
    rng = np.random.default_rng(5)
    base, queries = 1 + 1e-9 * rng.random((500, 8)), 1 + 1e-9 * rng.random((7, 8))
    squares = ((queries[:, None] - base[None]) ** 2).sum(axis=2)
    distances, ids = knear.knn(queries, base, 5)
    np.testing.assert_array_equal(ids, np.argsort(squares, axis=1)[:, :5])
    np.testing.assert_allclose(distances, np.sort(squares, axis=1)[:, :5], rtol=1e-6)
    index = knear.Index("Flat", dim=8)
    index.add(base)
    np.testing.assert_array_equal(index.search(queries, k=5)[1], ids)
    rows = index.reconstruct([3, 1])
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(rows, base[[3, 1]])
    np.testing.assert_array_equal(knear.knn(queries.tolist(), base.tolist(), 5)[1], ids)
    # An index keeps the type of its first vectors.
    single = knear.Index("Flat", dim=8)
    single.add(base.astype(np.float32))
    with pytest.raises(knear.InvalidArgument, match="type f64 hold a value in row 0"):
        single.add(base)
    single.add(np.ones((1, 8)))
    assert len(single) == 501


def test_float64_beyond_float32_is_refused():
    base = np.zeros((1000, 3))
    base[777, 2] = 1e39
    with pytest.raises(knear.InvalidArgument, match="base .* row 777 column 2 is 1e"):
        knear.knn(base[:1], base, 1)


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((2, 2), complex),
        np.zeros((2, 2), "U3"),
        np.zeros((2, 2), object),
        np.zeros((2, 2), "M8[s]"),
    ],
)
def test_other_types_are_refused(bad):
    with pytest.raises(knear.InvalidArgument, match="queries must not have elements of type"):
        knear.knn(bad, np.zeros((2, 2), np.float32), 1)


def test_bools_are_bytes():
    """0 and 1, so that squared distances count the columns that differ."""
    x = np.random.default_rng(1).random((40, 30)) < 0.5
    for given in (x, x[:, ::-1], x[::2]):
        found = knear.knn(given, given, 3)
        same = knear.knn(given.astype(np.uint8), given.astype(np.uint8), 3)
        assert (found.ids == same.ids).all() and (found.distances == same.distances).all()
    index = knear.Index("Flat", dim=30)
    index.add(x)
    assert index.reconstruct([3]).dtype == np.uint8


@pytest.mark.parametrize("first", [np.float32, np.float16, np.uint8, np.int8])
def test_rows_are_rounded_where_that_is_asked_for(first):
    """To the element type that the index has of its first rows."""
    random = np.random.default_rng(1)
    index = knear.Index("Flat", dim=4)
    index.add(np.ones((2, 4), first))
    rows = random.random((30, 4)) * 100
    with pytest.raises(knear.InvalidArgument, match="cannot hold exactly"):
        index.add(rows)
    index.add(rows, convert=True)
    expected = np.rint(rows) if np.dtype(first).kind in "iu" else rows
    np.testing.assert_array_equal(index.reconstruct(np.arange(2, 32)), expected.astype(first))
    index.replace([0], rows[:1], convert=True)
    np.testing.assert_array_equal(index.reconstruct([0])[0], expected[0].astype(first))
    beyond = np.full((1, 4), -1e300)
    with pytest.raises(knear.InvalidArgument, match="x holds -1e.300 in row 0, column 0, .*range"):
        index.add(beyond, convert=True)
    with pytest.raises(knear.InvalidArgument):
        index.add(np.full((1, 4), np.nan), convert=True)
    assert len(index) == 32


def test_a_mask_of_whole_numbers_is_no_filter():
    """It is one bool a row to whoever writes it, and to knear the ids 0 and 1."""
    x = np.random.default_rng(1).random((9, 4))
    index = knear.Index("Flat", dim=4)
    index.add(x)
    for mask in (np.ones(9, int), np.arange(9) % 2, [0] * 9):
        for search in (
            lambda mask=mask: index.search(x, 2, filter=mask),
            lambda mask=mask: index.range_search(x, 2, filter=mask),
            lambda mask=mask: knear.knn(x, x, 2, filter=mask),
        ):
            with pytest.raises(knear.InvalidArgument, match=r"filter\.astype\(bool\).*unique"):
                search()
    assert (index.search(x, 1, filter=[0, 1]).ids <= 1).all()
    assert (index.search(x, 1, filter={0, 1}).ids <= 1).all()  # a set of ids
    assert (index.search(x, 1, filter=np.array([1, 0, 1])).ids <= 1).all()  # fewer than rows
    two = knear.Index("Flat", dim=4)
    two.add(x[:2])
    assert (two.search(x, 2, filter=[0, 1]).ids >= 0).all()  # each id once
