#include "knear/scan/packing/coded_queries.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "knear/core/threads.hpp"
#include "knear/scan/packing/coding.hpp"

namespace knear::detail {
namespace {

// A query that needs less than this share of the common scale would be told from others too
// coarsely by it.
constexpr double least_share = 0.5;

// The scale of all queries, from at most 256 of them: 1.15 times that which nine in ten need. A
// group of twelve has the scale of its largest query, which on average is about the largest of
// these nine in ten; a little more than that, and only the few that are outliers do not fit.
double common_scale(const Coding& base, AnyMatrixView queries) {
  if (base.is_integer) return 1;
  const std::int64_t count = queries.rows(), some = std::min<std::int64_t>(count, 256);
  std::vector<double> v(base.dim), scales;
  for (std::int64_t i = 0; i < some; ++i) {
    base.space.load(queries, count * i / some, v.data());
    const auto [coordinate, squares] = base.space.kernels->measure(v.data(), base.dim);
    if (coordinate > 0) scales.push_back(scale_for(base.format, coordinate, std::sqrt(squares)));
  }
  if (scales.empty()) return 1;
  const auto nine_in_ten = scales.end() - 1 - std::ssize(scales) / 10;
  std::nth_element(scales.begin(), nine_in_ten, scales.end());
  return base.format == format_fp32 ? *nine_in_ten : round_up_to_24_bits(1.15 * *nine_in_ten);
}

}  // namespace

std::int64_t CodedQueries::bytes() const {
  return static_cast<std::int64_t>(codes.size() + heads.size() * sizeof(QueryCode) + fits.size() +
                                   (own_scales.size() + order.size()) * sizeof(double));
}

bool CodedQueries::have(const std::int64_t* which, std::int64_t count) const {
  return std::all_of(which, which + count, [&](std::int64_t q) { return fits[q] != 0; });
}

bool CodedQueries::differ(std::int64_t shorter, std::int64_t longer) const {
  return own_scales[longer] > 4 * own_scales[shorter];
}

CodedQueries code_all(const Coding& base, AnyMatrixView queries, const ValueRange& found,
                      int threads) {
  const std::int64_t count = queries.rows();
  CodedQueries out;
  out.scale = common_scale(base, queries), out.stride = base.steps * step_bytes;
  out.codes = AlignedArray<std::uint8_t>(count * out.stride);
  out.heads.resize(count), out.fits.resize(out.heads.size());
  out.own_scales.resize(out.heads.size());
  constexpr std::int64_t together = 64;
  parallel_for(threads, (count + together - 1) / together, [&](std::int64_t task) {
    for (std::int64_t q = task * together; q < std::min(count, (task + 1) * together); ++q) {
      const std::size_t at = q;
      double own = 0;
      const double scale =
          code_queries(base, queries, &q, 1, found, out.codes.data() + q * out.stride, step_bytes,
                       &out.heads[at], out.scale, &own);
      if (own == 0) own = out.scale;  // any suits zeros
      out.own_scales[at] = own;
      out.fits[at] = scale == out.scale && own >= least_share * out.scale;
    }
  });
  out.order.resize(out.heads.size());
  std::iota(out.order.begin(), out.order.end(), 0);
  if (!out.have(out.order.data(), count)) {
    std::vector<std::pair<double, std::int64_t>> by_scale;
    by_scale.reserve(out.order.size());
    for (const std::int64_t q : out.order) by_scale.emplace_back(out.own_scales[q], q);
    std::sort(by_scale.begin(), by_scale.end());
    for (std::size_t i = 0; i < by_scale.size(); ++i) out.order[i] = by_scale[i].second;
  }
  return out;
}

}  // namespace knear::detail
