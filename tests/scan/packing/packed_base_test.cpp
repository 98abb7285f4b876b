// The bounds that packing states hold: no row or query is farther from its code than the stated
// error, none is longer than the stated norm.
#include "knear/scan/packing/packed_base.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/scan/packing/coded_queries.hpp"
#include "knear/scan/packing/interleaving.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t dim = 37;

// One coordinate in code units; `step` holds the four bytes in which it lies.
double decoded(Format format, const std::uint8_t* step, std::int64_t i, int int8_offset) {
  if (format == format_fp32) {
    float x;
    std::memcpy(&x, step, 4);
    return x;
  }
  if (format == format_int16) {
    std::int16_t x;
    std::memcpy(&x, step + i % 2 * 2, 2);
    return x;
  }
  if (int8_offset) return step[i % 4] - int8_offset;
  return static_cast<std::int8_t>(step[i % 4]);
}

// Compares |v - scale code| and |v| with the stated bounds.
void expect_enclosed(Format format, const std::vector<double>& v, const std::uint8_t* codes,
                     std::int64_t stride, int int8_offset, double scale, double error,
                     double norm) {
  const std::int64_t per_step = format == format_int8 ? 4 : format == format_int16 ? 2 : 1;
  long double errors = 0, squares = 0;
  for (std::int64_t i = 0; i < dim; ++i) {
    const long double e = v[i] - static_cast<long double>(scale) *
                                     decoded(format, codes + i / per_step * stride, i, int8_offset);
    errors += e * e, squares += static_cast<long double>(v[i]) * v[i];
  }
  ASSERT_LE(std::sqrt(errors), error);
  ASSERT_LE(std::sqrt(squares), norm);
  // The bounds are also tight: not many times what they enclose.
  ASSERT_LE(norm, 40 * std::sqrt(squares) + 1e-9);
}

TEST(PackedBase, StatedErrorsEncloseTheTrueOnes) {
  Random random(3);
  Matrix<float> base(700, dim), queries(30, dim);
  for (auto* matrix : {&base, &queries})
    for (std::int64_t i = 0; i < matrix->rows() * dim; ++i)
      matrix->data()[i] = static_cast<float>((random.uniform() - 0.3) * (1 + i % 11));
  constexpr std::int64_t long_query = 7;
  for (std::int64_t i = 0; i < dim; ++i) queries.row(long_query)[i] *= 20;
  std::vector<std::int64_t> which(queries.rows());
  std::iota(which.begin(), which.end(), 0);
  for (Isa isa : test::levels())
    for (Format format : {format_int8, format_int16, format_fp32})
      for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
        SCOPED_TRACE(std::string(name_of(isa)) + " format " + std::to_string(format) + " " +
                     std::string(name_of(metric)));
        const CodingSpace space = CodingSpace::choose(base.view(), metric, isa);
        const PackedBase packed = PackedBase::certified(base.view(), {}, format, space, 1, {});
        std::vector<double> v(dim);
        for (std::int64_t slot = 0; slot < packed.panels() * panel_rows; ++slot) {
          if (packed.ids[slot] == PackedBase::no_row) continue;
          const PanelHead& head = packed.heads[slot / panel_rows];
          space.load(base.view(), packed.ids[slot], v.data());
          const std::uint8_t* codes = packed.codes.data() +
                                      slot / panel_rows * packed.steps * panel_step_bytes +
                                      slot % panel_rows * step_bytes;
          SCOPED_TRACE("slot " + std::to_string(slot));
          expect_enclosed(format, v, codes, panel_step_bytes, 128, head.scale, head.error,
                          head.norm);
        }
        // Alone, and by codes that all queries have; the long one has none.
        const CodedQueries all = code_all(packed, queries.view(), ValueRange{}, 2);
        for (std::int64_t q = 0; q < queries.rows() && metric != Metric::cosine; ++q)
          ASSERT_EQ(all.fits[static_cast<std::size_t>(q)], q != long_query);
        for (const CodedQueries* coded : {static_cast<const CodedQueries*>(nullptr), &all})
          for (int group_size : {1, 4, 12}) {
            const PackedQueries packed_queries =
                pack_queries(packed, queries.view(), which.data(), queries.rows(), group_size,
                             ValueRange{}, coded);
            for (std::int64_t q = 0; q < queries.rows(); ++q) {
              const GroupHead& head = packed_queries.heads[q / group_size];
              const int lane = static_cast<int>(q % group_size);
              space.load(queries.view(), q, v.data());
              SCOPED_TRACE("query " + std::to_string(q) + " of " + std::to_string(group_size) +
                           (coded ? ", coded" : ""));
              expect_enclosed(
                  format, v, packed_queries.group_codes(q / group_size) + lane * step_bytes,
                  group_size * step_bytes, 0, head.scale, head.error[lane], head.norm[lane]);
              if (coded && group_size == 1 && q != long_query && metric != Metric::cosine) {
                ASSERT_EQ(head.scale, all.scale);
              }
            }
          }
      }
}

