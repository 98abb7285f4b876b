// Searches of vectors that are in the memory of the emulated device: the answers of knn().
#include "knear/knn/device/device_base.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "knear/core/random.hpp"
#include "knear/knn/knn.hpp"
#include "tests/simt/emulated_launches.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

using Rows = DeviceRowData<HostQueue>;

template <class T>
Matrix<T> made(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  Matrix<T> out(rows, dim);
  for (std::int64_t i = 0; i < rows * dim; ++i) {
    const double x = 2 * random.uniform() - 1;
    if constexpr (std::is_same_v<T, float>)
      out.data()[i] = static_cast<float>(x);
    else
      out.data()[i] = static_cast<T>(100 * std::fabs(x));
  }
  return out;
}

// Memory of the device that belongs to the caller.
struct DeviceMatrix {
  HostQueue::Array<unsigned char> memory;
  Rows rows;

  DeviceMatrix(HostQueue& queue, AnyMatrixView matrix) {
    const auto bytes =
        static_cast<std::size_t>(matrix.rows() * matrix.cols() * size_of(matrix.type()));
    memory = queue.allocate<unsigned char>(bytes);
    if (bytes > 0)
      queue.upload(memory.data(), static_cast<const unsigned char*>(matrix.row(0)), bytes);
    queue.wait();
    rows.borrowed = memory.data(), rows.type = matrix.type();
    rows.count = matrix.rows(), rows.dim = matrix.cols();
  }
};

void expect_same(const HostQueue::Array<Id>& ids, const HostQueue::Array<float>& distances,
                 const Neighbors& truth, const std::string& what) {
  ASSERT_EQ(truth.ids.rows() * truth.ids.cols(), static_cast<std::int64_t>(ids.size())) << what;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(ids.data()[i], truth.ids.data()[i]) << what << ", place " << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(distances.data()[i]),
              std::bit_cast<std::uint32_t>(truth.distances.data()[i]))
        << what << ", place " << i;
  }
}

// Searches twice, the second time with the codes of the first, and compares.
void expect_exact(AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
                  const KnnOptions& options, const std::string& what, KnnReport* report = nullptr,
                  std::size_t budget = std::size_t{1} << 40) {
  HostQueue queue(3, budget), lender(4);
  DeviceMatrix lent(lender, base), asked(lender, queries);
  DeviceBase<HostQueue> rows(queue, std::move(lent.rows), options.metric);
  const Neighbors truth = knn(queries, base, k, options);
  KnnOptions there = options;
  there.device = "cuda";
  for (int time = 0; time < 2; ++time) {
    const auto count = static_cast<std::size_t>(queries.rows() * k);
    auto ids = lender.allocate<Id>(count);
    auto distances = lender.allocate<float>(count);
    KnnReport seen;
    rows.search(SearchKind::nearest, asked.rows, k, there, Reuse::expected,
                {ids.data(), distances.data()}, &seen);
    if (report && time == 0) *report = seen;
    if (time == 1 && seen.scan.chunks == 1 && seen.scan.fallback_queries == 0) {
      EXPECT_EQ(seen.prepare_seconds, 0) << what;
    }
    expect_same(ids, distances, truth, what);
  }
}

// The nearest others of each row, as the processor finds them.
void expect_self_joined(AnyMatrixView base, std::int64_t k, const KnnOptions& options,
                        const std::string& what, KnnReport* report = nullptr,
                        std::size_t budget = std::size_t{1} << 40, bool joined = false) {
  HostQueue queue(5, budget), lender(6);
  DeviceMatrix lent(lender, base), asked(lender, base);
  DeviceBase<HostQueue> rows(queue, std::move(lent.rows), options.metric);
  KnnOptions there = options;
  there.device = "cuda";
  const auto count = static_cast<std::size_t>(base.rows() * k);
  auto ids = lender.allocate<Id>(count);
  auto distances = lender.allocate<float>(count);
  KnnReport seen;
  rows.search(SearchKind::self_join, asked.rows, k, there, Reuse::none,
              {ids.data(), distances.data()}, &seen);
  EXPECT_EQ(seen.k, k) << what;
  EXPECT_EQ(seen.queries, base.rows()) << what;
  EXPECT_EQ(seen.device.name, "cuda") << what;
  EXPECT_EQ(seen.scan.joined, joined) << what;
  if (report) *report = seen;
  expect_same(ids, distances, self_join(base, k, options), what);
}

TEST(DeviceBase, AnswersAreThoseOfRowsOfTheProcessor) {
  const auto base = made<float>(900, 20, 1), queries = made<float>(130, 20, 2);
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    expect_exact(queries.view(), base.view(), 7, {.metric = metric}, std::string(name_of(metric)));
  const auto whole = made<std::uint8_t>(500, 9, 3);
  KnnReport report;
  expect_exact(whole.view(), whole.view(), 3, {}, "u8", &report);
  EXPECT_EQ(report.scan.first_pass, "integer");
  expect_exact(made<float>(4, 9, 5).view(), whole.view(), 3, {}, "u8 and f32", &report);
  EXPECT_EQ(report.scan.first_pass, "int8");
}

