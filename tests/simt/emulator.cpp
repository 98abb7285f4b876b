// longjmp() to another stack is what this is about; its check for that would end the program.
#undef _FORTIFY_SOURCE
#include "tests/simt/emulator.hpp"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <cmath>
#include <exception>
#include <memory>
#include <numeric>
#include <string>

#include "knear/core/random.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define KNEAR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KNEAR_ASAN 1
#endif
#endif
#ifdef KNEAR_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace knear {
namespace {

// Stacks are kept between blocks: mapping one takes longer than a small kernel.
class Stacks {
 public:
  static constexpr std::size_t bytes = 256 << 10;
  void* at(std::size_t i) {
    while (stacks_.size() <= i) {
      void* stack =
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (stack == MAP_FAILED) throw std::bad_alloc();
      stacks_.push_back(stack);
    }
    return stacks_[i];
  }
  ~Stacks() {
    for (void* stack : stacks_) munmap(stack, bytes);
  }

 private:
  std::vector<void*> stacks_;
};

}  // namespace

// A block under way: its fibers take turns with run(), which is on the caller's stack.
class HostBlock {
 public:
  HostBlock(std::int64_t number, std::int64_t of, int threads, std::size_t shared_bytes,
            Random& random, const std::function<void(HostThread)>& body, Stacks& stacks)
      : number_(number),
        of_(of),
        random_(random),
        body_(body),
        fibers_(threads),
        warps_(threads / warp_size),
        starved_(random.below(2) ? static_cast<int>(random.below(warps_.size())) : -1) {
    shared_.reset(static_cast<unsigned char*>(::operator new(shared_bytes, alignment)));
    std::memset(shared_.get(), 0xc3, shared_bytes);
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = fibers_[i];
      fiber.stack = stacks.at(i);
      getcontext(&fiber.start);
      fiber.start.uc_stack.ss_sp = fiber.stack;
      fiber.start.uc_stack.ss_size = Stacks::bytes;
      fiber.start.uc_link = nullptr;
      makecontext(&fiber.start, &HostBlock::enter, 0);
      ready_.push_back(i);
    }
  }

  void run() {
    while (!ready_.empty()) {
      std::size_t at = random_.below(ready_.size());
      // One warp goes on only when hardly another can: what the others do meanwhile must not matter
      // to it.
      for (int i = 0; i < 8 && ready_[at] / warp_size == starved_; ++i)
        at = random_.below(ready_.size());
      const int i = ready_[at];
      ready_[at] = ready_.back(), ready_.pop_back();
      resume(i);
      if (error_) std::rethrow_exception(error_);
    }
    if (left_ != std::ssize(fibers_))
      throw std::logic_error(
          "a block stands still: " + std::to_string(std::ssize(fibers_) - left_) +
          " threads wait, the others have left");
  }

 private:
  struct Fiber {
    ucontext_t start;
    jmp_buf state;
    void* stack = nullptr;
    void* fake_stack = nullptr;
    bool started = false;
    struct Copy {
      void* to;
      const void* from;
      bool valid;
    };
    std::vector<std::vector<Copy>> copies{1};  // by group, the last one open
  };
  struct Warp {
    int arrived = 0, kind = 0;
    std::uint64_t generation = 0;
    HostThread::Slot slots[2][warp_size];
    std::vector<int> waiting;
  };

  static void enter() {
    HostBlock& block = *running_;
#ifdef KNEAR_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &block.main_stack_, &block.main_bytes_);
#endif
    const int i = block.current_;
    try {
      block.body_(HostThread(&block, i));
    } catch (...) {
      block.error_ = std::current_exception();
    }
    ++block.left_;
    block.leave(i, true);
  }

  [[gnu::noinline]] void resume(int i) {
    running_ = this, current_ = i;
    Fiber& fiber = fibers_[i];
#ifdef KNEAR_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack, Stacks::bytes);
#endif
    if (_setjmp(main_) == 0) {
      if (fiber.started) _longjmp(fiber.state, 1);
      fiber.started = true;
      setcontext(&fiber.start);
    }
#ifdef KNEAR_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  // Back to run(), for good or until resumed.
  [[gnu::noinline]] void leave(int i, bool for_good) {
    Fiber& fiber = fibers_[i];
#ifdef KNEAR_ASAN
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.fake_stack, main_stack_,
                                   main_bytes_);
#endif
    if (for_good || _setjmp(fiber.state) == 0) _longjmp(main_, 1);
#ifdef KNEAR_ASAN
    __sanitizer_finish_switch_fiber(fibers_[i].fake_stack, &main_stack_, &main_bytes_);
#endif
  }

  inline static thread_local HostBlock* running_ = nullptr;

  const std::int64_t number_, of_;
  Random& random_;
  const std::function<void(HostThread)>& body_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  const int starved_;  // -1: none
  static constexpr std::align_val_t alignment{128};
  struct Free {
    void operator()(unsigned char* bytes) const { ::operator delete(bytes, alignment); }
  };
  std::unique_ptr<unsigned char, Free> shared_;
  std::vector<int> ready_, at_barrier_;
  std::ptrdiff_t left_ = 0;
  int current_ = 0;
  jmp_buf main_;
  [[maybe_unused]] const void* main_stack_ = nullptr;
  [[maybe_unused]] std::size_t main_bytes_ = 0;
  std::exception_ptr error_;
  friend class HostThread;
};

