// knear/cuda/queue.hpp -- work in order on one device, and memory of it within a budget.
//
//   Queue queue(0, 4 << 30);                                  // device 0, at most 4 GiB
//   Queue::Array<float> values = queue.allocate<float>(rows * cols);
//   queue.upload(values.data(), host, rows * cols);
//   launch(queue, Grid{blocks, shared_bytes}, Kernel<CudaThread>{...});    // knear/cuda/launch.cuh
//   queue.download(host, values.data(), rows * cols);
//   queue.wait();
//
// All of it is done in the order in which it was asked for, beside the work of other queues; calls
// return at once, but for copies from and to memory that is not pinned, and wait(). What goes wrong
// on the device is thrown by a later call. One thread at a time may use a queue.
//
// Memory comes from a pool that all queues of a device share, never from the application's own.
// - It is taken and given back in the order of each queue. What one queue gave back goes to another
//   only once the work before it is done, or in an order that CUDA makes sure of: by events, or
//   where the device is full by letting the taker wait.
// - What is given back is kept for the next who asks, but no more of it than a 32nd of the device's
//   memory, and never so much that the pool holds more than its users together ever had at once,
//   each within its budget. A user is a queue with those beside it and their arrays. What is beyond
//   that goes back to the system at the next synchronisation, and until then the pool may hold
//   more: work on several streams cannot use what is not yet free.
// - Where the device has no memory for an array, all that is kept goes back to the system and the
//   array is asked for again, at last when the work of all queues there is done. Where the system
//   has none for copies, the pinned memory that is kept goes back.
// - When the last queue and array of a device are gone, all of it is given back, but for what
//   for_call() keeps. At the end of the process nothing is: CUDA does that.
// - Each device has a pool of its own, and so has each copy of the library in a process.
// - cudaDeviceReset() may be called when no queue and no array is left and for_call() never was.
// - A process made by fork() after a device was used here cannot use one: to make a queue throws
//   DeviceUnavailable there, and what it inherited does nothing when it goes.
#pragma once
#include <cstddef>
#include <memory>
#include <utility>

#include "knear/cuda/check.hpp"

namespace knear {
struct CudaThread;
struct CudaWarpgroupThread;
}  // namespace knear

namespace knear::cuda {

namespace detail {
struct QueueState;
void* allocate(QueueState& state, std::size_t bytes);
void free(QueueState& state, void* data, std::size_t bytes) noexcept;
void* allocate_host(int device, std::size_t bytes);
void free_host(void* data, std::size_t bytes) noexcept;
}  // namespace detail

// Makes a device current for the calling thread until the end of the scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    KNEAR_CHECK(cudaGetDevice(&before_));
    if (before_ == device) return;
    KNEAR_CHECK(cudaSetDevice(device));
    changed_ = true;
  }
  ~CurrentDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

class Queue {
 public:
  using Thread = CudaThread;
  using WarpgroupThread = CudaWarpgroupThread;

  // On a stream of its own, or on `stream`, which the caller keeps until the queue and its arrays
  // are gone. `budget` bytes of the device at most; 0: as many as are free. Throws
  // DeviceUnavailable, naming both numbers, unless 0 <= device < device_count().
  explicit Queue(int device = 0, std::size_t budget = 0);
  Queue(int device, std::size_t budget, cudaStream_t stream);
  // For the work of one call on a caller's stream, without a budget: nothing of CUDA is made or
  // destroyed for it, so it costs little and `stream` may be one that is being captured. All such
  // queues of a device are one user of its memory, which stays until the process ends. The first
  // of a device makes the pool, so that one should be made before a capture.
  static Queue for_call(int device, cudaStream_t stream);
  // Another one of the device, for another thread; both keep to the one budget.
  Queue beside() const;

