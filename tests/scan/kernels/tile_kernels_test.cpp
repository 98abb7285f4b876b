// The tile kernels of every level against plain loops: the scores are the dot products of the
// codes, no pair that passes the exact test is missed, and few that fail it are kept.
#include "knear/scan/kernels/levels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/random.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

// A few panels of random codes and one group of queries.
struct Case {
  Format format;
  int group_size;
  std::int64_t steps, panels = 8;
  AlignedArray<std::uint8_t> codes, query_codes;
  std::vector<PanelHead> heads;
  AlignedArray<float> row_bias;
  AlignedArray<std::uint32_t> row_squares, ids;
  AlignedArray<std::int32_t> row_sums;
  GroupHead group{};

  Case(Format f, int size, std::int64_t step_count, std::uint64_t seed)
      : format(f),
        group_size(size),
        steps(step_count),
        codes(panels * steps * panel_step_bytes),
        query_codes(steps * size * step_bytes),
        heads(panels),
        row_bias(panels * panel_rows),
        row_squares(panels * panel_rows),
        ids(panels * panel_rows),
        row_sums(panels * panel_rows) {
    Random random(seed);
    const auto fill = [&](std::uint8_t* p, std::int64_t count) {
      for (std::int64_t i = 0; i < count; i += 4) {
        if (format == format_fp32) {
          const float x = static_cast<float>(random.uniform() * 2 - 1);
          std::memcpy(p + i, &x, 4);
        } else if (format == format_int16) {
          const std::int16_t x[2] = {std::int16_t(random.below(8001) - 4000),
                                     std::int16_t(random.below(8001) - 4000)};
          std::memcpy(p + i, x, 4);
        } else {
          for (int j = 0; j < 4; ++j) p[i + j] = std::uint8_t(random.below(256));
        }
      }
    };
    fill(codes.data(), static_cast<std::int64_t>(codes.size()));
    fill(query_codes.data(), static_cast<std::int64_t>(query_codes.size()));
    group.scale = 0.5, group.count = size;
    for (int q = 0; q < head_lanes; ++q) {
      group.norm[q] = 3 + q, group.error[q] = 0.01 * q;
      group.correction[q] = format == format_fp32 ? 0 : 17 * q - 60;
    }
    for (PanelHead& head : heads) head = {0.25 + random.uniform(), -random.uniform(), 0.02, 5, 0};
    for (float& b : row_bias) b = -static_cast<float>(random.uniform() * 50);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint32_t>(3 * i + 1);
    for (std::uint32_t& s : row_squares) s = static_cast<std::uint32_t>(random.below(1000));
    for (std::int32_t& s : row_sums) s = static_cast<std::int32_t>(random.below(200)) - 100;
  }

  // The dot product of the codes of a pair: int64, or double for floats.
  double dot(std::int64_t slot, int q) const {
    const std::uint8_t* y = codes.data() + slot / panel_rows * steps * panel_step_bytes +
                            slot % panel_rows * step_bytes;
    const std::uint8_t* x = query_codes.data() + q * step_bytes;
    double sum = 0;
    for (std::int64_t s = 0; s < steps; ++s, y += panel_step_bytes, x += group_size * step_bytes) {
      if (format == format_fp32) {
        float a, b;
        std::memcpy(&a, y, 4), std::memcpy(&b, x, 4);
        sum += double{a} * b;
      } else if (format == format_int16) {
        std::int16_t a[2], b[2];
        std::memcpy(a, y, 4), std::memcpy(b, x, 4);
        sum += double(a[0]) * b[0] + double(a[1]) * b[1];
      } else {
        for (int j = 0; j < 4; ++j) sum += double(y[j]) * static_cast<std::int8_t>(x[j]);
      }
    }
    return sum;
  }

