"""Arrays in the memory of a GPU: where they are, what they hold, and answers as such arrays.

A search on a GPU does not copy or convert its arrays: those that it cannot read in place are
refused. For the processor one copy is made, as an array of NumPy.
"""

import contextlib
import importlib
import math
from typing import Any, NamedTuple

import numpy as np

from . import _core
from .errors import DeviceUnavailable, InvalidArgument

# Kinds of devices by DLPack. Pinned memory of the processor is the processor's.
_PROCESSOR, _PINNED, _CUDA, _MANAGED = 1, 3, 2, 13
_OTHERS = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}

# Letters of NumPy's types by DLPack's type codes. NumPy has no bfloat16: its bits have a type that
# is made here.
_LETTERS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_BFLOAT = 4
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])

# Arguments whose names are plural.
_PLURALS = ("queries", "ids", "lengths")

# Element types of knear.
_KINDS = {
    np.dtype(np.float32): "f32",
    np.dtype(np.float16): "f16",
    BFLOAT16: "bf16",
    np.dtype(np.uint8): "u8",
    np.dtype(np.int8): "i8",
    np.dtype(np.float64): "f64",
}


class Memory(NamedTuple):
    """An array in the memory of a GPU, as it describes itself."""

    address: int
    dtype: np.dtype | None  # None for what NumPy does not have
    told: Any  # the element type in the array's own words
    shape: tuple[int, ...]
    strides: tuple[float, ...]  # in elements
    number: int  # of the device
    owner: Any  # keeps the memory


class Rows(NamedTuple):
    """A matrix in the memory of a GPU, each row without gaps."""

    address: int
    kind: str  # the element type
    rows: int
    cols: int
    stride: int  # elements from one row to the next
    number: int  # of the device
    owner: Any  # keeps the memory


class Place(NamedTuple):
    """A memory other than the processor's."""

    cuda: bool
    text: str


class DeviceArray:
    """An answer in the memory of a GPU, for callers whose library knear does not know.

    It has `__cuda_array_interface__` and `__dlpack__`, by which other libraries read it without a
    copy, and frees its memory when nothing refers to it. Its content is complete.
    """

    def __init__(self, address: int, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self._array = array  # owns the memory
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": self.dtype.str,
            "data": (address, False),
            "strides": None,
            "version": 3,
            "stream": None,  # nothing to wait for
        }

    def __dlpack__(self, **words: Any) -> Any:
        return self._array.__dlpack__(**words)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __repr__(self) -> str:
        where = f"cuda:{self.__dlpack_device__()[1]}"
        return f"<knear.DeviceArray {self.shape}, {self.dtype}, {where}>"


def place_of(x: Any) -> Place | None:
    """The place of `x`; None for the processor's memory, and for anything that names no place."""
    if isinstance(x, (np.ndarray, np.generic, list, tuple, int, float, str, bytes)):
        return None
    device = _dlpack_device(x)
    if device is not None:
        kind, number = device
        if kind in (_PROCESSOR, _PINNED):
            return None
        if kind in (_CUDA, _MANAGED):
            return Place(True, f"the memory of cuda:{number}")
        return Place(False, f"the memory of a device of {_OTHERS.get(kind, f'DLPack type {kind}')}")
    return None if _interface(x) is None else Place(True, "the memory of a GPU")


def on_gpu(queries: Any, base: Any) -> bool:
    """Whether both are in the memory of a GPU (True) or both in the processor's (False)."""
    queries_at, base_at = place_of(queries), place_of(base)
    if queries_at is None and base_at is None:  # the usual case, in every call
        return False
    places = {"queries": queries_at, "base": base_at}
    away = {name: place for name, place in places.items() if place is not None}
    for name, place in away.items():
        _refuse_others(name, place)
    first, place = next(iter(away.items()))
    if len(away) == 1:
        other = "base" if first == "queries" else "queries"
        raise InvalidArgument(
            f"{is_of(first)} in {place.text}, but {is_of(other)} not: both must be on one GPU, or "
            "neither"
        )
    _refuse_without_cuda(first, place)
    return True


