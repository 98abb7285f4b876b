#include "knear/scan/packing/code_book.hpp"

#include <algorithm>
#include <utility>

#include "knear/scan/kernels/levels.hpp"

namespace knear::detail {

CodeBook::CodeBook(Matrix<float> centroids, std::int64_t parts, int bits)
    : parts_(parts), bits_(bits), centroids_(std::move(centroids)) {
  if (width() > 1) {
    by_column_ = Matrix<float>::unset(dim(), count());
    for (std::int64_t j = 0; j < dim(); ++j)
      for (std::int64_t c = 0; c < count(); ++c)
        by_column_.row(j)[c] = part(j / width()).row(c)[j % width()];
  }
  tiles_ = CodeTiles(*this);
}

void CodeBook::fill_tables(const double* query, bool squared, Isa isa, float* tables,
                           float* ranges) const {
  const CodeKernels& kernels = code_kernels(isa);
  for (std::int64_t m = 0; m < parts_; ++m) {
    CodeTableArgs args{query + m * width(),
                       column(m * width()),
                       count(),
                       width(),
                       squared,
                       tables + m * count(),
                       0,
                       0};
    kernels.fill_table(&args);
    if (ranges) ranges[2 * m] = args.least, ranges[2 * m + 1] = args.largest;
  }
}

template <bool squared>
float CodeBook::sum_of(const std::uint8_t* code, std::int64_t stride, const double* query) const {
  const std::int64_t columns = width();
  float sum = 0;
  const float* part = centroids_.data();
  for (std::int64_t m = 0; m < parts_; ++m, query += columns, part += count() * columns) {
    const float* centroid = part + get(code, stride, m) * columns;
    double one = 0;
    for (std::int64_t j = 0; j < columns; ++j) {
      const double x = centroid[j];
      one += squared ? (query[j] - x) * (query[j] - x) : query[j] * x;
    }
    sum += static_cast<float>(one);
  }
  return sum;
}
template float CodeBook::sum_of<true>(const std::uint8_t*, std::int64_t, const double*) const;
template float CodeBook::sum_of<false>(const std::uint8_t*, std::int64_t, const double*) const;

// `fixed`: the columns of a part, where copying so few is quicker than a call that copies any
// number; 0: any number.
template <int fixed>
void CodeBook::copy_parts(const std::uint8_t* code, std::int64_t stride, float* out) const {
  const std::int64_t columns = fixed > 0 ? fixed : width(), part_size = count() * columns;
  const float* part = centroids_.data();
  for (std::int64_t m = 0; m < parts_; ++m, part += part_size, out += columns) {
    const float* centroid = part + get(code, stride, m) * columns;
    for (std::int64_t j = 0; j < columns; ++j) out[j] = centroid[j];
  }
}

void CodeBook::decode(const std::uint8_t* code, std::int64_t stride, float* out) const {
  switch (width()) {
    case 1:
      return copy_parts<1>(code, stride, out);
    case 2:
      return copy_parts<2>(code, stride, out);
    case 3:
      return copy_parts<3>(code, stride, out);
    case 4:
      return copy_parts<4>(code, stride, out);
    case 8:
      return copy_parts<8>(code, stride, out);
    default:
      return copy_parts<0>(code, stride, out);
  }
}

}  // namespace knear::detail
