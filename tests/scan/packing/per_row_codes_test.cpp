// Intervals by per-row codes: they hold what the reference computes, and are narrow.
#include "knear/scan/packing/per_row_codes.hpp"
#include "knear/scan/kernels/key_scale.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"

namespace knear::detail {
namespace {

struct Scored {
  std::vector<ScoreInterval> coarse, fine;  // by the first plane of the query, and by both
  KeyScale scale;
};

Scored score(MatrixView<float> base, MatrixView<float> query, Metric metric,
             const CodingSpace& space) {
  const std::int64_t dim = base.cols(), rows = base.rows();
  std::vector<std::uint32_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), 0u);
  const PerRowCodes codes = per_row_codes(base, order, space, false, {.integer = false}, 1, {});
  std::vector<double> scratch(static_cast<std::size_t>(dim));
  AlignedArray<std::int8_t> planes(2 * plane_bytes(dim));
  const CodedQuery coded = code_query(codes, query, 0, {}, scratch.data(), planes.data());
  std::vector<std::int32_t> products(order.size()), fine(order.size());
  space.kernels->row_products(codes.codes.data(), codes.stride, order.data(), rows, planes.data(),
                              dim, products.data());
  space.kernels->row_products(codes.codes.data(), codes.stride, order.data(), rows,
                              planes.data() + plane_bytes(dim), dim, fine.data());
  Scored out;
  out.scale = {metric, coded.squares, coded.constant};
  for (std::uint32_t r = 0; r < order.size(); ++r) {
    out.coarse.push_back(interval_of(codes, r, r, products[r], coded));
    out.fine.push_back(interval_of(codes, r, r, products[r], fine[r], coded));
  }
  return out;
}

TEST(PerRowCodes, IntervalsHoldTheReference) {
  for (const std::int64_t dim : {1, 7, 64, 200})
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
      for (const double size : {1e-30, 1e-3, 1.0, 1e6, 1e17})
        for (const double offset : {0.0, 3.0}) {
          Random random(static_cast<std::uint64_t>(dim));
          Matrix<float> base(300, dim), queries(20, dim);
          for (Matrix<float>* m : {&base, &queries})
            for (std::int64_t i = 0; i < m->rows() * dim; ++i)
              m->data()[i] = static_cast<float>(
                  size * (offset + (random.uniform() - 0.5) * (1 + (i % 7 == 0) * 5)));
          // The query itself, and a row that is nearly equal to it.
          std::copy_n(queries.row(0), dim, base.row(0));
          std::copy_n(queries.row(0), dim, base.row(1));
          base.row(1)[0] = std::nextafter(base.row(1)[0], 0.0f);
          const CodingSpace space = CodingSpace::choose(base.view(), metric, active_isa());
          double coarse = 0, fine = 0;
          for (std::int64_t q = 0; q < queries.rows(); ++q) {
            const Scored scored = score(base.view(), queries.view().rows(q, q + 1), metric, space);
            for (std::int64_t r = 0; r < base.rows(); ++r) {
              const double key =
                  order_key(metric, reference_distance(metric, queries.row(q), base.row(r), dim));
              for (const auto* list : {&scored.coarse, &scored.fine}) {
                const ScoreInterval& x = (*list)[static_cast<std::size_t>(r)];
                ASSERT_LE(scored.scale.key_at_least(x.upper), key)
                    << name_of(metric) << ' ' << dim << ' ' << size << " row " << r;
                ASSERT_GE(scored.scale.key_at_least(x.lower), key)
                    << name_of(metric) << ' ' << dim << ' ' << size << " row " << r;
                (list == &scored.coarse ? coarse : fine) += x.upper - x.lower;
              }
            }
          }
          if (dim >= 64 && size > 1e-29) {  // the scale of a row is 2^-100 at least
            EXPECT_LT(fine, 0.7 * coarse) << name_of(metric) << ' ' << dim << ' ' << size;
          }
        }
}

