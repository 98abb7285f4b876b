#include "tests/simt/emulator.hpp"

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
namespace {

// Where a thread goes on. The compiler's own, not longjmp(): to leave a stack by that one costs the
// address sanitiser a system call and the marks of the whole stack, more than all that threads do.
using Place = void* [5];
[[KNEAR_BETWEEN_THREADS]] void go_to(Place& place) { __builtin_longjmp(place, 1); }

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
constexpr int product_columns = 128, product_depth = 32, product_sums = 64;
// What sums are until they are waited for.
constexpr int poison = 0x3ead5a5a;
thread_local CountSharedAccesses* counting = nullptr;

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

}  // namespace

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
  std::vector<std::int8_t> columns_of(HostThread::Operand operand) const {
    std::vector<std::int8_t> out(product_columns * product_depth);
    for (std::size_t column = 0; column < product_columns; ++column)
      for (std::size_t half = 0; half < 2; ++half) {
        const unsigned char* const from =
            operand.first + column / 8 * operand.columns + column % 8 * 16 + half * operand.halves;
        const std::size_t place = place_of(from, 16, "an operand");
        for (std::size_t i = 0; i < 16; ++i)
          if (readable_.empty() || !readable_[place + i])
            throw std::logic_error("an operand has bytes that were not copied or stored and shown");
        std::memcpy(out.data() + column * product_depth + half * 16, from, 16);
      }
    return out;
  }
  // To the sanitiser a warp reads the operand when it asks for a product and when it waits for it.
  static void show_operand(HostThread::Operand operand, void* caller) {
    for (std::size_t group = 0; group < product_columns / 8; ++group)
      for (std::size_t half = 0; half < 2; ++half)
        tsan::show_read(caller, operand.first + group * operand.columns + half * operand.halves,
                        128);
  }
  Warpgroup& warpgroup_of(int thread) {
    const auto number = static_cast<std::size_t>(thread / warpgroup_size);
    if ((number + 1) * warpgroup_size > threads_.size())
      throw std::logic_error("a product of less than four warps");
    if (warpgroups_.size() <= number) warpgroups_.resize(number + 1);
    return warpgroups_[number];
  }
  // Of the products of a thread that waiting for all but the last `left` groups waits for.
  std::vector<HostThread::Operand> operands_to_make(int thread, int left) {
    const tsan::Unseen unseen;
    std::vector<HostThread::Operand> out;
    const Warpgroup& group = warpgroup_of(thread);
    std::ptrdiff_t to_make = std::ssize(state(thread).product_groups) - left;
    for (const auto& products : state(thread).product_groups) {
      if (to_make-- <= 0) break;
      for (const MyProduct& one : products)
        out.push_back(group.products[one.number - group.first].operand);
    }
    return out;
  }
  // Takes a product's part of the thread's sums.
  void make(int thread, const MyProduct& mine) {
    Warpgroup& group = warpgroup_of(thread);
    Product& product = group.products[mine.number - group.first];
    if (thread % warp_size == 0 && columns_of(product.operand) != product.columns)
      throw std::logic_error("an operand changed while a product was under way");
    if (!product.adds) mine.sums->value.fill(0);
    for (int i = 0; i < product_sums; ++i) {
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      const std::int8_t* const b = product.columns.data() + column * product_depth;
      int sum = 0;
      for (int k = 0; k < product_depth; ++k) sum += mine.rows[i % 4 / 2][k] * b[k];
      mine.sums->value[static_cast<std::size_t>(i)] += sum;
    }
    if (--mine.sums->products == 0) {
      if (!all_poison(mine.sums->at))
        throw std::logic_error("sums were written before they were waited for");
      std::copy(mine.sums->value.begin(), mine.sums->value.end(), mine.sums->at);
      state(thread).sums.remove_if([&](const Sums& one) { return &one == mine.sums; });
    }
    if (++product.made == warpgroup_size) {
      while (!group.products.empty() && group.products.front().made == warpgroup_size)
        group.products.pop_front(), ++group.first;
    }
  }
  static bool all_poison(const int* sums) {
    return std::all_of(sums, sums + product_sums, [](int sum) { return sum == poison; });
  }

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

