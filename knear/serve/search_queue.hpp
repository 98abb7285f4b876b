// knear/serve/search_queue.hpp -- searches that wait, and what of them is answered together.
//
//   queue.push(std::move(job));                 // many callers; false: it is full
//   while (std::optional<Batch> batch = queue.take()) ...       // one caller; none: closed
//
// Many queries in one search are answered several times as fast as one by one, so what has come in
// while a batch ran is the next one: all searches of the index that waits longest with the same k,
// recall, probes, traffic and number type, up to a number of queries. Those whose callers were
// answered just now are waited for a moment, at most an eighth of what their batch took and 20 ms:
// callers that ask again at once would else fall into two halves that take turns, each of which
// waits while the other is searched for. Where waiting did not pay it is left out for a number of
// batches.
//
// A search of many queries may be answered in parts. Each part is a batch of its own, after which
// the search waits at the end of the queue again (put_back()), so that others have their turn
// between its parts.
//
// A search whose deadline passed while it waited comes back as expired, however long the batches
// before it took, and so does one whose caller has been answered or has gone.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "knear/index/id_filter.hpp"
#include "knear/index/index.hpp"

namespace knear::serve {

using Clock = std::chrono::steady_clock;

// What a batch found; each job has some of its rows.
struct Found {
  Neighbors near = {};
  std::vector<bool> certified = {};  // [queries]
  KnnReport report = {};
};

struct JobAnswer {
  std::shared_ptr<const Found> found = {};
  std::int64_t begin = 0;         // the first row of the job
  std::exception_ptr error = {};  // in place of all that
};

struct SearchJob {
  // What is searched, and a name for jobs that may go together: of the same index, whichever state
  // it is in when the batch begins. Called by the thread that searches.
  std::function<Neighbors(AnyMatrixView, std::int64_t k, const SearchOptions&, KnnReport*)> search =
      {};
  const void* index = nullptr;
  std::int64_t k = 0, probes = 0;
  std::optional<double> recall = {};
  bool certify = false;
  std::string traffic = {};
  IdFilter filter = {};
  AnyMatrix queries = {};
  // Whether the answer is the same in any batch of fewer than `most_together` queries.
  bool may_go_together = true;
  std::int64_t most_together = 0;
  Clock::time_point came = Clock::now();
  Clock::time_point deadline = Clock::time_point::max();
  // Number of parts, of about as many queries each; a search in several parts goes alone.
  std::int64_t parts = 1;
  std::int64_t answered_parts = 0;
  std::shared_ptr<Found> answered = {};  // by these parts, with room for all queries
  // Returns true once the caller has been answered or has gone. Threads: any. Empty: never.
  std::function<bool()> is_over = {};
  // The same, of a client that may have closed only its sending side: it ends a search in parts
  // between two of them.
  std::function<bool()> has_hung_up = {};
  std::function<void(JobAnswer)> done = {};

  // The first query of a part.
  std::int64_t begin_of(std::int64_t part) const { return queries.rows() * part / parts; }
};

struct Batch {
  std::vector<SearchJob> jobs = {};  // at least one, unless some expired
  std::vector<SearchJob> expired = {};
  std::int64_t rows = 0;  // queries of all jobs, or of the next part of the only one
};

class SearchQueue {
 public:
  struct Limits {
    std::int64_t waiting = 4096;  // jobs
    std::int64_t batch = 1024;    // queries that go together; one job may have more
    Clock::duration most_linger = std::chrono::milliseconds(20);
  };
  explicit SearchQueue(const Limits& limits) : limits_(limits) {}

  // False where as many wait as may, or after close(); then the job is as it was.
  bool push(SearchJob& job);
  // Takes back a search that is answered in part, whatever waits; also after close().
  void put_back(SearchJob job);
  // Waits for the next batch. Nothing once the queue is closed and empty.
  std::optional<Batch> take();
  // How long the batch that was taken last took, up to `answered`, when the first caller was told.
  void finished(Clock::duration took, Clock::time_point answered);
  // Takes no more; those that wait are still given out.
  void close();
  std::int64_t waiting() const;

 private:
  static bool go_together(const SearchJob& a, const SearchJob& b);
  void linger(std::unique_lock<std::mutex>& lock);
  bool is_enough() const;
  Batch next(Clock::time_point now);

  const Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SearchJob> jobs_;
  bool closed_ = false;
  // Of the last batch: what went together in it, without queries; how many searches; how many of
  // its kind waited when it was answered; how long it took.
  SearchJob last_ = {};
  std::int64_t last_jobs_ = 0, left_ = 0;
  Clock::duration last_took_ = {};
  // While callers are waited for: how many have come of how many, and their queries.
  bool lingering_ = false;
  std::int64_t ready_ = 0, wanted_ = 0, ready_rows_ = 0, most_rows_ = 0;
  // Batches to go without waiting, and how many that was the last time.
  std::int64_t skip_ = 0, skipped_ = 0;
};

}  // namespace knear::serve
