// tests/simt/emulator.hpp -- kernels without a GPU: a block runs as fibers, in an order of chance.
//
//   HostQueue queue(seed);
//   auto data = queue.allocate<float>(1000);
//   launch(queue, Grid{4, 0}, Doubled<HostThread>{data.data(), 1000});
//
// The text of a kernel (knear/simt/thread.hpp) runs as it is, thread by thread. Which thread goes
// on after a barrier, a shuffle or an atomic operation, and which block comes next, is drawn from
// the seed, and in half of the blocks one warp lags behind, so a missing barrier shows for some
// seed; memory is poisoned before it is written; copies to shared memory happen as late as they
// may; each array has its own allocation, so that the address sanitizer sees an access outside of
// it. It throws std::logic_error where lanes of a warp meet in different operations, where a thread
// leaves while others wait for it, for a misaligned copy, where a thread leaves or waits for other
// blocks while copies of its own are under way, where blocks wait for one another that need not run
// at the same time or that the device does not hold, and where what is to be brought nearer is not
// in the memory of a device.
//
// Of what sm_90a has beside that (knear/simt/warpgroup_thread.hpp): bulk copies are made when
// somebody waits for their barrier and all bytes that it expects are on their way, and the block
// stands still where they are fewer. Sums of products are poison from the first product on until
// they are waited for, and only then the operand is read. It throws where a barrier gets more bytes
// than it expects or was not shown to copies, where an operand has bytes that nobody copied or
// stored and showed, or changed before the product was made, where sums were written too early, or
// registers of a product that is under way hold something else when they are multiplied again,
// where the warps of a warpgroup do not multiply the same operands, where products are not waited
// for in the end, and where registers are taken that nobody gives back.
//
// The thread sanitiser (preset tsan) reports a missing barrier whatever the order was, and whether
// or not the result is wrong. To it each thread of a block is a thread, and only what orders memory
// accesses on a GPU does: sync(), sync_warp(), fences, waiting for one's own copies, and the end of
// a launch. Votes, shuffles and products order nothing, blocks of a launch are not ordered, and
// atomic operations do not race with each other. races_test.cpp shows each of these.
//
// CountSharedAccesses counts what accesses of shared memory take, of those that a kernel makes by
// read_shared(), write_shared() and copy_16().
//
// Several devices have memory apart (HostDevice): a copy or a kernel of one that is given an
// address in the memory of another throws std::logic_error. Looked at are the arguments of copies,
// those of kernels, and what is copied to a device in structs, which may hold addresses; not those
// that a kernel computes.
//
// What it can't show: what the compiler for the device makes of the text, and so whether the lanes
// of a warp are together where an instruction wants them to be. That memory is seen late. Without
// the thread sanitiser, races that no order of the switches makes visible; with it, those of
// accesses that were not made in this run, or that too many others of the same eight bytes came
// between (it remembers four), of blocks that did not run one right after the other, of threads
// between which there were fences without an atomic operation, and of launches of two queues.
// Blocks run one after another, but for those of a grid that run together (Grid::together), which
// take turns by chance: another kernel whose blocks wait for one another does not end.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/simt/warpgroup_thread.hpp"

namespace knear {

class HostBlock;

// What the accesses of shared memory of a launch take, while this exists in the thread that
// launches. Accesses of a warp's lanes are one instruction if they are the n-th of each since the
// warp met. Of 32 banks, each gives or takes one word of 4 bytes in a wavefront, to all lanes that
// ask for it; the fullest bank decides. An H100 counted as much of the scan
// (docs/measurements/gpu.md), and less than if no wavefront served two halves of a warp with
// accesses of 8 bytes, or two quarters with 16.
class CountSharedAccesses {
 public:
  CountSharedAccesses();
  ~CountSharedAccesses();
  CountSharedAccesses(const CountSharedAccesses&) = delete;
  CountSharedAccesses& operator=(const CountSharedAccesses&) = delete;

  enum Kind { read, write, copy, kinds };
  std::int64_t instructions[kinds] = {}, wavefronts[kinds] = {};
  std::int64_t all() const { return wavefronts[read] + wavefronts[write] + wavefronts[copy]; }

