// knear/graph/layout.hpp -- a map of a base: a place in the plane for each row, near those of its
// neighbours in the k-NN graph.
//
//   Matrix<float> places = principal_places(base);                        // at once
//   places = graph_layout(graph, places, {.progress = ...});              // in seconds
//
// The objective of UMAP (McInnes, Healy, Melville 2018) with LargeVis' kernel 1 / (1 + d^2) (Tang
// et al. 2016), by stochastic gradient descent: rows are drawn to their neighbours, the more often
// the stronger the edge, and pushed off rows drawn at random. In each epoch every row moves by
// where the others were before it, so that the result does not depend on threads. Work: about
// epochs * edges * 6 short steps; memory: 24 bytes for each direction of an edge.
#pragma once
#include <cstdint>
#include <functional>

#include "knear/core/matrix.hpp"
#include "knear/core/progress.hpp"
#include "knear/graph/neighbor_graph.hpp"

namespace knear {

inline constexpr std::int64_t most_layout_epochs = 100'000;

struct LayoutOptions {
  std::int64_t epochs = 0;  // 0: 300, or 100 of more than 200,000 rows
  std::uint64_t seed = 1;
  int threads = 0;  // 0: all that the process may use
  Progress progress = {};
  // Called now and then between epochs with the places [n x 2] so far, in the calling thread.
  std::function<void(MatrixView<float>)> on_places = {};
};

// The first two principal components of the rows of base [n x d], as places [n x 2] within [-10,
// 10] around their mean: the components of a sample. Rows that are equal differ by no more than
// 1e-3, so that they are not one point for ever. Throws InvalidArgument for a NaN or infinity with
// its row; Cancelled.
Matrix<float> principal_places(AnyMatrixView base, int threads = 0, const Progress& progress = {});

// Places [n x 2] of the rows of a graph, from these on. The same bits for the same seed, whatever
// the threads. Throws ShapeMismatch unless there are two columns and a row for each of the graph's;
// InvalidArgument for places or distances that are not finite and for epochs below 0 or above
// most_layout_epochs; Cancelled.
Matrix<float> graph_layout(const NeighborGraph& graph, MatrixView<float> places,
                           const LayoutOptions& options = {});

}  // namespace knear