  std::map<std::pair<std::uint32_t, std::uint32_t>, std::int32_t> run(
      TileKernel kernel, int limit, const std::uint32_t* allowed = nullptr) {
    std::vector<Hit> hits(limit + max_group * panel_rows);
    TileArgs args{};
    args.codes = codes.data(), args.heads = heads.data(), args.row_bias = row_bias.data();
    args.ids = ids.data(), args.row_squares = row_squares.data(), args.row_sums = row_sums.data();
    args.sum_shift_mask = -1, args.steps = steps, args.query_codes = query_codes.data();
    args.group = &group, args.panel = 0, args.panel_end = panels, args.hits = hits.data();
    args.hit_limit = limit, args.allowed = allowed;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::int32_t> found;
    while (args.panel < args.panel_end) {
      args.hit_count = 0;
      kernel(&args);
      for (int i = 0; i < args.hit_count; ++i)
        EXPECT_TRUE(found.emplace(std::pair(hits[i].slot, hits[i].query), hits[i].score).second);
    }
    return found;
  }
};

TEST(TileKernels, CertifiedKeepWhatTheBoundKeepsAndScoreIt) {
  for (Isa isa : test::levels())
    for (Format format : {format_int8, format_int16, format_fp32})
      for (int size = 0; size < group_size_count; ++size)
        // Tiles have 16 steps, and are left to other kernels beyond 512; pairs of `neon` beyond
        // 128.
        for (std::int64_t steps : {1, 2, 7, 16, 17, 32, 33, 48, 128, 129, 512, 513}) {
          if (steps > 48 && format != format_int8) continue;  // sums beyond those of real codes
          Case c(format, group_sizes[size], steps, 7 * steps + size);
          // Thresholds in the middle of a query's scores, so that about half pass.
          const auto left = [&](std::int64_t slot, int q) {
            const PanelHead& p = c.heads[slot / panel_rows];
            return (c.dot(slot, q) - c.group.correction[q]) * c.group.scale * p.scale +
                   c.row_bias[slot] * p.scale * p.scale + p.bias_max + c.group.norm[q] * p.error +
                   c.group.error[q] * p.norm;
          };
          for (int q = 0; q < c.group_size; ++q) {
            c.group.threshold[q] = 0;
            for (std::int64_t slot = 0; slot < c.panels * panel_rows; ++slot)
              c.group.threshold[q] += left(slot, q) / (c.panels * panel_rows);
          }
          if (c.group_size > 1) c.group.threshold[1] = -std::numeric_limits<double>::infinity();
          if (c.group_size > 2) c.group.threshold[2] = 1e200;
          const auto found = c.run(scan_kernels(isa).certified[format][size], 64);
          for (std::int64_t slot = 0; slot < c.panels * panel_rows; ++slot)
            for (int q = 0; q < c.group_size; ++q) {
              const auto hit = found.find({std::uint32_t(slot), std::uint32_t(q)});
              const double unit = c.group.scale * c.heads[slot / panel_rows].scale;
              const double over = left(slot, q) - c.group.threshold[q];
              if (over >= 0) {
                ASSERT_NE(hit, found.end()) << name_of(isa) << ' ' << format << ' ' << over;
              }
              if (over < -8 * unit - 1e-4 * std::fabs(c.group.threshold[q])) {
                ASSERT_EQ(hit, found.end()) << name_of(isa) << ' ' << format << ' ' << over;
              }
              if (hit == found.end()) continue;
              if (format == format_fp32) {
                ASSERT_NEAR(std::bit_cast<float>(hit->second), c.dot(slot, q),
                            1e-5 * double(steps));
              } else {
                ASSERT_EQ(hit->second, c.dot(slot, q));
              }
            }
        }
}

