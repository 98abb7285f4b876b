// Searches that are answered together: which ones, in which order, and with the same bits.
#include "knear/serve/search_queue.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/serve/refusal.hpp"
#include "knear/serve/search_batch.hpp"

namespace knear::serve {
namespace {

using namespace std::chrono_literals;

SearchJob job(std::int64_t rows, std::int64_t k = 10, const void* index = nullptr) {
  return {.index = index, .k = k, .queries = AnyMatrix(ElementType::f32, rows, 4)};
}

class SearchQueueTest : public testing::Test {
 protected:
  void push(SearchJob each) { ASSERT_TRUE(queue_.push(each)); }
  std::vector<std::int64_t> rows(const std::vector<SearchJob>& jobs) const {
    std::vector<std::int64_t> out;
    for (const SearchJob& each : jobs) out.push_back(each.queries.rows());
    return out;
  }
  using Rows = std::vector<std::int64_t>;
  SearchQueue queue_{{.waiting = 8, .batch = 10}};
};

TEST_F(SearchQueueTest, WhatIsAlikeGoesTogetherAndTheOldestFirst) {
  int other = 0;
  push(job(1));
  push(job(2, 5));  // another k
  push(job(3));
  push(job(4, 10, &other));  // another index
  push(job(5));
  push(job(6));  // 15 would be more than 10
  auto batch = queue_.take();
  EXPECT_EQ(rows(batch->jobs), (Rows{1, 3, 5}));
  EXPECT_EQ(batch->rows, 9);
  EXPECT_EQ(queue_.waiting(), 3);
  EXPECT_EQ(rows(queue_.take()->jobs), (Rows{2}));
  EXPECT_EQ(rows(queue_.take()->jobs), (Rows{4}));
  EXPECT_EQ(rows(queue_.take()->jobs), (Rows{6}));
}

TEST_F(SearchQueueTest, OptionsThatDifferKeepSearchesApart) {
  SearchJob some[8];
  for (SearchJob& each : some) each = job(1);
  some[1].probes = 3;
  some[2].recall = 0.5;
  some[3].certify = true;
  some[4].filter = IdFilter::of_ids(std::vector<Id>{1});
  some[5].queries = AnyMatrix(ElementType::f64, 1, 4);
  some[6].may_go_together = false;
  some[7].traffic = "questions";
  for (SearchJob& each : some) ASSERT_TRUE(queue_.push(each));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(queue_.take()->jobs.size(), 1u) << i;
  // Two with a filter never go together, nor more queries than each allows.
  for (int i = 0; i < 2; ++i) {
    SearchJob each = job(1);
    each.filter = IdFilter::of_ids(std::vector<Id>{1});
    push(std::move(each));
  }
  EXPECT_EQ(queue_.take()->jobs.size(), 1u);
  EXPECT_EQ(queue_.take()->jobs.size(), 1u);
  for (int i = 0; i < 4; ++i) {
    SearchJob each = job(2);
    each.most_together = 5;
    push(std::move(each));
  }
  EXPECT_EQ(queue_.take()->rows, 4);
  EXPECT_EQ(queue_.take()->rows, 4);
}

TEST_F(SearchQueueTest, ALargeRequestIsABatchOfItsOwn) {
  push(job(25));
  push(job(1));
  EXPECT_EQ(queue_.take()->rows, 25);
  EXPECT_EQ(queue_.take()->rows, 1);
}

TEST_F(SearchQueueTest, PartsOfLargeSearchesTakeTurnsWithOthers) {
  const auto large = [](std::int64_t rows, std::int64_t parts) {
    SearchJob out = job(rows);
    out.parts = parts;
    return out;
  };
  push(large(25, 3));
  push(job(2));
  push(large(9, 2));
  push(job(4));
  std::vector<std::int64_t> taken;
  while (queue_.waiting() > 0) {
    Batch batch = *queue_.take();
    taken.push_back(batch.rows);
    SearchJob& first = batch.jobs.front();
    if (first.parts == 1) continue;
    EXPECT_EQ(batch.jobs.size(), 1u);
    if (++first.answered_parts < first.parts) queue_.put_back(std::move(first));
  }
  // The two small ones went together; all others had their turn before the second part.
  EXPECT_EQ(taken, (std::vector<std::int64_t>{8, 6, 4, 8, 5, 9}));
  // A search that is put back after close() is still given out.
  push(large(25, 2));
  Batch batch = *queue_.take();
  queue_.close();
  batch.jobs.front().answered_parts = 1;
  queue_.put_back(std::move(batch.jobs.front()));
  EXPECT_EQ(queue_.take()->rows, 13);
  EXPECT_FALSE(queue_.take().has_value());
}

TEST_F(SearchQueueTest, ASearchThatNobodyWaitsForIsNotMade) {
  SearchJob over = job(1), gone = job(2), gone_in_parts = job(30), half_closed = job(4);
  over.is_over = [] { return true; };
  gone.is_over = [] { return false; };
  gone_in_parts.parts = 3;
  gone_in_parts.has_hung_up = [] { return true; };
  // A client may close its sending side at once: what is one batch is answered.
  half_closed.has_hung_up = [] { return true; };
  for (SearchJob* each : {&over, &gone, &gone_in_parts, &half_closed}) push(std::move(*each));
  const auto batch = queue_.take();
  EXPECT_EQ(rows(batch->expired), (Rows{1, 30}));
  EXPECT_EQ(rows(batch->jobs), (Rows{2, 4}));
}

TEST_F(SearchQueueTest, DeadlinesAndLimits) {
  SearchJob late = job(1);
  late.deadline = Clock::now() - 1ms;
  push(std::move(late));
  push(job(2));
  const auto batch = queue_.take();
  EXPECT_EQ(rows(batch->expired), (Rows{1}));
  EXPECT_EQ(rows(batch->jobs), (Rows{2}));
  for (int i = 0; i < 8; ++i) push(job(1));
  SearchJob one_more = job(3);
  EXPECT_FALSE(queue_.push(one_more));
  EXPECT_EQ(one_more.queries.rows(), 3) << "it is as it was";
  queue_.close();
  EXPECT_FALSE(queue_.push(one_more));
  EXPECT_EQ(queue_.take()->rows, 8) << "what waits is still given out";
  EXPECT_FALSE(queue_.take().has_value());
}

TEST_F(SearchQueueTest, SeveralCallersAreWaitedForAMoment) {
  for (int i = 0; i < 4; ++i) push(job(1));
  EXPECT_EQ(queue_.take()->rows, 4);
  queue_.finished(1s, Clock::now());  // so it waits for 20 ms at most
  push(job(1));
  const auto start = Clock::now();
  EXPECT_EQ(queue_.take()->rows, 1);
  EXPECT_GE(Clock::now() - start, 10ms);
  // Four are as many as there were.
  for (int i = 0; i < 4; ++i) push(job(1));
  EXPECT_EQ(queue_.take()->rows, 4);
}

TEST_F(SearchQueueTest, CallersInTwoHalvesComeTogether) {
  SearchQueue queue({.waiting = 100, .batch = 100, .most_linger = 10s});
  const auto push_to = [&](int count, std::int64_t k = 10) {
    for (int i = 0; i < count; ++i) {
      SearchJob each = job(1, k);
      ASSERT_TRUE(queue.push(each));
    }
  };
  push_to(4);
  EXPECT_EQ(queue.take()->rows, 4);
  push_to(4);  // the other half, while the first is searched for
  queue.finished(80s, Clock::now());
  std::thread answered([&] {
    std::this_thread::sleep_for(20ms);
    push_to(4);
  });
  EXPECT_EQ(queue.take()->rows, 8) << "it waits for those that were answered, and no longer";
  answered.join();
  // What could not go with those that were answered does not wait for them.
  push_to(3, 5);
  queue.finished(80s, Clock::now());
  EXPECT_EQ(queue.take()->rows, 3);
  // One caller that asks again and again waits for nobody.
  push_to(1);
  EXPECT_EQ(queue.take()->rows, 1);
  queue.finished(80s, Clock::now());
  push_to(1);
  EXPECT_EQ(queue.take()->rows, 1);
}

TEST_F(SearchQueueTest, NobodyIsWaitedForWhereThatDidNotPay) {
  SearchQueue queue({.most_linger = 400ms});
  const auto take = [&](int count) {
    for (int i = 0; i < count; ++i) {
      SearchJob each = job(1);
      ASSERT_TRUE(queue.push(each));
    }
    EXPECT_EQ(queue.take()->rows, count);
    queue.finished(80s, Clock::now());
  };
  const auto start = Clock::now();
  take(4);
  take(1);
  EXPECT_GE(Clock::now() - start, 400ms);
  take(2);
  const auto later = Clock::now();
  take(1);
  EXPECT_LT(Clock::now() - later, 300ms);
}

TEST_F(SearchQueueTest, ASearchThatWaitsIsWokenByTheFirst) {
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    SearchJob each = job(3);
    queue_.push(each);
  });
  EXPECT_EQ(queue_.take()->rows, 3);
  later.join();
}

