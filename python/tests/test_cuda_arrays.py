"""Arrays in the memory of a GPU: what is said of them where there is none, and the searches of
gpu_arrays.py where there is one.

Objects that only pretend to be on a GPU lie in the processor's memory; nothing of them is read but
by the search that stands in for the GPU's here.
"""

import ctypes
import sys
import types

import gpu_arrays
import numpy as np
import pytest

import knear
from knear import _arrays, _core, _device

X = np.arange(40, dtype=np.float32).reshape(10, 4)
DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack without a version."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


keep = ctypes.pythonapi.Py_IncRef  # for ever: who deletes a tensor may come after the interpreter
keep.argtypes = [ctypes.py_object]
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
capsule_of = ctypes.pythonapi.PyCapsule_New
capsule_of.restype = ctypes.py_object
capsule_of.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Pretender:
    """An array that says it is on a device, by DLPack."""

    def __init__(self, x, device=(2, 0), code=None, offset=0, told_strides=True):
        self.x, self.device, self.dtype = x, device, x.dtype
        self.code, self.offset, self.told_strides = code, offset, told_strides
        self.streams, self.deleted = [], 0

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **words):
        self.streams.append(stream)
        x, n = self.x, self.x.ndim
        extents = (ctypes.c_int64 * n)(*x.shape)
        strides = (ctypes.c_int64 * n)(*(s // x.itemsize for s in x.strides))

        def delete(_):
            self.deleted += 1  # never raises: C calls it

        deleter = DELETER(delete)
        tensor = Tensor(
            data=x.ctypes.data - self.offset,
            device_type=self.device[0],
            device_id=self.device[1],
            ndim=n,
            code=DLPACK_CODES[x.dtype.kind] if self.code is None else self.code,
            bits=8 * x.itemsize,
            lanes=1,
            shape=ctypes.addressof(extents),
            strides=ctypes.addressof(strides) if self.told_strides else None,
            byte_offset=self.offset,
            deleter=ctypes.cast(deleter, ctypes.c_void_p),
        )
        keep((tensor, extents, strides, deleter))
        return capsule_of(ctypes.addressof(tensor), b"dltensor", None)

    def __array__(self, *_, **__):
        raise AssertionError("copied to the processor")


class Old(Pretender):
    """From before DLPack had versions."""

    def __dlpack__(self, stream=None):
        return super().__dlpack__(stream=stream)


class Torchlike(Pretender):
    pass


Torchlike.__module__ = "torch"


class Subclass(Torchlike):
    """Of a user's own module."""


class Interface:
    """An array with a __cuda_array_interface__ alone, as Numba's."""

    def __init__(self, x, **more):
        self.__cuda_array_interface__ = {
            "shape": x.shape,
            "typestr": x.dtype.str,
            "data": (x.ctypes.data, False),
            "strides": x.strides,
            "version": 3,
            **more,
        }

    def __array__(self, *_, **__):
        raise AssertionError("copied to the processor")


def read(address, shape, dtype):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(ctypes.string_at(address, size), dtype).reshape(shape)


@pytest.fixture
def pretended(monkeypatch):
    """A search that stands in for the GPU's; it notes what it was asked."""
    noted = types.SimpleNamespace(calls=[], streams=[], devices={})

    def search(queries, base, number, k, metric, *rest):
        noted.calls.append((queries, base, number, k, metric, *rest))
        names = {"f32": np.float32, "f16": np.float16, "u8": np.uint8, "i8": np.int8}
        names["bf16"] = np.uint16
        rows = [(read(a, (n, d), names[kind]), kind) for a, kind, n, d in (queries, base)]
        threads, memory, first_pass, choices, approach, _, ids, bits, report = rest
        found = _core.knn(
            *rows[0], *rows[1], k, metric, threads, memory, first_pass, choices, approach, "cpu",
            ids, bits, report,
        )  # fmt: skip
        return tuple((each.ctypes.data, Pretender(each, (2, number))) for each in found)

    monkeypatch.setattr(_core, "has_cuda", True)
    monkeypatch.setattr(_core, "knn_on_device", search)
    monkeypatch.setattr(_core, "device_at", lambda address: noted.devices.get(address, 0))
    monkeypatch.setattr(_core, "wait_for_stream", lambda *which: noted.streams.append(which))
    return noted


def answer(found):
    """A DeviceArray of the pretenders as NumPy's."""
    told = found.__cuda_array_interface__
    return read(told["data"][0], told["shape"], told["typestr"])


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


@pytest.mark.skipif(_core.has_cuda, reason="this knear was built with CUDA")
@pytest.mark.parametrize("there", [Pretender(X), Interface(X)])
def test_without_cuda_one_line_says_so(there):
    words = "queries are in the memory of (cuda:0|a GPU), but this knear was built without CUDA"
    with pytest.raises(knear.DeviceUnavailable, match=words):
        knear.knn(there, there, 1)
    for call in (
        lambda: _core.device_at(0),
        lambda: _core.wait_for_stream(0, 1),
    ):
        with pytest.raises(knear.DeviceUnavailable, match="this knear was built without CUDA"):
            call()


@pytest.mark.skipif(not _core.has_cuda, reason="this knear was built without CUDA")
def test_memory_that_is_not_the_device_s_is_refused_by_the_library():
    # Without a GPU that is DeviceUnavailable, with one InvalidArgument.
    for there in (Pretender(X), Interface(X)):
        with pytest.raises(knear.Error, match="no GPU is usable|in the memory of a GPU"):
            knear.knn(there, there, 1)


@pytest.mark.parametrize("there", [Pretender(X), Interface(X), Pretender(X, (13, 0))])
def test_everything_else_wants_the_processor_s_memory(there):
    index = knear.Index("Flat", dim=4)
    index.add(X)
    ids = Pretender(np.arange(2), there.device) if isinstance(there, Pretender) else there
    calls = {
        "base": lambda: knear.self_join(there, 1),
        "queries": lambda: knear.range_search(there, X, 1.0),
        "x": lambda: knear.select_k(there, 1),
        "lengths": lambda: knear.select_k(X, 1, lengths=ids),
        "filter": lambda: knear.knn(X, X, 1, filter=ids),
        "q": lambda: index.search(there, 1),
        "ids": lambda: index.remove(ids),
    }
    more = [
        ("base", lambda: knear.range_search(X, there, 1.0)),
        ("x", lambda: index.add(there)),
        ("x", lambda: index.replace([0], there)),
        ("ids", lambda: index.add(X, ids)),
        ("ids", lambda: index.reconstruct(ids)),
        ("q", lambda: index.range_search(there, 1.0)),
        ("filter", lambda: index.search(X, 1, filter=ids)),
    ]
    for name, call in [*calls.items(), *more]:
        with pytest.raises(
            knear.InvalidArgument,
            match=f"^{name} (is|are) in the memory of .*must be in that of the processor",
        ):
            call()
    assert len(index) == 10


def test_other_devices_are_refused_by_name():
    for device, name in ((10, "ROCm"), (8, "Metal"), (99, "DLPack type 99")):
        there = Pretender(X, (device, 0))
        for call in (lambda t=there: knear.knn(t, t, 1), lambda t=there: knear.knn(X, t, 1)):
            with pytest.raises(knear.InvalidArgument, match=f"in the memory of a device of {name}"):
                call()
        with pytest.raises(knear.InvalidArgument, match=f"x is in .* {name}"):
            knear.Index("Flat", dim=4).add(there)


def test_the_search_gets_the_memory_itself(pretended, rng):
    base = rng.standard_normal((60, 5)).astype(np.float32)
    q, b = Pretender(base[3:9], (2, 1)), Old(base, (2, 1), offset=16)
    distances, ids = knear.knn(q, b, 4, "cosine", threads=2, memory="8M", filter=[1, 3, 5, 8, 9])
    queries_told, base_told, number, k, metric, threads, memory, *_ = pretended.calls[0]
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


def test_the_memory_stays_while_the_search_goes_on(pretended, monkeypatch):
    there = Pretender(X)
    search = _core.knn_on_device

    def looks(*words):
        assert there.deleted == 0
        return search(*words)

    monkeypatch.setattr(_core, "knn_on_device", looks)
    knear.knn(there, there, 1)
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


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64, np.uint16, np.bool_])
def test_other_element_types_are_refused(pretended, dtype):
    odd = X.astype(dtype)
    for there, word in ((Pretender(odd), odd.dtype.name), (Interface(odd), odd.dtype.str[1:])):
        with pytest.raises(
            knear.InvalidArgument, match=f"base has elements of type .*{word}.*convert to one"
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
    for said, told in ((None, "cuda"), ("cuda", "cuda"), ("cuda:1", "cuda:1"), ("cuda:0",) * 2):
        knear.knn(there, there, 1, device=said)  # cuda:0 is for the library to refuse
        assert pretended.calls[-1][10] == told
    with pytest.raises(knear.InvalidArgument, match="device is cpu, but queries and base are in"):
        knear.knn(there, there, 1, device="cpu")
    with pytest.raises(knear.InvalidArgument, match="device must be text"):
        knear.knn(there, there, 1, device=1)


def test_other_arguments_are_checked_as_ever(pretended):
    there = Pretender(X)
    with pytest.raises(knear.InvalidArgument, match="k must be a whole number"):
        knear.knn(there, there, 1.5)
    with pytest.raises(knear.ShapeMismatch, match="filter has 3 bools, but there are 10 rows"):
        knear.knn(there, there, 1, filter=[True, False, True])
    with pytest.raises(knear.InvalidArgument, match="filter is in the memory of cuda:0"):
        knear.knn(there, there, 1, filter=Pretender(np.arange(3)))
    with pytest.raises(knear.InvalidArgument, match="report must be a dict"):
        knear.knn(there, there, 1, report=[])


@pytest.mark.parametrize("kind", [Torchlike, Subclass])
def test_answers_are_of_the_caller_s_library(pretended, monkeypatch, kind):
    made = []
    library = types.ModuleType("torch")
    library.from_dlpack = lambda x: made.append(x) or f"tensor {len(made)}"
    monkeypatch.setitem(sys.modules, "torch", library)
    assert knear.knn(kind(X), Pretender(X), 2) == ("tensor 1", "tensor 2")
    assert [each.dtype for each in made] == [np.float32, np.int64]
    assert isinstance(knear.knn(Pretender(X), kind(X), 2)[0], knear.DeviceArray)


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


@pytest.mark.parametrize("check", gpu_arrays.CHECKS)
@pytest.mark.parametrize("name", gpu_arrays.LIBRARIES)
def test_on_a_gpu(name, check):
    try:
        library = gpu_arrays.Library(name)
    except gpu_arrays.Skipped as why:
        pytest.skip(str(why))
    check(library)