TEST(TileKernels, PassNoRowThatIsNotAllowed) {
  for (Isa isa : test::levels())
    for (Format format : {format_int8, format_int16, format_fp32})
      for (int size = 0; size < group_size_count; ++size)
        for (const bool integer : {false, true}) {
          if (integer && format != format_int8) continue;
          Case c(format, group_sizes[size], 7, 5 + size);
          for (int q = 0; q < head_lanes; ++q) {
            c.group.threshold[q] = q % 3 == 0 ? -std::numeric_limits<double>::infinity() : 0;
            c.group.limit[q] = q % 3 == 0 ? -(1 << 29) : 500 * q, c.group.bound_row[q] = ~0U;
          }
          Random random(9);
          std::vector<std::uint32_t> allowed;
          for (std::int64_t p = 0; p < c.panels; ++p)
            allowed.push_back(p % 3 == 0 ? 0
                                         : static_cast<std::uint32_t>(random.below(1ULL << 32)));
          const ScanKernels& kernels = scan_kernels(isa);
          const TileKernel kernel =
              integer ? kernels.integer[size] : kernels.certified[format][size];
          auto expected = c.run(kernel, 64);
          const std::size_t all = expected.size();
          std::erase_if(expected, [&](const auto& hit) {
            const std::uint32_t slot = hit.first.first;
            return (allowed[slot / panel_rows] >> slot % panel_rows & 1) == 0;
          });
          ASSERT_GT(expected.size(), 0U);
          ASSERT_LT(expected.size(), all);
          ASSERT_EQ(c.run(kernel, 64, allowed.data()), expected) << name_of(isa) << ' ' << format;
        }
}

TEST(TileKernels, CollectFindsTheSlotsThatCertifiedDoes) {
  for (Isa isa : test::levels())
    for (int size = 0; size < group_size_count; ++size)
      for (std::int64_t steps : {1, 2, 12, 33})
        for (int list_limit : {1, 7, 1000}) {
          Case c(format_int8, group_sizes[size], steps, 11 * steps + size);
          for (int q = 0; q < c.group_size; ++q) c.group.threshold[q] = 2000.0 * (q % 5 - 2);
          if (size == group_12) c.group.count = 9;
          const ScanKernels& kernels = scan_kernels(isa);
          std::map<std::uint32_t, std::vector<std::uint32_t>> expected, found;
          for (const auto& [pair, score] : c.run(kernels.certified[format_int8][size], 64))
            expected[pair.second].push_back(pair.first);
          std::vector<std::uint32_t> lists(max_group * (list_limit + panel_rows));
          TileArgs args{};
          args.codes = c.codes.data(), args.heads = c.heads.data();
          args.row_bias = c.row_bias.data(), args.ids = c.ids.data();
          args.steps = steps, args.query_codes = c.query_codes.data();
          args.group = &c.group, args.panel_end = c.panels;
          args.hit_limit = 1, args.list_limit = list_limit;
          for (int q = 0; q < max_group; ++q)
            args.lists[q] = lists.data() + q * (list_limit + panel_rows);
          while (args.panel < args.panel_end) {
            args.hit_count = 0;
            kernels.collect[size](&args);
            for (int q = 0; q < max_group; ++q) {
              ASSERT_LT(args.list_count[q], list_limit + panel_rows);
              if (args.list_count[q] > 0)
                found[q].insert(found[q].end(), args.lists[q], args.lists[q] + args.list_count[q]);
              args.list_count[q] = 0;
            }
          }
          ASSERT_FALSE(expected.empty());
          ASSERT_EQ(found, expected) << name_of(isa) << " list " << list_limit;
        }
}

// In vectors `size` times as long. Where no float holds a unit, as for the second, more may pass.
class TileKernelsOfSize : public testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Sizes, TileKernelsOfSize, testing::Values(1.0, 1e-20));

