// Inverted lists on the emulated GPU: the work as it is laid out, and the nearest rows of the lists
// that each query probes, as a plain loop over these finds them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/scan/device/device_problem.hpp"
#include "tests/scan/random_probes.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t list_count = 23;
constexpr double infinity = std::numeric_limits<double>::infinity();

// Lists of unequal sizes: list 0 has half of the rows, list 5 none, list 6 one.
std::vector<std::uint32_t> lists_of(std::int64_t rows, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::uint32_t> out;
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto list = static_cast<std::uint32_t>(random.below(2 * list_count));
    out.push_back(list >= list_count || list == 5 || list == 6 ? 0 : list);
  }
  if (rows > 1) out[static_cast<std::size_t>(rows / 2)] = 6;
  return out;
}

ListLayout layout_of(const std::vector<std::uint32_t>& list_of) {
  return ListLayout::of(RowLists(list_of, list_count), [](Id, std::uint32_t) { return true; });
}

// Fails to give memory once, before the allocation of some number.
class OnceWithoutMemory : public HostQueue {
 public:
  using HostQueue::HostQueue;
  template <class T>
  Array<T> allocate(std::size_t size) {
    count();
    return HostQueue::allocate<T>(size);
  }
  template <class T>
  HostArray<T> allocate_host(std::size_t size) {
    count();
    return HostQueue::allocate_host<T>(size);
  }
  int before = -1;

 private:
  void count() {
    if (before-- == 0) throw MemoryBudgetError("no memory");
  }
};

// A base by list on the emulated device, queries, and which lists they probe.
template <class Queue = HostQueue>
struct ListProblem {
  ListProblem(AnyMatrixView base_rows, AnyMatrixView query_rows, Metric of, std::uint64_t seed,
              std::size_t budget = std::size_t{1} << 40)
      : base(base_rows),
        queries(query_rows),
        metric(of),
        list_of(lists_of(base.rows(), seed)),
        layout(layout_of(list_of)),
        found(find_value_range(queries, Metric::l2, "queries", 1)),
        queue(seed, budget),
        scan(queue, coding(), upload_rows(queue, BaseRows(base), {}, 1), layout, 2) {}
  Coding coding() const {
    Coding out = Problem::pack(base, found, metric);
    return device_coding_of_panels(out, base.rows(), base.cols(), layout.panels());
  }
  // Compares the answers with all rows of the lists, measured; returns the queries without one.
  std::vector<std::int64_t> expect_exact(std::int64_t k, MatrixView<Id> probes,
                                         const std::string& what, const AllowedRows& allowed = {},
                                         std::span<const double> bounds = {},
                                         std::size_t most_bytes = std::size_t{1} << 40) {
    ExactNeighbors out(queries.rows(), k);
    stats = {};
    std::vector<std::int64_t> left =
        scan.run(queries, all_of(queries.rows()), found, k, out, stats, 200, {}, bounds, allowed,
                 most_bytes, usual_piece, probes);
    std::vector<bool> answered(static_cast<std::size_t>(queries.rows()), true);
    for (const std::int64_t q : left) answered[static_cast<std::size_t>(q)] = false;
    for (std::int64_t q = 0; q < queries.rows(); ++q) {
      if (!answered[static_cast<std::size_t>(q)]) continue;
      const double bound = bounds.empty() ? infinity : bounds[static_cast<std::size_t>(q)];
      std::vector<std::pair<double, Id>> truth = rows_near(q, probes, allowed);
      truth.resize(static_cast<std::size_t>(k), {infinity, no_id});
      for (std::int64_t j = 0; j < k; ++j) {
        const auto [key, id] = truth[static_cast<std::size_t>(j)];
        if (key > bound) break;  // may be there or not
        EXPECT_EQ(out.ids.row(q)[j], id) << what << ", query " << q << ", place " << j;
        EXPECT_EQ(out.keys.row(q)[j], key) << what << ", query " << q << ", place " << j;
        if (testing::Test::HasFailure()) return left;
      }
    }
    return left;
  }
  std::vector<std::pair<double, Id>> rows_near(std::int64_t q, MatrixView<Id> probes,
                                               const AllowedRows& allowed) const {
    const std::set<Id> lists(probes.row(q), probes.row(q) + probes.cols());
    std::vector<std::pair<double, Id>> out;
    visit(queries, [&](auto x) {
      visit(base, [&](auto y) {
        for (Id i = 0; i < y.rows(); ++i)
          if (lists.count(list_of[static_cast<std::size_t>(i)]) && allowed(i))
            out.emplace_back(
                order_key(metric, reference_distance(metric, x.row(q), y.row(i), y.cols())), i);
      });
    });
    std::sort(out.begin(), out.end());
    return out;
  }

