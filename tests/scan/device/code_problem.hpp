// tests/scan/device/code_problem.hpp -- codes, queries and what they probe, made for tests of the
// scan of codes on the emulated device and, by knear_gpu, on a GPU.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/scan/device/device_code_products.hpp"
#include "knear/scan/device/device_code_scan.hpp"

namespace knear::test {

using namespace knear::detail;

struct CodeShape {
  std::int64_t parts;
  int bits;
  std::int64_t width = 2;  // columns of a part
  Metric metric = Metric::l2;
  bool squared = true, scalars = false;
  // Rows of each list, of each segment.
  std::vector<std::vector<std::int64_t>> sizes = {{5, 0, 1, 63, 64, 65, 200}};
  std::int64_t queries = 3, probes = 4;
  int values = 0;  // so many different centroids of a part, whole numbers; 0: all differ
  std::uint64_t seed = 1;
  // Terms and scalars are those of vectors, which are residuals of centroids or not; else they are
  // any, and rows stand for none.
  enum class Rows { any, vectors, residuals } rows = Rows::any;
  double away = 0;  // of all centroids of lists from zero, in each column
};
// Rows that stand for vectors, by a metric.
inline CodeShape shape_of_vectors(CodeShape shape, Metric metric, bool residuals) {
  shape.metric = metric;
  shape.rows = residuals ? CodeShape::Rows::residuals : CodeShape::Rows::vectors;
  shape.squared = metric == Metric::l2 && !residuals;
  shape.scalars = metric == Metric::cosine || (metric == Metric::l2 && residuals);
  return shape;
}

// Codes of some segments and queries of them.
struct CodeProblem {
  CodeShape shape;
  CodeBook book;
  std::vector<CodedLists> lists;
  std::vector<std::vector<Id>> ids;  // ascending in each list, in no order otherwise
  Matrix<double> queries;
  Matrix<Id> probed;
  Matrix<float> terms;
  std::vector<AllowedRows> allowed;
  std::vector<const RowFilter*> allowed_ids;
  Matrix<float> centroids = {};  // [lists x dim] of residuals
  std::vector<double> middle = {};

