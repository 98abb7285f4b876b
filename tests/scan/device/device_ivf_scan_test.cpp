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

// Each query probes `probes` lists drawn at random, one in four of them fewer.
Matrix<Id> probes_of(std::int64_t queries, std::int64_t probes, std::uint64_t seed) {
  Random random(seed);
  Matrix<Id> out(queries, probes);
  for (std::int64_t q = 0; q < queries; ++q) {
    std::vector<Id> all(list_count);
    for (std::int64_t l = 0; l < list_count; ++l) {
      const auto at = static_cast<std::size_t>(random.below(static_cast<std::uint64_t>(l) + 1));
      all[static_cast<std::size_t>(l)] = all[at], all[at] = l;
    }
    const std::int64_t count =
        q % 4 == 3 ? random.below(static_cast<std::uint64_t>(probes) + 1) : probes;
    for (std::int64_t p = 0; p < probes; ++p)
      out.row(q)[p] = p < count ? all[static_cast<std::size_t>(p)] : no_id;
  }
  return out;
}

ListLayout layout_of(const std::vector<std::uint32_t>& list_of) {
  return ListLayout::of(RowLists(list_of, list_count), [](Id, std::uint32_t) { return true; });
}

// A base by list on the emulated device, queries, and which lists they probe.
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
                                         std::int64_t batch = 200) {
    ExactNeighbors out(queries.rows(), k);
    stats = {};
    std::vector<std::int64_t> left =
        scan.run(queries, all_of(queries.rows()), found, k, out, stats, batch, {}, bounds, allowed,
                 std::numeric_limits<std::size_t>::max(), usual_piece, probes);
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
  HostQueue queue;
  DeviceScan<HostQueue> scan;
  DeviceStats stats;
};

template <class T>
void expect_exact_lists(std::uint64_t seed, std::int64_t rows, std::int64_t dim,
                        std::int64_t queries, std::int64_t k, std::int64_t probes) {
  // Copies, whose ties go by id.
  auto base = vectors<T>(rows, dim, seed, 40);
  for (std::int64_t i = 0; i < rows; i += 7) std::copy_n(base.row(i / 2), dim, base.row(i));
  const auto asked = vectors<T>(queries, dim, seed + 1, 40);
  const Matrix<Id> lists = probes_of(queries, probes, seed + 2);
  for (const Metric metric : metrics) {
    ListProblem problem(base.view(), asked.view(), metric, seed++);
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

}  // namespace
}  // namespace knear::detail