CountSharedAccesses::CountSharedAccesses() : before_(std::exchange(counting, this)) {}
CountSharedAccesses::~CountSharedAccesses() { counting = before_; }

int CountSharedAccesses::wavefronts_of(const std::vector<std::uintptr_t>& lanes,
                                       std::size_t bytes) {
  constexpr std::uintptr_t banks = 32, bank_bytes = 4;
  if (bytes > 16) throw std::logic_error("an access of shared memory has 16 bytes at most");
  std::set<std::uintptr_t> words;
  for (const std::uintptr_t at : lanes)
    for (std::uintptr_t byte = at; byte < at + bytes; byte += bank_bytes)
      words.insert(byte / bank_bytes);
  int of_bank[banks] = {};
  for (const std::uintptr_t word : words) ++of_bank[word % banks];
  return *std::max_element(of_bank, of_bank + banks);
}

void HostThread::note_access(CountSharedAccesses::Kind kind, const void* at,
                             std::size_t bytes) const {
  const tsan::Unseen unseen;
  if (!counting) return;
  HostBlock::State& state = block_->state(index_);
  block_->warps_[static_cast<std::size_t>(index_ / warp_size)].accesses.push_back(
      {kind, state.met, state.accesses++, index_ % warp_size, bytes,
       reinterpret_cast<std::uintptr_t>(at)});
}

std::int64_t HostThread::block() const { return block_->number_; }
std::int64_t HostThread::blocks() const { return block_->launch_.blocks; }
unsigned char* HostThread::shared() const { return block_->shared_.get(); }

void HostThread::sync() const {
  char* synced = nullptr;
  {
    const tsan::Unseen unseen;
    // Two addresses in turn: a thread that goes on at once must not add what it does until the
    // next barrier to what others, still to be resumed, take from this one.
    synced = &block_->synced_[block_->barriers_ % 2];
    tsan::release(synced);
    auto& waiting = block_->at_barrier_;
    waiting.push_back(index_);
    if (waiting.size() == block_->threads_.size()) {
      ++block_->barriers_;
      block_->ready_.insert(block_->ready_.end(), waiting.begin(), waiting.end());
      waiting.clear();
    }
  }
  block_->leave(block_->fiber(index_), false);
  tsan::acquire(synced);
}

void HostThread::sync_grid() const {
  char* synced = nullptr;
  {
    const tsan::Unseen unseen;
    Launch& launch = block_->launch_;
    if (!launch.together)
      throw std::logic_error("blocks wait for one another that may not run at the same time");
    if (HostBlock::copies_under_way(block_->state(index_)))
      throw std::logic_error("a thread waits for other blocks before it has for its own copies");
    synced = &launch.synced[launch.grid_barriers % 2];
    tsan::release(synced);
    auto& waiting = launch.at_grid_barrier;
    waiting.push_back({block_, index_});
    if (std::ssize(waiting) == launch.blocks * std::ssize(block_->threads_)) {
      ++launch.grid_barriers;
      for (const auto [block, thread] : waiting) block->ready_.push_back(thread);
      waiting.clear();
    }
  }
  block_->leave(block_->fiber(index_), false);
  tsan::acquire(synced);
}

void HostThread::prefetch(const void* at) const {
  const tsan::Unseen unseen;
  if (!HostDevice::owns_any(at))
    throw std::logic_error("what is to be brought nearer is not in the memory of a device");
}

namespace {
struct Arrivals {
  std::uint16_t each, missing;
  std::uint32_t round;
};
static_assert(sizeof(Arrivals) == sizeof(unsigned long long));
// What the sanitiser is told about a round, of which two may be spoken of at a time.
void* mark_of(unsigned long long* word, std::uint32_t round) {
  return reinterpret_cast<char*>(word) + round % 2;
}
}  // namespace

