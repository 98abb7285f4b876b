// knear/quantize/product_quantizer.hpp -- vectors as a few bytes: a vector is cut into equal parts,
// and each part is replaced by the number of its nearest centroid.
//
//   const auto pq = ProductQuantizer::train(rows, 32, 8);           // 32 sub-quantisers of 8 bits
//   const Matrix<std::uint8_t> codes = pq.encode(rows);             // [n x 32]
//   const Matrix<float> rough = pq.decode(codes.view());            // [n x dim], near the rows
//   const Matrix<float> near = pq.distances(queries, codes.view(), Metric::l2);
//
// Jegou, Douze, Schmid, "Product quantization for nearest neighbor search" (2011), section II;
// Johnson, Douze, Jegou, section 2. Training is k-means in each part, encoding the scan for the
// nearest centroid: codes are those of float64 distances, ties to the smaller number, the same bits
// for any number of threads and on every machine.
#pragma once
#include <cstdint>
#include <memory>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/progress.hpp"

namespace knear {

namespace detail {
class CodeBook;  // scan/packing/code_book.hpp
}

struct ProductQuantizerOptions {
  int iterations = 25;  // of k-means, at most
  std::uint64_t seed = 1;
  // Uses a sample of so many rows; 0: all.
  std::int64_t most_rows = 65536;
  int threads = 0;         // 0: as many as the process may use
  Progress progress = {};  // "train quantizer", over all sub-quantisers
};

// A value, cheap to copy: copies share what they hold. Threads: calls may run at once.
class ProductQuantizer {
 public:
  // Trains `sub_quantizers` of `bits` (4 or 8) bits on rows [n x dim] of any element type, n >=
  // 2^bits; sub_quantizers must divide dim. Throws InvalidArgument naming the argument, for a NaN
  // or an infinity with its row; Cancelled. For cosine, train on and encode rows of unit length.
  static ProductQuantizer train(AnyMatrixView rows, std::int64_t sub_quantizers, int bits,
                                const ProductQuantizerOptions& options = {});
  // Of these centroids [sub_quantizers * 2^bits x dim / sub_quantizers], those of the first
  // sub-quantiser first; copied; finite.
  static ProductQuantizer from_centroids(MatrixView<float> centroids, std::int64_t sub_quantizers,
                                         int bits);
  // The same without a copy.
  static ProductQuantizer from_centroids(Matrix<float>&& centroids, std::int64_t sub_quantizers,
                                         int bits);

  std::int64_t dim() const;
  std::int64_t sub_quantizers() const;
  int bits() const;
  // Bytes of a code: a byte for each sub-quantiser of 8 bits; for each two of 4 bits, the first of
  // them in the lower half.
  std::int64_t code_size() const;
  // The centroids of sub-quantiser m [2^bits x dim / sub_quantizers].
  MatrixView<float> centroids(std::int64_t m) const;
  // Those of all, one after another, as from_centroids() takes them.
  MatrixView<float> all_centroids() const;
  // As the scan of codes takes them; lives as long as this or a copy.
  const detail::CodeBook& book() const;

  // The codes [n x code_size] of rows [n x dim] of any element type; finite. Throws ShapeMismatch,
  // InvalidArgument with the row, Cancelled.
  Matrix<std::uint8_t> encode(AnyMatrixView rows, int threads = 0,
                              const Progress& progress = {}) const;
  // The vectors [n x dim] that codes [n x code_size] stand for.
  Matrix<float> decode(MatrixView<std::uint8_t> codes, int threads = 0) const;

  // What each centroid adds to the distance of each query [q x dim]: [q x sub_quantizers * 2^bits],
  // for l2 squared distances of parts, for ip products; summed in float64, rounded once. Cosine
  // does not add up: InvalidArgument.
  Matrix<float> tables(AnyMatrixView queries, Metric metric, int threads = 0) const;
  // Distances [q x n] of queries [q x dim] to what codes [n x code_size] stand for (asymmetric:
  // queries are not coded): the sum of the entries of tables(), in float32, from the first
  // sub-quantiser to the last.
  Matrix<float> distances(AnyMatrixView queries, MatrixView<std::uint8_t> codes, Metric metric,
                          int threads = 0) const;
  // The same between codes [a x code_size] and codes [b x code_size] (symmetric): distances() of
  // what the first stand for.
  Matrix<float> code_distances(MatrixView<std::uint8_t> from, MatrixView<std::uint8_t> to,
                               Metric metric, int threads = 0) const;

 private:
  struct State;
  explicit ProductQuantizer(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace knear
