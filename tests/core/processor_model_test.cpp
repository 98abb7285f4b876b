// The processor's name and clock in texts as Linux gives them on each kind of processor.
#include "knear/core/processor_model.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace knear::detail {
namespace {

std::string model_in(const std::string& text) {
  std::istringstream cpuinfo(text);
  return processor_model_in(cpuinfo);
}

TEST(ProcessorModel, IsTheNameThatIsGiven) {
  EXPECT_EQ(model_in("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 17\n"
                     "model name\t: AMD EPYC 9554\n\nprocessor\t: 1\nmodel name\t: other\n"),
            "AMD EPYC 9554");
}

TEST(ProcessorModel, IsNumbersWhereThereIsNoName) {
  const std::string graviton =
      "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: fp asimd sve i8mm\nCPU implementer\t: "
      "0x41\n"
      "CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n\n";
  EXPECT_EQ(model_in(graviton), "implementer 0x41, part 0xd40, variant 0x1");
  // A phone's kinds of cores: the first one.
  EXPECT_EQ(model_in(graviton + "processor\t: 1\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\n"
                                "CPU part\t: 0xd05\n"),
            "implementer 0x41, part 0xd40, variant 0x1");
}

TEST(ProcessorModel, IsEmptyWhereNothingIsSaid) {
  EXPECT_EQ(model_in(""), "");
  EXPECT_EQ(model_in("processor : 0\nmodel name\nCPU part\t: 0xd40\n"), "");
}

double clock_in(const std::string& text) {
  std::istringstream cpuinfo(text);
  return processor_clock_in(cpuinfo);
}

TEST(ProcessorClock, IsTheHighestOfAllProcessors) {
  EXPECT_EQ(clock_in("processor\t: 0\ncpu MHz\t\t: 2596.122\n\nprocessor\t: 1\ncpu MHz\t\t: "
                     "3100.5\ncache size\t: 4 KB\n\nprocessor\t: 2\ncpu MHz\t\t: 800.000\n"),
            3100.5e6);
}

TEST(ProcessorClock, IsZeroWhereNothingIsSaid) {
  EXPECT_EQ(clock_in(""), 0);
  EXPECT_EQ(clock_in("processor\t: 0\nBogoMIPS\t: 2100.00\n"), 0);
  EXPECT_EQ(clock_in("cpu MHz\t\t: unknown\ncpu MHz\n"), 0);
}

}  // namespace
}  // namespace knear::detail
