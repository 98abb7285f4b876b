// knear/index/graph_flat.hpp -- vectors with a graph over them, for one query at a time at a high
// recall, where inverted lists have to look into many lists.
//
//   GraphFlatIndex index(128, 32, Metric::l2);     // 32 links a row; "Graph32" to the factory
//   index.add(base);
//   index.optimize();                              // makes the graph, or the first search does
//   Neighbors near = index.search(query, 10, {.method = {.recall = 0.95}});
//   near = index.search(query, 10, {.method = {.ef = 64}});
//
// A search needs method.ef, how many of the nearest rows that it has seen it keeps, or
// method.recall, from which the index chooses that by 1,000 of its rows, each left out of its own
// answer; recall = 1, the method exact, filters that leave few rows, range searches and fewer than
// 1,024 rows are answered by comparing all rows, as a flat index does. What is found is measured in
// float64: distances are exact.
//
// Rows added after the graph was made are compared beside it; rows taken out are walked through but
// not found. The next search makes the graph anew once an eighth of the rows (and more than 1,024)
// has come or a quarter has gone; optimize() does so if any need to be. So answers depend on the
// rows that the graph was made of too; the same calls in the same order give the same answers on
// every machine and for any number of threads.
//
// Memory: as every index (index/index.hpp), and 1 byte a coordinate, 4 bytes a link and 16 more a
// row, a sixteenth more for the coarser layers; while the graph is made a copy of the vectors,
// their packed codes, and about 24 bytes a link. Where a sample shows that codes of 8 bits hide
// near rows (clusters far apart, uneven lengths, a time axis), the graph is made of the numbers
// themselves, in 4 bytes a coordinate (8 of f64 rows), and a search takes about a third longer. Sources: Malkov and Yashunin 2018 (the search), Fu
// et al. 2019 (links chosen from a k-NN graph).
#pragma once
#include <string>

#include "knear/index/index.hpp"

namespace knear {

class GraphFlatIndex : public Index {
 public:
  // Throws InvalidArgument unless 1 <= dim <= 65536 and 4 <= degree <= 256.
  GraphFlatIndex(std::int64_t dim, std::int64_t degree, Metric metric = Metric::l2);

  // As Index::load(), of such an index.
  static GraphFlatIndex load(const std::string& path);

 private:
  using Index::Index;
};

}  // namespace knear
