"""Arrays that only pretend to be on a GPU, and functions that stand in for the GPU's.

They are in the processor's memory; only those functions read them.
"""

import ctypes
import types

import numpy as np
import pytest

from knear import _core, _options

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


keep = ctypes.pythonapi.Py_IncRef  # a tensor may be deleted after the interpreter has ended
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
    """An array of a producer older than DLPack's versions."""

    def __dlpack__(self, stream=None):
        return super().__dlpack__(stream=stream)


class Torchlike(Pretender):
    pass


Torchlike.__module__ = "torch"


class Subclass(Torchlike):
    """An array of a class of a user's own module."""


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


TYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,
    "u8": np.uint8,
    "i8": np.int8,
}


class Settings(_core.SearchSettings):
    """Those of a search, with the words that they were made of."""

    def __init__(self, *words):
        super().__init__(*words)
        self.words = words

    def on_the_processor(self):
        return Settings(*self.words[:2], "cpu", *self.words[3:])


@pytest.fixture
def pretended(monkeypatch):
    """Functions that stand in for the GPU's; they record their calls."""
    noted = types.SimpleNamespace(calls=[], joins=[], ranges=[], selections=[], copies=[])
    noted.streams, noted.devices, noted.searches = [], {}, []

    def matrix(address, kind, rows, cols):
        return read(address, (rows, cols), TYPES[kind]), kind

    def there(number, found):
        return tuple((each.ctypes.data, Pretender(each, (2, number))) for each in found)

    class Report(types.SimpleNamespace):
        def as_dict(self):
            return {**self.of_processor.as_dict(), "device": f"cuda:{self.number}"}

    def told(number, report):
        return Report(of_processor=report, number=number)

    def search(queries, base, number, k, metric, *rest):
        noted.calls.append((queries, base, number, k, metric, *rest))
        settings, ids, bits, progress = rest
        here = settings.on_the_processor()
        *found, report = _core.knn(
            *matrix(*queries), *matrix(*base), k, metric, here, ids, bits, None, progress
        )
        return *there(number, found), told(number, report)

    def search_index(index, queries, number, k, settings, *rest):
        noted.searches.append((queries, number, k, settings, *rest))
        *filter, progress = rest
        here = settings.on_the_processor()
        *found, report = index.search(*matrix(*queries), k, here, *filter, None, progress)
        return *there(number, found), told(number, report)

    def join(base, number, *words):
        noted.joins.append((base, number, *words))
        *before, settings, ids, bits, progress = words
        here = settings.on_the_processor()
        *found, report = _core.self_join(*matrix(*base), *before, here, ids, bits, None, progress)
        return *there(number, found), told(number, report)

    def within(queries, base, number, *words):
        noted.ranges.append((queries, base, number, *words))
        *before, settings, ids, bits, progress = words
        here = settings.on_the_processor()
        *found, report = _core.range_search(
            *matrix(*queries), *matrix(*base), *before, here, ids, bits, progress
        )
        return *found, told(number, report)

    def select(x, number, k, largest, in_order, lengths, one_row):
        address, rows, cols, stride = x
        noted.selections.append((x, number, k, largest, in_order, lengths, one_row))
        size = (rows - 1) * stride + cols if rows > 0 else 0
        held = read(address, (size,), np.float32)
        apart = np.lib.stride_tricks.as_strided(held, (rows, cols), (4 * stride, 4))
        found = _core.select_k(apart, "f32", k, largest, in_order, lengths, 0, "auto")
        return there(number, [each[0].copy() for each in found] if one_row else found)

    def copy_here(number, address, pitch, out):
        noted.copies.append((number, address, pitch, out.shape))
        for i, row in enumerate(out):
            row[:] = read(address + i * pitch, row.shape, np.uint8)

    _options.forget()
    monkeypatch.setattr(_core, "SearchSettings", Settings)
    monkeypatch.setattr(_core, "has_cuda", True)
    monkeypatch.setattr(_core, "knn_on_device", search)
    monkeypatch.setattr(_core, "search_on_device", search_index)
    monkeypatch.setattr(_core, "self_join_on_device", join)
    monkeypatch.setattr(_core, "range_search_on_device", within)
    monkeypatch.setattr(_core, "select_on_device", select)
    monkeypatch.setattr(_core, "copy_from_device", copy_here)
    monkeypatch.setattr(
        _core, "copy_to_device", lambda number, array: there(number, [array.copy()])[0]
    )
    monkeypatch.setattr(_core, "device_at", lambda address: noted.devices.get(address, 0))
    monkeypatch.setattr(_core, "wait_for_stream", lambda *which: noted.streams.append(which))
    yield noted
    _options.forget()


def answer(found):
    """A DeviceArray of the pretenders as NumPy's."""
    told = found.__cuda_array_interface__
    return read(told["data"][0], told["shape"], told["typestr"])
