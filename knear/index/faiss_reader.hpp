// knear/index/faiss_reader.hpp -- what a file of FAISS holds, before an index is made of it.
#pragma once
#include <cstdint>
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
  std::int64_t lists = 0;        // 0: there are none
  Matrix<float> centroids = {};  // [lists x dim], after the transforms
  // [n x dim]: vectors; of codes, those that refine them.
  Matrix<float> rows = {};
  std::vector<Id> ids = {};  // of the rows; empty: 0, 1, ...
  // Rows that are halves of floats.
  std::optional<ElementType> rounded = {};
  // Rows that are codes: the centroids of a product quantiser, or of a scalar one the least value
  // and the width of the range of each column.
  std::optional<CodeShape> codes = {};
  std::vector<float> quantizer = {};
  Matrix<std::uint8_t> code_rows = {};      // [n x bytes]
  std::vector<std::uint32_t> list_of = {};  // [n], with lists
  bool refining = false;                    // whether `rows` refine codes
  std::vector<TransformShape> transforms = {};
  std::vector<Transform> chain = {};  // what they are trained to

  std::int64_t size() const { return codes ? code_rows.rows() : rows.rows(); }
};

// Throws IoError; CorruptFile for a file of another type, that is cut off or whose numbers do not
// fit, naming what is wrong; MemoryBudgetError.
FaissContent read_faiss_content(const std::string& path);

}  // namespace knear::detail
