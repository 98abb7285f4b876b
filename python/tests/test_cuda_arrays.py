"""Arrays in the memory of a GPU: checks and messages that need no GPU, and the searches of
gpu_arrays.py where there is one.
"""

import sys
import types

import gpu_arrays
import numpy as np
import pytest
from pretended_arrays import Interface, Old, Pretender, Subclass, Torchlike, answer

import knear
from knear import _arrays, _core, _device

X = np.arange(40, dtype=np.float32).reshape(10, 4)


def test_where_an_array_is():
    for here in (X, [[1.0]], Pretender(X, (1, 0)), Pretender(X, (3, 0)), memoryview(X), None, 3):
        assert _device.place_of(here) is None
    assert _device.place_of(Pretender(X, (2, 3))).text == "the memory of cuda:3"
    assert _device.place_of(Pretender(X, (13, 0))).cuda
    assert _device.place_of(Interface(X)).text == "the memory of a GPU"
    assert not _device.place_of(Pretender(X, (10, 0))).cuda

    class Raises:
        def __dlpack_device__(self):
            raise BufferError("on several devices")

        __dlpack__ = None

        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("has a gradient")

    assert _device.place_of(Raises()) is None


@pytest.mark.parametrize("there", [Pretender(X, (2, 1)), Interface(X)])
def test_one_on_the_gpu_and_one_not(there):
    place = "the memory of (cuda:1|a GPU)"
    with pytest.raises(knear.InvalidArgument, match=f"queries are in {place}, but base is not"):
        knear.knn(there, X, 1)
    with pytest.raises(knear.InvalidArgument, match=f"base is in {place}, but queries are not"):
        knear.knn(X.tolist(), there, 1)
    with pytest.raises(knear.InvalidArgument, match=f"queries are in {place}, but base is not"):
        knear.range_search(there, X, 1.0)
    with pytest.raises(knear.InvalidArgument, match=f"base is in {place}, but queries are not"):
        knear.range_search(X, there, 1.0)


@pytest.mark.skipif(_core.has_cuda, reason="this knear was built with CUDA")
@pytest.mark.parametrize("there", [Pretender(X), Interface(X)])
def test_without_cuda_one_line_says_so(there):
    index = knear.Index("Flat", dim=4)
    index.add(X)
    calls = [
        ("queries are", lambda: knear.knn(there, there, 1)),
        ("base is", lambda: knear.self_join(there, 1)),
        ("queries are", lambda: knear.range_search(there, there, 1.0)),
        ("x is", lambda: knear.select_k(there, 1)),
        ("lengths are", lambda: knear.select_k(X, 1, lengths=there)),
        ("filter is", lambda: knear.knn(X, X, 1, filter=there)),
        ("x is", lambda: index.add(there)),
        ("ids are", lambda: index.add(X, there)),
        ("ids are", lambda: index.remove(there)),
        ("x is", lambda: index.replace([0], there)),
        ("ids are", lambda: index.reconstruct(there)),
        ("q is", lambda: index.search(there, 1)),
        ("q is", lambda: index.range_search(there, 1.0)),
        ("filter is", lambda: index.search(X, 1, filter=there)),
    ]
    for name, call in calls:
        words = f"^{name} in the memory of (cuda:0|a GPU), but this knear was built without CUDA"
        with pytest.raises(knear.DeviceUnavailable, match=words):
            call()
    assert len(index) == 10
    bytes_here = np.empty((1, 4), np.uint8)
    settings = _core.SearchSettings(
        0, 0, "cuda", "auto", "", "auto", None, 0, 0, True, 0, False, False, 0, 0, ""
    )
    told = (0, "f32", 1, 1)
    rest = (1, "l2", settings, None, None, None)
    for call in (
        lambda: _core.device_at(0),
        lambda: _core.wait_for_stream(0, 1),
        lambda: _core.copy_from_device(0, 0, 4, bytes_here),
        lambda: _core.copy_to_device(0, X),
        lambda: _core.knn_on_device(told, told, 0, *rest),
        lambda: _core.self_join_on_device(told, 0, *rest),
        lambda: _core.search_on_device(index._index, told, 0, 1, settings, None, None, 0, None),
        lambda: _core.range_search_on_device(told, told, 0, 1.0, *rest[1:]),
        lambda: _core.select_on_device((0, 1, 1, 1), 0, 1, False, True, None, False),
    ):
        with pytest.raises(knear.DeviceUnavailable, match="this knear was built without CUDA"):
            call()