void HostThread::begin_arrivals(unsigned long long* word, int count) const {
  const auto each = static_cast<std::uint16_t>(count);
  const tsan::Unseen unseen;
  *word = std::bit_cast<unsigned long long>(Arrivals{each, each, 0});
  block_->bytes_[word] = {};
}

void HostThread::show_barriers() const {
  const tsan::Unseen unseen;
  for (auto& [word, bytes] : block_->bytes_) bytes.shown = true;
}

void HostThread::arrive_expecting(unsigned long long* word, unsigned bytes) const {
  {
    const tsan::Unseen unseen;
    HostBlock::Bytes& counted = block_->bytes_of(word);
    counted.expected += bytes;
    if (counted.expected >= 1 << 20)
      throw std::logic_error("a barrier counts less than 2^20 bytes");
  }
  arrive(word);
}

void HostThread::copy_bulk(void* to, const void* from, unsigned bytes,
                           unsigned long long* word) const {
  pause();
  const auto aligned = [](auto x) { return x % 16 == 0; };
  if (!aligned(reinterpret_cast<std::uintptr_t>(to)) ||
      !aligned(reinterpret_cast<std::uintptr_t>(from)) || !aligned(bytes) || bytes == 0)
    throw std::logic_error("copy_bulk of addresses and bytes that are no multiples of 16");
  const tsan::Unseen unseen;
  HostBlock::Bytes& counted = block_->bytes_of(word);
  block_->mark(block_->place_of(to, bytes, "what is copied to"), bytes, false);
  std::memset(to, 0xc3, bytes);  // what is read too early is wrong
  counted.copies.push_back({to, from, bytes});
  if (tsan::on)
    HostBlock::show_bulk_copy(block_->fiber(index_), block_->state(index_), counted.copies.back(),
                              __builtin_return_address(0),
                              mark_of(word, std::bit_cast<Arrivals>(*word).round));
  block_->wake();
}

void HostThread::arrive(unsigned long long* word) const {
  pause();
  void* mark = nullptr;
  {
    const tsan::Unseen unseen;
    mark = mark_of(word, std::bit_cast<Arrivals>(*word).round);
  }
  tsan::release(mark);
  const tsan::Unseen unseen;
  auto arrivals = std::bit_cast<Arrivals>(*word);
  if (arrivals.missing == 0) throw std::logic_error("more threads arrive than a round has");
  if (--arrivals.missing == 0) {
    const HostBlock::Bytes& bytes = block_->bytes_[word];
    if (bytes.expected == 0 && bytes.copies.empty())
      arrivals.missing = arrivals.each, ++arrivals.round;
    block_->wake();  // they look again whether it was their round, or whether its bytes are coming
  }
  *word = std::bit_cast<unsigned long long>(arrivals);
}

void HostThread::wait_for_arrivals(unsigned long long* word, bool odd) const {
  void* mark = nullptr;
  for (bool waits = true; waits;) {
    {
      const tsan::Unseen unseen;
      auto arrivals = std::bit_cast<Arrivals>(*word);
      waits = (arrivals.round % 2 != 0) == odd;
      // The last moment for the bytes that are missing, if all of them are on their way.
      if (waits && arrivals.missing == 0) {
        HostBlock::Bytes& bytes = block_->bytes_[word];
        if (bytes.coming() > bytes.expected)
          throw std::logic_error("a barrier expects " + std::to_string(bytes.expected) +
                                 " bytes, but copies bring " + std::to_string(bytes.coming()));
        if (bytes.coming() == bytes.expected) {
          block_->make(bytes);
          arrivals.missing = arrivals.each, ++arrivals.round;
          *word = std::bit_cast<unsigned long long>(arrivals);
          block_->wake();
          waits = false;
        }
      }
      mark = mark_of(word, odd ? 1 : 0);
      if (waits) block_->at_arrivals_.push_back(index_);
    }
    if (waits) block_->leave(block_->fiber(index_), false);
  }
  tsan::acquire(mark);
}

