"""Names of FAISS that knear.faiss has not: using one says what knear has instead."""

from __future__ import annotations

import re
from typing import Any

_GRAPHS = "graphs are not there; knear.Index('IVF1024,Flat') with search(recall=0.95) finds as many"
_CODES = "such codes are not there; knear.Index has PQ, SQ8, SQ4, SQfp16 and SQbf16"
_SCANS = "PQ codes of 4 bits are scanned fast by IndexPQ and IndexIVFPQ with nbits=4 already"
_BINARY = "binary vectors are not there; knear.knn takes 0 and 1 as uint8, whose l2 counts bits"
_GPU = "GPUs are not here; knear.knn(..., device='cuda') and arrays on a GPU go to knear itself"
_SHARDS = "shards are not there yet; one index answers with all cores"
LISTS = "lists of one's own are not there; knear.Index.save() and load() map an index from disk"
_TWO = "two levels of codes are not there; IndexRefine measures codes again by finer ones"
_NOTHING = "knear has nothing like it"

_WAYS = {
    _GRAPHS: "IndexHNSW IndexHNSWFlat IndexHNSWPQ IndexHNSWSQ IndexHNSW2Level IndexHNSWCagra "
    "IndexHNSWFlatPanorama IndexHNSWRaBitQ IndexNSG IndexNSGFlat IndexNSGPQ IndexNSGSQ "
    "IndexNNDescent IndexNNDescentFlat HNSW NSG NNDescent SearchParametersHNSW "
    "SearchParametersResidualCoarseQuantizer",
    _CODES: "IndexLSH IndexRaBitQ IndexRaBitQFastScan IndexIVFRaBitQ IndexIVFRaBitQFastScan "
    "RaBitQuantizer RaBitQSearchParameters IVFRaBitQSearchParameters IndexEDEN IndexIVFEDEN "
    "IndexLattice ZnSphereCodec IndexIVFSpectralHash IndexAdditiveQuantizer "
    "IndexResidualQuantizer IndexLocalSearchQuantizer IndexProductResidualQuantizer "
    "IndexProductLocalSearchQuantizer IndexIVFAdditiveQuantizer IndexIVFResidualQuantizer "
    "IndexIVFLocalSearchQuantizer IndexIVFProductResidualQuantizer "
    "IndexIVFProductLocalSearchQuantizer AdditiveQuantizer ResidualQuantizer LocalSearchQuantizer "
    "ProductResidualQuantizer ProductLocalSearchQuantizer ProductAdditiveQuantizer "
    "ResidualCoarseQuantizer LocalSearchCoarseQuantizer AdditiveCoarseQuantizer IndexResidual "
    "IndexRowwiseMinMax IndexRowwiseMinMaxFP16 IndexNeuralNetCodec IndexQINCo QINCo "
    "ITQMatrix ITQTransform HadamardRotation",
    _SCANS: "IndexFastScan IndexPQFastScan IndexIVFPQFastScan IndexIVFFastScan "
    "IndexAdditiveQuantizerFastScan IndexResidualQuantizerFastScan "
    "IndexLocalSearchQuantizerFastScan IndexProductResidualQuantizerFastScan "
    "IndexProductLocalSearchQuantizerFastScan IndexIVFAdditiveQuantizerFastScan "
    "IndexIVFResidualQuantizerFastScan IndexIVFLocalSearchQuantizerFastScan "
    "IndexIVFProductResidualQuantizerFastScan IndexIVFProductLocalSearchQuantizerFastScan",
    _BINARY: "index_binary_factory write_index_binary read_index_binary serialize_index_binary "
    "deserialize_index_binary knn_hamming pack_bitstrings unpack_bitstrings",
    _GPU: "StandardGpuResources index_cpu_to_gpu index_gpu_to_cpu index_cpu_to_all_gpus "
    "index_cpu_to_gpus_list index_cpu_to_gpu_multiple index_cpu_to_gpu_multiple_py knn_gpu "
    "pairwise_distance_gpu bfKnn",
    _SHARDS: "IndexShards IndexShardsIVF IndexReplicas IndexProxy IndexSplitVectors",
    LISTS: "OnDiskInvertedLists BlockInvertedLists HStackInvertedLists VStackInvertedLists "
    "SliceInvertedLists MaskedInvertedLists StopWordsInvertedLists CappedInvertedLists "
    "ConcatenatedInvertedLists ReadOnlyInvertedLists read_InvertedLists write_InvertedLists",
    _TWO: "Index2Layer IndexIVFPQR MultiIndexQuantizer MultiIndexQuantizer2 "
    "IndexIVFIndependentQuantizer",
    _NOTHING: "IndexFlat1D IndexFlatPanorama IndexFlatL2Panorama IndexFlatIPPanorama "
    "IndexIVFFlatPanorama IndexRefinePanorama IndexIVFFlatDedup IndexRandom "
    "OperatingPoints OneRecallAtRCriterion IntersectionCriterion "
    "ProgressiveDimClustering SuperKMeans SuperKmeans Clustering1D kmeans1d bucket_sort "
    "matrix_bucket_sort_inplace TimeoutGuard SlidingIndexWindow",
}
WAYS = {name: way for way, names in _WAYS.items() for name in names.split()}

_BEGINNINGS = {"IndexBinary": _BINARY, "Gpu": _GPU}

# hasattr(faiss, "StandardGpuResources") is how scripts ask for a build with GPUs.
_NOT_IN_FAISS_CPU = re.compile(
    r"(Gpu|Standard|bf)\w*|index_cpu_to_gpu|index_gpu_to_cpu|index_cpu_to_gpu_multiple"
)


class NotHere(NotImplementedError, AttributeError):
    """A name that FAISS itself has in some builds only."""


class _Missing(type):
    def __call__(cls, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"knear.faiss.{cls.__name__}: {cls.__doc__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(f"knear.faiss.{cls.__name__}.{name}: {cls.__doc__}")


def stand_in(name: str) -> Any:
    """A class by that name, of which there are no objects. Raises AttributeError for a name that
    FAISS has not either."""
    way = WAYS.get(name) or next((w for b, w in _BEGINNINGS.items() if name.startswith(b)), None)
    if way is None:
        raise AttributeError(f"module 'knear.faiss' has no attribute {name!r}")
    if _NOT_IN_FAISS_CPU.fullmatch(name):
        raise NotHere(f"knear.faiss.{name}: {way}")
    return _Missing(name, (), {"__doc__": way})