@pytest.mark.skipif(not _core.has_cuda, reason="this knear was built without CUDA")
def test_memory_that_is_not_the_device_s_is_refused_by_the_library():
    # Without a GPU that is DeviceUnavailable, with one InvalidArgument.
    for there in (Pretender(X), Interface(X)):
        for call in (
            lambda t=there: knear.knn(t, t, 1),
            lambda t=there: knear.self_join(t, 1),
            lambda t=there: knear.range_search(t, t, 1.0),
            lambda t=there: knear.select_k(t, 1),
            lambda t=there: knear.Index("Flat", dim=4).add(t),
        ):
            with pytest.raises(
                knear.Error,
                match="no GPU is usable|in the memory of a GPU|says that it is in the memory of",
            ):
                call()


def test_other_devices_are_refused_by_name():
    for device, kind in ((10, "ROCm"), (8, "Metal"), (99, "DLPack type 99")):
        there = Pretender(X, (device, 0))
        for call in (lambda t=there: knear.knn(t, t, 1), lambda t=there: knear.knn(X, t, 1)):
            with pytest.raises(knear.InvalidArgument, match=f"in the memory of a device of {kind}"):
                call()
        with pytest.raises(knear.InvalidArgument, match=f"x is in .* {kind}"):
            knear.Index("Flat", dim=4).add(there)
        for name, call in (
            ("x is", lambda t=there: knear.select_k(t, 1)),
            ("base is", lambda t=there: knear.self_join(t, 1)),
            ("queries are", lambda t=there: knear.range_search(t, t, 1.0)),
            ("lengths are", lambda t=there: knear.select_k(X, 1, lengths=t)),
        ):
            with pytest.raises(knear.InvalidArgument, match=f"{name} in .* {kind}"):
                call()


def test_the_search_gets_the_memory_itself(pretended, rng):
    base = rng.standard_normal((60, 5)).astype(np.float32)
    q, b = Pretender(base[3:9], (2, 1)), Old(base, (2, 1), offset=16)
    distances, ids = knear.knn(q, b, 4, "cosine", threads=2, memory="8M", filter=[1, 3, 5, 8, 9])
    queries_told, base_told, number, k, metric, settings, *_ = pretended.calls[0]
    threads, memory, *_ = settings.words
    assert queries_told == (q.x.ctypes.data, "f32", 6, 5)
    assert base_told == (base.ctypes.data, "f32", 60, 5)
    assert (number, k, metric, threads, memory) == (1, 4, "cosine", 2, 8 << 20)
    assert q.streams == b.streams == [1]  # the legacy default stream, on which the search runs
    assert (q.deleted, b.deleted) == (1, 1)
    want = knear.knn(base[3:9], base, 4, "cosine", filter=[1, 3, 5, 8, 9])
    for got, wanted in zip((distances, ids), want, strict=True):
        assert isinstance(got, knear.DeviceArray)
        assert got.__dlpack_device__() == (2, 1)
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(answer(got), wanted)
    assert "cuda:1" in repr(ids)


@pytest.mark.parametrize("name", ["knn", "range_search"])
def test_the_memory_stays_while_the_search_goes_on(pretended, monkeypatch, name):
    there = Pretender(X)
    search = getattr(_core, f"{name}_on_device")

    def looks(*words):
        assert there.deleted == 0
        return search(*words)

    monkeypatch.setattr(_core, f"{name}_on_device", looks)
    getattr(knear, name)(there, there, 1)
    assert there.deleted == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int8])
@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_element_types(pretended, dtype, kind):
    x = (X % 7).astype(dtype)
    found = knear.knn(kind(x[:3]), kind(x), 3)
    for got, want in zip(found, knear.knn(x[:3], x, 3), strict=True):
        np.testing.assert_array_equal(answer(got), want)


def test_bfloat16_by_dlpack(pretended):
    bits = (X.view(np.uint32) >> 16).astype(np.uint16)
    there = Pretender(bits, code=4)
    knear.knn(there, there, 1)
    assert [told[1] for told in pretended.calls[0][:2]] == ["bf16", "bf16"]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.bool_])
def test_other_element_types_are_refused(pretended, dtype):
    odd = X.astype(dtype)
    for there, word in ((Pretender(odd), odd.dtype.name), (Interface(odd), odd.dtype.str[1:])):
        with pytest.raises(
            knear.InvalidArgument, match=f"base has elements of type .*{word}.*: convert first"
        ):
            knear.knn(Pretender(X), there, 1)
    swapped = Interface(X.astype(">f4"))
    with pytest.raises(knear.InvalidArgument, match="queries have elements of type >f4"):
        knear.knn(swapped, Pretender(X), 1)
    assert not pretended.calls


