// tests/index/index_concurrency_test.cpp -- searches while the index changes: every answer must be
// that of the very state that the search says it saw. CI runs this under the thread sanitiser.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/index/flat.hpp"
#include "knear/index/ivf_flat.hpp"
#include "knear/index/ivf_pq.hpp"

namespace knear {
namespace {

constexpr std::int64_t dim = 5;
using Row = std::vector<float>;
using Rows = std::map<Id, Row>;

// One change of the history: the vectors that it added and those that it removed.
struct Change {
  Rows put;
  std::vector<Id> taken;
};

struct Answer {
  std::int64_t version;
  Matrix<float> queries;
  std::int64_t k;
  Id filter_below;  // only ids below this; -1: no filter
  Neighbors near;
};

Matrix<float> random_rows(Random& random, std::int64_t n, bool whole) {
  Matrix<float> out(n, dim);
  for (std::int64_t i = 0; i < n * dim; ++i)
    out.data()[i] =
        whole ? static_cast<float>(random.below(6)) : static_cast<float>(random.uniform() * 6);
  return out;
}

// A writer and readers that use one index for a while.
class Stress {
 public:
  // lists: inverted ones, of which every answer is that of all; 0: a flat index. With codes every
  // row is measured by its vector, so that answers are exact too.
  Stress(Metric metric, std::uint64_t seed, std::int64_t lists, bool codes)
      : index_(made(metric, lists, codes)),
        seed_(seed),
        lists_(lists),
        codes_(codes),
        first_version_(index_.version()) {}

  void run(std::chrono::milliseconds time) {
    std::vector<std::thread> readers;
    for (std::uint64_t r = 0; r < 3; ++r) readers.emplace_back([this, r] { read(seed_ + 1 + r); });
    write(std::chrono::steady_clock::now() + time);
    done_ = true;
    for (std::thread& reader : readers) reader.join();
    check();
  }

 private:
  void write(std::chrono::steady_clock::time_point end) {
    Random random(seed_);
    Rows rows;
    while (std::chrono::steady_clock::now() < end) {
      Change change;
      const auto op = rows.size() > 3000 ? 2 : random.below(5);
      if (op < 2 || rows.size() < 50) {
        const auto n = static_cast<std::int64_t>(1 + random.below(random.below(4) ? 30 : 700));
        const Matrix<float> x = random_rows(random, n, random.below(2) == 0);
        const Id first = index_.next_id();
        std::vector<Id> ids;
        for (std::int64_t i = 0; i < n; ++i) ids.push_back(first + 2 * (n - 1 - i));
        if (op == 0) {
          index_.add(x.view());
          for (std::int64_t i = 0; i < n; ++i) ids[static_cast<std::size_t>(i)] = first + i;
        } else {
          index_.add(x.view(), ids, {.threads = 2});
        }
        put(change, ids, x);
      } else if (op == 2) {
        change.taken = some(rows, random, random.below(8) == 0 ? rows.size() * 2 / 3 : 20);
        index_.remove(change.taken);
      } else if (op == 3) {
        const auto ids = some(rows, random, 1 + random.below(40));
        const Matrix<float> x = random_rows(random, std::ssize(ids), random.below(2) == 0);
        index_.replace(ids, x.view());
        put(change, ids, x);
      } else {
        index_.compact();
      }
      for (const Id id : change.taken) rows.erase(id);
      for (const auto& [id, row] : change.put) rows[id] = row;
      history_.push_back(std::move(change));
      ASSERT_EQ(index_.version(), first_version_ + std::ssize(history_));
    }
  }
  static void put(Change& change, const std::vector<Id>& ids, const Matrix<float>& x) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const float* row = x.row(static_cast<std::int64_t>(i));
      change.put[ids[i]] = Row(row, row + dim);
    }
  }
  static std::vector<Id> some(const Rows& rows, Random& random, std::size_t n) {
    std::vector<Id> all;
    for (const auto& [id, row] : rows) all.push_back(id);
    for (std::size_t i = 0; i < n && i < all.size(); ++i)
      std::swap(all[i], all[i + random.below(all.size() - i)]);
    all.resize(std::min(n, all.size()));
    return all;
  }

