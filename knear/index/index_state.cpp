// How the transforms of an index are learned.
#include "knear/index/index_state.hpp"

#include <algorithm>
#include <cstring>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/sample.hpp"
#include "knear/index/index.hpp"
#include "knear/quantize/opq.hpp"

namespace knear::detail {
namespace {

Transform trained(const TransformShape& shape, AnyMatrixView rows, const TrainOptions& options) {
  switch (shape.kind) {
    case TransformShape::Kind::pca:
      return Transform::pca(rows, shape.dim_out,
                            {.whiten = shape.whiten,
                             .rotate = shape.rotate,
                             .seed = options.seed,
                             .threads = options.threads,
                             .progress = options.progress});
    case TransformShape::Kind::opq:
      return train_opq(rows, shape.sub_quantizers,
                       {.bits = shape.bits,
                        .dim_out = shape.dim_out,
                        .seed = options.seed,
                        .threads = options.threads,
                        .progress = options.progress});
    case TransformShape::Kind::rotation:
      return Transform::rotation(rows.cols(), shape.dim_out, options.seed);
    case TransformShape::Kind::unit_norm:
      break;
  }
  return Transform::unit_norm(rows.cols());
}

}  // namespace

AnyMatrix training_sample(const IndexShape& shape, AnyMatrixView vectors,
                          const TrainOptions& options) {
  constexpr std::int64_t usual_rows = 131072, rows_of_list = 128;
  const std::int64_t rows =
      options.rows > 0 ? options.rows : std::max(usual_rows, rows_of_list * shape.lists);
  if (rows >= vectors.rows()) return {};
  Random random(options.seed);
  return rows_at(vectors, sample_of(vectors.rows(), rows, random));
}

Transform trained_transform(const IndexShape& shape, AnyMatrixView vectors,
                            const TrainOptions& options) {
  std::vector<Transform> chain;
  Matrix<float> last;
  for (const TransformShape& one : shape.transforms) {
    const std::int64_t least = one.kind == TransformShape::Kind::pca   ? 2
                               : one.kind == TransformShape::Kind::opq ? std::int64_t{1} << one.bits
                                                                       : 0;
    if (vectors.rows() < least)
      throw InvalidArgument("vectors are {} rows, but training {} takes {} at least",
                            vectors.rows(), one.name(), least);
    chain.push_back(trained(one, vectors, options));
    if (chain.size() == shape.transforms.size()) break;
    last = chain.back().apply(vectors, options.threads);
    vectors = last.view();
  }
  return Transform::chain(chain);
}

bool equal(const Transform& a, const Transform& b) {
  const auto bytes_equal = [](const float* x, const float* y, std::size_t count) {
    return count == 0 || std::memcmp(x, y, count * sizeof(float)) == 0;
  };
  const std::vector<Transform::Step> left = a.steps(), right = b.steps();
  return std::equal(
      left.begin(), left.end(), right.begin(), right.end(),
      [&](const Transform::Step& x, const Transform::Step& y) {
        return x.kind == y.kind && x.dim_in == y.dim_in && x.dim_out == y.dim_out &&
               x.matrix.rows() == y.matrix.rows() && x.matrix.cols() == y.matrix.cols() &&
               x.offset.size() == y.offset.size() &&
               bytes_equal(x.matrix.data(), y.matrix.data(),
                           static_cast<std::size_t>(x.matrix.rows() * x.matrix.cols())) &&
               bytes_equal(x.offset.data(), y.offset.data(), x.offset.size());
      });
}

}  // namespace knear::detail
