// knear/core/matrix.hpp -- vectors as rows of a matrix: views that borrow, matrices that own.
//
//   Matrix<float> base(1000, 96);                   // zeroed, rows contiguous
//   MatrixView<float> part = base.view().rows(10, 20);
//   AnyMatrixView any = part;                       // its element type is known at run time
//
// Row-major; a view's rows may lie further apart than their length (stride, in elements), which is
// how a mapped .fvecs file is a matrix without being copied. Views are two words of pointer and
// shape: pass them by value. They do not own; the memory must outlive them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "knear/core/element_type.hpp"
#include "knear/core/error.hpp"

namespace knear {

template <class T>
class MatrixView {
 public:
  MatrixView() = default;
  MatrixView(const T* data, std::int64_t rows, std::int64_t cols)
      : MatrixView(data, rows, cols, cols) {}
  // Requires stride >= cols.
  MatrixView(const T* data, std::int64_t rows, std::int64_t cols, std::int64_t stride)
      : data_(data), rows_(rows), cols_(cols), stride_(stride) {}

  const T* data() const { return data_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t stride() const { return stride_; }
  const T* row(std::int64_t i) const { return data_ + i * stride_; }
  MatrixView rows(std::int64_t begin, std::int64_t end) const {
    return {data_ + begin * stride_, end - begin, cols_, stride_};
  }

 private:
  const T* data_ = nullptr;
  std::int64_t rows_ = 0, cols_ = 0, stride_ = 0;
};

// Whether both have the same shape and each element the same bits: 0 and -0 differ, a NaN equals
// itself.
bool same_bits(MatrixView<float> a, MatrixView<float> b);

class AnyMatrixView {
 public:
  AnyMatrixView() = default;
  AnyMatrixView(ElementType type, const void* data, std::int64_t rows, std::int64_t cols,
                std::int64_t stride)
      : type_(type), data_(data), rows_(rows), cols_(cols), stride_(stride) {}
  template <class T>
  AnyMatrixView(MatrixView<T> view)  // implicit: a typed view is one of the six cases
      : AnyMatrixView(element_type_of<T>(), view.data(), view.rows(), view.cols(), view.stride()) {}

  ElementType type() const { return type_; }
  const void* data() const { return data_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t stride() const { return stride_; }  // elements
  const void* row(std::int64_t i) const {
    return static_cast<const std::byte*>(data_) + i * stride_ * size_of(type_);
  }
  AnyMatrixView rows(std::int64_t begin, std::int64_t end) const {
    return {type_, row(begin), end - begin, cols_, stride_};
  }
  // Bytes of the elements, gaps between rows not counted.
  std::int64_t bytes() const { return rows_ * cols_ * size_of(type_); }
  // The typed view; requires element_type_of<T>() == type().
  template <class T>
  MatrixView<T> as() const {
    return {static_cast<const T*>(data_), rows_, cols_, stride_};
  }

 private:
  ElementType type_ = ElementType::f32;
  const void* data_ = nullptr;
  std::int64_t rows_ = 0, cols_ = 0, stride_ = 0;
};

// Calls f with the typed view: visit(view, [](auto typed) { ... }).
template <class F>
decltype(auto) visit(AnyMatrixView view, F&& f) {
  switch (view.type()) {
    case ElementType::f16:
      return f(view.as<f16>());
    case ElementType::bf16:
      return f(view.as<bf16>());
    case ElementType::u8:
      return f(view.as<std::uint8_t>());
    case ElementType::i8:
      return f(view.as<std::int8_t>());
    case ElementType::f64:
      return f(view.as<double>());
    case ElementType::f32:
      break;
  }
  return f(view.as<float>());
}

// An array aligned to cache lines, zeroed. Movable, not copyable by accident. Or a read-only view
// of memory that somebody else keeps, a mapped file say.
template <class T>
class AlignedArray {
 public:
  AlignedArray() = default;
  // Throws MemoryBudgetError where the system has no such memory.
  explicit AlignedArray(std::size_t size) : AlignedArray(size, true) {}
  // The elements are not initialised, for callers that write all of them.
  static AlignedArray unset(std::size_t size) { return AlignedArray(size, false); }
  static AlignedArray borrowed(const T* data, std::size_t size,
                               std::shared_ptr<const void> keeper) {
    AlignedArray out;
    out.size_ = size;
    out.data_ = {const_cast<T*>(data), Free{std::move(keeper)}};
    return out;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  AlignedArray(std::size_t size, bool zeroed) : size_(size) {
    if (size == 0) return;
    const std::size_t bytes = (size * sizeof(T) + 63) / 64 * 64;
    void* memory = size > (std::size_t{1} << 62) / sizeof(T) ? nullptr : allocate(bytes, zeroed);
    if (!memory) throw MemoryBudgetError("no memory for {} elements of {} bytes", size, sizeof(T));
    data_.reset(static_cast<T*>(memory));
  }
  static void* allocate(std::size_t bytes, bool zeroed);
  struct Free {
    std::shared_ptr<const void> keeper = {};
    void operator()(T* p) const;
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

// Allocates memory, zeroed or not, aligned to 64 bytes (2 MiB, asking for large pages, from 4 MiB
// on); nullptr where there is none. Free with aligned_free.
void* aligned_memory(std::size_t bytes, bool zeroed);
void aligned_free(void* memory);

template <class T>
void* AlignedArray<T>::allocate(std::size_t bytes, bool zeroed) {
  return aligned_memory(bytes, zeroed);
}
template <class T>
void AlignedArray<T>::Free::operator()(T* p) const {
  if (!keeper) aligned_free(p);
}

// rows * cols * size; throws where the product overflows.
inline std::size_t checked_size(std::int64_t rows, std::int64_t cols, std::int64_t size = 1) {
  std::int64_t elements = 0;
  if (rows < 0 || cols < 0 || __builtin_mul_overflow(rows, cols, &elements) ||
      __builtin_mul_overflow(elements, size, &elements))
    throw MemoryBudgetError("no memory for a matrix of {} rows and {} columns", rows, cols);
  return elements;
}

template <class T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::int64_t rows, std::int64_t cols)
      : data_(checked_size(rows, cols)), rows_(rows), cols_(cols) {}

  // The elements are not initialised, for callers that write all of them.
  static Matrix unset(std::int64_t rows, std::int64_t cols) {
    Matrix out;
    out.data_ = AlignedArray<T>::unset(checked_size(rows, cols));
    out.rows_ = rows, out.cols_ = cols;
    return out;
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  T* row(std::int64_t i) { return data_.data() + i * cols_; }
  const T* row(std::int64_t i) const { return data_.data() + i * cols_; }
  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }
  MatrixView<T> view() const { return {data_.data(), rows_, cols_}; }
  operator MatrixView<T>() const { return view(); }

 private:
  AlignedArray<T> data_;
  std::int64_t rows_ = 0, cols_ = 0;
};

// A matrix that owns its rows, element type known at run time.
class AnyMatrix {
 public:
  AnyMatrix() = default;
  AnyMatrix(ElementType type, std::int64_t rows, std::int64_t cols)
      : type_(type), data_(checked_size(rows, cols, size_of(type))), rows_(rows), cols_(cols) {}

  ElementType type() const { return type_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  void* row(std::int64_t i) { return data_.data() + i * cols_ * size_of(type_); }
  AnyMatrixView view() const { return {type_, data_.data(), rows_, cols_, cols_}; }
  operator AnyMatrixView() const { return view(); }

 private:
  ElementType type_ = ElementType::f32;
  AlignedArray<std::byte> data_;
  std::int64_t rows_ = 0, cols_ = 0;
};

}  // namespace knear
