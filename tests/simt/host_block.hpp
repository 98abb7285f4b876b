// tests/simt/host_block.hpp -- a block of an emulated grid: fibers that take turns. For the sources
// of the emulator (emulator.hpp).
#pragma once
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

#include "knear/core/random.hpp"
#include "tests/simt/emulator.hpp"
#include "tests/simt/thread_sanitizer.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define KNEAR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KNEAR_ASAN 1
#endif
#endif
#ifdef KNEAR_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace knear {
namespace emulator {

// Where a thread goes on. The compiler's own, not longjmp(): to leave a stack by that one costs the
// address sanitiser a system call and the marks of the whole stack, more than all that threads do.
using Place = void* [5];
[[KNEAR_BETWEEN_THREADS]] inline void go_to(Place& place) { __builtin_longjmp(place, 1); }

// What a thread of a block runs on. Kept between blocks: mapping a stack takes longer than a small
// kernel, and a thread takes the thread sanitiser longer still.
struct Fiber {
  static constexpr std::size_t mapped_bytes = 256 << 10;
  const std::string name;
  void* const stack;
  const std::size_t stack_bytes;
  ucontext_t start;
  Place state;
  void* fake_stack = nullptr;  // of the address sanitizer
  // The threads that the thread sanitiser sees: one, and one for copies once there are any.
  void* const thread;
  void* copying = nullptr;

  Fiber(std::size_t number, void (*enter)())
      : name("thread " + std::to_string(number)),
        stack(mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                   0)),
        // Not all begin at a multiple of the same power of two, or their frames share a few sets of
        // the caches and turn each other out: 61 places, an odd number of lines apart.
        stack_bytes(mapped_bytes - number % 61 * 17 * 64),
        thread(tsan::create_thread(name)) {
    if (stack == MAP_FAILED) throw std::bad_alloc();
    getcontext(&start);
    start.uc_stack.ss_sp = stack;
    start.uc_stack.ss_size = stack_bytes;
    start.uc_link = nullptr;
    makecontext(&start, enter, 0);
  }
  ~Fiber() {
    if (copying) tsan::destroy_thread(copying);
    tsan::destroy_thread(thread);
#ifdef KNEAR_ASAN
    __asan_unpoison_memory_region(stack, mapped_bytes);
#endif
    munmap(stack, mapped_bytes);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
};
using Fibers = std::deque<Fiber>;

// A product of a warpgroup, and the operand as it was when the first of its warps asked for it.
struct Product {
  HostThread::Operand operand;
  bool adds;
  std::vector<std::int8_t> columns;  // [128 x 32]
  int made = 0;                      // by how many threads
};
inline constexpr int product_columns = 128, product_depth = 32, product_sums = 64;
// What sums are until they are waited for.
inline constexpr int poison = 0x3ead5a5a;
inline thread_local CountSharedAccesses* counting = nullptr;

// What all blocks of a launch have in common.
struct Launch {
  std::int64_t blocks;
  const std::function<void(HostThread)>& body;
  Random random;
  bool together = false;  // they take turns
  // Addresses that stand for an order (thread_sanitizer.hpp).
  std::int64_t begun = 0, ended = 0, fences = 0;
  // Of blocks that take turns: the threads that wait for all others, and how often all have met.
  struct Waiting {
    HostBlock* block;
    int thread;
  };
  std::vector<Waiting> at_grid_barrier = {};
  std::uint64_t grid_barriers = 0;
  char synced[2] = {};  // as a block's
};

}  // namespace emulator

using emulator::counting, emulator::go_to, emulator::poison;
using emulator::Fiber, emulator::Fibers, emulator::Launch, emulator::Place, emulator::Product;
using emulator::product_columns, emulator::product_depth, emulator::product_sums;

// A block under way: its fibers take turns with run(), which is on the caller's stack.
class HostBlock {
 public:
  HostBlock(std::int64_t number, Launch& launch, int threads, std::size_t shared_bytes,
            Fibers& fibers)
      : number_(number),
        launch_(launch),
        random_(launch.random),
        fibers_(fibers),
        threads_(static_cast<std::size_t>(threads)),
        warps_(static_cast<std::size_t>(threads / warp_size)),
        shared_bytes_(shared_bytes),
        starved_(random_.below(2) ? static_cast<int>(random_.below(warps_.size())) : -1) {
    shared_.reset(static_cast<unsigned char*>(::operator new(shared_bytes, alignment)));
    std::memset(shared_.get(), 0xc3, shared_bytes);
    const int registers = std::min(248, 65536 / threads / 8 * 8);
    for (Warp& warp : warps_) warp.registers = registers;
    while (fibers_.size() < threads_.size())
      fibers_.emplace_back(fibers_.size(), &HostBlock::enter);
    ready_.resize(threads_.size());
    std::iota(ready_.begin(), ready_.end(), 0);
  }

