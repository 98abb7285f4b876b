#include "knear/serve/search_queue.hpp"

#include <algorithm>
#include <utility>

namespace knear::serve {

bool SearchQueue::go_together(const SearchJob& a, const SearchJob& b) {
  return a.may_go_together && b.may_go_together && a.parts == 1 && b.parts == 1 &&
         a.index == b.index && a.k == b.k && a.probes == b.probes && a.recall == b.recall &&
         a.certify == b.certify && a.traffic == b.traffic && a.queries.type() == b.queries.type() &&
         a.queries.cols() == b.queries.cols() && a.filter.everything() && b.filter.everything();
}

bool SearchQueue::push(SearchJob& job) {
  {
    std::lock_guard lock(mutex_);
    if (closed_ || std::ssize(jobs_) >= limits_.waiting) return false;
    const bool counts = lingering_ && go_together(job, last_);
    if (counts) ++ready_, ready_rows_ += job.queries.rows();
    jobs_.push_back(std::move(job));
    // Who waits for many is not woken by each: that costs as much as a small search.
    if (lingering_ && !is_enough()) return true;
  }
  changed_.notify_one();
  return true;
}

void SearchQueue::put_back(SearchJob job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
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

void SearchQueue::finished(Clock::duration took, Clock::time_point answered) {
  std::lock_guard lock(mutex_);
  last_took_ = took;
  // Later ones may be of callers that were in the batch.
  left_ = std::count_if(jobs_.begin(), jobs_.end(), [&](const SearchJob& job) {
    return job.came < answered && go_together(job, last_);
  });
}

bool SearchQueue::is_enough() const {
  return closed_ || ready_ >= wanted_ || ready_rows_ >= most_rows_;
}

void SearchQueue::linger(std::unique_lock<std::mutex>& lock) {
  const auto most = std::min<Clock::duration>(limits_.most_linger, last_took_ / 8);
  wanted_ = last_jobs_ + left_;
  if (most.count() <= 0 || wanted_ < 2 || !go_together(jobs_.front(), last_)) return;
  most_rows_ =
      last_.most_together > 0 ? std::min(limits_.batch, last_.most_together) : limits_.batch;
  ready_ = ready_rows_ = 0;
  for (const SearchJob& job : jobs_)
    if (go_together(job, last_)) ++ready_, ready_rows_ += job.queries.rows();
  if (is_enough()) return;
  if (skip_ > 0) {
    --skip_;
    return;
  }
  const std::int64_t before = ready_;
  lingering_ = true;
  const bool enough = changed_.wait_for(lock, most, [&] { return is_enough(); });
  lingering_ = false;
  // It costs an eighth of a batch.
  const bool paid = enough || (ready_ - before) * 8 >= ready_;
  skip_ = skipped_ = paid ? 0 : std::min<std::int64_t>(64, 2 * skipped_ + 1);
}

std::optional<Batch> SearchQueue::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
  if (jobs_.empty()) return {};
  linger(lock);
  return next(Clock::now());
}

Batch SearchQueue::next(Clock::time_point now) {
  Batch out;
  std::deque<SearchJob> left;
  for (SearchJob& job : jobs_) {
    if (job.deadline <= now || (job.is_over && job.is_over()) ||
        (job.parts > 1 && job.has_hung_up && job.has_hung_up())) {
      out.expired.push_back(std::move(job));
      continue;
    }
    const std::int64_t rows =
        job.begin_of(job.answered_parts + 1) - job.begin_of(job.answered_parts);
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
  if (out.jobs.empty()) return out;
  const SearchJob& first = out.jobs.front();
  last_ = {
      .index = first.index,
      .k = first.k,
      .probes = first.probes,
      .recall = first.recall,
      .certify = first.certify,
      .queries = AnyMatrix(first.queries.type(), 0, first.queries.cols()),
      .may_go_together = first.may_go_together && first.filter.everything() && first.parts == 1,
      .most_together = first.most_together};
  last_jobs_ = std::ssize(out.jobs), left_ = 0;
  return out;
}

}  // namespace knear::serve