def is_on_gpu(name: str, x: Any) -> bool:
    """Whether `x` is in the memory of a GPU (True) or in the processor's (False)."""
    place = place_of(x)
    if place is None:
        return False
    _refuse_others(name, place)
    _refuse_without_cuda(name, place)
    return True


def is_of(name: str) -> str:
    """`name` with its verb."""
    return f"{name} are" if name in _PLURALS else f"{name} is"


def matrix(name: str, x: Any) -> Rows:
    """A matrix that is_on_gpu(), its rows without gaps. The legacy default stream waits for the
    work of its producer."""
    memory = _read(name, x)
    kind = _KINDS.get(memory.dtype, "")
    if not kind:
        _refuse_type(
            name, memory, "knear takes float64, float32, float16, bfloat16, uint8 and int8"
        )
    _check_layout(name, memory)
    rows, cols = memory.shape
    return Rows(memory.address, kind, rows, cols, cols, memory.number, memory.owner)


def rows_in_place(name: str, x: Any) -> Rows | None:
    """As matrix(), or None for what has to be copied: another element type, gaps between rows."""
    memory = _read(name, x)
    kind = _KINDS.get(memory.dtype, "")
    if memory.dtype is None or not kind or len(memory.shape) != 2:
        return None
    rows, cols = memory.shape
    gaps = memory.strides[0] != cols and rows > 1
    if rows * cols == 0 or gaps or _within(memory.shape, memory.strides) != 1:
        return None
    if memory.address % memory.dtype.itemsize != 0:
        return None
    return Rows(memory.address, kind, rows, cols, cols, memory.number, memory.owner)


def rows_to_select_from(name: str, x: Any) -> tuple[Rows, bool]:
    """As matrix() for knear.select_k, whose rows may lie apart; and whether `x` has one dimension,
    which makes it one row."""
    memory = _read(name, x)
    if memory.dtype != np.float32:
        _refuse_type(name, memory, "knear.select_k takes float32")
    one = len(memory.shape) == 1
    if one:
        memory = memory._replace(shape=(1, *memory.shape), strides=(0, *memory.strides))
    _check_layout(name, memory, apart=True)
    if memory.address % 4 != 0:
        raise InvalidArgument(
            f"{name} must begin at a multiple of 4 bytes, but begins at {memory.address:#x}"
        )
    rows, cols = memory.shape
    stride = int(memory.strides[0]) if rows > 1 and cols > 0 else cols
    return Rows(memory.address, "f32", rows, cols, stride, memory.number, memory.owner), one


def to_processor(name: str, x: Any) -> Any:
    """`x`, or if it is_on_gpu() a copy as an array of NumPy, of BFLOAT16 if need be."""
    if not is_on_gpu(name, x):
        return x
    memory = _read(name, x)
    if memory.dtype is None:
        raise InvalidArgument(f"{_has(name)} elements of type {memory.told}, which NumPy has not")
    shape, strides, size = memory.shape, memory.strides, memory.dtype.itemsize
    if len(shape) not in (1, 2):
        raise InvalidArgument(
            f"{name} must have one or two dimensions, but the array on the GPU has {len(shape)}"
        )
    # A list is a column; a matrix whose columns are contiguous is copied by columns.
    if len(shape) == 1:
        shape, strides = (*shape, 1), (*strides, 1)
    turned = _within(shape, strides) != 1 and _within(shape[::-1], strides[::-1]) == 1
    if turned:
        shape, strides = shape[::-1], strides[::-1]
    out = np.empty(shape, memory.dtype)
    if out.size > 0:
        rows, cols = shape
        apart = strides[0] if rows > 1 else cols
        if _within(shape, strides) != 1 or apart != int(apart) or apart < cols:
            raise InvalidArgument(
                f"{name} must have contiguous rows or columns on a GPU to be copied, but has the "
                f"shape {memory.shape} with strides of {_text(memory.strides)} elements"
            )
        # A matrix without gaps is copied as one row.
        count = 1 if apart == cols else rows
        there = out.view(np.uint8).reshape(count, -1)
        pitch = there.shape[1] if count == 1 else int(apart) * size
        _core.copy_from_device(memory.number, memory.address, pitch, there)
    out = out.T if turned else out
    return out[:, 0] if len(memory.shape) == 1 else out


