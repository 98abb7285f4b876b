// tests/index/index_concurrency_test.cpp -- searches while the index changes: every answer must be
// that of the very state that the search says it saw, every file that of a state that there was
// while it was written. CI runs this under the thread sanitiser.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/core/value_range.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/index/lists/flat_lists.hpp"
#include "knear/index/recall/recall_rule.hpp"
#include "knear/knn/rows/prepared_rows.hpp"
#include "tests/index/index_model.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using detail::CodeKind;
using detail::CodeShape;
using detail::IndexShape;
using detail::RefineShape;
using detail::TransformShape;

constexpr std::int64_t dim = 5;
constexpr std::size_t least_changes = 15;  // however long they take
using Row = std::vector<float>;
using Rows = std::map<Id, Row>;

// One change of the history: the vectors that it added and those that it removed.
struct Change {
  Rows put;
  std::vector<Id> taken;
};

struct Question {
  Matrix<float> queries;
  std::int64_t k;
  Id filter_below;  // only ids below this; -1: no filter
  IndexModel::How how;
  SearchOptions options;
};

struct Answer {
  std::int64_t version;
  std::shared_ptr<const Question> question;
  Neighbors near;
};

// What was written to a file while the index changed: one of the states between two versions.
struct Saved {
  std::int64_t first, last;
  std::vector<Id> ids;
  Answer answer;
  bool seen = false;
};

Matrix<float> random_rows(Random& random, std::int64_t n, bool whole) {
  Matrix<float> out(n, dim);
  for (std::int64_t i = 0; i < n * dim; ++i)
    out.data()[i] =
        whole ? static_cast<float>(random.below(6)) : static_cast<float>(random.uniform() * 6);
  return out;
}

std::string temporary_file() {
  std::string name = std::filesystem::temp_directory_path() / "knear-concurrency-XXXXXX";
  close(mkstemp(name.data()));
  return name;
}

bool same(const Neighbors& a, const Neighbors& b) {
  const std::int64_t places = a.ids.rows() * a.ids.cols();
  return std::equal(a.ids.data(), a.ids.data() + places, b.ids.data()) &&
         std::equal(a.distances.data(), a.distances.data() + places, b.distances.data());
}

// A writer, readers and someone who saves, that use one index for a while.
class Stress {
 public:
  Stress(const IndexShape& shape, std::uint64_t seed)
      : shape_(shape),
        index_(made(shape)),
        seed_(seed),
        model_(index_),
        first_version_(index_.version()) {
    index_.save(empty_);
  }
  ~Stress() {
    for (const std::string& file : {empty_, writers_, savers_}) unlink(file.c_str());
  }

