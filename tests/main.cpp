// tests/main.cpp -- main() of the test programs. A program holds the tests of a folder.
//
//   scan_tests                                       # all of them
//   scan_tests --source=list_scan_test               # those of list_scan_test.cpp
//   scan_tests --source=list_scan_test --gtest_filter=-*NoMoreRows*
//
// ctest has an entry for each source: entries are short enough to run side by side, and a failed
// one names the source.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace {

// Returns true if a name matches one of the patterns of GoogleTest's list "A:B:C".
bool matches(const std::string& name, std::string_view patterns) {
  while (true) {
    const std::size_t end = patterns.find(':');
    if (fnmatch(std::string(patterns.substr(0, end)).c_str(), name.c_str(), 0) == 0) return true;
    if (end == patterns.npos) return false;
    patterns.remove_prefix(end + 1);
  }
}

// Returns true if GoogleTest's filter "POSITIVE-NEGATIVE" selects the test.
bool passes(const std::string& name, std::string_view filter) {
  const std::size_t minus = filter.find('-');
  const std::string_view positive = filter.substr(0, minus);
  if (!positive.empty() && !matches(name, positive)) return false;
  return minus == filter.npos || !matches(name, filter.substr(minus + 1));
}

// Limits the filter to the tests in SOURCE.cpp. Returns false if this program has no such tests.
bool select_tests_of(const std::string& source) {
  const std::string filter = GTEST_FLAG_GET(filter);
  bool exists = false;
  std::string names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (std::filesystem::path(test.file()).stem() != source) continue;
      exists = true;
      const std::string name = std::string(suite.name()) + "." + test.name();
      if (passes(name, filter)) names += name + ":";
    }
  }
  // An empty filter would select all tests.
  GTEST_FLAG_SET(filter, names.empty() ? std::string("-*") : names);
  return exists;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view option = "--source=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.substr(0, option.size()) != option) {
      std::fprintf(stderr, "unknown argument '%s'; there are --source=NAME and those of --help\n",
                   argv[i]);
      return 2;
    }
    const std::string source(argument.substr(option.size()));
    if (!select_tests_of(source)) {
      std::fprintf(stderr, "--source=%s: no test of this program is from %s.cpp\n", source.c_str(),
                   source.c_str());
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