def number_of(name: str, x: Any) -> int | None:
    """The number of the device in whose memory `x` is; None for the processor's."""
    return _read(name, x).number if is_on_gpu(name, x) else None


def same_device(queries: Rows, base: Rows) -> int:
    """The number of the device on which both are."""
    if queries.number != base.number:
        raise InvalidArgument(
            f"queries are in the memory of cuda:{queries.number}, but base is in that of "
            f"cuda:{base.number}"
        )
    return base.number


def asked(device: Any, number: int) -> Any:
    """The `device` that the search gets: None means where the arrays are."""
    if device is None:
        return "cuda"
    if device == "cpu":
        raise InvalidArgument(f"device is cpu, but base is in the memory of cuda:{number}")
    return device


def of_queries(device: Any, number: int | None) -> Any:
    """The `device` that a search of rows in the processor's memory gets: None means where the
    queries are, "cuda" their GPU if they are on one."""
    if number is None:
        return "cpu" if device is None else device
    return f"cuda:{number}" if device in (None, "cuda") else device


def refuse_words(number: int, **words: tuple[Any, Any]) -> None:
    """Refuses arguments that are not the default: NAME=(argument, default)."""
    for name, (said, default) in words.items():
        if said != default:
            raise InvalidArgument(
                f"{name} is {said!r}, but x is in the memory of cuda:{number}, where select_k has "
                f"{default!r} alone"
            )


def dtype_of(code: int, bits: int, lanes: int) -> np.dtype | None:
    """The type that DLPack names so; None where NumPy has none, except for BFLOAT16."""
    if lanes == 1 and (code, bits) == (_BFLOAT, 16):
        return BFLOAT16
    if lanes == 1 and code in _LETTERS and bits in (8, 16, 32, 64, 128):
        with contextlib.suppress(TypeError):
            return np.dtype(f"{_LETTERS[code]}{bits // 8}")
    return None


def answers(example: Any, found: Any, *shapes_and_types: tuple[tuple[int, ...], Any]) -> Any:
    """The results of _core on a GPU, pairs of addresses and arrays, as arrays of the library of
    `example`."""
    return tuple(
        like(example, address, array, shape, dtype)
        for (address, array), (shape, dtype) in zip(found, shapes_and_types, strict=True)
    )


def sent(example: Any, number: int | None, found: Any) -> Any:
    """Answers in the processor's memory, on a device as arrays like `example` if one is given."""
    if number is None:
        return found
    return tuple(
        like(example, *_core.copy_to_device(number, each), each.shape, each.dtype) for each in found
    )


