"""Strings of index_factory: how long codes of one are, and which one an index has been made by."""

from __future__ import annotations

import re
from typing import Any

import knear.faiss as faiss


def get_code_size(d: int, indexkey: str) -> int:
    """Bytes of a vector of d columns in an index of this string: of its code, and of the one that
    refines it; numbers of lists and ids are not counted, but the neighbours of a graph are."""
    if found := re.fullmatch(r"HNSW(\d+)(?:,(.*))?", indexkey):
        return get_code_size(d, found[2] or "Flat") + 8 * int(found[1])
    indexkey = re.sub(r"^(IVF\d+)_HNSW\d+,", r"\1,", indexkey)
    return _code_size(faiss.index_factory(d, indexkey))


def _code_size(index: Any) -> int:
    if isinstance(index, faiss.IndexRefine):
        return _code_size(index.base_index) + _code_size(index.refine_index)
    if isinstance(index, (faiss.IndexPreTransform, faiss.IndexIDMap)):
        return _code_size(index.index)
    return index.code_size


_SCALARS = {
    faiss.ScalarQuantizer.QT_8bit: "SQ8",
    faiss.ScalarQuantizer.QT_4bit: "SQ4",
    faiss.ScalarQuantizer.QT_8bit_uniform: "SQ8u",  # index_factory has no string for this one
    faiss.ScalarQuantizer.QT_4bit_uniform: "SQ4u",  # nor for this
    faiss.ScalarQuantizer.QT_6bit: "SQ6",
    faiss.ScalarQuantizer.QT_fp16: "SQfp16",
    faiss.ScalarQuantizer.QT_bf16: "SQbf16",
    faiss.ScalarQuantizer.QT_8bit_direct: "SQ8_direct",
    faiss.ScalarQuantizer.QT_8bit_direct_signed: "SQ8_direct_signed",
}


def _codes(index: Any) -> str:
    """The part of the string that says how vectors are kept."""
    if isinstance(index, (faiss.IndexFlat, faiss.IndexIVFFlat)):
        return "Flat"
    if hasattr(index, "sq"):
        return _SCALARS[index.sq.qtype]
    return f"PQ{index.pq.M}x{index.pq.nbits}"


def _transform(one: Any) -> str:
    if isinstance(one, faiss.OPQMatrix):
        return f"OPQ{one.M}_{one.d_out}"
    if isinstance(one, faiss.PCAMatrix):
        white = "W" if one.eigen_power else ""
        return f"PCA{white}{'R' if one.random_rotation else ''}{one.d_out}"
    if isinstance(one, faiss.RandomRotationMatrix):
        return f"RR{one.d_out}"
    if isinstance(one, faiss.NormalizationTransform):
        return "L2norm"
    raise NotImplementedError(f"index_factory has no string for {type(one).__name__}")


def reverse_index_factory(index: Any) -> str:
    """A string by which index_factory makes such an index."""
    if isinstance(index, faiss.IndexPreTransform):
        before = [_transform(one) for one in index.chain]
        return ",".join([*before, reverse_index_factory(index.index)])
    if isinstance(index, faiss.IndexRefine):
        base, fine = map(reverse_index_factory, (index.base_index, index.refine_index))
        return f"{base},Refine({fine})"
    if isinstance(index, faiss.IndexIDMap):
        name = "IDMap2" if isinstance(index, faiss.IndexIDMap2) else "IDMap"
        return f"{name},{reverse_index_factory(index.index)}"
    if isinstance(index, faiss.IndexIVF):
        coarse = index.quantizer
        flat = isinstance(coarse, faiss.IndexFlat)
        inner = "" if flat else f"({reverse_index_factory(coarse)})"
        return f"IVF{index.nlist}{inner},{_codes(index)}"
    return _codes(index)
