// knear/index/index_shape.hpp -- what kind of index it is: what becomes of vectors before they are
// kept, the inverted lists, and the form in which rows are kept. The parts of a factory string.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/index/codecs/codec.hpp"

namespace knear::detail {

inline constexpr std::int64_t most_lists = 1 << 24;
// Links of a node of a graph.
inline constexpr std::int64_t least_degree = 4, most_degree = 256;

// What is done to vectors first (transform/transform.hpp).
struct TransformShape {
  enum class Kind : std::uint8_t { pca, opq, rotation, unit_norm };
  Kind kind;
  std::int64_t dim_out;             // columns after it
  bool whiten = false;              // pca
  bool rotate = false;              // pca
  std::int64_t sub_quantizers = 0;  // opq: of the quantiser to come
  int bits = 8;                     // opq: of each

  // "PCAW64", "OPQ16_64", "RR64", "L2norm".
  std::string name() const;
  bool operator==(const TransformShape&) const = default;
};

// What codes are refined by: the vectors as they were added, rounded to halves, or other codes.
struct RefineShape {
  std::optional<ElementType> rounded = {};  // f16 or bf16
  std::optional<CodeShape> codes = {};
  bool operator==(const RefineShape&) const = default;
};

struct IndexShape {
  std::int64_t dim = 1;  // of the vectors that users have
  Metric metric = Metric::l2;
  std::vector<TransformShape> transforms = {};
  std::int64_t lists = 0;  // inverted ones; 0: there are none
  // Whether each row is in a second list too (SOAR: CoarseQuantizer::second_lists()). Of vectors.
  bool in_two_lists = false;
  // Of the index over their centroids (index/quantizers/centroid_index.hpp), of which dim and
  // metric do not count; empty: each is compared.
  std::vector<IndexShape> coarse = {};
  // Rows are codes; or vectors, as they are or rounded to halves.
  std::optional<CodeShape> codes = {};
  std::optional<ElementType> rounded = {};
  std::optional<RefineShape> refine = {};  // of codes
  // Links of each node of the graph by which vectors are found (index/graph/row_graph.hpp); 0:
  // there is no graph.
  std::int64_t graph_degree = 0;

  // Columns after the transforms.
  std::int64_t inner_dim() const { return transforms.empty() ? dim : transforms.back().dim_out; }
  // Whether a search probes lists or goes by codes.
  bool is_probed() const { return lists > 0 || codes; }
  bool has_graph() const { return graph_degree > 0; }
  // Whether rows are the vectors as they were added, and nothing else.
  bool is_plain() const { return !learns() && !has_graph() && !rounded; }
  bool learns() const { return is_probed() || !transforms.empty(); }
  // Whether vectors are there as they were added: nothing was transformed or rounded, or they are
  // what codes are refined by.
  bool keeps_vectors() const {
    if (codes) return refine && !refine->rounded && !refine->codes;
    return !rounded && transforms.empty();
  }
  // Whether vectors become float32 as far from 0 as they are: PCA subtracts their mean before.
  bool rounds_vectors() const {
    if (transforms.empty()) return traits_of(metric).squared && codes;
    return traits_of(metric).squared && transforms.front().kind != TransformShape::Kind::pca;
  }
  // Whether rows are vectors, but not those that were added: transformed, or rounded to halves.
  // What is exact with respect to them is not with respect to those.
  bool alters_vectors() const { return !codes && !keeps_vectors(); }
  // description(), if alters_vectors(); otherwise nothing.
  std::string altered_by() const { return alters_vectors() ? description() : std::string(); }
  // As the form of the index says (form/form.cpp): "Flat", "GraphFlat", "IVFFlat", and of codes
  // Codec::kind(): "PQ", "IVFPQ".
  std::string kind() const;
  // As the factory writes it.
  std::string description() const;
  bool operator==(const IndexShape&) const = default;
};

}  // namespace knear::detail