TEST_P(TileKernelsOfSize, SelfJoinPassesWhatEitherSideWants) {
  const double size = GetParam(), squared = size * size;
  for (Isa isa : test::levels())
    for (std::int64_t steps : {1, 2, 12, 16, 24, 33})
      for (double width : {0.0, 300.0, -300.0, 5000.0, -5000.0, 1e12, -1e12, 1e30, -1e30, -1e-5,
                           std::numeric_limits<double>::infinity()}) {
        Case c(format_int8, 12, steps, 7 * steps + 3);
        c.group.scale *= size;
        for (PanelHead& head : c.heads)
          head = {size * head.scale, squared * head.bias_max, size * head.error, size * head.norm,
                  0};
        for (int q = 0; q < head_lanes; ++q) c.group.norm[q] *= size, c.group.error[q] *= size;
        Random random(steps);
        c.group.count = 11;
        // The largest corrections that 128 columns have.
        if (steps == 12)
          for (int q = 0; q < head_lanes; ++q)
            c.group.correction[q] = (q % 2 ? 1 : -1) * (128 * 128 * 128 - q);
        const ScanKernels& kernels = scan_kernels(isa);
        AlignedArray<float> reach(c.panels * panel_rows);
        for (std::size_t i = 0; i < reach.size(); ++i)
          reach[i] =
              i % 3 == 0 ? 0
              : i % 21 == 1
                  ? std::numeric_limits<float>::lowest()
                  : static_cast<float>(squared * width * (i % 3 == 1 ? 1 : random.uniform()));
        double own[head_lanes];
        for (int q = 0; q < head_lanes; ++q) {
          const int lane = std::min(q, 10);
          c.group.top[q] = squared * 800.0 * (lane % 7 - 2);
          own[q] = lane == 3 ? std::numeric_limits<double>::infinity() : squared * 150.0 * lane;
          c.group.threshold[q] = c.group.top[q] - own[q];
        }
        std::vector<std::uint32_t> lists(max_group * 2000);
        TileArgs args{};
        args.codes = c.codes.data(), args.heads = c.heads.data();
        args.row_bias = c.row_bias.data(), args.ids = c.ids.data();
        args.steps = steps, args.query_codes = c.query_codes.data();
        args.group = &c.group, args.panel_end = c.panels;
        args.hit_limit = 1, args.list_limit = 1900;
        args.row_reach = reach.data();
        for (int q = 0; q < max_group; ++q) args.lists[q] = lists.data() + q * 2000;
        kernels.self_join(&args);
        ASSERT_EQ(args.panel, c.panels);
        std::int64_t passed = 0, others = 0;
        for (int q = 0; q < 12; ++q) {
          const std::vector<std::uint32_t> got(args.lists[q], args.lists[q] + args.list_count[q]);
          if (q >= 11) {
            ASSERT_TRUE(got.empty());
            continue;
          }
          for (std::uint32_t slot = 0; slot < c.panels * panel_rows; ++slot) {
            const PanelHead& head = c.heads[slot / panel_rows];
            const double unit = c.group.scale * head.scale;
            const double g = unit * (double(c.dot(slot, q)) - c.group.correction[q]) +
                             head.scale * head.scale * c.row_bias[slot] + head.bias_max +
                             c.group.norm[q] * head.error + c.group.error[q] * head.norm;
            const double over = g - c.group.top[q] + std::max(own[q], double(reach[slot]));
            const bool has = std::find(got.begin(), got.end(), slot) != got.end();
            if (over >= 0) {
              ASSERT_TRUE(has) << name_of(isa) << ' ' << over;
            } else if (size == 1 &&
                       over < -16 * unit - 1e-4 * (std::fabs(c.group.top[q]) + std::max(0.0, -g) +
                                                   std::fabs(reach[slot]))) {
              ASSERT_FALSE(has) << name_of(isa) << ' ' << over;
            }
            passed += has, others += !has;
          }
        }
        ASSERT_GT(passed, 0);
        ASSERT_TRUE(others > 0 || size < 1);
      }
}

TEST(TileKernels, RowProductsAreTheProducts) {
  Random random(3);
  for (Isa isa : test::levels())
    for (std::int64_t dim : {1, 3, 16, 63, 64, 65, 200}) {
      const std::int64_t stride = (dim + 3) / 4 * 4, rows = 50;
      AlignedArray<std::uint8_t> codes(rows * stride + 64);
      AlignedArray<std::int8_t> query((dim + 63) / 64 * 64);
      for (std::uint8_t& x : codes) x = static_cast<std::uint8_t>(random.below(256));
      for (std::int64_t i = 0; i < dim; ++i)
        query[i] = static_cast<std::int8_t>(int(random.below(256)) - 128);
      for (std::int64_t count = 0; count < 30; ++count) {
        std::vector<std::uint32_t> which;
        for (std::int64_t i = 0; i < count; ++i)
          which.push_back(static_cast<std::uint32_t>(random.below(rows)));
        std::vector<std::int32_t> got(count + 1, 77);
        scan_kernels(isa).row_products(codes.data(), stride, which.data(), count, query.data(), dim,
                                       got.data());
        for (std::int64_t i = 0; i < count; ++i) {
          std::int64_t sum = 0;
          for (std::int64_t j = 0; j < dim; ++j) sum += codes[which[i] * stride + j] * query[j];
          ASSERT_EQ(got[i], sum) << name_of(isa) << " dim " << dim;
        }
        ASSERT_EQ(got[count], 77);
      }
    }
}

