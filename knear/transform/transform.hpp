// knear/transform/transform.hpp -- maps of vectors to vectors: principal components, rotations,
// centring, unit length, and chains of them.
//
//   const Transform pca = Transform::pca(rows, 64, {.whiten = true});
//   const Matrix<float> shorter = pca.apply(rows);           // [n x 64]
//   const Matrix<float> back = pca.inverse(shorter.view());  // [n x dim], near the rows
//   const Transform both = Transform::chain({pca, Transform::unit_norm(64)});
//
// Whatever it was made of, a transform is a list of steps: y = A x + b, y = x + b, or y = x / |x|.
// A, b and what a step returns are float32; each sum is made in float64, in one order, so that
// results have the same bits for any number of threads and rows and on every machine.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/progress.hpp"

namespace knear {

struct PcaOptions {
  // Divides each component by its standard deviation. Components in which the rows do not vary
  // become 0.
  bool whiten = false;
  // Mixes the components by a random rotation, so that all have about the same variance.
  bool rotate = false;
  // Puts the components in another order: those of each of so many equal parts have about the same
  // product of variances, as product quantisers want it (Ge, He, Ke, Sun, "Optimized product
  // quantization", 2013, section 4.3). Must divide the components. 1: largest variance first.
  std::int64_t balance_over = 1;
  // Subtracts the mean of the rows. If false, the components are the directions of the largest sums
  // of squares, and there is no shift: products of vectors stay as they are, as far as the
  // components hold them. "Variance" then means the mean square.
  bool centre = true;
  std::int64_t most_rows = 131072;  // uses a sample of so many rows; 0: all
  std::uint64_t seed = 1;           // of the sample and the rotation
  int threads = 0;                  // 0: as many as the process may use
  Progress progress = {};           // "principal components"
};

// A value, cheap to copy: copies share what they hold. Threads: calls may run at once.
class Transform {
 public:
  // The first `components` principal components of rows [n x dim] of any element type, n >= 2, 1 <=
  // components <= dim: a shift by the mean, then the eigenvectors of the covariance, each with its
  // largest coordinate positive. The inverse gives the nearest vector
  // that these components can say. Throws InvalidArgument naming the argument, for a NaN or an
  // infinity with its row, and for whitening of rows that are all the same; Cancelled.
  // The time grows with dim^3, or with dim n^2 for fewer rows than columns.
  static Transform pca(AnyMatrixView rows, std::int64_t components, const PcaOptions& options = {});
  // A random rotation, the same for the same seed. To fewer columns it is the projection on a
  // random subspace, from which there is no way back; to more columns lengths stay.
  static Transform rotation(std::int64_t dim_in, std::int64_t dim_out, std::uint64_t seed = 1);
  // y = x + offset [dim]; finite.
  static Transform shift(std::span<const float> offset);
  // The shift by minus the mean of rows [n x dim], n >= 1.
  static Transform centring(AnyMatrixView rows, int threads = 0);
  // Gives vectors of `dim` columns length 1; zero vectors stay zero. The inverse leaves vectors as
  // they are: their lengths are lost.
  static Transform unit_norm(std::int64_t dim);
  // y = A x + b, matrix [dim_out x dim_in], offset [dim_out] or empty for 0; both copied; finite.
  // The inverse is A^T (y - b) where rows or columns are orthonormal (to 1e-5), otherwise that by
  // the pseudo-inverse.
  static Transform linear(MatrixView<float> matrix, std::span<const float> offset = {});
  // One after another; each must take the columns that the one before gives.
  static Transform chain(const std::vector<Transform>& transforms);

  std::int64_t dim_in() const;
  std::int64_t dim_out() const;
  // Whether squared distances of any two vectors stay as they are, but for rounding.
  bool keeps_distances() const;

  // [n x dim_out] of rows [n x dim_in] of any element type. Throws ShapeMismatch; InvalidArgument
  // naming the row, for a NaN or an infinity or where a result is beyond float32; Cancelled
  // ("transform"). first_row: the number of the first row in messages.
  Matrix<float> apply(AnyMatrixView rows, int threads = 0, const Progress& progress = {},
                      std::int64_t first_row = 0) const;
  // [n x dim_in] of rows [n x dim_out]: the inverse of each step, backwards. Throws as apply().
  Matrix<float> inverse(AnyMatrixView rows, int threads = 0, const Progress& progress = {}) const;

  // What it does, one step after another; `matrix` and `offset` as above, empty where there is
  // none. They live as long as this or a copy.
  enum class Kind : std::uint8_t { linear, shift, unit_norm };
  struct Step {
    Kind kind;
    std::int64_t dim_in, dim_out;
    MatrixView<float> matrix;
    std::span<const float> offset;
  };
  std::vector<Step> steps() const;

 private:
  struct State;
  explicit Transform(std::vector<std::shared_ptr<const State>> steps);
  std::vector<std::shared_ptr<const State>> steps_;
};

}  // namespace knear