TEST(DeviceBase, FiltersAndMoreNeighboursThanRows) {
  const auto base = made<float>(700, 6, 6), queries = made<float>(5, 6, 7);
  for (std::int64_t every : {1, 3, 300}) {
    std::vector<Id> ids;
    for (Id id = 0; id < 700; id += every) ids.push_back(id);
    expect_exact(queries.view(), base.view(), 10, {.filter = RowFilter::of_ids(ids, 700)},
                 "every " + std::to_string(every));
  }
  expect_exact(queries.view(), made<float>(3, 6, 8).view(), 10, {}, "padded");
  expect_exact(queries.view(), Matrix<float>(0, 6).view(), 2, {}, "no rows");
  expect_exact(Matrix<float>(0, 6).view(), base.view(), 2, {}, "no queries");
}

// Queries for which the device has no memory are answered by the processor, from a copy of the
// rows.
TEST(DeviceBase, TheProcessorAnswersWhatComesBack) {
  const auto base = made<float>(2500, 8, 9), queries = made<float>(3, 8, 10);
  constexpr std::size_t budget = 160 << 10;  // rows have room, not three lists of them
  KnnReport report;
  expect_exact(queries.view(), base.view(), 1500, {}, "lists", &report, budget);
  EXPECT_EQ(report.scan.fallback_queries, 3);
  std::vector<Id> ids;
  for (Id id = 0; id < 2500; id += 2) ids.push_back(id);
  expect_exact(queries.view(), base.view(), 1500, {.filter = RowFilter::of_ids(ids, 2500)}, "some",
               &report, budget);
  EXPECT_EQ(report.scan.fallback_queries, 3);
}

// Codes that do not fit are made chunk by chunk from the rows on the device.
TEST(DeviceBase, CodesInChunks) {
  const auto base = made<float>(9000, 24, 11), queries = made<float>(4, 24, 12);
  KnnReport report;
  expect_exact(queries.view(), base.view(), 10, {}, "chunks", &report, 800 << 10);
  EXPECT_GT(report.scan.chunks, 1);
  EXPECT_EQ(report.scan.fallback_queries, 0);
}

TEST(DeviceBase, SelfJoins) {
  const auto base = made<float>(280, 13, 30);
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    expect_self_joined(base.view(), 6, {.metric = metric}, std::string(name_of(metric)));
  KnnReport report;
  expect_self_joined(made<std::uint8_t>(150, 2, 31).view(), 1, {}, "u8", &report);
  EXPECT_EQ(report.scan.first_pass, "integer");
  EXPECT_EQ(report.scan.fallback_queries, 0);
  for (std::int64_t rows : {0, 1, 2, 5})
    expect_self_joined(made<float>(rows, 4, 32).view(), 4, {}, std::to_string(rows) + " rows");
  // No memory for a list: the processor answers, from a copy.
  expect_self_joined(base.view(), 2, {}, "copy", &report, 200 << 10);
  EXPECT_EQ(report.scan.fallback_queries, 280);
}

// Each pair is scored once where all rows have lists at once.
TEST(DeviceBase, SelfJoinsThatScoreEachPairOnce) {
  constexpr std::size_t enough = std::size_t{1} << 40;
  auto base = made<float>(1026, 9, 36);
  for (std::int64_t i = 0; i < 20; ++i) std::copy_n(base.row(259), 9, base.row(11 * i));
  std::fill_n(base.row(17), 9, 0.0f);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    if (test::small() && metric != Metric::cosine) continue;
    KnnReport report;
    expect_self_joined(base.view(), 3, {.metric = metric}, std::string(name_of(metric)), &report,
                       enough, true);
    // Places in blocks that have no row are not taken for lists that were full.
    EXPECT_EQ(report.scan.repeated_queries, metric == Metric::l2 ? 0 : 1);  // the row of zeros
  }
  expect_self_joined(made<std::uint8_t>(1026, 9, 37).view(), 4, {}, "u8", nullptr, enough, true);
  expect_self_joined(base.view(), 3, {}, "lists of some rows", nullptr, 20 << 20);
}

// More copies of a row than neighbours: the row itself need not be among the first.
TEST(DeviceBase, SelfJoinsOfCopiesAndFilteredRows) {
  auto base = made<float>(260, 6, 34);
  for (std::int64_t i = 0; i < 20; ++i) std::copy_n(base.row(259), 6, base.row(11 * i));
  for (const std::int64_t zero : {2, 76, 250}) std::fill_n(base.row(zero), 6, 0.0f);
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    expect_self_joined(base.view(), 5, {.metric = metric}, std::string(name_of(metric)));
  for (std::int64_t every : {2, 60}) {
    std::vector<Id> ids;
    for (Id id = 0; id < 260; id += every) ids.push_back(id);
    expect_self_joined(base.view(), 7, {.filter = RowFilter::of_ids(ids, 260)},
                       "every " + std::to_string(every));
  }
}

