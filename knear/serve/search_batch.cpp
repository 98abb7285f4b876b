#include "knear/serve/search_batch.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "knear/core/stop_check.hpp"
#include "knear/serve/refusal.hpp"

namespace knear::serve {
namespace {

SearchOptions options_of(const SearchJob& job, int threads) {
  SearchOptions out{.threads = threads, .filter = job.filter};
  out.method.recall = job.recall;
  out.method.probes = job.probes;
  out.method.lists.certify = job.certify;
  out.method.traffic = job.traffic;
  return out;
}

std::shared_ptr<const Found> search(const SearchJob& job, AnyMatrixView queries, int threads) {
  auto out = std::make_shared<Found>();
  out->near = job.search(queries, job.k, options_of(job, threads), &out->report);
  out->certified.assign(queries.rows(), out->report.promise.certified_queries > 0);
  if (out->report.promise.certified_queries < queries.rows())
    for (const std::int64_t query : out->report.promise.uncertified) out->certified[query] = false;
  return out;
}

// All queries of a batch, one after the other.
AnyMatrix together(const Batch& batch) {
  const AnyMatrix& first = batch.jobs.front().queries;
  AnyMatrix out(first.type(), batch.rows, first.cols());
  std::int64_t row = 0;
  for (const SearchJob& job : batch.jobs) {
    const AnyMatrixView queries = job.queries;
    if (queries.rows() > 0) std::memcpy(out.row(row), queries.data(), queries.bytes());
    row += queries.rows();
  }
  return out;
}

// A done() that fails must not keep others from theirs.
void deliver(SearchJob& job, JobAnswer answer) {
  try {
    job.done(std::move(answer));
  } catch (...) {
  }
}

std::exception_ptr why_expired(const SearchJob& job) {
  if (job.deadline > Clock::now() && job.has_hung_up && job.has_hung_up())
    return std::make_exception_ptr(
        Refusal(503, "the client closed its side after {} of {} parts of the search",
                job.answered_parts, job.parts));
  return std::make_exception_ptr(Refusal(504, "the search had not ended when its time was over"));
}

// Adds what a part found to what the parts before it found.
void keep_part(SearchJob& job, const Found& part, std::int64_t begin) {
  const std::int64_t rows = job.queries.rows(), k = part.near.ids.cols();
  if (!job.answered) {
    auto room = std::make_shared<Found>();
    room->near.ids = Matrix<Id>(rows, k);
    room->near.distances = Matrix<float>(rows, k);
    job.answered = std::move(room);
  }
  Found& all = *job.answered;
  const std::int64_t count = part.near.ids.rows();
  std::copy_n(part.near.ids.data(), count * k, all.near.ids.row(begin));
  std::copy_n(part.near.distances.data(), count * k, all.near.distances.row(begin));
  all.certified.insert(all.certified.end(), part.certified.begin(), part.certified.end());
  const std::int64_t certified =
      all.report.promise.certified_queries + part.report.promise.certified_queries;
  all.report = part.report;
  all.report.queries = begin + count, all.report.promise.certified_queries = certified;
}

// Searches for the next part of the only job of a batch.
void answer_part(SearchJob& job, BatchReport& out, int threads) {
  const std::int64_t begin = job.begin_of(job.answered_parts),
                     end = job.begin_of(job.answered_parts + 1);
  out.found = search(job, job.queries.view().rows(begin, end), threads);
  keep_part(job, *out.found, begin);
  if (++job.answered_parts < job.parts) return out.unfinished.push_back(std::move(job));
  out.answered = Clock::now();
  deliver(job, {.found = job.answered});
}

}  // namespace

BatchReport answer(Batch batch, int threads) {
  BatchReport out{.jobs = std::ssize(batch.jobs), .rows = batch.rows};
  for (SearchJob& job : batch.expired) deliver(job, {.error = why_expired(job)});
  if (batch.jobs.empty()) return out;
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const StopCheck check(
      [&] {
        const auto is_over = [](const SearchJob& job) { return job.is_over && job.is_over(); };
        if (std::all_of(batch.jobs.begin(), batch.jobs.end(), is_over))
          throw Refusal(504, "the search had not ended when its time was over");
      },
      Preparing::refused);
  if (batch.jobs.front().parts > 1) {
    SearchJob& job = batch.jobs.front();
    try {
      answer_part(job, out, threads);
    } catch (const NotPrepared&) {
      out.unprepared.push_back(std::move(job));
    } catch (...) {
      deliver(job, {.error = std::current_exception()});
    }
    out.lacks_something = check.has_refused(), out.seconds = seconds();
    return out;
  }
  if (batch.jobs.size() > 1) try {
      const AnyMatrix queries = together(batch);
      out.found = search(batch.jobs.front(), queries, threads);
    } catch (const NotPrepared&) {  // whatever is missing, all of them need it
      out.unprepared = std::move(batch.jobs);
      return out;
    } catch (...) {  // whose fault it is shows below
    }
  out.answered = Clock::now();
  std::int64_t row = 0;
  const auto all = out.found;
  for (SearchJob& job : batch.jobs) {
    JobAnswer one{.found = all, .begin = row};
    row += job.queries.rows();
    if (!all) {
      one.begin = 0;
      try {
        one.found = search(job, job.queries, threads);
      } catch (const NotPrepared&) {
        out.unprepared.push_back(std::move(job));
        continue;
      } catch (...) {
        one.error = std::current_exception();
      }
      out.found = one.found;
      if (batch.jobs.size() == 1) out.answered = Clock::now();
    }
    deliver(job, std::move(one));
  }
  out.lacks_something = check.has_refused(), out.seconds = seconds();
  return out;
}

}  // namespace knear::serve
