#include "cli/dist/stop_line.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "knear/graph/partial_graph.hpp"

namespace knear::cli {
namespace {

// The handler may do little: what it needs lies ready here.
constexpr std::size_t longest_words = 8192, longest_line = 16384;
char partial_path[longest_words], again[longest_words];
std::int64_t blocks_of_graph = 0;
std::uint64_t run_number = 0;
int delay_ms = 0;
struct sigaction former_int, former_term;
// Whether a thread is in the handler: what a second signal finds in another thread, which must not
// end the process before the line is written.
std::atomic_flag telling = ATOMIC_FLAG_INIT;

// A line that is put together without allocating; what does not fit is left out.
class Line {
 public:
  void add(const char* text) {
    while (*text != '\0' && size_ + 1 < longest_line) text_[size_++] = *text++;
  }
  void add(std::int64_t number) {
    char digits[24];
    int count = 0;
    do digits[count++] = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0 && size_ + 1 < longest_line) text_[size_++] = digits[--count];
  }
  void write() {
    text_[size_++] = '\n';
    const char* from = text_;
    while (size_ > 0) {
      const ssize_t done = ::write(STDERR_FILENO, from, size_);
      if (done <= 0) return;
      from += done, size_ -= static_cast<std::size_t>(done);
    }
  }

 private:
  char text_[longest_line];
  std::size_t size_ = 0;
};

// ", blocks 0-3, 5" of those that have a sum.
void add_finished(Line& line, int file, std::int64_t& finished) {
  constexpr std::int64_t at_once = 256;
  constexpr int most_ranges = 100;
  std::uint64_t sums[at_once];
  std::int64_t begin = -1;
  int ranges = 0;
  const auto end_range = [&](std::int64_t end) {
    if (begin < 0) return;
    if (ranges < most_ranges) {
      line.add(ranges > 0 ? ", " : " "), line.add(begin);
      if (end - begin > 1) line.add("-"), line.add(end - 1);
    } else if (ranges == most_ranges) {
      line.add(", ...");
    }
    ++ranges, finished += end - begin, begin = -1;
  };
  for (std::int64_t first = 0; first < blocks_of_graph; first += at_once) {
    const std::int64_t count = std::min(at_once, blocks_of_graph - first);
    const auto bytes = static_cast<std::size_t>(count) * sizeof sums[0];
    if (pread(file, sums, bytes,
              detail::PartialGraph::sums_at + first * std::int64_t{sizeof sums[0]}) !=
        static_cast<ssize_t>(bytes))
      break;
    for (std::int64_t i = 0; i < count; ++i) {
      if (sums[i] != 0 && begin < 0) begin = first + i;
      if (sums[i] == 0) end_range(first + i);
    }
  }
  end_range(blocks_of_graph);
}

void tell(int file) {
  // Whoever comes first has the file to itself until it ends.
  struct flock lock = {};
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET;
  while (fcntl(file, F_SETLKW, &lock) != 0 && errno == EINTR) {
  }
  std::uint64_t told = 0;
  const off_t at = detail::PartialGraph::shared_at;
  if (pread(file, &told, sizeof told, at) != sizeof told || told == run_number) return;
  if (pwrite(file, &run_number, sizeof run_number, at) != sizeof run_number) return;
  Line line;
  std::int64_t finished = 0;
  line.add("knear: stopped; of "), line.add(blocks_of_graph), line.add(" blocks in ");
  line.add(partial_path), line.add(" these are finished:");
  add_finished(line, file, finished);
  if (finished == 0) line.add(" none");
  line.add("; go on with: "), line.add(again);
  line.write();
}

void tell_and_end(int signal) {
  if (telling.test_and_set()) return;
  if (delay_ms > 0) poll(nullptr, 0, delay_ms);
  const int file = open(partial_path, O_RDWR | O_CLOEXEC);
  if (file >= 0) tell(file);
  _exit(128 + signal);
}

}  // namespace

StopLine::StopLine(const Job& job, const std::string& partial, std::int64_t blocks,
                   std::uint64_t run) {
  const auto keep = [](char* to, const std::string& text) {
    std::strncpy(to, text.c_str(), longest_words - 1);
  };
  keep(partial_path, partial);
  const bool resumes = (" " + job.command() + " ").find(" --resume ") != std::string::npos;
  keep(again, job.command() + (resumes ? "" : " --resume"));
  blocks_of_graph = blocks, run_number = run;
  // Within the second that Open MPI leaves.
  constexpr int step_ms = 20, most_ms = 800;
  delay_ms = std::min(most_ms, job.rank() * step_ms);
  struct sigaction action = {};
  action.sa_handler = tell_and_end;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(SIGINT, nullptr, &former_int);
  // What a shell's background jobs ignore stays ignored.
  if (former_int.sa_handler != SIG_IGN) sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, &former_term);
}

StopLine::~StopLine() {
  sigaction(SIGINT, &former_int, nullptr), sigaction(SIGTERM, &former_term, nullptr);
}

}  // namespace knear::cli
