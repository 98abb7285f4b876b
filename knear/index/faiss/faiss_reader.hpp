// knear/index/faiss/faiss_reader.hpp -- what a file of FAISS holds, before an index is made of it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "knear/index/codecs/faiss_fields.hpp"
#include "knear/index/index_shape.hpp"
#include "knear/transform/transform.hpp"

namespace knear::detail {

struct FaissContent : FaissRows {
  FaissContent() = default;
  FaissContent(std::int64_t columns, Metric by, bool is_trained = true) : metric(by) {
    dim = columns, trained = is_trained;
  }

  Metric metric = Metric::l2;
  std::int64_t probes = 0;  // with lists: of the searches of this index
  // With lists: the index that holds their centroids, after the transforms.
  std::shared_ptr<FaissContent> centroids = {};
  // What refines codes, in their order: vectors, halves or codes of them.
  std::shared_ptr<FaissContent> fine = {};
  float k_factor = 1;  // codes that these measure for each neighbour
  std::vector<TransformShape> transforms = {};
  std::vector<Transform> chain = {};  // what they are trained to

  // Whether its rows are the vectors that were given to it.
  bool is_of_vectors() const { return !codes && !rounded && chain.empty() && !fine; }
  // Whether it is rows one after another and nothing else.
  bool is_plain() const { return lists == 0 && ids.empty() && chain.empty() && !fine; }
};

// Throws IoError; CorruptFile for a file that is cut off or whose numbers do not fit, naming what
// is wrong; InvalidArgument for a valid file of a kind that is not read; MemoryBudgetError.
FaissContent read_faiss_content(const std::string& path);

}  // namespace knear::detail