  void run() {
    take_turns(std::numeric_limits<std::int64_t>::max());
    finish();
  }
  // Lets threads go on that can, so many one after another.
  void take_turns(std::int64_t turns) {
    turns_ = turns;
    while (may_go_on()) {
      running_ = this;
      const int i = next();
      resume(fiber(i), state(i).started);
      if (error_) std::rethrow_exception(error_);
    }
  }
  bool can_go_on() const { return !ready_.empty(); }
  // Checks what must hold in the end.
  void finish() {
    if (counting) count_accesses();
    if (left_ != std::ssize(threads_))
      throw std::logic_error(
          "a block stands still: " + std::to_string(std::ssize(threads_) - left_) +
          " threads wait, the others have left" + bytes_that_are_missing());
    for (std::size_t i = 0; i + warpgroup_size <= threads_.size(); i += warpgroup_size)
      for (std::size_t warp = 1; warp < 4; ++warp) {
        const std::size_t other = i + warp * warp_size;
        if (threads_[i].issued != threads_[other].issued)
          throw std::logic_error("the warps of a warpgroup have asked for unequal products");
        if (warps_[i / warp_size].registers != warps_[other / warp_size].registers)
          throw std::logic_error("the warps of a warpgroup have unequal registers");
      }
  }

 private:
  // An access of shared memory: the n-th of a lane since its warp met for the `met`-th time.
  struct Access {
    CountSharedAccesses::Kind kind;
    int met, number, lane;
    std::size_t bytes;
    std::uintptr_t at;
  };
  struct Copy {
    void* to;
    const void* from;
    bool valid;
  };
  struct Group {
    std::vector<Copy> copies;
    char copied = 0;  // an address: of the copies, before what follows the wait for them
  };
  // Copies to shared memory of which a barrier counts the bytes.
  struct BulkCopy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  struct Bytes {
    bool shown = false;            // to copies
    std::size_t expected = 0;      // of this round
    std::vector<BulkCopy> copies;  // asked for in this round, none made

    std::size_t coming() const {
      std::size_t sum = 0;
      for (const BulkCopy& copy : copies) sum += copy.bytes;
      return sum;
    }
  };
  // Of a thread: sums that are under way, and what they will be; and a product of them.
  struct Sums {
    int* at;
    std::array<int, product_sums> value;
    int products = 0;  // that are not made
  };
  struct MyProduct {
    std::size_t number;  // of the warpgroup's
    Sums* sums;
    std::uint8_t rows[2][product_depth];
    // The thread's own registers, and what they held.
    const unsigned* registers;
    std::array<unsigned, 4> held;
  };
  struct Warpgroup {
    std::deque<Product> products;
    std::size_t first = 0;  // the number of the first of them
  };
  struct Named {
    std::vector<int> waiting;
    int count = 0;
    std::uint64_t rounds = 0;
    char synced[2] = {};
  };
  struct State {
    bool started = false;
    std::vector<std::size_t> stored;  // places of operands, not yet shown
    std::list<Sums> sums;
    std::vector<MyProduct> products;                   // of the group that is open
    std::list<std::vector<MyProduct>> product_groups;  // those that are closed
    std::size_t issued = 0;
    bool begun = false;         // begin_products() since they were last waited for
    std::vector<Copy> copies;   // of the group that is open
    std::list<Group> groups;    // those that are closed
    char asked = 0;             // an address: of what the thread did, before its copies
    int met = 0, accesses = 0;  // how often its warp met, and what it accessed since
  };
  struct Warp {
    int arrived = 0, kind = 0;
    std::uint64_t generation = 0;
    int registers = 0;  // of each thread
    HostThread::Slot slots[2][warp_size];
    char synced[2] = {};  // addresses: what is before sync_warp(), before what follows
    std::vector<int> waiting;
    std::vector<Access> accesses;  // if they are counted
  };

  // Adds what the block's accesses took to those of the launch.
  void count_accesses() {
    for (Warp& warp : warps_) {
      auto& all = warp.accesses;
      const auto instruction = [](const Access& x) {
        return std::tuple(x.met, x.number, x.kind, x.bytes);
      };
      std::sort(all.begin(), all.end(), [&](const Access& a, const Access& b) {
        return std::pair(instruction(a), a.lane) < std::pair(instruction(b), b.lane);
      });
      for (std::size_t i = 0, end = 0; i < all.size(); i = end) {
        std::vector<std::uintptr_t> lanes;
        for (end = i; end < all.size() && instruction(all[end]) == instruction(all[i]); ++end)
          lanes.push_back(all[end].at);
        ++counting->instructions[all[i].kind];
        counting->wavefronts[all[i].kind] +=
            CountSharedAccesses::wavefronts_of(lanes, all[i].bytes);
      }
      all.clear();
    }
  }