  // Of one instruction: an address for each lane that takes part.
  static int wavefronts_of(const std::vector<std::uintptr_t>& lanes, std::size_t bytes);

 private:
  CountSharedAccesses* const before_;
};

class HostThread {
 public:
  HostThread(HostBlock* block, int index) : block_(block), index_(index) {}

  int index() const { return index_; }
  std::int64_t block() const;
  std::int64_t blocks() const;
  unsigned char* shared() const;

  void sync() const;
  // The word: arrivals of a round, those that are missing, and the number of the round.
  void begin_arrivals(unsigned long long* word, int count) const;
  void arrive(unsigned long long* word) const;
  void wait_for_arrivals(unsigned long long* word, bool odd) const;
  void sync_grid() const;
  void sync_warp() const { meet(meet_sync, nullptr, 0); }
  unsigned ballot(bool yes) const { return votes(meet_ballot, yes); }
  bool any(bool yes) const { return votes(meet_any, yes) != 0; }
  bool all(bool yes) const { return votes(meet_all, yes) == 0xffffffffu; }
  template <class T>
  T shuffle(T x, int lane) const {
    if (lane < 0 || lane >= warp_size) throw std::logic_error("shuffle from a lane that is none");
    return exchange(x, lane);
  }
  template <class T>
  T shuffle_xor(T x, int bits) const {
    if (bits < 0 || bits >= warp_size) throw std::logic_error("shuffle_xor by a lane that is none");
    return exchange(x, index_ % warp_size ^ bits);
  }

  template <class T>
  T computed_anew(T x) const {
    return x;
  }
  template <class T>
  T atomic_add(T* to, T x) const {
    pause();
    return std::atomic_ref(*to).fetch_add(x, std::memory_order_relaxed);
  }
  template <class T>
  void atomic_max(T* to, T x) const {
    pause();
    std::atomic_ref at(*to);
    if (x > at.load(std::memory_order_relaxed)) at.store(x, std::memory_order_relaxed);
  }
  template <class T>
  T atomic_read(T* from) const {
    return std::atomic_ref(*from).load(std::memory_order_relaxed);
  }
  void fence() const;
  void prefetch(const void* at) const;

  template <class T>
  T read_shared(const T* from) const {
    note_access(CountSharedAccesses::read, from, sizeof(T));
    return *from;
  }
  template <class T>
  void write_shared(T* to, T x) const {
    note_access(CountSharedAccesses::write, to, sizeof(T));
    *to = x;
  }

  void copy_16(void* to, const void* from, bool valid) const;
  void close_copies() const;
  template <int left>
  void wait_for_copies() const {
    wait_for_copies(left);
  }

  void multiply_u8_s8(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) const;
  void multiply_u8_s8(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                      const int (&start)[4]) const {
    for (int i = 0; i < 4; ++i) c[i] = start[i];
    multiply_u8_s8(c, a, b);
  }
  void multiply_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) const;

  // As WarpgroupThread.
  static constexpr bool here = true;
  struct Operand {
    const unsigned char* first;
    std::size_t columns, halves;
    bool operator==(const Operand&) const = default;
  };
  void show_barriers() const;
  void arrive_expecting(unsigned long long* word, unsigned bytes) const;
  void copy_bulk(void* to, const void* from, unsigned bytes, unsigned long long* word) const;
  void sync_some(int number, int count) const;
  void store_operand(unsigned* to, unsigned value) const;
  void show_operands() const;
  static Operand operand(const void* at, unsigned columns, unsigned halves) {
    return {static_cast<const unsigned char*>(at), columns, halves};
  }
  static Operand further(Operand from, unsigned bytes) {
    from.first += bytes;
    return from;
  }
  void begin_products() const;
  void begin_product(int (&sums)[64], const unsigned (&a)[4], Operand b) const {
    issue_product(sums, a, b, false);
  }
  void add_product(int (&sums)[64], const unsigned (&a)[4], Operand b) const {
    issue_product(sums, a, b, true);
  }
  void close_products() const;
  template <int left>
  void wait_for_products(int (&)[64]) const {
    wait_for_products(left);
  }
  template <int registers>
  void keep_registers() const {
    static_assert(registers >= 24 && registers <= 240 && registers % 8 == 0);
    change_registers(registers, false);
  }
  template <int registers>
  void take_registers() const {
    static_assert(registers >= 24 && registers <= 240 && registers % 8 == 0);
    change_registers(registers, true);
  }
  static int larger_sum(int a, int b, int c) { return std::max(a + b, c); }