  std::vector<CodeSegment> segments() const {
    std::vector<CodeSegment> out;
    for (std::size_t s = 0; s < lists.size(); ++s)
      out.push_back({&lists[s], RowIds{0, ids[s].data()}, allowed[s], allowed_ids[s]});
    return out;
  }
  CodeScanJob job(std::int64_t k) const {
    return {.book = &book,
            .metric = shape.metric,
            .squared = shape.squared,
            .prepare = [this](std::int64_t q,
                              double* out) { std::copy_n(queries.row(q), book.dim(), out); },
            .k = k,
            .threads = 1,
            .isa = active_isa(),
            .memory = 1 << 24,
            .vectors = {.known = shape.rows != CodeShape::Rows::any,
                        .centroids = centroids.view(),
                        .middle = middle}};
  }
};

// A column of the centroid of a list, as rows and queries of its list have it.
inline double centroid_of(const CodeProblem& problem, std::int64_t list, std::int64_t j) {
  if (problem.shape.rows != CodeShape::Rows::residuals) return 0;
  const double middle = problem.middle.empty() ? 0 : problem.middle[static_cast<std::size_t>(j)];
  return problem.centroids.row(list)[j] - middle;
}
// The terms of residuals, as an index has them.
inline void make_terms(CodeProblem& problem) {
  const bool l2 = problem.shape.metric == Metric::l2;
  for (std::int64_t q = 0; q < problem.queries.rows(); ++q) {
    const double* const p = problem.queries.row(q);
    for (std::int64_t i = 0; i < problem.probed.cols() && problem.probed.row(q)[i] != no_id; ++i) {
      double term = 0;
      for (std::int64_t j = 0; j < problem.centroids.cols(); ++j) {
        const double c = centroid_of(problem, problem.probed.row(q)[i], j);
        term += l2 ? (p[j] / -2 - c) * (p[j] / -2 - c) : p[j] * c;
      }
      problem.terms.row(q)[i] = static_cast<float>(term);
    }
  }
}
// Makes terms and scalars those of vectors.
inline void make_vectors(CodeProblem& problem, Random& random) {
  const CodeShape& shape = problem.shape;
  const bool l2 = shape.metric == Metric::l2;
  const std::int64_t dim = problem.book.dim();
  if (shape.rows == CodeShape::Rows::residuals) {
    problem.centroids = Matrix<float>(std::ssize(shape.sizes[0]), dim);
    for (std::int64_t l = 0; l < problem.centroids.rows(); ++l)
      for (std::int64_t j = 0; j < dim; ++j)
        problem.centroids.row(l)[j] =
            shape.values > 0 ? static_cast<float>(l % 2)
                             : static_cast<float>(shape.away + 2 * random.uniform() - 1);
    if (l2)
      problem.middle.assign(static_cast<std::size_t>(dim),
                            shape.values > 0 ? 0.0 : shape.away + 0.25);
  }
  std::vector<float> decoded(static_cast<std::size_t>(dim));
  for (CodedLists& lists : problem.lists) {
    const std::vector<std::uint32_t> list_of = lists.list_of();
    Matrix<std::uint8_t> codes(lists.rows(), problem.book.code_size());
    std::vector<float> scalars;
    for (std::int64_t row = 0; row < lists.rows(); ++row) {
      const CodedLists::Place place = lists.place(row);
      for (std::int64_t b = 0; b < codes.cols(); ++b)
        codes.row(row)[b] = place.code[b * place.stride];
      problem.book.decode(codes.row(row), 1, decoded.data());
      double sum = 0;
      for (std::int64_t j = 0; j < dim; ++j) {
        const double r = decoded[static_cast<std::size_t>(j)],
                     c = centroid_of(problem, list_of[static_cast<std::size_t>(row)], j);
        sum += l2 ? r * r + 2 * c * r : (c + r) * (c + r);
      }
      if (shape.scalars) scalars.push_back(static_cast<float>(l2 ? sum : std::sqrt(sum)));
    }
    lists = CodedLists::of(list_of, codes.view(), scalars);
  }
  for (std::int64_t q = 0; shape.metric == Metric::cosine && q < problem.queries.rows(); ++q) {
    double* const p = problem.queries.row(q);
    double squares = 0;
    for (std::int64_t j = 0; j < dim; ++j) squares += p[j] * p[j];
    for (std::int64_t j = 0; j < dim; ++j)
      p[j] = static_cast<float>(p[j] / std::sqrt(std::max(squares, 1e-300)));
  }
  make_terms(problem);
}

inline Matrix<float> centroids_of(const CodeShape& shape, Random& random) {
  Matrix<float> out(shape.parts << shape.bits, shape.width);
  for (std::int64_t c = 0; c < out.rows(); ++c)
    for (std::int64_t j = 0; j < out.cols(); ++j)
      out.row(c)[j] = shape.values > 0 ? static_cast<float>(c % shape.values)
                                       : static_cast<float>(random.uniform() - 0.5);
  return out;
}

inline CodeProblem problem_of(const CodeShape& shape) {
  Random random(shape.seed);
  CodeProblem out{shape,
                  CodeBook(centroids_of(shape, random), shape.parts, shape.bits),
                  {},
                  {},
                  Matrix<double>(shape.queries, shape.parts * shape.width),
                  Matrix<Id>(shape.queries, shape.probes),
                  Matrix<float>(shape.queries, shape.probes),
                  std::vector<AllowedRows>(shape.sizes.size()),
                  std::vector<const RowFilter*>(shape.sizes.size())};
  std::int64_t rows = 0;
  for (const auto& sizes : shape.sizes) rows = std::accumulate(sizes.begin(), sizes.end(), rows);
  std::vector<Id> all(static_cast<std::size_t>(rows));
  std::iota(all.begin(), all.end(), Id{0});
  for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
  for (Id& id : all) id = id < rows / 2 ? id : id + (Id{1} << 40);  // not of 32 bits alone
  auto next = all.begin();
  for (const auto& sizes : shape.sizes) {
    std::vector<std::uint32_t> list_of;
    std::vector<Id> ids;
    for (std::size_t list = 0; list < sizes.size(); ++list) {
      list_of.insert(list_of.end(), static_cast<std::size_t>(sizes[list]),
                     static_cast<std::uint32_t>(list));
      std::sort(next, next + sizes[list]);
      ids.insert(ids.end(), next, next + sizes[list]);
      next += sizes[list];
    }
    Matrix<std::uint8_t> codes(std::ssize(list_of), out.book.code_size());
    std::vector<float> scalars(shape.scalars ? list_of.size() : 0);
    for (std::int64_t row = 0; row < codes.rows(); ++row)
      for (std::int64_t b = 0; b < codes.cols(); ++b)
        codes.row(row)[b] = static_cast<std::uint8_t>(random.below(256));
    for (std::size_t i = 0; i < scalars.size(); ++i)  // rows of length 0 have sums of 0
      scalars[i] = shape.values == 1 && i % 7 == 0 ? 0
                   : shape.values > 0              ? 1
                                                   : static_cast<float>(0.1 + random.uniform());
    out.lists.push_back(CodedLists::of(list_of, codes.view(), scalars));
    out.ids.push_back(std::move(ids));
  }
  const auto lists = static_cast<std::uint64_t>(shape.sizes[0].size());
  for (std::int64_t q = 0; q < shape.queries; ++q) {
    for (std::int64_t j = 0; j < out.queries.cols(); ++j)
      out.queries.row(q)[j] =
          shape.values > 0 ? std::floor(3 * random.uniform()) : 2 * random.uniform() - 1;
    // Different lists from a random one on; the last query probes one alone.
    const std::uint64_t first = random.below(lists);
    for (std::int64_t p = 0; p < shape.probes; ++p) {
      const bool none =
          p >= static_cast<std::int64_t>(lists) || (q > 0 && q == shape.queries - 1 && p > 0);
      out.probed.row(q)[p] =
          none ? no_id : static_cast<Id>((first + static_cast<std::uint64_t>(p)) % lists);
      out.terms.row(q)[p] =
          none || shape.values > 0 ? 0 : static_cast<float>(random.uniform() - 0.5);
    }
  }
  if (shape.rows != CodeShape::Rows::any) make_vectors(out, random);
  return out;
}

// By definition.
inline CodedNeighbors plain_loop(const CodeProblem& problem, std::int64_t k) {
  CodedNeighbors out(problem.queries.rows(), k);
  const std::vector<CodeSegment> segments = problem.segments();
  for (std::int64_t q = 0; q < problem.queries.rows(); ++q) {
    std::vector<CodedNeighbors::Row> all;
    for (std::int64_t p = 0; p < problem.probed.cols() && problem.probed.row(q)[p] != no_id; ++p)
      for (std::uint32_t s = 0; s < segments.size(); ++s) {
        const CodedLists& lists = problem.lists[s];
        const auto [begin, end] = lists.rows_of(problem.probed.row(q)[p]);
        for (std::int64_t row = begin; row < end; ++row) {
          const Id id = segments[s].ids(row);
          if (!segments[s].allowed(row)) continue;
          if (segments[s].allowed_ids && !segments[s].allowed_ids->holds(id)) continue;
          const CodedLists::Place place = lists.place(row);
          const float sum = problem.book.sum(place.code, place.stride, problem.queries.row(q),
                                             problem.shape.squared),
                      term = problem.terms.row(q)[p],
                      scalar = lists.has_scalars() ? lists.scalars()[row] : 0;
          float key = term + sum;
          if (problem.shape.metric == Metric::l2) {
            key = term + scalar + sum;
            if (key < 0) key = 0;
          }
          if (problem.shape.metric == Metric::cosine)
            key = scalar == 0 ? 1 : 1 + (term + sum) / scalar;
          all.push_back(
              {std::isnan(key) ? std::numeric_limits<float>::infinity() : key, s, row, id});
        }
      }
    std::sort(all.begin(), all.end());
    std::copy_n(all.begin(), std::min<std::size_t>(all.size(), static_cast<std::size_t>(k)),
                out.of(q).begin());
  }
  return out;
}

// How the answers of so many queries differ; empty: not at all.
inline std::string first_difference(CodedNeighbors& got, CodedNeighbors& wanted,
                                    std::int64_t queries) {
  const auto text = [](const CodedNeighbors::Row& row) {
    return fmt::format("({:.9g}, id {}, row {} of segment {})", row.key, row.id, row.row,
                       row.segment);
  };
  for (std::int64_t q = 0; q < queries; ++q)
    for (std::size_t i = 0; i < wanted.of(q).size(); ++i) {
      const CodedNeighbors::Row &a = got.of(q)[i], &b = wanted.of(q)[i];
      if (a.id != b.id || a.key != b.key || a.row != b.row || a.segment != b.segment)
        return fmt::format("query {}, place {}: {} instead of {}", q, i, text(a), text(b));
    }
  return "";
}

// Codes of a problem on a device.
template <class Queue>
struct CodesOnDevice {
  DeviceCodeBook<Queue> book;
  std::vector<DeviceCodedLists<Queue>> lists;
  std::vector<DeviceCodeSegment<Queue>> segments;

