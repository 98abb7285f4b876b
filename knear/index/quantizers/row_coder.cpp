#include "knear/index/quantizers/row_coder.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/value_range.hpp"
#include "knear/distance/exact.hpp"
#include "knear/index/options.hpp"
#include "knear/index/recall/recall_rule.hpp"

namespace knear::detail {
namespace {

// Rows that a quantiser learns from, if nothing else is said.
constexpr std::int64_t usual_training_rows = 65536;
// Rows that are coded together.
constexpr std::int64_t rows_together = 1024;

// Variance of the rows, summed over the columns.
double variance_of(MatrixView<float> rows) {
  double out = 0;
  const auto n = static_cast<double>(rows.rows());
  for (std::int64_t j = 0; j < rows.cols(); ++j) {
    double mean = 0, squares = 0;
    for (std::int64_t i = 0; i < rows.rows(); ++i) mean += double{rows.row(i)[j]};
    mean /= n;
    for (std::int64_t i = 0; i < rows.rows(); ++i)
      squares += (double{rows.row(i)[j]} - mean) * (double{rows.row(i)[j]} - mean);
    out += squares / n;
  }
  return out;
}

// The squared length of the longest row.
double longest_square(MatrixView<float> rows) {
  double out = 0;
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    double squares = 0;
    for (std::int64_t j = 0; j < rows.cols(); ++j)
      squares += double{rows.row(i)[j]} * double{rows.row(i)[j]};
    out = std::max(out, squares);
  }
  return out;
}

}  // namespace

RowCoder::RowCoder(const CodeShape& shape, Metric metric,
                   std::shared_ptr<const CoarseQuantizer> coarse, Codec::Quantizer quantizer)
    : shape_(shape),
      metric_(metric),
      coarse_(std::move(coarse)),
      quantizer_(std::move(quantizer)),
      code_size_(codec_of(shape).code_size(shape, quantizer_->dim())) {
  double squares = 0;
  for (std::int64_t m = 0; m < book().parts(); ++m) {
    variance_ += variance_of(book().part(m));
    squares += longest_square(book().part(m));
  }
  longest_ = std::sqrt(squares);
  if (!residual()) return;
  const MatrixView<float> centroids = coarse_->centroids();
  variance_ += variance_of(centroids);
  longest_ += std::sqrt(longest_square(centroids));
  if (!l2()) return;
  middle_.assign(centroids.cols(), 0);
  for (std::int64_t l = 0; l < centroids.rows(); ++l)
    for (std::size_t j = 0; j < middle_.size(); ++j) middle_[j] += double{centroids.row(l)[j]};
  for (double& x : middle_) x /= static_cast<double>(centroids.rows());
}

std::shared_ptr<const RowCoder> RowCoder::of_numbers(const CodeShape& shape, std::int64_t dim,
                                                     Metric metric,
                                                     std::shared_ptr<const CoarseQuantizer> coarse,
                                                     std::span<const float> numbers) {
  return std::make_shared<const RowCoder>(shape, metric, std::move(coarse),
                                          codec_of(shape).of_numbers(shape, dim, numbers));
}

std::shared_ptr<const RowCoder> RowCoder::trained(const CodeShape& shape, AnyMatrixView vectors,
                                                  Metric metric,
                                                  std::shared_ptr<const CoarseQuantizer> coarse,
                                                  const TrainOptions& options,
                                                  const RowNumber& number) {
  const Codec& codec = codec_of(shape);
  const std::int64_t least = codec.least_rows(shape);
  if (vectors.rows() < least)
    throw InvalidArgument("vectors are {} rows, but training {} takes {} at least", vectors.rows(),
                          shape.name(), least);
  find_value_range(vectors, metric, "vectors", options.threads);
  AnyMatrix sample;
  std::vector<std::int64_t> drawn;
  const std::int64_t rows = options.rows > 0 ? options.rows : usual_training_rows;
  if (rows < vectors.rows()) {
    Random random(options.seed);
    drawn = sample_of(vectors.rows(), rows, random);
    sample = rows_at(vectors, drawn);
    vectors = sample;
  }
  std::vector<std::uint32_t> list_of;
  if (coarse && shape.residual)
    list_of = coarse->assign(vectors, options.threads, options.progress).list_of;
  const Matrix<float> coded =
      coded_part(vectors, 0, vectors.rows(), metric,
                 list_of.empty() ? MatrixView<float>() : coarse->centroids(), list_of);
  const RowNumber number_of = [&](std::int64_t row) {
    if (!drawn.empty()) row = drawn[row];
    return number ? number(row) : row;
  };
  check_lengths(coded.view(), number_of);
  if (traits_of(metric).product) check_lengths(vectors, number_of);
  if (!traits_of(metric).unit_rows) check_not_all_too_short(vectors);
  sample = AnyMatrix();
  return std::make_shared<const RowCoder>(shape, metric, std::move(coarse),
                                          codec.train(shape, coded.view(), options));
}

