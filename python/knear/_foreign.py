"""Matrices that are not NumPy's: columns of vectors of pandas and Arrow, and arrays that NumPy
does not read by itself, of bfloat16 for one, by DLPack."""

from typing import Any

import numpy as np

from . import _core, _device
from .errors import InvalidArgument

# Types of Arrow that are taken: not list_view, whose lists lie anywhere.
_TENSORS = "extension<arrow.fixed_shape_tensor"
_LISTS = ("list<", "large_list<", "fixed_size_list<", _TENSORS)


def array_of(name: str, x: Any, numbers: bool = False) -> np.ndarray:
    """`x` as an array of NumPy, in place where it can be read there. With `numbers`, a column of
    these is taken too, as one dimension."""
    if isinstance(x, np.ndarray):
        return _stacked(name, x) if x.dtype == object and x.ndim == 1 else x
    if type(x).__module__.partition(".")[0] == "pyarrow":
        if numbers and not str(getattr(x, "type", "list<")).startswith(_LISTS):
            return np.asarray(x)
        return _of_arrow(name, x)
    if hasattr(type(x), "__arrow_array__") or hasattr(getattr(x, "array", None), "__arrow_array__"):
        return _of_pandas(name, x)
    array = values_of(name, x)
    return _stacked(name, array) if array.dtype == object and array.ndim == 1 else array


def values_of(name: str, x: Any) -> np.ndarray:
    """`x` as an array of NumPy, of whatever it holds: by DLPack where NumPy cannot read it, of the
    type inside where pandas has one with nulls."""
    if _nullable(getattr(x, "dtype", None)) or hasattr(x, "dtypes"):
        return _of_nullable(name, x)
    try:
        array = np.asarray(x)
    except Exception as error:
        if not hasattr(type(x), "__dlpack__"):
            if isinstance(x, (list, tuple)):  # rows of different lengths
                raise InvalidArgument(f"{name} are no matrix: {error}") from None
            raise
        return _of_dlpack(name, x)
    # NumPy makes an object of what has nothing that it reads.
    only_there = array.ndim == 0 and array.dtype == object and hasattr(type(x), "__dlpack__")
    return _of_dlpack(name, x) if only_there else array


def _nullable(dtype: Any) -> np.dtype | None:
    """NumPy's type of the numbers in a column of pandas that may have nulls, or of Arrow's."""
    inside = None if isinstance(dtype, np.dtype) else getattr(dtype, "numpy_dtype", None)
    return inside if isinstance(inside, np.dtype) and inside.kind in "iufb" else None


def _of_nullable(name: str, x: Any) -> np.ndarray:
    """A column or table of pandas, of which NumPy would make objects where nulls are possible."""
    table = hasattr(x, "dtypes") and getattr(x, "ndim", 1) == 2
    dtypes = list(x.dtypes) if table else [x.dtype]
    types = [each if isinstance(each, np.dtype) else _nullable(each) for each in dtypes]
    able = np.array([not isinstance(each, np.dtype) for each in dtypes], np.bool_)
    if any(each is None for each in types) or not able.any():  # None == float64 for NumPy
        return np.asarray(x)
    nulls = np.asarray(x.isna()).reshape(-1, len(dtypes)) & able
    if nulls.any():
        row, column = (int(i) for i in np.argwhere(nulls)[0])
        where = f", column {x.columns[column]!r}" if table else ""
        raise InvalidArgument(f"{name} have no value (null) in row {row}{where}")
    return x.to_numpy(dtype=np.result_type(*types))


