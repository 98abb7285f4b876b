// knear/scan/kernels/key_scale.hpp -- from the scan's g to keys and back, on the processor and in
// kernels.
#pragma once
#include <cmath>

#include "knear/core/host_device.hpp"
#include "knear/core/metric.hpp"

namespace knear::detail {

// How g and the reference's order key belong together for one query.
struct KeyScale {
  Metric metric;
  double squares, constant;

  // No row whose g is at most `upper` has a smaller key. Rounding here is inside the slack that
  // `upper` carries (docs/bounds.md, 5).
  KNEAR_HD double key_at_least(double upper) const {
    switch (metric) {
      case Metric::l2:
        return squares - 2 * upper;
      case Metric::ip:
        return -(upper + constant);
      case Metric::l1:  // no scan by products has these
      case Metric::hamming:
      case Metric::cosine:
        break;
    }
    return 1 - (upper + constant);
  }
  // No row whose g is at least `lower` has a larger key.
  KNEAR_HD double key_at_most(double lower) const {
    const double key = key_at_least(lower);
    return key + 0x1p-49 * (squares + std::fabs(key) + std::fabs(constant) + 1);
  }
  // What g becomes more by where squares and constant are left out of it, so that its key is that
  // of a scale without them; and a bound on what they add to the rounding of keys.
  KNEAR_HD double moved() const { return traits_of(metric).squared ? -0.5 * squares : constant; }
  KNEAR_HD double moved_margin() const {
    return 0x1p-49 * (squares + std::fabs(constant) + 1e-300);
  }
  // A row whose g is certainly below this has a larger key than `key`.
  KNEAR_HD double threshold_for(double key) const {
    const double margin = 0x1p-50 * (squares + std::fabs(key) + std::fabs(constant) + 1e-300);
    switch (metric) {
      case Metric::l2:
        return (squares - key) / 2 - margin;
      case Metric::ip:
        return -key - constant - margin;
      case Metric::l1:  // no scan by products has these
      case Metric::hamming:
      case Metric::cosine:
        break;
    }
    return 1 - key - constant - margin - 0x1p-50;
  }
  // The same threshold as a difference, of a number of the query and one of the key: top() -
  // reach_of(key), of which each is rounded to the side that keeps rows, is no higher than
  // threshold_for(key) may be.
  KNEAR_HD double top() const {
    const double margin = 0x1p-49 * (squares + std::fabs(constant) + 1e-300);
    switch (metric) {
      case Metric::l2:
        return squares / 2 - margin;
      case Metric::ip:
        return -constant - margin;
      case Metric::l1:  // no scan by products has these
      case Metric::hamming:
      case Metric::cosine:
        break;
    }
    return 1 - constant - margin - 0x1p-49;
  }
  // What a key takes off top(); infinite keys are taken too.
  static KNEAR_HD double reach_of(Metric metric, double key) {
    return (traits_of(metric).squared ? key / 2 : key) + 0x1p-49 * std::fabs(key);
  }
};

}  // namespace knear::detail
