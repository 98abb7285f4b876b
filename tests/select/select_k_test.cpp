// select_k against a partial sort: every method and instruction set, every kind of row, lengths
// around the values read at once, ragged rows, rows in parts, element types.
#include "knear/select/select_k.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/select/kernels/select_kernels.hpp"
#include "tests/select/select_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using test::SelectKind;

// WarpSelect is emulated, so it gets fewer and shorter rows.
bool too_slow(SelectMethod method, std::int64_t n, std::int64_t k) {
  return method == SelectMethod::warp_select && (n > 1000 || k > 300);
}

// Methods whose loops depend on no instruction set.
bool member_is_same_at_every_level(SelectMethod method) { return method > SelectMethod::partition; }

struct Wanted {
  std::vector<float> values;
  std::vector<Id> places;
};

// The reference by definition: the k smallest, of negated values where the largest are wanted.
Wanted reference(const float* row, std::int64_t n, std::int64_t k, Extreme extreme, bool sorted) {
  std::vector<float> x(row, row + n);
  if (extreme == Extreme::largest)
    for (float& value : x) value = -value;
  Wanted out{std::vector<float>(static_cast<std::size_t>(k)),
             std::vector<Id>(static_cast<std::size_t>(k))};
  test::select_reference<Id>(x.data(), n, static_cast<int>(k), out.values.data(),
                             out.places.data());
  if (!sorted)
    std::sort(out.places.begin(), out.places.end(), [](Id a, Id b) {
      return static_cast<std::uint64_t>(a) < static_cast<std::uint64_t>(b);
    });
  for (std::size_t i = 0; i < out.places.size(); ++i)
    out.values[i] = out.places[i] != no_id        ? row[out.places[i]]
                    : extreme == Extreme::largest ? -std::numeric_limits<float>::infinity()
                                                  : std::numeric_limits<float>::infinity();
  return out;
}

void expect_rows(const Selection& got, MatrixView<float> rows, std::int64_t k,
                 const SelectOptions& options) {
  ASSERT_EQ(got.values.rows(), rows.rows());
  ASSERT_EQ(got.values.cols(), k);
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    const std::int64_t n =
        options.lengths.empty() ? rows.cols() : options.lengths[static_cast<std::size_t>(i)];
    const Wanted wanted = reference(rows.row(i), n, k, options.extreme, options.sorted);
    ASSERT_EQ(std::vector<Id>(got.places.row(i), got.places.row(i) + k), wanted.places)
        << "row " << i;
    ASSERT_TRUE(test::same_bits(got.values.row(i), wanted.values.data(), k)) << "row " << i;
  }
}

Matrix<float> rows_of(SelectKind kind, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Matrix<float> out(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto x = test::select_values(kind, cols, seed * 1000 + static_cast<std::uint64_t>(i));
    std::copy(x.begin(), x.end(), out.row(i));
  }
  return out;
}

class SelectKIsa : public testing::TestWithParam<std::tuple<Isa, SelectKind>> {
 protected:
  void SetUp() override {
    setenv("KNEAR_ISA", std::string(name_of(std::get<0>(GetParam()))).c_str(), 1);
  }
  void TearDown() override { unsetenv("KNEAR_ISA"); }
};

TEST_P(SelectKIsa, EqualsAPartialSort) {
  const SelectKind kind = std::get<1>(GetParam());
  const bool lowest = std::get<0>(GetParam()) == Isa::scalar;
  std::uint64_t seed = 1;
  for (std::int64_t n : {0, 1, 7, 8, 15, 16, 17, 127, 128, 129, 500, 1000, 3000})
    for (std::int64_t k : {1, 2, 10, 31, 32, 33, 100, 128, 129, 999, 1000, 1001, 2500}) {
      const Matrix<float> x = rows_of(kind, 2, n, seed++);
      for (SelectMethod method : all_select_methods)
        for (Extreme extreme : {Extreme::smallest, Extreme::largest})
          for (bool sorted : {true, false}) {
            if (too_slow(method, n, k) || (member_is_same_at_every_level(method) && !lowest))
              continue;
            const SelectOptions options{
                .extreme = extreme, .sorted = sorted, .threads = 1, .method = method};
            SCOPED_TRACE(testing::Message() << "n " << n << " k " << k << " " << name_of(method)
                                            << (extreme == Extreme::largest ? " largest" : "")
                                            << (sorted ? "" : " unsorted"));
            expect_rows(select_k(x.view(), k, options), x, k, options);
            if (HasFatalFailure()) return;
          }
    }
}

