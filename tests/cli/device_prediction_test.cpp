// What --explain and --json say of a search on a GPU, of made-up reports: no GPU is needed.
#include "cli/device_prediction.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "cli/search_job.hpp"
#include "knear/core/error.hpp"
#include "knear/core/json.hpp"
#include "knear/io/vectors.hpp"
#include "knear/knn/device_peaks.hpp"

namespace knear::cli {
namespace {

KnnReport report_of_a_search() {
  KnnReport report;
  report.rows = report.allowed_rows = 1000000, report.dim = 128, report.queries = 10000;
  report.k = 10, report.scan.first_pass = "int8", report.device.name = "cuda:0",
  report.scan.chunks = 1;
  report.prepare_seconds = 0.03, report.seconds = 0.012;
  report.scan.multiply_adds = 1.28e12, report.promise.certified_queries = 10000, report.threads = 4;
  return report;
}

DevicePeaks gpu() { return peaks_of({"A GPU", 9, 0, 132, 1.98e9, 3352e9, 80e9}); }
KnownPeaks processor() { return {estimated_peaks(Isa::avx512_vnni, 16), false}; }

std::string planned(const std::vector<std::vector<std::string>>& lines, const std::string& name) {
  const auto line =
      std::find_if(lines.begin(), lines.end(), [&](const auto& each) { return each[0] == name; });
  return line == lines.end() ? "no line" : (*line)[1];
}

TEST(DevicePrediction, IsThatOfTheShapeOfTheReport) {
  const KnnReport report = report_of_a_search();
  const auto of = [&](const KnnReport& some, ElementType type, std::int64_t memory) {
    return predict_on_device(some, type, memory, gpu(), processor()).place.device;
  };
  const DeviceCost cost = of(report, ElementType::f32, 0);
  const DeviceCost by_hand = knear::predict_on_device(
      {.rows = 1000000, .dim = 128, .queries = 10000, .k = 10}, gpu(), processor().peaks);
  EXPECT_EQ(cost.seconds, by_hand.seconds);
  EXPECT_EQ(cost.limit, by_hand.limit);
  // Rows of a byte take a quarter of the time over the bus.
  EXPECT_NEAR(of(report, ElementType::u8, 0).upload_seconds, cost.upload_seconds / 4, 1e-9);
  EXPECT_GT(of(report, ElementType::f32, 100 << 20).chunks, 1);
  KnnReport whole = report;
  whole.scan.first_pass = "integer";
  EXPECT_LT(of(whole, ElementType::u8, 0).rescore_seconds,
            of(report, ElementType::u8, 0).rescore_seconds);
  KnnReport none = report;
  none.allowed_rows = 0;
  EXPECT_EQ(of(none, ElementType::f32, 0).seconds, 0);
  none.rows = none.queries = none.dim = none.k = 0;
  EXPECT_EQ(of(none, ElementType::f32, 0).seconds, 0);
}

TEST(DevicePrediction, ThereIsOneOfScansOfAllRows) {
  KnnReport report = report_of_a_search();
  EXPECT_TRUE(has_device_plan(report));
  report.method = "partial-reduce";
  EXPECT_TRUE(has_device_plan(report));
  report.method = "threshold-heap";
  EXPECT_FALSE(has_device_plan(report));
  report.method = "exact", report.lists.count = 16;
  EXPECT_FALSE(has_device_plan(report));
}

TEST(DevicePrediction, ExplainNamesTheLimitAndBothPlaces) {
  const KnnReport report = report_of_a_search();
  DevicePrediction prediction = predict_on_device(report, ElementType::f32, 0, gpu(), processor());
  const auto lines = explain_lines(report, prediction);
  for (const auto& line : lines) EXPECT_EQ(line.size(), 3u) << line[0];
  EXPECT_EQ(planned(lines, "device"), "A GPU");
  EXPECT_EQ(planned(lines, "limit"), prediction.place.device.limit);
  EXPECT_EQ(lines[4][2], "42.0 ms");  // with what brought the rows
  const auto says = [&](const std::string& text) {
    return explain_place(prediction).find(text) != std::string::npos;
  };
  EXPECT_TRUE(prediction.place.device_is_faster);
  EXPECT_TRUE(says("The processor is predicted to take "));
  EXPECT_TRUE(says(" times as long."));
  EXPECT_TRUE(says("nothing was measured on this one."));
  EXPECT_TRUE(says("'knear roofline' measures"));
  prediction.place.device_is_faster = false, prediction.measured_processor = true;
  EXPECT_TRUE(says(": the device takes "));
  EXPECT_FALSE(says("knear roofline"));
}

// What the program prints, with and without --explain.
TEST(DevicePrediction, IsInTheOutput) {
  const std::string file =
      (std::filesystem::temp_directory_path() / "knear_device_prediction_test.fvecs").string();
  Matrix<float> vectors(2, 4);
  std::fill_n(vectors.data(), 8, 0.5f);
  io::write_vectors(file, vectors.view());
  SearchOutcome outcome{.queries = io::VectorFile::open(file)};
  std::filesystem::remove(file);
  outcome.near = {Matrix<Id>(2, 1), Matrix<float>(2, 1)};
  outcome.report = report_of_a_search();
  outcome.device_prediction =
      predict_on_device(outcome.report, ElementType::f32, 0, gpu(), processor());
  SearchArguments arguments;
  arguments.device = "cuda";
  const auto printed = [&] {
    testing::internal::CaptureStdout();
    print_outcome(arguments, outcome);
    return testing::internal::GetCapturedStdout();
  };
  arguments.json = true;
  const auto plain = nlohmann::json::parse(printed());
  EXPECT_EQ(plain["predicted_seconds"], outcome.device_prediction->place.device.seconds);
  EXPECT_EQ(plain["limit"], outcome.device_prediction->place.device.limit);
  EXPECT_EQ(plain["peaks"], "data sheet");
  EXPECT_FALSE(plain.contains("explain"));
  arguments.explain = true;
  const auto explained = nlohmann::json::parse(printed())["explain"];
  EXPECT_EQ(explained["device_name"], "A GPU");
  EXPECT_EQ(explained["device_is_faster"], true);
  EXPECT_EQ(explained["processor_predicted_seconds"],
            outcome.device_prediction->place.processor.seconds);
  arguments.json = false;
  const std::string text = printed();
  EXPECT_NE(text.find("or second-level cache"), std::string::npos);
  EXPECT_NE(text.find("The processor is predicted to take"), std::string::npos);
  // Of what there is no plan for, the fields stay, without values.
  outcome.device_prediction.reset();
  arguments.json = true, arguments.explain = false;
  EXPECT_TRUE(nlohmann::json::parse(printed())["predicted_seconds"].is_null());
}

// Words and devices are refused as a search refuses them.
TEST(DevicePrediction, OfADeviceThatIsNotHere) {
  EXPECT_THROW(peaks_of_device("gpu"), InvalidArgument);
  EXPECT_THROW(peaks_of_device("cpu"), InvalidArgument);
  EXPECT_THROW(peaks_of_device("cuda:99"), DeviceUnavailable);
}

TEST(DevicePrediction, ADeviceThatIsNotHereIsSaidFirst) {
  SearchArguments arguments;
  arguments.device = "cuda:99", arguments.explain = true, arguments.k = 1;
  arguments.method = "threshold-heap";
  EXPECT_THROW(search_options(arguments), DeviceUnavailable);  // not that it has no plan
}

}  // namespace
}  // namespace knear::cli
