// tests/scan/device/device_problem.hpp -- a base on the emulated device, queries, and the
// reference's keys of all pairs: for tests of scans whose thresholds are known from the beginning.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/distance/reference.hpp"
#include "knear/scan/device/tiles.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear::detail {

inline constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine};

template <class T>
Matrix<T> vectors(std::int64_t rows, std::int64_t dim, std::uint64_t seed, int different = 1000) {
  Random random(seed);
  Matrix<T> out(rows, dim);
  for (std::int64_t i = 0; i < rows * dim; ++i) {
    const double x =
        static_cast<double>(random.below(static_cast<std::uint64_t>(different))) / (different - 1);
    if constexpr (std::is_same_v<T, std::uint8_t>)
      out.data()[i] = static_cast<std::uint8_t>(x * 255);
    else if constexpr (std::is_same_v<T, std::int8_t>)
      out.data()[i] = static_cast<std::int8_t>(x * 255 - 128);
    else if constexpr (std::is_same_v<T, f16>)
      out.data()[i] = to_f16(static_cast<float>(2 * x - 1));
    else if constexpr (std::is_same_v<T, bf16>)
      out.data()[i] = to_bf16(static_cast<float>(2 * x - 1));
    else
      out.data()[i] = static_cast<float>(2 * x - 1);
  }
  return out;
}

// A base on the emulated device, queries, and all keys by the reference.
struct Problem {
  Problem(AnyMatrixView base_rows, AnyMatrixView query_rows, Metric of, std::uint64_t seed,
          std::size_t budget = std::size_t{1} << 40)
      : base(base_rows),
        queries(query_rows),
        metric(of),
        found(find_value_range(queries, Metric::l2, "queries", 1)),
        packed(pack(base, found, metric)),
        queue(seed, budget),
        scan(queue, packed, upload_rows(queue, BaseRows(base), {}, 1), 1) {
    keys = Matrix<double>(queries.rows(), base.rows());
    visit(queries, [&](auto x) {
      visit(base, [&](auto y) {
        for (std::int64_t q = 0; q < x.rows(); ++q)
          for (std::int64_t i = 0; i < y.rows(); ++i)
            keys.row(q)[i] =
                order_key(metric, reference_distance(metric, x.row(q), y.row(i), y.cols()));
      });
    });
  }
  static Coding pack(AnyMatrixView base, const ValueRange& of_queries, Metric metric) {
    const ValueRange of_base = find_value_range(base, Metric::l2, "base", 1);
    const bool whole = metric != Metric::cosine && of_base.integer && of_queries.integer;
    return device_coding(
        whole ? Coding::whole_numbers(metric, active_isa(), of_base)
              : certified_coding(CodingSpace::choose(BaseRows(base), metric, active_isa())),
        base.rows(), base.cols());
  }
  ScanJob job(std::int64_t k, int threads = 2) const {
    ScanJob out{.queries = queries,
                .base = base,
                .metric = metric,
                .k = k,
                .threads = threads,
                .isa = active_isa(),
                .peaks = &planning_peaks(active_isa(), threads)};
    out.query_range = found, out.pending = 4 * k + 64;
    out.upper_bounds = upper_bounds.data();
    return out;
  }
  // Sets the threshold of every query to the key of rank `rank` among all.
  void set_upper_bounds(std::int64_t rank) {
    upper_bounds.clear();
    for (std::int64_t q = 0; q < queries.rows(); ++q) {
      std::vector<double> row(keys.row(q), keys.row(q) + base.rows());
      std::sort(row.begin(), row.end());
      upper_bounds.push_back(rank < base.rows() ? row[static_cast<std::size_t>(rank)]
                                                : std::numeric_limits<double>::infinity());
    }
  }

  const AnyMatrixView base, queries;
  const Metric metric;
  const ValueRange found;
  const Coding packed;
  HostQueue queue;
  DeviceScan<HostQueue> scan;
  Matrix<double> keys;  // [queries x base]
  std::vector<double> upper_bounds;
};

inline std::vector<std::int64_t> all_of(std::int64_t count) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace knear::detail
