"""Searches of arrays, without an index: knn, self_join, range_search; and select_k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _core, _device, _options, _results
from ._progress import Progress, reporting
from ._results import RangeResult, SearchResult
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import SearchOptions


def knn(
    queries: ArrayLike,
    base: ArrayLike,
    k: int,
    metric: str = "l2",
    *,
    filter: ArrayLike | None = None,
    threads: int = 0,
    recall: float = 1.0,
    memory: int | str | None = None,
    device: str | None = None,
    out: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None,
    progress: Progress = None,
    report: dict[str, Any] | None = None,
    **options: Unpack[SearchOptions],
) -> SearchResult:
    """The k nearest rows of `base` [n x d] for each row of `queries` [q x d]: (distances, ids).

    >>> import knear, numpy as np
    >>> base = np.array([[0, 0], [3, 4], [6, 8]], dtype=np.float32)
    >>> distances, ids = knear.knn([[0, 0]], base, k=2)
    >>> ids.tolist(), distances.tolist()
    ([[0, 1]], [[0.0, 25.0]])

    Both results are [q x k], nearest first, or [k] where `queries` is one vector [d]. The element
    types may differ. The result also has `certified`, `promised_recall`, `expected_recall` and
    `plan` (knear.SearchResult).

    metric: "l2", squared distances; "ip", inner products, largest first; "cosine", 1 - cos; "l1",
        sums of absolute differences; "hamming", how many bits differ, of rows of uint8 that hold
        eight bits a byte, as numpy.packbits() makes them. The last two are measured for every pair
        on the processor: of the options they have "direct" and "exact".
    filter: the rows that may be found, as ids in any order or as one bool per row; None for all.
        The answer is that of these rows alone, padded with -1 where they are fewer than k.
    threads: how many to use; 0 for all that the process may use.
    recall: the least mean share of the k nearest that is found, in (0, 1]; below 1 the search may
        be a partial-reduce. The promise holds for any queries and any order of `base` that was not
        made against knear's own hash of row numbers.
    memory: what the search may take beside its arguments, in bytes or as "512M"; None for no limit.
    device: where the rows are scanned: "cpu", or "cuda" and "cuda:N" for a GPU, where knear was
        built with CUDA; "cuda:0,1,2,3" divides the queries between several; "auto" is the first GPU
        or "cpu", whichever is predicted to be faster (the plan says which it was). The answer is
        the same. None: where the arrays are.
    out: (distances, ids), NumPy arrays [q x k] of float32 and int64 that take the answer.
    progress: a function of the stage and of the share done, which is called now and then and stops
        the work by raising; True draws a bar with tqdm.
    report: a dict that is emptied and filled with the `plan` of the result.
    options: how it is done, in other words of knear.SearchOptions: method, samples, logical_rows,
        aggregate_to_topk, first_pass, choices.

    Both may be in the memory of one GPU (help(knear) says how), of float64, float32, float16,
    bfloat16, uint8 or int8, C-contiguous. The base is not copied and nothing is converted: another
    type or layout, or one of the two elsewhere, is an error. The results are arrays there.
    `device` is None, "cuda" or that GPU's own name, `method` "auto" or "exact", `out` None.

    Raises ShapeMismatch if the numbers of columns differ; InvalidArgument for k < 1 and for a NaN
    or infinity, naming the row; MemoryBudgetError; DeviceUnavailable; TypeError for an option that
    there is not.
    """
    if options:
        _options.checked("knn", options, _options.ALL)
    k = _arrays.integer("k", k)
    report = _arrays.report(report)
    on_gpu, one = _device.on_gpu(queries, base), False
    call: tuple[Any, ...]  # a function of _core and its arrays
    room: tuple[Any, ...] = ()
    if on_gpu:
        _refuse_out(out)
        gpu_queries, gpu_base = _device.matrix("queries", queries), _device.matrix("base", base)
        number = _device.same_device(gpu_queries, gpu_base)
        call = _core.knn_on_device, gpu_queries[:4], gpu_base[:4], number
        asked, rows = gpu_queries.rows, gpu_base.rows
        device = _device.asked(device, number)
    else:
        q, q_type, one = _arrays.row_or_matrix("queries", queries)
        b, b_type = _arrays.matrix("base", base)
        call = _core.knn, q, q_type, b, b_type
        asked, rows = len(q), len(b)
        device = _device.of_queries(device, None)
        out = _results.rows_of_one(out, k) if one else out
        room = (_results.room(out, asked, k, options),)
    *found, about = reporting(
        progress,
        *call,
        k,
        _arrays.text("metric", metric),
        _options.settings(options, threads, memory, device, recall),
        *_arrays.filter_of(filter, rows)[:2],
        *room,
    )
    if on_gpu:
        shape = asked, k
        found = _device.answers(queries, found, (shape, np.float32), (shape, np.int64))
    else:
        found = _results.into(out, found)
        if one:
            found = [each[0] for each in found]
    return _results.searched(SearchResult, found, about, report)


def self_join(
    base: ArrayLike,
    k: int,
    metric: str = "l2",
    *,
    filter: ArrayLike | None = None,
    threads: int = 0,
    memory: int | str | None = None,
    device: str | None = None,
    out: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None,
    progress: Progress = None,
    report: dict[str, Any] | None = None,
    **options: Unpack[SearchOptions],
) -> SearchResult:
    """The k nearest other rows of each row of `base` [n x d]: (distances, ids), both [n x k].

    >>> import knear, numpy as np
    >>> knear.self_join(np.array([[0.0], [1.0], [3.0]]), k=1).ids.tolist()
    [[1], [0], [1]]

    Row i is what knn() would give for row i, without i itself; copies of a row are rows like any
    other. Each pair is scored once, for both rows, where that is faster.
    Arguments and errors are those of knn(); of the options it has first_pass and choices.

    On a GPU it is a search for every row. `base` may be in its memory, as that of knn(): it is not
    moved, and the processor gets a copy as the queries.

    metric, filter, threads, device, out, progress, report: as those of knn().
    """
    if options:
        _options.checked("self_join", options, _options.OF_SCANS)
    k = _arrays.integer("k", k)
    report = _arrays.report(report)
    on_gpu = _device.is_on_gpu("base", base)
    call: tuple[Any, ...]
    room: tuple[Any, ...] = ()
    if on_gpu:
        _refuse_out(out)
        gpu_base = _device.matrix("base", base)
        call = _core.self_join_on_device, gpu_base[:4], gpu_base.number
        rows, device = gpu_base.rows, _device.asked(device, gpu_base.number)
    else:
        b, b_type = _arrays.matrix("base", base)
        call = _core.self_join, b, b_type
        rows, device = len(b), _device.of_queries(device, None)
        room = (_results.room(out, rows, k),)
    *found, about = reporting(
        progress,
        *call,
        k,
        _arrays.text("metric", metric),
        _options.settings(options, threads, memory, device),
        *_arrays.filter_of(filter, rows)[:2],
        *room,
    )
    if on_gpu:
        shape = rows, k
        found = _device.answers(base, found, (shape, np.float32), (shape, np.int64))
    else:
        found = _results.into(out, found)
    return _results.searched(SearchResult, found, about, report)


def range_search(
    queries: ArrayLike,
    base: ArrayLike,
    radius: float,
    metric: str = "l2",
    *,
    filter: ArrayLike | None = None,
    threads: int = 0,
    memory: int | str | None = None,
    device: str | None = None,
    progress: Progress = None,
    report: dict[str, Any] | None = None,
    **options: Unpack[SearchOptions],
) -> RangeResult:
    """All rows of `base` within `radius` of each row of `queries`: (begin, distances, ids).

    >>> import knear, numpy as np
    >>> base = np.array([[0.0], [1.0], [3.0]])
    >>> begin, distances, ids = knear.range_search([[0.0], [9.0]], base, radius=1)
    >>> begin.tolist(), distances.tolist(), ids.tolist()
    ([0, 2, 2], [0.0, 1.0], [0, 1])

    These have a distance of at most `radius`, of squares for "l2", or a product of at least
    `radius` for "ip", compared in float64. Those of query i stand at begin[i] : begin[i + 1]
    of the other two, nearest first; one vector [d] is taken as one query. Arguments and errors are
    those of knear.knn; of the options it has first_pass.

    Both may be in the memory of one GPU, as those of knear.knn. The results pass through the
    processor's memory and are arrays on that GPU.

    metric, filter, threads, device, progress, report: as those of knn().
    """
    if options:
        _options.checked("range_search", options, _options.OF_RANGES)
    report = _arrays.report(report)
    call: tuple[Any, ...]
    number = None
    if _device.on_gpu(queries, base):
        gpu_queries, gpu_base = _device.matrix("queries", queries), _device.matrix("base", base)
        number = _device.same_device(gpu_queries, gpu_base)
        call = _core.range_search_on_device, gpu_queries[:4], gpu_base[:4], number
        rows, device = gpu_base.rows, _device.asked(device, number)
    else:
        q, q_type, _ = _arrays.row_or_matrix("queries", queries)
        b, b_type = _arrays.matrix("base", base)
        call = _core.range_search, q, q_type, b, b_type
        rows, device = len(b), _device.of_queries(device, None)
    *found, about = reporting(
        progress,
        *call,
        _arrays.number("radius", radius),
        _arrays.text("metric", metric),
        _options.settings(options, threads, memory, device),
        *_arrays.filter_of(filter, rows)[:2],
    )
    return _results.searched(RangeResult, _device.sent(queries, number, found), about, report)


def _refuse_out(out: Any) -> None:
    if out is not None:
        raise InvalidArgument("out is given, but the answer is on a GPU, where it is a new array")


def select_k(
    x: ArrayLike,
    k: int,
    *,
    largest: bool = False,
    sorted: bool = True,
    lengths: ArrayLike | None = None,
    threads: int = 0,
    method: str = "auto",
    out: tuple[NDArray[Any], NDArray[np.int64]] | None = None,
    progress: Progress = None,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The k smallest, or largest, of each row of `x` [n x m]: (values, indices), both [n x k].

    >>> import knear, numpy as np
    >>> values, indices = knear.select_k(np.array([[5.0, 1.0, 3.0]]), k=2)
    >>> values.tolist(), indices.tolist()
    ([[1.0, 3.0]], [[1, 2]])

    Values are float64 where `x` is, else float32. A one-dimensional `x` is one row, and the results
    are [k]. A column of vectors of pandas or Arrow is a matrix, one of numbers a row. Of equal
    values the one further to the left comes first; NaN is never kept; infinities are values like
    others. Places beyond what a row has hold the index -1 and +inf (-inf if the largest are
    wanted). The same bits for any number of threads, any method and any machine.

    sorted: best first; False: by ascending index, which is faster for large k.
    lengths: how many values of each row count, from its beginning; None for all.
    method: "auto", by k and m; or a method, with the same answer: "threshold" (a threshold from a
        sample, partition of what passes it), "partition"; and for comparison "list", "radix",
        "threshold-heap", "bitonic", and "warp-select", which is emulated and very slow. float64 is
        selected from in one way, "auto", at a part of the speed of float32.
    out: (values, indices), NumPy arrays of these types and shapes that take the answer.
    progress: as of knear.knn.

    `x` of float32 may be in the memory of a GPU, where it is selected from without a copy: each row
    contiguous, whatever the distance between rows. The results are arrays there. Other types are
    refused, as are `out`, and `threads` and `method` other than 0 and "auto"; nothing is told to
    `progress`.

    Raises InvalidArgument for k < 1 and for a length beyond the row; ShapeMismatch if there are
    more or fewer lengths than rows.
    """
    if _device.is_on_gpu("x", x):
        _refuse_out(out)
        rows, one = _device.rows_to_select_from("x", x)
        _device.refuse_words(rows.number, threads=(threads, 0), method=(method, "auto"))
        k = _arrays.integer("k", k)
        found = _core.select_on_device(
            (rows.address, rows.rows, rows.cols, rows.stride),
            rows.number,
            k,
            bool(largest),
            bool(sorted),
            None if lengths is None else _arrays.ids_of("lengths", lengths),
            one,
        )
        shape = (k,) if one else (rows.rows, k)
        return _device.answers(x, found, (shape, np.float32), (shape, np.int64))
    rows_of_x, kind, one = _arrays.row_or_matrix("x", x)
    k = _arrays.integer("k", k)
    _results.check_pair(
        out,
        (k,) if one else (len(rows_of_x), k),
        values=np.float64 if kind == "f64" else np.float32,
        indices=np.int64,
    )
    values, indices = reporting(
        progress,
        _core.select_k,
        rows_of_x,
        kind,
        k,
        bool(largest),
        bool(sorted),
        None if lengths is None else _arrays.ids_of("lengths", lengths),
        _arrays.integer("threads", threads),
        _arrays.text("method", method),
    )
    return _results.into(out, (values[0], indices[0]) if one else (values, indices))