@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_only_rows_without_gaps(pretended, kind):
    wide = np.arange(80, dtype=np.float32).reshape(10, 8)
    for odd in (wide[:, :4], wide[::2, :4], np.asfortranarray(X), X[::2], X[::-1], X[:, ::-1]):
        with pytest.raises(knear.InvalidArgument, match="base must be C-contiguous on a GPU.*stri"):
            knear.knn(kind(X), kind(odd), 1)
    for odd, dims in ((X[0], 1), (X[None], 3)):
        with pytest.raises(knear.InvalidArgument, match=f"queries must be a matrix.*{dims} dim"):
            knear.knn(kind(odd), kind(X), 1)
    assert not pretended.calls
    knear.knn(kind(wide[2:3, :4]), kind(X), 1)  # a single row has no gaps
    column = np.asfortranarray(X[:, :1])
    knear.knn(kind(column), kind(column), 1)
    knear.knn(kind(wide[:0, :4]), kind(X), 1)
    assert len(pretended.calls) == 3


def test_a_producer_may_leave_strides_out(pretended):
    there = Pretender(X, told_strides=False)
    assert answer(knear.knn(there, there, 1)[1]).ravel().tolist() == list(range(10))
    there = Interface(X, strides=None)
    assert answer(knear.knn(there, there, 1)[1]).ravel().tolist() == list(range(10))


def test_the_stream_of_an_interface_is_waited_for(pretended):
    pretended.devices[X.ctypes.data] = 3
    knear.knn(Interface(X, stream=2), Interface(X, stream=None), 1)
    assert pretended.streams == [(3, 2)]
    assert pretended.calls[0][2] == 3
    with pytest.raises(knear.InvalidArgument, match="queries .* stream 0"):
        knear.knn(Interface(X, stream=0), Interface(X), 1)
    with pytest.raises(knear.InvalidArgument, match="base is masked"):
        knear.knn(Interface(X), Interface(X, mask=X), 1)
    pretended.devices[X.ctypes.data] = -1
    with pytest.raises(knear.InvalidArgument, match="queries .* not in the memory of a GPU"):
        knear.knn(Interface(X), Interface(X), 1)


def test_managed_memory_is_asked_where_it_is(pretended):
    pretended.devices[X.ctypes.data] = 2
    there = Pretender(X, (13, 0))
    knear.knn(there, there, 1)
    assert pretended.calls[0][2] == 2


def test_two_gpus_are_refused(pretended):
    words = "queries are in the memory of cuda:1, but base is in that of cuda:0"
    with pytest.raises(knear.InvalidArgument, match=words):
        knear.knn(Pretender(X, (2, 1)), Pretender(X), 1)


def test_a_producer_that_refuses_is_quoted(pretended):
    class Refuses(Pretender):
        def __dlpack__(self, **_):
            raise BufferError("it has a gradient")

    with pytest.raises(knear.InvalidArgument, match="base is not .*: it has a gradient"):
        knear.knn(Pretender(X), Refuses(X), 1)


def test_what_device_may_say(pretended):
    there = Pretender(X, (2, 1))
    for search, words, noted, place in (
        (knear.knn, (there, there, 1), pretended.calls, 5),
        (knear.self_join, (there, 1), pretended.joins, 4),
        (knear.range_search, (there, there, 1.0), pretended.ranges, 5),
    ):
        for said, told in ((None, "cuda"), ("cuda", "cuda"), ("cuda:1", "cuda:1"), ("cuda:0",) * 2):
            search(*words, device=said)  # cuda:0 is for the library to refuse
            assert noted[-1][place].words[2] == told
        with pytest.raises(
            knear.InvalidArgument, match="^device is cpu, but base is in the memory of cuda:1$"
        ):
            search(*words, device="cpu")
        with pytest.raises(knear.InvalidArgument, match="device must be text"):
            search(*words, device=1)
        assert len(noted) == 4


def test_other_arguments_are_checked_as_ever(pretended):
    there = Pretender(X)
    with pytest.raises(knear.InvalidArgument, match="k must be a whole number"):
        knear.knn(there, there, 1.5)
    with pytest.raises(knear.ShapeMismatch, match="filter has 3 bools, but there are 10 rows"):
        knear.knn(there, there, 1, filter=[True, False, True])
    with pytest.raises(knear.InvalidArgument, match="report must be a dict"):
        knear.knn(there, there, 1, report=[])