  const AnyMatrixView base, queries;
  const Metric metric;
  const std::vector<std::uint32_t> list_of;
  const ListLayout layout;
  const ValueRange found;
  Queue queue;
  DeviceScan<Queue> scan;
  DeviceStats stats;
};

template <class T>
void expect_exact_lists(std::uint64_t seed, std::int64_t rows, std::int64_t dim,
                        std::int64_t queries, std::int64_t k, std::int64_t probes) {
  // Copies, whose ties go by id.
  auto base = vectors<T>(rows, dim, seed, 40);
  for (std::int64_t i = 0; i < rows; i += 7) std::copy_n(base.row(i / 2), dim, base.row(i));
  const auto asked = vectors<T>(queries, dim, seed + 1, 40);
  const Matrix<Id> lists = test::random_probes(queries, probes, list_count, seed + 2);
  for (const Metric metric : metrics) {
    ListProblem<> problem(base.view(), asked.view(), metric, seed++);
    const std::string what = std::string(name_of(metric)) + ", " + std::to_string(queries) +
                             " queries, k " + std::to_string(k) + ", " + std::to_string(probes) +
                             " probes";
    EXPECT_TRUE(problem.expect_exact(k, lists.view(), what).empty()) << what;
    if (testing::Test::HasFailure()) return;
  }
}

TEST(DeviceIvfScan, GivesTheNearestOfTheListsThatAreProbed) {
  expect_exact_lists<float>(1, 900, 24, 1, 10, 6);
  expect_exact_lists<float>(10, 900, 40, 5, 3, 23);
  expect_exact_lists<float>(20, 700, 17, 130, 10, 4);
  expect_exact_lists<std::uint8_t>(30, 900, 33, 5, 10, 9);
  expect_exact_lists<std::uint8_t>(40, 700, 20, 300, 4, 3);
  expect_exact_lists<double>(50, 500, 70, 7, 5, 5);
  expect_exact_lists<f16>(60, 500, 12, 140, 2, 2);
  expect_exact_lists<float>(70, 20, 8, 3, 40, 23);  // more neighbours than rows
  expect_exact_lists<float>(80, 900, 8, 4, 600, 12);
  expect_exact_lists<float>(90, 1, 3, 2, 2, 23);
}

// A filter is tested by a bit a row; rows beyond what is known from elsewhere need not be found.
TEST(DeviceIvfScan, AllowedRowsAndUpperBounds) {
  const auto base = vectors<float>(800, 12, 1), asked = vectors<float>(9, 12, 2);
  const Matrix<Id> probes = test::random_probes(9, 8, list_count, 3);
  ListProblem<> problem(base.view(), asked.view(), Metric::l2, 4);
  for (const std::int64_t every : {2, 11, 300}) {
    RowSet live(800);
    for (std::int64_t i = 0; i < 800; ++i)
      if (i % every != 1) live.remove(i);
    problem.expect_exact(5, probes.view(), "every " + std::to_string(every), {.live = &live});
    std::vector<double> bounds;
    for (std::int64_t q = 0; q < 9; ++q) {
      const auto near = problem.rows_near(q, probes.view(), {.live = &live});
      bounds.push_back(near.size() > 2 && q % 3 > 0 ? near[2].first : infinity);
    }
    problem.expect_exact(5, probes.view(), "bounds", {.live = &live}, bounds);
  }
}

