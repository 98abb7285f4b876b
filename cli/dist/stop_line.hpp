// cli/dist/stop_line.hpp -- what a command that is stopped says, once for all of its processes:
// what it has done, and which command goes on or begins again.
//
//   class Blocks : public StoppedWork { ... };
//   const StopLine line(job, "graph.knear", blocks);   // in each process, until the work is done
//
// When a process is killed, or mpirun is told to stop, Open MPI sends SIGTERM to the others and
// SIGKILL a second later, or as soon as one of them has ended; they may wait in a call of MPI that
// will not end. So the line is written by the signal's handler, which then ends the process, but
// not before the others have had time for theirs.
//
// The process of the lowest rank that is left writes it: handlers wait longer the higher the rank,
// and the first to remove a file that rank 0 has made beside the output writes. Processes that do
// not see that file, on a machine with other disks, cannot know of the others: there the first one
// of each machine writes as well.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "cli/dist/job.hpp"

namespace knear::cli {

// A line that is put together without allocating, as the handler of a signal must; what does not
// fit is left out.
class SignalLine {
 public:
  void add(const char* text);
  void add(std::int64_t number);  // 0 or more
  void write();                   // to standard error, once

 private:
  static constexpr std::size_t most = 16384;
  char text_[most];
  std::size_t size_ = 0;
};

// Work that may be stopped. Both functions are called in the handler of a signal: they may do what
// such may, and see work at any point of it.
class StoppedWork {
 public:
  virtual ~StoppedWork() = default;
  // Adds what stands between "knear: stopped" and the command that is to be typed. Returns whether
  // --resume goes on with what is there.
  virtual bool tell(SignalLine& line) const = 0;
  // Removes what this process leaves of the output that nobody can use, when the line is written.
  virtual void clean_up() const {}
};

class StopLine {
 public:
  // Collective. out: the output, beside which the file is made; empty: in the folder for temporary
  // files. `work` outlives this. Throws Error in all processes where there can be no file. One at a
  // time in a process.
  StopLine(const Job& job, const std::string& out, const StoppedWork& work);
  // Signals are then what they were before.
  ~StopLine();
  StopLine(const StopLine&) = delete;
  StopLine& operator=(const StopLine&) = delete;
};

}  // namespace knear::cli