bool RowCoder::equals(const RowCoder& other) const {
  return shape_ == other.shape_ && quantizer_->equals(*other.quantizer_) &&
         (!coarse_ || coarse_->equals(*other.coarse_));
}

float RowCoder::scalar_of(const float* decoded, std::int64_t list) const {
  const std::int64_t dim = quantizer_->dim();
  const float* centroid = residual() ? coarse_->centroids().row(list) : nullptr;
  double sum = 0;
  if (traits_of(metric_).unit_rows) {
    for (std::int64_t j = 0; j < dim; ++j) {
      const double y = double{decoded[j]} + (centroid ? double{centroid[j]} : 0.0);
      sum += y * y;
    }
    return static_cast<float>(std::sqrt(sum));
  }
  for (std::int64_t j = 0; j < dim; ++j) {
    const double r = decoded[j];
    sum += r * r + 2 * (double{centroid[j]} - middle_[j]) * r;
  }
  return static_cast<float>(sum);
}

RowCoder::Codes RowCoder::encode(AnyMatrixView rows, std::span<const std::uint32_t> list_of,
                                 int threads, const Progress& progress, std::int64_t first) const {
  const std::int64_t n = rows.rows(), tasks = (n + rows_together - 1) / rows_together;
  Codes out{Matrix<std::uint8_t>(n, code_size()), {}};
  Reporter reporter(progress, "encode", tasks);
  std::vector<std::int64_t> too_long(tasks, n);
  parallel_for(threads, tasks, [&](std::int64_t task) {
    const std::int64_t begin = task * rows_together, end = std::min(n, begin + rows_together);
    const Matrix<float> part =
        coded_part(rows, begin, end, metric_,
                   residual() ? coarse_->centroids() : MatrixView<float>(), list_of);
    // Products take the whole row, which may be long where the coded part is short.
    const std::int64_t row =
        std::min(first_too_long(part.view()),
                 traits_of(metric_).product ? first_too_long(rows.rows(begin, end)) : part.rows());
    if (row < part.rows()) {
      too_long[task] = begin + row;
      return;
    }
    const Matrix<std::uint8_t> codes = quantizer_->encode(part.view());
    std::copy_n(codes.data(), (end - begin) * code_size(), out.codes.row(begin));
    reporter.add(1);
  });
  const auto bad = std::min_element(too_long.begin(), too_long.end());
  if (bad != too_long.end() && *bad < n) refuse_length(first + *bad);
  add_scalars(list_of, threads, out, first);
  return out;
}

void RowCoder::add_scalars(std::span<const std::uint32_t> list_of, int threads, Codes& to,
                           std::int64_t first) const {
  if (!has_scalars()) return;
  const std::int64_t n = to.codes.rows();
  to.scalars.resize(n);
  parallel_for(threads, (n + rows_together - 1) / rows_together, [&](std::int64_t task) {
    std::vector<float> decoded(quantizer_->dim());
    for (std::int64_t i = task * rows_together; i < std::min(n, (task + 1) * rows_together); ++i) {
      const std::uint8_t* const code = to.codes.row(i);
      quantizer_->decode({&code, 1}, 1, decoded.data());
      to.scalars[i] = scalar_of(decoded.data(), list_of.empty() ? 0 : list_of[i]);
    }
  });
  const auto bad = std::find_if(to.scalars.begin(), to.scalars.end(),
                                [](float scalar) { return !std::isfinite(scalar); });
  if (bad != to.scalars.end()) refuse_length(first + (bad - to.scalars.begin()));
}

