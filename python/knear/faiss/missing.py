"""Names of FAISS that knear.faiss has not: using one says what knear has instead."""

from __future__ import annotations

import re
from typing import Any

_GRAPHS = (
    "graphs of FAISS are not there; knear.Index('IVF1024,Flat') with search(recall=0.95) finds as "
    "many, and knear.Index('Graph32') is a graph of knear's own"
)
_CODES = "such codes are not there; knear.Index has PQ, SQ8, SQ4, SQfp16 and SQbf16"
_ROTATIONS = (
    "this transform is not there; RandomRotationMatrix (RR64) and OPQMatrix rotate, and PCAMatrix "
    "with random_rotation"
)
_SCANS = "PQ codes of 4 bits are scanned fast by IndexPQ and IndexIVFPQ with nbits=4 already"
_BINARY = (
    "lists, graphs and hashes of bits are not there; IndexBinaryFlat, IndexBinaryIDMap and "
    "knn_hamming search all of them"
)
_GPU = "GPUs are not here; knear.knn(..., device='cuda') and arrays on a GPU go to knear itself"
_SHARDS = "IndexShards and IndexReplicas are there, and knear.Index(shards=, replicas=)"
LISTS = "lists of one's own are not there; knear.Index.save() and load() map an index from disk"
_TWO = "two levels of codes are not there; IndexRefine measures codes again by finer ones"
_PRUNED = "IndexFlat and IndexIVFFlat leave out what a bound rules out, with the same answer"
_CLUSTERS = (
    "k-means by parts of the columns is not there; Kmeans(d, k), and knear.KMeans(k, levels=2) for "
    "very many centroids"
)
_SORTS = "numpy.argsort(kind='stable') and numpy.bincount sort into buckets"
_EQUAL = "equal vectors are each kept; IndexIVFFlat finds all of them"
_WINDOW = "remove_ids() and add() of IndexIVFFlat move a window; knear.Index keeps ids of your own"
_INTERNALS = "internals of FAISS's C++ are not there; the indexes have all that they were for"
_NOTHING = "knear has nothing like it"