  [[KNEAR_BETWEEN_THREADS]] static void enter() {
    HostBlock& block = *running_;
#ifdef KNEAR_ASAN
    block.finish_switch(nullptr);
#endif
    Fiber& fiber = block.fiber(block.current_);
    block.run_thread(block.current_);
    block.leave(fiber, true);
  }
  void run_thread(int i) {
    tsan::acquire(&launch_.begun);
    try {
      launch_.body(HostThread(this, i));
    } catch (...) {
      const tsan::Unseen unseen;
      error_ = std::current_exception();
    }
    tsan::release(&launch_.ended);
    const tsan::Unseen unseen;
    ++left_;
    const State& mine = state(i);
    if (!error_ && copies_under_way(mine))
      error_ = std::make_exception_ptr(
          std::logic_error("a thread leaves before it has waited for its copies"));
    if (!error_ && !(mine.products.empty() && mine.product_groups.empty()))
      error_ = std::make_exception_ptr(
          std::logic_error("a thread leaves before it has waited for its products"));
  }

  static bool copies_under_way(const State& of) {
    return !of.copies.empty() ||
           std::ranges::any_of(of.groups, [](const Group& group) { return !group.copies.empty(); });
  }

  // Whether another thread may go on, one after the other.
  bool may_go_on() const { return turns_ > 0 && !ready_.empty(); }
  // Draws the thread that goes on.
  int next() {
    --turns_;
    std::size_t at = random_.below(ready_.size());
    // One warp goes on only when hardly another can: what the others do meanwhile must not matter
    // to it.
    for (int i = 0; i < 8 && ready_[at] / warp_size == starved_; ++i)
      at = random_.below(ready_.size());
    current_ = ready_[at];
    ready_[at] = ready_.back(), ready_.pop_back();
    return current_;
  }

  // ---- barriers that count bytes, and operands --------------------------------------------------

  std::string bytes_that_are_missing() const {
    for (const auto& [word, bytes] : bytes_)
      if (bytes.expected != bytes.coming())
        return "; a barrier expects " + std::to_string(bytes.expected) + " bytes, of which " +
               std::to_string(bytes.coming()) + " are on their way";
    return "";
  }
  void wake() {
    ready_.insert(ready_.end(), at_arrivals_.begin(), at_arrivals_.end());
    at_arrivals_.clear();
  }
  // The place of so many bytes of shared memory.
  std::size_t place_of(const void* at, std::size_t bytes, const char* what) const {
    const auto place =
        static_cast<std::size_t>(static_cast<const unsigned char*>(at) - shared_.get());
    if (place > shared_bytes_ || bytes > shared_bytes_ - place)
      throw std::logic_error(std::string(what) + " is outside of shared memory");
    return place;
  }
  void mark(std::size_t place, std::size_t bytes, bool readable) {
    if (readable_.empty()) readable_.resize(shared_bytes_);
    std::memset(readable_.data() + place, readable, bytes);
  }
  Bytes& bytes_of(unsigned long long* word) {
    const auto at = bytes_.find(word);
    if (at == bytes_.end() || !at->second.shown)
      throw std::logic_error("a barrier was not shown to the copies that it is to count");
    return at->second;
  }
  void make(Bytes& bytes) {
    for (const BulkCopy& copy : bytes.copies) {
      std::memcpy(copy.to, copy.from, copy.bytes);
      mark(place_of(copy.to, copy.bytes, "a copy"), copy.bytes, true);
    }
    bytes.copies.clear(), bytes.expected = 0;
  }
  // Of products (emulated_products.cpp).
  std::vector<std::int8_t> columns_of(HostThread::Operand operand) const;
  // To the sanitiser a warp reads the operand when it asks for a product and when it waits for it.
  static void show_operand(HostThread::Operand operand, void* caller);
  Warpgroup& warpgroup_of(int thread);
  // Of the products of a thread that waiting for all but the last `left` groups waits for.
  std::vector<HostThread::Operand> operands_to_make(int thread, int left);
  // Takes a product's part of the thread's sums.
  void make(int thread, const MyProduct& mine);
  static bool all_poison(const int* sums);