// The scale of all queries is that of those that have any length, and suits zeros too.
TEST(CodedQueries, ZerosDoNotSetTheScale) {
  Random random(5);
  Matrix<float> base(300, dim), queries(30, dim);
  for (auto* matrix : {&base, &queries})
    for (std::int64_t i = 0; i < matrix->rows() * dim; ++i)
      matrix->data()[i] = static_cast<float>((random.uniform() - 0.5) * 1e-3);
  const CodingSpace space = CodingSpace::choose(base.view(), Metric::l2, active_isa());
  ASSERT_TRUE(space.mean.empty());
  const PackedBase packed = PackedBase::certified(base.view(), {}, format_int8, space, 1, {});
  for (std::int64_t i = 0; i < queries.rows(); i += 2) std::fill_n(queries.row(i), dim, 0.0f);
  const CodedQueries coded = code_all(packed, queries.view(), ValueRange{}, 1);
  EXPECT_LT(coded.scale, 1e-3 / 127);
  for (const char fits : coded.fits) EXPECT_TRUE(fits);
  std::fill_n(queries.data(), queries.rows() * dim, 0.0f);
  for (const QueryCode& head : code_all(packed, queries.view(), ValueRange{}, 1).heads)
    EXPECT_LT(head.error, 1e-100);
}

// A scale that others set tells short queries from nothing: they do not count as coded.
TEST(CodedQueries, ScalesOfOthersDoNotSuitShortOnes) {
  Random random(6);
  Matrix<float> queries(40, dim);
  for (std::int64_t i = 0; i < 40; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      queries.row(i)[j] = static_cast<float>((random.uniform() - 0.5) * (i < 20 ? 1 : 100));
  const CodingSpace space = CodingSpace::choose(queries.view(), Metric::ip, active_isa());
  const PackedBase packed = PackedBase::certified(queries.view(), {}, format_int8, space, 1, {});
  const CodedQueries coded = code_all(packed, queries.view(), ValueRange{}, 1);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(coded.fits[i], i >= 20) << i;
  const std::vector<std::int64_t> order = coded.order;
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(order[i] < 20, i < 20) << i;
  EXPECT_TRUE(coded.differ(order[19], order[20]));
  EXPECT_FALSE(coded.differ(order[0], order[19]));
}

// Interleaving is inverted by tile_of(), and packed tiles hold the rows that it says.
TEST(PackedBase, RowsAreInterleavedOverTiles) {
  for (std::int64_t rows : {1, 2, 31, 100, 1000, 4099})
    for (std::int64_t tiles : {1, 2, 3, 7, 64, 99, 1000}) {
      if (tiles > rows) continue;
      const Interleaving interleaving{rows, tiles};
      std::vector<int> seen(static_cast<std::size_t>(rows));
      for (std::int64_t tile = 0; tile < tiles; ++tile)
        for (std::int64_t j = 0; j < interleaving.rows_of(tile); ++j) {
          const std::int64_t row = interleaving.row(tile, j);
          ASSERT_EQ(row / tiles, j);
          ++seen.at(static_cast<std::size_t>(row));
          ASSERT_EQ(interleaving.tile_of(row), tile)
              << rows << " rows, " << tiles << " tiles, row " << row;
        }
      for (const int times : seen) ASSERT_EQ(times, 1);
    }
  Random random(9);
  Matrix<float> base(3000, 8);
  for (std::int64_t i = 0; i < 3000 * 8; ++i) base.data()[i] = static_cast<float>(random.uniform());
  for (std::int64_t panels : {1, 2, 5, 100}) {
    const PackedBase packed = PackedBase::certified(
        base.view(), {}, format_int8, CodingSpace::choose(base.view(), Metric::l2, active_isa()), 1,
        {}, panels * 2 * panel_step_bytes, false);
    const Tiling tiling = Tiling::of(3000, panels);
    ASSERT_EQ(packed.tiles, tiling.tiles);
    ASSERT_EQ(packed.panels_per_tile, tiling.panels_per_tile);
    const Interleaving interleaving{3000, packed.tiles};
    for (std::int64_t slot = 0; slot < packed.panels() * panel_rows; ++slot)
      if (packed.ids[slot] != PackedBase::no_row) {
        ASSERT_EQ(interleaving.tile_of(packed.ids[slot]),
                  slot / panel_rows / packed.panels_per_tile);
      }
  }
}

}  // namespace
}  // namespace knear::detail
