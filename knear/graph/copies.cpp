#include "knear/graph/copies.hpp"

#include <algorithm>
#include <numeric>

namespace knear::detail {
namespace {

std::vector<Id> first_copies(AnyMatrixView base) {
  std::vector<Id> order(base.rows());
  std::iota(order.begin(), order.end(), Id{0});
  return visit(base, [&](auto rows) {
    const auto compare = [&](Id a, Id b) {
      for (std::int64_t j = 0; j < rows.cols(); ++j) {
        const auto x = to_double(rows.row(a)[j]), y = to_double(rows.row(b)[j]);
        if (x != y) return x < y ? -1 : 1;
      }
      return 0;
    };
    std::sort(order.begin(), order.end(), [&](Id a, Id b) {
      const int order_of_rows = compare(a, b);
      return order_of_rows != 0 ? order_of_rows < 0 : a < b;
    });
    std::vector<Id> first(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      const bool copy = i > 0 && compare(order[i - 1], order[i]) == 0;
      first[order[i]] = copy ? first[order[i - 1]] : order[i];
    }
    return first;
  });
}

}  // namespace

Copies find_copies(AnyMatrixView base) {
  Copies out;
  out.first = first_copies(base);
  for (Id row = 0; row < base.rows(); ++row)
    if (out.first[row] == row) out.firsts.push_back(row);
  if (std::ssize(out.firsts) < base.rows()) out.filter = RowFilter::of_ids(out.firsts, base.rows());
  return out;
}

}  // namespace knear::detail