def same(got, want, number=0):
    """Checks that arrays on that GPU equal these of NumPy."""
    for each, wanted in zip(got, want, strict=True):
        assert isinstance(each, knear.DeviceArray)
        assert each.__dlpack_device__() == (2, number)
        assert each.shape == wanted.shape
        assert each.dtype == wanted.dtype
        np.testing.assert_array_equal(answer(each), wanted)


@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_a_filter_on_the_gpu_is_copied(pretended, rng, kind):
    base = rng.standard_normal((50, 5)).astype(np.float32)
    ids = np.array([41, 3, 17, 8], np.int32)
    mask = np.zeros(50, bool)
    mask[ids] = True
    want = knear.knn(base[:6], base, 3, filter=ids)
    pretended.devices[mask.ctypes.data] = pretended.devices[ids.ctypes.data] = 2
    for which in (ids, mask):
        there = Pretender(which, (2, 2)) if kind is Pretender else kind(which)
        pretended.copies.clear()
        same(knear.knn(Pretender(base[:6]), Pretender(base), 3, filter=there), want)
        assert pretended.copies == [(2, which.ctypes.data, which.nbytes, (1, which.nbytes))]
        for got, wanted in zip(knear.knn(base[:6], base, 3, filter=there), want, strict=True):
            np.testing.assert_array_equal(got, wanted)
    with pytest.raises(knear.ShapeMismatch, match="filter has 3 bools, but there are 50 rows"):
        knear.knn(base[:6], base, 3, filter=kind(mask[:3]))


def test_a_self_join_gets_the_memory_itself(pretended, rng):
    base = rng.standard_normal((70, 6)).astype(np.float32)
    there = Old(base, (2, 3))
    report = {}
    got = knear.self_join(
        there, 4, "ip", threads=2, memory="8M", first_pass="int8", choices={"group": 4},
        filter=Pretender(np.arange(0, 70, 2)), report=report,
    )  # fmt: skip
    told, number, k, metric, settings, *_ = pretended.joins[0]
    threads, memory, device, first_pass, choices, *_ = settings.words
    assert told == (base.ctypes.data, "f32", 70, 6)
    assert (number, k, metric, threads, memory) == (3, 4, "ip", 2, 8 << 20)
    assert (first_pass, choices, device) == ("int8", "group=4", "cuda")
    assert there.streams == [1]
    assert there.deleted == 1
    assert report["k"] == 4
    same(got, knear.self_join(base, 4, "ip", filter=np.arange(0, 70, 2)), 3)
    bits = (base.view(np.uint32) >> 16).astype(np.uint16)
    knear.self_join(Pretender(bits, code=4), 1)
    assert pretended.joins[1][0][1] == "bf16"
    whole = rng.integers(0, 9, (30, 3)).astype(np.uint8)
    same(knear.self_join(Interface(whole), 40), knear.self_join(whole, 40))
    pretended.joins.clear()
    with pytest.raises(knear.InvalidArgument, match="base has elements of type int64"):
        knear.self_join(Pretender(base.astype(np.int64)), 1)
    with pytest.raises(knear.InvalidArgument, match="base must be C-contiguous on a GPU"):
        knear.self_join(Pretender(base[:, :3]), 1)
    with pytest.raises(knear.InvalidArgument, match="k must be a whole number"):
        knear.self_join(there, 1.5)
    assert not pretended.joins


def test_a_range_search_gets_the_memory_itself(pretended, rng):
    base = rng.standard_normal((70, 6)).astype(np.float32)
    q, b = Pretender(base[3:9], (2, 1)), Old(base, (2, 1), offset=16)
    some = np.arange(0, 70, 2)
    report = {}
    got = knear.range_search(
        q, b, 0.5, "cosine", threads=2, memory="8M", first_pass="int8", filter=Pretender(some),
        report=report,
    )  # fmt: skip
    queries_told, base_told, *told = pretended.ranges[0]
    assert queries_told == (q.x.ctypes.data, "f32", 6, 6)
    assert base_told == (base.ctypes.data, "f32", 70, 6)
    assert told[:3] == [1, 0.5, "cosine"]
    assert told[3].words[:4] == (2, 8 << 20, "cuda", "int8")
    assert q.streams == b.streams == [1]
    assert (q.deleted, b.deleted) == (1, 1)
    assert [copied[1] for copied in pretended.copies] == [some.ctypes.data]
    assert (report["device"], report["queries"]) == ("cuda:1", 6)
    want = knear.range_search(base[3:9], base, 0.5, "cosine", filter=some)
    assert 6 < len(want[1]) < 6 * 35
    same(got, want, 1)
    for x in (rng.integers(0, 9, (30, 3)).astype(np.uint8), X.astype(np.float16)):
        there = Interface(x)
        for n, radius in ((4, 9.0), (4, -1.0), (0, 9.0)):
            got = knear.range_search(Interface(x[:n]), there, radius)
            same(got, knear.range_search(x[:n], x, radius))
    bits = (base.view(np.uint32) >> 16).astype(np.uint16)
    knear.range_search(Pretender(bits, code=4), Pretender(bits, code=4), 1)
    assert [told[1] for told in pretended.ranges[-1][:2]] == ["bf16", "bf16"]


