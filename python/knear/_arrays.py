"""Arguments from Python, checked once and converted to what _core takes.

An array is passed without a copy if its element type is one of knear's and each row is
contiguous, whatever the distance between rows (slices, mapped .fvecs files). Otherwise exactly
one copy is made, and only if it holds the same numbers. Arrays in the memory of a GPU are copied
from there.
"""

import operator
import os
import re
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _device, _foreign
from .errors import InvalidArgument, ShapeMismatch

# Element types of knear by NumPy's name of the type. NumPy has no bfloat16 of its own: ml_dtypes
# (which JAX, TensorFlow and others use) registers that name.
_ELEMENT_TYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "uint8": "u8",
    "int8": "i8",
    "float64": "f64",
}

# The same by the types themselves, for arrays that are what _core takes already.
_NATIVE_TYPES = {
    np.dtype(name): kind for name, kind in _ELEMENT_TYPES.items() if name != "bfloat16"
}

_BLOCK = 1 << 20  # elements converted at a time


def matrix(name: str, x: Any) -> tuple[np.ndarray, str]:
    """`x` as a 2-D array whose rows are contiguous, and the name of its element type."""
    if type(x) is np.ndarray and x.ndim == 2:
        flags, kind = x.flags, _NATIVE_TYPES.get(x.dtype)
        if kind is not None and flags.c_contiguous and flags.aligned:
            return x, kind
    _refuse_masks(name, x)
    return _matrix_of(name, _foreign.array_of(name, _device.to_processor(name, x)))


def row_or_matrix(name: str, x: Any) -> tuple[np.ndarray, str, bool]:
    """The same, where numbers in one dimension are one row; and whether they were."""
    if type(x) is np.ndarray and x.ndim == 2:
        return *matrix(name, x), False
    _refuse_masks(name, x)
    array = _foreign.array_of(name, _device.to_processor(name, x), numbers=True)
    one = array.ndim == 1 and array.dtype != object
    return *_matrix_of(name, array[np.newaxis] if one else array), one


