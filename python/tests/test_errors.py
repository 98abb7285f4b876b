"""Errors: which class, and that the line names the argument and the values."""

import errno
import os
import pickle

import numpy as np
import pytest

import knear

ZEROS = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("InvalidArgument", ValueError),
        ("ShapeMismatch", ValueError),
        ("CorruptFile", ValueError),
        ("IoError", OSError),
        ("MemoryBudgetError", MemoryError),
        ("DeviceUnavailable", RuntimeError),
        ("Cancelled", Exception),
    ],
)
def test_every_class_is_a_knear_error_and_what_python_calls_it(name, also):
    kind = getattr(knear, name)
    assert issubclass(kind, knear.Error)
    assert issubclass(kind, also)
    assert kind.__doc__
    assert str(kind("one line")) == "one line"


def test_messages_have_no_control_characters(tmp_path):
    name = str(tmp_path / "a\n\x1b[31m\x9b.knear")
    with pytest.raises(FileNotFoundError) as missing:
        knear.Index.load(name)
    assert str(missing.value).startswith("cannot open '")
    assert "a\\n\\x1b[31m\\u009b.knear': No such file" in str(missing.value)
    assert missing.value.filename == name  # as it is
    assert str(pickle.loads(pickle.dumps(missing.value))) == str(missing.value)
    with pytest.raises(knear.InvalidArgument, match=r"'l2\\n'"):
        knear.knn(ZEROS, ZEROS, 1, metric="l2\n")
    for kind in (knear.InvalidArgument, knear.IoError, knear.MemoryBudgetError):
        assert str(kind("b\u00e4r\t'\r'\x7f")) == "b\u00e4r\\t'\\r'\\x7f"
    from knear import faiss

    with pytest.raises(RuntimeError, match=r"could not open .*a\\n\\x1b\[31m"):
        faiss.read_index(name)


def test_padding_that_takes_more_than_the_rows():
    index = knear.Index("Flat", dim=4)
    index.add(ZEROS)
    for call in (
        lambda **options: knear.knn(ZEROS[:1], ZEROS, 10**8, **options),
        lambda **options: index.search(ZEROS[:1], 10**8, **options),
        lambda **options: knear.self_join(ZEROS, 10**8, **options),
    ):
        with pytest.raises(knear.MemoryBudgetError, match="^k is 100000000, but there are 3 rows"):
            call()
        with pytest.raises(knear.MemoryBudgetError, match="^memory is 1000000 bytes"):
            call(memory=1_000_000)
    assert index.search(ZEROS[:1], 5).ids.tolist() == [[0, 1, 2, -1, -1]]


def test_an_error_names_its_argument():
    with pytest.raises(knear.InvalidArgument) as refused:
        knear.knn(ZEROS, ZEROS, 1, recall=1.5)
    assert refused.value.argument == "recall"
    assert str(refused.value).startswith("recall must be")
    assert pickle.loads(pickle.dumps(refused.value)).argument == "recall"
    with pytest.raises(knear.Error) as missing:
        knear.Index.load("none.knear")
    assert missing.value.argument is None


def test_columns_that_differ():
    with pytest.raises(knear.ShapeMismatch, match=r"\b5 columns.*\b4\b"):
        knear.knn(np.zeros((1, 5), np.float32), ZEROS, 1)
    index = knear.Index("Flat", dim=5)
    with pytest.raises(knear.ShapeMismatch, match=r"\b4 columns.*\b5\b"):
        index.add(ZEROS)
    with pytest.raises(knear.ShapeMismatch, match=r"\b4 columns.*\b5\b"):
        index.search(ZEROS, 1)
    assert len(index) == 0


@pytest.mark.parametrize("k", [0, -1, 2**63, 1.0, "3", None])
def test_k(k):
    index = knear.Index("Flat", dim=4)
    for call in (lambda: knear.knn(ZEROS, ZEROS, k), lambda: index.search(ZEROS, k)):
        with pytest.raises(knear.InvalidArgument, match="^k must"):
            call()
    assert knear.knn(ZEROS, ZEROS, np.int32(2))[1].shape == (3, 2)


def test_a_result_that_no_machine_can_hold():
    message = f"^k must be at most {2**31 - 1}, but is {2**61}$"
    with pytest.raises(knear.InvalidArgument, match=message):
        knear.knn(ZEROS, ZEROS, 2**61)
    many = np.zeros((2**24, 1), np.uint8)
    with pytest.raises(MemoryError):
        knear.knn(many, many[:3], 2**31 - 1)


