// tests/scan/kernels/code_kernels_test.cpp -- sums of codes, values of rows and the k-th of them at
// every instruction set, against plain loops.
#include "knear/scan/kernels/levels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/scan/packing/code_book.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

// Codes of a list in groups, and plain ones.
struct Codes {
  std::int64_t rows, parts, width;
  int bits;
  std::vector<std::vector<int>> plain;  // [rows][parts]
  std::vector<std::uint8_t> groups;

  Codes(std::int64_t n, std::int64_t m, int b, Random& random)
      : rows(n), parts(m), width((m * b + 7) / 8), bits(b) {
    groups.resize(static_cast<std::size_t>(rows * width + 64));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<int> code;
      const std::int64_t first = r / 64 * 64, stride = std::min<std::int64_t>(64, rows - first);
      for (std::int64_t p = 0; p < parts; ++p) {
        code.push_back(static_cast<int>(random.below(std::uint64_t{1} << bits)));
        const std::int64_t byte = bits == 8 ? p : p / 2;
        auto& at = groups[static_cast<std::size_t>(first * width + byte * stride + r - first)];
        at = static_cast<std::uint8_t>(at | code.back() << (bits == 4 && p % 2 == 1 ? 4 : 0));
      }
      plain.push_back(std::move(code));
    }
  }
};

class CodeKernelsOf : public testing::TestWithParam<Isa> {
 protected:
  const CodeKernels& kernels = code_kernels(GetParam());
};

TEST_P(CodeKernelsOf, AddUpTheRowsThatAreWanted) {
  Random random(3);
  for (const int bits : {4, 8})
    for (const std::int64_t parts : {1, 2, 7, 16, 33})
      for (const std::int64_t rows : {1, 5, 63, 64, 65, 200, 1024}) {
        SCOPED_TRACE(testing::Message() << bits << " bits, " << parts << " parts, " << rows);
        const Codes codes(rows, parts, bits, random);
        std::vector<float> tables(static_cast<std::size_t>(parts << bits));
        for (float& x : tables) x = static_cast<float>(random.uniform() - 0.5);
        // Shares of the rows that are wanted, or so many of each group.
        for (const double share : {0.0, 0.05, 0.4, 1.0, 15.0, 16.0, 17.0, 31.0, 32.0, 33.0, 63.0}) {
          std::vector<std::uint64_t> near(static_cast<std::size_t>((rows + 63) / 64));
          std::vector<std::int64_t> wanted;
          for (std::int64_t r = 0; r < rows; ++r)
            if (share > 1 ? static_cast<double>((r * 37 + 5) % 64) < share
                          : random.uniform() < share) {
              near[static_cast<std::size_t>(r / 64)] |= std::uint64_t{1} << r % 64;
              wanted.push_back(r);
            }
          std::vector<float> sums(static_cast<std::size_t>(rows + 64));
          std::vector<std::uint16_t> at(static_cast<std::size_t>(rows + 64));
          const CodeSumArgs args{codes.groups.data(), rows,        codes.width, parts,
                                 tables.data(),       near.data(), sums.data(), at.data()};
          ASSERT_EQ((bits == 8 ? kernels.sums8 : kernels.sums4)(&args), std::ssize(wanted));
          for (std::size_t i = 0; i < wanted.size(); ++i) {
            ASSERT_EQ(at[i], wanted[i]);
            float sum = 0;
            for (std::int64_t p = 0; p < parts; ++p)
              sum += tables[static_cast<std::size_t>(
                  (p << bits) +
                  codes.plain[static_cast<std::size_t>(wanted[i])][static_cast<std::size_t>(p)])];
            ASSERT_EQ(sums[i], sum) << "row " << wanted[i];
          }
        }
      }
}

TEST_P(CodeKernelsOf, GiveTheValuesOfRows) {
  Random random(4);
  for (const int bits : {4, 8})
    for (const std::int64_t parts : {1, 8, 31, 64})
      for (const std::int64_t rows : {1, 64, 100, 300, 1024})
        for (const float slope : {0.0f, -0.25f, 3e7f}) {
          SCOPED_TRACE(testing::Message()
                       << bits << " bits, " << parts << " parts, " << rows << ", " << slope);
          const Codes codes(rows, parts, bits, random);
          const std::int64_t even = bits == 8 ? parts : codes.width * 2;
          std::vector<std::uint8_t> tables(static_cast<std::size_t>(even << bits));
          for (auto& x : tables) x = static_cast<std::uint8_t>(random.below(most_table_entry + 1));
          if (even > parts) std::fill(tables.end() - 16, tables.end(), std::uint8_t{0});
          std::vector<float> scalars(static_cast<std::size_t>(rows + 64));
          for (float& x : scalars) x = static_cast<float>(100 * random.uniform() - 50);
          std::vector<std::int32_t> values(static_cast<std::size_t>(rows + 64));
          const CodeRun run{codes.groups.data(), rows, slope != 0 ? scalars.data() : nullptr,
                            nullptr, values.data()};
          CodeScanArgs args{};
          args.runs = &run, args.run_count = 1, args.width = codes.width;
          args.tables = tables.data(), args.slope = slope, args.offset = -1, args.values = true;
          (bits == 8 ? kernels.bits8 : kernels.bits4)(&args);
          for (std::int64_t r = 0; r < rows; ++r) {
            const auto at = static_cast<std::size_t>(r);
            int sum = 0;
            for (std::int64_t p = 0; p < parts; ++p)
              sum += tables[static_cast<std::size_t>((p << bits) +
                                                     codes.plain[at][static_cast<std::size_t>(p)])];
            const float value = static_cast<float>(sum) - slope * (slope != 0 ? scalars[at] : 0);
            const double most = 1 << 30;
            ASSERT_EQ(values[at], std::floor(std::clamp<double>(value, -most, most))) << r;
          }
        }
}