 private:
  enum Meeting {
    meet_sync,
    meet_ballot,
    meet_any,
    meet_all,
    meet_shuffle,
    meet_product,
    meet_fence,
    meet_asynchronous,
    meet_wait,
    meet_registers
  };
  struct Slot {
    alignas(8) unsigned char bytes[24];
  };

  unsigned votes(Meeting kind, bool yes) const;
  // Hands in `bytes` bytes, waits for the other lanes, and returns what all have handed in.
  const Slot* meet(Meeting kind, const void* data, std::size_t bytes) const;
  template <class T>
  T exchange(T x, int lane) const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Slot));
    const Slot* slots = meet(meet_shuffle, &x, sizeof(T));
    T out;
    std::memcpy(&out, slots[lane].bytes, sizeof(T));
    return out;
  }
  void pause() const;  // lets others go on, sometimes
  void wait_for_copies(int left) const;
  void issue_product(int (&sums)[64], const unsigned (&a)[4], Operand b, bool add) const;
  void wait_for_products(int left) const;
  void change_registers(int registers, bool more) const;
  void note_access(CountSharedAccesses::Kind kind, const void* at, std::size_t bytes) const;

  HostBlock* block_;
  int index_;
  friend class HostBlock;
};

static_assert(WarpgroupThread<HostThread>);

// Runs body(thread) for all threads of all blocks; together: of all blocks in turn, so that they
// may wait for one another.
void run_blocks(std::int64_t blocks, int threads, std::size_t shared_bytes, std::uint64_t seed,
                const std::function<void(HostThread)>& body, bool together = false);

// One of several emulated devices, with so many bytes of memory, which all of its queues share.
class HostDevice {
 public:
  explicit HostDevice(int number = 0, std::size_t bytes = std::size_t{1} << 40)
      : number_(number), bytes_(bytes) {}
  ~HostDevice();
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  int number() const { return number_; }
  std::size_t bytes_in_use() const;
  std::size_t most_bytes_in_use() const;
  std::size_t free_bytes() const { return bytes_ - bytes_in_use(); }
  std::int64_t launches() const { return launches_; }
  // That were copied to it, and from it.
  std::int64_t bytes_up() const { return bytes_up_; }
  std::int64_t bytes_down() const { return bytes_down_; }

  // Counts an array. Throws MemoryBudgetError where it has no room.
  void take(std::size_t bytes);
  void give_back(std::size_t bytes);
  // That memory is its own, until told otherwise.
  void own(const void* begin, std::size_t bytes);
  void disown(const void* begin);
  // Throws std::logic_error where the address is in the memory of another device: `what` is given
  // it.
  void check_address(const void* address, const char* what) const;
  // The same for all that may be an address among the bytes of an object. What is left of others in
  // its padding may look like one, so that nothing is checked where a compiler can't clear that.
  template <class T>
  void check_addresses_in([[maybe_unused]] T object, [[maybe_unused]] const char* what) const {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&object);
    check_words(&object, sizeof object, what);
#endif
#endif
  }
  void check_words(const void* bytes, std::size_t count, const char* what) const;
  // Whether the address is in memory of any device.
  static bool owns_any(const void* address);
  void count_launch() { ++launches_; }
  void count_upload(std::size_t bytes) { bytes_up_ += static_cast<std::int64_t>(bytes); }
  void count_download(std::size_t bytes) { bytes_down_ += static_cast<std::int64_t>(bytes); }

 private:
  const int number_;
  const std::size_t bytes_;
  mutable std::mutex mutex_;
  std::size_t in_use_ = 0, most_in_use_ = 0;
  std::atomic<std::int64_t> launches_ = 0, bytes_up_ = 0, bytes_down_ = 0;
};