def _matrix_of(name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
    if array.ndim != 2:
        text = f"{name} must be a matrix [n x dim], but the array has {array.ndim} dimensions"
        if array.ndim == 0:
            text = f"{text}: it is {shown(array.item())}"
        if array.ndim == 1:
            text = (
                f"{name} must be a matrix [n x dim], but the array has one dimension of "
                f"{array.size} values: {name}[None, :] makes one row of it"
            )
        raise InvalidArgument(text)
    if array.dtype == np.bool_:  # bytes of 0 and 1
        array = array.view(np.uint8)
    kind = "bf16" if array.dtype == _device.BFLOAT16 else _ELEMENT_TYPES.get(array.dtype.name)
    if kind is None:
        array, kind = _as_float32(name, array), "f32"
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if kind == "bf16":
        array = array.view(np.uint16)  # the bits: no protocol between libraries knows the type
    rows, cols = array.shape
    apart, within = array.strides
    size = array.itemsize
    contiguous = cols == 1 or within == size
    regular = rows <= 1 or (apart % size == 0 and apart >= cols * size)
    if not (contiguous and regular and array.ctypes.data % size == 0):
        array = np.array(array, order="C")
    return array, kind


def _refuse_masks(name: str, x: Any) -> None:
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise InvalidArgument(f"{name} is a masked array with {x.mask.sum()} values masked out")


def _as_float32(name: str, array: np.ndarray) -> np.ndarray:
    """`array` as float32 if that changes no value."""
    if array.dtype.kind not in "iuf":
        raise InvalidArgument(
            f"{name} must not have elements of type {array.dtype}; knear takes float64, float32, "
            "float16, bfloat16, uint8, int8, and others that are exact in float32"
        )
    out = np.empty(array.shape, np.float32)
    block = max(1, _BLOCK // max(1, array.shape[1]))
    for begin in range(0, len(array), block):
        part = array[begin : begin + block]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            out[begin : begin + block] = part
            same = out[begin : begin + block].astype(array.dtype) == part
            if array.dtype.kind == "f":
                same |= np.isnan(part)  # refused later, as for every type
            else:
                same &= np.abs(out[begin : begin + block]) < 2.0**63  # so it converts back
        if not same.all():
            row, column = (int(i) for i in np.argwhere(~same)[0])
            raise InvalidArgument(
                f"{name} of type {array.dtype}: {part[row, column]} in row {begin + row}, "
                f"column {column} is not exact in float32; "
                f"{name}.astype(numpy.float32) rounds"
            )
    return out


def rounded_to(kind: str, name: str, array: np.ndarray, own: str) -> np.ndarray:
    """`array`, whose element type is `own`, with each number as the nearest one of the element type
    `kind`. Refuses a number beyond its range; NaN and infinities stay, where the type has them."""
    if own == kind:
        return array
    values, dtype = typed(array, own), _dtype_of(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.kind in "iu":
            nearest, limits = np.rint(values), np.iinfo(dtype)
            beyond = ~((nearest >= limits.min) & (nearest <= limits.max))
            out = np.where(beyond, 0, nearest).astype(dtype)
        else:
            out = values.astype(dtype)
            beyond = np.isfinite(values) & ~np.isfinite(out)
    if beyond.any():
        row, column = (int(i) for i in np.argwhere(beyond)[0])
        raise InvalidArgument(
            f"{name} holds {values[row, column]} in row {row}, column {column}, beyond the range "
            f"of the index's element type {kind}"
        )
    return out.view(np.uint16) if kind == "bf16" else out


def filter_of(
    value: Any, rows: int | None, *lengths: int
) -> tuple[np.ndarray | None, np.ndarray | None, int]:
    """A filter as (ids, None, 0), (None, bits, their number) or (None, None, 0) for every row.

    With `rows`, there must be that many bools. `lengths` are those that a mask may have otherwise:
    whole numbers that are a mask to NumPy's users, and ids to knear, are refused.
    """
    if value is None:
        return None, None, 0
    if isinstance(value, (set, frozenset)):
        value = list(value)
    _refuse_masks("filter", value)
    _refuse_nulls("filter", value)
    array = _foreign.values_of("filter", _device.to_processor("filter", value))
    if array.ndim != 1:
        raise InvalidArgument(
            f"filter must have one dimension: ids, or one bool a row; but has {array.ndim}"
        )
    if array.dtype == np.bool_:
        if rows is not None and array.size != rows:
            raise ShapeMismatch(f"filter has {array.size} bools, but there are {rows} rows")
        return None, np.packbits(array, bitorder="little"), array.size
    ids = ids_of("filter", array, "ids (whole numbers) or bools")
    twice = ids.size > 2 or (ids.size == 2 and ids[0] == ids[1])  # [0, 1] are two ids
    if twice and ids.size in (rows, *lengths) and 0 <= ids.min() <= ids.max() <= 1:
        raise InvalidArgument(
            f"filter has {ids.size} whole numbers, each 0 or 1, as many as there are rows: "
            "filter.astype(bool) allows the rows with a 1, numpy.unique(filter) the ids 0 and 1"
        )
    return ids, None, 0


def _refuse_nulls(name: str, value: Any) -> None:
    nulls = getattr(value, "null_count", 0)  # of Arrow's arrays, where NumPy has NaN then
    if isinstance(nulls, int) and nulls:
        has = "has" if name == "filter" else "have"
        raise InvalidArgument(f"{name} {has} no value (null) in {nulls} of {len(value)} places")


def ids_of(name: str, value: Any, what: str = "whole numbers") -> np.ndarray:
    """`value` as a list of ids."""
    _refuse_masks(name, value)
    _refuse_nulls(name, value)
    array = _foreign.values_of(name, _device.to_processor(name, value))
    if array.ndim != 1:
        raise InvalidArgument(f"{name} must have one dimension, but has {array.ndim}")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidArgument(f"{name} must hold {what}, but has type {array.dtype}")
    if array.dtype == np.uint64 and int(array.max()) >= 2**63:
        raise InvalidArgument(f"{name} holds {array.max()}, which is no id: they have 63 bits")
    return np.ascontiguousarray(array, np.int64)


def floats(name: str, value: Any, dimensions: int) -> np.ndarray:
    """`value` as a contiguous array of float32 of so many dimensions."""
    array = _foreign.values_of(name, _device.to_processor(name, value))
    if array.ndim != dimensions:
        raise InvalidArgument(f"{name} must have {dimensions} dimensions, but has {array.ndim}")
    if array.dtype.kind not in "iuf":
        raise InvalidArgument(f"{name} must hold numbers, but has type {array.dtype}")
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(array, np.float32)
    if array.dtype != np.float32 and not np.isfinite(out).all():
        over = np.isfinite(array) & ~np.isfinite(out)
        if over.any():
            raise InvalidArgument(f"{name}: {array[over][0]} is beyond the range of float32")
    return out


def codes(name: str, value: Any) -> np.ndarray:
    """`value` as a contiguous matrix of bytes."""
    array = _foreign.values_of(name, _device.to_processor(name, value))
    if array.ndim != 2:
        raise InvalidArgument(f"{name} must have 2 dimensions, but has {array.ndim}")
    if array.dtype != np.uint8:
        raise InvalidArgument(f"{name} must be uint8, but has type {array.dtype}")
    return np.ascontiguousarray(array)


def rows_of(data: np.ndarray, kind: str, rows: int, dim: int) -> np.ndarray:
    """Bytes as a matrix of that element type."""
    return data.view(_dtype_of(kind)).reshape(rows, dim)


def typed(bits: np.ndarray, kind: str) -> np.ndarray:
    """An array from _core, where halves may come as their bits, as one of that element type."""
    return bits.view(_dtype_of(kind)) if kind in ("f16", "bf16") else bits


def _dtype_of(kind: str) -> np.dtype:
    if kind == "bf16":
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgument(
                "vectors of type bf16 need the package ml_dtypes to be an array"
            ) from None
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype({kind: name for name, kind in _ELEMENT_TYPES.items()}[kind])


def integer(name: str, value: Any) -> int:
    """`value` as an int that fits 64 bits; True and False are none, though Python has them so."""
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    try:
        if isinstance(value, (bool, np.bool_)):  # which Python takes for 0 and 1
            raise TypeError
        number = operator.index(value)
    except TypeError:
        text = f"{name} must be a whole number, but is {shown(value)}"
        raise InvalidArgument(text) from None
    if not -(2**63) <= number < 2**63:
        raise InvalidArgument(f"{name} must fit 64 bits, but is {number}")
    return number


def positive(name: str, value: Any) -> int:
    """`value` as such an int of 1 or more."""
    found = integer(name, value)
    if found < 1:
        raise InvalidArgument(f"{name} must be at least 1, but is {found}")
    return found


def number(name: str, value: Any) -> float:
    """`value` as a float; a str is none, whatever it says, nor are True and False."""
    try:
        if isinstance(value, (str, bytes, bytearray, bool, np.bool_)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{name} must be a number, but is {shown(value)}") from None


def text(name: str, value: Any) -> str:
    """`value`, which must be a str; _core checks which."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be text, but is {shown(value)}")
    return value


def shown(value: Any) -> str:
    """`value` in one line of a message: what is long, or has several lines, by its type."""
    text = repr(value) if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"of type {type(value).__name__}"


def path(value: Any) -> bytes:
    """The path as the system has it, of text, bytes or an os.PathLike."""
    try:
        name = os.fsencode(value)
    except TypeError:
        raise InvalidArgument(f"path must be text, bytes or a Path, but is {value!r}") from None
    if b"\0" in name:
        raise InvalidArgument(f"path must not have a NUL inside, but is {value!r}")
    return name


def choices(value: Any) -> str:
    """The choices of a search as the text that _core reads."""
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"choices must be a dict, but is a {type(value).__name__}")
    words = {True: "on", False: "off"}
    return ",".join(
        f"{name}={words[item] if isinstance(item, bool) else item}" for name, item in value.items()
    )


def count(name: str, value: Any) -> int:
    """A number from 1 on; 0 for None."""
    if value is None:
        return 0
    found = integer(name, value)
    if found < 1:
        raise InvalidArgument(f"{name} must be at least 1, but is {found}")
    return found


def report(value: Any) -> dict | None:
    """`value`, which must be a dict or None."""
    if value is not None and not isinstance(value, dict):
        raise InvalidArgument(f"report must be a dict to fill, but is a {type(value).__name__}")
    return value


def element_type(name: str, value: Any) -> str:
    """knear's word for the element type of arrays of this NumPy type."""
    try:
        word = np.dtype(value).name
    except Exception as error:  # of whatever kind: NumPy reads text as Python
        raise InvalidArgument(f"{name} must be a type of NumPy, but is {value!r}") from error
    kind = _ELEMENT_TYPES.get(word)
    if kind is None:
        raise InvalidArgument(f"{name} is {word}, which vectors are not kept as")
    return kind


def size(name: str, value: Any) -> int:
    """Bytes of a memory budget: None (no limit, 0), a number of bytes, or text such as '512M' or
    '1.5G', as --memory of the command line takes it."""
    if value is None:
        return 0
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]+)(\.[0-9]+)?([kmgt]?)", value, re.ASCII | re.IGNORECASE)
        if not match:
            raise InvalidArgument(
                f"{name} must be a number of bytes or such with k, M, G or T, but is {value!r}"
            )
        unit = 1 << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[3].lower()]
        value = int(match[1]) * unit + int(float(match[2] or 0) * unit)
    number = integer(name, value)
    if number < 1:
        raise InvalidArgument(f"{name} must be at least 1 byte, but is {number}")
    return number