TEST(TileKernels, IntegerTestIsExactAndTiesOnlyPassToEarlierRows) {
  for (Isa isa : test::levels())
    for (int size = 0; size < group_size_count; ++size)
      for (std::int64_t steps : {1, 5, 64}) {
        Case c(format_int8, group_sizes[size], steps, 3 * steps + size);
        // Panels in turn: any squares, even ones, odd ones, zeros (as for ip).
        for (std::int64_t slot = 0; slot < c.panels * panel_rows; ++slot) {
          std::uint32_t& squares = c.row_squares[slot];
          const std::int64_t kind = slot / panel_rows % 4;
          squares = kind == 3 ? 0 : kind == 2 ? squares | 1 : kind == 1 ? squares & ~1u : squares;
        }
        // Twice the product, less |y|^2: larger is nearer.
        const auto nearness = [&](std::int64_t slot, int q) {
          return 2 * (std::int64_t(c.dot(slot, q)) - c.group.correction[q] +
                      128 * c.row_sums[slot]) -
                 std::int64_t{c.row_squares[slot]};
        };
        std::vector<std::int64_t> twice(c.group_size);
        for (int q = 0; q < c.group_size; ++q) {  // one pair's value is just enough
          const std::int64_t slot = (5 + 29 * q) % (c.panels * panel_rows);
          twice[q] = nearness(slot, q);
          c.group.limit[q] = static_cast<std::int32_t>(twice[q] >> 1);
          c.group.limit_bit[q] = twice[q] & 1;
          c.group.bound_row[q] = c.ids[(3 * slot + 40) % (c.panels * panel_rows)];
        }
        const auto found = c.run(scan_kernels(isa).integer[size], 1000);
        for (std::int64_t slot = 0; slot < c.panels * panel_rows; ++slot)
          for (int q = 0; q < c.group_size; ++q) {
            const std::int64_t panel = slot / panel_rows;
            const bool after = c.ids[panel * panel_rows] > c.group.bound_row[q];
            const std::int64_t over = nearness(slot, q) - twice[q] - after;
            const bool kept = found.count({std::uint32_t(slot), std::uint32_t(q)}) == 1;
            const bool mixed = panel % 4 == 0;  // there a half may be lost
            if (over >= 0 || !(mixed && over == -1)) {
              ASSERT_EQ(kept, over >= 0) << name_of(isa) << " panel " << panel << ' ' << after;
            }
          }
      }
}

// A sum of two products of signed bytes may be just too large for int16.
TEST(TileKernels, CodesAtTheEndsOfTheirRange) {
  for (Isa isa : test::levels())
    for (int size = 0; size < group_size_count; ++size)
      for (std::int64_t steps : {1, 2, 3, 128, 129}) {
        Case c(format_int8, group_sizes[size], steps, 1);
        Random random(static_cast<std::uint64_t>(steps));
        for (std::uint8_t& y : c.codes) y = random.below(4) ? 0 : 255;
        for (std::uint8_t& x : c.query_codes) x = random.below(4) ? 0x80 : 0x7f;
        for (double& t : c.group.threshold) t = -std::numeric_limits<double>::infinity();
        const auto found = c.run(scan_kernels(isa).certified[format_int8][size], 100);
        ASSERT_EQ(std::ssize(found), c.panels * panel_rows * c.group_size);
        for (const auto& [pair, score] : found)
          ASSERT_EQ(score, c.dot(pair.first, static_cast<int>(pair.second)))
              << name_of(isa) << " steps " << steps;
      }
}

