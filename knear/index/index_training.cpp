// How an index learns: what is done to vectors first, then the lists, then the quantisers.
#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/value_range.hpp"
#include "knear/index/index.hpp"
#include "knear/index/index_state.hpp"
#include "knear/quantize/opq.hpp"

namespace knear::detail {
namespace {

using Kind = TransformShape::Kind;

Transform rotation_for(const TransformShape& shape, AnyMatrixView rows,
                       const TrainOptions& options) {
  return train_opq(rows, shape.sub_quantizers,
                   {.bits = shape.bits,
                    .dim_out = shape.dim_out,
                    .seed = options.seed,
                    .threads = options.threads,
                    .progress = options.progress});
}

Transform trained(const TransformShape& shape, AnyMatrixView rows, const TrainOptions& options) {
  const std::int64_t least = shape.kind == Kind::pca   ? 2
                             : shape.kind == Kind::opq ? std::int64_t{1} << shape.bits
                                                       : 0;
  if (rows.rows() < least)
    throw InvalidArgument("vectors are {} rows, but training {} takes {} at least", rows.rows(),
                          shape.name(), least);
  switch (shape.kind) {
    case Kind::pca:
      return Transform::pca(rows, shape.dim_out,
                            {.whiten = shape.whiten,
                             .rotate = shape.rotate,
                             .seed = options.seed,
                             .threads = options.threads,
                             .progress = options.progress});
    case Kind::opq:
      return rotation_for(shape, rows, options);
    case Kind::rotation:
      return Transform::rotation(rows.cols(), shape.dim_out, options.seed);
    case Kind::unit_norm:
      break;
  }
  return Transform::unit_norm(rows.cols());
}

// What transforms, lists and quantisers behind transforms learn from: all vectors, or if this is
// not empty, some of them.
AnyMatrix training_sample(const IndexShape& shape, AnyMatrixView vectors,
                          const TrainOptions& options) {
  constexpr std::int64_t usual_rows = 131072;
  const std::int64_t rows =
      options.rows > 0 ? options.rows : std::max(usual_rows, CoarseQuantizer::training_rows(shape));
  if (rows >= vectors.rows()) return {};
  Random random(options.seed);
  return rows_at(vectors, sample_of(vectors.rows(), rows, random));
}

// Whether a rotation for a quantiser comes last that keeps distances, so that the lists may be
// found before it and it may serve what is left beside their centroids.
bool turns_residuals(const IndexShape& shape) {
  if (shape.transforms.empty() || shape.lists == 0 || !shape.codes || !shape.codes->residual)
    return false;
  const TransformShape& last = shape.transforms.back();
  const std::size_t count = shape.transforms.size();
  const std::int64_t before = count > 1 ? shape.transforms[count - 2].dim_out : shape.dim;
  return last.kind == Kind::opq && last.dim_out == before && shape.codes->is_product();
}

}  // namespace

void train(State& next, const IndexShape& shape, AnyMatrixView vectors,
           const TrainOptions& options) {
  find_value_range(vectors, shape.metric, "vectors", options.threads);  // by their own numbers
  const AnyMatrix sample =
      shape.transforms.empty() ? AnyMatrix() : training_sample(shape, vectors, options);
  AnyMatrixView rows = sample.rows() > 0 ? sample.view() : vectors;
  Matrix<float> transformed;
  std::vector<Transform> chain;
  const bool residuals = turns_residuals(shape);
  for (const TransformShape& one : shape.transforms) {
    const bool last = chain.size() + 1 == shape.transforms.size();
    if (last && residuals) {
      next.coarse = CoarseQuantizer::trained(rows, shape, options);
      const Matrix<float> left = next.coarse->residuals(rows, options.threads, options.progress);
      chain.push_back(trained(one, left.view(), options));
      next.coarse = next.coarse->turned(chain.back(), shape, options);
    } else {
      chain.push_back(trained(one, rows, options));
    }
    if (last && !shape.is_probed()) break;
    transformed = chain.back().apply(rows, options.threads);
    rows = transformed.view();
  }
  if (!chain.empty()) next.transform = Transform::chain(chain);
  if (shape.lists > 0 && !residuals) next.coarse = CoarseQuantizer::trained(rows, shape, options);
  if (shape.codes)
    next.coder = RowCoder::trained(*shape.codes, rows, shape.metric, next.coarse, options);
  if (shape.refine && shape.refine->codes)
    next.refiner = RowCoder::trained(*shape.refine->codes, vectors, shape.metric, nullptr, options);
  if (shape.codes) next.known = KnownNeighbors::of(vectors, shape.metric, options.seed);
}

}  // namespace knear::detail
