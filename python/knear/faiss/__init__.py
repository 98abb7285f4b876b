"""FAISS's names and conventions on knear: scripts run after `import knear.faiss as faiss`.

>>> import knear.faiss as faiss, numpy as np
>>> x = np.random.default_rng(1).standard_normal((1000, 16)).astype("float32")
>>> index = faiss.index_factory(16, "IVF16,Flat")
>>> index.train(x)
>>> index.add(x)
>>> faiss.extract_index_ivf(index).nprobe = 4
>>> distances, ids = index.search(x[:3], 5)
>>> ids[:, 0].tolist()
[0, 1, 2]

Arrays are converted to float32, results are (distances, ids) with id -1 where there is nothing, ids
move and repeat as FAISS's do, errors are RuntimeError. Answers are knear's: exact among what is
searched, never negative in L2, ties by id. Files are FAISS's, both ways. Names that are not here
raise NotImplementedError, with knear's way. docs/from_faiss.md has it all.
"""

# ruff: noqa: F401 -- the names are what this module is for
from types import ModuleType
from typing import Any

from .arrays import (
    BitstringReader,
    BitstringWriter,
    bvec_checksum,
    bvecs_checksum,
    checksum,
    fourcc,
    fourcc_inv,
    fvec_add,
    fvec_argsort,
    fvec_argsort_parallel,
    fvec_inner_product,
    fvec_inner_products_ny,
    fvec_L1,
    fvec_L2sqr,
    fvec_L2sqr_ny,
    fvec_Linf,
    fvec_madd,
    fvec_madd_and_argmin,
    fvec_norm_L2sqr,
    fvec_norms_L2,
    fvec_norms_L2sqr,
    fvec_sub,
    imbalance_factor,
    ivec_checksum,
    memcpy,
    pairwise_indexed_inner_product,
    pairwise_indexed_L2sqr,
    pairwise_L2sqr,
    ranklist_intersection_size,
)
from .base import (
    METRIC_INNER_PRODUCT,
    METRIC_L2,
    DistanceComputer,
    Float16,
    Float32,
    Index,
    Int8,
    UInt8,
)
from .binary import (
    IndexBinary,
    IndexBinaryFlat,
    IndexBinaryIDMap,
    IndexBinaryIDMap2,
    clone_binary_index,
    deserialize_index_binary,
    index_binary_factory,
    knn_hamming,
    read_index_binary,
    serialize_index_binary,
    write_index_binary,
)
from .clustering import (
    Clustering,
    ClusteringInitialization,
    ClusteringInitMethod_AFK_MC2,
    ClusteringInitMethod_KMEANS_PLUS_PLUS,
    ClusteringInitMethod_RANDOM,
    ClusteringIterationStats,
    ClusteringParameters,
    Kmeans,
    kmeans_clustering,
)
from .codes import IndexPQ, IndexPQStats, IndexScalarQuantizer, indexPQ_stats
from .factory import index_factory
from .flat import IndexFlat, IndexFlatCodes, IndexFlatIP, IndexFlatL2
from .functions import (
    ResultHeap,
    check_compatible_for_merge,
    downcast_index,
    downcast_InvertedLists,
    downcast_Quantizer,
    downcast_VectorTransform,
    eval_intersection,
    extract_index_ivf,
    fvec_renorm_L2,
    get_invlist_range,
    is_similarity_metric,
    kmax,
    kmin,
    knn,
    merge_into,
    merge_knn_results,
    normalize_L2,
    pairwise_distances,
    range_search_with_parameters,
    search_and_return_centroids,
    search_centroid,
    search_with_parameters,
    set_invlist_range,
    try_extract_index_ivf,
)
from .heaps import (
    RangeSearchResult,
    float_maxheap_array_t,
    float_minheap_array_t,
    knn_inner_product,
    knn_L2sqr,
    range_search_inner_product,
    range_search_L2sqr,
)
from .interrupts import (
    InterruptCallback,
    PythonInterruptCallback,
    TimeoutCallback,
    TimeoutGuard,
)
from .io import (
    IO_FLAG_MMAP,
    IO_FLAG_MMAP_IFC,
    IO_FLAG_ONDISK_SAME_DIR,
    IO_FLAG_PQ_SKIP_SDC_TABLE,
    IO_FLAG_READ_ONLY,
    IO_FLAG_SKIP_IVF_DATA,
    IO_FLAG_SKIP_PRECOMPUTE_TABLE,
    IO_FLAG_SKIP_STORAGE,
    Cloner,
    clone_index,
    clone_Quantizer,
    deserialize_index,
    read_index,
    read_ProductQuantizer,
    read_VectorTransform,
    serialize_index,
    write_index,
    write_ProductQuantizer,
    write_VectorTransform,
)
from .ivf import (
    ArrayInvertedLists,
    DirectMap,
    IndexIVF,
    IndexIVFFlat,
    IndexIVFInterface,
    IndexIVFPQ,
    IndexIVFScalarQuantizer,
    IndexIVFStats,
    InvertedLists,
    Level1Quantizer,
    indexIVF_stats,
)
from .machine import (
    SIMDConfig,
    SIMDLevel_ARM_NEON,
    SIMDLevel_ARM_SVE,
    SIMDLevel_AVX2,
    SIMDLevel_AVX512,
    SIMDLevel_AVX512_SPR,
    SIMDLevel_AVX512_VPOPCNT,
    SIMDLevel_COUNT,
    SIMDLevel_NONE,
    SIMDLevel_RISCV_RVV,
    check_openmp,
    get_compile_options,
    get_mem_usage_kb,
    get_num_gpus,
    getmillisecs,
    gpu_profiler_start,
    gpu_profiler_stop,
    gpu_sync_all_devices,
    has_AVX2,
    has_AVX512,
    has_AVX512_SPR,
    has_SVE,
    instruction_sets,
    omp_get_max_threads,
    omp_set_num_threads,
    supported_instruction_sets,
    swig_version,
)
from .maps import CodeSet, MapInt64ToInt64, MapLong2Long, MatrixStats
from .metrics import (
    METRIC_GOWER,
    METRIC_L1,
    METRIC_BrayCurtis,
    METRIC_Canberra,
    METRIC_Jaccard,
    METRIC_JensenShannon,
    METRIC_Linf,
    METRIC_Lp,
    METRIC_NaNEuclidean,
)
from .missing import WAYS, NotHere, stand_in
from .parameters import (
    IndexRefineSearchParameters,
    IVFPQSearchParameters,
    IVFSearchParameters,
    SearchParameters,
    SearchParametersIVF,
    SearchParametersPQ,
    SearchParametersPreTransform,
)
from .quantizers import PolysemousTraining, ProductQuantizer, Quantizer, ScalarQuantizer
from .randomness import (
    RandomGenerator,
    SplitMix64RandomGenerator,
    byte_rand,
    float_rand,
    float_randn,
    int64_rand,
    int64_rand_max,
    lrand,
    rand,
    rand_perm,
    rand_perm_splitmix64,
    rand_smooth_vectors,
    randint,
    randn,
)
from .selectors import (
    IDSelector,
    IDSelectorAll,
    IDSelectorAnd,
    IDSelectorArray,
    IDSelectorBatch,
    IDSelectorBitmap,
    IDSelectorNot,
    IDSelectorOr,
    IDSelectorRange,
    IDSelectorTranslated,
    IDSelectorXOr,
    PyCallbackIDSelector,
)
from .shards import IndexReplicas, IndexShards
from .streams import (
    BufferedIOReader,
    BufferedIOWriter,
    FileIOReader,
    FileIOWriter,
    IOReader,
    IOWriter,
    PyCallbackIOReader,
    PyCallbackIOWriter,
    VectorIOReader,
    VectorIOWriter,
    ZeroCopyIOReader,
)
from .transforms import (
    CenteringTransform,
    LinearTransform,
    NormalizationTransform,
    OPQMatrix,
    PCAMatrix,
    RandomRotationMatrix,
    RemapDimensionsTransform,
    VectorTransform,
)
from .tuning import (
    AutoTuneCriterion,
    IntersectionCriterion,
    OneRecallAtRCriterion,
    OperatingPoint,
    OperatingPoints,
    ParameterRange,
    ParameterSpace,
)
from .vectors import (
    ByteVector,
    ByteVectorVector,
    CharVector,
    ClusteringIterationStatsVector,
    DoubleVector,
    Float32Vector,
    Float32VectorVector,
    Float64Vector,
    FloatVector,
    FloatVectorVector,
    Int8Vector,
    Int16Vector,
    Int32Vector,
    Int32VectorVector,
    Int64Vector,
    Int64VectorVector,
    IntVector,
    LongLongVector,
    LongVector,
    LongVectorVector,
    MaybeOwnedVectorFloat32,
    MaybeOwnedVectorUInt8,
    OperatingPointVector,
    ParameterRangeVector,
    UInt8Vector,
    UInt8VectorVector,
    UInt16Vector,
    UInt32Vector,
    UInt64Vector,
    Uint64Vector,
    VectorTransformVector,
    copy_array_to_vector,
    rev_swig_ptr,
    swig_ptr,
    vector_float_to_array,
    vector_to_array,
)
from .wrappers import IndexIDMap, IndexIDMap2, IndexPreTransform, IndexRefine, IndexRefineFlat

INDICES_CPU, INDICES_IVF, INDICES_32_BIT, INDICES_64_BIT = range(4)

# The FAISS whose conventions these are, which scripts ask for. knear.__version__ is knear's.
FAISS_VERSION_MAJOR, FAISS_VERSION_MINOR, FAISS_VERSION_PATCH = 1, 15, 1
__version__ = VERSION_STRING = "1.15.1"


class _Cvar:
    """FAISS's global variables that scripts touch. Those that tune its loops change nothing."""

    indexIVF_stats, indexPQ_stats = indexIVF_stats, indexPQ_stats
    distance_compute_blas_threshold = 128000
    distance_compute_blas_query_bs = 4096
    distance_compute_blas_database_bs = 1024
    distance_compute_min_k_reservoir = 100

    def __getattr__(self, name: str) -> Any:
        raise NotHere(f"knear.faiss.cvar.{name}: such global variables are not there")


cvar = _Cvar()


def get_version() -> str:
    """FAISS's, as VERSION_STRING."""
    return VERSION_STRING


def __getattr__(name: str) -> Any:
    return stand_in(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *WAYS})


__all__ = [
    name
    for name, what in list(globals().items())
    if not name.startswith("_") and not isinstance(what, ModuleType) and name != "Any"
]
