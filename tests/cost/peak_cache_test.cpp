// The file of the measured peaks: stored figures are read back, and figures that make no sense are
// not.
#include "knear/cost/peak_cache.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "knear/cost/clock_limit.hpp"

namespace knear {
namespace {

class PeakCache : public testing::Test {
 protected:
  PeakCache() {
    folder_ = std::filesystem::temp_directory_path() / ("peak_cache." + std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "knear");
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  ~PeakCache() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& text) { std::ofstream(peak_cache_file()) << text; }

  static MachinePeaks peaks(double scale = 1) {
    MachinePeaks out = estimated_peaks(Isa::avx2, 3);
    out.int8_ops *= 1.5 * scale, out.memory_bytes_per_second *= 2;
    out.bf16_flops = std::numeric_limits<double>::quiet_NaN();
    out.caches[2] = {16 << 20, 200e9 * scale};
    return out;
  }
  std::filesystem::path folder_;
};

TEST_F(PeakCache, ServesTheSameLevelAndThreads) {
  EXPECT_FALSE(known_peaks(Isa::avx2, 3).measured);
  write(peak_cache_with(peaks()));
  const KnownPeaks known = known_peaks(Isa::avx2, 3);
  EXPECT_TRUE(known.measured);
  EXPECT_EQ(known.peaks.threads, 3);
  EXPECT_DOUBLE_EQ(known.peaks.int8_ops, peaks().int8_ops);
  EXPECT_DOUBLE_EQ(known.peaks.memory_bytes_per_second, peaks().memory_bytes_per_second);
  EXPECT_NE(known.peaks.bf16_flops, known.peaks.bf16_flops);  // not known
  EXPECT_EQ(known.peaks.caches[2].bytes, 16 << 20);
  EXPECT_DOUBLE_EQ(known.peaks.caches[2].bytes_per_second, 200e9);
  EXPECT_EQ(known.peaks.caches[0].bytes, 0);
  EXPECT_FALSE(known_peaks(Isa::avx2, 2).measured);
  EXPECT_FALSE(known_peaks(Isa::scalar, 3).measured);
  EXPECT_DOUBLE_EQ(known_peaks(Isa::avx2, 2).peaks.int8_ops,
                   estimated_peaks(Isa::avx2, 2).int8_ops);
}

TEST_F(PeakCache, KeepsTheBestOfEachFigure) {
  write(peak_cache_with(peaks()));
  MachinePeaks slower = peaks(0.5);
  slower.fp32_flops *= 2;
  write(peak_cache_with(slower));
  const MachinePeaks best = known_peaks(Isa::avx2, 3).peaks;
  EXPECT_DOUBLE_EQ(best.int8_ops, peaks().int8_ops);
  EXPECT_DOUBLE_EQ(best.fp32_flops, slower.fp32_flops);
  EXPECT_DOUBLE_EQ(best.caches[2].bytes_per_second, 200e9);
}

// Earlier versions measured clocks of 6 to 15 GHz, and wrote no version.
TEST_F(PeakCache, EntriesOfOtherVersionsAreMeasuredAgain) {
  const std::string whole = peak_cache_with(peaks());
  const std::string now = "\"version\": 2";
  ASSERT_NE(whole.find(now), std::string::npos);
  for (const char* other :
       {"\"version\": 1", "\"version\": 3", "\"version\": null", "\"no_word\": 2"}) {
    std::string text = whole;
    write(text.replace(whole.find(now), now.size(), other));
    EXPECT_FALSE(known_peaks(Isa::avx2, 3).measured) << other;
    // What is measured then takes its place, with no figure of it.
    MachinePeaks slower = peaks(0.5);
    write(peak_cache_with(slower));
    EXPECT_TRUE(known_peaks(Isa::avx2, 3).measured);
    EXPECT_DOUBLE_EQ(known_peaks(Isa::avx2, 3).peaks.int8_ops, slower.int8_ops);
  }
}

TEST_F(PeakCache, AClockThatNoProcessorHasIsNotKnown) {
  MachinePeaks fast = peaks();
  fast.cycles_per_second = 3 * 8.1e9;
  write(peak_cache_with(fast));
  EXPECT_TRUE(known_peaks(Isa::avx2, 3).measured);
  EXPECT_EQ(known_peaks(Isa::avx2, 3).peaks.cycles_per_second, 0);
  // It is not the best of two, either.
  fast.cycles_per_second = 3 * 1.5e9;
  write(peak_cache_with(fast));
  EXPECT_EQ(known_peaks(Isa::avx2, 3).peaks.cycles_per_second, 3 * 1.5e9);
}

TEST(ClockLimit, FollowsWhatTheSystemReports) {
  using detail::clock_limit;
  EXPECT_EQ(clock_limit({}), 8e9);
  EXPECT_EQ(clock_limit({.highest = 3.8e9, .nominal = 2.1e9}), 1.25 * 3.8e9);
  EXPECT_EQ(clock_limit({.highest = 7e9}), 8e9);
  EXPECT_EQ(clock_limit({.nominal = 2.6e9}), 2.5 * 2.6e9);
  EXPECT_EQ(clock_limit({.nominal = 0.8e9}), 4e9);  // the processor was idle
  EXPECT_EQ(clock_limit({.nominal = 5e9}), 8e9);
  EXPECT_LE(clock_limit(), 8e9);
  EXPECT_GE(clock_limit(), 0.1e9);
}

// A file where cycles are missing, or make no sense, is still used.
TEST_F(PeakCache, CyclesMayBeMissing) {
  const std::string whole = peak_cache_with(peaks());
  const auto from = whole.find("\"cycles_per_second\": ");
  ASSERT_LT(from, whole.size());
  std::string without = whole, senseless = whole;
  without.replace(from, 19, "\"something_else_now\"");
  senseless.insert(from + 21, "-");
  for (const std::string& text : {without, senseless}) {
    write(text);
    const KnownPeaks known = known_peaks(Isa::avx2, 3);
    EXPECT_TRUE(known.measured);
    EXPECT_EQ(known.peaks.cycles_per_second, 0);
  }
}

TEST_F(PeakCache, IgnoresAFileThatMakesNoSense) {
  const std::string whole = peak_cache_with(peaks());
  const auto known = [&](const std::string& text) {
    write(text);
    return known_peaks(Isa::avx2, 3).measured;
  };
  const auto replaced = [&](const std::string& what, const std::string& with) {
    std::string text = whole;
    const auto at = text.find("\"" + what + "\": ") + what.size() + 4;
    EXPECT_LT(at, text.size());
    return text.replace(at, text.find_first_of(",\n}", at) - at, with);
  };
  EXPECT_TRUE(known(replaced("int8_ops", "1e12")));
  for (const char* bad : {"-1", "0", "1e300", "1e3", "null", "\"fast\"", "[]", "{}", "true"})
    EXPECT_FALSE(known(replaced("int8_ops", bad))) << bad;
  for (const char* bad : {"", "[", "[]", "7", "{\"a\": 1}", "null"})
    EXPECT_FALSE(known(bad)) << bad;
  // A cache with figures that make no sense is not known; the rest is.
  for (const char* bad : {"-1", "1e300", "null", "\"\""}) {
    EXPECT_TRUE(known(replaced("bytes_per_second", bad))) << bad;
    EXPECT_EQ(known_peaks(Isa::avx2, 3).peaks.caches[0].bytes, 0);
  }
  EXPECT_FALSE(known(std::string(2 << 20, ' ') + whole));
}

TEST_F(PeakCache, PlansStayAsTheyWereWhenAProgramFirstAsked) {
  const double before = planning_peaks(Isa::avx2, 3).int8_ops;
  write(peak_cache_with(peaks(3)));
  EXPECT_EQ(planning_peaks(Isa::avx2, 3).int8_ops, before);
  EXPECT_EQ(&planning_peaks(Isa::avx2, 3), &planning_peaks(Isa::avx2, 3));
  EXPECT_EQ(planning_peaks(Isa::avx2, 7).threads, 7);
}

TEST(CacheDirectory, FollowsTheEnvironment) {
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(cache_directory(), "/home/someone/.cache/knear");
  unsetenv("HOME");
  EXPECT_EQ(cache_directory(), "");
  EXPECT_EQ(peak_cache_file(), "");
  EXPECT_THROW(known_peaks(Isa::scalar, -1), std::exception);
}

}  // namespace
}  // namespace knear