_WAYS = {
    _GRAPHS: "IndexHNSW IndexHNSWFlat IndexHNSWPQ IndexHNSWSQ IndexHNSW2Level IndexHNSWCagra "
    "IndexHNSWFlatPanorama IndexHNSWRaBitQ IndexNSG IndexNSGFlat IndexNSGPQ IndexNSGSQ "
    "IndexNNDescent IndexNNDescentFlat HNSW NSG NNDescent SearchParametersHNSW "
    "SearchParametersResidualCoarseQuantizer HNSWStats NSG_Graph_int Neighbor Nhood VisitedTable "
    "VisitedTableSet VisitedTableVector greedy_update_nearest hnsw_add_vertices_deterministic "
    "search_from_candidate_unbounded search_from_candidates search_from_candidates_panorama "
    "search_neighbors_to_add storage_distance_computer",
    _CODES: "IndexLSH IndexRaBitQ IndexRaBitQFastScan IndexIVFRaBitQ IndexIVFRaBitQFastScan "
    "RaBitQuantizer RaBitQSearchParameters IVFRaBitQSearchParameters IndexEDEN IndexIVFEDEN "
    "IndexLattice ZnSphereCodec IndexIVFSpectralHash IndexAdditiveQuantizer "
    "IndexResidualQuantizer IndexLocalSearchQuantizer IndexProductResidualQuantizer "
    "IndexProductLocalSearchQuantizer IndexIVFAdditiveQuantizer IndexIVFResidualQuantizer "
    "IndexIVFLocalSearchQuantizer IndexIVFProductResidualQuantizer "
    "IndexIVFProductLocalSearchQuantizer AdditiveQuantizer ResidualQuantizer LocalSearchQuantizer "
    "ProductResidualQuantizer ProductLocalSearchQuantizer ProductAdditiveQuantizer "
    "ResidualCoarseQuantizer LocalSearchCoarseQuantizer AdditiveCoarseQuantizer IndexResidual "
    "IndexRowwiseMinMax IndexRowwiseMinMaxFP16 IndexRowwiseMinMaxBase IndexNeuralNetCodec "
    "IndexQINCo QINCo QINCoStep NeuralNetCodec FFN Linear Embedding Tensor2D Int32Tensor2D "
    "ZnSphereCodecAlt ZnSphereCodecRec ZnSphereSearch EnumeratedVectors Repeat Repeats "
    "RepeatVector IcmEncoder IcmEncoderFactory LSQTimer LSQTimerScope "
    "ComputeCodesAddCentroidsLUT0MemoryPool ComputeCodesAddCentroidsLUT1MemoryPool "
    "RefineBeamLUTMemoryPool RefineBeamMemoryPool aq_estimate_norm_scale "
    "aq_quantize_LUT_and_bias beam_search_encode_step beam_search_encode_step_tab "
    "refine_beam_LUT_mp refine_beam_mp compute_codes_add_centroids_mp_lut0 "
    "compute_codes_add_centroids_mp_lut1 downcast_AdditiveQuantizer EDENCodeFactors "
    "EDENFlatCodesDistanceComputer IVFSQTurboQSearchParameters RaBitQDistanceComputer RaBitQStats "
    "QueryFactorsData ExtraBitsFactors SignBitFactors SignBitFactorsWithError "
    "compute_1bit_adjusted_distance compute_factors_from_intermediates "
    "compute_full_multibit_distance compute_per_vector_storage_size compute_query_factors "
    "compute_vector_factors compute_vector_intermediate_values extract_bit_fastscan "
    "extract_bit_standard extract_code extract_code_inline set_bit_fastscan set_bit_standard "
    "unpack_sign_bits_from_packed populate_block_aux_from_flat_storage should_refine_candidate "
    "is_eden_quantizer_type nb_bits_for_qtype quantizer_type_for_bits",
    _ROTATIONS: "ITQMatrix ITQTransform HadamardRotation",
    _SCANS: "IndexFastScan IndexPQFastScan IndexIVFPQFastScan IndexIVFFastScan "
    "IndexAdditiveQuantizerFastScan IndexResidualQuantizerFastScan "
    "IndexLocalSearchQuantizerFastScan IndexProductResidualQuantizerFastScan "
    "IndexProductLocalSearchQuantizerFastScan IndexIVFAdditiveQuantizerFastScan "
    "IndexIVFResidualQuantizerFastScan IndexIVFLocalSearchQuantizerFastScan "
    "IndexIVFProductResidualQuantizerFastScan IndexIVFProductLocalSearchQuantizerFastScan "
    "FastScanStats IVFFastScanStats FastScanDistancePostProcessing quantize_LUT_and_bias",
    _BINARY: "pack_bitstrings unpack_bitstrings BinaryInvertedListScanner ThreadedIndexBaseBinary "
    "binary_to_real real_to_binary bincode_hist bitvec_print bitvec_shuffle bitvecs2fvecs "
    "fvec2bitvec fvecs2bitvecs downcast_IndexBinary shard_binary_ivf_index_centroids "
    "crosshamming_count_thres generalized_hamming_64 generalized_hammings_knn_hc "
    "hamming_count_thres hamming_range_search hammings hammings_knn hammings_knn_hc "
    "hammings_knn_mc match_hamming_thres popcount32 popcount64",
    _GPU: "StandardGpuResources index_cpu_to_gpu index_gpu_to_cpu index_cpu_to_all_gpus "
    "index_cpu_to_gpus_list index_cpu_to_gpu_multiple index_cpu_to_gpu_multiple_py knn_gpu "
    "pairwise_distance_gpu bfKnn",
    _SHARDS: "IndexShardsIVF IndexProxy IndexSplitVectors "
    "ThreadedIndexBase ShardingFunction DefaultShardingFunction PyCallbackShardingFunction "
    "shard_ivf_index_centroids",
    LISTS: "OnDiskInvertedLists BlockInvertedLists HStackInvertedLists VStackInvertedLists "
    "SliceInvertedLists MaskedInvertedLists StopWordsInvertedLists CappedInvertedLists "
    "ConcatenatedInvertedLists ReadOnlyInvertedLists read_InvertedLists write_InvertedLists "
    "ArrayInvertedListsPanorama InvertedListsIOHook InvertedListsIterator InvertedListsPtrVector "
    "OnDiskOneList OnDiskOneListVector CodePacker CodePackerFlat InvertedListScanner "
    "InvertedListScannerStats",
    _TWO: "Index2Layer IndexIVFPQR MultiIndexQuantizer MultiIndexQuantizer2 "
    "IndexIVFIndependentQuantizer",
    _PRUNED: "IndexFlatPanorama IndexFlatL2Panorama IndexFlatIPPanorama IndexIVFFlatPanorama "
    "IndexRefinePanorama IndexFlat1D Panorama PanoramaStats",
    _CLUSTERS: "ProgressiveDimClustering ProgressiveDimClusteringParameters "
    "ProgressiveDimIndexFactory SuperKMeans SuperKmeans SuperKMeansParameters "
    "SuperKMeansAssignScratch super_kmeans_assign_iteration super_kmeans_assign_iteration_c "
    "Clustering1D kmeans1d smawk",
    _SORTS: "bucket_sort matrix_bucket_sort_inplace",
    _EQUAL: "IndexIVFFlatDedup",
    _WINDOW: "SlidingIndexWindow",
    _NOTHING: "IndexRandom",
    _INTERNALS: "AlignedTableFloat32 AlignedTableUint16 AlignedTableUint8 AlignedTable_to_array "
    "array_to_AlignedTable copy_array_to_AlignedTable BufferList CMax_float_partition_fuzzy "
    "CMax_uint16_partition_fuzzy CMin_float_partition_fuzzy CMin_uint16_partition_fuzzy "
    "CombinerRangeKNNfloat CombinerRangeKNNint16 DirectMapAdd FlatCodesDistanceComputer "
    "IDScanContext IDSelectorContextDispatch IDSelectorWithContext "
    "IndexIVFPQStats MappedFileIOReader MmappedFileMappingOwner "
    "MaybeOwnedVectorFloat32Vector MaybeOwnedVectorInt32 MaybeOwnedVectorInt32Vector "
    "MaybeOwnedVectorOwner MaybeOwnedVectorUInt8Vector NegativeDistanceComputer PQDecoder16 "
    "PQDecoder8 PQDecoderGeneric PQEncoder16 PQEncoder8 PQEncoderGeneric PartitionStats "
    "PermutationObjective RangeQueryResult RangeSearchPartialResult ReproduceDistancesObjective "
    "SimulatedAnnealingOptimizer SimulatedAnnealingParameters SwigPyIterator Version "
    "add_ref_in_constructor add_ref_in_function add_ref_in_method "
    "add_ref_in_method_explicit_own add_to_referenced_objects approx_topk_by_mode "
    "cast_integer_to_float_ptr cast_integer_to_idx_t_ptr cast_integer_to_int_ptr "
    "cast_integer_to_uint8_ptr cast_integer_to_void_ptr chi2_quantile_wh code_size "
    "compiled_simd_levels compute_PQ_dis_tables_dsub2 compute_codes decode fourcc_inv_printable "
    "fvec_L2sqr_batch_4 fvec_L2sqr_by_idx fvec_L2sqr_ny_nearest "
    "fvec_L2sqr_ny_nearest_y_transposed fvec_L2sqr_ny_transposed fvec_inner_product_batch_4 "
    "fvec_inner_products_by_idx fvecs_maybe_subsample get_cycles "
    "get_deserialization_lattice_r2_limit get_deserialization_loop_limit "
    "get_deserialization_vector_byte_limit set_deserialization_lattice_r2_limit "
    "set_deserialization_loop_limit set_deserialization_vector_byte_limit get_distance_computer "
    "get_extra_distance_computer get_numeric_type_size hash_bytes hashtable_int64_to_int64_add "
    "hashtable_int64_to_int64_init hashtable_int64_to_int64_lookup "
    "initialize_IVFPQ_precomputed_table inner_product_to_L2sqr int_maxheap_array_t "
    "int_minheap_array_t ivec_hist ivf_residual_add_from_flat_codes ivf_residual_from_quantizer "
    "knn_L2sqr_by_idx knn_extra_metrics knn_inner_products_by_idx lo_build lo_listno lo_offset "
    "matrix_qr merge_knn_results_CMax merge_knn_results_CMin merge_result_table_with "
    "metric_type_count metric_type_from_int normal_quantile packed_code_size "
    "pairwise_extra_distances precompute_ad_thresholds range_search_with_parameters_c "
    "ranklist_handle_ties reflection round_clamped_to_uint8 round_nonnegative_to_uint16 "
    "round_nonnegative_to_uint8 round_uint8_per_column round_uint8_per_column_multi "
    "search_with_parameters_c simd_histogram_16 simd_histogram_8 to_simd_level to_string",
}
WAYS = {name: way for way, names in _WAYS.items() for name in names.split()}

