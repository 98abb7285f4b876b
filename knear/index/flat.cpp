#include "knear/index/flat.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear {
namespace {

template <class T>
T from_float(float x) {
  if constexpr (std::is_same_v<T, f16>) {
    return to_f16(x);
  } else if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(x);
  } else if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    // Out of range is undefined in the plain conversion; the caller sees that the value changed.
    using Limits = std::numeric_limits<T>;
    return x >= Limits::min() && x <= Limits::max() ? static_cast<T>(x) : T{0};
  }
}

// The bits, because compilers and modes may take a floating-point comparison for granted.
bool is_finite(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return (bits & 0x7f800000u) != 0x7f800000u;
}

// Copies rows into `out` [rows x cols], contiguous, and checks every value on the way.
template <class From, class To>
void copy_exactly(MatrixView<From> in, To* out) {
  for (std::int64_t i = 0; i < in.rows(); ++i) {
    const From* row = in.row(i);
    To* to = out + i * in.cols();
    bool finite = true, exact = true;
    for (std::int64_t j = 0; j < in.cols(); ++j) {
      const float x = to_float(row[j]);
      finite &= is_finite(x);
      if constexpr (std::is_same_v<From, To>) {
        to[j] = row[j];
      } else {
        to[j] = from_float<To>(x);
        exact &= to_float(to[j]) == x;
      }
    }
    if (!finite) throw InvalidArgument("vectors hold a NaN or infinity in row {}", i);
    if (!exact)
      throw InvalidArgument(
          "vectors of type {} hold a value in row {} that the index, of type {} since its first "
          "vectors, cannot hold exactly",
          name_of(element_type_of<From>()), i, name_of(element_type_of<To>()));
  }
}

void copy_exactly(AnyMatrixView in, ElementType type, void* out) {
  visit(in, [&](auto from) {
    switch (type) {
      case ElementType::f32:
        return copy_exactly(from, static_cast<float*>(out));
      case ElementType::f16:
        return copy_exactly(from, static_cast<f16*>(out));
      case ElementType::bf16:
        return copy_exactly(from, static_cast<bf16*>(out));
      case ElementType::u8:
        return copy_exactly(from, static_cast<std::uint8_t*>(out));
      case ElementType::i8:
        return copy_exactly(from, static_cast<std::int8_t*>(out));
    }
  });
}

}  // namespace

FlatIndex::FlatIndex(std::int64_t dim, Metric metric) : dim_(dim), metric_(metric) {
  if (dim < 1 || dim > 65536)
    throw InvalidArgument("dim must be between 1 and 65536, but is {}", dim);
}

std::int64_t FlatIndex::size() const {
  std::shared_lock lock(vectors_mutex_);
  return size_;
}

ElementType FlatIndex::element_type() const {
  std::shared_lock lock(vectors_mutex_);
  return storage_.type();
}

void FlatIndex::add(AnyMatrixView vectors) {
  if (vectors.cols() != dim_)
    throw ShapeMismatch("vectors have {} columns, index has {}", vectors.cols(), dim_);
  if (vectors.rows() == 0) return;
  DefaultFloatMode mode;  // with denormals taken for zero, "exactly" would be a lie
  std::unique_lock lock(vectors_mutex_);
  const std::int64_t size = size_ + vectors.rows();
  if (size <= storage_.rows()) {
    copy_exactly(vectors, storage_.type(), storage_.row(size_));
  } else {
    // A first add takes what it needs; later ones leave room, so that many small adds stay linear.
    const ElementType type = size_ == 0 ? vectors.type() : storage_.type();
    AnyMatrix grown(type, std::max(size, size_ + size_ / 2), dim_);
    copy_exactly(vectors, type, grown.row(size_));
    if (size_ > 0) std::memcpy(grown.row(0), storage_.row(0), size_ * dim_ * size_of(type));
    storage_ = std::move(grown);
  }
  size_ = size;
  searcher_ = nullptr;  // no search is running, so nobody holds searcher_mutex_
}

AnyMatrixView FlatIndex::vectors() const {
  return {storage_.type(), storage_.view().data(), size_, dim_, dim_};
}

std::shared_ptr<const ExactSearcher> FlatIndex::prepared(const KnnOptions& options) const {
  std::lock_guard lock(searcher_mutex_);
  if (!searcher_ || searcher_first_pass_ != options.first_pass) {
    searcher_ = std::make_shared<const ExactSearcher>(vectors(), options);
    searcher_first_pass_ = options.first_pass;
  }
  return searcher_;
}

KnnOptions FlatIndex::knn_options(const SearchOptions& options) const {
  return {.metric = metric_,
          .threads = options.threads,
          .memory = options.memory,
          .first_pass = options.first_pass,
          .filter = options.filter,
          .progress = options.progress};
}

Neighbors FlatIndex::search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                            KnnReport* report) const {
  // Before the packed form is prepared, which may take longer than the search.
  if (k < 1) throw InvalidArgument("k must be at least 1, but is {}", k);
  if (queries.cols() != dim_)
    throw ShapeMismatch("queries have {} columns, index has {}", queries.cols(), dim_);
  resolve_threads(options.threads);
  const KnnOptions plain = knn_options(options);
  std::shared_lock lock(vectors_mutex_);
  return prepared(plain)->search(queries, k, plain, report);
}

RangeNeighbors FlatIndex::range_search(AnyMatrixView queries, double radius,
                                       const SearchOptions& options, KnnReport* report) const {
  if (queries.cols() != dim_)
    throw ShapeMismatch("queries have {} columns, index has {}", queries.cols(), dim_);
  resolve_threads(options.threads);
  const KnnOptions plain = knn_options(options);
  std::shared_lock lock(vectors_mutex_);
  return prepared(plain)->range_search(queries, radius, plain, report);
}

}  // namespace knear