// Copies of a row fill the lists of candidates of the queries near them, which are then as long as
// it takes; of all queries, as many as one block has, or more.
TEST(DeviceIvfScan, ListsOfCandidatesThatFill) {
  auto base = vectors<float>(5200, 4, 5);
  for (std::int64_t i = 0; i < 5200; ++i)
    if (i % 7 > 0) std::copy_n(base.row(1), 4, base.row(i));
  for (const std::int64_t queries : {3, 140}) {
    auto asked = vectors<float>(queries, 4, 6);
    for (std::int64_t q = 3; q < queries; ++q)  // far from the copies
      for (int j = 0; j < 4; ++j) asked.row(q)[j] = base.row(0)[j] + 0.01f * asked.row(q)[j];
    std::copy_n(base.row(1), 4, asked.row(2));
    Matrix<Id> probes(queries, 2);
    for (std::int64_t q = 0; q < queries; ++q) probes.row(q)[0] = q % 22 + 1, probes.row(q)[1] = 0;
    ListProblem<> problem(base.view(), asked.view(), Metric::l2, 7);
    // With few bytes lists have the length of those of a batch.
    problem.expect_exact(5, probes.view(), "copies", {}, {}, queries == 3 ? 250 << 10 : 1 << 30);
    EXPECT_GT(problem.stats.repeated, 0);
  }
}

// Queries that share blocks have one scale: those of other sizes are searched after one another.
TEST(DeviceIvfScan, QueriesOfAllSizes) {
  const auto base = vectors<float>(600, 10, 8);
  auto asked = vectors<float>(150, 10, 9);
  for (std::int64_t q = 0; q < 150; ++q)
    for (int j = 0; j < 10; ++j)
      asked.row(q)[j] *= q == 77 ? 0 : std::pow(10.0f, static_cast<float>(q % 5 - 2));
  const Matrix<Id> probes = test::random_probes(150, 5, list_count, 10);
  for (const Metric metric : {Metric::l2, Metric::cosine}) {
    ListProblem<> problem(base.view(), asked.view(), metric, 11);
    EXPECT_TRUE(problem.expect_exact(4, probes.view(), "sizes").empty());
    EXPECT_LT(problem.stats.survivors, 150 * 10);
  }
}

// Codes of a few blocks of queries at a time, where all would take too much memory.
TEST(DeviceIvfScan, BlocksInParts) {
  const auto base = vectors<std::uint8_t>(500, 40, 12), asked = vectors<std::uint8_t>(30, 40, 13);
  const Matrix<Id> probes = test::random_probes(30, 7, list_count, 14);
  ListProblem<> problem(base.view(), asked.view(), Metric::l2, 15);
  // 8 KiB a block; 1, 3 and all.
  for (const std::size_t bytes : {1 << 10, 99 << 10, 1 << 20})
    EXPECT_TRUE(problem.expect_exact(3, probes.view(), "parts", {}, {}, bytes).empty());
}

// Whenever memory fails, what is answered is right, and what is not is said.
TEST(DeviceIvfScan, MemoryThatFails) {
  const auto base = vectors<float>(200, 6, 16), asked = vectors<float>(3, 6, 17);
  const Matrix<Id> probes = test::random_probes(3, 4, list_count, 18);
  ListProblem<OnceWithoutMemory> problem(base.view(), asked.view(), Metric::l2, 19);
  int failed = 0;
  for (; problem.queue.before < 0; ++failed) {
    problem.queue.before = failed;
    problem.expect_exact(3, probes.view(), "allocation " + std::to_string(failed));
    if (problem.queue.before >= 0) break;  // there were no more
  }
  EXPECT_GT(failed, 12);
  problem.queue.before = -1;
  EXPECT_TRUE(problem.expect_exact(3, probes.view(), "again").empty());
}

