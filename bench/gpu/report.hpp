// bench/gpu/report.hpp -- the results, as one table at the end and as JSON.
#pragma once
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "knear/cuda/device.hpp"

namespace knear::bench {

struct Entry {
  std::string name;               // "select k=100", with the shape in `what`
  std::string what;               // shape and method
  double value = 0;               // in `unit`
  std::string unit;               // "GB/s", "Tflop/s", "Top/s"
  double seconds = 0;             // one run, the median
  double spread = 0;              // (slowest - fastest) / median of the runs
  std::optional<double> of_peak;  // fraction of the ceiling named in `peak`
  std::string peak;               // or why there is none
};

// One line of the table of targets: the target and what was measured.
struct Target {
  std::string work, target;
  std::string measured;  // or why it was not
  std::string verdict;   // "met", "not met", "unmeasured", "skipped"
};

struct Report {
  std::optional<cuda::DeviceInfo> device;
  std::string no_cublaslt;  // why, where there is none
  int tests = 0;
  std::vector<std::string> failures;
  std::vector<Entry> entries;
  std::vector<std::string> skipped;  // "name: why"
  std::vector<std::string> notes;    // remarks that fit no entry
  std::vector<Target> targets;
  std::string json;  // a file that holds all of it at any time, if it has a name

  // Notes it, says so on standard error and writes the file, so that what was found is known even
  // if the program does not come to its end.
  void fail(std::string what);
  void add(Entry entry);
  void save() const;

  // Prints all but the targets, or the targets.
  void print_table(std::FILE* out) const;
  void print_targets(std::FILE* out) const;
  // In one step: the file is the old one until it is the new one. Throws IoError.
  void write_json(const std::string& path) const;
};

}  // namespace knear::bench