void RowCoder::decode(const std::uint8_t* code, std::int64_t stride, std::int64_t list,
                      float* out) const {
  quantizer_->decode({&code, 1}, stride, out);
  if (!residual()) return;
  const float* centroid = coarse_->centroids().row(list);
  for (std::int64_t j = 0; j < quantizer_->dim(); ++j) out[j] += centroid[j];
}

std::vector<float> RowCoder::distances_to_few(AnyMatrixView rows, int threads) const {
  constexpr std::int64_t few = 4;
  const std::int64_t n = rows.rows(), parts = book().parts(), columns = book().width(),
                     step = book().count() / few;
  std::vector<float> out(n);
  parallel_for(threads, (n + rows_together - 1) / rows_together, [&](std::int64_t task) {
    const std::int64_t begin = task * rows_together, end = std::min(n, begin + rows_together);
    const Matrix<float> coded = coded_part(rows, begin, end, metric_, MatrixView<float>(), {});
    std::vector<double> turned(book().dim());
    for (std::int64_t i = begin; i < end; ++i) {
      std::copy_n(coded.row(i - begin), coded.cols(), turned.begin());
      quantizer_->turn(turned.data());
      double sum = 0;
      for (std::int64_t m = 0; m < parts; ++m) {
        const MatrixView<float> centroids = book().part(m);
        const double* const part = turned.data() + m * columns;
        double least = std::numeric_limits<double>::infinity();
        for (std::int64_t c = 0; c < few; ++c) {
          const float* const centroid = centroids.row(c * step + step / 2);
          double d = 0;
          for (std::int64_t j = 0; j < columns; ++j)
            d += (part[j] - double{centroid[j]}) * (part[j] - double{centroid[j]});
          least = std::min(least, d);
        }
        sum += least;
      }
      out[i] =
          static_cast<float>(std::min(sum, static_cast<double>(std::numeric_limits<float>::max())));
    }
  });
  return out;
}

CodedVectors RowCoder::vectors() const {
  CodedVectors out{.known = !quantizer_->turns()};
  if (residual()) out.centroids = coarse_->centroids(), out.middle = middle_;
  return out;
}

void RowCoder::prepare(AnyMatrixView queries, std::int64_t query, double* out) const {
  read_row(queries, query, metric_, out);
  for (std::int64_t j = 0; j < quantizer_->dim() && !squared(); ++j)
    out[j] = l2() ? -2 * (out[j] - middle_[j]) : -out[j];
  quantizer_->turn(out);
}

Matrix<float> RowCoder::terms(AnyMatrixView queries, MatrixView<Id> probes, int threads,
                              const Progress& progress) const {
  Matrix<float> out(probes.rows(), probes.cols());
  if (!residual()) return out;
  const Metric metric = l2() ? Metric::l2 : Metric::ip;
  constexpr std::int64_t together = 64;
  const std::int64_t tasks = (probes.rows() + together - 1) / together;
  Reporter reporter(progress, "measure centroids", tasks);
  parallel_for(threads, tasks, [&](std::int64_t task) {
    ExactDistance distance(metric, ElementType::f32, active_isa());
    AnyMatrix unit;  // of a query, for cosine
    std::vector<double> row(queries.cols());
    for (std::int64_t q = task * together; q < std::min(probes.rows(), (task + 1) * together);
         ++q) {
      if (traits_of(metric_).unit_rows) {
        unit = AnyMatrix(ElementType::f32, 1, queries.cols());
        read_row(queries, q, metric_, row.data());
        std::transform(row.begin(), row.end(), static_cast<float*>(unit.row(0)),
                       [](double x) { return static_cast<float>(x); });
        distance.set_query(unit, 0);
      } else {
        distance.set_query(queries, q);
      }
      for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p)
        out.row(q)[p] =
            static_cast<float>(distance.key(coarse_->centroids().row(probes.row(q)[p])));
    }
    reporter.add(1);
  });
  return out;
}

}  // namespace knear::detail
