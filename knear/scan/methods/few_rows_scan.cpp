// The nearest of a few rows: float32 scores in registers, and float64 where they leave a choice.
#include "knear/scan/methods/few_rows_scan.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "knear/distance/exact.hpp"
#include "knear/scan/kernels/levels.hpp"

namespace knear::detail {
namespace {

FewRowsSize size_of_rows(std::int64_t rows) {
  if (rows <= 16) return few_rows_16;
  if (rows <= 64) return few_rows_64;
  return rows <= few_rows_block ? few_rows_256 : few_rows_more;
}

std::int64_t padded_rows(std::int64_t rows) {
  switch (size_of_rows(rows)) {
    case few_rows_16:
      return 16;
    case few_rows_64:
      return 64;
    default:
      return (rows + few_rows_block - 1) / few_rows_block * few_rows_block;
  }
}

// The rows that have the same bytes as one before them.
std::vector<std::int64_t> repeated_rows(MatrixView<float> rows) {
  const auto bytes = static_cast<std::size_t>(rows.cols()) * sizeof(float);
  std::vector<std::int64_t> order(rows.rows()), out;
  std::iota(order.begin(), order.end(), 0);
  const auto compare = [&](std::int64_t a, std::int64_t b) {
    return std::memcmp(rows.row(a), rows.row(b), bytes);
  };
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const int way = compare(a, b);
    return way != 0 ? way < 0 : a < b;
  });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (compare(order[i - 1], order[i]) == 0) out.push_back(order[i]);
  return out;
}

// x - m, rounded once.
template <class T>
float difference(T x, float m) {
  if constexpr (std::is_same_v<T, double>)
    return static_cast<float>(x - double{m});
  else
    return to_float(x) - m;
}

}  // namespace

bool FewRowsScan::suits(std::int64_t rows, std::int64_t dim) {
  return rows <= most_few_rows && rows * dim <= 64 * few_rows_block;
}

FewRowsScan::FewRowsScan(MatrixView<float> rows)
    : rows_(rows),
      padded_(padded_rows(rows.rows())),
      middle_(rows.cols()),
      factors_(rows.cols() * padded_),
      squares_(padded_) {
  const std::int64_t dim = rows.cols();
  std::vector<double> squares(rows.rows());
  std::vector<float> column(squares.size());
  for (std::int64_t j = 0; j < dim; ++j) {
    // The median, unlike the mean, stays among the rows if one of them is far away.
    for (std::int64_t r = 0; r < rows.rows(); ++r) column[r] = rows.row(r)[j];
    const auto half = column.begin() + rows.rows() / 2;
    std::nth_element(column.begin(), half, column.end());
    const float middle = middle_[j] = *half;
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      const double w = double{rows.row(r)[j]} - double{middle};
      squares[r] += w * w;
      factors_[j * padded_ + r] = static_cast<float>(-2 * w);
    }
  }
  relative_slack_ = static_cast<float>(2.1 * static_cast<double>(dim + 8) * 0x1p-24);
  double most = 0;
  std::fill_n(squares_.data(), padded_, std::numeric_limits<float>::infinity());
  for (std::size_t r = 0; r < squares.size(); ++r) {
    squares_[r] = static_cast<float>(squares[r] * (1 - double{relative_slack_}));
    most = std::max(most, squares[r]);
  }
  // A row that equals one before it is never the answer, and would leave a choice for ever.
  for (const std::int64_t r : repeated_rows(rows))
    squares_[r] = std::numeric_limits<float>::infinity();
  twice_largest_ = static_cast<float>(2 * most);
}

std::int64_t FewRowsScan::find(AnyMatrixView queries, Isa isa,
                               std::span<std::uint32_t> nearest) const {
  constexpr std::int64_t together = 256;
  const std::int64_t dim = rows_.cols();
  std::vector<float> moved(together * dim);
  std::int64_t measured = 0;
  for (std::int64_t begin = 0; begin < queries.rows(); begin += together) {
    const AnyMatrixView some = queries.rows(begin, std::min(queries.rows(), begin + together));
    visit(some, [&](auto typed) {
      float* out = moved.data();
      for (std::int64_t i = 0; i < typed.rows(); ++i, out += dim)
        for (std::int64_t j = 0; j < dim; ++j) out[j] = difference(typed.row(i)[j], middle_[j]);
    });
    measured += find_some(some, moved.data(), isa, nearest.data() + begin);
  }
  return measured;
}

std::int64_t FewRowsScan::find_some(AnyMatrixView queries, const float* moved, Isa isa,
                                    std::uint32_t* nearest) const {
  constexpr std::int64_t together = 32;
  const std::int64_t words = words_of(padded_);
  const FewRowsKernel kernel = few_rows_kernels(isa).candidates[size_of_rows(rows_.rows())];
  std::uint64_t candidates[(together + 1) * (most_few_rows / 64)];
  std::uint32_t undecided[together + 1];
  std::int64_t measured = 0;
  for (std::int64_t begin = 0; begin < queries.rows(); begin += together) {
    FewRowsArgs args{};
    args.factors = factors_.data(), args.squares = squares_.data();
    args.dim = rows_.cols(), args.padded = padded_;
    // docs/bounds.md 11.
    args.twice_largest = twice_largest_, args.relative_slack = relative_slack_;
    args.absolute_slack = static_cast<float>(rows_.cols() + 8) * 0x1p-120F;
    args.queries = moved + begin * rows_.cols();
    args.count = std::min(together, queries.rows() - begin);
    args.nearest = nearest + begin;
    args.undecided = undecided, args.candidates = candidates;
    const std::int64_t several = kernel(&args);
    for (std::int64_t i = 0; i < several; ++i)
      measured += measure(queries, begin + undecided[i], candidates + i * words, isa, nearest);
  }
  return measured;
}

// Puts the nearest of the candidates in place.
std::int64_t FewRowsScan::measure(AnyMatrixView queries, std::int64_t query,
                                  const std::uint64_t* candidates, Isa isa,
                                  std::uint32_t* nearest) const {
  ExactDistance distance(Metric::l2, ElementType::f32, isa);
  distance.set_query(queries, query);
  double least = std::numeric_limits<double>::infinity();
  std::int64_t measured = 0;
  for (std::int64_t r = 0; r < rows_.rows(); ++r) {
    if (!(candidates[r / 64] >> (r % 64) & 1)) continue;
    ++measured;
    const double key = distance.key(rows_.row(r));
    if (measured == 1 || key < least) least = key, nearest[query] = static_cast<std::uint32_t>(r);
  }
  return measured;
}

}  // namespace knear::detail
