#include "tests/simt/emulator.hpp"

#include "tests/simt/host_block.hpp"

namespace knear {

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