@pytest.mark.parametrize("metric", ["L3", "", "chebyshev"])
def test_metric(metric):
    with pytest.raises(knear.InvalidArgument, match=f"metric .*l2, ip, cosine.*'{metric}'"):
        knear.knn(ZEROS, ZEROS, 1, metric)
    with pytest.raises(knear.InvalidArgument, match="metric"):
        knear.Index("Flat", dim=4, metric=metric)
    with pytest.raises(knear.InvalidArgument, match="metric must be text.* None"):
        knear.knn(ZEROS, ZEROS, 1, None)


def test_first_pass_changes_no_answer_and_must_be_known(rng):
    base = rng.integers(0, 200, (60, 10)).astype(np.uint8)
    want = knear.knn(base[:5], base, 4)
    for first_pass in ["auto", "integer", "int8", "int16", "fp32", "direct", "prefix"]:
        got = knear.knn(base[:5], base, 4, first_pass=first_pass)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
    with pytest.raises(knear.InvalidArgument, match="first_pass .*'int4'"):
        knear.knn(base, base, 1, first_pass="int4")
    with pytest.raises(knear.InvalidArgument, match="first_pass must be text.* 8"):
        knear.knn(base, base, 1, first_pass=8)


@pytest.mark.parametrize("threads", [-1, 5000, 2**40, 1.5])
def test_threads(threads):
    index = knear.Index("Flat", dim=4)
    with pytest.raises(knear.InvalidArgument, match="threads"):
        index.search(ZEROS, 1, threads=threads)
    with pytest.raises(knear.InvalidArgument, match="threads"):
        knear.knn(ZEROS, ZEROS, 1, threads=threads)


@pytest.mark.parametrize("memory", [0, -5, "", "4x", "-1M", "1.G", "0.1", "M", 2.5, "9" * 30])
def test_memory_that_is_no_size(memory):
    with pytest.raises(knear.InvalidArgument, match="memory"):
        knear.knn(ZEROS, ZEROS, 1, memory=memory)


@pytest.mark.parametrize(
    "memory", [None, 1 << 30, "512M", "1.5G", "1g", "1T", "1048576K", "1073741824"]
)
def test_memory_that_is_enough(memory):
    assert knear.knn(ZEROS, ZEROS, 1, memory=memory)[1].tolist() == [[0], [0], [0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_not_a_number_is_refused_by_its_row(bad, dtype):
    x = np.zeros((50, 4), dtype)
    x[31, 2] = bad
    index = knear.Index("Flat", dim=4)
    with pytest.raises(knear.InvalidArgument, match="row 31"):
        index.add(x)
    assert len(index) == 0
    with pytest.raises(knear.InvalidArgument, match="base.*row 31"):
        knear.knn(ZEROS, x, 1)
    with pytest.raises(knear.InvalidArgument, match="queries.*row 31"):
        knear.knn(x, ZEROS, 1)


@pytest.mark.parametrize("factory", ["IVF4096,PQ32", "flat", "", "Flat,RFlat", "IVF0,Flat"])
def test_strings_that_name_no_index(factory):
    with pytest.raises(knear.InvalidArgument, match=f"factory '{factory}' has '.*' at place "):
        knear.Index(factory, dim=4)


def test_inverted_lists():
    rng = np.random.default_rng(1)
    x = rng.random((200, 6), dtype=np.float32)
    index = knear.Index("IVF8,Flat", dim=6)
    for call, says in (
        (lambda: index.add(x), "is not trained, which comes before adding vectors"),
        (lambda: index.search(x, 3, probes=2), "is not trained, which comes before searching"),
        (lambda: index.train(x[:5]), "vectors are 5 rows, but training 8 lists"),
        (lambda: index.train(x, rows=5), "rows is 5, but training 8 lists"),
        (lambda: index.train(x, iterations=-1), "iterations"),
    ):
        with pytest.raises(knear.InvalidArgument, match=says):
            call()
    with pytest.raises(knear.ShapeMismatch, match="vectors have 5 columns, index has 6"):
        index.train(x[:, :5])
    index.train(x)
    index.add(x)
    for more, says in (
        ({}, "neither probes nor recall is given"),
        ({"probes": 9}, "probes must be between 1 and the 8 lists, but is 9"),
        ({"probes": 0}, "probes must be at least 1, but is 0"),
        ({"probes": 2, "recall": 1}, "only one of them can be asked for"),
        ({"recall": 1.5}, r"recall must be in \(0, 1\], but is 1.5"),
        ({"probes": 2, "method": "partial-reduce"}, "has only auto and exact"),
    ):
        with pytest.raises(knear.InvalidArgument, match=says):
            index.search(x, 3, **more)
    flat = knear.Index("Flat", dim=6)
    flat.add(x)
    for more in ({"probes": 2}, {"widen": True}, {"certify": True}):
        with pytest.raises(knear.InvalidArgument, match="there are no inverted lists"):
            flat.search(x, 3, **more)


@pytest.mark.parametrize("dim", [0, -1, 65537, 2**62, 4.0])
def test_dim(dim):
    with pytest.raises(knear.InvalidArgument, match="dim"):
        knear.Index("Flat", dim=dim)


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ([0, 3], "id 3( in place 1.*rows 0 to 2|, which the index does not hold)"),
        ([-1], "id -1 in place 0"),
        ([0.5], "ids .whole numbers. or bools.*float64"),
        ([[0]], "one dimension.*2"),
        (np.array([2**63], np.uint64), "holds 9223372036854775808"),
        (["a"], "ids .whole numbers. or bools"),
    ],
)
def test_filters(filter, message):
    index = knear.Index("Flat", dim=4)
    index.add(ZEROS)
    for call in (
        lambda: knear.knn(ZEROS, ZEROS, 1, filter=filter),
        lambda: index.search(ZEROS, 1, filter=filter),
    ):
        with pytest.raises(knear.InvalidArgument, match=f"^filter .*{message}"):
            call()
    with pytest.raises(knear.ShapeMismatch, match="filter has 2 bools, but there are 3 rows"):
        knear.knn(ZEROS, ZEROS, 1, filter=[True, False])
    with pytest.raises(knear.ShapeMismatch, match="filter is for the ids below 4, .* below 3"):
        index.search(ZEROS, 1, filter=[True] * 4)
    # A filter of an index, which others may add to, leaves out ids after the last bool.
    assert index.search(ZEROS, 3, filter=[True, True])[1][0].tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([7, 7], "ids hold 7 twice, in places 0 and 1"),
        ([5, -1], "ids must not be negative, but hold -1 in place 1"),
        ([5, 1], "ids hold 1 in place 1, which the index holds already"),
        ([0.5, 1], "ids must hold whole numbers, but has type float64"),
        ([[5, 6]], "ids must have one dimension, but has 2"),
    ],
)
def test_ids_that_cannot_be_added(ids, message):
    index = knear.Index("Flat", dim=4)
    index.add(ZEROS)
    with pytest.raises(knear.InvalidArgument, match=message):
        index.add(ZEROS[:2], ids)
    with pytest.raises(knear.ShapeMismatch, match="ids are 1, vectors are 2 rows"):
        index.add(ZEROS[:2], [9])
    assert index.ids.tolist() == [0, 1, 2]