TEST(TileKernels, QueriesBeyondTheCountAreNeverReported) {
  for (Isa isa : test::levels()) {
    Case c(format_int8, 12, 4, 1);
    c.group.count = 5;
    for (double& t : c.group.threshold) t = -std::numeric_limits<double>::infinity();
    for (const auto& [pair, score] : c.run(scan_kernels(isa).certified[format_int8][group_12], 10))
      EXPECT_LT(pair.second, 5u) << score;
  }
}

TEST(TileKernels, ScoresAreTheProductsOfAllPairs) {
  for (Isa isa : test::levels())
    for (int size = 0; size < group_size_count; ++size)
      for (std::int64_t steps : {1, 7, 33}) {
        Case c(format_int8, group_sizes[size], steps, 13 * steps + size);
        const std::int64_t slots = c.panels * panel_rows;
        std::vector<std::int32_t> out(static_cast<std::size_t>(c.group_size * slots));
        TileArgs args{};
        args.codes = c.codes.data(), args.query_codes = c.query_codes.data();
        args.steps = steps, args.panel_end = c.panels;
        args.scores = out.data(), args.score_stride = slots;
        scan_kernels(isa).scores[size](&args);
        for (int q = 0; q < c.group_size; ++q)
          for (std::int64_t slot = 0; slot < slots; ++slot) {
            std::int32_t sum = 0;
            for (std::int64_t step = 0; step < steps; ++step) {
              const std::uint8_t* y = c.codes.data() +
                                      (slot / panel_rows * steps + step) * panel_step_bytes +
                                      slot % panel_rows * step_bytes;
              const std::uint8_t* x = c.query_codes.data() + (step * c.group_size + q) * step_bytes;
              for (int j = 0; j < step_bytes; ++j) sum += y[j] * static_cast<std::int8_t>(x[j]);
            }
            ASSERT_EQ(out[static_cast<std::size_t>(q * slots + slot)], sum)
                << name_of(isa) << " query " << q << " slot " << slot;
          }
      }
}

TEST(TileKernels, LargestValuesAreFoundWithFewMore) {
  constexpr float none = -std::numeric_limits<float>::infinity();
  Random random(17);
  for (Isa isa : test::levels())
    for (const std::int64_t count : {32, 96, 1024, 2080})
      for (const int kind : {0, 1, 2, 3, 4}) {
        AlignedArray<float> values(count);
        std::vector<float> sorted;
        for (std::int64_t i = 0; i < count; ++i) {
          const double x = random.uniform();
          values.data()[i] = static_cast<float>(
              kind == 0   ? x
              : kind == 1 ? -1 / (x + 1e-6)                          // a long tail below
              : kind == 2 ? std::pow(x, -8.0)                        // and one above
              : kind == 3 ? static_cast<double>(random.below(4))     // ties
                          : (x - 0.5) * std::pow(10, 60 * x - 30));  // every size
          if (random.below(20) == 0) values.data()[i] = none;
          if (values.data()[i] != none) sorted.push_back(values.data()[i]);
        }
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        for (const std::int64_t k : {1, 2, 10, 30, 500, 3000}) {
          const ScanKernels& kernels = scan_kernels(isa);
          const float least = kernels.largest_value(values.data(), count, k);
          std::vector<std::uint32_t> places(static_cast<std::size_t>(count) + 1);
          const std::int64_t found =
              kernels.places_at_least(values.data(), count, least, places.data());
          std::vector<std::uint32_t> expected;
          for (std::int64_t i = 0; i < count; ++i)
            if (values.data()[i] >= least) expected.push_back(static_cast<std::uint32_t>(i));
          places.resize(static_cast<std::size_t>(found));
          ASSERT_EQ(places, expected);
          if (k > std::ssize(sorted)) {
            EXPECT_EQ(found, std::ssize(sorted));
            continue;
          }
          ASSERT_GE(found, k);
          if (kind == 2 || kind == 4) continue;  // halving what lies between takes many steps
          const std::int64_t ties =
              std::count(sorted.begin(), sorted.end(), sorted[static_cast<std::size_t>(k - 1)]);
          EXPECT_LE(found, std::max(k + k / 8 + 1, k - 1 + ties))
              << name_of(isa) << " kind " << kind << " count " << count << " k " << k;
        }
      }
}

}  // namespace
}  // namespace knear::detail
