// What rates are held against, and the verdicts of bench/gpu on its targets: without cuBLASLt there
// is no ceiling of products, and what needs one is unmeasured.
#include "bench/gpu/targets.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bench/gpu/ceiling.hpp"

namespace knear::bench {
namespace {

constexpr const char* shape = "10000 x 1000000 x 128";

Entry entry(const std::string& name, const std::string& what, double value, double seconds) {
  return {name, what, value, "", seconds, 0, {}, ""};
}

Report with_device() {
  Report out;
  out.device.emplace();
  out.entries = {entry("bf16 mma.sync", "", 500, 1), entry("int8 mma.sync", "", 1000, 1)};
  return out;
}

void add_search(Report& report, const char* name, const char* type, double value) {
  for (const char* part : {", whole run()", ", kernels alone"}) {
    Entry one = entry(name, std::string(shape) + part, value, 0.01);
    hold_against(product_ceiling(report, type), one);
    report.entries.push_back(one);
  }
}

const Target& target(const Report& report, const std::string& work, const std::string& words) {
  for (const Target& one : report.targets)
    if (one.work == work && one.target.find(words) != std::string::npos) return one;
  throw std::logic_error("no such target");
}

const std::string f32 = "exact, 10,000 x 1M x 128 fp32, k = 10";

TEST(Ceiling, IsTheBetterOfTheLibraryAndMma) {
  Report report = with_device();
  report.entries.push_back(entry("bf16 product", "", 400, 1));
  EXPECT_EQ(product_ceiling(report, "bf16").rate, 500);
  report.entries.push_back(entry("bf16 product", "another shape", 790, 1));
  EXPECT_EQ(product_ceiling(report, "bf16").rate, 790);
  EXPECT_EQ(product_ceiling(report, "bf16").name, "bf16");
}

TEST(Ceiling, WithoutTheLibraryThereIsNone) {
  Report report = with_device();
  EXPECT_EQ(product_ceiling(report, "int8").rate, std::nullopt);
  EXPECT_EQ(product_ceiling(report, "int8").name, "unmeasured: no int8 product");
  report.no_cublaslt = "none here";
  EXPECT_EQ(product_ceiling(report, "int8").rate, std::nullopt);
  EXPECT_EQ(product_ceiling(report, "int8").name, "unmeasured: no cuBLASLt");
}

TEST(Targets, WithTheLibrary) {
  Report report = with_device();
  report.entries.push_back(entry("bf16 product", "", 800, 1));
  report.entries.push_back(entry("fp32 product", std::string("cuBLASLt, ") + shape, 50, 0.05));
  add_search(report, "exact f32 k=10", "bf16", 440);
  report.entries.push_back(entry("int8 product", "", 1000, 1));
  Entry means = entry("k-means f32", "1000000 x 128 to 4096, an iteration", 400, 0.003);
  hold_against(product_ceiling(report, "int8"), means);
  report.entries.push_back(means);
  judge_targets(report);
  EXPECT_EQ(target(report, "k-means, 1M x 128 fp32 to 4,096, an iteration", "60 %").measured,
            "40.0 %: 3.000 ms");
  EXPECT_EQ(target(report, f32, "bf16 peak").verdict, "met");
  EXPECT_EQ(target(report, f32, "bf16 peak").measured.substr(0, 6), "55.0 %");
  EXPECT_EQ(target(report, f32, "cuBLAS").verdict, "met");
  EXPECT_EQ(target(report, "exact, 10,000 x 1M x 128 fp32, k = 100", "bf16").verdict, "skipped");
}

TEST(Targets, OfListsBesideAllRows) {
  const std::string work = "IVF1024,Flat, 10,000 x 1M x 128 fp32, k = 10", words = "as FAISS is";
  const auto judged = [&](const std::vector<Entry>& entries) {
    Report report = with_device();
    report.entries = entries;
    judge_targets(report);
    return target(report, work, words);
  };
  const std::string flat = std::string(shape) + ", IVF1024,Flat, ";
  EXPECT_EQ(judged({}).verdict, "skipped");
  std::vector<Entry> entries = {
      entry("lists f32 k=10", flat + "8 probes, whole call", 1e6, 0.001),
      entry("lists f32 k=10, all rows beside it",
            std::string(shape) + ", IVF1024,PQ32, 32 probes, recall 0.9900", 20, 0.01)};
  EXPECT_EQ(judged(entries).verdict, "not met");
  EXPECT_EQ(judged(entries).target, ">= 6.9 times as fast as all rows, as FAISS is");
  EXPECT_EQ(judged(entries).measured, "none of them found 0.948 of the neighbours");
  const std::string beside = "lists f32 k=10, all rows beside it";
  entries.push_back(entry(beside, flat + "32 probes, recall 0.9990", 5, 0.01));
  EXPECT_EQ(judged(entries).verdict, "not met");
  entries.push_back(entry(beside, flat + "8 probes, recall 0.9500", 8, 0.01));
  EXPECT_EQ(judged(entries).verdict, "met");
  EXPECT_EQ(judged(entries).measured, "8.0 times: 1.25 ms of 10.00 ms (8 probes, recall 0.9500)");
}

// The kernels that a GPU has beside those that searches take are in the same line.
TEST(Targets, OfBothScans) {
  Report report = with_device();
  report.entries.push_back(entry("bf16 product", "", 800, 1));
  add_search(report, "exact f32 k=10", "bf16", 360);
  add_search(report, "exact f32 k=10, warpgroups", "bf16", 480);
  judge_targets(report);
  const Target one = target(report, f32, "bf16 peak");
  EXPECT_EQ(one.verdict, "not met");
  EXPECT_EQ(one.measured,
            "45.0 %: 10.000 ms; kernels alone 45.0 %: 10.000 ms; warpgroups 60.0 %: 10.000 ms, "
            "kernels alone 60.0 %");
}

TEST(Targets, WithoutTheLibraryAreUnmeasured) {
  Report report = with_device();
  report.no_cublaslt = "none here";
  add_search(report, "exact f32 k=10", "bf16", 490);
  add_search(report, "exact u8 k=100", "int8", 900);
  Entry reduce = entry("partial-reduce bf16 k=10", std::string(shape) + ", recall 0.95", 480, 0.02);
  hold_against(product_ceiling(report, "bf16"), reduce);
  report.entries.push_back(reduce);
  Entry means = entry("k-means f32", "1000000 x 128 to 4096, an iteration", 400, 0.003);
  hold_against(product_ceiling(report, "int8"), means);
  report.entries.push_back(means);
  judge_targets(report);
  for (const Target& one :
       {target(report, f32, "bf16 peak"), target(report, f32, "cuBLAS"),
        target(report, "exact, 10,000 x 1M x 128 uint8, k = 100", "int8"),
        target(report, "partial-reduce, 10,000 x 1M x 128 bf16, k = 10", "bf16 product"),
        target(report, "k-means, 1M x 128 fp32 to 4,096, an iteration", "int8 product")}) {
    EXPECT_EQ(one.verdict, "unmeasured") << one.work << one.target;
    EXPECT_EQ(one.measured.find("unmeasured: no cuBLASLt; "), 0u) << one.measured;
    EXPECT_NE(one.measured.find(" ms"), std::string::npos) << one.measured;  // the time is known
  }
}

// The file is whole after each figure, and says that the library is missing.
TEST(Report, IsInItsFileAtAnyTime) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "report_test";
  std::filesystem::create_directories(folder);
  Report report;
  report.json = (folder / "report.json").string();
  report.no_cublaslt = "none here";
  const auto text = [&] {
    std::ostringstream out;
    out << std::ifstream(report.json).rdbuf();
    return out.str();
  };
  report.add(entry("first", "", 1, 1));
  EXPECT_NE(text().find("\"first\""), std::string::npos);
  EXPECT_NE(text().find("\"no_cublaslt\": \"none here\""), std::string::npos);
  report.fail("second");
  EXPECT_NE(text().find("\"first\""), std::string::npos);
  EXPECT_NE(text().find("\"failures\": [\"second\"]"), std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace knear::bench
