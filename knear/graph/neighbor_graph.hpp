// knear/graph/neighbor_graph.hpp -- a k-NN graph and of which vectors it is, in memory and in a
// .knear file.
//
//   NeighborGraph graph = knn_graph(base, 10);          // graph/knn_graph.hpp
//   graph.save("graph.knear");
//   graph = NeighborGraph::load("graph.knear");         // mapped
//   graph.check_base(base);                             // that of these vectors?
//
// Row i of ids and distances has the neighbours of row i of the base, nearest first, as the answer
// of every search; a row is never its own neighbour. docs/knear-files.md describes the file.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"

namespace knear {

// Which vectors a graph is of. Equal for the same numbers of the same type in any file.
struct BaseMark {
  std::int64_t rows = 0, dim = 0;
  ElementType type = ElementType::f32;
  std::uint64_t checksum = 0;  // XXH3, 64 bits, of the elements row after row (io/statistics.hpp)

  bool operator==(const BaseMark&) const = default;
};
BaseMark mark_of(AnyMatrixView base, const Progress& progress = {});

// What is known of a graph beside its edges.
struct GraphProperties {
  Metric metric = Metric::l2;
  BaseMark base;
  // The mean share of the k nearest that is promised to be there, and why: "exact", "calibrated",
  // or "none".
  double promised_recall = 1;
  std::string recall_argument = "exact";
  bool distinct = false;  // copies were left out (KnnGraphOptions::distinct)
};

class NeighborGraph {
 public:
  NeighborGraph() = default;
  // Takes over ids [n x k] and distances [n x k].
  NeighborGraph(Neighbors neighbors, GraphProperties properties);

  std::int64_t rows() const { return ids_.rows(); }
  std::int64_t k() const { return ids_.cols(); }
  MatrixView<Id> ids() const { return ids_; }                 // [n x k], no_id in places without
  MatrixView<float> distances() const { return distances_; }  // [n x k]
  const GraphProperties& properties() const { return properties_; }
  Metric metric() const { return properties_.metric; }

  // Throws InvalidArgument unless this is the graph of these vectors, saying what differs. `name`
  // stands in the message for the graph, a path say.
  void check_base(AnyMatrixView base, const std::string& name = "graph",
                  const Progress& progress = {}) const;

  // Whole or not at all. Throws InvalidArgument where a distance is beyond float32; IoError;
  // Cancelled.
  void save(const std::string& path, const Progress& progress = {}) const;
  // Maps the file and compares all of it with its checksums. Throws IoError; CorruptFile for what
  // is no graph, was cut off or altered, or has an id that is no row.
  static NeighborGraph load(const std::string& path, const Progress& progress = {});

 private:
  MatrixView<Id> ids_;
  MatrixView<float> distances_;
  std::shared_ptr<const void> keeper_;  // of the memory that both lie in
  GraphProperties properties_;
};

// Whether a file says that it is a .knear file of a graph; false if it can't be read.
bool is_graph_file(const std::string& path);

namespace detail {
// Throws InvalidArgument, naming the file and both rows, for a distance beyond float32. The
// neighbours are those of `rows`; of all, one after another, where that is empty.
void check_distances(const std::string& path, std::span<const Id> rows, MatrixView<Id> ids,
                     MatrixView<float> distances);
// What NeighborGraph::save() writes, of ids and distances that lie elsewhere.
void save_graph(const std::string& path, MatrixView<Id> ids, MatrixView<float> distances,
                const GraphProperties& properties, const Progress& progress);
}  // namespace detail

}  // namespace knear
