// The checks of k-means that bench/gpu runs on a device, with the processor in its place: they
// accept what is right and report what is wrong.
#include "bench/gpu/k_means_checks.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

namespace knear::bench {

// A Report without the printing of report.cpp, which is for the program.
void Report::fail(std::string what) { failures.push_back(std::move(what)); }

namespace {

// The processor's k-means, changed.
Clustering here(const std::function<void(KMeans&)>& change) {
  return [=](AnyMatrixView rows, const RowBlocks* blocks, std::int64_t k, KMeansOptions options) {
    EXPECT_EQ(options.device, "cuda:1");
    options.device = "cpu";
    KMeans out = blocks ? k_means(*blocks, k, options) : k_means(rows, k, options);
    change(out);
    return out;
  };
}

TEST(KMeansChecks, PassWhatIsRight) {
  Report report;
  check_k_means(here([](KMeans&) {}), "cuda:1", 11, report);
  EXPECT_EQ(report.failures.empty() ? "" : report.failures.front(), "");
  EXPECT_GT(report.tests, 20);
}

TEST(KMeansChecks, ReportWhatIsWrong) {
  const auto expect = [](const std::function<void(KMeans&)>& change, const std::string& what) {
    Report report;
    check_k_means(here(change), "cuda:1", 97, report);
    EXPECT_GT(report.tests, 1);
    ASSERT_EQ(static_cast<int>(report.failures.size()), report.tests);
    EXPECT_NE(report.failures.front().find(what), std::string::npos) << report.failures.front();
  };
  expect([](KMeans& x) { x.centroids.row(0)[0] += 1; }, "centroid 0 has other bits");
  expect([](KMeans& x) { x.steps.back().objective *= 1 + 1e-15; }, "objective");
  expect([](KMeans& x) { ++x.steps.front().moved; }, "moved");
  expect([](KMeans& x) { x.steps.front().fallback_rows = 3; }, "3 rows were handed back");
  expect([](KMeans& x) { x.steps.pop_back(); }, "iterations instead of");
}

}  // namespace
}  // namespace knear::bench
