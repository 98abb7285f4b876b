"""Vectors of other libraries: pandas, Arrow, torch, ml_dtypes, mapped files; read in place where
that is possible, and memory that does not grow."""

import gc
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from pretended_arrays import Pretender

import knear
from knear import _arrays


@pytest.fixture
def x(rng):
    return rng.standard_normal((40, 6)).astype(np.float32)


def same(x, other):
    """Whether `other` is taken as `x` is, as queries and as a base."""
    want = knear.knn(x[:5], x, 3)
    for got in (knear.knn(other[:5], x, 3), knear.knn(x[:5], other, 3)):
        np.testing.assert_array_equal(got.ids, want.ids)
        np.testing.assert_array_equal(got.distances, want.distances)
    return True


def address(x):
    array, _ = _arrays.matrix("x", x)
    return array.__array_interface__["data"][0]


def test_tables_and_columns_of_pandas(x):
    pandas = pytest.importorskip("pandas")
    assert same(x, pandas.DataFrame(x))
    column = pandas.DataFrame({"id": range(40), "vector": list(x)})["vector"]
    assert same(x, column)
    assert same(x, column.array)
    ragged = pandas.Series([x[0], x[1, :4], x[2]])
    with pytest.raises(knear.InvalidArgument, match="base have 6 columns in row 0, but 4 in row 1"):
        knear.knn(x, ragged, 1)
    with pytest.raises(knear.InvalidArgument, match="base must be a matrix"):
        knear.knn(x, pandas.Series(["a", "b"]), 1)
    pyarrow = pytest.importorskip("pyarrow")
    held = pandas.ArrowDtype(pyarrow.list_(pyarrow.float32()))
    assert same(x, pandas.Series(list(x), dtype=held))


def test_columns_of_arrow(x):
    pyarrow = pytest.importorskip("pyarrow")
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), 6)
    lists = pyarrow.array(list(x), pyarrow.list_(pyarrow.float32()))
    table = pyarrow.table({"fixed": fixed, "lists": lists})
    for column in (fixed, lists, table["fixed"], table["lists"], fixed[3:30], lists[3:30]):
        rows = x[3:30] if len(column) == 27 else x
        assert same(rows, column)
    parts = pyarrow.chunked_array([fixed[:7], fixed[7:]])
    assert same(x, parts)
    assert address(fixed) == fixed.values.buffers()[1].address
    for bad, text in (
        (table, "is a Table of Arrow: give its column"),
        (pyarrow.array([1.0, 2.0]), "are a column of double"),
        (pyarrow.array([[1.0], [1.0, 2.0]]), "have 1 columns in row 0, but 2 in row 1"),
        (pyarrow.array([[1.0], None]), "have 1 rows without a value"),
        (pyarrow.array([[1.0], [None]]), "have 1 elements without a value"),
    ):
        with pytest.raises(knear.InvalidArgument, match=f"base {text}"):
            knear.knn(x, bad, 1)


def test_tensors_and_chunks_of_arrow(x):
    pyarrow = pytest.importorskip("pyarrow")
    if not hasattr(pyarrow, "FixedShapeTensorArray"):
        pytest.skip("this pyarrow has no tensors of one shape")
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), 6)
    tensors = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(x)
    for column in (fixed, tensors):
        there = address(column)
        for one in (pyarrow.chunked_array([column]), pyarrow.table({"vector": column})["vector"]):
            assert same(x, one)
            assert address(one) == there, "one chunk is read in place"
            assert address(one[3:30]) == there + 3 * x.strides[0]
        parts = pyarrow.chunked_array([column[:7], column[7:]])
        assert same(x, parts)
    assert same(x[:5], tensors[:5])
    halves = x.astype(np.float16)
    assert same(halves, pyarrow.FixedShapeTensorArray.from_numpy_ndarray(halves))
    values, places = knear.select_k(tensors, 2)
    np.testing.assert_array_equal(values, np.sort(x, axis=1)[:, :2])
    of_type = pyarrow.fixed_shape_tensor(pyarrow.float32(), (2,))
    hole = pyarrow.array([[1.0, 2.0], None], pyarrow.list_(pyarrow.float32(), 2))
    for bad, text in (
        (
            pyarrow.FixedShapeTensorArray.from_numpy_ndarray(x.reshape(40, 2, 3)),
            r"are tensors of shape \(2, 3\); vectors have one dimension",
        ),
        (pyarrow.ExtensionArray.from_storage(of_type, hole), "have 1 rows without a value"),
    ):
        with pytest.raises(knear.InvalidArgument, match=f"base {text}"):
            knear.knn(x, bad, 1)
    pandas = pytest.importorskip("pandas")
    assert same(x, pandas.Series(tensors, dtype=pandas.ArrowDtype(tensors.type)))


