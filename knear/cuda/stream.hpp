// knear/cuda/stream.hpp -- an order of work on the current device, and the clock of the device.
#pragma once
#include <utility>

#include "knear/cuda/check.hpp"

namespace knear::cuda {

// Work given to one stream runs in order, beside that of other streams.
class Stream {
 public:
  Stream() { KNEAR_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() {
    if (stream_) cudaStreamDestroy(stream_);
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }

  cudaStream_t get() const { return stream_; }
  // Waits for all work given so far, and throws what went wrong in it.
  void synchronize() const { KNEAR_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A mark in a stream; the time between two is what the device took for the work between them.
class Event {
 public:
  Event() { KNEAR_CHECK(cudaEventCreate(&event_)); }
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  void record(const Stream& stream) { KNEAR_CHECK(cudaEventRecord(event_, stream.get())); }
  // What is given to `stream` later begins after this mark. Requires that it was recorded.
  void hold_back(const Stream& stream) const {
    KNEAR_CHECK(cudaStreamWaitEvent(stream.get(), event_, 0));
  }
  // Waits for this event. Requires that both were recorded.
  double seconds_since(const Event& earlier) const {
    float milliseconds = 0;
    KNEAR_CHECK(cudaEventSynchronize(event_));
    KNEAR_CHECK(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace knear::cuda