def test_what_a_range_search_refuses_of_a_gpu(pretended):
    there = Pretender(X)
    for queries, base, words in (
        (Pretender(X, (2, 1)), there, "queries are in the memory of cuda:1, but base is in that"),
        (there, Pretender(X.astype(np.int64)), "base has elements of type int64"),
        (Pretender(X[:, :3]), there, "queries must be C-contiguous on a GPU"),
    ):
        with pytest.raises(knear.InvalidArgument, match=words):
            knear.range_search(queries, base, 1.0)
    with pytest.raises(knear.InvalidArgument, match="radius must be a number"):
        knear.range_search(there, there, "far")
    with pytest.raises(knear.ShapeMismatch, match="filter has 3 bools, but there are 10 rows"):
        knear.range_search(there, there, 1.0, filter=[True, False, True])
    with pytest.raises(knear.InvalidArgument, match="report must be a dict"):
        knear.range_search(there, there, 1.0, report=[])
    assert not pretended.ranges


@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_selection_gets_the_memory_itself(pretended, rng, kind):
    x = rng.integers(-9, 9, (7, 12)).astype(np.float32)
    x[2, ::3] = np.nan
    x[4] = np.nan
    pretended.devices[x.ctypes.data] = 1
    there = kind(x, (2, 1)) if kind is Pretender else kind(x)
    for largest in (False, True):
        for in_order in (False, True):
            words = {"largest": largest, "sorted": in_order}
            same(knear.select_k(there, 5, **words), knear.select_k(x, 5, **words), 1)
            told = ((x.ctypes.data, 7, 12, 12), 1, 5, largest, in_order, None, False)
            assert pretended.selections[-1] == told
    same(knear.select_k(there, 20), knear.select_k(x, 20), 1)
    assert not pretended.copies
    row = kind(x[0], (2, 1)) if kind is Pretender else kind(x[0])
    same(knear.select_k(row, 3), knear.select_k(x[0], 3), 1)
    assert pretended.selections[-1][0] == (x.ctypes.data, 1, 12, 12)
    assert pretended.selections[-1][-1]
    pretended.devices.clear()
    same(knear.select_k(kind(x[:0]), 3), knear.select_k(x[:0], 3))


@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_selection_from_rows_that_lie_apart(pretended, rng, kind):
    x = rng.standard_normal((9, 20)).astype(np.float32)
    for view, stride in ((x[:, 3:11], 20), (x[::2, :5], 40), (x[4:5, :5], 5), (x[:, 7:8], 20)):
        same(knear.select_k(kind(view), 4), knear.select_k(view, 4))
        assert pretended.selections[-1][0] == (view.ctypes.data, *view.shape, stride)
    pretended.selections.clear()
    alike = np.broadcast_to(x[0], (9, 20))
    for odd in (x[:, ::2], x[::-1], x.T, x[0, ::2], alike):
        with pytest.raises(knear.InvalidArgument, match="x must have contiguous rows on a GPU.*st"):
            knear.select_k(kind(odd), 2)
    with pytest.raises(knear.InvalidArgument, match="x must be a matrix .* has 3 dimensions"):
        knear.select_k(kind(x[None]), 2)
    assert not pretended.selections