// Rows in several places, of which few are whole groups: each by itself, and no other one.
TEST_P(CodeKernelsOf, FindRowsThatMayBeNearInSeveralRuns) {
  Random random(6);
  for (const int bits : {4, 8})
    for (const std::int64_t parts : {1, 8, 31})
      for (const bool scaled : {false, true})
        for (const std::vector<std::int64_t>& sizes :
             std::vector<std::vector<std::int64_t>>{{1},
                                                    {64},
                                                    {255},
                                                    {256, 1, 63, 64},
                                                    {1, 1, 1, 1, 1, 1},
                                                    {488, 487},
                                                    {300, 65, 640, 2},
                                                    {130, 192, 61}})
          for (const float offset : {-1.0f, 40.0f * static_cast<float>(parts), 1e6f}) {
            SCOPED_TRACE(testing::Message() << bits << " bits, " << parts << " parts, " << scaled
                                            << ", " << sizes.size() << " runs, " << offset);
            std::vector<Codes> codes;
            for (const std::int64_t rows : sizes) codes.emplace_back(rows, parts, bits, random);
            const std::int64_t width = codes[0].width, even = bits == 8 ? parts : width * 2;
            std::vector<std::uint8_t> tables(static_cast<std::size_t>(even << bits));
            for (auto& x : tables)
              x = static_cast<std::uint8_t>(random.below(most_table_entry + 1));
            if (even > parts) std::fill(tables.end() - 16, tables.end(), std::uint8_t{0});
            std::vector<std::vector<float>> scalars;
            std::vector<std::vector<std::uint64_t>> near;
            for (const std::int64_t rows : sizes) {
              scalars.emplace_back(static_cast<std::size_t>(rows + 64));
              for (float& x : scalars.back()) x = static_cast<float>(100 * random.uniform() - 50);
              near.emplace_back(static_cast<std::size_t>((rows + 63) / 64), ~std::uint64_t{0});
            }
            std::vector<CodeRun> runs;
            for (std::size_t r = 0; r < sizes.size(); ++r)
              runs.push_back({codes[r].groups.data(), sizes[r],
                              scaled ? scalars[r].data() : nullptr, near[r].data(), nullptr});
            CodeScanArgs args{};
            args.runs = runs.data(), args.run_count = std::ssize(runs), args.width = width;
            args.tables = tables.data(), args.slope = 0.75f, args.offset = offset;
            (bits == 8 ? kernels.bits8 : kernels.bits4)(&args);
            for (std::size_t r = 0; r < sizes.size(); ++r)
              for (std::int64_t i = 0; i < 64 * std::ssize(near[r]); ++i) {
                bool wanted = false;
                if (i < sizes[r]) {
                  const auto at = static_cast<std::size_t>(i);
                  int sum = 0;
                  for (std::int64_t p = 0; p < parts; ++p)
                    sum += tables[static_cast<std::size_t>(
                        (p << bits) + codes[r].plain[at][static_cast<std::size_t>(p)])];
                  const float limit = scaled ? offset + 0.75f * scalars[r][at] : offset;
                  wanted = static_cast<float>(sum) <= limit;
                }
                ASSERT_EQ(near[r][static_cast<std::size_t>(i / 64)] >> i % 64 & 1, wanted)
                    << "run " << r << ", row " << i;
              }
          }
}

