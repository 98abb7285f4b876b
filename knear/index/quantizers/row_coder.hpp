// knear/index/quantizers/row_coder.hpp -- how an index keeps rows as codes of a few bytes: by a
// codec (codecs/codec.hpp) of the rows or of what is left of them beside their centroids.
//
//   coder.encode(rows, list_of, threads, progress)      // codes and scalars
//   coder.terms(queries, probes, threads)               // of queries and lists
//
// With a centroid c and the coded residual r a row stands for y = c + r, and
//   |q - y|^2 = |q - c|^2 + (|r|^2 + 2 <c - m, r>) - 2 <q - m, r>
// (Johnson et al., Eq. 11): a term of query and list, a scalar of the row and tables of the query
// alone. Any m will do; the mean of the centroids keeps the terms small where vectors lie far from
// the origin. For cosine, rows and queries have length 1, and the scalar is |y|.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/index/index_shape.hpp"
#include "knear/index/quantizers/coarse_quantizer.hpp"
#include "knear/index/quantizers/coded_part.hpp"
#include "knear/scan/methods/code_scan.hpp"
#include "knear/scan/packing/code_book.hpp"

namespace knear::detail {

// Any number of threads may use one.
class RowCoder {
 public:
  // coarse: nullptr without inverted lists.
  RowCoder(const CodeShape& shape, Metric metric, std::shared_ptr<const CoarseQuantizer> coarse,
           Codec::Quantizer quantizer);
  // Learns from vectors; errors as those of Index::train().
  static std::shared_ptr<const RowCoder> trained(const CodeShape& shape, AnyMatrixView vectors,
                                                 Metric metric,
                                                 std::shared_ptr<const CoarseQuantizer> coarse,
                                                 const TrainOptions& options,
                                                 const RowNumber& number = {});
  // Makes one that was trained elsewhere, of vectors of `dim` columns, as Codec::of_numbers() does.
  static std::shared_ptr<const RowCoder> of_numbers(const CodeShape& shape, std::int64_t dim,
                                                    Metric metric,
                                                    std::shared_ptr<const CoarseQuantizer> coarse,
                                                    std::span<const float> numbers);

  const CodeShape& shape() const { return shape_; }
  const RowQuantizer& quantizer() const { return *quantizer_; }
  const CodeBook& book() const { return quantizer_->book(); }
  std::int64_t code_size() const { return code_size_; }
  bool has_scalars() const { return traits_of(metric_).unit_rows || (l2() && residual()); }
  // Whether tables are of squared differences.
  bool squared() const { return l2() && !residual(); }
  bool equals(const RowCoder& other) const;

  struct Codes {
    Matrix<std::uint8_t> codes;  // [n x code_size]
    std::vector<float> scalars;  // [n], where rows have them
  };
  // list_of [n]: the list of each row; empty without lists. Throws InvalidArgument where a row is
  // so long that its square is no float32, naming it, of which the first has number `first`;
  // Cancelled.
  Codes encode(AnyMatrixView rows, std::span<const std::uint32_t> list_of, int threads,
               const Progress& progress, std::int64_t first = 0) const;
  // Fills in the scalars of codes; throws as encode().
  void add_scalars(std::span<const std::uint32_t> list_of, int threads, Codes& to,
                   std::int64_t first = 0) const;
  // The scalar of a row that stands for `decoded`, without its centroid, where rows have one.
  float scalar_of(const float* decoded, std::int64_t list) const;
  // What a code whose bytes lie `stride` apart stands for, in a list; out [dim].
  void decode(const std::uint8_t* code, std::int64_t stride, std::int64_t list, float* out) const;
  // What codes stand for, whose bytes lie one after another; out [codes x dim]. Without lists.
  void decode(std::span<const std::uint8_t* const> codes, float* out) const {
    quantizer_->decode(codes, 1, out);
  }

  // What tells rows like those that it was trained on from others [n]: the squared distance of each
  // part from the nearest of four centroids, summed. Not from all of them: those would be nearer to
  // the very rows that they are means of than to others like these.
  std::vector<float> distances_to_few(AnyMatrixView rows, int threads) const;

  // What a device needs to know of rows to multiply them (scan/methods/code_scan.hpp).
  CodedVectors vectors() const;
  // Writes the query in the form from which its tables are made; out [columns of the book].
  void prepare(AnyMatrixView queries, std::int64_t query, double* out) const;
  // The terms of queries and the lists that they probe, of no_id 0.
  Matrix<float> terms(AnyMatrixView queries, MatrixView<Id> probes, int threads,
                      const Progress& progress = {}) const;

  // Variance of what codes stand for, summed over the columns, if each centroid is as frequent as
  // the others.
  double variance() const { return variance_; }
  // No code stands for a longer vector than this.
  double longest() const { return longest_; }

  std::int64_t bytes() const { return book().bytes(); }

 private:
  bool l2() const { return traits_of(metric_).squared; }
  bool residual() const { return coarse_ && shape_.residual; }
  const CodeShape shape_;
  const Metric metric_;
  const std::shared_ptr<const CoarseQuantizer> coarse_;
  const Codec::Quantizer quantizer_;
  const std::int64_t code_size_;
  std::vector<double> middle_;  // m; empty: 0
  double variance_ = 0, longest_ = 0;
};

}  // namespace knear::detail
