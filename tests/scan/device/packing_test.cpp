// Codes of rows from the emulated device: they are those of the processor, and keep the promises
// that the certified test relies on, against arithmetic with more digits.
#include "knear/scan/device/packing.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear::detail {
namespace {

enum class Kind { uniform, far, sizes, copies, zeros };

Matrix<float> vectors(Kind kind, std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j) {
      double x = 2 * random.uniform() - 1;
      if (kind == Kind::far) x = 30 + x;  // centred
      if (kind == Kind::sizes) x *= std::pow(10.0, static_cast<double>(i % 9) - 4);
      if (kind == Kind::copies) x = std::sin(static_cast<double>(i % 7 * 31 + j));
      if (kind == Kind::zeros && i % 4 != 1) x = 0;
      out.row(i)[j] = static_cast<float>(x);
    }
  return out;
}

// The codes of a base, copied to the processor's memory.
struct Fetched {
  std::vector<std::uint8_t> codes;
  std::vector<PanelHead> heads;
  std::vector<float> bias;
  std::vector<std::uint32_t> squares;
  std::vector<std::int32_t> sums;
  std::vector<int> ids;
};

template <class T>
std::vector<T> fetch(HostQueue& queue, const HostQueue::Array<T>& from) {
  std::vector<T> out(from.size());
  queue.download(out.data(), from.data(), from.size());
  queue.wait();
  return out;
}

Fetched encoded(const Coding& coding, const BaseRows& rows, std::span<const std::uint32_t> subset,
                std::uint64_t seed) {
  HostQueue queue(seed);
  const auto data = upload_rows(queue, rows, subset, 2, 1000);  // in many pieces
  const auto codes = encode_rows(queue, coding, data);
  return {fetch(queue, codes.codes),   fetch(queue, codes.heads), fetch(queue, codes.bias),
          fetch(queue, codes.squares), fetch(queue, codes.sums),  fetch(queue, codes.ids)};
}

int code_at(const Fetched& found, const Coding& coding, std::int64_t slot, std::int64_t i) {
  const std::int64_t panel = slot / panel_rows;
  return found.codes.at(static_cast<std::size_t>(
      panel * slices_of(coding.steps) * panel_slice_bytes +
      panel_place(i / step_bytes, static_cast<int>(slot % panel_rows)) + i % step_bytes));
}

Coding certified(const BaseRows& rows, Metric metric, std::int64_t panels) {
  Coding out = certified_coding(CodingSpace::choose(rows, metric, active_isa()));
  out.tile_bytes = panels * ((rows.cols() + 3) / 4) * panel_step_bytes;
  return device_coding(out, rows.rows(), rows.cols());
}

// docs/bounds.md, 2 and 3: lengths, errors and the term of a row are each on the safe side and
// close.
void expect_sound(const Fetched& found, const Coding& coding, AnyMatrixView rows,
                  const std::string& what) {
  const CodingSpace& space = coding.space;
  const std::int64_t dim = rows.cols();
  std::vector<int> seen(static_cast<std::size_t>(rows.rows()));
  for (std::int64_t slot = 0; slot < coding.panels() * panel_rows; ++slot) {
    const int id = found.ids[static_cast<std::size_t>(slot)];
    if (id < 0) continue;
    ++seen.at(static_cast<std::size_t>(id));
    const PanelHead& head = found.heads[static_cast<std::size_t>(slot / panel_rows)];
    const AnyMatrix row = BaseRows(rows).part(id, id + 1).sample(1);
    std::vector<long double> v(static_cast<std::size_t>(dim));
    long double length = 0;
    visit(row.view(), [&](auto view) {
      for (std::int64_t i = 0; i < dim; ++i)
        v[static_cast<std::size_t>(i)] = to_double(view.row(0)[i]);
    });
    for (const long double x : v) length += x * x;
    length = std::sqrt(length);
    long double squares = 0, code_squares = 0, error = 0, product = 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      long double& x = v[static_cast<std::size_t>(i)];
      if (space.metric == Metric::cosine && length != 0) x /= length;
      const long double mean = space.mean.empty() ? 0 : space.mean[static_cast<std::size_t>(i)];
      x -= mean;
      const long double c =
          static_cast<long double>(code_at(found, coding, slot, i) - 128) * head.scale;
      squares += x * x, code_squares += c * c, error += (x - c) * (x - c), product += mean * x;
    }
    ASSERT_LE(std::sqrt(error), head.error) << what << ", row " << id;
    ASSERT_LE(std::sqrt(squares), head.norm) << what << ", row " << id;
    ASSERT_LE(std::sqrt(code_squares), head.norm) << what << ", row " << id;
    const long double b = space.metric == Metric::l2 ? -squares / 2 : product;
    const long double stored = static_cast<long double>(head.scale) * head.scale *
                               found.bias[static_cast<std::size_t>(slot)];
    ASSERT_LE(b, stored + head.bias_max) << what << ", row " << id;
    ASSERT_GE(b, stored + head.bias_max - 2 * head.slack + stored * 0x1p-21L)
        << what << ", row " << id;
  }
  for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], 1) << what << ", row " << i;
}