  CodesOnDevice(Queue& queue, const CodeProblem& problem) : book(queue, problem.book) {
    const std::vector<CodeSegment> here = problem.segments();
    for (const CodeSegment& segment : here)
      lists.emplace_back(queue, *segment.lists, segment.ids, 1, 1 << 12);
    for (std::size_t s = 0; s < here.size(); ++s) segments.push_back({&lists[s], here[s]});
  }
};

inline std::vector<CodeScanWay> ways_of(const CodeProblem& problem, std::int64_t k) {
  const DeviceCodeBookView view{nullptr, static_cast<int>(problem.book.parts()),
                                problem.book.bits(), 1};
  if (code_scan_way(view, k) == CodeScanWay::fused)
    return {CodeScanWay::fused, CodeScanWay::several_passes};
  return {CodeScanWay::several_passes};
}
inline std::string name_of(CodeScanWay way) {
  return way == CodeScanWay::fused ? "fused" : "in several passes";
}

// How the processor, and both ways on the device, differ from the plain loop; empty: not at all.
template <class Queue>
std::string difference_of_ways(Queue& queue, const CodeProblem& problem, std::int64_t k) {
  const CodesOnDevice<Queue> there(queue, problem);
  const std::int64_t queries = problem.queries.rows();
  const CodeProbes probes{problem.probed.view(), problem.terms.view()};
  CodedNeighbors wanted = plain_loop(problem, k), found(queries, k);
  const CodeScanJob job = problem.job(k);
  ScanStats stats;
  scan_codes(problem.segments(), job, probes, found, stats, {});
  if (const std::string error = first_difference(found, wanted, queries); !error.empty())
    return "the processor, " + error;
  DeviceCodeScan<Queue> scan(queue, there.book, there.segments, job);
  for (const CodeScanWay way : ways_of(problem, k)) {
    CodedNeighbors got(queries, k);
    scan.run(probes, got, {}, way);
    if (const std::string error = first_difference(got, wanted, queries); !error.empty())
      return name_of(way) + ", " + error;
  }
  return "";
}

// How products of decoded rows differ from the plain loop; empty: not at all. left: how many
// queries they could not answer.
template <class Queue>
std::string difference_of_products(Queue& queue, const CodeProblem& problem, std::int64_t k,
                                   std::int64_t& left, DeviceStats& stats) {
  const CodesOnDevice<Queue> there(queue, problem);
  const std::int64_t queries = problem.queries.rows();
  const CodeScanJob job = problem.job(k);
  Matrix<double> asked(queries, problem.book.dim());
  for (std::int64_t i = 0; i < queries * asked.cols(); ++i)
    asked.data()[i] = problem.queries.data()[i] / table_factor(job);
  std::vector<std::int64_t> all(static_cast<std::size_t>(queries));
  std::iota(all.begin(), all.end(), 0);
  CodedNeighbors wanted = plain_loop(problem, k), got(queries, k);
  left = 0;
  for (std::size_t s = 0; s < there.segments.size(); ++s) {
    DeviceDecodedLists<Queue> decoded(queue, there.book, there.lists[s], there.segments[s].here,
                                      job);
    for (const std::int64_t q :
         decoded.run(asked, all, {problem.probed.view(), problem.terms.view()},
                     there.segments[s].here, static_cast<std::uint32_t>(s), job, got, stats, {})) {
      ++left;
      all.erase(std::find(all.begin(), all.end(), q));
      std::copy(wanted.of(q).begin(), wanted.of(q).end(), got.of(q).begin());
    }
  }
  return first_difference(got, wanted, queries);
}

}  // namespace knear::test