def test_floats_that_lie_at_odd_bytes_are_refused(pretended):
    odd = np.zeros(6, [("x", np.float32, 4), ("more", np.uint8)])["x"]
    words = r"x must have contiguous rows .*with strides of \(4.25, 1\) elements"
    with pytest.raises(knear.InvalidArgument, match=words):
        knear.select_k(Interface(odd), 1)
    with pytest.raises(knear.InvalidArgument, match=words):
        knear.Index("Flat", dim=4).add(Interface(odd))
    data = (X.ctypes.data + 2, False)
    with pytest.raises(knear.InvalidArgument, match="x must begin at a multiple of 4 bytes"):
        knear.select_k(Interface(X[:2], data=data), 1)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_lengths_may_be_on_the_gpu_and_not(pretended, rng, kind, dtype):
    x = rng.standard_normal((4, 9)).astype(np.float32)
    lengths = np.array([0, 9, 1, 5], dtype)
    want = knear.select_k(x, 3, lengths=lengths)
    for which in (lengths, kind(lengths), lengths.tolist()):
        same(knear.select_k(kind(x), 3, lengths=which), want)
        assert pretended.selections[-1][5].dtype == np.int64
    here = knear.select_k(x, 3, lengths=kind(lengths))
    for got, wanted in zip(here, want, strict=True):
        np.testing.assert_array_equal(got, wanted)
    twice = np.repeat(lengths, 2)[::2]
    same(knear.select_k(kind(x), 3, lengths=kind(twice)), want)
    with pytest.raises(knear.InvalidArgument, match=r"lengths\[1\] is 9"):
        knear.select_k(kind(x[:, :8]), 1, lengths=kind(lengths))


def test_what_a_selection_on_the_gpu_refuses(pretended):
    there = Pretender(X, (2, 1))
    words = "in the memory of cuda:1, where select_k has"
    with pytest.raises(knear.InvalidArgument, match=f"threads is 2, but x is {words} 0 alone"):
        knear.select_k(there, 1, threads=2)
    for method in ("threshold", "quick"):
        with pytest.raises(
            knear.InvalidArgument, match=f"method is '{method}', but x is {words} 'auto' alone"
        ):
            knear.select_k(there, 1, method=method)
    for dtype in (np.float16, np.float64, np.uint8):
        for odd in (Pretender(X.astype(dtype)), Interface(X.astype(dtype))):
            with pytest.raises(
                knear.InvalidArgument,
                match="x has elements of type .*knear.select_k takes float32, and converts nothing",
            ):
                knear.select_k(odd, 1)
    with pytest.raises(knear.InvalidArgument, match="x has elements of type uint16; on a GPU"):
        knear.select_k(Pretender(X.view(np.uint16), code=4), 1)  # bfloat16
    with pytest.raises(knear.InvalidArgument, match="k must be a whole number"):
        knear.select_k(there, 1.5)
    assert not pretended.selections
    knear.select_k(there, 1, threads=0, method="auto")


def filled(x):
    index = knear.Index("Flat", dim=x.shape[1])
    index.add(x)
    return index


@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_an_index_takes_copies(pretended, rng, kind):
    x = rng.standard_normal((40, 6)).astype(np.float32)
    ids = np.arange(100, 140)
    index = knear.Index("Flat", dim=6)
    index.add(kind(x), kind(ids))
    assert pretended.copies == [
        (0, x.ctypes.data, x.nbytes, (1, x.nbytes)),
        (0, ids.ctypes.data, ids.nbytes, (1, ids.nbytes)),
    ]
    np.testing.assert_array_equal(index.reconstruct(kind(ids)), x)
    index.replace(kind(ids[:2]), kind(x[2:4]))
    np.testing.assert_array_equal(index.reconstruct(ids[:2]), x[2:4])
    index.remove(kind(ids[5:]))
    assert index.ids.tolist() == ids[:5].tolist()
    with pytest.raises(knear.ShapeMismatch):
        index.add(kind(x[:, :3]))
    with pytest.raises(knear.InvalidArgument, match="ids must have one dimension, but has 2"):
        index.remove(kind(x))
    with pytest.raises(knear.InvalidArgument, match="ids must hold whole numbers"):
        index.remove(kind(x[0]))
    with pytest.raises(knear.InvalidArgument, match="x must be a matrix .* one dimension of 6"):
        index.add(kind(x[0]))
    with pytest.raises(knear.InvalidArgument, match="x must have one or two dimensions.* has 3"):
        index.add(kind(x[None]))
    assert len(index) == 5


