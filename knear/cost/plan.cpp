#include "knear/cost/plan.hpp"

#include <algorithm>
#include <cmath>

#include "knear/core/error.hpp"

namespace knear {
namespace {

double peak_of(ScanOp op, const MachinePeaks& peaks) {
  switch (op) {
    case ScanOp::fp32:
      return peaks.fp32_flops;
    case ScanOp::bf16:
      return peaks.bf16_flops;
    case ScanOp::int16:
      return peaks.int16_ops;
    case ScanOp::int8:
      return peaks.int8_ops;
  }
  return peaks.fp32_flops;
}

void check(const ScanShape& shape, const MachinePeaks& peaks) {
  if (shape.rows < 0) throw InvalidArgument("rows must not be negative, but is {}", shape.rows);
  if (shape.queries < 0)
    throw InvalidArgument("queries must not be negative, but is {}", shape.queries);
  if (shape.dim < 1) throw InvalidArgument("dim must be at least 1, but is {}", shape.dim);
  if (shape.k < 1) throw InvalidArgument("k must be at least 1, but is {}", shape.k);
  if (shape.threads < 0)
    throw InvalidArgument("threads must not be negative, but is {}", shape.threads);
  if (shape.queries_per_pass < 1)
    throw InvalidArgument("queries_per_pass must be at least 1, but is {}", shape.queries_per_pass);
  if (!(shape.bytes_per_element >= 0))
    throw InvalidArgument("bytes_per_element must not be negative, but is {}",
                          shape.bytes_per_element);
  for (double peak : {peak_of(shape.op, peaks), peaks.fp32_flops, peaks.cop_per_second,
                      peaks.memory_bytes_per_second})
    if (!(peak > 0))
      throw InvalidArgument("peaks hold no positive rate for {} at level {}, but {}",
                            name_of(shape.op), name_of(peaks.isa), peak);
  if (peaks.threads < 1)
    throw InvalidArgument("peaks must be of at least 1 thread, but are of {}", peaks.threads);
}

}  // namespace

std::string_view name_of(ScanOp op) {
  switch (op) {
    case ScanOp::fp32:
      return "fp32";
    case ScanOp::bf16:
      return "bf16";
    case ScanOp::int16:
      return "int16";
    case ScanOp::int8:
      return "int8";
  }
  return "?";
}

ScanCost predict_scan(const ScanShape& shape, const MachinePeaks& peaks) {
  check(shape, peaks);
  const double rows = double(shape.rows), dim = double(shape.dim), queries = double(shape.queries);
  const double share = shape.threads == 0 ? 1.0 : double(shape.threads) / peaks.threads;
  const double kept = std::min(double(shape.k), rows);
  const double hits = kept > 0 ? kept * (1 + std::log(rows / kept)) : 0;
  const double passes = std::ceil(queries / double(shape.queries_per_pass));

  ScanCost cost;
  cost.multiply_adds = rows * queries * dim;
  cost.multiply_add_seconds =
      2 * cost.multiply_adds / (peak_of(shape.op, peaks) * share * scan_efficiency);
  cost.bytes = rows * dim * shape.bytes_per_element * passes + 4 * dim * kept * queries;
  cost.memory_seconds = cost.bytes / (peaks.memory_bytes_per_second * share);
  cost.cops = 2 * rows * queries + hit_operations * hits * queries;
  cost.selection_seconds = cost.cops / (peaks.cop_per_second * share) +
                           2 * dim * kept * queries / (peaks.fp32_flops / 4 * share);

  cost.seconds = std::max(cost.multiply_add_seconds + cost.selection_seconds, cost.memory_seconds);
  const double largest =
      std::max({cost.multiply_add_seconds, cost.memory_seconds, cost.selection_seconds});
  cost.limit = largest == cost.multiply_add_seconds
                   ? std::string(name_of(shape.op)) + " multiply-adds"
               : largest == cost.memory_seconds ? "memory"
                                                : "selection";
  return cost;
}

}  // namespace knear
