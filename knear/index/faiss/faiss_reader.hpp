// knear/index/faiss/faiss_reader.hpp -- what a file of FAISS holds, before an index is made of it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/error.hpp"
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

// Whether knear.faiss.read_index() of the Python package reads a file that Index::load() does not.
enum class FaissModuleReads : bool { no, yes };

// A valid file that Index::load() does not read.
class FaissNotRead : public InvalidArgument {
 public:
  explicit FaissNotRead(const std::string& message) : InvalidArgument("{}", message) {}
};

// Throws FaissNotRead. what: the contents of the file, in words with an article. reads: what
// Index::load() reads instead; may be empty.
[[noreturn]] void refuse_faiss(const std::string& path, std::string_view what,
                               FaissModuleReads module = FaissModuleReads::no,
                               std::string_view reads = {});

// Throws IoError; CorruptFile for a file that is cut off or whose numbers do not fit, naming what
// is wrong; InvalidArgument for a valid file of a kind that is not read; MemoryBudgetError.
FaissContent read_faiss_content(const std::string& path);

}  // namespace knear::detail
