#include "knear/knn/rows/prefix_form.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "knear/cluster/centroid_scan.hpp"
#include "knear/cluster/k_means.hpp"
#include "knear/core/threads.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/transform/orthonormal.hpp"
#include "knear/transform/pca.hpp"
#include "knear/transform/product.hpp"

namespace knear::detail {
namespace {

// A sample of the rows as doubles, of unit length for cosine.
Matrix<double> sample_of(const BaseRows& base, Metric metric, std::int64_t most, int threads) {
  const std::int64_t n = std::min(base.rows(), most);
  CodingSpace plain;
  plain.metric = metric;
  plain.kernels = &scan_kernels(active_isa());
  auto out = Matrix<double>::unset(n, base.cols());
  constexpr std::int64_t block = 64;
  parallel_for(threads, (n + block - 1) / block, [&](std::int64_t task) {
    std::vector<std::byte> scratch(base.scratch_bytes());
    for (std::int64_t i = task * block; i < std::min(n, (task + 1) * block); ++i)
      plain.load(base.row_view(i * base.rows() / n, scratch.data()), 0, out.row(i));
  });
  return out;
}

// Rows of which the principal components are found: at most 64 MiB of doubles.
std::int64_t studied_rows(std::int64_t rows, std::int64_t dim) {
  return std::min(rows, std::clamp<std::int64_t>((1 << 23) / dim, 256, 4096));
}

// Vectors from which the mean was subtracted, in principal coordinates.
struct Coordinates {
  Matrix<float> rows;
  std::vector<float> rest, norm;  // lengths of what these leave out, and of the whole vectors
};
Coordinates coordinates_of(MatrixView<double> vectors, const PrincipalComponents& pca,
                           int threads) {
  const std::int64_t n = vectors.rows(), components = pca.basis.rows();
  Matrix<double> columns(pca.basis.cols(), components), along(n, components);
  for (std::int64_t c = 0; c < components; ++c)
    for (std::int64_t i = 0; i < columns.rows(); ++i) columns.row(i)[c] = pca.basis.row(c)[i];
  multiply(vectors, columns, along, threads);
  Coordinates out{Matrix<float>(n, components), {}, {}};
  for (std::int64_t i = 0; i < n; ++i) {
    const double *v = vectors.row(i), *y = along.row(i);
    const double whole = dot(v, v, vectors.cols()), rest = whole - dot(y, y, components);
    for (std::int64_t c = 0; c < components; ++c) out.rows.row(i)[c] = static_cast<float>(y[c]);
    out.rest.push_back(static_cast<float>(std::sqrt(std::max(0.0, rest))));
    out.norm.push_back(static_cast<float>(std::sqrt(whole)));
  }
  return out;
}

// The length of what the first width - 1 coordinates leave out, for each width.
void tails_of(const float* coordinates, std::int64_t components, float rest,
              const std::vector<std::int64_t>& widths, float* out) {
  double squares = static_cast<double>(rest) * rest;
  std::int64_t j = components;
  for (std::size_t w = widths.size(); w-- > 0;) {
    while (j > widths[w] - 1) {
      --j;
      squares += static_cast<double>(coordinates[j]) * coordinates[j];
    }
    out[w] = static_cast<float>(std::sqrt(squares));
  }
}

// Centroids with the column of ip (PrefixBase::centroids).
Matrix<float> with_terms(const Matrix<float>& centroids, const PrefixBase& made,
                         std::span<const std::uint32_t> order, const std::vector<double>& terms) {
  const std::int64_t columns = centroids.cols();
  Matrix<float> out(centroids.rows(), columns + 1);
  for (std::int64_t c = 0; c < out.rows(); ++c) {
    const std::uint32_t begin = made.cluster_begin[c];
    const std::uint32_t end = made.cluster_begin[c + 1];
    double sum = 0;
    for (std::uint32_t slot = begin; slot < end; ++slot) sum += terms[order[slot]];
    const double weight = made.map.mean_norm() * std::max(1u, end - begin);
    std::copy_n(centroids.row(c), columns, out.row(c));
    out.row(c)[columns] = static_cast<float>(weight > 0 ? sum / weight : 0);
  }
  return out;
}

}  // namespace

std::int64_t PrefixStudy::bytes() const {
  return rows.rows() * (rows.cols() + 2) * 4 + std::ssize(term) * 8 +
         pca.basis.rows() * pca.basis.cols() * 8;
}

PrefixStudy study_prefix(const BaseRows& base, Metric metric, int threads,
                         const Progress& progress) {
  const std::int64_t dim = base.cols();
  Reporter reporter(progress, "study rows", 3);
  reporter.add(1);
  Matrix<double> sample = sample_of(base, metric, studied_rows(base.rows(), dim), threads);
  const std::int64_t components = std::min(dim, most_prefix_columns) / 8 * 8 - 1;
  PrefixStudy out;
  out.metric = metric;
  out.pca = principal_components(sample, components, threads, progress);
  reporter.add(1);
  // At most 2,048 of them are kept.
  const std::int64_t step = (sample.rows() + 2047) / 2048, kept = (sample.rows() - 1) / step + 1;
  Coordinates along = coordinates_of({sample.data(), kept, dim, step * dim}, out.pca, threads);
  out.rows = std::move(along.rows);
  out.rest = std::move(along.rest), out.norm = std::move(along.norm);
  const std::vector<double>& mean = out.pca.mean;
  if (traits_of(metric).product)
    for (std::int64_t i = 0; i < kept; ++i)
      out.term.push_back(dot(sample.row(i * step), mean.data(), dim));
  out.usual_length = std::sqrt(out.pca.total_variance + dot(mean.data(), mean.data(), dim));
  return out;
}

ScanShape scan_shape(std::int64_t rows, std::int64_t dim, std::int64_t queries, std::int64_t k,
                     bool integer, Format format) {
  const bool wide = format == format_fp32, middle = format == format_int16;
  const std::int64_t row_bytes = dim * (wide ? 4 : middle ? 2 : 1);
  ScanShape shape;
  shape.rows = rows, shape.dim = dim;
  shape.queries = queries, shape.k = std::max<std::int64_t>(1, k);
  shape.bytes_per_element = wide ? 4 : middle ? 2 : 1;
  shape.op = wide ? ScanOp::fp32 : middle ? ScanOp::int16 : ScanOp::int8;
  shape.whole = integer;
  shape.tile_rows = std::clamp<std::int64_t>(usual_tile_bytes() / row_bytes, 32, 4096);
  return shape;
}

ScanCost plain_cost(const SearchShape& shape) {
  ScanShape scan =
      scan_shape(shape.rows, shape.dim, shape.queries, shape.k, shape.integer, shape.format);
  scan.expected_hits = shape.hits, scan.expected_survivors = shape.survivors;
  return predict_scan(scan, *shape.peaks);
}

ScanCost prefix_cost(const SearchShape& shape, const PrefixForecast& by) {
  ScanShape scan =
      scan_shape(shape.rows, shape.dim, shape.queries, shape.k, shape.integer, format_int8);
  scan.prefix = by.plan.columns, scan.second_rows = by.passed;
  scan.seed_rows = std::max(static_cast<double>(shape.rows) / static_cast<double>(by.plan.clusters),
                            3.0 * static_cast<double>(shape.k));
  ScanCost cost = predict_scan(scan, *shape.peaks);
  if (shape.scored < 1)  // the rows are mapped when the prefix is made, and again as queries
    cost.seconds += cost.query_seconds - (1 - shape.scored) * cost.scoring_seconds;
  return cost;
}

double making_seconds(const SearchShape& shape) {
  return study_seconds(shape) +
         prefix_making_seconds(shape.rows, shape.dim, usual_plan(shape).clusters, *shape.peaks);
}

// All threads multiply with the sample; one alone makes directions orthonormal and solves. Up to
// 192 columns are solved as they are. The operations are measured ones.
double study_seconds(const SearchShape& shape) {
  const double n = static_cast<double>(studied_rows(shape.rows, shape.dim));
  const double d = static_cast<double>(shape.dim);
  const bool few = shape.dim <= 192;
  const double products = n * d * (few ? 150 + 8 * d : 1850), alone = few ? 0 : 400e6 + 400e3 * d;
  return (products + alone * shape.peaks->threads) / shape.peaks->cop_per_second;
}

std::int64_t prefix_bytes_for(std::int64_t rows, std::int64_t dim) {
  const std::int64_t columns = std::min<std::int64_t>(64, dim), sample = studied_rows(rows, dim);
  const std::int64_t form =
      (rows + panel_rows) * (columns + 10 + dim + 3 + 16) + 1000 * columns * 8;
  // The sample and its coordinates, the subspace and its copies, the matrix that is solved.
  const std::int64_t making = rows * (columns * 4 + 60) +
                              sample * (dim * 9 + most_prefix_columns * 20) +
                              dim * (most_prefix_columns * 8 * 5 + columns * 16) + 192 * 192 * 32;
  return form + making + (1 << 20);
}

PrefixPlan usual_plan(const SearchShape& shape) {
  // Clusters of some 250 rows for few neighbours, of more for many.
  const std::int64_t in_cluster = std::clamp<std::int64_t>(4 * shape.k, 256, 1024);
  return {std::min<std::int64_t>(64, shape.dim / 8 * 8),
          std::clamp<std::int64_t>(shape.rows / in_cluster, 1, 1000)};
}

PrefixForecast forecast(const PrefixStudy& study, AnyMatrixView queries, const double* upper_bounds,
                        const SearchShape& shape, const PrefixPlan& made) {
  PrefixForecast out{usual_plan(shape)};
  if (made.columns > 0) out.plan = made;
  const std::int64_t components = study.rows.cols(), dim = shape.dim;
  std::vector<std::int64_t> widths;
  for (const std::int64_t columns : {8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128})
    if (columns - 1 <= components && columns <= dim &&
        (made.columns == 0 || columns == made.columns))
      widths.push_back(columns);
  if (widths.empty() || queries.rows() == 0) return out;
  const std::int64_t sample = study.rows.rows(), count = static_cast<std::int64_t>(widths.size());
  Matrix<float> tails(sample, count);
  for (std::int64_t i = 0; i < sample; ++i)
    tails_of(study.rows.row(i), components, study.rest[i], widths, tails.row(i));
  const bool ip = traits_of(study.metric).product;
  std::vector<double> passed(widths.size(), 0);
  CodingSpace plain;
  plain.metric = study.metric;
  plain.kernels = &scan_kernels(active_isa());
  if (!ip) plain.mean = study.pca.mean;
  // In a self-join a pair passes for either of two rows: the other has the bound of some query, for
  // ip as it would be of one as long; and queries are not scaled.
  const bool joins = shape.scored < 1;
  std::vector<double> longer(joins && ip ? sample : 0), shorter;
  for (std::size_t i = 0; i < longer.size(); ++i)
    longer[i] =
        std::sqrt(std::max(0.0, double(study.norm[i]) * double(study.norm[i]) + 2 * study.term[i] +
                                    dot(study.pca.mean.data(), study.pca.mean.data(), dim)));
  Matrix<double> x(queries.rows(), dim);
  std::vector<ScaledQuery> scaled(queries.rows());
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    plain.load(queries, q, x.row(q));
    if (joins && ip) shorter.push_back(std::sqrt(dot(x.row(q), x.row(q), dim)));
    if (ip) scaled[q] = scale_query(study.pca.mean, joins ? 0 : study.usual_length, x.row(q));
  }
  const Coordinates along = coordinates_of(x, study.pca, shape.peaks->threads);
  std::vector<float> tail(widths.size());
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    const float* coordinates = along.rows.row(q);
    const float norm = along.norm[q];
    tails_of(coordinates, components, along.rest[q], widths, tail.data());
    for (std::int64_t i = 0; i < sample; ++i) {
      double bound = upper_bounds[q];
      if (joins) {
        const std::size_t other = (q + i) % queries.rows();
        const double times = ip ? longer[i] / shorter[other] : 1;
        bound = std::max(bound, upper_bounds[other] * times);
      }
      if (traits_of(study.metric).unit_rows) bound *= 2;
      const float *y = study.rows.row(i), *its_tail = tails.row(i);
      // 8 bits: each code is off by about 1 % of the length.
      const double coding = 0.038 * norm * study.norm[i];
      const double limit =
          ip ? -scaled[q].scale * bound - scaled[q].product - study.term[i] - coding / 2
             : bound + coding;
      double sum = 0;
      std::int64_t j = 0;
      for (std::size_t w = 0; w < widths.size(); ++w) {
        double score = 0;  // what it is compared with the limit by, distance or product
        if (ip) {
          for (; j < widths[w] - 1; ++j) sum += double(coordinates[j]) * double(y[j]);
          score = -(sum + double(tail[w]) * its_tail[w]);
        } else {
          for (; j < widths[w] - 1; ++j)
            sum += double(coordinates[j] - y[j]) * double(coordinates[j] - y[j]);
          const double difference = double(tail[w]) - its_tail[w];
          score = sum + difference * difference;
        }
        if (score > (ip ? -limit : limit)) break;  // wider ones rule it out too
        ++passed[w];
      }
    }
  }
  const double pairs = static_cast<double>(queries.rows() * sample);
  // The largest products are not those of one cluster: the threshold after a share g of the rows is
  // about the k/g-th best of all, and the sum over 1/g begins with the first cluster. Of a
  // self-join that is not so: 20 to 70 pairs a row passed where 40 to 100 were forecast without it.
  const double later =
      ip && !joins ? std::max(1.0, std::log(static_cast<double>(out.plan.clusters))) : 1;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t w = 0; w < widths.size(); ++w) {
    PrefixForecast by = out;
    by.plan.columns = widths[w], by.possible = true;
    by.passed = static_cast<double>(shape.rows) * shape.scored * passed[w] / pairs * later;
    if (const double seconds = prefix_cost(shape, by).seconds; seconds < least)
      least = seconds, out = by;
  }
  return out;
}