# Not classes or functions, so that a stand-in would pass for a value.
_NUMBERS = (
    "APPROX_TOPK_BUCKETS_B16_D2 APPROX_TOPK_BUCKETS_B32_D2 APPROX_TOPK_BUCKETS_B8_D2 "
    "APPROX_TOPK_BUCKETS_B8_D3 EXACT_TOPK EDENScaleType_BIASED EDENScaleType_UNBIASED "
    "SHARED_PTR_DISOWN SINGLE_SIMD_LEVEL SINGLE_SIMD_LEVEL_256 SINGLE_SIMD_LEVEL_512 Z_MAX_BY_QB "
    "hamdis_tab_ham_bytes sizeof_long"
)
_VALUES = frozenset(_NUMBERS.split())

_BEGINNINGS = {"IndexBinary": _BINARY, "Gpu": _GPU}

# hasattr(faiss, "StandardGpuResources") is how scripts ask for a build with GPUs.
_NOT_IN_FAISS_CPU = re.compile(
    r"(Gpu|Standard|bf)\w*|index_cpu_to_gpu|index_gpu_to_cpu|index_cpu_to_gpu_multiple"
)


class NotHere(NotImplementedError, AttributeError):
    """A name that FAISS itself has in some builds only, or a value that is not there."""


# Members of FAISS's classes that knear.faiss lacks, for a class and its subclasses: way and
# names.
_ARRAYS = "addresses alone are not taken; the method without _c takes arrays"
_TYPES = "the method without _ex takes arrays of any type of numbers"
_HANDLERS = "search() and range_search() find k or all within a radius"
_CODES_OF = "index.invlists.get_codes() and index.codes show codes, sa_encode() makes them"
_HAMMING = "codes are not compared by Hamming distances; search() measures all of them"
_TABLES = (
    "tables of distances are not kept: compute_distance_tables() of a ProductQuantizer makes them"
)
_WRITES = (
    "lists are changed by add_core(n, x, ids, lists), update_vectors() and merge_from() of an index"
)
_MAPS = "set_direct_map_type(), remove_ids() and update_vectors() of an index keep its map"
_COMPUTERS = "get_distance_computer() of an index measures single vectors"
_SWIG = "SWIG is not there; arrays and objects are Python's"
_MEMBERS = {
    "Index": {
        _ARRAYS: "add_c add_sa_codes_c add_with_ids_c assign_c range_search_c reconstruct_batch_c "
        "reconstruct_c reconstruct_n_c remove_ids_c sa_decode_c sa_encode_c "
        "search_and_reconstruct_c search_c train_c",
        _TYPES: "add_ex add_with_ids_ex search_ex train_ex",
        _HANDLERS: "search1",
        "search(params=SearchParameters(sel=IDSelectorBatch(ids))) searches some ids, and "
        "IndexFlat.compute_distance_subset() measures other ones for each query": "search_subset",
    },
    "IndexFlatCodes": {_ARRAYS: "permute_entries_c", _CODES_OF: "get_CodePacker"},
    "IndexPQ": {
        _HAMMING: "hamming_distance_histogram hamming_distance_table search_core_polysemous"
    },
    "IndexIVF": {
        _ARRAYS: "range_search_preassigned_c search_and_return_codes_c search_preassigned_c "
        "update_vectors_c",
        _CODES_OF: "get_CodePacker",
    },
    "IndexIVFPQ": {
        _WRITES: "add_core_o",
        "numpy.unique(index.sa_encode(x), axis=0) tells equal codes": "find_duplicates",
        _TABLES: "precomputed_table",
    },
    "Quantizer": {_ARRAYS: "compute_codes_c decode_c train_c"},
    "ScalarQuantizer": {
        _COMPUTERS: "get_distance_computer select_InvertedListScanner select_quantizer",
        _CODES: "turboq_refine",
    },
    "VectorTransform": {_ARRAYS: "reverse_transform_c train_c"},
    "LinearTransform": {_INTERNALS: "print_if_verbose"},
    "Clustering": {_ARRAYS: "train_c train_encoded_c"},
    "ParameterSpace": {_ARRAYS: "explore_c"},
    "InvertedLists": {
        _WRITES: "add_entries add_entry merge_from resize update_entries update_entry",
        LISTS: "get_iterator",
        "get_codes(list_no) and get_ids(list_no) copy what is in a list": "codes ids",
    },
    "DirectMap": {
        _MAPS: "add_single_id clear remove_ids set_type update_codes",
        "DirectMap.get() looks an id up": "hashtable",
    },
    "IOWriter": {"FileIOWriter(name) writes to a file": "filedescriptor"},
    "VectorIOWriter": {"copy_array_to_vector() fills its data": "write_bytes"},
    "SearchParameters": {_SWIG: "original_init"},
    "IDSelectorBatch": {_SWIG: "original_init"},
    "IDSelectorArray": {_SWIG: "original_init"},
    "IDSelectorBitmap": {_SWIG: "original_init"},
}
_MEMBER_VALUES = frozenset(["precomputed_table", "turboq_refine", "hashtable", "codes", "ids"])


