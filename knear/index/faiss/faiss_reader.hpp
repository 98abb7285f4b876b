// knear/index/faiss/faiss_reader.hpp -- what a file of FAISS holds, before an index is made of it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/index/index_shape.hpp"
#include "knear/transform/transform.hpp"

namespace knear::detail {

struct FaissContent {
  std::int64_t dim = 0;
  Metric metric = Metric::l2;
  bool trained = true;
  std::int64_t lists = 0;   // 0: there are none
  std::int64_t probes = 0;  // with lists: of the searches of this index
  // With lists: the index that holds their centroids, after the transforms.
  std::shared_ptr<FaissContent> centroids = {};
  AnyMatrix rows = {};       // [n x columns after the transforms], where rows are no codes
  std::vector<Id> ids = {};  // of the rows; empty: 0, 1, ...
  // Rows that are halves of floats; and whether they are what is left beside their centroids.
  std::optional<ElementType> rounded = {};
  bool rounded_residuals = false;
  // Rows that are codes: the centroids of a product quantiser, or of a scalar one the lowest level
  // and the step between levels of each column.
  std::optional<CodeShape> codes = {};
  std::vector<float> quantizer = {};
  Matrix<std::uint8_t> code_rows = {};      // [n x bytes]
  std::vector<std::uint32_t> list_of = {};  // [n], with lists
  // What refines codes, in their order: vectors, halves or codes of them.
  std::shared_ptr<FaissContent> fine = {};
  float k_factor = 1;  // codes that these measure for each neighbour
  std::vector<TransformShape> transforms = {};
  std::vector<Transform> chain = {};  // what they are trained to

  std::int64_t size() const { return codes ? code_rows.rows() : rows.rows(); }
  // Whether its rows are the vectors that were given to it.
  bool is_of_vectors() const { return !codes && !rounded && chain.empty() && !fine; }
  // Whether it is rows one after another and nothing else.
  bool is_plain() const { return lists == 0 && ids.empty() && chain.empty() && !fine; }
};

// Throws IoError; CorruptFile for a file of another type, that is cut off or whose numbers do not
// fit, naming what is wrong; MemoryBudgetError.
FaissContent read_faiss_content(const std::string& path);

}  // namespace knear::detail