std::shared_ptr<const PrefixBase> make_prefix(const BaseRows& base, const PrefixStudy& study,
                                              const CodingSpace& space, bool integer,
                                              const ValueRange& found, const PrefixPlan& plan,
                                              int threads, const Progress& progress,
                                              Matrix<float>* given_prefixes) {
  auto made = std::make_shared<PrefixBase>();
  PrefixBase& out = *made;
  const std::int64_t columns = plan.columns;
  const PrincipalComponents& pca = study.pca;
  const MatrixView<double> basis = pca.basis.view().rows(0, columns - 1);
  const Rotation rotation = random_rotation(columns, 1);
  out.map = PrefixMap::from_basis(study.metric, pca.mean, basis, pca.defect, rotation.matrix,
                                  rotation.defect, study.usual_length, active_isa());

  const Duplicates duplicates = Duplicates::find(base, {}, threads);
  std::vector<std::uint32_t> order;
  if (duplicates.any()) {
    order = duplicates.distinct();
  } else {
    order.resize(base.rows());
    std::iota(order.begin(), order.end(), 0u);
  }
  const std::int64_t rows = static_cast<std::int64_t>(order.size());
  const bool ip = traits_of(study.metric).product;
  Matrix<float> own;
  Matrix<float>& prefixes = given_prefixes ? *given_prefixes : own;
  prefixes = Matrix<float>(base.rows(), columns);
  std::vector<double> terms(ip ? static_cast<std::size_t>(base.rows()) : 0);
  constexpr std::int64_t block = 256;
  Reporter reporter(progress, "map rows", (rows + block - 1) / block);
  std::atomic<bool> fit = true;
  parallel_for(threads, (rows + block - 1) / block, [&](std::int64_t task) {
    std::vector<std::byte> row(base.scratch_bytes());
    PrefixMapper mapper(out.map, 32);
    const std::int64_t end = std::min(rows, (task + 1) * block);
    for (std::int64_t i = task * block; i < end; ++i) {
      const double term =
          mapper.add(base.row_view(order[i], row.data()), 0, prefixes.row(order[i]));
      if (ip) terms[order[i]] = term;
    }
    mapper.finish();
    for (std::int64_t i = task * block; i < end; ++i)
      if (!out.map.fits(prefixes.row(order[i]))) fit = false;
    reporter.add(1);
  });
  if (!fit) return nullptr;

  // Clusters of a sample of the prefixes.
  const std::int64_t clusters = std::min(plan.clusters, rows);
  const std::int64_t sampled = std::min(rows, 50 * clusters);
  Matrix<float> sample(sampled, columns);
  for (std::int64_t i = 0; i < sampled; ++i)
    std::copy_n(prefixes.row(order[i * rows / sampled]), columns, sample.row(i));
  Matrix<float> centroids =
      k_means(sample.view(), clusters, {.iterations = 4, .threads = threads, .progress = progress})
          .centroids;
  std::vector<std::uint32_t> cluster(base.rows());
  std::vector<double> keys(cluster.size());
  CentroidScan(centroids.view(), Metric::l2, threads)
      .assign(prefixes.view(), false, cluster, keys, progress);

  // By cluster, then by the largest coordinate, so that the rows of a panel fit one scale.
  std::vector<float> largest(base.rows());
  for (const std::uint32_t row : order)
    for (std::int64_t j = 0; j < columns; ++j)
      largest[row] = std::max(largest[row], std::fabs(prefixes.row(row)[j]));
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (cluster[a] != cluster[b]) return cluster[a] < cluster[b];
    return std::pair(largest[a], a) < std::pair(largest[b], b);
  });
  out.cluster_begin.assign(clusters + 1, 0);
  for (const std::uint32_t row : order) ++out.cluster_begin[cluster[row] + 1];
  std::partial_sum(out.cluster_begin.begin(), out.cluster_begin.end(), out.cluster_begin.begin());
  out.centroids = ip ? with_terms(centroids, out, order, terms) : std::move(centroids);
  out.pack_centroids(study.metric, threads);

  CodingSpace prefix_space =
      CodingSpace::choose(prefixes.view(), ip ? Metric::ip : Metric::l2, active_isa());
  prefix_space.off_relative = out.map.parts().off_relative;
  prefix_space.off_absolute = out.map.parts().off_absolute;
  out.panels = PackedBase::certified_in_order(prefixes.view(), order, format_int8, prefix_space,
                                              ip ? out.map.row_terms(terms.data()) : RowTerms{},
                                              threads, progress, plan.tile_bytes);
  out.panels.duplicates = duplicates;
  out.codes = per_row_codes(base, order, space, integer, found, threads, progress);
  return made;
}

}  // namespace knear::detail