@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_what_is_copied_may_have_gaps(pretended, rng, kind):
    wide = rng.standard_normal((12, 9)).astype(np.float32)
    size = wide.itemsize
    for view, pitch, shape in (
        (wide[:, 2:6], 9 * size, (12, 4 * size)),
        (wide[::3, :5], 27 * size, (4, 5 * size)),
        (wide.T, 9 * size * 12, (1, 9 * size * 12)),
        (wide[:, :4].T, 9 * size, (12, 4 * size)),
        (wide[:, 3:4], 9 * size, (12, size)),
        (wide[3:4, ::2], 2 * size, (5, size)),
        (wide[2:3], 9 * size, (1, 9 * size)),
    ):
        pretended.copies.clear()
        index = knear.Index("Flat", dim=view.shape[1])
        index.add(kind(view))
        np.testing.assert_array_equal(index.reconstruct(np.arange(len(view))), view)
        (copied,) = pretended.copies
        assert copied[3] == shape
        if shape[0] > 1:
            assert copied[2] == pitch
    index = knear.Index("Flat", dim=9)
    index.add(kind(wide[:0]))
    ids = np.arange(24)
    index.add(wide, kind(ids[::2]))
    assert index.ids.tolist() == list(range(0, 24, 2))
    for odd in (wide[::-1], wide[:, ::-1], wide[::2, ::2], np.broadcast_to(wide[0], (3, 9))):
        with pytest.raises(
            knear.InvalidArgument, match="x must have contiguous rows or columns.*with strides of"
        ):
            index.add(kind(odd))
    with pytest.raises(knear.InvalidArgument, match="ids must have contiguous rows or columns"):
        index.remove(kind(ids[::-1]))


@pytest.mark.parametrize("dtype", ["f4", "f2", "u1", "i1", "f8", "i8", "u2", "i4"])
@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_what_is_copied_is_of_the_types_of_the_processor(pretended, dtype, kind):
    x = (X % 7).astype(dtype)
    index = knear.Index("Flat", dim=4)
    index.add(kind(x))
    got, want = index.reconstruct([0, 9]), filled(x).reconstruct([0, 9])
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_odd_types_that_are_copied(pretended):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = X.astype(bfloat16)
    for view in (x.view(np.uint16), x.view(np.uint16)[:, :2], np.asfortranarray(x.view(np.uint16))):
        index = knear.Index("Flat", dim=view.shape[1])
        index.add(Pretender(view, code=4))
        got = index.reconstruct(np.arange(10))
        assert got.dtype == bfloat16
        np.testing.assert_array_equal(got, view.view(bfloat16))
    index = knear.Index("Flat", dim=4)
    index.add(Interface(X.astype(">f4")))
    np.testing.assert_array_equal(index.reconstruct(np.arange(10)), X)
    for odd, words in (
        (Pretender(X.astype(np.complex64)), "x must not have elements of type complex64"),
        (Pretender(X.view(np.uint8), code=8), "x has elements of type uint8, which NumPy has not"),
    ):
        with pytest.raises(knear.InvalidArgument, match=words):
            index.add(odd)
    with pytest.raises(knear.InvalidArgument, match="ids must hold whole numbers.*bfloat"):
        index.remove(Pretender(np.arange(2, dtype=np.uint16), code=4))
    assert len(index) == 10


class Noted:
    """The compiled index, which records the device of each search and runs it on the processor."""

    replicas = 2  # so that queries in a GPU's memory are sent for, as for every such index

    def __init__(self, index):
        self.index, self.devices = index, []

    def __getattr__(self, name):
        return getattr(self.index, name)

    def search(self, *words):
        return self._noted(self.index.search, words)

    def range_search(self, *words):
        return self._noted(self.index.range_search, words)

    def _noted(self, search, words):
        queries, kind, k, settings, *rest = words
        device = settings.words[2]
        self.devices.append(device)
        *found, report = search(queries, kind, k, settings.on_the_processor(), *rest)
        told = report.as_dict() | {"device": device}
        return *found, types.SimpleNamespace(as_dict=lambda: told)


@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_an_index_answers_where_the_queries_are(pretended, rng, kind):
    x = rng.standard_normal((60, 5)).astype(np.float32)
    q = x[7:12].copy()
    index = filled(x)
    noted = index._index = Noted(index._index)
    pretended.devices[q.ctypes.data] = 1
    there = kind(q, (2, 1)) if kind is Pretender else kind(q)
    for search in (index.search, index.range_search):
        want = search(q, 3)
        for said, told in (
            (None, "cuda:1"),
            ("cuda", "cuda:1"),
            ("cuda:1", "cuda:1"),
            ("cuda:0", "cuda:0"),
            ("cpu", "cpu"),
        ):
            pretended.copies.clear()
            same(search(there, 3, device=said), want, 1)
            assert noted.devices[-1] == told
            assert pretended.copies == [(1, q.ctypes.data, q.nbytes, (1, q.nbytes))]
        for said, told in ((None, "cpu"), ("cpu", "cpu"), ("cuda", "cuda"), ("cuda:2", "cuda:2")):
            got = search(q, 3, device=said)
            assert noted.devices[-1] == told
            assert isinstance(got[0], np.ndarray)
        with pytest.raises(knear.InvalidArgument, match="device must be text"):
            search(there, 3, device=1)
    few = np.array([3, 50])
    found = index.search(there, 3, filter=kind(few))
    same(found, index.search(q, 3, filter=few), 1)
    found = index.range_search(there, 3.0)
    same(found, index.range_search(q, 3.0), 1)
    assert found[0].shape == (6,)
    nothing = index.range_search(there, 0.0, filter=[0])
    same(nothing, index.range_search(q, 0.0, filter=[0]), 1)
    pretended.devices.clear()
    same(index.search(kind(q[:0]), 2), index.search(q[:0], 2))


