// tests/cost/graph_plan_test.cpp -- predicted times of walks along a graph: what they grow with.
#include "knear/cost/graph_plan.hpp"

#include <gtest/gtest.h>

#include <string>

#include "knear/core/error.hpp"

namespace knear {
namespace {

MachinePeaks peaks_of(int threads) {
  MachinePeaks out;
  out.isa = Isa::avx512_vnni, out.threads = threads;
  out.int8_ops = 400e9 * threads;
  out.memory_bytes_per_second = 20e9 * threads, out.cycles_per_second = 3e9 * threads;
  out.caches[2] = {.bytes = 16 << 20, .bytes_per_second = 50e9 * threads};
  return out;
}

constexpr GraphShape walk{.rows = 1'000'000, .dim = 256, .queries = 1, .scored_rows = 4000};

double seconds_of(const GraphShape& shape) { return predict_graph(shape, peaks_of(1)); }

TEST(PredictGraph, GrowsWithWhatIsScored) {
  GraphShape more = walk;
  more.scored_rows = 8000;
  EXPECT_GT(seconds_of(more), 1.8 * seconds_of(walk));
  EXPECT_LT(seconds_of(more), 2 * seconds_of(walk));
  GraphShape wide = walk;
  wide.dim = 1024;
  EXPECT_GT(seconds_of(wide), 1.9 * seconds_of(walk));
  GraphShape many = walk;
  many.queries = 1000;
  EXPECT_GT(seconds_of(many), 850 * seconds_of(walk));
  EXPECT_LT(seconds_of(many), 1000 * seconds_of(walk));
}

TEST(PredictGraph, CachesAreFasterThanMemory) {
  GraphShape small = walk;
  small.rows = 5'000;
  EXPECT_LT(seconds_of(small), 0.8 * seconds_of(walk));
}

TEST(PredictGraph, CountsProducts) {
  MachinePeaks slow = peaks_of(1);
  slow.int8_ops /= 40;
  EXPECT_GT(predict_graph(walk, slow), 2 * seconds_of(walk));
}

TEST(PredictGraph, IsOfOneCore) {
  EXPECT_NEAR(predict_graph(walk, peaks_of(8)), seconds_of(walk), 1e-12);
  GraphShape none = walk;
  none.queries = 0;
  EXPECT_EQ(seconds_of(none), 0);
}

TEST(PredictGraph, SaysWhatIsWrong) {
  GraphShape wrong = walk;
  wrong.scored_rows = -1;
  try {
    seconds_of(wrong);
    ADD_FAILURE() << "fewer rows than none were taken";
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "scored_rows must not be negative, but is -1");
  }
}

}  // namespace
}  // namespace knear
