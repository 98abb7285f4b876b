"""Arrays that are in the memory of a GPU: who has them, what they hold, and answers as such arrays.

Nothing is copied or converted here: what a search on a GPU cannot read as it lies is refused.
"""

import importlib
from typing import Any, NamedTuple

import numpy as np

from . import _core
from .errors import DeviceUnavailable, InvalidArgument

# Kinds of devices by DLPack. Pinned memory of the processor is the processor's.
_PROCESSOR, _PINNED, _CUDA, _MANAGED = 1, 3, 2, 13
_OTHERS = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}

# Element types of knear by DLPack's (code, bits), and by NumPy's name of the type.
_OF_DLPACK = {(2, 32): "f32", (2, 16): "f16", (4, 16): "bf16", (1, 8): "u8", (0, 8): "i8"}
_OF_NUMPY = {"float32": "f32", "float16": "f16", "uint8": "u8", "int8": "i8"}


class Rows(NamedTuple):
    """A matrix in the memory of a GPU, row after row without gaps."""

    address: int
    kind: str  # the element type
    rows: int
    cols: int
    number: int  # of the device
    owner: Any  # keeps the memory


class Place(NamedTuple):
    """A memory other than the processor's."""

    cuda: bool
    text: str


class DeviceArray:
    """An answer in the memory of a GPU, for callers whose library knear does not know.

    Has `__cuda_array_interface__` and `__dlpack__`, by which others read it without a copy; frees
    its memory when nobody has it any more. What is in it is complete.
    """

    def __init__(self, address: int, array: Any, shape: tuple[int, int], dtype: Any) -> None:
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
    """Where `x` is; None for the processor's memory, as whatever does not say otherwise."""
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
    places = {"queries": place_of(queries), "base": place_of(base)}
    away = {name: place for name, place in places.items() if place is not None}
    if not away:
        return False
    for name, place in away.items():
        if not place.cuda:
            raise InvalidArgument(
                f"{is_of(name)} in {place.text}; knear reads that of the processor and of CUDA"
            )
    first, place = next(iter(away.items()))
    if len(away) == 1:
        other = "base" if first == "queries" else "queries"
        raise InvalidArgument(
            f"{is_of(first)} in {place.text}, but {is_of(other)} not: both must be on one GPU, or "
            "neither"
        )
    if not _core.has_cuda:
        raise DeviceUnavailable(
            f"{is_of(first)} in {place.text}, but this knear was built without CUDA"
        )
    return True


def require_processor(name: str, x: Any) -> None:
    """Refuses what is in the memory of a GPU."""
    place = place_of(x)
    if place is not None:
        raise InvalidArgument(
            f"{is_of(name)} in {place.text}, but must be in that of the processor here: only the "
            "queries and base of knear.knn may be on a GPU"
        )


def is_of(name: str) -> str:
    """`name` with its verb."""
    return f"{name} are" if name in ("queries", "ids", "lengths") else f"{name} is"


def matrix(name: str, x: Any) -> Rows:
    """A matrix that place_of() found on a GPU. The legacy default stream comes after what its
    producer had the device do."""
    return _of_dlpack(name, x) if _dlpack_device(x) is not None else _of_interface(name, x)


def same_device(queries: Rows, base: Rows) -> int:
    """The number of the device on which both are."""
    if queries.number != base.number:
        raise InvalidArgument(
            f"queries are in the memory of cuda:{queries.number}, but base is in that of "
            f"cuda:{base.number}"
        )
    return base.number


def asked(device: Any, number: int) -> Any:
    """What the search is told of the argument `device`: None is where the arrays are."""
    if device is None:
        return "cuda"
    if device == "cpu":
        raise InvalidArgument(
            f"device is cpu, but queries and base are in the memory of cuda:{number}"
        )
    return device


def like(example: Any, address: int, array: Any, shape: tuple[int, int], dtype: Any) -> Any:
    """An answer as an array of the library of `example`; a DeviceArray for one that is unknown."""
    out = DeviceArray(address, array, shape, dtype)
    for each in type(example).__mro__:
        library = each.__module__.partition(".")[0]
        importer = {"torch": "torch", "cupy": "cupy", "jax": "jax.dlpack", "jaxlib": "jax.dlpack"}
        if library in importer:
            return importlib.import_module(importer[library]).from_dlpack(out)
    return out


def _dlpack_device(x: Any) -> tuple[int, int] | None:
    """(device type, number) by DLPack; None where x does not say."""
    ask = getattr(type(x), "__dlpack_device__", None)
    if ask is None or not hasattr(type(x), "__dlpack__"):
        return None
    try:
        kind, number = ask(x)
        return int(kind), int(number)
    except Exception:  # what cannot say it is left to NumPy
        return None


def _interface(x: Any) -> dict | None:
    """The CUDA array interface of x; None where there is none."""
    try:
        found = getattr(x, "__cuda_array_interface__", None)
    except Exception:
        return None
    return found if isinstance(found, dict) else None


def _of_dlpack(name: str, x: Any) -> Rows:
    try:
        try:
            capsule = x.__dlpack__(stream=1, max_version=(1, 1))
        except TypeError:  # a producer from before versions
            capsule = x.__dlpack__(stream=1)
        owner, address, (device, number), (code, bits, lanes), shape, strides = _core.read_dlpack(
            capsule
        )
    except Exception as error:
        raise InvalidArgument(f"{is_of(name)} not to be had by DLPack: {error}") from None
    kind = _OF_DLPACK.get((code, bits)) if lanes == 1 else None
    if kind is None:
        _refuse_type(name, getattr(x, "dtype", f"code {code} of DLPack with {bits} bits"))
    _check_layout(name, shape, strides)
    if device == _MANAGED and address:
        number = _core.device_at(address)
    return Rows(address, kind, *shape, number, owner)


def _of_interface(name: str, x: Any) -> Rows:
    told = _interface(x)
    if told.get("mask") is not None:
        raise InvalidArgument(f"{is_of(name)} masked, which knear does not read")
    dtype = np.dtype(told["typestr"])
    kind = _OF_NUMPY.get(dtype.name) if dtype.isnative else None
    if kind is None:
        _refuse_type(name, dtype.str)
    shape = tuple(told["shape"])
    strides = told.get("strides")
    _check_layout(name, shape, strides and tuple(s / dtype.itemsize for s in strides))
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
    return Rows(address, kind, *shape, number, x)


def _refuse_type(name: str, dtype: Any) -> None:
    have = "have" if name == "queries" else "has"
    raise InvalidArgument(
        f"{name} {have} elements of type {dtype}; on a GPU knear takes float32, float16, bfloat16, "
        "uint8 and int8, and converts nothing: convert to one of these first"
    )


def _check_layout(name: str, shape: tuple, strides: tuple | None) -> None:
    """Refuses what is no matrix of rows without gaps. Strides are in elements."""
    if len(shape) != 2:
        raise InvalidArgument(
            f"{name} must be a matrix [n x dim], but the array on the GPU has {len(shape)} "
            "dimensions"
        )
    rows, cols = shape
    if strides is None or rows == 0 or cols == 0:
        return
    apart, within = strides
    if (rows > 1 and apart != cols) or (cols > 1 and within != 1):
        raise InvalidArgument(
            f"{name} must be C-contiguous on a GPU, where knear reads what is there, but has the "
            f"shape ({rows}, {cols}) with strides of ({apart:g}, {within:g}) elements"
        )
