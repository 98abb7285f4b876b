// cli/dist/stop_line.hpp -- what a graph that is stopped says: which blocks are finished, and how
// to go on.
//
//   const StopLine line(job, "graph.knear.partial", 12, number);   // in each process
//
// When a process is killed, or mpirun is, Open MPI sends SIGTERM to the others and SIGKILL a second
// later; they may wait in a call of MPI that will not end. So the line is written by the signal's
// handler, which then ends the process: finished blocks are on disk before they count. The process
// of the lowest rank that is left writes it, the others find that it was written: handlers wait
// longer the higher the rank, and who comes first leaves the number of the run in the file.
#pragma once
#include <cstdint>
#include <string>

#include "cli/dist/job.hpp"

namespace knear::cli {

class StopLine {
 public:
  // run: a number of this run, not 0, the same in all processes. One at a time in a process.
  StopLine(const Job& job, const std::string& partial, std::int64_t blocks, std::uint64_t run);
  // Signals are then what they were before.
  ~StopLine();
  StopLine(const StopLine&) = delete;
  StopLine& operator=(const StopLine&) = delete;
};

}  // namespace knear::cli