class Unread(Pretender):
    """An array of the processor that NumPy cannot read, as torch's of bfloat16 are."""

    def __array__(self, *words, **more):
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __getitem__(self, which):
        return type(self)(self.x[which], self.device, self.code)


class OnlyDLPack:
    """An array of a library that has DLPack alone."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **words):
        return self.x.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_arrays_that_have_dlpack_alone(x):
    want = knear.knn(x[:5], x, 3)
    for got in (knear.knn(OnlyDLPack(x[:5]), x, 3), knear.knn(x[:5], OnlyDLPack(x), 3)):
        np.testing.assert_array_equal(got.ids, want.ids)
    assert address(OnlyDLPack(x)) == address(x)
    index = knear.Index("Flat", dim=6)
    index.add(OnlyDLPack(x), OnlyDLPack(np.arange(40) + 7))
    np.testing.assert_array_equal(index.search(OnlyDLPack(x[:5]), 3).ids, want.ids + 7)
    np.testing.assert_array_equal(knear.select_k(OnlyDLPack(x), 1)[0][:, 0], x.min(axis=1))
    some = np.arange(40) % 2 == 0
    for filter in (some, np.flatnonzero(some)):
        got = knear.knn(x[:5], x, 3, filter=OnlyDLPack(filter))
        np.testing.assert_array_equal(got.ids, knear.knn(x[:5], x, 3, filter=filter).ids)


@pytest.mark.parametrize("how", ["Float32", "Float64", "convert", "float32[pyarrow]", "mixed"])
def test_tables_of_types_that_may_have_nulls(x, how):
    pandas = pytest.importorskip("pandas")
    if "pyarrow" in how:
        pytest.importorskip("pyarrow")
    plain = pandas.DataFrame(x.astype(int) if how == "convert" else x, columns=list("abcdef"))
    numbers = plain.to_numpy().astype(np.float32)
    kinds = {"convert": lambda: plain.convert_dtypes(),
             "mixed": lambda: plain.astype({"b": "Float32", "d": "Float64"})}  # fmt: skip
    table = kinds.get(how, lambda: plain.astype(how))()
    want = knear.knn(numbers[:5], numbers, 3)
    for got in (knear.knn(table[:5], numbers, 3), knear.knn(numbers[:5], table, 3)):
        np.testing.assert_array_equal(got.ids, want.ids)
    hole = table.copy()
    hole.loc[7, "d"] = None
    with pytest.raises(knear.InvalidArgument, match=r"base have no value \(null\) in row 7, col"):
        knear.knn(numbers, hole, 1)
    with pytest.raises(knear.InvalidArgument, match="elements of type object"):
        knear.knn(numbers, table.assign(f="text"), 1)
    ids = pandas.Series(range(40)).convert_dtypes()
    index = knear.Index("Flat", dim=6)
    index.add(table, ids + 7)
    np.testing.assert_array_equal(index.search(numbers[:5], 3).ids, want.ids + 7)
    few = knear.knn(numbers[:5], numbers, 3, filter=pandas.array(range(40)) % 2 == 0)
    assert (few.ids % 2 == 0).all()
    with pytest.raises(knear.InvalidArgument, match=r"filter have no value \(null\) in row 1"):
        knear.knn(numbers[:5], numbers, 3, filter=pandas.array([3, None]))


@pytest.mark.parametrize("null", ["None", "NaN", "NA"])
def test_a_null_in_a_column_of_vectors_is_named(x, null):
    pandas = pytest.importorskip("pandas")
    column = list(x[:3])
    column[1] = {"None": None, "NaN": np.nan, "NA": pandas.NA}[null]
    for bad in (pandas.Series(column), pandas.Series(column).array.to_numpy()):
        with pytest.raises(knear.InvalidArgument, match=r"base have no vector \(null\) in row 1$"):
            knear.knn(x, bad, 1)
    column[1] = 7
    with pytest.raises(knear.InvalidArgument, match="base have no vector in row 1, but 7$"):
        knear.knn(x, pandas.Series(column), 1)


def test_what_numpy_cannot_read_comes_by_dlpack(x):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    halves = x.astype(ml_dtypes.bfloat16)
    unread = Unread(halves.view(np.uint16), (1, 0), code=4)
    assert same(halves.astype(np.float32), unread)
    assert same(halves.astype(np.float32), halves)


def test_tensors_of_torch(x):
    torch = pytest.importorskip("torch")
    assert same(x, torch.from_numpy(x))
    assert same(x, torch.from_numpy(x).requires_grad_())
    assert same(x, torch.from_numpy(np.ascontiguousarray(x.T)).T)
    half = torch.from_numpy(x).to(torch.bfloat16)
    assert same(half.to(torch.float32).numpy(), half)
    assert address(torch.from_numpy(x)) == address(x)


def test_lists_of_different_lengths_are_named():
    with pytest.raises(knear.InvalidArgument, match="queries are no matrix"):
        knear.knn([[1.0, 2.0], [1.0]], [[0.0, 0.0]], 1)


def test_mapped_files_are_read_in_place(x, tmp_path):
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert same(x, mapped) and address(mapped) == mapped.ctypes.data
    knear.write_vectors(tmp_path / "x.fvecs", x)
    rows = knear.read_vectors(tmp_path / "x.fvecs")
    assert same(x, rows) and address(rows) == rows.ctypes.data and rows.strides == (28, 4)
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1


def peak_of(call):
    """Bytes that NumPy and Python took beside what was there."""
    gc.collect()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, np.uint8, np.int8, "bfloat16"]
)
def test_nothing_is_copied_that_can_be_read(rng, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    base = rng.integers(0, 50, (20000, 64)).astype(dtype)
    wide = rng.integers(0, 50, (20000, 70)).astype(dtype)[:, 3:67]
    index = knear.Index("Flat", dim=64)
    for rows in (base, wide, base[::2], memoryview(base) if base.dtype.kind in "fiu" else base):
        if isinstance(rows, np.ndarray):
            assert address(rows) == rows.__array_interface__["data"][0]  # what _core gets
        for call in (
            lambda rows=rows: knear.knn(base[:1], rows, 2),
            lambda rows=rows: index.add(rows),
        ):
            assert peak_of(call) < base.nbytes / 20
    # A matrix in columns is copied, once.
    assert base.nbytes <= peak_of(lambda: knear.knn(base[:1], np.asfortranarray(base), 2))
    turned = np.asfortranarray(base)
    assert peak_of(lambda: knear.knn(base[:1], turned, 2)) < 1.1 * base.nbytes


GROWTH = """
import gc