def like(example: Any, address: int, array: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An answer as an array of the library of `example`; a DeviceArray for one that is unknown."""
    out = DeviceArray(address, array, shape, dtype)
    for each in type(example).__mro__:
        library = each.__module__.partition(".")[0]
        importer = {"torch": "torch", "cupy": "cupy", "jax": "jax.dlpack", "jaxlib": "jax.dlpack"}
        if library in importer:
            return importlib.import_module(importer[library]).from_dlpack(out)
    return out


def _dlpack_device(x: Any) -> tuple[int, int] | None:
    """(device type, number) by DLPack; None where x has no DLPack."""
    ask = getattr(type(x), "__dlpack_device__", None)
    if ask is None or not hasattr(type(x), "__dlpack__"):
        return None
    try:
        kind, number = ask(x)
        return int(kind), int(number)
    except Exception:  # NumPy gets what fails here
        return None


def _interface(x: Any) -> dict | None:
    """The CUDA array interface of x; None where there is none."""
    try:
        found = getattr(x, "__cuda_array_interface__", None)
    except Exception:
        return None
    return found if isinstance(found, dict) else None


def _refuse_others(name: str, place: Place) -> None:
    if not place.cuda:
        raise InvalidArgument(
            f"{is_of(name)} in {place.text}; knear reads that of the processor and of CUDA"
        )


def _refuse_without_cuda(name: str, place: Place) -> None:
    if not _core.has_cuda:
        raise DeviceUnavailable(
            f"{is_of(name)} in {place.text}, but this knear was built without CUDA"
        )


def _read(name: str, x: Any) -> Memory:
    return _of_dlpack(name, x) if _dlpack_device(x) is not None else _of_interface(name, x)


def _of_dlpack(name: str, x: Any) -> Memory:
    try:
        try:
            capsule = x.__dlpack__(stream=1, max_version=(1, 1))
        except TypeError:  # a producer older than DLPack's versions
            capsule = x.__dlpack__(stream=1)
        owner, address, (device, number), (code, bits, lanes), shape, strides = _core.read_dlpack(
            capsule
        )
    except Exception as error:
        raise InvalidArgument(f"{is_of(name)} not to be had by DLPack: {error}") from None
    dtype = dtype_of(code, bits, lanes)
    if device == _MANAGED and address:
        number = _core.device_at(address)
    told = getattr(x, "dtype", f"code {code} of DLPack with {bits} bits")
    return Memory(address, dtype, told, shape, strides, number, owner)


def _of_interface(name: str, x: Any) -> Memory:
    told = _interface(x) or {}
    if told.get("mask") is not None:
        raise InvalidArgument(f"{is_of(name)} masked, which knear does not read")
    dtype = np.dtype(told["typestr"])
    shape = tuple(told["shape"])
    strides = told.get("strides")
    if strides is None:
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    else:
        strides = tuple(s / dtype.itemsize for s in strides)
    address = told["data"][0] or 0
    number = _core.device_at(address) if address else 0
    if number < 0:
        raise InvalidArgument(
            f"{name} has a __cuda_array_interface__, but {address:#x} is not in the memory of a GPU"
        )
    stream = told.get("stream")
    if stream is not None:
        if stream == 0:
            raise InvalidArgument(
                f"{name} has a __cuda_array_interface__ with the stream 0, which the interface "
                "forbids: 1 or 2 is a default stream"
            )
        _core.wait_for_stream(number, stream)
    return Memory(address, dtype, dtype.str, shape, strides, number, x)


def _has(name: str) -> str:
    return f"{name} have" if name in _PLURALS else f"{name} has"


def _refuse_type(name: str, memory: Memory, taken: str) -> None:
    raise InvalidArgument(
        f"{_has(name)} elements of type {memory.told}; on a GPU {taken}, and converts nothing: "
        "convert first"
    )


def _within(shape: tuple, strides: tuple) -> float:
    """Elements from one value of a row to the next; 1 where a row has no more than one."""
    return strides[1] if shape[1] > 1 else 1


def _text(strides: tuple) -> str:
    return f"({', '.join(f'{each:g}' for each in strides)})"


def _check_layout(name: str, memory: Memory, apart: bool = False) -> None:
    """Refuses anything but a matrix whose rows have no gaps, or lie apart if they may."""
    shape, strides = memory.shape, memory.strides
    if len(shape) != 2:
        raise InvalidArgument(
            f"{name} must be a matrix [n x dim], but the array on the GPU has {len(shape)} "
            "dimensions"
        )
    rows, cols = shape
    if rows == 0 or cols == 0:
        return
    gaps = strides[0] - cols if rows > 1 else 0
    fits = gaps >= 0 and gaps == int(gaps) if apart else gaps == 0
    if not fits or _within(shape, strides) != 1:
        raise InvalidArgument(
            f"{name} must {'have contiguous rows' if apart else 'be C-contiguous'} on a GPU, where "
            f"knear reads what is there, but has the shape {shape} with strides of "
            f"{_text(strides)} elements"
        )
