// Queries coded on the emulated device: they are those of the processor, and keep the promises that
// the certified test relies on, against arithmetic with more digits.
#include "knear/scan/device/query_codes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/cost/device_cost_model.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/device/device_scan.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

enum class Kind { uniform, far, sizes, alike, zeros };

template <class T>
Matrix<T> vectors(Kind kind, std::int64_t rows, std::int64_t dim, Random& random) {
  Matrix<T> out(rows, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j) {
      double x = 2 * random.uniform() - 1;
      if (kind == Kind::far) x = 30 + x;  // centred
      if (kind == Kind::sizes) x *= std::pow(10.0, static_cast<double>(i * 5 % 9) - 4);
      if (kind == Kind::alike) x = std::sin(static_cast<double>(i % 3 * 31 + j));
      if (kind == Kind::zeros && i % 4 != 1) x = 0;
      T& to = out.row(i)[j];
      if constexpr (std::is_same_v<T, f16>)
        to = to_f16(static_cast<float>(x));
      else if constexpr (std::is_same_v<T, bf16>)
        to = to_bf16(static_cast<float>(x));
      else if constexpr (sizeof(T) == 1)
        to = static_cast<T>(100 * std::fabs(x));
      else
        to = static_cast<T>(x);
    }
  return out;
}
template <class T>
Matrix<T> whole_numbers(std::int64_t rows, std::int64_t dim, int low, int high, Random& random) {
  Matrix<T> out(rows, dim);
  for (std::int64_t i = 0; i < rows * dim; ++i) {
    const int x = low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
    if constexpr (std::is_same_v<T, f16>)
      out.data()[i] = to_f16(static_cast<float>(x));
    else if constexpr (std::is_same_v<T, bf16>)
      out.data()[i] = to_bf16(static_cast<float>(x));
    else
      out.data()[i] = static_cast<T>(x);
  }
  return out;
}

// Some of so many queries, in no order.
std::vector<std::int64_t> some_of(std::int64_t queries, std::int64_t count, Random& random) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(queries));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[random.below(i)]);
  out.resize(static_cast<std::size_t>(count));
  return out;
}

// What the device made of queries, in the processor's memory.
struct Coded {
  std::vector<std::int64_t> order;  // [count] the query at each place
  std::vector<std::uint8_t> codes;
  std::vector<double> scales, thresholds, elements, squares;
  std::vector<DeviceQuery> heads;
  std::int64_t slices = 0;
  bool shifted = false;

  int code(std::int64_t place, std::int64_t i) const {
    return static_cast<std::int8_t>(codes.at(static_cast<std::size_t>(
        place / block_queries * slices * block_slice_bytes +
        block_place(i / step_bytes, static_cast<int>(place % block_queries)) + i % step_bytes)));
  }
};

template <class T>
std::vector<T> copied(const T* from, std::int64_t count) {
  return {from, from + count};
}

Coded coded_on_device(HostQueue& queue, DeviceScan<HostQueue>& scan, AnyMatrixView queries,
                      std::span<const std::int64_t> which, const ValueRange& found,
                      std::span<const double> known, bool reached,
                      std::int64_t piece = usual_piece) {
  DeviceScan<HostQueue>::Queries there;
  DeviceScan<HostQueue>::Vectors vectors;
  const std::int64_t count = std::ssize(which);
  auto order = queue.allocate<std::int32_t>(which.size());
  PiecewiseUpload<HostQueue> pieces(queue, 3, piece, scan.sent_bytes(queries.type(), count),
                                    queries.cols() * size_of(queries.type()));
  const StreamSyncGuard waits_at_exit{queue};
  scan.code_on_device(there, vectors, pieces, queries, which, found, known, reached, order.data());
  queue.wait();
  Coded out;
  for (std::int64_t place = 0; place < count; ++place)
    out.order.push_back(which[static_cast<std::size_t>(
        scan.packed().is_integer ? place : std::int64_t{order.data()[place]})]);
  const auto from = there.arrays();
  out.codes = copied(from.codes, there.blocks * there.slices * block_slice_bytes);
  out.scales = copied(from.scales, there.blocks), out.heads = copied(from.heads, count);
  out.thresholds = copied(from.thresholds, count);
  out.elements =
      copied(vectors.elements.data(), static_cast<std::int64_t>(vectors.elements.size()));
  out.squares = copied(vectors.squares.data(), static_cast<std::int64_t>(vectors.squares.size()));
  out.slices = there.slices, out.shifted = there.shifted;
  EXPECT_EQ(there.count, count);
  EXPECT_EQ(there.blocks, (count + block_queries - 1) / block_queries);
  return out;
}

