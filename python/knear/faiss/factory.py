"""index_factory: an index by a string, in FAISS's grammar."""

from __future__ import annotations

import re
from typing import Any

from .base import METRIC_INNER_PRODUCT, METRIC_L2, Index, refuse
from .codes import IndexPQ, IndexScalarQuantizer
from .fields import whole
from .flat import IndexFlat, IndexFlatIP, IndexFlatL2
from .ivf import IndexIVFFlat, IndexIVFPQ, IndexIVFScalarQuantizer
from .missing import LISTS
from .quantizers import ScalarQuantizer
from .transforms import (
    NormalizationTransform,
    OPQMatrix,
    PCAMatrix,
    RandomRotationMatrix,
    RemapDimensionsTransform,
    VectorTransform,
)
from .wrappers import IndexIDMap, IndexIDMap2, IndexPreTransform, IndexRefine, IndexRefineFlat

_SCALARS = {
    "SQ8": ScalarQuantizer.QT_8bit,
    "SQ6": ScalarQuantizer.QT_6bit,
    "SQ4": ScalarQuantizer.QT_4bit,
    "SQfp16": ScalarQuantizer.QT_fp16,
    "SQbf16": ScalarQuantizer.QT_bf16,
    "SQ8_direct": ScalarQuantizer.QT_8bit_direct,
    "SQ8_direct_signed": ScalarQuantizer.QT_8bit_direct_signed,
}

# What FAISS's grammar has beyond ours, and knear's way.
_ELSEWHERE = {
    r"HNSW|.*_HNSW|NSG|.*_NSG|NNDescent": "graphs of FAISS are not there; "
    "knear.Index('IVF1024,Flat') with search(recall=0.95) reaches the recall that is asked for, "
    "and knear.Index('Graph32') is a graph of knear's own",
    r"IVF\d+_SOAR": "vectors in two lists are of knear.Index: "
    "knear.Index('IVF1024_SOAR,Flat') with search(recall=0.95)",
    r"Graph\d+": "graphs of knear are of knear.Index: "
    "knear.Index('Graph32') with search(recall=0.95)",
    r"PQ\d+x4fs": "fast-scan codes are PQ32x4, which knear scans alike",
    r"PQ\d+\+\d+": "two levels of codes are not there; ',Refine(PQ32)' refines codes by finer ones",
    r"IMI": "multi-indexes are not there; 'IVF65536(IVF256,Flat),...' finds centroids by an index",
    r"ITQ|HR\d*$": "this transform is not there; RR64 and OPQ16_64 rotate, and PCAR64",
    r"FlatDedup": "equal vectors are each kept; Flat finds all of them",
    r"Flat(L2|IP)?Panorama|RefinePanorama": "Flat leaves out what a bound rules out already, with "
    "the same answer",
    r"Index\d*$": "the index of the centroids is named by its own string, as in "
    "'IVF65536(IVF256,Flat),Flat', or is the first argument of IndexIVFFlat",
    r"LSH|RaBitQ|EDEN|.*SH|ZnLattice|RQ|LSQ|PRQ|PLSQ|Residual|MinMax|SQtq|SQ0": "such codes are "
    "not there; knear.Index has PQ, SQ8, SQ4, SQfp16 and SQbf16",
}


def index_factory(
    d: int, description: str, metric: int = METRIC_L2, own_invlists: bool = True
) -> Any:
    """As "IVF1024,Flat", "OPQ16_64,IVF1024,PQ16", "PCA64,SQ8", "IDMap2,Flat", "PQ16,RFlat"."""
    d = whole("d", d)
    if not isinstance(description, str):
        raise TypeError(f"description must be text, but is {description!r}")
    if not own_invlists:
        raise NotImplementedError(LISTS)
    parts = _split(description.strip())
    return _index(d, parts, metric, description)


def _split(description: str) -> list[str]:
    """At the commas outside of parentheses."""
    parts, depth, part = [], 0, ""
    for char in description:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return [*parts, part]


