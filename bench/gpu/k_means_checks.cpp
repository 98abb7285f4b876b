#include "bench/gpu/k_means_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "bench/gpu/made_vectors.hpp"
#include "knear/cuda/device_error.hpp"

namespace knear::bench {
namespace {

constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine};

std::string first_difference(const KMeans& found, const KMeans& truth) {
  if (found.steps.size() != truth.steps.size())
    return fmt::format("{} iterations instead of {}", found.steps.size(), truth.steps.size());
  for (std::size_t i = 0; i < truth.steps.size(); ++i) {
    const KMeansStep &got = found.steps[i], &wanted = truth.steps[i];
    if (got.moved != wanted.moved || got.empty != wanted.empty || got.objective != wanted.objective)
      return fmt::format(
          "iteration {}: moved {}, empty {}, objective {:.17g} instead of {}, {}, "
          "{:.17g}",
          i, got.moved, got.empty, got.objective, wanted.moved, wanted.empty, wanted.objective);
    if (got.fallback_rows != 0)
      return fmt::format("iteration {}: {} rows were handed back", i, got.fallback_rows);
  }
  const std::int64_t dim = truth.centroids.cols();
  for (std::int64_t c = 0; c < truth.centroids.rows(); ++c)
    if (std::memcmp(found.centroids.row(c), truth.centroids.row(c),
                    static_cast<std::size_t>(dim) * sizeof(float)) != 0)
      return fmt::format("centroid {} has other bits", c);
  return "";
}

class Checks {
 public:
  Checks(const Clustering& clustering, const std::string& device, const CaseShare& share,
         Report& report)
      : clustering_(clustering), device_(device), share_(share), report_(report) {}

  // Returns true if the next case is to run. Call it before the data are made.
  bool next() { return share_.takes(number_++); }

  // block: rows of a block, of rows that come in blocks; 0: a matrix.
  void check(const std::string& what, AnyMatrixView rows, std::int64_t k, KMeansOptions options,
             std::int64_t block = 0) {
    const RowBlocks blocks{rows.rows(), rows.cols(),
                           [&](const std::function<void(AnyMatrixView)>& take) {
                             for (std::int64_t i = 0; i < rows.rows(); i += block)
                               take(rows.rows(i, std::min(rows.rows(), i + block)));
                           }};
    const KMeans truth = k_means(rows, k, options);
    options.device = device_;
    std::string error;
    try {
      error = first_difference(clustering_(rows, block > 0 ? &blocks : nullptr, k, options), truth);
    } catch (const cuda::DeviceError&) {
      throw;
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    ++report_.tests;
    if (!error.empty())
      report_.fail(fmt::format("k-means, {}, {} {} x {} {}, k {}: {}", what,
                               name_of(options.metric), rows.rows(), rows.cols(),
                               knear::name_of(rows.type()), k, error));
  }

 private:
  const Clustering& clustering_;
  std::string device_;
  CaseShare share_;
  std::int64_t number_ = 0;
  Report& report_;
};

std::vector<float> made_weights(std::int64_t rows) {
  std::vector<float> out(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i * 7 % 5) / 3;
  return out;
}

}  // namespace

void check_k_means(const Clustering& clustering, const std::string& device, const CaseShare& share,
                   Report& report) {
  Checks checks(clustering, device, share, report);
  const auto f32 = ElementType::f32;
  for (const ElementType type : all_element_types)
    for (const Metric metric : metrics)
      for (const std::int64_t k : {1, 40, 700}) {
        if (!checks.next()) continue;
        const AnyMatrix rows = make_vectors(VectorKind::clustered, type, 5000, 40, 61);
        const std::vector<float> weights = made_weights(5000);
        KMeansOptions options{.metric = metric, .iterations = 4};
        if (k == 40) options.weights = weights;
        checks.check("types", rows.view(), k, options);
      }
  int number = 0;
  for (const std::int64_t count : {31, 32, 33, 127, 128, 129, 8191, 8193})
    for (const std::int64_t dim : {1, 8, 31, 33, 96, 130})
      for (const std::int64_t k : {1, 3, 31, 100}) {
        const int n = number++;
        if (!checks.next() || k > count) continue;
        const AnyMatrix rows = make_vectors(VectorKind::uniform, f32, count, dim, 62);
        checks.check("sizes", rows.view(), k, {.metric = metrics[n % 3], .iterations = 3});
      }
  for (const std::int64_t dim : {900, 3000})
    for (const Metric metric : metrics) {
      if (!checks.next()) continue;
      const AnyMatrix rows = make_vectors(VectorKind::uniform, f32, 1500, dim, 63);
      checks.check("long rows", rows.view(), 200, {.metric = metric, .iterations = 2});
    }
  for (const VectorKind kind : all_vector_kinds)
    for (const Metric metric : metrics)
      for (const std::int64_t k : {60, 1000}) {
        if (!checks.next()) continue;
        const AnyMatrix rows = make_vectors(kind, f32, 6000, 24, 64);
        checks.check(std::string(name_of(kind)), rows.view(), k,
                     {.metric = metric, .iterations = 4});
      }
  for (const Metric metric : metrics)
    for (const std::int64_t block : {1000, 300000}) {
      if (!checks.next()) continue;
      const AnyMatrix rows = make_vectors(VectorKind::clustered, f32, 600000, 16, 65);
      checks.check("in blocks", rows.view(), 100, {.metric = metric, .iterations = 3}, block);
    }
  for (const Metric metric : metrics) {
    if (!checks.next()) continue;
    const AnyMatrix rows = make_vectors(VectorKind::uniform, f32, 4000, 20, 66);
    const Matrix<float> first = k_means(rows.view(), 9, {.iterations = 1}).centroids;
    checks.check("frozen", rows.view(), 30,
                 {.metric = metric, .iterations = 4, .initial = first.view(), .frozen_rows = 5});
  }
}

}  // namespace knear::bench