// A query in coding space, with more digits, and the sum of its squares as it came.
std::vector<long double> in_space(const CodingSpace& space, AnyMatrixView queries,
                                  std::int64_t query) {
  std::vector<double> x(static_cast<std::size_t>(queries.cols()));
  row_as_doubles(queries, query, x.data());
  long double length = 0;
  for (const double a : x) length += static_cast<long double>(a) * a;
  length = std::sqrt(length);
  std::vector<long double> out(x.begin(), x.end());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (space.metric == Metric::cosine && length != 0) out[i] /= length;
    if (!space.mean.empty()) out[i] -= space.mean[i];
  }
  return out;
}

// docs/bounds.md, 2 and 3: lengths and errors are on the safe side and close, and the vectors are
// there as they came.
void expect_sound(const Coded& found, const Coding& coding, AnyMatrixView queries,
                  const std::string& what) {
  const CodingSpace& space = coding.space;
  const std::int64_t dim = queries.cols();
  std::vector<double> as_came(static_cast<std::size_t>(dim));
  for (std::size_t place = 0; place < found.order.size(); ++place) {
    const std::int64_t query = found.order[place], at = static_cast<std::int64_t>(place);
    const DeviceQuery& head = found.heads[place];
    const double scale = found.scales[place / block_queries];
    const auto u = in_space(space, queries, query);
    long double squares = 0, error = 0, product = 0, mean_squares = 0;
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      const long double x = u[static_cast<std::size_t>(i)], c = found.code(at, i);
      const long double mean = space.mean.empty() ? 0 : space.mean[static_cast<std::size_t>(i)];
      squares += x * x, error += (x - c * scale) * (x - c * scale), product += x * mean;
      mean_squares += mean * mean, sum += found.code(at, i);
      ASSERT_LE(std::abs(found.code(at, i)), 127) << what << ", query " << query;
    }
    for (std::int64_t i = dim; i < found.slices * slice_bytes; ++i)
      ASSERT_EQ(found.code(at, i), 0) << what << ", query " << query;
    ASSERT_LE(std::sqrt(squares), head.norm) << what << ", query " << query;
    ASSERT_LE(std::sqrt(error), head.error) << what << ", query " << query;
    // And not far above; a unit vector's error is relative to its length before it was centred.
    const double unit = space.metric == Metric::cosine ? 1 : 0;
    ASSERT_LE(head.norm, std::sqrt(squares) * (1 + 2 * space.slack) + 1e-150L) << what;
    ASSERT_LE(head.error, std::sqrt(error) * (1 + 4 * space.slack) +
                              (std::sqrt(squares) * 2 + unit * 2 + space.mean_norm) * space.slack +
                              1e-150L)
        << what;
    ASSERT_LE(std::fabs(head.squares - squares),
              space.slack * (squares + unit + space.mean_norm * space.mean_norm))
        << what << ", query " << query;
    const bool products = space.metric != Metric::l2 && !space.mean.empty();
    const long double constant = products ? product + mean_squares : 0;
    ASSERT_LE(std::fabs(head.constant - constant),
              space.slack * space.mean_norm * (head.norm + space.mean_norm + unit))
        << what << ", query " << query;
    ASSERT_EQ(head.correction, 128 * sum) << what << ", query " << query;
    row_as_doubles(queries, query, as_came.data());
    for (std::int64_t i = 0; i < dim; ++i)
      ASSERT_EQ(
          std::bit_cast<std::uint64_t>(found.elements[place * static_cast<std::size_t>(dim) + i]),
          std::bit_cast<std::uint64_t>(as_came[static_cast<std::size_t>(i)]))
          << what << ", query " << query;
    if (space.metric != Metric::cosine) continue;
    ExactDistance measure(Metric::ip, ElementType::f64);
    measure.set_query(queries, query);
    ASSERT_EQ(std::bit_cast<std::uint64_t>(found.squares[place]),
              std::bit_cast<std::uint64_t>(0.0 - measure.key(as_came.data())))
        << what << ", query " << query;
  }
}