// Memory of the emulated device, and its work, which is done when launch() returns. Copies to the
// device are made as late as may be, so that host memory that goes or is written again too soon
// shows; what is downloaded arrives with wait(), until when there is poison in its place.
class HostQueue {
  struct Download {
    void* to;
    std::vector<unsigned char> bytes;
  };
  // Within the budget, of a queue and those beside it, which other threads may use.
  struct Memory {
    const std::size_t budget;
    const std::shared_ptr<HostDevice> device;
    std::mutex mutex;
    std::size_t in_use = 0, most_in_use = 0;

    Memory(std::size_t bytes, std::shared_ptr<HostDevice> of)
        : budget(bytes), device(std::move(of)) {}
    void take(std::size_t bytes) {
      std::lock_guard lock(mutex);
      if (bytes > budget - in_use)
        throw MemoryBudgetError(
            "memory is {} bytes, of which {} are in use, but {} more are needed", budget, in_use,
            bytes);
      device->take(bytes);
      in_use += bytes;
      most_in_use = std::max(most_in_use, in_use);
    }
    void give_back(std::size_t bytes) {
      std::lock_guard lock(mutex);
      device->give_back(bytes);
      in_use -= bytes;
    }
  };
  // What is under way. An array may go while another thread uses the queue that it came from.
  struct State {
    std::shared_ptr<Memory> memory;
    std::mutex mutex;
    std::vector<std::function<void()>> going;  // copies to the device, still to be made
    std::vector<Download> coming;

    void give(std::function<void()> copy) {
      std::lock_guard lock(mutex);
      going.push_back(std::move(copy));
    }
    void send() {
      std::lock_guard lock(mutex);
      for (const auto& copy : going) copy();
      going.clear();
    }
    void finish() {
      send();
      std::lock_guard lock(mutex);
      for (const Download& one : coming) std::memcpy(one.to, one.bytes.data(), one.bytes.size());
      coming.clear();
    }
  };

 public:
  using Thread = HostThread;
  using WarpgroupThread = HostThread;

  // Throws MemoryBudgetError where arrays would take more than the budget, or than the device has;
  // nullptr: the one device of a test that has no others.
  explicit HostQueue(std::uint64_t seed = 1, std::size_t budget = std::size_t{1} << 40,
                     std::shared_ptr<HostDevice> device = nullptr)
      : seed_(seed) {
    static const auto alone = std::make_shared<HostDevice>();
    state_->memory = std::make_shared<Memory>(budget, device ? std::move(device) : alone);
  }
  HostDevice& device() const { return *state_->memory->device; }

  // As cuda::Array: of plain elements, poisoned.
  template <class T>
  class Array {
   public:
    Array() = default;
    Array(std::size_t size, std::shared_ptr<State> state)
        : elements_(size), state_(std::move(state)) {
      poison();
      if (state_) state_->memory->device->own(elements_.data(), elements_.size() * sizeof(T));
    }
    ~Array() {
      if (!state_) return;
      state_->send();
      state_->memory->device->disown(elements_.data());
      state_->memory->give_back(elements_.size() * sizeof(T));
    }
    Array(Array&& other) noexcept = default;
    Array& operator=(Array&& other) noexcept {
      std::swap(elements_, other.elements_), std::swap(state_, other.state_);
      return *this;
    }
    T* data() { return elements_.data(); }
    const T* data() const { return elements_.data(); }
    std::size_t size() const { return elements_.size(); }
    void poison() {
      if (!elements_.empty())
        std::memset(static_cast<void*>(elements_.data()), 0xa5, elements_.size() * sizeof(T));
    }

   private:
    std::vector<T> elements_;
    std::shared_ptr<State> state_;
  };

  // As cuda::HostArray, outside of the budget.
  template <class T>
  using HostArray = Array<T>;
  template <class T>
  HostArray<T> allocate_host(std::size_t size) {
    return Array<T>(size, nullptr);
  }

  class Mark {
   public:
    Mark() = default;
    explicit Mark(std::shared_ptr<State> state) : state_(std::move(state)) {}
    void wait() const {
      if (state_) state_->finish();
    }
    bool done() const {
      wait();
      return true;
    }

   private:
    std::shared_ptr<State> state_;
  };
  Mark mark() { return Mark(state_); }