def _of_arrow(name: str, x: Any) -> np.ndarray:
    """A column of Arrow whose values are lists of one length, or tensors of one dimension. A column
    in several chunks is copied to be in one."""
    if not hasattr(x, "type") or not hasattr(x, "null_count"):  # a table, a batch, a scalar
        raise InvalidArgument(
            f"{name} is a {type(x).__name__} of Arrow: give its column of vectors, "
            f'{name}.column("...")'
        )
    if x.null_count:
        raise InvalidArgument(f"{name} have {x.null_count} rows without a value (null)")
    if getattr(x, "num_chunks", 0) == 1:
        x = x.chunk(0)
    elif hasattr(x, "combine_chunks"):
        x = x.combine_chunks()
        x = x.chunk(0) if getattr(x, "num_chunks", 0) == 1 else x  # as older versions return it
    if str(x.type).startswith(_TENSORS):
        if len(x.type.shape) != 1:
            raise InvalidArgument(
                f"{name} are tensors of shape {tuple(x.type.shape)}; vectors have one dimension"
            )
        x = x.storage
    values = x.flatten() if hasattr(x, "flatten") else x
    if values is x or not str(x.type).startswith(_LISTS):
        raise InvalidArgument(f"{name} are a column of {x.type}; vectors are lists of numbers")
    if values.null_count:
        raise InvalidArgument(f"{name} have {values.null_count} elements without a value (null)")
    rows = len(x)
    flat = values.to_numpy(zero_copy_only=False)
    if str(x.type).startswith("fixed_size_list"):
        return flat.reshape(rows, x.type.list_size)
    lengths = np.diff(x.offsets.to_numpy(zero_copy_only=False))
    return flat.reshape(rows, _one_length(name, lengths))


def _of_pandas(name: str, x: Any) -> np.ndarray:
    array = getattr(x, "array", x)
    if hasattr(array, "__arrow_array__") and str(getattr(x, "dtype", "")).startswith(_LISTS):
        return _of_arrow(name, array.__arrow_array__())
    array = values_of(name, x)
    return _stacked(name, array) if array.dtype == object and array.ndim == 1 else array


def _stacked(name: str, column: np.ndarray) -> np.ndarray:
    """A column of objects, each a vector, as a matrix: the one copy that this takes."""
    if column.size == 0:
        return column
    try:
        vectors = [np.asarray(each) for each in column]
        dims = {each.ndim for each in vectors}
    except Exception as error:
        raise InvalidArgument(f"{name} are no vectors: {error}") from None
    if dims != {1}:
        for row, each in enumerate(column):
            if each is None or type(each).__name__ == "NAType" or each is np.nan:
                raise InvalidArgument(f"{name} have no vector (null) in row {row}")
            if 1 in dims and vectors[row].ndim != 1:
                raise InvalidArgument(f"{name} have no vector in row {row}, but {each!r}")
        return column
    _one_length(name, np.array([each.size for each in vectors]))
    return np.stack(vectors)


def _one_length(name: str, lengths: np.ndarray) -> int:
    if lengths.size == 0:
        return 0
    other = np.flatnonzero(lengths != lengths[0])
    if other.size:
        raise InvalidArgument(
            f"{name} have {lengths[0]} columns in row 0, but {lengths[other[0]]} in row {other[0]}"
        )
    return int(lengths[0])


class _Held:
    """Memory of another library, for NumPy to read."""

    def __init__(self, owner: Any, address: int, shape: Any, strides: Any, letters: str) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, True),
            "shape": shape,
            "strides": strides,
            "typestr": letters,
            "version": 3,
        }


def _of_dlpack(name: str, x: Any) -> np.ndarray:
    """An array in the processor's memory of a type that NumPy has not, or that its library does not
    give away (torch: requires_grad)."""
    x = x.detach() if hasattr(x, "detach") else x
    try:
        owner, address, _, (code, bits, lanes), shape, strides = _core.read_dlpack(x.__dlpack__())
    except Exception as error:
        raise InvalidArgument(f"{name} cannot be read by DLPack: {error}") from None
    dtype = _device.dtype_of(code, bits, lanes)
    if dtype is None:
        told = getattr(x, "dtype", f"code {code} of DLPack with {bits} bits")
        raise InvalidArgument(
            f"{name} must not have elements of type {told}, which knear does not take"
        )
    half = dtype == _device.BFLOAT16
    letters = "<u2" if half else dtype.str
    apart = tuple(each * dtype.itemsize for each in strides)
    array = np.asarray(_Held(owner, address, tuple(shape), apart, letters))
    return array.view(_device.BFLOAT16) if half else array