  void run(std::chrono::milliseconds time) {
    std::vector<std::thread> others;
    for (std::uint64_t r = 0; r < 3; ++r) others.emplace_back([this, r] { read(seed_ + 1 + r); });
    others.emplace_back([this] { save(seed_ + 10); });
    try {
      write(std::chrono::steady_clock::now() + time);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
    done_ = true;
    for (std::thread& other : others) other.join();
    check();
  }

 private:
  void write(std::chrono::steady_clock::time_point end) {
    Random random(seed_);
    Rows rows;
    while (std::chrono::steady_clock::now() < end || history_.size() < least_changes) {
      Change change;
      const auto op = rows.size() > 2000 ? 2 : random.below(6);
      if (op < 2 || rows.size() < 50) {
        const auto n = static_cast<std::int64_t>(1 + random.below(random.below(4) ? 30 : 500));
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
      } else if (op == 4) {
        merge(change, rows, random);
      } else {
        index_.compact();
      }
      for (const Id id : change.taken) rows.erase(id);
      for (const auto& [id, row] : change.put) rows[id] = row;
      history_.push_back(std::move(change));
      ASSERT_EQ(index_.version(), first_version_ + std::ssize(history_));
    }
  }
  // With an index that lies in a file: a small one, or what this one is now.
  void merge(Change& change, const Rows& rows, Random& random) {
    const Id first = index_.next_id();
    if (rows.size() < 600 && random.below(2) == 0) {
      index_.save(writers_);
      index_.merge(Index::load(writers_), MergeIds::shifted);
      for (const auto& [id, row] : rows) change.put[id + first] = row;
      return;
    }
    Index other = Index::load(empty_);
    const bool keep = random.below(2) == 0;
    const Matrix<float> x =
        random_rows(random, 1 + static_cast<std::int64_t>(random.below(300)), random.below(2) == 0);
    std::vector<Id> ids;
    for (std::int64_t i = 0; i < x.rows(); ++i) ids.push_back((keep ? first : 0) + 3 * i);
    other.add(x.view(), ids);
    if (random.below(2) == 0) {
      other.save(writers_);
      other = Index::load(writers_);
    }
    index_.merge(other, keep ? MergeIds::keep : MergeIds::shifted);
    for (Id& id : ids) id += keep ? 0 : first;
    put(change, ids, x);
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

  static OpenIndex made(const IndexShape& shape) {
    Random random(9);
    OpenIndex index(shape);
    // Of quantisers as few as they take: each of them that an index keeps to know recall by slows
    // the writer down.
    const std::int64_t rows =
        shape.codes && shape.codes->kind == CodeKind::product && shape.codes->bits == 8 ? 256 : 64;
    if (shape.learns())
      index.train(random_rows(random, rows, false).view(),
                  {.iterations = shape.lists > 0 ? 4 : TrainOptions().iterations});
    return index;
  }
  std::shared_ptr<const Question> question(const Index& index, Random& random) const {
    auto out =
        std::make_shared<Question>(Question{random_rows(random, 3, random.below(2) == 0),
                                            static_cast<std::int64_t>(1 + random.below(30)),
                                            -1,
                                            {.probes = 0, .factor = shape_.refine ? 4 : 0},
                                            {.threads = 1 + static_cast<int>(random.below(2))}});
    SearchMethod& method = out->options.method;
    if (shape_.lists > 0 && !shape_.codes && random.below(3) == 0)
      method.recall = 1, out->how.probes = shape_.lists;
    else if (shape_.lists > 0)
      method.probes = out->how.probes =
          1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(shape_.lists)));
    if (shape_.refine && random.below(3) > 0)
      method.codes.refine_factor = out->how.factor = random.below(2) == 0 ? 2 : 1 << 20;
    if (random.below(3) == 0) {
      out->filter_below = static_cast<Id>(
          random.below(static_cast<std::uint64_t>(std::min<Id>(index.next_id(), 100000) + 1)));
      std::vector<std::uint8_t> bits(static_cast<std::size_t>((out->filter_below + 7) / 8), 255);
      out->options.filter = IdFilter::of_bits(bits, out->filter_below);
    }
    return out;
  }
  static Answer answered(const Index& index, std::shared_ptr<const Question> question) {
    KnnReport report;
    Neighbors near =
        index.search(question->queries.view(), question->k, question->options, &report);
    return {report.version, std::move(question), std::move(near)};
  }
  // Recall is calibrated by searches while the index changes; the answer may be any.
  void search_for_recall(Random& random) const {
    if (!shape_.is_probed()) return;
    SearchOptions options{.threads = 1};
    options.method.recall = shape_.codes ? 0.1 : 0.9;
    try {
      index_.search(random_rows(random, 3, true).view(), 3, options);
    } catch (const InvalidArgument&) {  // of codes that were merged or removed nothing is known
      EXPECT_TRUE(shape_.codes);
    }
  }