Index made_index() {
  Matrix<float> base(3000, 4);
  for (std::int64_t i = 0; i < base.rows(); ++i)
    for (std::int64_t j = 0; j < 4; ++j)
      base.row(i)[j] = static_cast<float>((i * 7919 + j * 104729) % 1009) / 7.f;
  Index out = make_index("Flat", 4);
  out.add(base.view());
  return out;
}

TEST(SearchBatch, AnswersAreThoseOfEachSearchAlone) {
  const Index index = made_index();
  Batch batch;
  std::vector<JobAnswer> answers(20);
  for (std::int64_t i = 0; i < 20; ++i) {
    SearchJob each = job(1 + i % 3, 7);
    for (std::int64_t r = 0; r < each.queries.rows(); ++r)
      for (int j = 0; j < 4; ++j)
        static_cast<float*>(each.queries.row(r))[j] = static_cast<float>(i * 13 + r * 5 + j) / 3.f;
    each.search = [&](AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                      KnnReport* report) { return index.search(queries, k, options, report); };
    each.done = [&, i](JobAnswer found) {
      answers[static_cast<std::size_t>(i)] = std::move(found);
    };
    batch.rows += each.queries.rows();
    batch.jobs.push_back(std::move(each));
  }
  std::vector<Neighbors> wanted;
  for (const SearchJob& each : batch.jobs) wanted.push_back(index.search(each.queries, 7));
  const BatchReport report = answer(std::move(batch), 1);
  EXPECT_EQ(report.jobs, 20);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    ASSERT_FALSE(answers[i].error);
    for (std::int64_t r = 0; r < wanted[i].ids.rows(); ++r) {
      const std::int64_t at = answers[i].begin + r;
      const Neighbors& near = answers[i].found->near;
      EXPECT_EQ(std::memcmp(near.ids.row(at), wanted[i].ids.row(r), 7 * sizeof(Id)), 0);
      EXPECT_EQ(std::memcmp(near.distances.row(at), wanted[i].distances.row(r), 7 * sizeof(float)),
                0);
      EXPECT_TRUE(answers[i].found->certified[static_cast<std::size_t>(at)]);
    }
  }
}

