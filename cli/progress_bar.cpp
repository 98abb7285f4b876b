#include "cli/progress_bar.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/interrupt.hpp"
#include "cli/output.hpp"

namespace knear::cli {
namespace {

constexpr auto redraw_every = std::chrono::milliseconds(100);

int terminal_columns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) == 1) {}
ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::clear() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

void ProgressBar::show(std::string_view stage, double fraction) {
  if (!terminal_) return;
  const auto now = Clock::now();
  const bool new_stage = stage != stage_;
  fraction = std::clamp(fraction, 0.0, 1.0);
  if (new_stage) stage_ = stage, stage_start_ = now, first_fraction_ = fraction;
  if (!new_stage && now - last_drawn_ < redraw_every) return;
  last_drawn_ = now;
  const double elapsed = std::chrono::duration<double>(now - stage_start_).count();
  // An early estimate of the remaining time varies too much, and work that ends at once needs none.
  std::string rest;
  const double gone = fraction - first_fraction_;
  if (elapsed > 1 && gone > 0.02 && fraction < 1)
    rest = "  " + readable_seconds(elapsed / gone * (1 - fraction)) + " left";
  if (elapsed > 1 && gone > 0.02 && total_ > 0)
    rest += fmt::format("  {}/s {}", readable_count(gone * static_cast<double>(total_) / elapsed),
                        unit_);
  const int width = std::clamp(terminal_columns() - 50, 10, 40);
  const int filled = static_cast<int>(fraction * width);
  std::string line = fmt::format("\r{:<14.14} [{:#<{}}{:{}}] {:3.0f} %{}\x1b[K", stage_, "", filled,
                                 "", width - filled, fraction * 100, rest);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressBar::note(const std::string& line) {
  if (!terminal_) return;
  clear();
  std::fprintf(stderr, "%s\n", line.c_str());
}

Progress ProgressBar::callback() {
  return [this](std::string_view stage, double fraction) {
    show(stage, fraction);
    return !interrupted();
  };
}

}  // namespace knear::cli
