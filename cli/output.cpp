#include "cli/output.hpp"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "knear/core/error.hpp"

namespace knear::cli {
namespace {

[[noreturn]] void output_refused() {
  throw IoError("cannot write to standard output: {}", std::strerror(errno));
}

// Returns true if a write of up to PIPE_BUF bytes to this descriptor does not block.
bool takes_more(int descriptor) {
  struct pollfd asked = {.fd = descriptor, .events = POLLOUT, .revents = 0};
  return poll(&asked, 1, 0) == 1;
}

// Three significant digits, no exponent: 7.96, 44.9, 613.
std::string three_digits(double value) {
  const double size = std::fabs(value);
  return fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

}  // namespace

void print_text(std::string_view text) {
  // Lines and columns stay as they are.
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\n\t"), text.size());
    std::string out = detail::printable(text.substr(0, end));
    if (end < text.size()) out += text[end];
    if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size()) output_refused();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void finish_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) output_refused();
}

void warn_text(std::string_view text) {
  std::string line = "knear: " + std::string(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  line = detail::printable(line).substr(0, PIPE_BUF - 1) + "\n";
  if (!takes_more(STDERR_FILENO)) return;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void PatientOutput::go_on() {
  while (!rest_.empty() && takes_more(STDOUT_FILENO)) {
    const ssize_t written =
        write(STDOUT_FILENO, rest_.data(), std::min<std::size_t>(rest_.size(), PIPE_BUF));
    if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (written < 0) output_refused();
    rest_.erase(0, written);
  }
}

std::string readable_bytes(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    bytes /= 1024;
    if (bytes < 1023.5) return three_digits(bytes) + " " + unit;
  }
  return three_digits(bytes / 1024) + " TiB";
}

std::string readable_count(double count) {
  if (count < 999.5)
    return count == std::floor(count) ? fmt::format("{}", count) : three_digits(count);
  for (const char* prefix : {"k", "M", "G", "T"}) {
    count /= 1000;
    if (count < 999.5) return three_digits(count) + " " + prefix;
  }
  return three_digits(count / 1000) + " P";
}

std::string readable_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 0.9995) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 120) return three_digits(seconds) + " s";
  const auto whole = static_cast<long long>(std::llround(seconds));
  return fmt::format("{} min {} s", whole / 60, whole % 60);
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i])
                     : fmt::format("  {:>{}}", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace knear::cli