def test_options_that_teach_nothing():
    rows = np.random.default_rng(1).random((300, 4))
    index = knear.Index("Flat", dim=4)
    index.train(rows)
    for option in {"rows": 7}, {"iterations": 0}, {"seed": 9}, {"hold_out": False}:
        with pytest.raises(
            knear.InvalidArgument, match=f"{next(iter(option))} is .*learns nothing"
        ):
            index.train(rows, **option)
    with pytest.raises(knear.InvalidArgument, match="rows must be at least 1, but is 0"):
        knear.Index("IVF4,Flat", dim=4).train(rows, rows=0)
    with pytest.raises(knear.InvalidArgument, match="sub_quantizers must be at least 1, but is 0"):
        knear.ProductQuantizer(0)
    with pytest.raises(knear.InvalidArgument, match="takes 4 at least"):
        knear.Index("PCA4,Flat", dim=4).train(rows[:3])


def test_ids_that_are_not_there():
    index = knear.Index("Flat", dim=4)
    index.add(ZEROS)
    for call in (
        lambda: index.remove([1, 3]),
        lambda: index.replace([1, 3], ZEROS[:2]),
        lambda: index.reconstruct([1, 3]),
    ):
        with pytest.raises(knear.InvalidArgument, match="hold 3 in place 1, which the index does"):
            call()
    with pytest.raises(knear.InvalidArgument, match="ids hold 1 twice"):
        index.remove([1, 1])
    with pytest.raises(knear.InvalidArgument, match="rows must not be negative, but is -1"):
        index.reserve(-1)
    with pytest.raises(knear.InvalidArgument, match="other must be a knear.Index, but is list"):
        index.merge([])
    with pytest.raises(knear.InvalidArgument, match="other is the index itself"):
        index.merge(index)
    assert len(index) == 3


def test_unknown_words_are_no_silence():
    with pytest.raises(TypeError):
        knear.knn(ZEROS, ZEROS, 1, thread=2)
    with pytest.raises(TypeError):
        knear.Index("Flat", 4)
    with pytest.raises(knear.InvalidArgument, match="report must be a dict.*list"):
        knear.knn(ZEROS, ZEROS, 1, report=[])


