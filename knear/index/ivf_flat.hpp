// knear/index/ivf_flat.hpp -- inverted lists: each row is in the list of the centroid nearest to
// it, and a query is compared with the rows of the few lists nearest to it.
//
//   IvfFlatIndex index(128, 1024, Metric::l2);
//   index.train(sample);                           // 1024 centroids, by k-means
//   index.add(base);
//   Neighbors near = index.search(queries, 10, {.method = {.probes = 16}});
//
// Johnson et al., section 2 (IVFADC, here with the vectors themselves). The answer is exact among
// the rows of the lists that are probed: they are scanned by certified codes of 8 bits, as a flat
// index is, and what is left is measured in float64, so the same centroids and probes give the same
// answer on every machine, for any batch, and after any history of changes. With `certify` the
// report says of which queries it is the answer of a flat index too: |q - c| less the radius of a
// list bounds the distance of everything in it. recall = 1 goes on until that holds for all.
//
// l2 and ip: lists by the nearest centroid in l2; cosine: by the centroid of the largest cosine. A
// query probes the centroids that are nearest to it by the metric of the index; for ip those of
// the least lifted distance, so that lists of long vectors do not come first whatever their
// direction (docs/decisions.md).
//
// Memory: as every index (index/index.hpp), and 4 bytes a coordinate of each centroid. Lists of
// fewer than 4 rows on average are measured as they are instead of packed.
#pragma once
#include <cstdint>
#include <string>

#include "knear/core/matrix.hpp"
#include "knear/index/index.hpp"
#include "knear/index/usual_lists.hpp"

namespace knear {

class IvfFlatIndex : public Index {
 public:
  // Throws InvalidArgument unless 1 <= dim <= 65536 and 1 <= lists <= 2^24.
  IvfFlatIndex(std::int64_t dim, std::int64_t lists, Metric metric = Metric::l2);
  // With given centroids [lists x dim], trained by that. Throws InvalidArgument for a NaN or
  // infinity, naming its row, or for other numbers of either.
  explicit IvfFlatIndex(MatrixView<float> centroids, Metric metric = Metric::l2);

  // As Index::load(), of such an index.
  static IvfFlatIndex load(const std::string& path);

 private:
  using Index::Index;
};

}  // namespace knear
