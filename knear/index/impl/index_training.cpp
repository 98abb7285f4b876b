#include "knear/index/impl/index_training.hpp"

#include <algorithm>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/value_range.hpp"
#include "knear/quantize/opq.hpp"

namespace knear::detail {
namespace {

using TransformKind = TransformShape::Kind;

Transform rotation_for(const TransformShape& shape, AnyMatrixView rows,
                       const TrainOptions& options) {
  return train_opq(rows, shape.sub_quantizers,
                   {.bits = shape.bits,
                    .dim_out = shape.dim_out,
                    .seed = options.seed,
                    .threads = options.threads,
                    .progress = options.progress});
}

// Rows that learning a transform takes; 0: it learns nothing.
std::int64_t least_rows(const TransformShape& shape) {
  return shape.kind == TransformKind::pca   ? std::max<std::int64_t>(2, shape.dim_out)
         : shape.kind == TransformKind::opq ? std::int64_t{1} << shape.bits
                                            : 0;
}

// By a metric of products the mean stays: subtracted from rows and queries alike it would change
// products and angles. Directions for cosines are those of rows of length 1, so that the lengths of
// rows do not matter.
Transform principal_components_for(const TransformShape& shape, Metric metric, AnyMatrixView rows,
                                   const TrainOptions& options) {
  Matrix<float> unit;
  if (traits_of(metric).unit_rows) {
    unit = Transform::unit_norm(rows.cols()).apply(rows, options.threads);
    rows = unit.view();
  }
  return Transform::pca(rows, shape.dim_out,
                        {.whiten = shape.whiten,
                         .rotate = shape.rotate,
                         .centre = traits_of(metric).squared,
                         .seed = options.seed,
                         .threads = options.threads,
                         .progress = options.progress});
}

Transform trained(const TransformShape& shape, Metric metric, AnyMatrixView rows,
                  const TrainOptions& options) {
  const std::int64_t least = least_rows(shape);
  if (rows.rows() < least)
    throw InvalidArgument("vectors are {} rows, but training {} takes {} at least", rows.rows(),
                          shape.name(), least);
  switch (shape.kind) {
    case TransformKind::pca:
      return principal_components_for(shape, metric, rows, options);
    case TransformKind::opq:
      return rotation_for(shape, rows, options);
    case TransformKind::rotation:
      return Transform::rotation(rows.cols(), shape.dim_out, options.seed);
    case TransformKind::unit_norm:
      break;
  }
  return Transform::unit_norm(rows.cols());
}

// Which vectors an index learns from, if not from all; else nothing.
std::vector<std::int64_t> drawn_rows(const IndexShape& shape, std::int64_t n,
                                     const TrainOptions& options) {
  constexpr std::int64_t usual_rows = 131072;
  const std::int64_t rows =
      options.rows > 0 ? options.rows : std::max(usual_rows, CoarseQuantizer::training_rows(shape));
  if (rows >= n) return {};
  Random random(options.seed);
  return sample_of(n, rows, random);
}

// Of the rows that an index is given to learn from, those that it does: some are held out, so that
// queries like them are no strangers. At most so many, and of few rows a tenth.
class HeldOut {
 public:
  static constexpr std::int64_t most = 2 * least_held_out, part = 10;

  HeldOut(const IndexShape& shape, const Form& form, std::int64_t rows,
          const TrainOptions& options) {
    // What learning takes at least.
    std::int64_t least = form.least_training_rows();
    for (const TransformShape& one : shape.transforms) least = std::max(least, least_rows(one));
    const std::int64_t count = std::min({most, rows / part, rows - least});
    if (!options.hold_out || !form.learns() || count <= 0) return;
    Random random(options.seed ^ 0x68656c646f7574ULL);
    which_ = sample_of(rows, count, random);
    for (std::int64_t row = 0, next = 0; row < rows; ++row)
      if (next < count && which_[next] == row)
        ++next;
      else
        others_.push_back(row);
  }

  // Rows are numbered as these, which they are in turn.
  void number(std::span<const std::int64_t> numbers) {
    for (auto* some : {&which_, &others_})
      for (std::int64_t& row : *some) row = numbers[row];
  }

  bool any() const { return !which_.empty(); }
  // Which row the others have at a place.
  std::int64_t other(std::int64_t at) const { return any() ? others_[at] : at; }
  AnyMatrix rows(AnyMatrixView all) const { return rows_at(all, which_); }
  // The others, as copies in `storage` if there are held out ones.
  AnyMatrixView others(AnyMatrixView all, AnyMatrix& storage) const {
    if (!any()) return all;
    storage = rows_at(all, others_);
    return storage;
  }

 private:
  std::vector<std::int64_t> which_, others_;
};

}  // namespace

void train(State& next, const IndexShape& shape, AnyMatrixView vectors, const TrainOptions& options,
           TrainCentroidIndex index) {
  const std::unique_ptr<const Form> form = form_of(shape);
  find_value_range(vectors, shape.metric, "vectors", options.threads);  // by their own numbers
  if (shape.rounds_vectors())
    check_float32_tells_apart(vectors, "vectors", "codes and transformed vectors");
  const std::vector<std::int64_t> drawn = drawn_rows(shape, vectors.rows(), options);
  HeldOut held_out(shape, *form, drawn.empty() ? vectors.rows() : std::ssize(drawn), options);
  AnyMatrix sample;
  if (!drawn.empty() && !shape.transforms.empty()) sample = rows_at(vectors, drawn);
  const AnyMatrixView plain = sample.rows() > 0 ? sample.view() : vectors;
  if (!drawn.empty() && shape.transforms.empty()) held_out.number(drawn);
  // Of a row that is learned from, in the vectors.
  const RowNumber number = [&](std::int64_t row) {
    row = held_out.other(row);
    return sample.rows() > 0 ? drawn[row] : row;
  };
  AnyMatrix storage;
  AnyMatrixView rows = plain;
  Matrix<float> transformed;
  std::vector<Transform> chain;
  const bool residuals = form->turns_residuals();
  for (const TransformShape& one : shape.transforms) {
    const bool last = chain.size() + 1 == shape.transforms.size();
    if (last && residuals) {
      const AnyMatrixView others = held_out.others(rows, storage);
      next.coarse = CoarseQuantizer::trained(others, shape, options, index);
      const Matrix<float> left = next.coarse->residuals(others, options.threads, options.progress);
      check_lengths(left.view(), number);
      chain.push_back(trained(one, shape.metric, left.view(), options));
      next.coarse = next.coarse->turned(chain.back(), shape, options, index);
    } else {
      chain.push_back(trained(
          one, shape.metric, least_rows(one) > 0 ? held_out.others(rows, storage) : rows, options));
    }
    if (last && !form->learns()) break;
    transformed = chain.back().apply(rows, options.threads);
    rows = transformed.view();
  }
  if (!chain.empty()) next.transform = Transform::chain(chain);
  const AnyMatrix apart = held_out.any() ? held_out.rows(rows) : AnyMatrix(),
                  apart_as_given = held_out.any() ? held_out.rows(plain) : AnyMatrix();
  const std::function<AnyMatrixView()> given = [&] { return held_out.others(plain, storage); };
  rows = held_out.others(rows, storage);
  form->train(next,
              {rows, given, apart, apart_as_given, vectors, residuals, number, options, index});
}

}  // namespace knear::detail