def _index(d: int, parts: list[str], metric: int, whole: str) -> Index:
    if len(parts) > 1:
        for name, kind in (("IDMap2", IndexIDMap2), ("IDMap", IndexIDMap)):
            if parts[0] == name:
                return kind(_index(d, parts[1:], metric, whole))
            if parts[-1] == name:
                return kind(_index(d, parts[:-1], metric, whole))
        if parts[-1] == "RFlat":
            return IndexRefineFlat(_index(d, parts[:-1], metric, whole))
        if found := re.fullmatch(r"Refine\((.*)\)", parts[-1]):
            base = _index(d, parts[:-1], metric, whole)
            return IndexRefine(base, index_factory(d, found[1], metric))
        transform = _transform(d, parts[0])
        if transform is not None:
            inner = _index(transform.d_out, parts[1:], metric, whole)
            if isinstance(inner, IndexPreTransform):
                inner.prepend_transform(transform)
                return inner
            return IndexPreTransform(transform, inner)
    if len(parts) == 1:
        if found := re.fullmatch(r"\((.*)\)", parts[0]):
            return index_factory(d, found[1], metric)
        out = _plain(d, parts[0], metric)
        if out is not None:
            return out
    if len(parts) == 2 and (found := re.fullmatch(r"IVF(\d+)([kM]?)(?:\((.*)\))?", parts[0])):
        lists = int(found[1]) * {"": 1, "k": 1024, "M": 1 << 20}[found[2]]
        coarse = index_factory(d, found[3], metric) if found[3] else _flat(d, metric)
        out = _inverted(coarse, d, lists, parts[1], metric)
        if out is not None:
            if found[3]:
                out.quantizer_trains_alone = 0 if isinstance(coarse, IndexFlat) else 2
            return out
    for part in parts:
        for pattern, way in _ELSEWHERE.items():
            if re.match(pattern, part):
                raise NotImplementedError(f"{part!r} of {whole!r}: {way}")
    return refuse(f"could not parse index string {whole!r}")


def _flat(d: int, metric: int) -> IndexFlat:
    kinds = {METRIC_L2: IndexFlatL2, METRIC_INNER_PRODUCT: IndexFlatIP}
    return kinds[metric](d) if metric in kinds else IndexFlat(d, metric)


def _plain(d: int, part: str, metric: int) -> Index | None:
    if part == "Flat":
        return IndexFlat(d, metric)
    if part in _SCALARS:
        return IndexScalarQuantizer(d, _SCALARS[part], metric)
    if found := re.fullmatch(r"PQ(\d+)(?:x(\d+))?(np)?", part):
        out = IndexPQ(d, int(found[1]), int(found[2] or 8), metric)
        out.do_polysemous_training = not found[3]
        return out
    return None


def _inverted(coarse: Index, d: int, lists: int, part: str, metric: int) -> Any:
    if part == "Flat":
        return IndexIVFFlat(coarse, d, lists, metric)
    if part in _SCALARS:
        return IndexIVFScalarQuantizer(coarse, d, lists, _SCALARS[part], metric)
    if found := re.fullmatch(r"PQ(\d+)(?:x(\d+))?(np)?", part):
        out = IndexIVFPQ(coarse, d, lists, int(found[1]), int(found[2] or 8), metric)
        out.do_polysemous_training = not found[3]
        return out
    return None


def _transform(d: int, part: str) -> VectorTransform | None:
    if found := re.fullmatch(r"PCA(W?)(R?)(\d+)", part):
        return PCAMatrix(d, int(found[3]), -0.5 if found[1] else 0, bool(found[2]))
    if found := re.fullmatch(r"OPQ(\d+)(?:_(\d+))?", part):
        return OPQMatrix(d, int(found[1]), int(found[2] or -1))
    if found := re.fullmatch(r"RR(\d+)?", part):
        return RandomRotationMatrix(d, int(found[1] or d))
    if part in ("L2norm", "L2Norm"):
        return NormalizationTransform(d, 2.0)
    if found := re.fullmatch(r"Pad(\d+)", part):
        return RemapDimensionsTransform(d, max(d, int(found[1])), False)
    return None
