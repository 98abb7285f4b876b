#include "bench/gpu/k_means_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "bench/gpu/ceiling.hpp"
#include "bench/gpu/made_vectors.hpp"
#include "knear/cluster/k_means.hpp"

namespace knear::bench {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void bench_k_means(int device, const Deadline& deadline, Report& report) {
  constexpr std::int64_t rows = 1000000, dim = 128, k = 4096;
  constexpr int iterations = 15, first_counted = 2;
  const std::string name = "k-means f32", shape = fmt::format("{} x {} to {}", rows, dim, k);
  if (deadline.left() < 10) {
    report.skipped.push_back(name + ": out of time");
    return;
  }
  fmt::print(stderr, "{}\n", name);
  const AnyMatrix base = make_clusters(ElementType::f32, rows, dim, 71);
  KMeansOptions options{.iterations = iterations, .device = fmt::format("cuda:{}", device)};
  const auto start = Clock::now();
  const KMeans found = k_means(base.view(), k, options);
  const double whole = std::chrono::duration<double>(Clock::now() - start).count();
  std::vector<double> seconds;
  for (const KMeansStep& step : found.steps) {
    if (step.fallback_rows != 0) {
      report.fail(fmt::format("{}, {}: {} rows were handed back, so its time says little", name,
                              shape, step.fallback_rows));
      return;
    }
    if (step.iteration >= first_counted) seconds.push_back(step.seconds);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  Entry entry{name,
              shape + ", an iteration",
              2e-12 * static_cast<double>(rows * k * dim) / median,
              "Top/s",
              median,
              (seconds.back() - seconds.front()) / median,
              {},
              ""};
  hold_against(product_ceiling(report, "int8"), entry);
  report.add(entry);
  report.notes.push_back(
      fmt::format("{}: the first iteration {:.2f} ms, the second {:.2f} ms, all "
                  "{} with seeding and upload {:.2f} s; in the last {} rows moved",
                  name, found.steps[0].seconds * 1e3, found.steps[1].seconds * 1e3,
                  found.steps.size(), whole, found.steps.back().moved));

  options.iterations = 2;
  const KMeans there = k_means(base.view(), k, options);
  options.device = "cpu";
  const KMeans here = k_means(base.view(), k, options);
  ++report.tests;
  if (std::memcmp(there.centroids.data(), here.centroids.data(), k * dim * sizeof(float)) != 0 ||
      there.steps[1].objective != here.steps[1].objective)
    report.fail(fmt::format("{}, {}: not the bits of the processor", name, shape));
}

}  // namespace knear::bench
