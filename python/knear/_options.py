"""The options of a search that choose how it is done, never what it answers: one group, behind the
arguments that most callers want."""

import functools
from collections.abc import Mapping
from typing import Any, TypedDict

from . import _arrays, _core


class SearchOptions(TypedDict, total=False):
    """Keywords of knear.knn, self_join, range_search and of an Index's searches by which one who
    measures chooses how a search is done. Left out, knear chooses by its cost model; `plan` of the
    result says what.

    >>> import knear, numpy as np
    >>> x = np.random.default_rng(1).standard_normal((100, 8), dtype=np.float32)
    >>> options: knear.SearchOptions = {"method": "exact", "first_pass": "fp32"}
    >>> found = knear.knn(x[:3], x, k=1, **options)
    >>> found.ids.ravel().tolist(), found.plan["first_pass"]
    ([0, 1, 2], 'fp32')

    method: "exact"; "threshold-heap", exact by thresholds that are the k-th distance to `samples`
        random rows; "partial-reduce", the best few rows of each of many bins, of which the plan
        says the numbers; "auto": exact, or partial-reduce where less recall is asked for and it is
        forecast to be faster.
    samples: of "threshold-heap"; None: 8 k.
    logical_rows: `base` is a random shard of a base of this many rows, and the promised recall is
        for the answer merged from all shards; None: it holds for any shards ("partial-reduce").
    aggregate_to_topk: False: all rows that were kept, plan["kept_per_bin"] of each bin one after
        the other, instead of the k nearest of them ("partial-reduce").
    first_pass: how rows are scored before the few that matter are measured in float64: "auto",
        "integer", "int8", "int16", "fp32", "direct", "prefix" ("l2" and "cosine").
    choices: a dict that overrides what else is chosen. Any of "group" (queries scored side by side:
        1, 4 or 12), "parts" (of the base for the same queries), "columns" and "clusters" (of a
        prefix), "tile" (KiB of codes that many queries are scored against before the next), "guess"
        (False: thresholds for many neighbours are not estimated), "refine" (whether rows that 8
        bits leave are scored again by per-row codes before they are measured).
    """

    method: str
    samples: int | None
    logical_rows: int | None
    aggregate_to_topk: bool
    first_pass: str
    choices: Mapping[str, Any] | None


ALL = frozenset(SearchOptions.__annotations__)
OF_SCANS = frozenset(("first_pass", "choices"))
OF_RANGES = frozenset(("first_pass",))


def checked(call: str, options: Mapping[str, Any], taken: frozenset[str]) -> None:
    """Refuses names that the call does not have, as Python does."""
    for name in options:
        if name not in taken:
            raise TypeError(
                f"{call}() got an unexpected keyword argument {name!r}; beside its own it takes "
                f"{', '.join(sorted(taken))} (knear.SearchOptions)"
            )


def settings(
    options: Mapping[str, Any],
    threads: Any,
    memory: Any,
    device: Any,
    recall: Any = None,
    probes: Any = None,
    widen: Any = False,
    certify: Any = False,
    refine_factor: Any = None,
    ef: Any = None,
    traffic: Any = None,
) -> _core.SearchSettings:
    """How a search is done, as _core takes it."""
    asked = threads, memory, device, recall, probes, widen, certify, refine_factor, ef, traffic
    if options:
        return _made(options, *asked)
    try:
        return _usual(*asked)
    except TypeError:  # one of them cannot be looked up: an error below says which
        return _made({}, *asked)


# Few programs use many kinds of call. `typed`, since 1.0 is equal to 1 and refused.
@functools.lru_cache(maxsize=128, typed=True)
def _usual(*asked: Any) -> _core.SearchSettings:
    return _made({}, *asked)


forget = _usual.cache_clear


def _made(
    options: Mapping[str, Any],
    threads: Any,
    memory: Any,
    device: Any,
    recall: Any,
    probes: Any,
    widen: Any,
    certify: Any,
    refine_factor: Any,
    ef: Any,
    traffic: Any,
) -> _core.SearchSettings:
    return _core.SearchSettings(
        _arrays.integer("threads", threads),
        _arrays.size("memory", memory),
        _arrays.text("device", device),
        _arrays.text("first_pass", options.get("first_pass", "auto")),
        _arrays.choices(options.get("choices")),
        _arrays.text("method", options.get("method", "auto")),
        None if recall is None else _arrays.number("recall", recall),
        _arrays.count("samples", options.get("samples")),
        _arrays.count("logical_rows", options.get("logical_rows")),
        bool(options.get("aggregate_to_topk", True)),
        _arrays.count("probes", probes),
        bool(widen),
        bool(certify),
        _arrays.count("refine_factor", refine_factor),
        _arrays.count("ef", ef),
        "" if traffic is None else _arrays.text("traffic", traffic),
    )