void HostThread::sync_some(int number, int count) const {
  char* synced = nullptr;
  {
    const tsan::Unseen unseen;
    if (number < 1 || number > 15) throw std::logic_error("a barrier has a number from 1 to 15");
    if (count < warp_size || count % warp_size != 0 || count > std::ssize(block_->threads_))
      throw std::logic_error("a barrier is for whole warps of the block");
    HostBlock::Named& barrier = block_->named_[static_cast<std::size_t>(number)];
    if (barrier.waiting.empty()) barrier.count = count;
    if (barrier.count != count) throw std::logic_error("a barrier is for unequal numbers");
    synced = &barrier.synced[barrier.rounds % 2];
    tsan::release(synced);
    barrier.waiting.push_back(index_);
    if (std::ssize(barrier.waiting) == count) {
      ++barrier.rounds;
      block_->ready_.insert(block_->ready_.end(), barrier.waiting.begin(), barrier.waiting.end());
      barrier.waiting.clear();
    }
  }
  block_->leave(block_->fiber(index_), false);
  tsan::acquire(synced);
}

void HostThread::store_operand(unsigned* to, unsigned value) const {
  *to = value;
  const tsan::Unseen unseen;
  const std::size_t place = block_->place_of(to, sizeof(value), "what is stored");
  block_->mark(place, sizeof(value), false);
  block_->state(index_).stored.push_back(place);
}

void HostThread::show_operands() const {
  const tsan::Unseen unseen;
  auto& stored = block_->state(index_).stored;
  for (const std::size_t place : stored) block_->mark(place, sizeof(unsigned), true);
  stored.clear();
}

void HostThread::begin_products() const {
  meet(meet_fence, nullptr, 0);
  const tsan::Unseen unseen;
  block_->state(index_).begun = true;
}

void HostThread::issue_product(int (&sums)[64], const unsigned (&a)[4], Operand b, bool add) const {
  if (index_ % warp_size == 0 && tsan::on) HostBlock::show_operand(b, __builtin_return_address(0));
  unsigned all[warp_size][4];
  const Slot* const slots = meet(meet_asynchronous, &a, sizeof(a));
  const tsan::Unseen unseen;
  for (int lane = 0; lane < warp_size; ++lane)
    std::memcpy(all[lane], slots[lane].bytes, sizeof(all[lane]));
  HostBlock::State& mine = block_->state(index_);
  if (!mine.begun) throw std::logic_error("a product without begin_products() before it");
  if (reinterpret_cast<std::uintptr_t>(b.first) % 16 != 0 || b.columns % 16 != 0 ||
      b.halves % 16 != 0)
    throw std::logic_error("an operand that is not in multiples of 16 bytes");

  HostBlock::Warpgroup& group = block_->warpgroup_of(index_);
  const std::size_t number = mine.issued++;
  if (number == group.first + group.products.size())
    group.products.push_back({b, add, block_->columns_of(b)});
  const Product& product = group.products[number - group.first];
  if (!(product.operand == b) || product.adds != add)
    throw std::logic_error("the warps of a warpgroup multiply different operands");

  HostBlock::MyProduct out = {number, nullptr, {}, a, {a[0], a[1], a[2], a[3]}};
  const auto check_registers = [&](const std::vector<HostBlock::MyProduct>& products) {
    for (const HostBlock::MyProduct& one : products)
      if (one.registers == out.registers && one.held != out.held)
        throw std::logic_error("registers of a product were written before it was waited for");
  };
  check_registers(mine.products);
  for (const auto& products : mine.product_groups) check_registers(products);
  for (int half = 0; half < 2; ++half)
    for (int row = 0; row < 2; ++row)
      for (int q = 0; q < 4; ++q)
        std::memcpy(out.rows[row] + half * 16 + q * 4,
                    &all[index_ % warp_size / 4 * 4 + q][half * 2 + row], 4);
  for (HostBlock::Sums& one : mine.sums)
    if (one.at == sums) out.sums = &one;
  if (!out.sums) {
    out.sums = &mine.sums.emplace_back();
    out.sums->at = sums;
    std::copy(sums, sums + product_sums, out.sums->value.begin());
    std::fill(sums, sums + product_sums, poison);
  } else if (!HostBlock::all_poison(sums)) {
    throw std::logic_error("sums were written before they were waited for");
  }
  ++out.sums->products;
  mine.products.push_back(out);
}