TEST(SearchBatch, AnErrorIsOfTheOneWhoseItIs) {
  const Index index = made_index();
  Batch batch;
  std::vector<JobAnswer> answers(3);
  for (std::size_t i = 0; i < 3; ++i) {
    SearchJob each = job(1, 3);
    if (i == 1) static_cast<float*>(each.queries.row(0))[0] = NAN;
    each.search = [&](AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                      KnnReport* report) { return index.search(queries, k, options, report); };
    each.done = [&, i](JobAnswer found) { answers[i] = std::move(found); };
    ++batch.rows;
    batch.jobs.push_back(std::move(each));
  }
  SearchJob late = job(1);
  bool told = false;
  late.done = [&](JobAnswer found) {
    try {
      std::rethrow_exception(found.error);
    } catch (const Refusal& refusal) {
      told = refusal.status() == 504;
    }
  };
  batch.expired.push_back(std::move(late));
  answer(std::move(batch), 1);
  EXPECT_TRUE(told);
  EXPECT_FALSE(answers[0].error);
  EXPECT_THROW(std::rethrow_exception(answers[1].error), InvalidArgument);
  EXPECT_FALSE(answers[2].error);
}

// Has job(rows) search the index for queries that differ, and keeps its answer.
SearchJob asked(const Index& index, std::int64_t rows, JobAnswer& answer) {
  SearchJob out = job(rows, 7);
  for (std::int64_t r = 0; r < rows; ++r)
    for (int j = 0; j < 4; ++j)
      static_cast<float*>(out.queries.row(r))[j] = static_cast<float>(r * 17 + j) / 3.f;
  out.search = [&](AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                   KnnReport* report) { return index.search(queries, k, options, report); };
  out.done = [&](JobAnswer found) { answer = std::move(found); };
  return out;
}

Batch batch_of(SearchJob job) {
  Batch out;
  out.rows = job.begin_of(job.answered_parts + 1) - job.begin_of(job.answered_parts);
  out.jobs.push_back(std::move(job));
  return out;
}