// Of queries and answers nothing crosses the bus, for a self-join nothing of the rows: the length
// of each list comes back, and numbers that do not grow.
TEST(DeviceBase, NeitherQueriesNorAnswersCross) {
  constexpr std::int64_t rows = 300, k = 5;
  const auto base = made<float>(rows, 24, 40), queries = made<float>(140, 24, 41);
  HostQueue queue(7);
  DeviceMatrix lent(queue, base.view()), asked(queue, queries.view());
  const Rows as_queries = [&] {
    Rows out;
    out.borrowed = lent.memory.data(), out.type = ElementType::f32;
    out.count = rows, out.dim = 24;
    return out;
  }();
  DeviceBase<HostQueue> searched(queue, std::move(lent.rows), Metric::l2);
  auto ids = queue.allocate<Id>(rows * k);
  auto distances = queue.allocate<float>(rows * k);
  const KnnOptions options{.device = "cuda"};
  for (const SearchKind kind : {SearchKind::nearest, SearchKind::self_join}) {
    const Rows& these = kind == SearchKind::nearest ? asked.rows : as_queries;
    const auto search = [&] {
      searched.search(kind, these, k, options, Reuse::expected, {ids.data(), distances.data()},
                      nullptr);
    };
    search();  // what stays goes there
    const std::int64_t up = queue.device().bytes_up(), down = queue.device().bytes_down();
    search();
    EXPECT_LE(queue.device().bytes_up() - up, 1024);
    EXPECT_LE(queue.device().bytes_down() - down, 8 * these.count + 1024);
  }
}

TEST(DeviceBase, WhatIsNotFiniteIsNamed) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    auto base = made<float>(300, 7, 13);
    base.row(211)[4] = bad, base.row(212)[1] = bad;
    HostQueue queue(1);
    DeviceMatrix lent(queue, base.view());
    try {
      DeviceBase<HostQueue> rows(queue, std::move(lent.rows), Metric::l2);
      ADD_FAILURE() << "not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("base must be finite, but row 211 column 4 is"),
                std::string::npos)
          << error.what();
    }
  }
}

// What the processor refuses of f64 rows is refused on the device, with the same words.
TEST(DeviceBase, RowsOfF64ThatAreTooLargeOrTooShort) {
  const auto refusal = [](auto find) {
    try {
      find();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const double odd : {1e39, -1e300, 1e-80, std::nan(""), 0.25}) {
    Matrix<double> rows(300, 7);
    for (std::int64_t i = 0; i < 300 * 7; ++i)
      rows.data()[i] = i / 7 == 123 ? odd : 0.5 + static_cast<double>(i);
    HostQueue queue(3);
    DeviceMatrix lent(queue, rows.view());
    for (const Metric metric : {Metric::l2, Metric::cosine}) {
      const std::string here = refusal([&] { find_value_range(rows.view(), metric, "base", 1); });
      EXPECT_EQ(refusal([&] { value_range_of_rows(queue, lent.rows, metric, "base"); }), here);
      const bool refused = odd != 0.25 && (odd != 1e-80 || metric == Metric::cosine);
      EXPECT_EQ(here.find("row 123") != std::string::npos, refused) << odd;
    }
  }
}

// The value range and the sample from the device are those of the processor.
TEST(DeviceBase, ValueRangesAndSamples) {
  std::uint64_t seed = 20;
  const auto check = [&](AnyMatrixView rows) {
    HostQueue queue(++seed);
    DeviceMatrix lent(queue, rows);
    const ValueRange here = find_value_range(rows, Metric::l2, "base", 1),
                     there = value_range_of_rows(queue, lent.rows, Metric::l2, "base");
    EXPECT_EQ(here.integer, there.integer);
    if (here.integer) {
      EXPECT_EQ(here.low, there.low);
      EXPECT_EQ(here.high, there.high);
    }
    for (std::int64_t count : {std::int64_t{1}, rows.rows() / 3, rows.rows()}) {
      const AnyMatrix a = BaseRows(rows).sample(count), b = sample_rows(queue, lent.rows, count);
      for (std::int64_t i = 0; i < count; ++i)
        EXPECT_EQ(std::memcmp(a.view().row(i), b.view().row(i),
                              static_cast<std::size_t>(rows.cols() * size_of(rows.type()))),
                  0);
    }
  };
  check(made<float>(100, 5, 1).view());
  check(made<std::uint8_t>(700, 3, 2).view());
  check(made<std::int8_t>(70, 3, 2).view());
  Matrix<float> x(50, 4);
  for (const auto& [low, high] : {std::pair{0, 255}, {-128, 127}, {-129, 3}, {7, 256}, {5, 5}}) {
    std::fill_n(x.data(), 200, static_cast<float>(low));
    x.row(31)[2] = static_cast<float>(high);
    check(x.view());
    x.row(49)[3] += 0.5f;
    check(x.view());
  }
}

}  // namespace
}  // namespace knear::detail