// Expects the same rows in the same slots, the same codes, and heads that differ by rounding only.
void expect_same(const Fetched& found, const Coding& coding, const PackedBase& packed,
                 const std::string& what) {
  ASSERT_EQ(coding.panels(), packed.panels());
  for (std::int64_t slot = 0; slot < packed.panels() * panel_rows; ++slot) {
    ASSERT_EQ(static_cast<std::uint32_t>(found.ids[static_cast<std::size_t>(slot)]),
              packed.ids[slot])
        << what << ", slot " << slot;
    if (packed.ids[slot] == PackedBase::no_row) continue;
    for (std::int64_t i = 0; i < coding.dim; ++i)
      ASSERT_EQ(
          code_at(found, coding, slot, i),
          packed.codes[(slot / panel_rows * packed.steps + i / step_bytes) * panel_step_bytes +
                       slot % panel_rows * step_bytes + i % step_bytes])
          << what << ", slot " << slot << ", column " << i;
    if (packed.is_integer) {
      ASSERT_EQ(found.squares[static_cast<std::size_t>(slot)], packed.row_squares[slot]) << what;
      ASSERT_EQ(found.sums[static_cast<std::size_t>(slot)], packed.row_sums[slot]) << what;
      continue;
    }
    const PanelHead &a = found.heads[static_cast<std::size_t>(slot / panel_rows)],
                    &b = packed.heads[slot / panel_rows];
    ASSERT_EQ(a.scale, b.scale) << what;
    ASSERT_NEAR(a.bias_max, b.bias_max, 1e-12 * (std::fabs(b.bias_max) + b.norm * b.norm)) << what;
    ASSERT_NEAR(a.error, b.error, 1e-12 * b.norm) << what;
    ASSERT_NEAR(a.norm, b.norm, 1e-12 * b.norm) << what;
    ASSERT_NEAR(a.slack, b.slack, 1e-12 * b.slack) << what;
    ASSERT_NEAR(found.bias[static_cast<std::size_t>(slot)], packed.row_bias[slot],
                1e-6 * std::fabs(packed.row_bias[slot]) + 1e-3)
        << what;
  }
}

TEST(DevicePacking, CodesAreThoseOfTheProcessor) {
  std::uint64_t seed = 1;
  for (Kind kind : {Kind::uniform, Kind::far, Kind::sizes, Kind::copies, Kind::zeros})
    for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
      for (const auto [rows, dim, panels] :
           {std::array<std::int64_t, 3>{1, 1, 1}, {33, 5, 1}, {300, 33, 3}, {517, 130, 128}}) {
        const auto x = vectors(kind, rows, dim, ++seed);
        const BaseRows base = x.view();
        const Coding coding = certified(base, metric, panels);
        const Fetched found = encoded(coding, base, {}, seed);
        const std::string what = "kind " + std::to_string(static_cast<int>(kind)) + ", " +
                                 std::string(name_of(metric)) + ", " + std::to_string(rows) +
                                 " x " + std::to_string(dim);
        expect_sound(found, coding, x.view(), what);
        // Lengths for cosine are sums, and may differ from the processor's in their last digit.
        if (metric != Metric::cosine)
          expect_same(found, coding,
                      PackedBase::certified(base, {}, format_int8, coding.space, 1, {},
                                            coding.tile_bytes, false),
                      what);
        if (HasFatalFailure()) return;
      }
}

