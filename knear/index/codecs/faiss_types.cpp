#include "knear/index/codecs/faiss_types.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>

namespace knear::detail {
namespace {

struct Name {
  std::string_view letters, name;
};

constexpr Name indexes[] = {
    {"IxF2", "an IndexFlat"},
    {"IxFI", "an IndexFlat"},
    {"IxFl", "an IndexFlat"},
    {"IxFP", "an IndexFlatL2Panorama"},
    {"IxFp", "an IndexFlatIPPanorama"},
    {"IxPq", "an IndexPQ"},
    {"IxPQ", "an IndexPQ of an old format"},
    {"IxPo", "an IndexPQ of an old format"},
    {"IxSQ", "an IndexScalarQuantizer"},
    {"IwFl", "an IndexIVFFlat"},
    {"IvFl", "an IndexIVFFlat of an old format"},
    {"IvFL", "an IndexIVFFlat of an old format"},
    {"IwFd", "an IndexIVFFlatDedup"},
    {"IwPn", "an IndexIVFFlatPanorama"},
    {"IwP2", "an IndexIVFFlatPanorama"},
    {"IwPQ", "an IndexIVFPQ"},
    {"IvPQ", "an IndexIVFPQ of an old format"},
    {"IwQR", "an IndexIVFPQR"},
    {"IvQR", "an IndexIVFPQR of an old format"},
    {"IwSq", "an IndexIVFScalarQuantizer"},
    {"IwSQ", "an IndexIVFScalarQuantizer of an old format"},
    {"IvSQ", "an IndexIVFScalarQuantizer of an old format"},
    {"IPfs", "an IndexPQFastScan"},
    {"IwPf", "an IndexIVFPQFastScan"},
    {"IxMp", "an IndexIDMap"},
    {"IxM2", "an IndexIDMap2"},
    {"IxPT", "an IndexPreTransform"},
    {"IxRF", "an IndexRefine"},
    {"IxRP", "an IndexRefinePanorama"},
    {"Imiq", "a MultiIndexQuantizer"},
    {"ImRQ", "a ResidualCoarseQuantizer"},
    {"Ix2L", "an Index2Layer"},
    {"IxHe", "an IndexLSH"},
    {"IxHE", "an IndexLSH of an old format"},
    {"IxLa", "an IndexLattice"},
    {"IxRq", "an IndexResidualQuantizer"},
    {"IxRQ", "an IndexResidualQuantizer of an old format"},
    {"IxLS", "an IndexLocalSearchQuantizer"},
    {"IxPR", "an IndexProductResidualQuantizer"},
    {"IxPL", "an IndexProductLocalSearchQuantizer"},
    {"IRfs", "an IndexResidualQuantizerFastScan"},
    {"ILfs", "an IndexLocalSearchQuantizerFastScan"},
    {"IPRf", "an IndexProductResidualQuantizerFastScan"},
    {"IPLf", "an IndexProductLocalSearchQuantizerFastScan"},
    {"IwRQ", "an IndexIVFResidualQuantizer"},
    {"IwLS", "an IndexIVFLocalSearchQuantizer"},
    {"IwPR", "an IndexIVFProductResidualQuantizer"},
    {"IwPL", "an IndexIVFProductLocalSearchQuantizer"},
    {"IVRf", "an IndexIVFResidualQuantizerFastScan"},
    {"IVLf", "an IndexIVFLocalSearchQuantizerFastScan"},
    {"NPRf", "an IndexIVFProductResidualQuantizerFastScan"},
    {"NPLf", "an IndexIVFProductLocalSearchQuantizerFastScan"},
    {"IwSh", "an IndexIVFSpectralHash"},
    {"IwIQ", "an IndexIVFIndependentQuantizer"},
    {"Ixrq", "an IndexRaBitQ"},
    {"Ixrr", "an IndexRaBitQ"},
    {"Irfn", "an IndexRaBitQFastScan"},
    {"Irfs", "an IndexRaBitQFastScan of an old format"},
    {"Iwrq", "an IndexIVFRaBitQ"},
    {"Iwrr", "an IndexIVFRaBitQ"},
    {"Iwrn", "an IndexIVFRaBitQFastScan"},
    {"Iwrf", "an IndexIVFRaBitQFastScan of an old format"},
    {"IxEe", "an IndexEDEN"},
    {"IwEe", "an IndexIVFEDEN"},
    {"IRMf", "an IndexRowwiseMinMax"},
    {"IRMh", "an IndexRowwiseMinMaxFP16"},
    {"IHNf", "an IndexHNSWFlat"},
    {"IHfP", "an IndexHNSWFlatPanorama"},
    {"IHNp", "an IndexHNSWPQ"},
    {"IHNs", "an IndexHNSWSQ"},
    {"IHNr", "an IndexHNSWRaBitQ"},
    {"IHN2", "an IndexHNSW2Level"},
    {"IHNc", "an IndexHNSWCagra of an old format"},
    {"IHc2", "an IndexHNSWCagra"},
    {"INSf", "an IndexNSGFlat"},
    {"INSp", "an IndexNSGPQ"},
    {"INSs", "an IndexNSGSQ"},
    {"INNf", "an IndexNNDescentFlat"},
    {"ISVF", "an IndexSVSFlat"},
    {"ISVD", "an IndexSVSVamana"},
    {"ILVQ", "an IndexSVSVamanaLVQ"},
    {"ISVL", "an IndexSVSVamanaLeanVec"},
    {"IS48", "an IndexSVSLVQ4x8"},
    {"IS44", "an IndexSVSLVQ4x4"},
    {"IBxF", "an IndexBinaryFlat"},
    {"IBwF", "an IndexBinaryIVF"},
    {"IBFf", "an IndexBinaryFromFloat"},
    {"IBHf", "an IndexBinaryHNSW"},
    {"IBHc", "an IndexBinaryHNSWCagra"},
    {"IBMp", "an IndexBinaryIDMap"},
    {"IBM2", "an IndexBinaryIDMap2"},
    {"IBHh", "an IndexBinaryHash"},
    {"IBHm", "an IndexBinaryMultiHash"},
    {"null", "a missing index"},
};

constexpr Name transforms[] = {
    {"rrot", "a RandomRotationMatrix"},
    {"LTra", "a LinearTransform"},
    {"Pcam", "a PCAMatrix"},
    {"PcAm", "a PCAMatrix"},
    {"PCAm", "a PCAMatrix"},
    {"Viqm", "an ITQMatrix"},
    {"VNrm", "a NormalizationTransform"},
    {"VCnt", "a CenteringTransform"},
    {"Viqt", "an ITQTransform"},
    {"RmDT", "a RemapDimensionsTransform"},
    {"HRot", "a HadamardRotation"},
};

constexpr Name list_names[] = {
    {"ilar", "lists in the file"},
    {"ilbl", "lists in blocks"},
    {"ilod", "inverted lists on disk, in a file of their own"},
    {"il00", "an index without its inverted lists"},
    {"ilpn", "inverted lists of IndexIVFFlatPanorama"},
    {"ilp2", "inverted lists of IndexIVFFlatPanorama"},
};

// By their numbers.
constexpr std::string_view scalar_types[] = {
    "QT_8bit",         "QT_4bit",       "QT_8bit_uniform",
    "QT_4bit_uniform", "QT_fp16",       "QT_8bit_direct",
    "QT_6bit",         "QT_bf16",       "QT_8bit_direct_signed",
    "QT_0bit",         "QT_1bit_tqmse", "QT_2bit_tqmse",
    "QT_3bit_tqmse",   "QT_4bit_tqmse", "QT_8bit_tqmse",
    "QT_2bit_tq",      "QT_3bit_tq",    "QT_4bit_tq",
    "QT_5bit_tq",      "QT_1bit_eden",  "QT_2bit_eden",
    "QT_3bit_eden",    "QT_4bit_eden",  "QT_5bit_eden",
    "QT_6bit_eden",    "QT_7bit_eden",  "QT_8bit_eden"};

struct NumberedName {
  std::int32_t number;
  std::string_view name;
};

constexpr NumberedName metrics[] = {
    {0, "METRIC_INNER_PRODUCT"},
    {1, "METRIC_L2"},
    {2, "METRIC_L1"},
    {3, "METRIC_Linf"},
    {4, "METRIC_Lp"},
    {20, "METRIC_Canberra"},
    {21, "METRIC_BrayCurtis"},
    {22, "METRIC_JensenShannon"},
    {23, "METRIC_Jaccard"},
    {24, "METRIC_NaNEuclidean"},
    {25, "METRIC_GOWER"},
};

std::string_view find(std::span<const Name> names, std::string_view letters) {
  const auto at = std::find_if(names.begin(), names.end(),
                               [&](const Name& name) { return name.letters == letters; });
  return at == names.end() ? std::string_view() : at->name;
}

}  // namespace

std::string_view name_of_faiss_index(std::string_view letters) { return find(indexes, letters); }
std::string_view name_of_faiss_transform(std::string_view letters) {
  return find(transforms, letters);
}
std::string_view name_of_faiss_metric(std::int32_t metric) {
  const auto at = std::find_if(std::begin(metrics), std::end(metrics),
                               [&](const NumberedName& name) { return name.number == metric; });
  return at == std::end(metrics) ? std::string_view() : at->name;
}
bool is_faiss_scalar(std::int32_t type) { return type >= 0 && type < std::ssize(scalar_types); }
std::string name_of_faiss_scalar(std::int32_t type) {
  if (!is_faiss_scalar(type)) return fmt::format("{}", type);
  return fmt::format("{} ({})", scalar_types[type], type);
}
std::string_view name_of_faiss_lists(std::string_view letters) { return find(list_names, letters); }

}  // namespace knear::detail