  static Index made(Metric metric, std::int64_t lists, bool codes) {
    Random random(9);
    if (codes) {
      IvfSqIndex index(dim, lists, metric, {.refined = true});
      index.train(random_rows(random, 300, true).view());
      return index;
    }
    if (lists == 0) return FlatIndex(dim, metric);
    return IvfFlatIndex(random_rows(random, lists, true).view(), metric);
  }
  // Every row, with lists in one way or the other.
  SearchOptions how(Random& random) const {
    SearchOptions out{.threads = 1 + static_cast<int>(random.below(2))};
    if (codes_) out.method.refine_factor = 1 << 20;
    if (codes_ || (lists_ > 0 && random.below(2) == 0))
      out.method.probes = lists_;
    else if (lists_ > 0)
      out.method.recall = 1;
    return out;
  }
  // Recall is calibrated by searches while the index changes; the answer may be any.
  void search_for_recall(Random& random) const {
    if (lists_ == 0) return;
    SearchOptions options{.threads = 1};
    options.method.recall = codes_ ? 0.1 : 0.9;
    try {
      index_.search(random_rows(random, 3, true).view(), 3, options);
    } catch (const InvalidArgument&) {  // so much was removed that an index of codes cannot tell
      EXPECT_TRUE(codes_);
    }
  }

  void read(std::uint64_t seed) {
    Random random(seed);
    std::vector<Answer> answers;
    while (!done_) {
      Answer a{0,
               random_rows(random, 3, random.below(2) == 0),
               static_cast<std::int64_t>(1 + random.below(30)),
               -1,
               {}};
      SearchOptions options = how(random);
      if (random.below(3) == 0) {
        a.filter_below = static_cast<Id>(
            random.below(static_cast<std::uint64_t>(std::min<Id>(index_.next_id(), 100000) + 1)));
        std::vector<std::uint8_t> bits(static_cast<std::size_t>((a.filter_below + 7) / 8), 255);
        options.filter = IdFilter::of_bits(bits, a.filter_below);
      }
      KnnReport report;
      a.near = index_.search(a.queries.view(), a.k, options, &report);
      a.version = report.version;
      if (answers.size() < 1500) answers.push_back(std::move(a));  // checking them takes longer
      // The other calls must only not crash.
      if (random.below(4) == 0)
        index_.range_search(random_rows(random, 1, true).view(), 2, how(random));
      if (codes_) index_.contains(static_cast<Id>(random.below(3000)));
      if (random.below(4) == 0) {
        EXPECT_GE(index_.memory_bytes(), 0);
      }
      if (random.below(8) == 0) search_for_recall(random);
      if (random.below(4) == 0) {
        const auto ids = index_.ids();
        EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
      }
    }
    std::lock_guard lock(mutex_);
    std::move(answers.begin(), answers.end(), std::back_inserter(answers_));
  }

  void check() {
    std::sort(answers_.begin(), answers_.end(),
              [](const Answer& a, const Answer& b) { return a.version < b.version; });
    Rows rows;
    std::int64_t version = first_version_;
    for (const Answer& a : answers_) {
      for (; version < a.version; ++version) {
        const Change& change = history_[static_cast<std::size_t>(version - first_version_)];
        for (const Id id : change.taken) rows.erase(id);
        for (const auto& [id, row] : change.put) rows[id] = row;
      }
      std::vector<Id> ids;
      for (const auto& [id, row] : rows)
        if (a.filter_below < 0 || id < a.filter_below) ids.push_back(id);
      Matrix<float> base(std::ssize(ids), dim);
      for (std::size_t i = 0; i < ids.size(); ++i)
        std::copy_n(rows.at(ids[i]).data(), dim, base.row(static_cast<std::int64_t>(i)));
      const Neighbors want = reference_knn(a.queries.view(), base.view(), a.k, index_.metric());
      for (std::int64_t i = 0; i < want.ids.rows() * a.k; ++i) {
        const Id id = want.ids.data()[i];
        ASSERT_EQ(a.near.ids.data()[i], id == no_id ? no_id : ids[static_cast<std::size_t>(id)])
            << "version " << a.version << " seed " << seed_;
        ASSERT_EQ(a.near.distances.data()[i], want.distances.data()[i]);
      }
    }
    EXPECT_GT(answers_.size(), 0u);
    std::printf("%zu changes, %zu answers of %s\n", history_.size(), answers_.size(),
                std::string(name_of(index_.metric())).c_str());
  }