void HostThread::close_products() const {
  const tsan::Unseen unseen;
  HostBlock::State& mine = block_->state(index_);
  mine.product_groups.emplace_back().swap(mine.products);
}

void HostThread::wait_for_products(int left) const {
  meet(meet_wait, nullptr, 0);
  HostBlock::State& mine = block_->state(index_);
  if (index_ % warp_size == 0 && tsan::on) {
    auto operands = block_->operands_to_make(index_, left);
    for (const Operand& operand : operands)
      HostBlock::show_operand(operand, __builtin_return_address(0));
  }
  const tsan::Unseen unseen;
  mine.begun = false;
  for (; std::ssize(mine.product_groups) > left; mine.product_groups.pop_front())
    for (const HostBlock::MyProduct& product : mine.product_groups.front())
      block_->make(index_, product);
}

void HostThread::change_registers(int registers, bool more) const {
  meet(meet_registers, nullptr, 0);
  HostBlock::Warp& warp = block_->warps_[static_cast<std::size_t>(index_ / warp_size)];
  for (bool waits = index_ % warp_size == 0; waits;) {
    {
      const tsan::Unseen unseen;
      const int change = (registers - warp.registers) * warp_size;
      if (more ? change < 0 : change > 0)
        throw std::logic_error("registers are kept that a warp has not, or taken that it has");
      waits = change > block_->spare_registers_;
      if (waits) {
        block_->at_arrivals_.push_back(index_);
      } else {
        block_->spare_registers_ -= change, warp.registers = registers;
        block_->wake();
      }
    }
    if (waits) block_->leave(block_->fiber(index_), false);
  }
  meet(meet_registers, nullptr, 0);
}

void HostThread::pause() const {
  {
    const tsan::Unseen unseen;
    if (block_->random_.below(4) != 0) return;
    block_->ready_.push_back(index_);
  }
  block_->leave(block_->fiber(index_), false);
}

void HostThread::fence() const {
  pause();
  // This orders more than a fence does: each comes after all that were executed before it, whether
  // or not an atomic operation tells of them.
  tsan::acquire(&block_->launch_.fences);
  tsan::release(&block_->launch_.fences);
}

const HostThread::Slot* HostThread::meet(Meeting kind, const void* data, std::size_t bytes) const {
  HostBlock::Warp& warp = block_->warps_[static_cast<std::size_t>(index_ / warp_size)];
  Slot* slots = nullptr;
  char* synced = nullptr;
  {
    const tsan::Unseen unseen;
    if (warp.arrived == 0) warp.kind = kind;
    if (warp.kind != kind) throw std::logic_error("lanes of a warp meet in different operations");
    // Two sets of slots in turn: a lane that goes on at once may be one meeting ahead, no more.
    slots = warp.slots[warp.generation % 2];
    synced = &warp.synced[warp.generation % 2];
    if (bytes != 0) std::memcpy(slots[index_ % warp_size].bytes, data, bytes);
    ++block_->state(index_).met, block_->state(index_).accesses = 0;
    if (kind == meet_sync) tsan::release(synced);
    warp.waiting.push_back(index_);
    if (++warp.arrived == warp_size) {
      warp.arrived = 0, ++warp.generation;
      block_->ready_.insert(block_->ready_.end(), warp.waiting.begin(), warp.waiting.end());
      warp.waiting.clear();
    }
  }
  block_->leave(block_->fiber(index_), false);
  // The other operations of a warp exchange values and are no barriers of memory.
  if (kind == meet_sync) tsan::acquire(synced);
  return slots;
}

unsigned HostThread::votes(Meeting kind, bool yes) const {
  const unsigned char mine = yes;
  const Slot* slots = meet(kind, &mine, 1);
  unsigned out = 0;
  for (int i = 0; i < warp_size; ++i) out |= static_cast<unsigned>(slots[i].bytes[0]) << i;
  return out;
}

