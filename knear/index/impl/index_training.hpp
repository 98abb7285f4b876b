// knear/index/impl/index_training.hpp -- how an index learns: what is done to vectors first, then
// the lists, then the quantisers.
#pragma once
#include "knear/core/matrix.hpp"
#include "knear/index/form/form.hpp"

namespace knear::detail {

// Makes of an untrained state what vectors [n x dim] teach, the transforms and then what the form
// learns. index: makes the index over the
// centroids of lists, where the shape has one. Errors as those of Index::train().
void train(State& next, const IndexShape& shape, AnyMatrixView vectors, const TrainOptions& options,
           TrainCentroidIndex index);

}  // namespace knear::detail