TEST(DevicePacking, EveryElementType) {
  const auto x = vectors(Kind::uniform, 100, 21, 5);
  const auto check = [&](auto element) {
    using T = decltype(element);
    Matrix<T> rows(100, 21);
    for (std::int64_t i = 0; i < 100 * 21; ++i) {
      const float v = x.data()[i];
      if constexpr (std::is_same_v<T, float>)
        rows.data()[i] = v;
      else if constexpr (sizeof(T) == 1)
        rows.data()[i] = static_cast<T>(100 * std::fabs(v));
      else if constexpr (std::is_same_v<T, bf16>)
        rows.data()[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
      else
        rows.data()[i].bits = static_cast<std::uint16_t>(15 << 10 | static_cast<int>(v * v * 1023));
    }
    const BaseRows base = rows.view();
    for (Metric metric : {Metric::l2, Metric::cosine}) {
      const Coding coding = certified(base, metric, 2);
      expect_sound(encoded(coding, base, {}, 3), coding, rows.view(),
                   std::string(name_of(base.type())));
    }
  };
  check(float{});
  check(f16{});
  check(bf16{});
  check(std::uint8_t{});
  check(std::int8_t{});
}

TEST(DevicePacking, WholeNumbersAsTheyAre) {
  for (const bool negative : {false, true})
    for (Metric metric : {Metric::l2, Metric::ip}) {
      Matrix<float> x(301, 19);
      Random random(4);
      for (std::int64_t i = 0; i < 301 * 19; ++i)
        x.data()[i] =
            static_cast<float>(random.below(negative ? 256 : 250)) - (negative ? 128.f : 0);
      const BaseRows base = x.view();
      const ValueRange found = find_value_range(x.view(), Metric::l2, "base", 1);
      Coding coding = Coding::whole_numbers(metric, active_isa(), found);
      coding.tile_bytes = 4 * 5 * panel_step_bytes;
      coding = device_coding(coding, 301, 19);
      const Fetched got = encoded(coding, base, {}, 1);
      std::vector<int> seen(301);
      for (std::size_t slot = 0; slot < got.ids.size(); ++slot) {
        const int id = got.ids[slot];
        if (id < 0) continue;
        ++seen.at(static_cast<std::size_t>(id));
        int sum = 0, squares = 0;
        for (int i = 0; i < 19; ++i) {
          const int y = static_cast<int>(x.row(id)[i]);
          ASSERT_EQ(code_at(got, coding, static_cast<std::int64_t>(slot), i) - coding.row_offset,
                    y);
          sum += y, squares += y * y;
        }
        ASSERT_EQ(got.sums[slot], sum);
        ASSERT_EQ(got.squares[slot], metric == Metric::l2 ? static_cast<unsigned>(squares) : 0u);
      }
      for (const int count : seen) ASSERT_EQ(count, 1);
    }
}

// A subset of the rows is numbered from 0 on.
TEST(DevicePacking, SomeOfTheRows) {
  const auto x = vectors(Kind::uniform, 400, 7, 9);
  std::vector<std::uint32_t> subset;
  for (std::uint32_t i = 3; i < 400; i += 5) subset.push_back(i);
  Matrix<float> alone(std::ssize(subset), 7);
  for (std::size_t i = 0; i < subset.size(); ++i)
    std::copy_n(x.row(subset[i]), 7, alone.row(static_cast<std::int64_t>(i)));
  const Coding coding = certified(alone.view(), Metric::l2, 1);
  expect_sound(encoded(coding, x.view(), subset, 2), coding, alone.view(), "subset");
}

}  // namespace
}  // namespace knear::detail