  // Memory of the device's pool: taken and given back in the order of the queue, so that neither
  // waits for the work under way. Movable; it may outlive the queue.
  template <class T>
  class Array {
   public:
    Array() = default;
    ~Array() {
      if (data_) detail::free(*state_, data_, size_ * sizeof(T));
    }
    Array(Array&& other) noexcept
        : state_(std::move(other.state_)),
          data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)) {}
    Array& operator=(Array&& other) noexcept {
      std::swap(state_, other.state_), std::swap(data_, other.data_), std::swap(size_, other.size_);
      return *this;
    }

    T* data() { return data_; }
    const T* data() const { return data_; }
    std::size_t size() const { return size_; }

   private:
    friend class Queue;
    std::shared_ptr<detail::QueueState> state_;
    T* data_ = nullptr;
    std::size_t size_ = 0;
  };

  // Memory of the processor that the device copies by itself, from and to, while both go on. Not
  // initialised, movable. Some of what is given back is kept for the next who asks: to get it from
  // the system takes longer than to fill it.
  template <class T>
  class HostArray {
   public:
    HostArray() = default;
    ~HostArray() {
      if (data_) detail::free_host(data_, size_ * sizeof(T));
    }
    HostArray(HostArray&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    HostArray& operator=(HostArray&& other) noexcept {
      std::swap(data_, other.data_), std::swap(size_, other.size_);
      return *this;
    }
    T* data() { return data_; }
    const T* data() const { return data_; }
    std::size_t size() const { return size_; }

   private:
    friend class Queue;
    T* data_ = nullptr;
    std::size_t size_ = 0;
  };
  // Throws MemoryBudgetError where the system has none left.
  template <class T>
  HostArray<T> allocate_host(std::size_t size) {
    HostArray<T> out;
    if (size == 0) return out;
    out.data_ = static_cast<T*>(detail::allocate_host(device(), size * sizeof(T)));
    out.size_ = size;
    return out;
  }

  // A point in the work given so far.
  class Mark {
   public:
    Mark() = default;
    ~Mark() {
      if (event_) (void)cudaEventDestroy(event_);
    }
    Mark(Mark&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Mark& operator=(Mark&& other) noexcept {
      std::swap(event_, other.event_);
      return *this;
    }
    // Until all that came before it is done; at once where there is none.
    void wait() const {
      if (event_) KNEAR_CHECK(cudaEventSynchronize(event_));
    }
    // Whether it is; throws what went wrong on the way.
    bool done() const {
      if (!event_) return true;
      const cudaError_t status = cudaEventQuery(event_);
      if (status != cudaErrorNotReady) {
        KNEAR_CHECK(status);
        return true;
      }
      (void)cudaGetLastError();  // which keeps it, and a launch would throw it
      return false;
    }

   private:
    friend class Queue;
    cudaEvent_t event_ = nullptr;
  };
  Mark mark() {
    Mark out;
    const CurrentDevice current(device());
    KNEAR_CHECK(cudaEventCreateWithFlags(&out.event_, cudaEventDisableTiming));
    KNEAR_CHECK(cudaEventRecord(out.event_, stream()));
    return out;
  }

  // Not initialised. Throws MemoryBudgetError, with the bytes wanted and those in use, where they
  // go beyond the budget or the device has none left.
  template <class T>
  Array<T> allocate(std::size_t size) {
    Array<T> out;
    if (size == 0) return out;
    out.data_ = static_cast<T*>(detail::allocate(*state_, size * sizeof(T)));
    out.state_ = state_, out.size_ = size;
    return out;
  }

  // Host memory must stay until the work is done. Counts are of elements.
  template <class T>
  void upload(T* to, const T* from, std::size_t count) {
    copy(to, from, count * sizeof(T), cudaMemcpyHostToDevice);
  }
  template <class T>
  void download(T* to, const T* from, std::size_t count) {
    copy(to, from, count * sizeof(T), cudaMemcpyDeviceToHost);
  }
  template <class T>
  void fill_bytes(T* to, unsigned char byte, std::size_t count) {
    if (count == 0) return;
    const CurrentDevice current(device());
    KNEAR_CHECK(cudaMemsetAsync(to, byte, count * sizeof(T), stream()));
  }
  // Until all work given so far is done; throws what went wrong in it.
  void wait() {
    const CurrentDevice current(device());
    KNEAR_CHECK(cudaStreamSynchronize(stream()));
  }

  int device() const;
  cudaStream_t stream() const;
  int multiprocessors() const;
  // Bytes of shared memory of a multiprocessor, for all blocks that it has at once.
  std::size_t shared_memory() const;
  // Whether kernels that want the products of warpgroups (sm_90a) run in place of others. Not
  // unless asked for, by use_warpgroups() or the environment (KNEAR_GPU_WARPGROUPS=1), until a GPU
  // has shown which are faster; and never where the device or this library has none. Answers are
  // the same. A queue beside this one does as this one did.
  bool warpgroups() const;
  void use_warpgroups(bool yes);
  // Whether a search of few queries is one launch, whose blocks wait for one another, in place of
  // some ten. Not unless asked for, by use_one_launch() or the environment
  // (KNEAR_GPU_ONE_LAUNCH=1), until a GPU has shown which is faster; and never where the device
  // cannot. Answers are the same, and a queue beside this one does as this one did. A stream that
  // has fewer multiprocessors than the device (a green context, a limit of MPS) does not hold the
  // blocks: the search fails.
  bool one_launch() const;
  void use_one_launch(bool yes);
  // Bytes that may still be taken: of the budget, but no more than the device has, with what the
  // pool keeps. Other queues and programs may be quicker.
  std::size_t free_bytes() const;
  // Bytes of arrays of this queue and those beside it now, and the most there ever were.
  std::size_t bytes_in_use() const;
  std::size_t most_bytes_in_use() const;

  // Lets a kernel have so many bytes of dynamic shared memory in each block, on this device. CUDA
  // wants to be asked for more than 48 KiB, and keeps the answer with the kernel: it is never made
  // smaller, since another thread may be about to launch it, and not asked for again.
  void allow_shared_memory(const void* kernel, std::size_t bytes);

 private:
  explicit Queue(std::shared_ptr<detail::QueueState> state) : state_(std::move(state)) {}
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    const CurrentDevice current(device());
    KNEAR_CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream()));
  }
  std::shared_ptr<detail::QueueState> state_;
};

// Gives what the pool of a device keeps back to the system, after the work of all queues there: for
// who finds no memory by other means. False where there is no pool.
bool give_back_memory(int device);

}  // namespace knear::cuda
