// Products of emulated warps and warpgroups, and the operands of the latter.
#include <bit>
#include <cstring>
#include <stdexcept>

#include "tests/simt/host_block.hpp"

namespace knear {

std::vector<std::int8_t> HostBlock::columns_of(HostThread::Operand operand) const {
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

void HostBlock::show_operand(HostThread::Operand operand, void* caller) {
  for (std::size_t group = 0; group < product_columns / 8; ++group)
    for (std::size_t half = 0; half < 2; ++half)
      tsan::show_read(caller, operand.first + group * operand.columns + half * operand.halves, 128);
}

HostBlock::Warpgroup& HostBlock::warpgroup_of(int thread) {
  const auto number = static_cast<std::size_t>(thread / warpgroup_size);
  if ((number + 1) * warpgroup_size > threads_.size())
    throw std::logic_error("a product of less than four warps");
  if (warpgroups_.size() <= number) warpgroups_.resize(number + 1);
  return warpgroups_[number];
}

std::vector<HostThread::Operand> HostBlock::operands_to_make(int thread, int left) {
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

void HostBlock::make(int thread, const MyProduct& mine) {
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

bool HostBlock::all_poison(const int* sums) {
  return std::all_of(sums, sums + product_sums, [](int sum) { return sum == poison; });
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

}  // namespace knear