std::int64_t HostThread::block() const { return block_->number_; }
std::int64_t HostThread::blocks() const { return block_->of_; }
unsigned char* HostThread::shared() const { return block_->shared_.get(); }

void HostThread::sync() const {
  auto& waiting = block_->at_barrier_;
  waiting.push_back(index_);
  if (waiting.size() == block_->fibers_.size()) {
    block_->ready_.insert(block_->ready_.end(), waiting.begin(), waiting.end());
    waiting.clear();
  }
  block_->leave(index_, false);
}

void HostThread::pause() const {
  if (block_->random_.below(4) != 0) return;
  block_->ready_.push_back(index_);
  block_->leave(index_, false);
}

const HostThread::Slot* HostThread::meet(Meeting kind, const void* data, std::size_t bytes) const {
  HostBlock::Warp& warp = block_->warps_[static_cast<std::size_t>(index_ / warp_size)];
  if (warp.arrived == 0) warp.kind = kind;
  if (warp.kind != kind) throw std::logic_error("lanes of a warp meet in different operations");
  // Two sets of slots in turn: a lane that goes on at once may be one meeting ahead, no more.
  Slot* slots = warp.slots[warp.generation % 2];
  if (bytes != 0) std::memcpy(slots[index_ % warp_size].bytes, data, bytes);
  warp.waiting.push_back(index_);
  if (++warp.arrived == warp_size) {
    warp.arrived = 0, ++warp.generation;
    block_->ready_.insert(block_->ready_.end(), warp.waiting.begin(), warp.waiting.end());
    warp.waiting.clear();
  }
  block_->leave(index_, false);
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
  std::memset(to, 0xc3, 16);  // what is read too early is wrong
  block_->fibers_[static_cast<std::size_t>(index_)].copies.back().push_back({to, from, valid});
}

void HostThread::close_copies() const {
  block_->fibers_[static_cast<std::size_t>(index_)].copies.emplace_back();
}

void HostThread::wait_for_copies(int left) const {
  auto& groups = block_->fibers_[static_cast<std::size_t>(index_)].copies;
  while (std::ssize(groups) - 1 > left) {
    for (const auto& copy : groups.front()) {
      if (copy.valid)
        std::memcpy(copy.to, copy.from, 16);
      else
        std::memset(copy.to, 0, 16);
    }
    groups.erase(groups.begin());
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

void run_blocks(std::int64_t blocks, int threads, std::size_t shared_bytes, std::uint64_t seed,
                const std::function<void(HostThread)>& body) {
  if (threads < warp_size || threads > 1024 || threads % warp_size != 0)
    throw std::logic_error("a block has 32 to 1024 threads, a multiple of 32");
  if (blocks < 1 || blocks >= std::int64_t{1} << 31)
    throw std::logic_error("a grid has 1 to 2^31 - 1 blocks");
  if (shared_bytes > 227 << 10) throw std::logic_error("more than 227 KiB of shared memory");
  static thread_local Stacks stacks;
  Random random(seed);
  std::vector<std::int64_t> order(static_cast<std::size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  for (const std::int64_t number : order)
    HostBlock(number, blocks, threads, shared_bytes, random, body, stacks).run();
}

}  // namespace knear
