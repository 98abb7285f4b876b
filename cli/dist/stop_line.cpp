#include "cli/dist/stop_line.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <span>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"

namespace knear::cli {
namespace {

// The handler may do little: what it needs lies ready here.
constexpr std::size_t longest_words = 8192;
// Within the second that Open MPI leaves: how much later than the rank before it a process writes,
// the most of that, and when all end.
constexpr int step_ms = 20, most_ms = 800, end_ms = 900;
char mark_path[longest_words], again[longest_words];
bool sees_mark = false, is_first = false, is_first_on_host = false, resumes = false;
int delay_ms = 0, exceptions = 0;
const StoppedWork* stopped_work = nullptr;
struct sigaction former_int, former_term;
// Whether a thread is in the handler: what a second signal finds in another thread, which must not
// end the process before the line is written.
std::atomic_flag telling = ATOMIC_FLAG_INIT;

bool is_to_write() {
  if (!sees_mark) return is_first_on_host;
  return unlink(mark_path) == 0 || errno != ENOENT;
}

void tell_and_end(int signal) {
  if (telling.test_and_set()) return;
  if (delay_ms > 0) poll(nullptr, 0, delay_ms);
  if (is_to_write()) {
    SignalLine line;
    line.add("knear: stopped");
    const bool goes_on = stopped_work->tell(line);
    line.add(again);
    if (goes_on && !resumes) line.add(" --resume");
    line.write();
  }
  stopped_work->clean_up();
  // mpirun sends SIGKILL when it has slept for a second, or at once when a process ends meanwhile,
  // which wakes it: the others may still be writing the line, or removing what they leave.
  poll(nullptr, 0, end_ms - delay_ms);
  _exit(128 + signal);
}

// "c.fvecs.stop-0123456789ab".
std::string name_of_mark(const std::string& out) {
  std::uint64_t number = static_cast<std::uint64_t>(getpid()) << 16;
  try {
    number = detail::random_number();
  } catch (const IoError&) {  // the number of the process tells it apart as well
  }
  const std::string beside =
      out.empty() ? (std::filesystem::temp_directory_path() / "knear-dist").string() : out;
  return fmt::format("{}.stop-{:012x}", beside, number >> 16);
}

}  // namespace

void SignalLine::add(const char* text) {
  while (*text != '\0' && size_ + 1 < most) text_[size_++] = *text++;
}

void SignalLine::add(std::int64_t number) {
  char digits[24];
  int count = 0;
  do digits[count++] = static_cast<char>('0' + number % 10);
  while ((number /= 10) > 0);
  while (count > 0 && size_ + 1 < most) text_[size_++] = digits[--count];
}

void SignalLine::write() {
  text_[size_++] = '\n';
  const char* from = text_;
  while (size_ > 0) {
    const ssize_t done = ::write(STDERR_FILENO, from, size_);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return;
    from += done, size_ -= done;
  }
}

StopLine::StopLine(const Job& job, const std::string& out, const StoppedWork& work) {
  std::string path;
  job.at_first([&] {
    path = name_of_mark(out);
    if (path.size() + 1 > longest_words)
      throw InvalidArgument("--out has {} characters, too many for a path", out.size());
    const int file = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0) throw IoError("cannot write '{}': {}", path, std::strerror(errno));
    close(file);
  });
  std::int64_t size[] = {std::ssize(path)};
  job.peers().broadcast(0, std::as_writable_bytes(std::span(size)));
  path.resize(size[0]);
  job.peers().broadcast(0, std::as_writable_bytes(std::span(path)));
  const auto keep = [](char* to, const std::string& text) {
    std::memset(to, 0, longest_words);
    std::memcpy(to, text.data(), std::min(text.size(), longest_words - 1));
  };
  keep(mark_path, path), keep(again, job.command());
  sees_mark = access(mark_path, F_OK) == 0;
  is_first = job.is_first(), is_first_on_host = job.peers().number_on_host() == 0;
  exceptions = std::uncaught_exceptions();
  resumes = (" " + job.command() + " ").find(" --resume ") != std::string::npos;
  stopped_work = &work;
  delay_ms = std::min(most_ms, job.rank() * step_ms);
  struct sigaction action = {};
  action.sa_handler = tell_and_end;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(SIGINT, nullptr, &former_int);
  // Signals that a shell's background jobs ignore stay ignored.
  if (former_int.sa_handler != SIG_IGN) sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, &former_term);
}

StopLine::~StopLine() {
  sigaction(SIGINT, &former_int, nullptr), sigaction(SIGTERM, &former_term, nullptr);
  // After an error that this process alone has had, and says, it ends the others, who then are to
  // be silent.
  if (sees_mark && (is_first || std::uncaught_exceptions() > exceptions)) unlink(mark_path);
}

}  // namespace knear::cli
