"""Which index to make: knear.choose_index."""

from typing import Any, NamedTuple

import numpy as np

from . import _arrays, _core
from .errors import InvalidArgument


class IndexChoice(NamedTuple):
    """What knear.choose_index says.

    >>> import knear
    >>> choice = knear.choose_index(1000, 96)
    >>> index = knear.Index(choice.factory, dim=96)
    >>> choice.factory, choice.memory_bytes > 4 * 96 * 1000
    ('Flat', True)
    """

    factory: str
    reason: str
    memory_bytes: int


def choose_index(
    rows: int,
    dim: int,
    metric: str = "l2",
    *,
    memory: int | str | None = None,
    recall: float = 0.95,
    batch: int = 1000,
    dtype: Any = np.float32,
) -> IndexChoice:
    """The index that suits `rows` vectors of `dim` columns, as a factory string, with the reason.

    >>> import knear
    >>> knear.choose_index(1_000_000, 96, memory="200M", recall=0.9).factory
    'IVF2048,PQ48x4,Refine(SQ8)'

    It goes by rules, not by the vectors: of the forms that fit the memory the one that loses least,
    in inverted lists where these are expected to be faster.

    metric: "l2", "ip" or "cosine", of the searches to come. Vectors of uint8 and int8 take more
        memory by cosine, since they are kept beside the form in which they are searched.
    memory: what the index may take, in bytes or as "200M"; None for as much as it likes.
    recall: of the 10 nearest, in the searches to come; 1 has them all found.
    batch: how many queries are searched for in a call.
    dtype: of the vectors; uint8 and int8 are kept as bytes.

    Raises InvalidArgument for numbers out of range, and where nothing fits the memory, with what
    would be enough.
    """
    return IndexChoice(
        *_core.choose_index(
            _arrays.integer("rows", rows),
            _arrays.integer("dim", dim),
            _arrays.text("metric", metric),
            _arrays.element_type("dtype", dtype),
            _arrays.size("memory", memory),
            _arrays.number("recall", recall),
            _arrays.integer("batch", batch),
        )
    )


def factory_of(
    factory: str, dim: int, metric: str, needs: dict[str, Any]
) -> tuple[str, str | None]:
    """`factory` and None, or if that is "auto" what choose_index() chooses and its reason; `needs`:
    its arguments, None where nothing is said."""
    given = {name: value for name, value in needs.items() if value is not None}
    if factory != "auto":
        for name, value in given.items():
            raise InvalidArgument(f"{name} is {value}, but only factory 'auto' takes it")
        return factory, None
    if "rows" not in given:
        raise InvalidArgument("factory is 'auto', which needs rows: how many vectors there will be")
    choice = choose_index(given.pop("rows"), dim, metric, **given)
    return choice.factory, choice.reason
