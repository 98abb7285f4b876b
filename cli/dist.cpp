// cli/dist.cpp -- `knear dist`: the program knear-dist, which runs in its place, so that this one
// and the Python package link to no MPI.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "knear/core/error.hpp"
#include "knear/core/system.hpp"

namespace knear::cli {

void run_dist(char** words) {
  namespace fs = std::filesystem;
  const fs::path here = detail::program_path();
  std::string program = (here.parent_path() / "knear-dist").string();
  std::vector<char*> command = {program.data()};
  while (*words != nullptr) command.push_back(*words++);
  command.push_back(nullptr);
  if (!here.empty()) execv(command[0], command.data());
  if (here.empty() || errno == ENOENT)
    throw Error(
        "dist is the program knear-dist, which is not beside this one: it is built where Open MPI "
        "is (the CMake option KNEAR_MPI; scripts/setup installs it)");
  throw Error(fmt::format("{} cannot be started: {}", program, std::strerror(errno)));
}

void add_dist(CLI::App& app) {
  app.add_subcommand("dist", "Run build, search, graph or kmeans in many processes (mpirun)")
      ->footer("'knear dist --help' shows its commands.");
}

}  // namespace knear::cli
