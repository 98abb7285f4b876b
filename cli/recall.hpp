// cli/recall.hpp -- how many of the true neighbours an answer has, with a confidence interval.
//
//   RecallFigures recall = measure_recall(queries, base, Metric::l2, near.ids, truth, 10, 0);
//
// A neighbour counts as found if its float64 distance is no greater than that of the true k-th one,
// without slack: an equally near row that the truth file does not list is no mistake.
#pragma once
#include <optional>

#include "knear/core/matrix.hpp"
#include "knear/core/mean_interval.hpp"
#include "knear/core/neighbors.hpp"

namespace knear::cli {

struct RecallFigures {
  // Means over queries, in [0, 1]; by distance only where there are vectors to measure.
  std::optional<double> by_distance;
  double by_id = 0;
  Interval distance_interval, id_interval;  // both that of ids without vectors
};

// Compares the first k columns of found [q x >= k] with the first k of truth [q x >= k], whose ids
// are rows of base [n x d] or no_id; queries [q x d]. An id that is listed twice counts once. A
// query whose truth has fewer than k rows is measured by those; one without any counts as 1.
//
// Throws ShapeMismatch where shapes do not fit (fewer than k columns of truth among them),
// InvalidArgument for an id that is no row of the base.
RecallFigures measure_recall(AnyMatrixView queries, AnyMatrixView base, Metric metric,
                             MatrixView<Id> found, MatrixView<Id> truth, std::int64_t k,
                             int threads);
// The same by ids alone, of any size. A row as near as the true k-th one counts as a mistake unless
// the truth lists it.
RecallFigures measure_recall_by_id(MatrixView<Id> found, MatrixView<Id> truth, std::int64_t k,
                                   int threads);

}  // namespace knear::cli
