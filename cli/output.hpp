// cli/output.hpp -- standard output: results only, and never lost silently.
//
//   print("{} rows\n", rows);
//   finish_output();   // main() calls it last: a full disk or a closed pipe is an error
//   warn("no checkpoint: {}", reason);   // "knear: no checkpoint: ..." on standard error
#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

namespace knear::cli {

// Writes to standard output, buffered, with control characters other than the ends of lines and
// tabs escaped: names of files and labels may hold some. Throws IoError when the system refuses.
void print_text(std::string_view text);
// Flushes standard output. Throws IoError if anything written so far did not arrive.
void finish_output();

template <class... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}

// print(), and at once: what is to be read while the work goes on.
template <class... Args>
void print_now(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
  finish_output();
}

// Prints a line on standard error, or drops it if the write would block: an unread, full pipe must
// not stall a server.
void warn_text(std::string_view text);

template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  warn_text(fmt::format(format, std::forward<Args>(args)...));
}

// A text for standard output that is written as soon as that does not block, unbuffered. A server
// prints its first line like this, so that a full pipe does not stall it.
class PatientOutput {
 public:
  explicit PatientOutput(std::string text) : rest_(std::move(text)) {}
  // Writes as much as is possible without blocking. Throws IoError when the system refuses.
  void go_on();

 private:
  std::string rest_;
};

// A byte count as people read it: "613 B", "1.5 KiB", "44.9 MiB" (powers of 1024).
std::string readable_bytes(double bytes);
// A count or rate with a decimal prefix: "7.96 k", "1.2 T".
std::string readable_count(double count);
// "830 us", "12.3 ms", "1.26 s", "5 min 12 s".
std::string readable_seconds(double seconds);

// Rows of cells as text, columns aligned: the first to the left, the others to the right.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace knear::cli