// The threshold is lowered after every 16,384 values, and estimated after the first ones: in rows
// that rise every estimate is wrong, in rows that fall every value passes.
TEST_P(SelectKIsa, LongRows) {
  const SelectKind kind = std::get<1>(GetParam());
  std::uint64_t seed = 1;
  for (std::int64_t n : {16383, 16384, 16385, 40000, 150000})
    for (std::int64_t k : {1, 10, 40, 1000, 5000, 20000}) {
      if (n == 150000 && k == 20000 && kind != SelectKind::ties) continue;
      const Matrix<float> x = rows_of(kind, 1, n, seed++);
      for (SelectMethod method : {SelectMethod::threshold, SelectMethod::partition})
        for (bool sorted : {true, false}) {
          const SelectOptions options{.sorted = sorted, .threads = 1, .method = method};
          SCOPED_TRACE(testing::Message() << "n " << n << " k " << k << " " << name_of(method));
          expect_rows(select_k(x.view(), k, options), x, k, options);
          if (HasFatalFailure()) return;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, SelectKIsa,
                         testing::Combine(testing::ValuesIn(test::levels()),
                                          testing::ValuesIn(test::all_select_kinds)),
                         [](const auto& which) {
                           return std::string(name_of(std::get<0>(which.param))) + "_" +
                                  name_of(std::get<1>(which.param));
                         });

TEST(SelectK, ARowWhoseBestComeLast) {
  // The first 70,000 values hold nothing of the answer; then the best fall one below the other.
  const std::int64_t n = 100000;
  Matrix<float> x(1, n);
  for (std::int64_t i = 0; i < n; ++i)
    x.row(0)[i] = i < 70000 ? static_cast<float>((i * 7919) % 100003) : -static_cast<float>(i);
  for (std::int64_t k : {5, 100, 3000}) {
    const SelectOptions options{.threads = 1, .method = SelectMethod::threshold};
    expect_rows(select_k(x.view(), k, options), x, k, options);
  }
}

// The values read first hold so many of the best that the estimated threshold excludes later values
// of the answer.
TEST(SelectK, AnEstimateThatProvesWrong) {
  const std::int64_t n = 131072, k = 1000;
  Matrix<float> x(1, n);
  for (std::int64_t i = 0; i < n; ++i)
    x.row(0)[i] = i < k ? static_cast<float>(k - i) : 1e6f + static_cast<float>(i % 977);
  for (std::int64_t i = 0; i < 600; ++i) x.row(0)[40000 + 100 * i] = 300.5f + static_cast<float>(i);
  const SelectOptions options{.threads = 1, .method = SelectMethod::threshold};
  expect_rows(select_k(x.view(), k, options), x, k, options);
}

TEST(SelectK, RaggedRowsReadNothingBeyondTheirLengths) {
  const std::int64_t rows = 300, cols = 700;
  Matrix<float> x = rows_of(SelectKind::uniform, rows, cols, 5);
  std::vector<std::int64_t> lengths;
  Random random(1);
  for (std::int64_t i = 0; i < rows; ++i) {
    lengths.push_back(static_cast<std::int64_t>(random.below(cols + 1)));
    for (std::int64_t j = lengths.back(); j < cols; ++j)
      x.row(i)[j] = -std::numeric_limits<float>::infinity();  // would win
  }
  for (SelectMethod method : all_select_methods)
    for (std::int64_t k : {1, 50, 800}) {
      if (too_slow(method, cols, k)) continue;
      const SelectOptions options{.lengths = lengths, .method = method};
      expect_rows(select_k(x.view(), k, options), x, k, options);
      if (HasFatalFailure()) return;
    }
}

TEST(SelectK, SeveralThreadsAndRowsInParts) {
  for (SelectKind kind :
       {SelectKind::uniform, SelectKind::ties, SelectKind::equal, SelectKind::nan}) {
    const Matrix<float> x = rows_of(kind, 3, 700000, 9);
    const std::vector<std::int64_t> lengths = {700000, 0, 300001};
    for (std::int64_t k : {1, 100, 5000})
      for (bool sorted : {true, false})
        for (Extreme extreme : {Extreme::smallest, Extreme::largest}) {
          const SelectOptions options{
              .extreme = extreme, .sorted = sorted, .lengths = lengths, .threads = 4};
          SCOPED_TRACE(testing::Message() << name_of(kind) << " k " << k);
          expect_rows(select_k(x.view(), k, options), x, k, options);
          if (HasFatalFailure()) return;
        }
  }
  const Matrix<float> many = rows_of(SelectKind::ties, 1000, 300, 10);
  const SelectOptions options{.threads = 3};
  expect_rows(select_k(many.view(), 20, options), many, 20, options);
}

TEST(SelectK, StridedViews) {
  const Matrix<float> x = rows_of(SelectKind::uniform, 20, 500, 11);
  const MatrixView<float> view(x.data() + 7, 20, 333, 500);
  const SelectOptions options{.extreme = Extreme::largest};
  expect_rows(select_k(view, 30, options), view, 30, options);
}

template <class T>
void expect_typed(std::vector<T> values) {
  const std::int64_t cols = 2500, rows = std::ssize(values) / cols;
  Matrix<float> widened(rows, cols);
  for (std::size_t i = 0; i < values.size(); ++i) widened.data()[i] = to_float(values[i]);
  const MatrixView<T> view(values.data(), rows, cols);
  for (std::int64_t k : {1, 40, 1200, 2500})
    for (SelectMethod method : all_select_methods) {
      if (too_slow(method, 2500, k)) continue;
      const SelectOptions options{.method = method};
      expect_rows(select_k(view, k, options), widened, k, options);
    }
}

TEST(SelectK, ElementTypes) {
  Random random(3);
  std::vector<std::uint8_t> u8(10000);
  std::vector<std::int8_t> i8(10000);
  std::vector<f16> half(10000);
  std::vector<bf16> brain(10000);
  for (std::size_t i = 0; i < u8.size(); ++i) {
    u8[i] = static_cast<std::uint8_t>(random.below(256));
    i8[i] = static_cast<std::int8_t>(random.below(256));
    half[i].bits = static_cast<std::uint16_t>(random.below(1 << 16));  // NaN and infinities too
    brain[i].bits = static_cast<std::uint16_t>(random.below(1 << 16));
  }
  expect_typed(u8);
  expect_typed(i8);
  expect_typed(half);
  expect_typed(brain);
}

// The values of a row times 1 + 2^-40 times its place: equal as floats.
TEST(SelectK, Float64) {
  for (SelectKind kind : test::all_select_kinds)
    for (std::int64_t n : {0, 1, 100, 5000, 400000}) {
      const Matrix<float> base = rows_of(kind, 3, n, 13);
      Matrix<double> x(3, n);
      for (std::int64_t i = 0; i < 3 * n; ++i)
        x.data()[i] = double{base.data()[i]} * (1.0 + 0x1p-40 * static_cast<double>(i % 7));
      const std::vector<std::int64_t> lengths = {n, 0, n / 2};
      for (std::int64_t k : {1, 33, 1000, 3000})
        for (Extreme extreme : {Extreme::smallest, Extreme::largest})
          for (int threads : {1, 4})
            for (bool sorted : {true, false}) {
              const SelectionF64 got = select_k(
                  x.view(), k,
                  {.extreme = extreme, .sorted = sorted, .lengths = lengths, .threads = threads});
              for (std::int64_t row = 0; row < 3; ++row) {
                const double* values = x.row(row);
                const double sign = extreme == Extreme::largest ? -1.0 : 1.0;
                std::vector<Id> places;
                for (Id i = 0; i < lengths[static_cast<std::size_t>(row)]; ++i)
                  if (!std::isnan(values[i])) places.push_back(i);
                const auto kept = std::min(k, std::ssize(places));
                std::partial_sort(places.begin(), places.begin() + kept, places.end(),
                                  [&](Id a, Id b) {
                                    const double v = sign * values[a], w = sign * values[b];
                                    return v < w || (v == w && a < b);
                                  });
                places.resize(static_cast<std::size_t>(kept));
                if (!sorted) std::sort(places.begin(), places.end());
                places.resize(static_cast<std::size_t>(k), no_id);
                SCOPED_TRACE(testing::Message() << name_of(kind) << " n " << n << " k " << k);
                ASSERT_EQ(std::vector<Id>(got.places.row(row), got.places.row(row) + k), places);
                for (std::int64_t i = 0; i < k; ++i) {
                  const double found = got.values.row(row)[i];
                  const double wanted = i < kept ? values[places[static_cast<std::size_t>(i)]]
                                                 : sign * std::numeric_limits<double>::infinity();
                  ASSERT_EQ(std::bit_cast<std::uint64_t>(found),
                            std::bit_cast<std::uint64_t>(wanted));
                }
              }
            }
    }
  const Matrix<double> x(1, 3);
  EXPECT_THROW(select_k(x.view(), 1, {.method = SelectMethod::radix}), InvalidArgument);
  EXPECT_THROW(select_k(AnyMatrixView(x.view()), 1), InvalidArgument);
}

TEST(SelectK, BadArguments) {
  const Matrix<float> x(4, 10);
  const auto message = [&](std::int64_t k, SelectOptions options) {
    try {
      select_k(x.view(), k, options);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(0, {}), "k must be between 1 and 2^31 - 1, but is 0");
  const std::vector<std::int64_t> three = {1, 2, 3}, long_one = {1, 2, 11, 4},
                                  negative = {1, -1, 1, 1};
  EXPECT_EQ(message(1, {.lengths = three}), "lengths has 3 values, rows has 4 rows");
  EXPECT_EQ(message(1, {.lengths = long_one}),
            "lengths must be between 0 and 10, the columns of rows, but lengths[2] is 11");
  EXPECT_EQ(message(1, {.lengths = negative}),
            "lengths must be between 0 and 10, the columns of rows, but lengths[1] is -1");
  EXPECT_THROW(parse_select_method("quick"), InvalidArgument);
  EXPECT_THROW(select_k(x.view(), 1, {.threads = -1}), InvalidArgument);
  const Matrix<float> none(0, 10), narrow(3, 0);
  EXPECT_EQ(select_k(none.view(), 5).values.rows(), 0);
  EXPECT_EQ(select_k(narrow.view(), 2).places.row(2)[1], no_id);
}

// Checks the k-th value of a row and what take() copies, in the middle of memory that must not
// change.
void expect_nth_and_take(const detail::SelectKernels& kernels, const std::vector<float>& row,
                         std::int64_t k, Extreme extreme) {
  const auto n = std::ssize(row);
  const std::uint32_t flip = extreme == Extreme::largest ? 0x80000000u : 0;
  std::vector<float> low(static_cast<std::size_t>(n) + 16), above(low.size());
  std::int64_t ties = -1;
  const float last = kernels.nth_of_row(row.data(), n, flip, k, low.data(), above.data(), &ties);
  const Wanted wanted = reference(row.data(), n, k, extreme, false);
  const auto kept =
      std::find(wanted.places.begin(), wanted.places.end(), no_id) - wanted.places.begin();
  const auto turned = [&](float value) { return flip != 0 ? -value : value; };
  if (kept < k) {
    ASSERT_EQ(last, std::numeric_limits<float>::infinity());
  } else {
    float worst = turned(wanted.values[0]);
    for (float value : wanted.values) worst = std::max(worst, turned(value));
    ASSERT_EQ(last, worst);
    ASSERT_EQ(ties, std::count(wanted.values.begin(), wanted.values.end(), turned(worst)));
  }
  constexpr std::int64_t margin = 20;
  std::vector<float> values(static_cast<std::size_t>(kept + 2 * margin), 123.0f);
  std::vector<Id> places(values.size(), 123);
  ASSERT_EQ(kernels.take(row.data(), n, flip, last, ties, kept, values.data() + margin,
                         places.data() + margin),
            kept);
  ASSERT_TRUE(std::equal(places.begin() + margin, places.end() - margin, wanted.places.begin()));
  ASSERT_TRUE(test::same_bits(values.data() + margin, wanted.values.data(), kept));
  for (std::int64_t i = 0; i < margin; ++i)
    for (std::size_t at :
         {static_cast<std::size_t>(i), values.size() - 1 - static_cast<std::size_t>(i)})
      ASSERT_TRUE(values[at] == 123.0f && places[at] == 123) << at;
}

TEST(SelectKernels, TheNthOfARowAndWhatIsTakenByIt) {
  for (Isa isa : test::levels())
    for (std::int64_t n :
         {1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 130, 500, 512, 1000, 2000, 5003}) {
      std::vector<std::vector<float>> rows;
      for (SelectKind kind : test::all_select_kinds)
        rows.push_back(test::select_values(kind, n, static_cast<std::uint64_t>(n)));
      const auto row_of = [&](auto value) {
        auto& row = rows.emplace_back(static_cast<std::size_t>(n));
        for (std::int64_t i = 0; i < n; ++i) row[static_cast<std::size_t>(i)] = value(i);
      };
      const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
      // A third below, a third equal, a third above; the equal ones are zeros of either sign.
      row_of([&](std::int64_t i) {
        return std::array{-1.0f, i % 2 ? 0.0f : -0.0f, 1.0f}[i * 7 % 3];
      });
      // As many infinities of both signs as numbers, and NaN.
      row_of([&](std::int64_t i) { return std::array{inf, -inf, nan, float(i % 50)}[i * 5 % 4]; });
      row_of([&](std::int64_t i) { return i % 3 ? inf : nan; });
      row_of([&](std::int64_t i) { return i % 3 ? -inf : nan; });
      // The least values are where pivots are sampled.
      row_of([&](std::int64_t i) { return i % (n / 16 + 1) == n / 32 ? -float(i) : float(i); });
      for (std::size_t r = 0; r < rows.size(); ++r)
        for (std::int64_t k : {std::int64_t{1}, n / 8, n / 3, n / 2, 2 * n / 3, n - 1, n})
          for (Extreme extreme : {Extreme::smallest, Extreme::largest}) {
            if (k < 1) continue;
            SCOPED_TRACE(testing::Message()
                         << name_of(isa) << " n " << n << " k " << k << " row " << r
                         << (extreme == Extreme::largest ? " largest" : ""));
            expect_nth_and_take(detail::select_kernels(isa), rows[r], k, extreme);
            if (HasFatalFailure()) return;
          }
    }
}

// Pivots come from fixed places; keys that are worst for them must not take quadratic time or break
// the order.
TEST(SelectKernels, SortAndSelectKeysMadeAgainstThem) {
  for (Isa isa : test::levels()) {
    const detail::SelectKernels& kernels = detail::select_kernels(isa);
    Random random(7);
    for (std::int64_t n : {1,   2,   31,  32,  33,  64,   65,   127,  128,  129,  200,  255,  256,
                           257, 511, 512, 513, 700, 1000, 1023, 1024, 1025, 1500, 4096, 70000})
      for (int pattern = 0; pattern < 5; ++pattern) {
        std::vector<std::uint64_t> keys(static_cast<std::size_t>(n) + 24), spare(keys.size());
        for (std::int64_t i = 0; i < n; ++i) {
          const auto u = static_cast<std::uint64_t>(i),
                     stride = static_cast<std::uint64_t>(n / 16 + 1);
          keys[static_cast<std::size_t>(i)] =
              pattern == 0   ? u
              : pattern == 1 ? static_cast<std::uint64_t>(n) - u
              : pattern == 2 ? (u % stride == 0 ? u / stride : u + 1000)  // small at sampled places
              : pattern == 3 ? (u % 2 ? u : std::uint64_t{1} << 62 | u)
                             : random.next() >> 1;
        }
        std::vector<std::uint64_t> sorted(keys.begin(), keys.begin() + n);
        std::sort(sorted.begin(), sorted.end());
        const auto original = keys;
        for (std::int64_t k :
             {std::int64_t{1}, std::int64_t{20}, std::int64_t{100}, n / 3, n / 2, n - 1, n}) {
          if (k < 1 || k > n) continue;
          keys = original;
          kernels.sort_smallest(keys.data(), spare.data(), n, k);
          ASSERT_TRUE(std::equal(keys.begin(), keys.begin() + k, sorted.begin()))
              << n << " " << k << " " << pattern;
          keys = original;
          const auto last = kernels.keep_smallest(keys.data(), spare.data(), n, k);
          std::sort(keys.begin(), keys.begin() + k);
          ASSERT_TRUE(std::equal(keys.begin(), keys.begin() + k, sorted.begin()));
          ASSERT_EQ(last, sorted[static_cast<std::size_t>(k - 1)]);
          keys = original;
          ASSERT_EQ(kernels.cut(keys.data(), n, last), k);
          std::vector<std::uint64_t> kept;
          for (std::int64_t i = 0; i < n; ++i)
            if (original[static_cast<std::size_t>(i)] <= last)
              kept.push_back(original[static_cast<std::size_t>(i)]);
          ASSERT_TRUE(std::equal(kept.begin(), kept.end(), keys.begin()));
        }
      }
  }
}

}  // namespace
}  // namespace knear
