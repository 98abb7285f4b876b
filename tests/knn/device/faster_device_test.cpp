// device = "auto": where a search runs by the model of costs, on a machine whose processor is said
// to be slow with one thread.
#include "knear/knn/faster_device.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "knear/core/random.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/knn/knn.hpp"
#include "knear/knn/streamed_search.hpp"
#include "tests/knn/device/emulated_gpus.hpp"
#include "tests/knn/refused.hpp"

namespace knear {
namespace {

constexpr int slow = 1, usual = 2;  // threads
constexpr std::int64_t dim = 64;

// Before the first search, which reads the file.
class SlowProcessor final : public testing::Environment {
 public:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("knear_faster_device_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "knear");
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
    // Both are given, so that what is predicted to be faster does not depend on the levels that
    // this processor has. The slow one has slow products alone: it also makes codes for a GPU.
    MachinePeaks slow_peaks = estimated_peaks(active_isa(), slow),
                 usual_peaks = estimated_peaks(active_isa(), usual);
    for (double MachinePeaks::*const rate : {&MachinePeaks::fp32_flops, &MachinePeaks::bf16_flops,
                                             &MachinePeaks::int16_ops, &MachinePeaks::int8_ops})
      slow_peaks.*rate /= 40, usual_peaks.*rate *= 20;
    usual_peaks.cop_per_second *= 20, usual_peaks.memory_bytes_per_second *= 20;
    for (const MachinePeaks& peaks : {slow_peaks, usual_peaks}) {
      const std::string content = peak_cache_with(peaks);
      std::ofstream(peak_cache_file()) << content;
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

 private:
  std::filesystem::path folder_;
};
const testing::Environment* const environment =
    testing::AddGlobalTestEnvironment(new SlowProcessor);

Matrix<float> made(std::int64_t rows, std::uint64_t seed) {
  Matrix<float> out(rows, dim);
  Random random(seed);
  for (std::int64_t i = 0; i < rows * dim; ++i)
    out.data()[i] = static_cast<float>(random.uniform());
  return out;
}
void expect_same(const Neighbors& a, const Neighbors& b) {
  ASSERT_EQ(a.ids.rows(), b.ids.rows());
  for (std::int64_t i = 0; i < a.ids.rows() * a.ids.cols(); ++i) {
    EXPECT_EQ(a.ids.data()[i], b.ids.data()[i]);
    EXPECT_EQ(a.distances.data()[i], b.distances.data()[i]);
  }
}

const Matrix<float> base = made(1200, 30), queries = made(300, 31);

std::string place_of(KnnOptions options, AnyMatrixView asked = queries.view()) {
  KnnOptions here = options;
  options.device = "auto";
  KnnReport report;
  expect_same(knn(asked, base.view(), 3, options, &report), knn(asked, base.view(), 3, here));
  return report.device.name;
}

TEST(FasterDevice, IsTheProcessorWhereThereIsNoGpu) {
  EXPECT_EQ(place_of({.threads = slow}), "cpu");
}

TEST(FasterDevice, IsTheOneThatIsPredictedToBeFaster) {
  test::EmulatedGpus gpus(2);
  EXPECT_EQ(place_of({.threads = usual}), "cpu");  // launches take longer than the search
  EXPECT_EQ(gpus[0].launches(), 0);
  EXPECT_EQ(place_of({.threads = slow}), "cuda");
  EXPECT_GT(gpus[0].launches(), 0);
  EXPECT_EQ(gpus[1].launches(), 0);

  const KnnOptions options{.threads = slow, .device = "auto"};
  KnnReport report;
  expect_same(self_join(base.view(), 3, options, &report), self_join(base.view(), 3));
  EXPECT_EQ(report.device.name, "cuda");
  const ExactSearcher searcher(base.view(), {});
  expect_same(searcher.search(queries.view(), 3, options, &report),
              knn(queries.view(), base.view(), 3));
  EXPECT_EQ(report.device.name, "cuda");
  searcher.range_search(queries.view(), 1, options, &report);
  EXPECT_EQ(report.device.name, "cuda");
}

// What a GPU does not have, what is not exact, nothing to do, and a GPU that no data sheet covers.
TEST(FasterDevice, IsTheProcessorForAllElse) {
  test::EmulatedGpus gpus(1);
  EXPECT_EQ(place_of({.threads = slow, .first_pass = FirstPass::fp32}), "cpu");
  EXPECT_EQ(place_of({.threads = slow, .tuning = {.group = 4}}), "cpu");
  EXPECT_EQ(place_of({.threads = slow, .method = {.kind = Method::partial_reduce, .recall = 0.9}}),
            "cpu");
  EXPECT_EQ(place_of({.threads = slow}, Matrix<float>(0, dim).view()), "cpu");
  gpus.described.major = 7;
  EXPECT_EQ(place_of({.threads = slow}), "cpu");
  EXPECT_EQ(gpus[0].launches(), 0);
}

// Searches for which there is no model of a GPU say so.
TEST(FasterDevice, IsRefusedElsewhere) {
  const char* const words =
      "device is auto, which chooses for exact searches of rows that are given in memory alone";
  test::expect_refused<InvalidArgument>(
      [] { StreamedSearch(queries.view(), 3, {.device = "auto"}, 100); }, words);
  test::expect_refused<InvalidArgument>([] { check_device("auto"); }, words);
}

}  // namespace
}  // namespace knear
