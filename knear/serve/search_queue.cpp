#include "knear/serve/search_queue.hpp"

#include <algorithm>
#include <utility>

namespace knear::serve {

bool SearchQueue::go_together(const SearchJob& a, const SearchJob& b) {
  return a.may_go_together && b.may_go_together && a.index == b.index && a.k == b.k &&
         a.probes == b.probes && a.recall == b.recall && a.certify == b.certify &&
         a.queries.type() == b.queries.type() && a.queries.cols() == b.queries.cols() &&
         a.filter.everything() && b.filter.everything();
}

bool SearchQueue::push(SearchJob& job) {
  {
    std::lock_guard lock(mutex_);
    if (closed_ || std::ssize(jobs_) >= limits_.waiting) return false;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void SearchQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

std::int64_t SearchQueue::waiting() const {
  std::lock_guard lock(mutex_);
  return std::ssize(jobs_);
}

void SearchQueue::finished(Clock::duration took) {
  std::lock_guard lock(mutex_);
  last_took_ = took;
}

std::int64_t SearchQueue::rows_ready() const {
  std::int64_t rows = 0;
  for (const SearchJob& job : jobs_)
    if (&job == &jobs_.front() || go_together(jobs_.front(), job)) rows += job.queries.rows();
  return rows;
}

std::optional<Batch> SearchQueue::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
  if (jobs_.empty()) return {};
  const std::int64_t usual = std::max(last_jobs_, before_last_jobs_);
  const auto linger = std::min<Clock::duration>(limits_.most_linger, last_took_ / 8);
  if (usual > 1 && linger.count() > 0) {
    const auto until = Clock::now() + linger;
    changed_.wait_until(lock, until, [&] {
      return closed_ || std::ssize(jobs_) >= usual || rows_ready() >= limits_.batch;
    });
  }
  return next(Clock::now());
}

Batch SearchQueue::next(Clock::time_point now) {
  Batch out;
  std::deque<SearchJob> left;
  for (SearchJob& job : jobs_) {
    if (job.deadline <= now) {
      out.expired.push_back(std::move(job));
      continue;
    }
    const std::int64_t rows = job.queries.rows();
    const auto fits = [&] {
      const std::int64_t most =
          job.most_together > 0 ? std::min(limits_.batch, job.most_together) : limits_.batch;
      return go_together(out.jobs.front(), job) && out.rows + rows <= most;
    };
    if (out.jobs.empty() || fits()) {
      out.rows += rows;
      out.jobs.push_back(std::move(job));
    } else {
      left.push_back(std::move(job));
    }
  }
  jobs_ = std::move(left);
  if (!out.jobs.empty()) before_last_jobs_ = std::exchange(last_jobs_, std::ssize(out.jobs));
  return out;
}

}  // namespace knear::serve
