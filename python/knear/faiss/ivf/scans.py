"""Searches of given lists, one list after the other, each with the queries that look at it.

For what knear's own index of lists does not do: lists of another quantizer or given by hand, a
limit of codes (max_codes), an end after lists without results."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._search import knn, range_search
from ..base import METRIC_L2, best_of, metric_name, no_neighbors, padded, ranges, threads
from ..interrupts import InterruptCallback, interruptions
from .rows import Listed
from .stats import indexIVF_stats

_AT_ONCE = 1 << 22  # neighbours of probed lists that are merged at a time


def nearest_in(
    index: Listed,
    x: NDArray[np.float32],
    k: int,
    lists: NDArray[np.int64],
    allowed: Any,
    most: int,
    whole: bool,
) -> tuple[Any, Any]:
    """(distances, row numbers of the store) of the k nearest rows in these lists of each query
    [n x p]; `most` and `whole` are those of _queries_of_lists()."""
    n, probes = lists.shape
    out = no_neighbors((n, k), index.metric_type)
    block = max(1, _AT_ONCE // (probes * k))
    for start in range(0, n, block):
        part = lists[start : start + block]
        distances, ids = no_neighbors((len(part), probes, k), index.metric_type)
        for rows, queries, probe in _queries_of_lists(index, part, allowed, most, whole):
            asked = x[start + queries]
            found = knn(
                asked,
                index._decode_rows(rows),
                k,
                metric_name(index.metric_type),
                threads=threads(),
                progress=interruptions(),
            )
            each = np.where(found.ids < 0, -1, rows[found.ids])
            distances[queries, probe] = padded(found.distances, each, index.metric_type)[0]
            ids[queries, probe] = each
        distances, ids = distances.reshape(len(part), -1), ids.reshape(len(part), -1)
        best = best_of(distances, ids, k, index.metric_type)
        for each, values in zip(out, best, strict=True):
            each[start : start + block] = values
    return out


def within_lists(
    index: Listed, x: Any, radius: float, lists: Any, allowed: Any, empties: int
) -> Any:
    """(lims, distances, ids) of the rows in these lists [n x p] within the radius of each query;
    none of those after `empties` lists, one after the other, without any (0: of all)."""
    asked, probed = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    distances, found = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
    name = metric_name(index.metric_type)
    for rows, queries, probe in _queries_of_lists(index, lists, allowed):
        begin, near, which = range_search(
            x[queries],
            index._decode_rows(rows),
            radius,
            name,
            threads=threads(),
            progress=interruptions(),
        )
        asked.append(np.repeat(queries, np.diff(begin)))
        probed.append(np.repeat(probe, np.diff(begin)))
        distances.append(near)
        found.append(rows[which])
    hits = [np.concatenate(each) for each in (asked, distances, found)]
    if empties:
        inside = hits[1] < radius if index.metric_type == METRIC_L2 else hits[1] > radius
        any_in = np.zeros(lists.shape, np.bool_)
        any_in[hits[0][inside], np.concatenate(probed)[inside]] = True
        last = _last_probes(any_in, empties)
        kept = np.concatenate(probed) <= last[hits[0]]
        hits = [each[kept] for each in hits]
    lims, near, places = ranges(len(x), *hits, radius, index.metric_type)
    return lims, near, index._ids_of(places)


def _queries_of_lists(
    index: Listed, lists: NDArray[np.int64], allowed: Any, most: int = 0, whole: bool = False
) -> Any:
    """Each probed list that holds anything: (its rows, the queries, which probe of theirs).
    With `most`, a query looks at so many codes of its first list, and at as many less those
    that were allowed of each that follows; `whole`: at all of each list that it comes to."""
    order, begin = index._store.by_list(index.nlist)
    seen = np.append(np.diff(begin), 0)[lists]  # of list -1 too
    if most:
        counts = np.ones(len(order), np.bool_) if allowed is None else allowed[order]
        before = np.append(0, np.cumsum(counts))
        room = np.full(len(lists), most)
        for start, of_probe in zip(begin[lists].T, seen.T, strict=True):
            of_probe[:] = np.where(room > 0, of_probe, 0) if whole else np.minimum(of_probe, room)
            room -= before[start + of_probe] - before[start]
    seen = seen.ravel()
    probed = np.argsort(lists, axis=None, kind="stable")
    numbers = lists.ravel()[probed]
    for number in np.unique(numbers[numbers >= 0]):
        InterruptCallback.check()
        rows = order[begin[number] : begin[number + 1]]
        first, last = np.searchsorted(numbers, [number, number + 1])
        places = probed[first:last]
        for count in np.unique(seen[places]):
            some = rows[:count]
            some = some if allowed is None else some[allowed[some]]
            if len(some):
                who = places[seen[places] == count]
                indexIVF_stats.ndis += len(some) * len(who)
                yield some, *np.divmod(who, lists.shape[1])


def _last_probes(found: NDArray[np.bool_], empties: int) -> NDArray[np.int64]:
    """The probe [n] at which a query ends, so many after another of which have found nothing."""
    n, probes = found.shape
    last, row = np.full(n, probes), np.zeros(n, np.int64)
    for probe in range(probes):
        row = np.where(found[:, probe], 0, row + 1)
        last[(row == empties) & (last == probes)] = probe
    return last
