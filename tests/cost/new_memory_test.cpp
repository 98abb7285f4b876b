// A rate is measured, with any number of threads.
#include "knear/cost/new_memory.hpp"

#include <gtest/gtest.h>

#include "knear/core/error.hpp"

namespace knear {
namespace {

TEST(NewMemory, IsGivenAtSomeRate) {
  for (const int threads : {0, 1, 3, 40}) {
    const double rate = measure_new_memory(threads);
    EXPECT_GT(rate, 1e6) << threads;  // slower than any machine that runs this test
    EXPECT_LT(rate, 1e14) << threads;
  }
  EXPECT_THROW(measure_new_memory(-1), InvalidArgument);
}

}  // namespace
}  // namespace knear
