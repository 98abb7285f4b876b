#include "knear/knn/rows/list_centres.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "knear/scan/packing/coding.hpp"
#include "knear/scan/packing/packed_lists.hpp"

namespace knear::detail {
namespace {

// The length of a vector in a coding space, and how far its 8-bit code is from it, about.
struct CodedSize {
  double norm, error;
};
CodedSize coded_size(const CodingSpace& space, const double* v, std::int64_t dim) {
  const VectorSize size = space.kernels->measure(v, dim);
  const double norm = std::sqrt(size.squares), unit = scale_for(format_int8, size.largest, norm);
  // Rounding is as likely anywhere between two codes.
  return {norm, size.largest > 0 ? unit * std::sqrt(static_cast<double>(dim) / 12) : 0};
}

// Rows of a list, of which one is taken for a query, in a coding space: how many of the others pass
// the bounds of 8-bit codes beside the k nearest.
double passed(const CodingSpace& space, const BaseRows& rows, std::span<const std::uint32_t> some) {
  const std::int64_t dim = rows.cols(), n = std::ssize(some);
  std::vector<double> query(dim), v(query.size()), keys;
  std::vector<std::byte> scratch(rows.scratch_bytes());
  space.load(rows.row_view(some[0], scratch.data()), 0, query.data());
  const CodedSize of_query = coded_size(space, query.data(), dim);
  CodedSize of_rows{};  // the largest, as in a panel
  for (const std::uint32_t row : some.subspan(1)) {
    space.load(rows.row_view(row, scratch.data()), 0, v.data());
    const CodedSize size = coded_size(space, v.data(), dim);
    of_rows.norm = std::max(of_rows.norm, size.norm);
    of_rows.error = std::max(of_rows.error, size.error);
    double key = 0;  // half of the squared distance, or the negative product
    if (traits_of(space.metric).squared)
      for (std::int64_t j = 0; j < dim; ++j) key += (query[j] - v[j]) * (query[j] - v[j]) / 2;
    else
      key = -dot(query.data(), v.data(), dim) -
            (space.mean.empty() ? 0 : dot(v.data(), space.mean.data(), dim));
    keys.push_back(key);
  }
  const std::int64_t k = std::min<std::int64_t>(10, (n - 1) / 4);
  std::nth_element(keys.begin(), keys.begin() + k, keys.end());
  const double width = of_query.norm * of_rows.error + of_query.error * of_rows.norm;
  const double reach = keys[k] + 2 * width;
  return static_cast<double>(
             std::count_if(keys.begin(), keys.end(), [&](double key) { return key <= reach; })) -
         static_cast<double>(k);
}

}  // namespace

ListCentres centres_that_pay(const BaseRows& rows, std::span<const std::uint32_t> list_of,
                             const CodingSpace& space, ListCentres centres) {
  // As many rows of each list, so that segments of all sizes of the same rows are coded alike, and
  // are scanned as one.
  constexpr std::int64_t samples = 48, least_rows = 24, most_rows = 64;
  // Of these rows half of those that pass must be spared, and so many: then coding the query for
  // each of its lists is worth while.
  constexpr double least_spared = 6;
  const RowLists lists(list_of, centres.values.rows());
  double around_mean = 0, around_own = 0;
  std::int64_t looked_at = 0;
  std::vector<std::uint32_t> some;
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t row = rows.rows() * i / samples;
    const std::int64_t list = list_of[row];
    const auto all = lists.rows_of(list);
    if (std::ssize(all) < least_rows) continue;
    const std::int64_t count = std::min<std::int64_t>(std::ssize(all), most_rows);
    some.assign(1, static_cast<std::uint32_t>(row));
    for (std::int64_t j = 0; j < count; ++j)
      if (const std::uint32_t other = all[std::ssize(all) * j / count]; other != row)
        some.push_back(other);
    around_mean += passed(space, rows, some);
    around_own += passed(space.around(centres.values.row(list), rows.cols()), rows, some);
    ++looked_at;
  }
  const bool pays = looked_at > 0 && 2 * around_own <= around_mean &&
                    around_mean - around_own >= least_spared * static_cast<double>(looked_at);
  return pays ? std::move(centres) : ListCentres{};
}

}  // namespace knear::detail
