"""How one search is done: SearchParameters*."""

from __future__ import annotations

import copy
from typing import Any

from .fields import of_type
from .missing import Lacking
from .selectors import IDSelector, IDSelectorTranslated
from .vectors import Ownership


class SearchParameters(Lacking):
    """`sel` leaves ids out. The classes below add what their indexes have; unknown names are
    refused."""

    this, thisown = Ownership(), True
    _sel: IDSelector | None = None

    @property
    def sel(self) -> IDSelector | None:
        return self._sel

    @sel.setter
    def sel(self, selector: IDSelector | None) -> None:
        if not (selector is None or isinstance(selector, IDSelector)):
            raise TypeError(f"sel must be an IDSelector, but is {type(selector).__name__}")
        self._sel = selector

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, of_type(name, getattr(type(self), name, None), value))

    def __init__(self, **given: Any) -> None:
        for name, value in given.items():
            assert hasattr(type(self), name), f"{type(self).__name__} has no parameter {name!r}"
            setattr(self, name, value)


class SearchParametersIVF(SearchParameters):
    nprobe: int = 1
    max_codes: int = 0
    max_lists_num: int = 0
    ensure_topk_full: bool = False
    max_empty_result_buckets: int = 0
    quantizer_params: SearchParameters | None = None
    inverted_list_context: Any = None


IVFSearchParameters = SearchParametersIVF


class IVFPQSearchParameters(SearchParametersIVF):
    """The two below prune by Hamming distances in FAISS; here every code is measured."""

    scan_table_threshold: int = 0
    polysemous_ht: int = 0


class SearchParametersPQ(SearchParameters):
    search_type: int = 0
    polysemous_ht: int = 0


class SearchParametersPreTransform(SearchParameters):
    index_params: SearchParameters | None = None


class IndexRefineSearchParameters(SearchParameters):
    k_factor: float = 1.0
    base_index_params: SearchParameters | None = None


def translated(params: Any, id_map: Any, twice: bool = False) -> Any:
    """Parameters for an index whose vector i has the id id_map[i] in the index around it, of which
    a selector is, unless it is translated already and may not be twice. An IDSelector further
    inside (of a base index, say) is translated, too."""
    if params is None:
        return None
    out = copy.copy(params)
    if out.sel is not None and (twice or not isinstance(out.sel, IDSelectorTranslated)):
        out.sel = IDSelectorTranslated(id_map, out.sel)
    for name in ("index_params", "base_index_params"):
        if getattr(out, name, None) is not None:
            setattr(out, name, translated(getattr(out, name), id_map, twice))
    return out
