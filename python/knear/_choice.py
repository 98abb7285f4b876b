"""Which index to make: knear.choose_index."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _core
from ._progress import Progress, reporting
from .errors import InvalidArgument


class FormForecast(NamedTuple):
    """What one form of index is expected to take, by what was counted on a sample.

    >>> import knear, numpy as np
    >>> x = np.random.default_rng(1).standard_normal((3000, 16), dtype=np.float32)
    >>> choice = knear.choose_index(100_000, 16, recall=0.9, batch=1, sample=x)
    >>> best = choice.forecasts[0]
    >>> isinstance(best, knear.FormForecast), best.seconds > 0, best.memory_bytes > 0
    (True, True, True)

    factory: the form.
    seconds: of a query, by one thread.
    scored_rows: of a query, among all vectors.
    memory_bytes: of the index.
    """

    factory: str
    seconds: float
    scored_rows: float
    memory_bytes: int


class _Choice(NamedTuple):
    factory: str
    reason: str
    memory_bytes: int


class IndexChoice(_Choice):
    """What knear.choose_index says.

    >>> import knear
    >>> choice = knear.choose_index(1000, 96)
    >>> index = knear.Index(choice.factory, dim=96)
    >>> choice.factory, choice.memory_bytes > 4 * 96 * 1000
    ('Flat', True)

    It is a tuple of `factory`, `reason` and `memory_bytes`. Beside these it has
    `guessed`: whether a sample of the vectors could change the choice, and none was measured; and
    `forecasts`: the forms that were measured on a sample, as FormForecast, the fastest first.
    """

    guessed: bool = False
    forecasts: tuple[FormForecast, ...] = ()


def choose_index(
    rows: int,
    dim: int,
    metric: str = "l2",
    *,
    memory: int | str | None = None,
    recall: float = 0.95,
    batch: int = 1000,
    dtype: Any = np.float32,
    sample: ArrayLike | None = None,
    threads: int = 0,
    progress: Progress = None,
) -> IndexChoice:
    """The index that suits `rows` vectors of `dim` columns, as a factory string, with the reason.

    >>> import knear
    >>> knear.choose_index(1_000_000, 96, memory="200M", recall=0.9).factory
    'IVF2048,PQ48x4,Refine(SQ8)'

    Without a sample it is a guess by rules: of the forms that fit the memory the one that loses
    least, in inverted lists where these are expected to be faster; for a few queries a call of wide
    floats compared by "ip" or "cosine", as embeddings of text are, a graph.

    >>> import numpy as np
    >>> x = np.random.default_rng(1).standard_normal((5000, 32), dtype=np.float32)
    >>> choice = knear.choose_index(200_000, 32, batch=1, sample=x)
    >>> choice.guessed, len(choice.forecasts) > 1
    (False, True)

    With a sample flat search, lists and a graph are built on a part of it, which counts the vectors
    that a query is compared with for the recall. The counts are extrapolated to `rows`, and the
    model of costs makes seconds of them. The same sample gives the same choice on the same kind of
    machine, whatever else that does.

    metric: "l2", "ip" or "cosine", of the searches to come. Vectors of uint8 and int8 take more
        memory by cosine, since they are kept beside the form in which they are searched.
    memory: what the index may take, in bytes or as "200M"; None for as much as it likes.
    recall: of the 10 nearest, in the searches to come; 1 has them all found.
    batch: how many queries are searched for in a call.
    dtype: of the vectors; uint8 and int8 are kept as bytes. With a sample it is that of the sample.
    sample: vectors like those to come [s x dim], of which a fortieth of `rows`, from 2,000 to
        60,000, are measured; fewer than 2,000 are too few, and the choice stays a guess. Where the
        memory has no room for vectors, codes are measured; it stays a guess where none of these
        reaches the recall within the memory.
    threads, progress: of measuring, as those of knear.knn.

    Raises InvalidArgument for numbers out of range, and where nothing fits the memory, with what
    would be enough; ShapeMismatch for a sample of another number of columns.
    """
    vectors, kind = None, _arrays.element_type("dtype", dtype)
    if sample is not None:
        vectors, kind = _arrays.matrix("sample", sample)
    return chosen(rows, dim, metric, vectors, kind, memory, recall, batch, threads, progress)


def chosen(
    rows: int, dim: int, metric: str, vectors: NDArray[Any] | None, kind: str,
    memory: int | str | None = None, recall: float = 0.95, batch: int = 1000,
    threads: int = 0, progress: Progress = None,
) -> IndexChoice:  # fmt: skip
    """As choose_index(), of a sample that _arrays.matrix() made `vectors` and `kind` of."""
    *fields, guessed, forecasts = reporting(
        progress,
        _core.choose_index,
        _arrays.integer("rows", rows),
        _arrays.integer("dim", dim),
        _arrays.text("metric", metric),
        kind,
        _arrays.size("memory", memory),
        _arrays.number("recall", recall),
        _arrays.integer("batch", batch),
        vectors,
        _arrays.integer("threads", threads),
    )
    choice = IndexChoice(*fields)
    choice.guessed = guessed
    choice.forecasts = tuple(FormForecast(*each) for each in forecasts)
    return choice


def choice_of(
    factory: str, dim: int, metric: str, needs: dict[str, Any]
) -> tuple[str, IndexChoice | None]:
    """`factory` and None, or if that is "auto" what choose_index() chooses without a sample.
    `needs` are its arguments, None where nothing is said."""
    given = {name: value for name, value in needs.items() if value is not None}
    if factory != "auto":
        for name, value in given.items():
            raise InvalidArgument(f"{name} is {value}, but only factory 'auto' takes it")
        return factory, None
    if "rows" not in given:
        raise InvalidArgument("factory is 'auto', which needs rows: how many vectors there will be")
    choice = choose_index(given.pop("rows"), dim, metric, **given)
    return choice.factory, choice