void HostThread::copy_16(void* to, const void* from, bool valid) const {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
    throw std::logic_error("copy_16 of an address that is no multiple of 16");
  note_access(CountSharedAccesses::copy, to, 16);
  const tsan::Unseen unseen;
  HostBlock::State& state = block_->state(index_);
  std::memset(to, 0xc3, 16);  // what is read too early is wrong
  state.copies.push_back({to, from, valid});
  if (tsan::on)
    HostBlock::show_copy(block_->fiber(index_), state, state.copies.back(),
                         __builtin_return_address(0));
}

void HostThread::close_copies() const {
  const tsan::Unseen unseen;
  HostBlock::State& state = block_->state(index_);
  state.groups.emplace_back().copies.swap(state.copies);
  if (tsan::on) HostBlock::show_closing(block_->fiber(index_), state.groups.back());
}

void HostThread::wait_for_copies(int left) const {
  {
    const tsan::Unseen unseen;
    auto& groups = block_->state(index_).groups;
    for (; std::ssize(groups) > left; groups.pop_front()) {
      tsan::acquire(&groups.front().copied);
      for (const auto& copy : groups.front().copies) {
        if (copy.valid)
          std::memcpy(copy.to, copy.from, 16);
        else
          std::memset(copy.to, 0, 16);
      }
    }
  }
  pause();
}

namespace {

struct Factors {
  unsigned a[4], b[2];
};

// c[i][j] of one product for the lane, as sums of term(a's word, b's word) over the words of k.
template <class C, class Term>
void multiply(C (&c)[4], int lane, const Factors (&lanes)[warp_size], Term term) {
  const int row = lane / 4, column = lane % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const int r = row + i / 2 * 8, n = column + i % 2;
    for (int half = 0; half < 2; ++half)
      for (int q = 0; q < 4; ++q)
        c[i] = term(c[i], lanes[r % 8 * 4 + q].a[half * 2 + r / 8], lanes[n * 4 + q].b[half]);
  }
}

float bf16(unsigned bits) { return std::bit_cast<float>(bits << 16); }

}  // namespace

void HostThread::multiply_u8_s8(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) const {
  const Factors mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  Factors lanes[warp_size];
  const Slot* slots = meet(meet_product, &mine, sizeof(mine));
  for (int i = 0; i < warp_size; ++i) std::memcpy(&lanes[i], slots[i].bytes, sizeof(Factors));
  multiply(c, index_ % warp_size, lanes, [](int sum, unsigned x, unsigned y) {
    for (int byte = 0; byte < 4; ++byte)
      sum += static_cast<int>(x >> 8 * byte & 255) * static_cast<std::int8_t>(y >> 8 * byte & 255);
    return sum;
  });
}

void HostThread::multiply_bf16(float (&c)[4], const unsigned (&a)[4],
                               const unsigned (&b)[2]) const {
  const Factors mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  Factors lanes[warp_size];
  const Slot* slots = meet(meet_product, &mine, sizeof(mine));
  for (int i = 0; i < warp_size; ++i) std::memcpy(&lanes[i], slots[i].bytes, sizeof(Factors));
  multiply(c, index_ % warp_size, lanes, [](float sum, unsigned x, unsigned y) {
    sum += bf16(x & 0xffff) * bf16(y & 0xffff);
    return sum + bf16(x >> 16) * bf16(y >> 16);
  });
}

namespace {

// What memory belongs to a device, of all devices, by where it begins.
struct Owned {
  std::size_t bytes;
  const HostDevice* device;
};
std::map<std::uintptr_t, Owned>& owned() {
  static std::map<std::uintptr_t, Owned> all;
  return all;
}
std::mutex& owned_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

HostDevice::~HostDevice() = default;

std::size_t HostDevice::bytes_in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}
std::size_t HostDevice::most_bytes_in_use() const {
  std::lock_guard lock(mutex_);
  return most_in_use_;
}

