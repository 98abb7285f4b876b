"""Lists of an index whose centroids somebody else has found, or that are put in another order."""

from __future__ import annotations

from typing import Any

import numpy as np

import knear.faiss as faiss

from .inspect_tools import get_invlist_sizes


def add_preassigned(index_ivf: Any, x: Any, a: Any, ids: Any = None) -> None:
    """Adds the rows of `x` [n x d] to the lists `a` [n]."""
    n, d = x.shape
    assert a.shape == (n,), f"there are {a.shape} lists for {n} rows"
    assert d == index_ivf.d, f"there are {d} columns, where {index_ivf.d} are due"
    assert ids is None or ids.shape == (n,), f"there are {np.shape(ids)} ids for {n} rows"
    index_ivf.add_core(n, x, ids, a)


def _inside(index: Any, x: Any) -> tuple[Any, Any]:
    """The lists in an index, and `x` as they get it."""
    if isinstance(index, faiss.IndexPreTransform):
        return index.index, index.apply_chain(x)
    return index, x


def search_preassigned(
    index_ivf: Any, xq: Any, k: int, list_nos: Any, coarse_dis: Any = None
) -> Any:
    """(distances, ids) of a search in the lists list_nos [n x nprobe]. Distances of centroids are
    not needed."""
    index, queries = _inside(index_ivf, xq)
    return index.search_preassigned(queries, k, list_nos, coarse_dis)


def range_search_preassigned(
    index_ivf: Any, x: Any, radius: float, list_nos: Any, coarse_dis: Any = None
) -> Any:
    """(lims, distances, ids) of a range search in these lists."""
    index, queries = _inside(index_ivf, x)
    return index.range_search_preassigned(queries, radius, list_nos, coarse_dis)


def replace_ivf_quantizer(index_ivf: Any, new_quantizer: Any) -> Any:
    """Gives the lists another quantizer, which gets the centroids if it is empty, and returns the
    one before."""
    old = index_ivf.quantizer
    if new_quantizer.ntotal == 0:
        centroids = old.reconstruct_n()
        new_quantizer.train(centroids)
        new_quantizer.add(centroids)
    assert new_quantizer.ntotal == index_ivf.nlist, (
        f"the quantizer has {new_quantizer.ntotal} centroids for {index_ivf.nlist} lists"
    )
    index_ivf.quantizer = new_quantizer
    return old


def permute_invlists(index_ivf: Any, perm: Any) -> None:
    """List perm[i] becomes list i, and so its centroid."""
    assert np.shape(perm) == (index_ivf.nlist,), f"perm is {np.shape(perm)}"
    index_ivf.quantizer.permute_entries(perm)
    index_ivf.invlists.permute_invlists(perm)


def sort_invlists_by_size(index_ivf: Any) -> None:
    """The shortest first."""
    permute_invlists(index_ivf, np.argsort(get_invlist_sizes(index_ivf.invlists)))