TEST(SearchBatch, AnAnswerInPartsIsThatOfOneSearch) {
  const Index index = made_index();
  JobAnswer found;
  SearchJob large = asked(index, 23, found);
  large.parts = 5;
  const Neighbors wanted = index.search(large.queries, 7);
  std::vector<std::int64_t> parts;
  Batch batch = batch_of(std::move(large));
  for (;;) {
    EXPECT_FALSE(found.found);
    BatchReport report = answer(std::move(batch), 1);
    parts.push_back(report.rows);
    if (report.unfinished.empty()) break;
    ASSERT_EQ(report.unfinished.size(), 1u);
    batch = batch_of(std::move(report.unfinished.front()));
  }
  EXPECT_EQ(parts, (std::vector<std::int64_t>{4, 5, 4, 5, 5}));
  ASSERT_TRUE(found.found);
  const Neighbors& near = found.found->near;
  EXPECT_EQ(std::memcmp(near.ids.data(), wanted.ids.data(), 23 * 7 * sizeof(Id)), 0);
  EXPECT_EQ(std::memcmp(near.distances.data(), wanted.distances.data(), 23 * 7 * sizeof(float)), 0);
  EXPECT_EQ(found.found->certified, std::vector<bool>(23, true));
  EXPECT_EQ(found.found->report.queries, 23);
}

TEST(SearchBatch, WhatNeedsAPreparationComesBackAsItWas) {
  for (const std::int64_t jobs : {1, 3}) {
    Batch batch;
    int done = 0;
    for (std::int64_t i = 0; i < jobs; ++i) {
      SearchJob each = job(2);
      each.search = [](AnyMatrixView, std::int64_t, const SearchOptions&, KnnReport*) -> Neighbors {
        if (StopCheck::preparing() == Preparing::refused) throw NotPrepared("a curve");
        return {};
      };
      each.done = [&](JobAnswer) { ++done; };
      batch.rows += 2;
      batch.jobs.push_back(std::move(each));
    }
    BatchReport report = answer(std::move(batch), 1);
    EXPECT_EQ(report.unprepared.size(), static_cast<std::size_t>(jobs));
    EXPECT_FALSE(report.lacks_something);
    EXPECT_EQ(done, 0);
    for (const SearchJob& each : report.unprepared) EXPECT_EQ(each.queries.rows(), 2);
  }
  // What goes on without it is answered, and says so.
  const Index index = made_index();
  JobAnswer found;
  SearchJob one = asked(index, 1, found);
  one.search = [&](AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                   KnnReport* report) {
    EXPECT_FALSE(may_prepare());
    return index.search(queries, k, options, report);
  };
  EXPECT_TRUE(answer(batch_of(std::move(one)), 1).lacks_something);
  EXPECT_TRUE(found.found);
}

TEST(SearchBatch, ASearchEndsOnceNobodyWaitsForIt) {
  for (const std::int64_t parts : {1, 2}) {
    int asked = 0, status = 0;
    SearchJob endless = job(2);
    endless.parts = parts;
    endless.search = [](AnyMatrixView, std::int64_t, const SearchOptions&,
                        KnnReport*) -> Neighbors {
      for (;;) stop_if_asked();
    };
    endless.is_over = [&] { return ++asked > 2; };
    endless.done = [&](JobAnswer found) {
      try {
        std::rethrow_exception(found.error);
      } catch (const Refusal& refusal) {
        status = refusal.status();
      }
    };
    answer(batch_of(std::move(endless)), 1);
    EXPECT_EQ(status, 504);
    EXPECT_EQ(asked, 3);
  }
}

TEST(SearchBatch, AClientThatHungUpIsToldWhichPartsThereWere) {
  Batch batch;
  SearchJob gone = job(9);
  gone.parts = 3, gone.answered_parts = 1;
  gone.has_hung_up = [] { return true; };
  std::string said;
  gone.done = [&](JobAnswer found) {
    try {
      std::rethrow_exception(found.error);
    } catch (const Refusal& refusal) {
      said = refusal.what();
      EXPECT_EQ(refusal.status(), 503);
    }
  };
  batch.expired.push_back(std::move(gone));
  answer(std::move(batch), 1);
  EXPECT_EQ(said, "the client closed its side after 1 of 3 parts of the search");
}

}  // namespace
}  // namespace knear::serve
