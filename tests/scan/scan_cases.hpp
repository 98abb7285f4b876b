// tests/scan/scan_cases.hpp -- vectors, their packed forms, and the reference's order of all pairs:
// for tests that call a scan by itself.
//
//   const ScanCase c(vectors(Codes::int8, 500, 24, 1), vectors(Codes::int8, 13, 24, 2), metric);
//   const PackedBase packed = c.packed(Codes::int8, isa);
//   scan(packed, c.job(10, isa), all_of(13), out, stats, {});
//   EXPECT_TRUE(is_nearest(c, out, all_of(13), 10));
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/distance/reference.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"
#include "knear/scan/scores.hpp"
#include "knear/select/sort/sort_pairs.hpp"

namespace knear::detail {

inline constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine};

// What the codes of a packed base are: certified ones of three formats, or whole numbers.
enum class Codes { int8, int16, fp32, integer };
inline constexpr Codes all_codes[] = {Codes::int8, Codes::int16, Codes::fp32, Codes::integer};
inline std::string name_of(Codes codes) {
  constexpr const char* names[] = {"int8", "int16", "fp32", "integer"};
  return names[static_cast<int>(codes)];
}
// Whole numbers have no scan for cosine, whose keys are none.
inline bool serves(Codes codes, Metric metric) {
  return codes != Codes::integer || metric != Metric::cosine;
}

// Floats around 0, or bytes of which some exceed 127 and many are equal, so that keys tie.
inline AnyMatrix vectors(Codes codes, std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  AnyMatrix out(codes == Codes::integer ? ElementType::u8 : ElementType::f32, rows, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j) {
      if (codes == Codes::integer)
        static_cast<std::uint8_t*>(out.row(i))[j] = static_cast<std::uint8_t>(51 * random.below(6));
      else
        static_cast<float*>(out.row(i))[j] =
            static_cast<float>(random.uniform() + random.uniform() - 0.9);
    }
  return out;
}
// Overwrites a row by another one.
inline void copy_row(AnyMatrix& m, std::int64_t from, std::int64_t to) {
  std::memcpy(m.row(to), m.view().row(from),
              static_cast<std::size_t>(m.view().cols() * size_of(m.type())));
}

inline std::vector<std::int64_t> all_of(std::int64_t count) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

struct ScanCase {
  ScanCase(AnyMatrix base_rows, AnyMatrix query_rows, Metric of)
      : base(std::move(base_rows)),
        queries(std::move(query_rows)),
        metric(of),
        query_range(find_value_range(queries.view(), Metric::l2, "queries", 1)) {
    order.resize(static_cast<std::size_t>(queries.view().rows()));
    visit(queries.view(), [&](auto x) {
      visit(base.view(), [&](auto y) {
        for (std::int64_t q = 0; q < x.rows(); ++q)
          for (std::int64_t i = 0; i < y.rows(); ++i)
            order[static_cast<std::size_t>(q)].emplace_back(
                order_key(metric, reference_distance(metric, x.row(q), y.row(i), y.cols())), i);
      });
    });
    for (auto& list : order) std::sort(list.begin(), list.end());
  }

  // Tiles of 4 KiB of codes make several of a few hundred rows.
  PackedBase packed(Codes codes, Isa isa, std::int64_t tile_bytes = 4096,
                    bool find_copies = true) const {
    if (codes == Codes::integer)
      return PackedBase::integer(base.view(), {}, metric, isa,
                                 find_value_range(base.view(), Metric::l2, "base", 1), 1, {},
                                 tile_bytes);
    constexpr Format formats[] = {format_int8, format_int16, format_fp32};
    return PackedBase::certified(base.view(), {}, formats[static_cast<int>(codes)],
                                 CodingSpace::choose(base.view(), metric, isa), 1, {}, tile_bytes,
                                 find_copies);
  }
  ScanJob job(std::int64_t k, Isa isa = active_isa(), int threads = 1) const {
    ScanJob out{.queries = queries.view(),
                .base = base.view(),
                .metric = metric,
                .k = k,
                .threads = threads,
                .isa = isa,
                .peaks = &planning_peaks(isa, threads)};
    out.query_range = query_range;
    return out;
  }
  // The pairs of a query that may be found, nearest first.
  std::vector<KeyedId> found(std::int64_t query, const AllowedRows& allowed) const {
    std::vector<KeyedId> out = order[static_cast<std::size_t>(query)];
    if (!allowed.all()) std::erase_if(out, [&](const KeyedId& x) { return !allowed(x.second); });
    return out;
  }

  const AnyMatrix base, queries;
  const Metric metric;
  const ValueRange query_range;
  std::vector<std::vector<KeyedId>> order;  // [queries]: all rows as (key, row), nearest first
};

// Whether one row of an answer is the first k of `expected`, padded. Pairs that lie beyond `bound`
// may be missing; those that are there are among the expected ones and in their order.
inline ::testing::AssertionResult is_list(const std::vector<KeyedId>& expected, const double* keys,
                                          const Id* ids, std::int64_t k, double bound = infinity) {
  std::size_t next = 0;
  for (std::int64_t j = 0; j < k; ++j) {
    while (next < expected.size() && expected[next].first > bound &&
           expected[next] != KeyedId(keys[j], ids[j]))
      ++next;
    const KeyedId wanted = next < expected.size() ? expected[next++] : KeyedId(infinity, no_id);
    if (KeyedId(keys[j], ids[j]) != wanted)
      return ::testing::AssertionFailure()
             << "place " << j << ": row " << ids[j] << " key " << keys[j] << ", expected row "
             << wanted.second << " key " << wanted.first;
  }
  return ::testing::AssertionSuccess();
}

// Whether rows `which` of `out` [queries x k] are the reference's answers, to the bit. With upper
// bounds, rows beyond them may be missing.
inline ::testing::AssertionResult is_nearest(const ScanCase& c, const ExactNeighbors& out,
                                             const std::vector<std::int64_t>& which, std::int64_t k,
                                             const AllowedRows& allowed = {},
                                             const double* upper_bounds = nullptr) {
  for (const std::int64_t q : which) {
    const auto is_right = [&](const std::vector<KeyedId>& expected) {
      return is_list(expected, out.keys.row(q), out.ids.row(q), k,
                     upper_bounds ? upper_bounds[q] : infinity);
    };
    const auto correct = allowed.all() ? is_right(c.order[static_cast<std::size_t>(q)])
                                       : is_right(c.found(q, allowed));
    if (!correct) return ::testing::AssertionFailure() << "query " << q << ' ' << correct.message();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace knear::detail
