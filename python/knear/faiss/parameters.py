"""How one search is done: SearchParameters*; and ParameterSpace, which sets it by name."""

from __future__ import annotations

from typing import Any

from .fields import of_type
from .selectors import IDSelector
from .vectors import Ownership


class SearchParameters:
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


class ParameterSpace:
    """Parameters of an index by their names: nprobe, max_codes, k_factor, k_factor_rf, ht, verbose,
    and quantizer_... for those of the quantizer of inverted lists."""

    def __init__(self) -> None:
        self.verbose = 1
        self.n_experiments = 500
        self.batchsize = 1 << 30
        self.thread_over_batches = False
        self.min_test_duration = 0.0
        self.parameter_ranges: list[Any] = []

    def initialize(self, index: Any) -> None:
        """Nothing: the ranges are for FAISS's explore(). knear's way is Index.search(recall=)."""

    def set_index_parameters(self, index: Any, description: str) -> None:
        """As "nprobe=16,max_codes=1000"."""
        for one in description.split(","):
            if one.strip():
                name, _, value = one.partition("=")
                if not value:
                    raise RuntimeError(f"no value is given for the parameter {name!r}")
                self.set_index_parameter(index, name.strip(), float(value))

    def set_index_parameter(self, index: Any, name: str, value: float) -> None:
        if not _set(index, name, value):
            raise RuntimeError(
                f"ParameterSpace::set_index_parameter: could not set parameter {name}"
            )

    def explore(self, *args: Any) -> Any:
        raise NotImplementedError(
            "ParameterSpace.explore is not there; knear.Index.search(recall=0.9) chooses the probes"
        )


def _set(index: Any, name: str, value: float) -> bool:
    from .ivf import IndexIVF
    from .wrappers import IndexIDMap, IndexPreTransform, IndexRefine

    if name == "verbose":
        index.verbose = bool(value)
        return True
    if isinstance(index, (IndexIDMap, IndexPreTransform)):
        return _set(index.index, name, value)
    if isinstance(index, IndexRefine):
        if name in ("k_factor", "k_factor_rf"):
            index.k_factor = value
            return True
        return _set(index.base_index, name, value)
    if isinstance(index, IndexIVF) and name.startswith("quantizer_"):
        return _set(index.quantizer, name.removeprefix("quantizer_"), value)
    if name in ("nprobe", "max_codes") and isinstance(index, IndexIVF):
        setattr(index, name, int(value))
        return True
    if name == "ht" and hasattr(index, "polysemous_ht"):
        if value < index.code_size * 8:
            index.polysemous_ht = int(value)
        if hasattr(index, "search_type"):
            index.search_type = index.ST_polysemous if value < index.code_size * 8 else index.ST_PQ
        elif value >= index.code_size * 8:
            index.polysemous_ht = 0
        return True
    return False