// Codes whose errors are as large as possible, all to one side.
TEST(PerRowCodes, IntervalsHoldRoundingThatMisleads) {
  const std::int64_t dim = 96, rows = 64;
  for (const double side : {0.49, -0.49})
    for (const bool of_rows : {true, false}) {
      Random random(1);
      // One side is whole code units, the other off by half a unit towards or away from it.
      Matrix<float> exact(1, dim), off(rows, dim);
      for (std::int64_t j = 0; j < dim; ++j) exact.row(0)[j] = random.below(2) ? 127.0f : -127.0f;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t j = 0; j < dim; ++j)
          off.row(r)[j] = static_cast<float>(int(random.below(200)) - 100 +
                                             side * (exact.row(0)[j] > 0 ? 1 : -1));
        off.row(r)[0] = 127;  // a code unit is 1
      }
      for (const Metric metric : {Metric::l2, Metric::ip}) {
        CodingSpace space;
        space.metric = metric, space.kernels = &scan_kernels(active_isa());
        space.slack = (static_cast<double>(dim) + 32) * 0x1p-50;
        for (std::int64_t i = 0; i < rows; ++i) {
          const auto one = off.view().rows(i, i + 1);
          const Scored scored = of_rows ? score(one, exact.view(), metric, space)
                                        : score(exact.view(), one, metric, space);
          double uv = 0, vv = 0;
          const float* v = of_rows ? one.row(0) : exact.row(0);
          for (std::int64_t j = 0; j < dim; ++j)
            uv += double(exact.row(0)[j]) * one.row(0)[j], vv += double(v[j]) * v[j];
          const double g = metric == Metric::l2 ? uv - vv / 2 : uv;
          for (const auto* list : {&scored.coarse, &scored.fine}) {
            const ScoreInterval& x = list->front();
            ASSERT_LE(x.lower, g);
            ASSERT_GE(x.upper, g);
            // The interval is hardly wider than that, except where the second plane corrects it.
            const double width = (x.upper - x.lower) / 2, middle = (x.upper + x.lower) / 2;
            if (of_rows || list == &scored.coarse) {
              ASSERT_GE(std::fabs(g - middle), 0.9 * width);
            } else {
              ASSERT_LT(width, 0.02 * (scored.coarse[0].upper - scored.coarse[0].lower) / 2);
            }
          }
        }
      }
    }
}

// Whole numbers: keys are those of the reference, whether the query is coded from its vector or
// from the codes of its row, and so is what goes with them.
TEST(PerRowCodes, WholeNumbersAreExactFromVectorsAndFromCodes) {
  for (const auto& [low, high] : {std::pair{0, 255}, {-128, 127}, {-3, 127}, {5, 90}})
    for (const Metric metric : {Metric::l2, Metric::ip})
      for (const std::int64_t dim : {1, 30, 64, 131}) {
        Random random(7);
        const std::int64_t rows = 40;
        Matrix<float> base(rows, dim);
        for (std::int64_t i = 0; i < rows * dim; ++i)
          base.data()[i] =
              static_cast<float>(low + int(random.below(std::uint64_t(high - low + 1))));
        base.row(3)[0] = static_cast<float>(low), base.row(5)[0] = static_cast<float>(high);
        const ValueRange found = find_value_range(base.view(), metric, "base", 1);
        std::vector<std::uint32_t> order(static_cast<std::size_t>(rows));
        std::iota(order.rbegin(), order.rend(), 0u);
        CodingSpace space;
        space.metric = metric, space.kernels = &scan_kernels(active_isa());
        const PerRowCodes codes = per_row_codes(base.view(), order, space, true, found, 1, {});
        AlignedArray<std::int8_t> planes(plane_bytes(dim));
        std::vector<std::uint32_t> slots(order.size());
        std::iota(slots.begin(), slots.end(), 0u);
        std::vector<std::int32_t> products(slots.size());
        for (const std::uint32_t slot : slots) {
          const float* query = base.row(order[slot]);
          for (const bool by_slot : {false, true}) {
            std::fill(planes.begin(), planes.end(), std::int8_t{99});
            const CodedQuery coded = by_slot ? code_query(codes, slot, found, planes.data())
                                             : code_query(codes, base.view(), order[slot], found,
                                                          nullptr, planes.data());
            space.kernels->row_products(codes.codes.data(), codes.stride, slots.data(), rows,
                                        planes.data(), dim, products.data());
            for (const std::uint32_t other : slots)
              ASSERT_EQ(
                  integer_key(codes, other, products[other], coded),
                  order_key(metric, reference_distance(metric, query, base.row(order[other]), dim)))
                  << low << ' ' << high << ' ' << name_of(metric) << ' ' << dim << ' ' << by_slot;
          }
        }
      }
}

}  // namespace
}  // namespace knear::detail
