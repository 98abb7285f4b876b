#include "knear/serve/search_batch.hpp"

#include <cstring>
#include <utility>

#include "knear/serve/refusal.hpp"

namespace knear::serve {
namespace {

SearchOptions options_of(const SearchJob& job, int threads) {
  SearchOptions out{.threads = threads, .filter = job.filter};
  out.method.recall = job.recall;
  out.method.probes = job.probes;
  out.method.certify = job.certify;
  return out;
}

std::shared_ptr<const Found> search(const SearchJob& job, AnyMatrixView queries, int threads) {
  auto out = std::make_shared<Found>();
  out->near = job.search(queries, job.k, options_of(job, threads), &out->report);
  out->certified.assign(static_cast<std::size_t>(queries.rows()),
                        out->report.certified_queries > 0);
  if (out->report.certified_queries < queries.rows())
    for (const std::int64_t query : out->report.uncertified)
      out->certified[static_cast<std::size_t>(query)] = false;
  return out;
}

// All queries of a batch, one after the other.
AnyMatrix together(const Batch& batch) {
  const AnyMatrix& first = batch.jobs.front().queries;
  AnyMatrix out(first.type(), batch.rows, first.cols());
  std::int64_t row = 0;
  for (const SearchJob& job : batch.jobs) {
    const AnyMatrixView queries = job.queries;
    if (queries.rows() > 0)
      std::memcpy(out.row(row), queries.data(), static_cast<std::size_t>(queries.bytes()));
    row += queries.rows();
  }
  return out;
}

// Somebody's done() that fails must not keep others from theirs.
void deliver(SearchJob& job, JobAnswer answer) {
  try {
    job.done(std::move(answer));
  } catch (...) {
  }
}

}  // namespace

BatchReport answer(Batch batch, int threads) {
  BatchReport out{.jobs = std::ssize(batch.jobs), .rows = batch.rows};
  for (SearchJob& job : batch.expired)
    deliver(job, {.error = std::make_exception_ptr(
                      Refusal(504, "the search had not begun when its time was over"))});
  if (batch.jobs.empty()) return out;
  const auto start = Clock::now();
  if (batch.jobs.size() > 1) try {
      const AnyMatrix queries = together(batch);
      out.found = search(batch.jobs.front(), queries, threads);
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
      } catch (...) {
        one.error = std::current_exception();
      }
      out.found = one.found;
      if (batch.jobs.size() == 1) out.answered = Clock::now();
    }
    deliver(job, std::move(one));
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return out;
}

}  // namespace knear::serve
