// python/bindings/arrays.hpp -- arrays of NumPy as views of the same memory, and results as arrays
// that own theirs.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/index/id_filter.hpp"
#include "knear/knn/knn.hpp"

namespace nb = nanobind;

namespace knear::python {

using Array = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using FloatList = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IdArray = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IdMatrix = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = std::optional<IdArray>;
using Bits =
    std::optional<nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

inline RowFilter filter_of(const Ids& ids, const Bits& bits, std::int64_t rows) {
  if (ids) return RowFilter::of_ids({ids->data(), ids->size()}, rows);
  if (bits) return RowFilter::of_bits({bits->data(), bits->size()}, rows);
  return {};
}

inline std::span<const Id> span_of(const IdArray& ids) { return {ids.data(), ids.size()}; }

inline IdFilter id_filter_of(const Ids& ids, const Bits& bits, std::int64_t bit_count) {
  if (ids) return IdFilter::of_ids({ids->data(), ids->size()});
  if (bits) return IdFilter::of_bits({bits->data(), bits->size()}, bit_count);
  return {};
}

inline AnyMatrixView view_of(const Array& array, const std::string& type) {
  const auto rows = static_cast<std::int64_t>(array.shape(0));
  const auto cols = static_cast<std::int64_t>(array.shape(1));
  const ElementType element = parse_element_type(type);
  if (array.dtype().bits != 8 * size_of(element))
    throw InvalidArgument("an array of {}-bit elements was passed as {}", array.dtype().bits, type);
  // The stride of a single row has no meaning, and NumPy lets it be anything.
  const std::int64_t stride = rows > 1 ? array.stride(0) : cols;
  return {element, array.data(), rows, cols, stride};
}

// A path as the system has it, of os.fsencode(): not all are text.
inline std::string path_of(const nb::bytes& path) { return {path.c_str(), path.size()}; }

// A number that is too large stays too large, for the library to refuse.
inline int narrow(std::int64_t number) {
  using Limits = std::numeric_limits<int>;
  return static_cast<int>(std::clamp<std::int64_t>(number, Limits::min(), Limits::max()));
}

// The same of threads, where the library would name another number than the one that was given.
inline int thread_count(std::int64_t threads) {
  if (narrow(threads) != threads)
    throw InvalidArgument("threads must be between 0 (all) and 4096, but is {}", threads);
  return narrow(threads);
}

// Whole numbers of 64 bits come as C's long long, and NumPy's int64 is C's long: equal to NumPy,
// but not to all who look at the letter of a type.
template <class T>
nb::object as_int64(nb::object array, T) {
  if constexpr (std::is_same_v<T, std::int64_t>) return array.attr("view")("int64");
  return array;
}

template <class T>
nb::object array_of(Matrix<T>&& matrix) {
  auto owned = std::make_unique<Matrix<T>>(std::move(matrix));
  const std::size_t shape[] = {static_cast<std::size_t>(owned->rows()),
                               static_cast<std::size_t>(owned->cols())};
  T* data = owned->data();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<Matrix<T>*>(p); });
  owned.release();
  return as_int64(nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(data, 2, shape, owner)), T());
}

template <class T>
nb::object array_of(std::vector<T>&& values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  const std::size_t shape[] = {owned->size()};
  T* data = owned->data();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  owned.release();
  return as_int64(nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, 1, shape, owner)), T());
}

// Codes [n x code_size].
inline MatrixView<std::uint8_t> codes_of(const Codes& array) {
  return {array.data(), static_cast<std::int64_t>(array.shape(0)),
          static_cast<std::int64_t>(array.shape(1))};
}

// The lengths of this many rows; an empty list given for them does not mean all.
inline std::span<const std::int64_t> lengths_of(const Ids& lengths, std::int64_t rows) {
  if (!lengths) return {};
  if (lengths->size() == 0 && rows > 0)
    throw ShapeMismatch("lengths has 0 values, rows has {} rows", rows);
  return span_of(*lengths);
}

}  // namespace knear::python
