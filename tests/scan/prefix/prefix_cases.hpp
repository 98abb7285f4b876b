// tests/scan/prefix/prefix_cases.hpp -- vectors that a prefix suits, and the prefix of a base.
#pragma once
#include <memory>

#include "knear/knn/rows/prefix_form.hpp"
#include "tests/scan/scan_cases.hpp"

namespace knear::detail {

// Vectors around a few centres, whose first coordinates matter most unless `slope` is 0: floats, or
// bytes for whole numbers.
inline AnyMatrix falling(Codes codes, std::int64_t rows, std::int64_t dim, double slope,
                         std::uint64_t seed) {
  Random random(seed), centres(99);
  Matrix<double> centre(12, dim);
  for (std::int64_t i = 0; i < 12 * dim; ++i) centre.data()[i] = 4 * centres.uniform() - 2;
  AnyMatrix out(codes == Codes::integer ? ElementType::u8 : ElementType::f32, rows, dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    const double* around = centre.row(static_cast<std::int64_t>(random.below(12)));
    for (std::int64_t j = 0; j < dim; ++j) {
      const double x = (around[j] + random.uniform() + random.uniform() - 1) *
                       std::pow(1 + static_cast<double>(j), -slope);
      if (codes == Codes::integer)
        static_cast<std::uint8_t*>(out.row(i))[j] = static_cast<std::uint8_t>(127 + 40 * x);
      else
        static_cast<float*>(out.row(i))[j] = static_cast<float>(x);
    }
  }
  return out;
}

// The instruction set is that of KNEAR_ISA, as everywhere above the kernels.
inline std::shared_ptr<const PrefixBase> prefix_of(const ScanCase& c, Codes codes,
                                                   const PrefixPlan& plan) {
  const BaseRows rows(c.base.view());
  return make_prefix(rows, study_prefix(rows, c.metric, 1),
                     CodingSpace::choose(rows, c.metric, active_isa()), codes == Codes::integer,
                     find_value_range(c.base.view(), Metric::l2, "base", 1), plan, 1, {});
}

// A machine on which a scan of all coordinates takes so long that no prefix is given up, and one on
// which it takes next to no time.
inline MachinePeaks slow_scans() {
  MachinePeaks out = estimated_peaks(active_isa(), 1);
  out.int8_ops *= 1e-6;
  return out;
}
inline MachinePeaks fast_scans() {
  MachinePeaks out = estimated_peaks(active_isa(), 1);
  out.int8_ops *= 1e6, out.memory_bytes_per_second *= 1e6;
  return out;
}

// Forces a level for a scope.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa) { setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1); }
  ~ForcedIsa() { unsetenv("KNEAR_ISA"); }
};

}  // namespace knear::detail
