// knear/cuda/buffer.hpp -- memory of the current device that is freed by itself.
#pragma once
#include <cstddef>
#include <utility>

#include "knear/cuda/check.hpp"
#include "knear/cuda/stream.hpp"

namespace knear::cuda {

// size() elements of a plain type, not initialised. Movable only.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  // Throws MemoryBudgetError if the device has no such memory.
  explicit Buffer(std::size_t size) : size_(size) {
    if (size != 0) KNEAR_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)));
  }
  ~Buffer() {
    if (data_) cudaFree(data_);
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Copies between the first `count` elements and host memory; the host memory must stay until the
  // stream is synchronised. Requires count <= size().
  void upload(const T* from, std::size_t count, const Stream& stream) {
    if (count == 0) return;
    KNEAR_CHECK(
        cudaMemcpyAsync(data_, from, count * sizeof(T), cudaMemcpyHostToDevice, stream.get()));
  }
  void download(T* to, std::size_t count, const Stream& stream) const {
    if (count == 0) return;
    KNEAR_CHECK(
        cudaMemcpyAsync(to, data_, count * sizeof(T), cudaMemcpyDeviceToHost, stream.get()));
  }
  // Sets every byte: 0xff is a NaN as float and -1 as integer, a poison that no answer holds.
  void fill_bytes(unsigned char byte, const Stream& stream) {
    if (size_ == 0) return;
    KNEAR_CHECK(cudaMemsetAsync(data_, byte, size_ * sizeof(T), stream.get()));
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace knear::cuda