  template <class T>
  Array<T> allocate(std::size_t size) {
    state_->memory->take(size * sizeof(T));
    return Array<T>(size, state_);
  }
  template <class T>
  void upload(T* to, const T* from, std::size_t count) {
    if (count == 0) return;
    device().check_address(to, "a copy to the device");
    device().check_address(from, "a copy to the device");
    if constexpr (std::is_class_v<T>)
      for (std::size_t i = 0; i < count; ++i)
        device().check_addresses_in(from[i], "a copy to the device");
    device().count_upload(count * sizeof(T));
    state_->give([=] { std::memcpy(to, from, count * sizeof(T)); });
  }
  template <class T>
  void download(T* to, const T* from, std::size_t count) {
    state_->send();
    if (count == 0) return;
    device().check_address(from, "a copy from the device");
    device().count_download(count * sizeof(T));
    const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
    std::lock_guard lock(state_->mutex);
    state_->coming.push_back({to, {bytes, bytes + count * sizeof(T)}});
    std::memset(static_cast<void*>(to), 0xa5, count * sizeof(T));
  }
  template <class T>
  void fill_bytes(T* to, unsigned char byte, std::size_t count) {
    state_->send();
    if (count == 0) return;
    device().check_address(to, "a fill");
    std::memset(static_cast<void*>(to), byte, count * sizeof(T));
  }
  void wait() { state_->finish(); }
  HostQueue beside() const {
    HostQueue out(seed_ + 1000, 0, state_->memory->device);
    out.state_->memory = state_->memory;
    out.warpgroups_ = warpgroups_, out.one_launch_ = one_launch_;
    return out;
  }
  // For work that is not a kernel: what was given before it is done.
  void* stream() const {
    state_->send();
    return state_.get();
  }
  int multiprocessors() const { return 3; }
  std::size_t shared_memory() const { return 228 << 10; }  // as compute capability 9.0 has it
  // Whether scans go by products of warpgroups: if KNEAR_GPU_WARPGROUPS is 1, as of a GPU that has
  // them. All tests of searches on a device can be run so.
  bool warpgroups() const { return warpgroups_; }
  void use_warpgroups(bool yes) { warpgroups_ = yes; }
  // As cuda::Queue, also by KNEAR_GPU_ONE_LAUNCH.
  bool one_launch() const { return one_launch_; }
  void use_one_launch(bool yes) { one_launch_ = yes; }
  std::size_t free_bytes() const {
    std::lock_guard lock(state_->memory->mutex);
    return std::min(state_->memory->budget - state_->memory->in_use, device().free_bytes());
  }
  std::size_t most_bytes_in_use() const {
    std::lock_guard lock(state_->memory->mutex);
    return state_->memory->most_in_use;
  }

  std::uint64_t next_seed() {
    state_->send();  // before a kernel
    return seed_++;
  }

 private:
  static bool asked_for(const char* variable) {
    const char* const asked = std::getenv(variable);
    return asked && std::string_view(asked) == "1";
  }

  std::uint64_t seed_;
  bool warpgroups_ = asked_for("KNEAR_GPU_WARPGROUPS"),
       one_launch_ = asked_for("KNEAR_GPU_ONE_LAUNCH");
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Throws std::logic_error where the device does not hold so many blocks at once.
inline void check_residence(const HostQueue& queue, const Grid& grid, int resident_blocks) {
  constexpr std::size_t of_block = 1 << 10;  // of shared memory, that no block has for itself
  if (grid.blocks > std::int64_t{queue.multiprocessors()} * resident_blocks ||
      static_cast<std::size_t>(resident_blocks) * (grid.shared_bytes + of_block) >
          queue.shared_memory())
    throw std::logic_error("blocks are to run together that the device does not hold at once");
}

template <class Kernel>
void launch(HostQueue& queue, Grid grid, const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel>, "arguments travel as bytes");
  queue.device().check_addresses_in(kernel, "a kernel");
  queue.device().count_launch();
  if (grid.together) check_residence(queue, grid, Kernel::resident_blocks);
  run_blocks(
      grid.blocks, Kernel::threads, grid.shared_bytes, queue.next_seed(),
      [&](HostThread t) { kernel(t); }, grid.together);
}

}  // namespace knear
