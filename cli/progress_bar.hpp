// cli/progress_bar.hpp -- progress on standard error: a bar on a terminal, nothing anywhere else.
//
//   ProgressBar bar;
//   options.progress = bar.callback();    // also stops the work at Ctrl-C
//
// The line is redrawn at most ten times a second and erased by the destructor, so that later output
// starts on a clean line.
#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "knear/core/progress.hpp"

namespace knear::cli {

// Work that is expected to take longer is announced on standard output, where that is text.
inline constexpr double announced_seconds = 10;

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Makes the bar show a rate as well: a stage does `total` units of work.
  void count(std::string unit, std::int64_t total) { unit_ = std::move(unit), total_ = total; }
  void show(std::string_view stage, double fraction);
  void clear();
  // A line that stays, on a terminal.
  void note(const std::string& line);
  // For KnnOptions::progress; valid as long as the bar. Returns false once a signal has arrived.
  Progress callback();

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  bool drawn_ = false;
  std::string stage_, unit_;
  std::int64_t total_ = 0;
  double first_fraction_ = 0;  // of the stage: a run that is resumed does not begin at 0
  Clock::time_point stage_start_, last_drawn_;
};

}  // namespace knear::cli