import numpy as np

import knear

base = np.random.default_rng(1).standard_normal((300, 16)).astype(np.float32)
index = knear.Index("Flat", dim=16)
index.add(base)


def refused():
    try:
        index.search(base, 0)
    except knear.InvalidArgument:
        return
    raise AssertionError("k = 0")


def searches(times):
    for i in range(times):
        found = index.search(base[i % 300 : i % 300 + 1], 5)
        if i % 10 == 0:
            assert found.plan["k"] == 5
        if i % 100 == 0:
            refused()
            index.range_search(base, 1.0)
            knear.knn(base, base, 100)


def builds(times):
    for _ in range(times):
        made = knear.Index("IVF4,PQ4x4", dim=16)
        made.train(base)
        made.add(base)
        made.search(base, 3, probes=2)


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


searches(1000), builds(10)
before = resident()
searches(10000), builds(100)
print(resident() - before)
"""


def test_memory_does_not_grow():
    # In a process of its own, whose memory nothing else has raised before.
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8 << 20


def test_masked_arrays_are_refused(x):
    masked = np.ma.masked_array(x, mask=x > 1)
    with pytest.raises(knear.InvalidArgument, match="base is a masked array with"):
        knear.knn(x, masked, 1)
    with pytest.raises(knear.InvalidArgument, match="filter is a masked array"):
        knear.knn(x, x, 1, filter=np.ma.masked_array([1, 2], mask=[True, False]))
    assert same(x, np.ma.masked_array(x))  # nothing is masked


def test_list_views_of_arrow_are_refused(x):
    pyarrow = pytest.importorskip("pyarrow")
    if not hasattr(pyarrow, "ListViewArray"):
        pytest.skip("an Arrow without list views")
    offsets, sizes = (pyarrow.array(each, pyarrow.int32()) for each in ([0, 2], [1, 3]))
    views = pyarrow.ListViewArray.from_arrays(offsets, sizes, pyarrow.array([1.0, 2, 3, 4, 5]))
    for bad in (views, pyarrow.scalar([1.0, 2.0])):
        with pytest.raises(knear.InvalidArgument, match="base (are a column of|is a )"):
            knear.knn(x, bad, 1)


def test_paths_are_the_systems(x, tmp_path):
    index = knear.Index("Flat", dim=6)
    index.add(x)
    kept = tmp_path / "kept"
    kept.write_text("kept")
    odd = os.fsencode(tmp_path) + b"/\xff.knear"  # no text in UTF-8
    index.save(odd)
    assert len(knear.Index.load(os.fsdecode(odd))) == 40
    for call in (
        lambda path: index.save(path),
        lambda path: index.write_faiss(path),
        lambda path: knear.Index.load(path),
        lambda path: knear.write_vectors(path, x),
        lambda path: knear.read_vectors(path),
    ):
        for end in ("\0.knear", "\0.fvecs"):
            with pytest.raises(knear.InvalidArgument, match="NUL"):
                call(f"{kept}{end}")
        with pytest.raises(knear.InvalidArgument, match="path must be text"):
            call(7)
    assert kept.read_text() == "kept"
    with pytest.raises(knear.Error):
        knear.Index.load(odd[:-6] + b"\xfe.knear")


@pytest.mark.parametrize(
    ("ending", "takes", "refused"),
    [("i8bin", np.int8, np.int64), ("u8bin", np.uint8, np.int16), ("bvecs", np.uint8, np.float32)],
)
def test_formats_of_bytes_name_the_type_that_was_given(tmp_path, ending, takes, refused):
    path = tmp_path / f"x.{ending}"
    rows = np.arange(12).reshape(3, 4)
    says = f"^x has type {np.dtype(refused)}, but .{ending} takes {np.dtype(takes)}: "
    with pytest.raises(knear.InvalidArgument, match=says):
        knear.write_vectors(path, rows.astype(refused))
    with pytest.raises(knear.InvalidArgument, match="^x has type int64"):
        knear.write_vectors(path, rows.tolist())
    assert not path.exists()
    knear.write_vectors(path, rows.astype(takes))
    np.testing.assert_array_equal(knear.read_vectors(path), rows)
    if takes == np.uint8:
        knear.write_vectors(path, rows % 2 == 0)  # bytes of 0 and 1
        np.testing.assert_array_equal(knear.read_vectors(path), rows % 2 == 0)


def test_ids_are_read_as_vectors_are(tmp_path):
    path = tmp_path / "x.ivecs"
    ids = np.arange(30).reshape(10, 3)
    knear.write_vectors(path, ids)
    np.testing.assert_array_equal(knear.read_vectors(path, rows=slice(2, 5)), ids[2:5])
    for rows in (slice(0, 11), slice(60, 70), slice(5, 5)):
        with pytest.raises(knear.InvalidArgument, match="rows are"):
            knear.read_vectors(path, rows=rows)
    with pytest.raises(knear.InvalidArgument, match="which is no id"):
        knear.write_vectors(path, np.array([[2**64 - 1]], np.uint64))