def test_queries_in_managed_memory_are_answered_where_that_is(pretended):
    pretended.devices[X.ctypes.data] = 2
    index = filled(X)
    noted = index._index = Noted(index._index)
    same(index.search(Pretender(X, (13, 0)), 1), filled(X).search(X, 1), 2)
    assert noted.devices == ["cuda:2"]
    assert pretended.copies[0][0] == 2


@pytest.mark.parametrize("kind", [Torchlike, Subclass])
def test_answers_are_of_the_caller_s_library(pretended, monkeypatch, kind):
    made = []
    library = types.ModuleType("torch")
    library.from_dlpack = lambda x: made.append(x) or f"tensor {len(made)}"
    monkeypatch.setitem(sys.modules, "torch", library)
    assert knear.knn(kind(X), Pretender(X), 2) == ("tensor 1", "tensor 2")
    assert [each.dtype for each in made] == [np.float32, np.int64]
    assert isinstance(knear.knn(Pretender(X), kind(X), 2)[0], knear.DeviceArray)
    assert knear.self_join(kind(X), 2) == ("tensor 3", "tensor 4")
    assert knear.select_k(kind(X), 2) == ("tensor 5", "tensor 6")
    index = filled(X)
    assert index.search(kind(X), 2, device="cpu") == ("tensor 7", "tensor 8")
    found = index.range_search(kind(X), 0.5, device="cpu")
    assert found == ("tensor 9", "tensor 10", "tensor 11")
    found = knear.range_search(kind(X), Pretender(X), 0.5)
    assert found == ("tensor 12", "tensor 13", "tensor 14")
    dtypes = [np.float32, np.int64] * 3 + [np.int64, np.float32, np.int64] * 2
    assert [each.dtype for each in made[2:]] == dtypes


def test_an_answer_may_be_asked_with(pretended):
    distances, _ = knear.knn(Pretender(X), Pretender(X), 4)
    again = knear.knn(distances, Pretender(X), 1)
    want = knear.knn(knear.knn(X, X, 4)[0], X, 1)
    np.testing.assert_array_equal(answer(again[0]), want[0])


def test_pinned_memory_is_the_processor_s():
    class Pinned(Pretender):
        def __array__(self, *_, **__):
            return self.x

    array, kind = _arrays.matrix("x", Pinned(X, (3, 0)))
    assert array is X
    assert kind == "f32"


class Sliced(Pretender):
    def __getitem__(self, which):
        return Sliced(self.x[which])

    @property
    def T(self):
        return Sliced(self.x.T)


class Library:
    """Stands in for a library of gpu_arrays.py."""

    name = "pretended"

    def on_gpu(self, x):
        return Sliced(x.copy())

    def to_numpy(self, x):
        return answer(x)

    def owns(self, x, example):
        return isinstance(x, knear.DeviceArray) and isinstance(example, Sliced)


@pytest.mark.parametrize(
    "check",
    [
        gpu_arrays.check_answers,
        gpu_arrays.check_self_join,
        gpu_arrays.check_range_search,
        gpu_arrays.check_select,
        gpu_arrays.check_index,
    ],
)
def test_what_is_checked_on_a_gpu_holds_of_pretenders(pretended, monkeypatch, check):
    index = knear.Index.__init__

    def noted(self, *words, **more):
        index(self, *words, **more)
        self._index = Noted(self._index)

    monkeypatch.setattr(knear.Index, "__init__", noted)
    check(Library())


@pytest.mark.parametrize("check", gpu_arrays.CHECKS)
@pytest.mark.parametrize("name", gpu_arrays.LIBRARIES)
def test_on_a_gpu(name, check):
    try:
        library = gpu_arrays.Library(name)
    except gpu_arrays.Skipped as why:
        pytest.skip(str(why))
    check(library)