TEST_P(CodeKernelsOf, FindTheKthValueAndTheRowsUpToIt) {
  Random random(5);
  for (const std::int64_t rows : {1, 2, 63, 64, 65, 700})
    for (const std::int64_t kinds : {1, 3, 1000000}) {
      std::vector<std::int32_t> values;
      for (std::int64_t i = 0; i < rows; ++i)
        values.push_back(static_cast<std::int32_t>(random.below(kinds)) - 500);
      if (rows > 2) values[1] = std::numeric_limits<std::int32_t>::max();
      std::vector<std::int32_t> sorted = values;
      std::sort(sorted.begin(), sorted.end());
      values.resize(values.size() + 64, -1000);  // which may be read
      for (const std::int64_t k : {std::int64_t{1}, (rows + 1) / 2, rows}) {
        const std::int32_t kth = kernels.kth_value(values.data(), rows, k);
        EXPECT_GE(kth, sorted[static_cast<std::size_t>(k - 1)]);
        const auto next =
            std::upper_bound(sorted.begin(), sorted.end(), sorted[static_cast<std::size_t>(k - 1)]);
        if (next != sorted.end()) {
          EXPECT_LT(kth, *next);
        }
        std::vector<std::uint64_t> near(static_cast<std::size_t>((rows + 63) / 64), 7);
        kernels.values_up_to(values.data(), rows, kth, near.data());
        for (std::int64_t i = 0; i < 64 * std::ssize(near); ++i)
          EXPECT_EQ(near[static_cast<std::size_t>(i / 64)] >> i % 64 & 1,
                    i < rows && values[static_cast<std::size_t>(i)] <= kth);
      }
    }
}

TEST_P(CodeKernelsOf, DecodeRowsAsPanels) {
  Random random(6);
  for (const std::int64_t width : {1, 2, 3, 4, 5, 8})
    for (const std::int64_t parts : {1, 2, 7, 16})
      for (const std::int64_t rows : {1, 31, 32, 33, 63, 64}) {
        SCOPED_TRACE(testing::Message() << parts << " parts of " << width << ", " << rows);
        const Codes codes(rows, parts, 8, random);
        const std::int64_t columns = parts * width, steps = (columns + 3) / 4;
        std::vector<std::uint8_t> by_code(static_cast<std::size_t>(256 * columns)),
            by_column = by_code, panels(static_cast<std::size_t>(2 * steps * 128));
        for (std::int64_t c = 0; c < 256; ++c)
          for (std::int64_t j = 0; j < columns; ++j) {
            const auto byte = static_cast<std::uint8_t>(random.below(256));
            const std::int64_t part = j / width;
            by_code[static_cast<std::size_t>((part * 256 + c) * width + j % width)] = byte;
            by_column[static_cast<std::size_t>(j * 256 + c)] = byte;
          }
        const CodeDecodeArgs args{codes.groups.data(), rows,         parts, width, by_code.data(),
                                  by_column.data(),    panels.data()};
        kernels.decode8(&args);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t j = 0; j < columns; ++j) {
            const int code =
                codes.plain[static_cast<std::size_t>(r)][static_cast<std::size_t>(j / width)];
            ASSERT_EQ(panels[static_cast<std::size_t>(((r / 32 * steps + j / 4) * 32 + r % 32) * 4 +
                                                      j % 4)],
                      by_column[static_cast<std::size_t>(j * 256 + code)])
                << "row " << r << ", column " << j;
          }
      }
}

TEST_P(CodeKernelsOf, SumUpRowsWithoutTables) {
  Random random(7);
  for (const std::int64_t width : {1, 2, 3, 4, 5, 8, 12})
    for (const std::int64_t parts : {1, 7, 16})
      for (const std::int64_t rows : {1, 64, 150})
        for (const bool squared : {false, true}) {
          SCOPED_TRACE(testing::Message() << parts << " parts of " << width << ", " << rows);
          const Codes codes(rows, parts, 8, random);
          Matrix<float> centroids(256 * parts, width);
          std::vector<double> query;
          for (std::int64_t j = 0; j < parts * width; ++j)
            query.push_back(j % 5 == 0 ? -0.0 : random.uniform() - 0.5);
          for (std::int64_t c = 0; c < 256 * parts; ++c)
            for (std::int64_t j = 0; j < width; ++j)
              centroids.row(c)[j] = static_cast<float>(random.uniform() - 0.5);
          const CodeBook book(std::move(centroids), parts, 8);
          for (const std::int64_t count : {1, 3, 4, 9}) {
            std::vector<std::uint32_t> at;
            for (std::int64_t i = 0; i < count; ++i)
              at.push_back(
                  static_cast<std::uint32_t>(random.below(static_cast<std::uint64_t>(rows))));
            std::vector<float> sums(at.size());
            const DirectSumArgs args{
                codes.groups.data(), rows,    parts,     width, book.centroids().data(),
                query.data(),        squared, at.data(), count, sums.data()};
            kernels.direct_sums8(&args);
            for (std::size_t i = 0; i < at.size(); ++i) {
              const std::int64_t row = at[i], first = row / 64 * 64,
                                 stride = std::min<std::int64_t>(64, rows - first);
              ASSERT_EQ(sums[i], book.sum(codes.groups.data() + first * parts + (row - first),
                                          stride, query.data(), squared));
            }
          }
        }
}

INSTANTIATE_TEST_SUITE_P(Levels, CodeKernelsOf, testing::ValuesIn(test::levels()),
                         [](const auto& level) { return std::string(name_of(level.param)); });

}  // namespace
}  // namespace knear::detail