  void read(std::uint64_t seed) {
    Random random(seed);
    std::vector<Answer> answers;
    while (!done_) {
      Answer a = answered(index_, question(index_, random));
      if (answers.size() < 400) answers.push_back(std::move(a));  // checking them takes longer
      // The other calls must only not crash.
      if (random.below(4) == 0) {
        SearchOptions within = question(index_, random)->options;
        within.method.codes.refine_factor = 0;
        index_.range_search(random_rows(random, 1, true).view(), 2, within);
      }
      const auto id = static_cast<Id>(random.below(3000));
      if (random.below(4) == 0 && index_.contains(id)) {
        try {
          EXPECT_EQ(index_.reconstruct(std::vector<Id>{id}).rows(), 1);
        } catch (const InvalidArgument&) {  // it was removed meanwhile
        }
      }
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

  // Into the same file, whose replacing an index that lies in it does not notice.
  void save(std::uint64_t seed) {
    Random random(seed);
    while (!done_) {
      const std::int64_t first = index_.version();
      index_.save(savers_);
      const std::int64_t last = index_.version();
      const Index loaded = Index::load(savers_);
      Saved one{first, last, loaded.ids(), answered(loaded, question(loaded, random))};
      index_.save(savers_);
      EXPECT_TRUE(same(answered(loaded, one.answer.question).near, one.answer.near));
      saved_.push_back(std::move(one));
    }
  }

  bool is_right(const Answer& a) const {
    const Question& asked = *a.question;
    for (std::int64_t q = 0; q < asked.queries.rows(); ++q) {
      const auto want = model_.search(asked.queries.view(), q, asked.k, asked.how, [&](Id id) {
        return asked.filter_below < 0 || id < asked.filter_below;
      });
      for (std::int64_t j = 0; j < asked.k; ++j) {
        const bool there = j < std::ssize(want);
        const auto [key, id] = there ? want[static_cast<std::size_t>(j)] : std::pair(0.0, no_id);
        if (a.near.ids.row(q)[j] != id ||
            (there &&
             a.near.distances.row(q)[j] != static_cast<float>(distance_of_key(shape_.metric, key))))
          return false;
      }
    }
    return true;
  }

  void check() {
    std::stable_sort(answers_.begin(), answers_.end(),
                     [](const Answer& a, const Answer& b) { return a.version < b.version; });
    std::size_t at = 0;
    for (std::size_t changes = 0;; ++changes) {
      const std::int64_t version = first_version_ + static_cast<std::int64_t>(changes);
      for (; at < answers_.size() && answers_[at].version == version; ++at)
        ASSERT_TRUE(is_right(answers_[at])) << "version " << version << " seed " << seed_;
      std::vector<Id> ids;
      for (const auto& [id, row] : model_.rows) ids.push_back(id);
      for (Saved& one : saved_)
        one.seen |=
            one.first <= version && version <= one.last && one.ids == ids && is_right(one.answer);
      if (changes == history_.size()) break;
      for (const Id id : history_[changes].taken) model_.rows.erase(id);
      for (const auto& [id, row] : history_[changes].put)
        model_.put(id, MatrixView<float>(row.data(), 1, dim), 0);
    }
    EXPECT_EQ(at, answers_.size());
    for (const Saved& one : saved_)
      EXPECT_TRUE(one.seen) << "saved between versions " << one.first << " and " << one.last;
    EXPECT_GT(answers_.size(), 0u);
    EXPECT_GT(saved_.size(), 0u);
    std::printf("%s %s: %zu changes, %zu answers, %zu files\n", shape_.description().c_str(),
                std::string(name_of(shape_.metric)).c_str(), history_.size(), answers_.size(),
                saved_.size());
  }

  const std::string empty_ = temporary_file(), writers_ = temporary_file(),
                    savers_ = temporary_file();
  const IndexShape shape_;
  OpenIndex index_;
  const std::uint64_t seed_;
  IndexModel model_;
  const std::int64_t first_version_;
  std::atomic<bool> done_ = false;
  std::vector<Change> history_;  // the writer's, read when it has ended
  std::vector<Saved> saved_;     // of the one who saves, likewise
  std::mutex mutex_;
  std::vector<Answer> answers_;
};

std::vector<IndexShape> shapes(Metric metric) {
  using Kind = TransformShape::Kind;
  const CodeShape residual{.kind = CodeKind::product, .parts = 5, .bits = 8, .residual = true},
      whole{.kind = CodeKind::product, .parts = 5, .bits = 4, .residual = false},
      scalar{.bits = 8, .residual = false};
  const IndexShape four_lists{.metric = metric, .lists = 4};
  std::vector<IndexShape> out{
      {},
      {.lists = 5},
      {.lists = 5, .codes = CodeShape{.residual = true}, .refine = RefineShape{}},
      {.codes = CodeShape{.kind = CodeKind::product, .parts = 5, .bits = 8, .residual = false}},
      {.lists = 5, .codes = residual},
      {.codes = whole, .refine = RefineShape{.codes = scalar}},
      {.rounded = ElementType::f16},
      {.transforms = {{.kind = Kind::pca, .dim_out = 4}}, .lists = 5},
      {.transforms = {{.kind = Kind::opq, .dim_out = 4, .sub_quantizers = 2, .bits = 4}},
       .lists = 5,
       .codes = CodeShape{.kind = CodeKind::product, .parts = 2, .bits = 4, .residual = true},
       .refine = RefineShape{}},
      {.lists = 20, .coarse = {four_lists}, .codes = residual},
      {.codes = scalar},
      {.lists = 5,
       .codes = CodeShape{.kind = CodeKind::product, .parts = 5, .bits = 4, .residual = true}},
      {.rounded = ElementType::bf16},
      {.lists = 5, .rounded = ElementType::bf16},
      {.lists = 5,
       .codes = CodeShape{.bits = 4, .residual = true},
       .refine = RefineShape{.rounded = ElementType::f16}},
      {.codes = CodeShape{.bits = 4, .residual = false}},
      {.lists = 5, .rounded = ElementType::f16},
      {.lists = 5,
       .codes = CodeShape{.bits = 8, .residual = true},
       .refine = RefineShape{.codes = whole}},
      {.transforms = {{.kind = Kind::rotation, .dim_out = 4}}, .codes = scalar},
      {.transforms = {{.kind = Kind::unit_norm, .dim_out = dim}}, .lists = 5},
      {.transforms = {{.kind = Kind::pca, .dim_out = 4, .whiten = true}},
       .codes = CodeShape{.kind = CodeKind::product, .parts = 4, .bits = 4, .residual = false},
       .refine = RefineShape{}},
  };
  for (IndexShape& shape : out) shape.dim = dim, shape.metric = metric;
  return out;
}

TEST(IndexConcurrency, EveryAnswerIsThatOfTheStateItSaw) {
  const char *seconds = std::getenv("KNEAR_FUZZ_SECONDS"), *seed = std::getenv("KNEAR_FUZZ_SEED");
  int number = 0;
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const IndexShape& shape : shapes(metric)) {
      const auto count = static_cast<int>(shapes(metric).size());
      // Where tests are small each shape has one metric, in turn.
      if (test::small() && ++number % 3 != static_cast<int>(metric)) continue;
      const auto time =
          std::chrono::milliseconds(seconds ? 1000 * std::atoi(seconds) / 3 / count : 250);
      Stress(shape, seed ? std::strtoull(seed, nullptr, 10) : 100).run(time);
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
  Index index = make_index("Flat", dim);
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
  Index index = make_index("Flat", dim);
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
  Index index = make_index("Flat", dim);
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

// A change waits for the one before it, which would be itself.
TEST(IndexConcurrency, AChangeByTheProgressOfAChangeIsRefused) {
  Random random(8);
  Index index = make_index("Flat", dim);
  const Matrix<float> x = random_rows(random, 3000, false);
  index.add(x.view().rows(0, 1000));
  const std::vector<Id> first = {0};
  const auto here = std::this_thread::get_id();
  const Progress change = [&](std::string_view, double) {
    if (std::this_thread::get_id() == here) index.remove(first);
    return true;
  };
  EXPECT_THROW(index.add(x.view(), {.threads = 1, .progress = change}), InvalidArgument);
  EXPECT_EQ(index.size(), 1000);
  index.remove(first);  // the lock is free again
  EXPECT_EQ(index.size(), 999);
}

// Forks while other threads call look() all the time, and has each child call it once.
void expect_children_look(const std::function<void()>& look) {
  std::atomic<bool> ends = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      while (!ends) look();
    });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);  // ends a child that waits for ever
      look();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "child " << i << " got signal " << WTERMSIG(status);
    if (::testing::Test::HasFailure()) break;
  }
  ends = true;
  for (std::thread& other : others) other.join();
}

// The locks that searches hold for microseconds.
TEST(IndexConcurrency, AChildFindsNoLockOfAnotherThread) {
  Random random(9);
  const Matrix<float> x = random_rows(random, 3000, false);
  Index index = make_index("Flat", dim);
  index.add(x.view());
  expect_children_look([&] { index.size(); });
  Index sharded = index.divided({});
  expect_children_look([&] { sharded.size(); });
  detail::RecallCurves curves(10);
  detail::RecallCurve curve;
  curve.k = 3;
  curves.set(curve);
  expect_children_look([&] { curves.find(3); });
  detail::FlatLists lists;
  expect_children_look([&] { lists.bytes(); });
  detail::PreparedRows rows(x.view(), Metric::l2,
                            find_value_range(x.view(), Metric::l2, "base", 1));
  expect_children_look([&] { rows.worth_up_to(FirstPass::int8); });
  expect_children_look([&] { planning_peaks(active_isa(), 1); });
}

}  // namespace
}  // namespace knear