// Expects what the processor makes of the same blocks.
void expect_same(const Coded& found, const Coding& coding, AnyMatrixView queries,
                 const ValueRange& range, const std::string& what) {
  constexpr std::int64_t stride = block_queries * step_bytes;
  const bool cosine = coding.space.metric == Metric::cosine;
  const std::int64_t dim = queries.cols(), count = std::ssize(found.order);
  std::vector<double> u(static_cast<std::size_t>(dim));
  for (std::size_t block = 0; block < found.scales.size(); ++block) {
    const std::int64_t first = static_cast<std::int64_t>(block) * block_queries;
    std::int64_t members[block_queries];
    for (int q = 0; q < block_queries; ++q)
      members[q] = found.order[static_cast<std::size_t>(std::min(first + q, count - 1))];
    std::vector<QueryCode> coded(block_queries);
    std::vector<std::uint8_t> steps(static_cast<std::size_t>(coding.steps * stride));
    const double scale = code_queries(coding, queries, members, block_queries, range, steps.data(),
                                      stride, coded.data());
    // Lengths for cosine are sums, and may differ from the processor's in their last digit.
    ASSERT_NEAR(found.scales[block], scale, cosine ? 1e-6 * scale : 0) << what;
    for (int q = 0; q < block_queries; ++q) {
      coding.space.load(queries, members[q], u.data());
      bool same = true;
      for (std::int64_t i = 0; i < dim; ++i) {
        const int is = found.code(first + q, i);
        const int wanted = static_cast<std::int8_t>(
            steps[static_cast<std::size_t>(i / 4 * stride + q * step_bytes + i % 4)]);
        if (cosine && is != wanted) {  // half way between the two
          const double c = u[static_cast<std::size_t>(i)] / scale;
          ASSERT_NEAR(c, (is + wanted) / 2.0, 1e-4) << what << ", place " << first + q;
          same = false;
          continue;
        }
        ASSERT_EQ(is, wanted) << what << ", place " << first + q << ", column " << i;
      }
      if (first + q >= count) continue;
      const DeviceQuery& a = found.heads[static_cast<std::size_t>(first + q)];
      const QueryCode& b = coded[static_cast<std::size_t>(q)];
      const double mean = coding.space.mean_norm, size = b.norm + mean + (cosine ? 1 : 0);
      ASSERT_NEAR(a.norm, b.norm, 1e-12 * size) << what;
      ASSERT_NEAR(a.squares, b.squares, 1e-12 * size * size) << what;
      ASSERT_NEAR(a.error, b.error, (cosine ? 1e-6 : 1e-12) * size) << what;
      ASSERT_NEAR(a.constant, b.constant, 1e-12 * mean * size) << what;
      if (same) {
        ASSERT_EQ(a.correction, b.correction) << what;
      }
    }
  }
}

// Each of `which` once, and those of a block of similar size.
void expect_order(const Coded& found, const Coding& coding, AnyMatrixView queries,
                  std::span<const std::int64_t> which, const std::string& what) {
  constexpr std::int64_t group = OrderQueries<HostThread>::group;
  std::vector<double> u(static_cast<std::size_t>(queries.cols()));
  const auto size_of_query = [&](std::int64_t query) {
    coding.space.load(queries, query, u.data());
    return coding.space.kernels->measure(u.data(), queries.cols()).largest;
  };
  ASSERT_EQ(found.order.size(), which.size()) << what;
  for (std::size_t begin = 0; begin < which.size(); begin += group) {
    const std::size_t end = std::min(which.size(), begin + group);
    std::vector<std::int64_t> sent(which.begin() + static_cast<std::ptrdiff_t>(begin),
                                   which.begin() + static_cast<std::ptrdiff_t>(end)),
        got(found.order.begin() + static_cast<std::ptrdiff_t>(begin),
            found.order.begin() + static_cast<std::ptrdiff_t>(end));
    double last = 0;
    for (const std::int64_t query : got) {
      const double size = size_of_query(query);
      ASSERT_GE(size, last * (1 - 0x1p-22)) << what;
      last = size;
    }
    std::sort(sent.begin(), sent.end()), std::sort(got.begin(), got.end());
    ASSERT_EQ(sent, got) << what;
  }
}

// A certified scan of a few rows: what queries are coded for.
template <class T>
struct Base {
  Base(Kind kind, Metric metric, std::int64_t dim, std::uint64_t seed)
      : random(seed),
        queue(seed),
        rows(vectors<T>(kind, 70, dim, random)),
        coding(device_coding(
            certified_coding(CodingSpace::choose(BaseRows(rows.view()), metric, active_isa())), 70,
            dim)),
        scan(queue, coding, upload_rows(queue, BaseRows(rows.view()), {}, 1), 1) {}

  Random random;
  HostQueue queue;
  Matrix<T> rows;
  Coding coding;
  DeviceScan<HostQueue> scan;
};

std::string name_of_case(Kind kind, Metric metric, std::int64_t count, std::int64_t dim) {
  return "kind " + std::to_string(static_cast<int>(kind)) + ", " + std::string(name_of(metric)) +
         ", " + std::to_string(count) + " x " + std::to_string(dim);
}

