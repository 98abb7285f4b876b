// cli/bench_ann.cpp -- `knear bench ann`: the Python program bench/ann, which runs in its place.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench.hpp"
#include "cli/commands.hpp"
#include "knear/core/error.hpp"
#include "knear/core/system.hpp"

namespace knear::cli {
namespace {

namespace fs = std::filesystem;

bool is_bench(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "ann", ignored) &&
         fs::is_regular_file(folder / "support/ann_protocol.py", ignored);
}

// bench/ann as it was installed with this program, or of the source tree that it was built in.
std::optional<fs::path> find_bench_ann() {
  const fs::path here = fs::path(detail::program_path()).parent_path();
  if (here.empty()) return std::nullopt;
  const fs::path installed = here.parent_path() / "share/knear/bench";
  if (is_bench(installed)) return installed / "ann";
  for (fs::path folder = here; folder.has_relative_path(); folder = folder.parent_path())
    if (is_bench(folder / "bench")) return folder / "bench/ann";
  return std::nullopt;
}

}  // namespace

void run_bench_ann(char** words) {
  const std::optional<fs::path> program = find_bench_ann();
  if (!program)
    throw Error(
        "bench ann is the program bench/ann of the source tree, which is neither installed beside "
        "this one (../share/knear/bench) nor above it; cmake --install puts it there");
  std::string python = "python3", path = program->string();
  std::vector<char*> command = {python.data(), path.data()};
  while (*words != nullptr) command.push_back(*words++);
  command.push_back(nullptr);
  execvp(command[0], command.data());
  if (errno == ENOENT)
    throw Error("bench ann is a Python program, but there is no python3 on the PATH; install it");
  throw Error(fmt::format("python3 cannot be started for bench ann: {}", std::strerror(errno)));
}

void add_bench_ann(CLI::App& bench) {
  bench.add_subcommand("ann", "How do indexes and other libraries do by ann-benchmarks' protocol?");
}

}  // namespace knear::cli