class Lacking:
    """Gives the classes below it the members of _MEMBERS that they have not: a method says what
    knear has instead once it is called, a value when it is asked for, for which hasattr() is
    false."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for way, names in _MEMBERS.get(cls.__name__, {}).items():
            for name in names.split():
                if name in vars(cls):  # a class of one's own by that name
                    continue
                text = f"knear.faiss.{cls.__name__}.{name}: {way}"
                value = name in _MEMBER_VALUES
                setattr(cls, name, _lacking_value(text) if value else _lacking(name, text))


def _lacking(name: str, text: str) -> Any:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(text)

    method.__name__, method.__doc__ = name, text
    return method


def _lacking_value(text: str) -> Any:
    def refuse(self: Any, value: Any = None) -> Any:
        raise NotHere(text)

    return property(refuse, refuse, doc=text)


class _Missing(type):
    def __call__(cls, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"knear.faiss.{cls.__name__}: {cls.__doc__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(f"knear.faiss.{cls.__name__}.{name}: {cls.__doc__}")


def stand_in(name: str) -> Any:
    """A class by that name, of which there are no objects. Raises AttributeError for a name that
    FAISS has not either, and NotHere for values."""
    if name in _VALUES:
        raise NotHere(f"knear.faiss.{name}: {_INTERNALS}")
    way = WAYS.get(name) or next((w for b, w in _BEGINNINGS.items() if name.startswith(b)), None)
    if way is None:
        raise AttributeError(f"module 'knear.faiss' has no attribute {name!r}")
    if _NOT_IN_FAISS_CPU.fullmatch(name):
        raise NotHere(f"knear.faiss.{name}: {way}")
    return named_alone(name, way)


def named_alone(name: str, way: str) -> Any:
    """A class by that name, of which there are no objects: to make one says the way."""
    return _Missing(name, (), {"__doc__": way})