  Index index_;
  const std::uint64_t seed_;
  const std::int64_t lists_;
  const bool codes_;
  const std::int64_t first_version_;
  std::atomic<bool> done_ = false;
  std::vector<Change> history_;  // the writer's, read when it has ended
  std::mutex mutex_;
  std::vector<Answer> answers_;
};

TEST(IndexConcurrency, EveryAnswerIsThatOfTheStateItSaw) {
  const char* seconds = std::getenv("KNEAR_FUZZ_SECONDS");
  const auto time = std::chrono::milliseconds(seconds ? 1000 * std::atoi(seconds) / 3 : 500);
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const auto& [lists, codes] :
         {std::pair(0, false), std::pair(5, false), std::pair(5, true)}) {
      const char* seed = std::getenv("KNEAR_FUZZ_SEED");
      Stress(metric, seed ? std::strtoull(seed, nullptr, 10) : 100, lists, codes).run(time);
      if (HasFatalFailure()) return;
    }
}

// A progress callback that blocks the work at its first call until it is released.
struct Gate {
  std::promise<void> reached, go;
  std::atomic<bool> first = true;
  Progress progress() {
    return [this](std::string_view, double) {
      if (first.exchange(false)) {
        reached.set_value();
        go.get_future().wait();
      }
      return true;
    };
  }
};

TEST(IndexConcurrency, ChangesDoNotWaitForASearch) {
  Random random(5);
  FlatIndex index(dim);
  const Matrix<float> x = random_rows(random, 3000, false);
  index.add(x.view());
  const Neighbors before = index.search(x.view().rows(0, 20), 7);
  Gate gate;
  Neighbors during;
  KnnReport report;
  std::thread search([&] {
    during =
        index.search(x.view().rows(0, 20), 7, {.threads = 2, .progress = gate.progress()}, &report);
  });
  gate.reached.get_future().wait();
  // The search is blocked half-way.
  index.add(x.view());
  index.remove(std::vector<Id>{0, 1, 2, 3});
  index.replace(std::vector<Id>{10}, x.view().rows(0, 1));
  std::vector<Id> most;
  for (Id id = 20; id < 2900; ++id) most.push_back(id);
  index.remove(most);
  index.compact();
  EXPECT_EQ(index.version(), 6);
  gate.go.set_value();
  search.join();
  EXPECT_EQ(report.version, 1);
  for (std::int64_t i = 0; i < 140; ++i) {
    ASSERT_EQ(during.ids.data()[i], before.ids.data()[i]);
    ASSERT_EQ(during.distances.data()[i], before.distances.data()[i]);
  }
}

TEST(IndexConcurrency, SearchesDoNotWaitForAChange) {
  Random random(6);
  FlatIndex index(dim);
  const Matrix<float> x = random_rows(random, 3000, false);
  index.add(x.view().rows(0, 1000));
  Gate gate;
  std::thread writer(
      [&] { index.add(x.view().rows(1000, 3000), {.threads = 1, .progress = gate.progress()}); });
  gate.reached.get_future().wait();
  KnnReport report;
  EXPECT_EQ(index.search(x.view().rows(2000, 2001), 1, {}, &report).ids.row(0)[0] < 1000, true);
  EXPECT_EQ(report.version, 1);
  EXPECT_EQ(index.size(), 1000);
  EXPECT_EQ(std::ssize(index.ids()), 1000);
  gate.go.set_value();
  writer.join();
  EXPECT_EQ(index.search(x.view().rows(2000, 2001), 1).ids.row(0)[0], 2000);
}

TEST(IndexConcurrency, AStoppedChangeLeavesNothing) {
  Random random(7);
  FlatIndex index(dim);
  const Matrix<float> x = random_rows(random, 3000, false);
  index.add(x.view().rows(0, 1000));
  const Progress stop = [](std::string_view, double) { return false; };
  EXPECT_THROW(index.add(x.view(), {.progress = stop}), Cancelled);
  std::vector<Id> ids(600);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Id>(i);
  EXPECT_THROW(index.replace(ids, x.view().rows(0, 600), {.progress = stop}), Cancelled);
  EXPECT_EQ(index.size(), 1000);
  EXPECT_EQ(index.version(), 1);
  index.add(x.view().rows(1000, 3000));
  const Neighbors near = index.search(x.view(), 1);
  for (std::int64_t i = 0; i < 3000; ++i) ASSERT_EQ(near.ids.row(i)[0], i);
}

}  // namespace
}  // namespace knear