TEST(QueryCodes, AreThoseOfTheProcessor) {
  std::uint64_t seed = 1;
  int centred = 0;
  for (Kind kind : {Kind::uniform, Kind::far, Kind::sizes, Kind::alike, Kind::zeros})
    for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
      for (const auto [count, dim] :
           {std::array<std::int64_t, 2>{1, 1}, {128, 5}, {129, 33}, {383, 130}, {200, 32}}) {
        Base<float> base(kind, metric, dim, ++seed);
        const auto queries = vectors<float>(kind, count + 20, dim, base.random);
        const auto which = some_of(count + 20, count, base.random);
        const Coded found = coded_on_device(base.queue, base.scan, queries.view(), which, {}, {},
                                            false, seed % 2 ? usual_piece : 1000);
        const std::string what = name_of_case(kind, metric, count, dim);
        centred += !base.coding.space.mean.empty();
        expect_order(found, base.coding, queries.view(), which, what);
        expect_sound(found, base.coding, queries.view(), what);
        expect_same(found, base.coding, queries.view(), {}, what);
        for (const double threshold : found.thresholds) ASSERT_EQ(threshold, -infinity) << what;
        EXPECT_FALSE(found.shifted);
        if (HasFailure()) return;
      }
  EXPECT_GE(centred, 12);
}

// The largest groups that are put in order, which the last one does not fill.
TEST(QueryCodes, MoreThanAGroup) {
  constexpr std::int64_t count = OrderQueries<HostThread>::group + 150;
  static_assert(DeviceCostModel{}.ordered_queries == OrderQueries<HostThread>::group);
  for (Kind kind : {Kind::uniform, Kind::alike}) {
    Base<float> base(kind, Metric::l2, 2, 3);
    const auto queries = vectors<float>(kind, count, 2, base.random);
    const auto which = some_of(count, count, base.random);
    const Coded found =
        coded_on_device(base.queue, base.scan, queries.view(), which, {}, {}, false);
    expect_order(found, base.coding, queries.view(), which, "group");
    expect_sound(found, base.coding, queries.view(), "group");
    expect_same(found, base.coding, queries.view(), {}, "group");
  }
}

template <class T>
void expect_type_sound() {
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    Base<std::uint8_t> base(Kind::uniform, metric, 21, 5);
    const auto queries = vectors<T>(Kind::uniform, 140, 21, base.random);
    const auto which = some_of(140, 140, base.random);
    const AnyMatrixView view = queries.view();
    const Coded found = coded_on_device(base.queue, base.scan, view, which, {}, {}, false, 1000);
    const std::string what =
        std::string(name_of(view.type())) + ", " + std::string(name_of(metric));
    expect_order(found, base.coding, view, which, what);
    expect_sound(found, base.coding, view, what);
    expect_same(found, base.coding, view, {}, what);
  }
}
TEST(QueryCodes, EveryElementType) {
  expect_type_sound<float>();
  expect_type_sound<double>();
  expect_type_sound<f16>();
  expect_type_sound<bf16>();
  expect_type_sound<std::uint8_t>();
  expect_type_sound<std::int8_t>();
}

// Upper bounds become thresholds that are not above what rounding allows, and hardly below;
// thresholds that were reached stay as they are.
TEST(QueryCodes, StartFromWhatIsKnown) {
  std::uint64_t seed = 11;
  for (Kind kind : {Kind::uniform, Kind::far, Kind::sizes})
    for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      constexpr std::int64_t all = 300, count = 150, dim = 19;
      Base<float> base(kind, metric, dim, ++seed);
      const auto queries = vectors<float>(kind, all, dim, base.random);
      const auto which = some_of(all, count, base.random);
      const std::string what = name_of_case(kind, metric, count, dim);
      std::vector<double> known;
      for (std::int64_t q = 0; q < all; ++q)
        known.push_back(q % 7 == 0
                            ? infinity
                            : (base.random.uniform() - 0.3) *
                                  std::pow(10.0, static_cast<double>(base.random.below(8)) - 4));
      const Coded found =
          coded_on_device(base.queue, base.scan, queries.view(), which, {}, known, false);
      for (std::size_t place = 0; place < found.order.size(); ++place) {
        const double key = known[static_cast<std::size_t>(found.order[place])];
        const double is = found.thresholds[place];
        if (key == infinity) {
          ASSERT_EQ(is, -infinity) << what;
          continue;
        }
        const long double squares = found.heads[place].squares,
                          constant = found.heads[place].constant;
        const long double exact = metric == Metric::l2   ? (squares - key) / 2
                                  : metric == Metric::ip ? -key - constant
                                                         : 1 - key - constant;
        const long double size = squares + std::fabs(key) + std::fabs(constant) + 1;
        ASSERT_LT(is, exact) << what;
        ASSERT_GT(is, exact - 0x1p-48L * size) << what;
        // Beyond the rounding of the formula itself.
        ASSERT_GT(exact - is, 0x1p-52L * (size - 1)) << what;
      }
      const Coded again =
          coded_on_device(base.queue, base.scan, queries.view(), which, {}, known, true);
      for (std::size_t place = 0; place < again.order.size(); ++place)
        ASSERT_EQ(again.thresholds[place], known[static_cast<std::size_t>(again.order[place])]);
    }
}

