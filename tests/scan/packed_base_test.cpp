// The bounds that packing states hold: no row is farther from its code than E, none longer than N.
#include "knear/scan/packed_base.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "knear/core/random.hpp"

namespace knear::detail {
namespace {

TEST(PackedBase, StatedErrorsEncloseTheTrueOnesOfInt8Codes) {
  Random random(3);
  Matrix<float> base(700, 37);
  for (std::int64_t i = 0; i < 700 * 37; ++i)
    base.data()[i] = static_cast<float>((random.uniform() - 0.3) * (1 + i % 11));
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const CodingSpace space = CodingSpace::choose(base.view(), metric, active_isa());
    const PackedBase packed = PackedBase::certified(base.view(), format_int8, space, 1, {});
    std::vector<double> v(37);
    for (std::int64_t slot = 0; slot < packed.panels() * panel_rows; ++slot) {
      if (packed.ids[slot] == PackedBase::no_row) continue;
      const PanelHead& head = packed.heads[slot / panel_rows];
      space.load(base.view(), packed.ids[slot], v.data());
      double error = 0, norm = 0;
      for (std::int64_t i = 0; i < 37; ++i) {
        const std::size_t at = (slot / panel_rows * packed.steps + i / 4) * panel_step_bytes +
                               slot % panel_rows * step_bytes + i % 4;
        const double e = v[i] - head.scale * (packed.codes[at] - 128.0);
        error += e * e, norm += v[i] * v[i];
      }
      ASSERT_LE(std::sqrt(error), head.error) << name_of(metric) << " slot " << slot;
      ASSERT_LE(std::sqrt(norm), head.norm) << name_of(metric) << " slot " << slot;
    }
  }
}

}  // namespace
}  // namespace knear::detail