  // Lets a thread go on, and returns once no other may.
  [[KNEAR_BETWEEN_THREADS]] void resume(Fiber& fiber, bool& started) {
    from_main_ = true;
#ifdef KNEAR_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack, fiber.stack_bytes);
#endif
    if (__builtin_setjmp(main_) == 0) {
      tsan::switch_to(fiber.thread);
      if (started) go_to(fiber.state);
      started = true;
      setcontext(&fiber.start);
    }
#ifdef KNEAR_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  // Lets the next thread go on, or take_turns() if none may; returns when this one is resumed,
  // unless it leaves for good. Straight from thread to thread, since each switch is a jump that the
  // processor does not foresee.
  [[KNEAR_BETWEEN_THREADS]] void leave(Fiber& fiber, bool for_good) {
    Fiber* other = nullptr;
    bool starts = false;
    {
      const tsan::Unseen unseen;
      if (!error_ && may_go_on()) {
        const int i = next();
        other = &this->fiber(i), starts = !std::exchange(state(i).started, true);
      }
    }
    if (other == &fiber) return;
    from_main_ = false;
#ifdef KNEAR_ASAN
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.fake_stack,
                                   other ? other->stack : main_stack_,
                                   other ? other->stack_bytes : main_bytes_);
#endif
    const bool resumed = !for_good && __builtin_setjmp(fiber.state) != 0;
    if (!resumed) {
      tsan::switch_to(other ? other->thread : main_thread_);
      if (!other) go_to(main_);
      if (starts) setcontext(&other->start);
      go_to(other->state);
    }
#ifdef KNEAR_ASAN
    finish_switch(fiber.fake_stack);
#endif
  }
#ifdef KNEAR_ASAN
  // Notes where the stack of take_turns() is, if that is where the switch comes from.
  void finish_switch(void* fake) {
    const void* stack = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake, &stack, &bytes);
    if (from_main_) main_stack_ = stack, main_bytes_ = bytes;
  }
#endif

  // A copy is under way from copy_16() on until it is waited for. What comes before the one and
  // after the other is ordered with it, and nothing else is, of the same thread neither: so the
  // sanitiser takes copies for the work of a thread of their own, which does it as soon as it is
  // asked to.
  [[KNEAR_BETWEEN_THREADS]] static void show_copy(Fiber& fiber, State& state, Copy copy,
                                                  [[maybe_unused]] void* caller) {
    if (!fiber.copying) fiber.copying = tsan::create_thread("copies of " + fiber.name);
    tsan::release(&state.asked);
    tsan::switch_to(fiber.copying);
    tsan::acquire(&state.asked);
    tsan::show_accesses(caller, copy.to, copy.valid ? copy.from : nullptr, 16);
    tsan::switch_to(fiber.thread);
  }
  // A bulk copy is there for who waits for the round of its barrier.
  [[KNEAR_BETWEEN_THREADS]] static void show_bulk_copy(Fiber& fiber, State& state, BulkCopy copy,
                                                       [[maybe_unused]] void* caller, void* mark) {
    if (!fiber.copying) fiber.copying = tsan::create_thread("copies of " + fiber.name);
    tsan::release(&state.asked);
    tsan::switch_to(fiber.copying);
    tsan::acquire(&state.asked);
    tsan::show_accesses(caller, copy.to, copy.from, static_cast<long>(copy.bytes));
    tsan::release(mark);
    tsan::switch_to(fiber.thread);
  }
  [[KNEAR_BETWEEN_THREADS]] static void show_closing(Fiber& fiber, Group& group) {
    if (!fiber.copying) return;
    tsan::switch_to(fiber.copying);
    tsan::release(&group.copied);
    tsan::switch_to(fiber.thread);
  }

  Fiber& fiber(int i) { return fibers_[static_cast<std::size_t>(i)]; }
  State& state(int i) { return threads_[static_cast<std::size_t>(i)]; }

  inline static thread_local HostBlock* running_ = nullptr;

  const std::int64_t number_;
  Launch& launch_;
  Random& random_;
  Fibers& fibers_;
  std::vector<State> threads_;
  std::vector<Warp> warps_;
  std::vector<Warpgroup> warpgroups_;
  const std::size_t shared_bytes_;
  std::unordered_map<const void*, Bytes> bytes_;  // of each barrier that was begun
  std::vector<char> readable_;                    // by products, of shared memory
  std::array<Named, 16> named_;
  int spare_registers_ = 0;
  const int starved_;  // -1: none
  static constexpr std::align_val_t alignment{128};
  struct Free {
    void operator()(unsigned char* bytes) const { ::operator delete(bytes, alignment); }
  };
  std::unique_ptr<unsigned char, Free> shared_;
  std::vector<int> ready_, at_barrier_, at_arrivals_;
  std::uint64_t barriers_ = 0;
  char synced_[2] = {};  // as a warp's
  std::ptrdiff_t left_ = 0;
  std::int64_t turns_ = 0;  // that are left
  int current_ = 0;
  bool from_main_ = true;  // whether take_turns() made the last switch
  Place main_;
  void* main_thread_ = tsan::current_thread();
  [[maybe_unused]] const void* main_stack_ = nullptr;
  [[maybe_unused]] std::size_t main_bytes_ = 0;
  std::exception_ptr error_;
  friend class HostThread;
};

}  // namespace knear