@pytest.mark.parametrize("device", ["cuda:98", "cuda:99"])
def test_a_device_that_is_not_there(device):
    number = device.removeprefix("cuda:")  # built with CUDA and without name it differently
    for method in "auto", "exact", "threshold-heap":
        with pytest.raises(knear.DeviceUnavailable, match=number):
            knear.knn(ZEROS, ZEROS, 1, device=device, method=method)
    index = knear.Index("Flat", dim=4)
    index.add(ZEROS)
    with pytest.raises(knear.DeviceUnavailable, match=number):
        index.search(ZEROS, 1, device=device)
    with pytest.raises(knear.DeviceUnavailable, match=number):
        index.range_search(ZEROS, 1.0, device=device)
    with pytest.raises(knear.DeviceUnavailable, match=number):
        knear.range_search(ZEROS, ZEROS, 1.0, device=device)
    with pytest.raises(knear.DeviceUnavailable, match=number):
        knear.self_join(ZEROS, 1, device=device)


def test_devices_are_known_by_name():
    index = knear.Index("Flat", dim=4)
    index.add(ZEROS)
    for search, words in (
        (knear.knn, (ZEROS, ZEROS, 1)),
        (knear.self_join, (ZEROS, 1)),
        (knear.range_search, (ZEROS, ZEROS, 1)),
        (index.search, (ZEROS, 1)),
        (index.range_search, (ZEROS, 1)),
    ):
        with pytest.raises(knear.InvalidArgument, match="device must be cpu, cuda or cuda:N.*gpu"):
            search(*words, device="gpu")
        with pytest.raises(knear.InvalidArgument, match="device must be text, but is 0"):
            search(*words, device=0)
        if search in (index.search, index.range_search):
            with pytest.raises(knear.InvalidArgument, match="device is auto, which chooses for"):
                search(*words, device="auto")
        else:
            report = {}
            search(*words, device="auto", report=report)
            assert report["device"] == "cpu"  # which is faster for so little
        for device in ("cpu", None):
            report = {}
            search(*words, device=device, report=report)
            assert report["device"] == "cpu"


def test_an_answer_beyond_the_memory_of_the_machine_is_refused():
    queries = np.zeros((1000, 1), np.float32)
    index = knear.Index("Flat", dim=1)
    index.add(queries[:3])
    for search in (
        lambda k: knear.knn(queries, queries[:3], k),
        lambda k: index.search(queries, k),
        lambda k: knear.self_join(queries, k),
    ):
        with pytest.raises(knear.MemoryBudgetError, match="^k is 2147483647 and there are 1000 qu"):
            search(2**31 - 1)
        assert search(5).ids.shape == (1000, 5)


def test_a_value_that_equals_a_good_one_is_refused_after_it():
    base = np.eye(3, dtype=np.float32)
    index = knear.Index("Flat", dim=3)
    index.add(base)
    index.search(base, 1, threads=1)  # settings of a search are kept for the next
    for wrong in (1.0, [1]):
        with pytest.raises(knear.InvalidArgument, match="threads must be a whole number"):
            index.search(base, 1, threads=wrong)


@pytest.mark.parametrize("read", [knear.Index.load, knear.read_vectors], ids=["load", "read"])
def test_files_that_cannot_be_read_are_what_python_calls_them(read, tmp_path):
    missing, folder, locked = tmp_path / "no.npy", tmp_path / "folder.npy", tmp_path / "locked.npy"
    folder.mkdir()
    locked.write_bytes(b"")
    cases = [(missing, FileNotFoundError, errno.ENOENT), (folder, IsADirectoryError, errno.EISDIR)]
    if os.geteuid() != 0:  # root may read everything
        locked.chmod(0)
        cases.append((locked, PermissionError, errno.EACCES))
    for path, kind, number in cases:
        with pytest.raises(kind) as caught:
            read(path)
        error = caught.value
        assert isinstance(error, knear.IoError) and error.errno == number
        assert error.filename == str(path) and str(path) in str(error)
        assert "\n" not in str(error) and "Errno" not in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.errno) == (type(error), str(error), number)


def test_files_that_cannot_be_written(tmp_path):
    index = knear.Index("Flat", dim=4)
    index.add(ZEROS)
    with pytest.raises(IsADirectoryError, match="is a directory"):
        index.save(tmp_path)
    with pytest.raises(FileNotFoundError):
        index.save(tmp_path / "none" / "index.knear")