// Every probe of a list that has rows is in one block, whose tasks go over its panels once.
TEST(DeviceIvfWork, EachProbeOnce) {
  const std::vector<std::int64_t> first_panel = {0, 5, 5, 6, 40, 43};
  Random random(20);
  for (const std::int64_t queries : {1, 3, 129, 400})
    for (const bool by_list : {true, false}) {
      Matrix<Id> probes(queries, 5);
      std::vector<const Id*> rows;
      std::map<std::pair<int, int>, int> wanted, got;  // place and panel
      for (std::int64_t q = 0; q < queries; ++q) {
        const auto some = static_cast<std::int64_t>(random.below(6));
        for (std::int64_t p = 0; p < 5; ++p) probes.row(q)[p] = p < some ? (p + q) % 5 : no_id;
        rows.push_back(probes.row(q));
        for (std::int64_t p = 1; p < std::min<std::int64_t>(some, 4); ++p) {
          const auto list = static_cast<std::size_t>(probes.row(q)[p]);
          for (std::int64_t panel = first_panel[list]; panel < first_panel[list + 1]; ++panel)
            if (panel - first_panel[list] >= 2 && panel - first_panel[list] < 20)
              wanted[{static_cast<int>(q), static_cast<int>(panel)}] = 1;
        }
      }
      const ListWork work = (by_list ? work_by_list : work_by_query)(first_panel, rows, 1, 4);
      int block = 0;
      for (const DeviceTask& task : tasks_of(work, 2, 20, 7)) {
        EXPECT_LT(task.begin, task.end);
        EXPECT_LE(task.end - task.begin, 7);
        EXPECT_GE(task.query_block, block);
        block = task.query_block;
        int some = 0;
        for (int q = 0; q < block_queries; ++q) {
          const int place = work.places[static_cast<std::size_t>(block * block_queries + q)];
          if (place < 0) continue;
          EXPECT_EQ(some++, q);  // the others are behind
          for (int panel = task.begin; panel < task.end; ++panel) ++got[{place, panel}];
        }
        EXPECT_GT(some, 0);
        EXPECT_LE(some, work.most_queries);
      }
      EXPECT_EQ(got, wanted) << queries << (by_list ? " by list" : " by query");
    }
}

TEST(DeviceIvfWork, PartsOfALayoutNumberTheirRowsAnew) {
  const std::vector<std::uint32_t> list_of = lists_of(300, 21);
  const ListLayout whole = ListLayout::of(RowLists(list_of, list_count),
                                          [](Id, std::uint32_t row) { return row % 3 > 0; });
  EXPECT_EQ(whole.rows, 200);
  EXPECT_EQ(whole.lists(), list_count);
  std::vector<std::uint32_t> numbers;
  for (std::int64_t from = 0; from < whole.panels(); from += 3) {
    const std::int64_t to = std::min(whole.panels(), from + 3);
    const ListLayout part = whole.part(from, to, numbers);
    EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
    EXPECT_EQ(part.rows, std::ssize(numbers));
    EXPECT_EQ(part.panels(), to - from);
    for (std::int64_t list = 0; list < list_count; ++list) {
      const auto at = static_cast<std::size_t>(list);
      for (std::int64_t panel = part.first_panel[at]; panel < part.first_panel[at + 1]; ++panel)
        for (std::int64_t i = panel * panel_rows; i < (panel + 1) * panel_rows; ++i) {
          const int row = part.row_at[static_cast<std::size_t>(i)];
          const int was = whole.row_at[static_cast<std::size_t>(from * panel_rows + i)];
          ASSERT_EQ(row < 0, was < 0);
          if (row < 0) continue;
          ASSERT_EQ(numbers[static_cast<std::size_t>(row)], static_cast<std::uint32_t>(was));
          ASSERT_EQ(list_of[static_cast<std::size_t>(was)], list);
        }
    }
  }
}

}  // namespace
}  // namespace knear::detail
