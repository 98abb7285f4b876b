// knear/transform/pca.hpp -- principal components: the directions in which vectors differ most.
//
//   const PrincipalComponents pca = principal_components(sample, 64, threads);
//   pca.basis.row(0)                            // the first direction, of unit length
//
// Computed in float64 from the sample of rows that is given: a few thousand rows determine the
// directions of any number well enough. Eigen solves the problem once it has few dimensions.
#pragma once
#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/progress.hpp"

namespace knear {

struct PrincipalComponents {
  std::vector<double> mean;       // [dim]
  Matrix<double> basis;           // [components x dim], rows orthonormal, largest variance first
  std::vector<double> variances;  // [components], along each of them
  double total_variance = 0;      // in all directions
  // basis basis^T differs from the identity by no more than this, as the root of the sum of
  // squares.
  double defect = 0;
};

// The first `components` of rows [n x dim], 1 <= components <= dim, n >= 2, finite elements. The
// mean is subtracted from the rows in place. Fewer than that many rows, or rows that span fewer
// dimensions, are fine: further directions are any that complete the basis. The same bits for the
// same rows, whatever the threads. Throws InvalidArgument.
//
// For rows more than 1.5 times as wide as the components (rounded up to 32) the directions are
// approximate, found by subspace iteration. Throws Cancelled if the progress says so: it is called
// between steps of up to a second or so.
PrincipalComponents principal_components(Matrix<double>& rows, std::int64_t components, int threads,
                                         const Progress& progress = {});

}  // namespace knear