// Whole numbers are the same to the bit, in the order in which they came.
template <class B, class Q>
void expect_whole(int base_low, int base_high, int low, int high) {
  for (Metric metric : {Metric::l2, Metric::ip})
    for (const auto [count, dim] : {std::array<std::int64_t, 2>{150, 19}, {256, 64}, {130, 1}}) {
      Random random(7);
      const auto rows = whole_numbers<B>(40, dim, base_low, base_high, random);
      auto queries = whole_numbers<Q>(count + 9, dim, low, high, random);
      const ValueRange of_base = find_value_range(rows.view(), Metric::l2, "base", 1),
                       found = find_value_range(queries.view(), Metric::l2, "queries", 1);
      ASSERT_TRUE(of_base.integer && found.integer);
      HostQueue queue(9);
      const Coding coding =
          device_coding(Coding::whole_numbers(metric, active_isa(), of_base), 40, dim);
      DeviceScan<HostQueue> scan(queue, coding, upload_rows(queue, BaseRows(rows.view()), {}, 1),
                                 1);
      const auto which = some_of(count + 9, count, random);
      std::vector<double> known(static_cast<std::size_t>(count + 9), 17.5);
      known[4] = infinity;
      for (const bool any : {false, true}) {
        const std::span<const double> bounds = any ? known : std::span<const double>();
        const DeviceQueries wanted = device_queries(coding, queries.view(), which, found, 1);
        const Coded is =
            coded_on_device(queue, scan, queries.view(), which, found, bounds, false, 1000);
        const std::string what = std::string(name_of(metric)) + ", " + std::to_string(count) +
                                 " x " + std::to_string(dim) + ", from " + std::to_string(low);
        EXPECT_EQ(is.shifted, wanted.shifted) << what;
        EXPECT_EQ(is.order, wanted.order) << what;
        EXPECT_EQ(is.scales, wanted.scales) << what;
        EXPECT_EQ(is.thresholds, scan.thresholds_for(wanted, bounds)) << what;
        ASSERT_EQ(is.codes.size(), wanted.codes.size()) << what;
        // Those of places without a query may be any.
        for (std::int64_t q = 0; q < count; ++q)
          for (std::int64_t step = 0; step < wanted.slices * slice_steps; ++step) {
            const std::int64_t at = q / block_queries * wanted.slices * block_slice_bytes +
                                    block_place(step, static_cast<int>(q % block_queries));
            ASSERT_TRUE(std::equal(is.codes.begin() + at, is.codes.begin() + at + step_bytes,
                                   wanted.codes.data() + at))
                << what << ", query " << q << ", step " << step;
          }
        for (std::size_t i = 0; i < is.heads.size(); ++i) {
          const DeviceQuery &a = is.heads[i], &b = wanted.heads[i];
          ASSERT_EQ(a.norm, b.norm) << what;
          ASSERT_EQ(a.error, b.error) << what;
          ASSERT_EQ(a.squares, b.squares) << what;
          ASSERT_EQ(a.constant, b.constant) << what;
          ASSERT_EQ(a.correction, b.correction) << what;
        }
      }
    }
}
TEST(QueryCodes, WholeNumbersToTheBit) {
  expect_whole<std::uint8_t, std::uint8_t>(0, 255, 0, 255);
  expect_whole<std::uint8_t, std::int8_t>(0, 255, -128, 127);
  expect_whole<std::int8_t, std::uint8_t>(-128, 127, 0, 255);
  expect_whole<std::int8_t, std::int8_t>(-128, 127, -128, 127);
  expect_whole<float, float>(0, 200, 0, 200);
  expect_whole<float, double>(-100, 100, 0, 127);
  expect_whole<std::uint8_t, bf16>(0, 255, 0, 200);
  expect_whole<std::int8_t, f16>(-128, 127, -5, 100);
}

}  // namespace
}  // namespace knear::detail