void HostDevice::take(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > bytes_ - in_use_)
    throw MemoryBudgetError(
        "device {} has {} bytes, of which {} are in use, but {} more are needed", number_, bytes_,
        in_use_, bytes);
  in_use_ += bytes;
  most_in_use_ = std::max(most_in_use_, in_use_);
}
void HostDevice::give_back(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  in_use_ -= bytes;
}

void HostDevice::own(const void* begin, std::size_t bytes) {
  if (bytes == 0) return;
  std::lock_guard lock(owned_mutex());
  owned()[reinterpret_cast<std::uintptr_t>(begin)] = {bytes, this};
}
void HostDevice::disown(const void* begin) {
  std::lock_guard lock(owned_mutex());
  owned().erase(reinterpret_cast<std::uintptr_t>(begin));
}

void HostDevice::check_address(const void* address, const char* what) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::lock_guard lock(owned_mutex());
  auto next = owned().upper_bound(at);
  if (next == owned().begin()) return;
  const auto& [begin, memory] = *--next;
  if (at - begin >= memory.bytes || memory.device == this) return;
  throw std::logic_error(std::string(what) + " of device " + std::to_string(number_) +
                         " was given memory of device " + std::to_string(memory.device->number()));
}

bool HostDevice::owns_any(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::lock_guard lock(owned_mutex());
  auto next = owned().upper_bound(at);
  if (next == owned().begin()) return false;
  const auto& [begin, memory] = *--next;
  return at - begin < memory.bytes;
}

void HostDevice::check_words(const void* bytes, std::size_t count, const char* what) const {
  for (std::size_t at = 0; at + sizeof(void*) <= count; at += sizeof(void*)) {
    const void* word = nullptr;
    std::memcpy(&word, static_cast<const unsigned char*>(bytes) + at, sizeof word);
    check_address(word, what);
  }
}

void run_blocks(std::int64_t blocks, int threads, std::size_t shared_bytes, std::uint64_t seed,
                const std::function<void(HostThread)>& body, bool together) {
  if (threads < warp_size || threads > 1024 || threads % warp_size != 0)
    throw std::logic_error("a block has 32 to 1024 threads, a multiple of 32");
  if (blocks < 1 || blocks >= std::int64_t{1} << 31)
    throw std::logic_error("a grid has 1 to 2^31 - 1 blocks");
  if (shared_bytes > 227 << 10) throw std::logic_error("more than 227 KiB of shared memory");
  // The blocks of a grid are not ordered. Two that run one after the other have different fibers,
  // so that the thread sanitiser sees what they do to each other.
  // Those that take turns have fibers each.
  static thread_local std::deque<Fibers> fibers(2);
  Launch launch{blocks, body, Random(seed), together};
  tsan::release(&launch.begun);
  const tsan::Unseen unseen;
  std::vector<std::int64_t> order(static_cast<std::size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[launch.random.below(i)]);
  try {
    if (together) {
      if (std::ssize(fibers) < blocks) fibers.resize(order.size());
      std::vector<std::unique_ptr<HostBlock>> all;
      for (const std::int64_t number : order)
        all.push_back(
            std::make_unique<HostBlock>(number, launch, threads, shared_bytes, fibers[all.size()]));
      for (std::vector<HostBlock*> going;; going.clear()) {
        for (const auto& block : all)
          if (block->can_go_on()) going.push_back(block.get());
        if (going.empty()) break;
        going[launch.random.below(going.size())]->take_turns(
            static_cast<std::int64_t>(1 + launch.random.below(4 * all.size() * warp_size)));
      }
      for (const auto& block : all) block->finish();
    }
    for (std::size_t i = 0; i < order.size() && !together; ++i)
      std::make_unique<HostBlock>(order[i], launch, threads, shared_bytes,
                                  fibers[tsan::on ? i % 2 : 0])
          ->run();
  } catch (...) {
    for (Fibers& some : fibers) some.clear();  // they stand where they were left
    throw;
  }
  tsan::acquire(&launch.ended);
}

}  // namespace knear
