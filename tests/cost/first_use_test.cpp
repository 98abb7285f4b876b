// A rate is measured, with any number of threads.
#include "knear/cost/first_use.hpp"

#include <gtest/gtest.h>

#include "knear/core/error.hpp"

namespace knear {
namespace {

TEST(FirstUse, HasSomeRate) {
  for (const int threads : {0, 1, 3, 40}) {
    const double rate = measure_first_use(threads);
    EXPECT_GT(rate, 1e6) << threads;  // slower than any machine that runs this test
    EXPECT_LT(rate, 1e14) << threads;
  }
  EXPECT_THROW(measure_first_use(-1), InvalidArgument);
}

}  // namespace
}  // namespace knear
