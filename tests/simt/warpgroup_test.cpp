// What sm_90a has, on the emulated block: products of a warpgroup, copies whose bytes a barrier
// counts, barriers of some warps and registers that change hands; and that each mistake is noticed.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "tests/simt/emulator.hpp"
#include "tests/simt/thread_sanitizer.hpp"

namespace knear {
namespace {

constexpr int depth = 64, columns = 128;  // of the products: two steps of 32
constexpr unsigned column_bytes = 128, half_bytes = columns * 16, step_bytes = 2 * half_bytes;
constexpr std::size_t operand_bytes = 2 * step_bytes, shared_bytes = operand_bytes + 4096;

using Word = unsigned long long;
using Body = std::function<void(HostThread)>;
Word* word(HostThread t, int i = 0) {
  return reinterpret_cast<Word*>(t.shared() + operand_bytes + 3072) + i;
}

std::string error_of(int threads, const Body& body, std::uint64_t seed = 1) {
  try {
    run_blocks(1, threads, shared_bytes, seed, body);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}
// Whether that is noticed, in those words, whatever the order.
void expect_error(const std::string& words, int threads, const Body& body) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    EXPECT_NE(error_of(threads, body, seed).find(words), std::string::npos)
        << "'" << words << "' is not in '" << error_of(threads, body, seed) << "', seed " << seed;
}

struct Factors {
  std::uint8_t a[64][depth];
  std::int8_t b[depth][columns];

  explicit Factors(std::uint64_t seed) {
    Random random(seed);
    for (auto& row : a)
      for (auto& x : row) x = static_cast<std::uint8_t>(random.below(256));
    for (auto& row : b)
      for (auto& x : row) x = static_cast<std::int8_t>(random.below(256));
  }
  int product(int row, int column) const {
    int sum = 0;
    for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][column];
    return sum;
  }
  // The four bytes of a column from step k on, and where the operand has them.
  unsigned word_of(int k, int column) const {
    unsigned out = 0;
    for (int i = 0; i < 4; ++i)
      out |= static_cast<unsigned>(static_cast<std::uint8_t>(b[k + i][column])) << 8 * i;
    return out;
  }
  static std::size_t place_of(int k, int column) {
    return static_cast<std::size_t>(k / 32) * step_bytes +
           static_cast<std::size_t>(k % 32 / 16) * half_bytes +
           static_cast<std::size_t>(column) * 16 + static_cast<std::size_t>(k % 16);
  }
  // As the PTX manual draws it: element i of the fragment, of the step from k on.
  void fragment(HostThread t, int k, unsigned (&out)[4]) const {
    const int warp = t.index() % warpgroup_size / 32, group = t.index() % 32 / 4,
              in_group = t.index() % 4;
    for (unsigned& x : out) x = 0;
    for (int i = 0; i < 16; ++i) {
      const int row = warp * 16 + ((i < 4) || (i >= 8 && i < 12) ? group : group + 8);
      const int column = in_group * 4 + (i & 3) + (i < 8 ? 0 : 16);
      out[i / 4] |= static_cast<unsigned>(a[row][k + column]) << 8 * (i % 4);
    }
  }
  void store(HostThread t, int threads) const {
    for (int i = t.index(); i < depth / 4 * columns; i += threads) {
      const int k = i / columns * 4, column = i % columns;
      t.store_operand(reinterpret_cast<unsigned*>(t.shared() + place_of(k, column)),
                      word_of(k, column));
    }
  }
};

int row_of(HostThread t, int i) {
  return t.index() % warpgroup_size / 32 * 16 + t.index() % 32 / 4 + i % 4 / 2 * 8;
}
int column_of(HostThread t, int i) { return i / 4 * 8 + t.index() % 4 * 2 + i % 2; }

// Both steps of the product.
void multiply(HostThread t, const Factors& factors, int (&sums)[64]) {
  unsigned first[4], second[4];
  factors.fragment(t, 0, first), factors.fragment(t, 32, second);
  const auto b = t.operand(t.shared(), column_bytes, half_bytes);
  t.begin_products();
  t.begin_product(sums, first, b);
  t.add_product(sums, second, t.further(b, step_bytes));
  t.close_products();
}

TEST(Warpgroup, ProductsAreThoseOfPlainArithmetic) {
  const Factors factors(3);
  std::vector<int> wrong(2 * warpgroup_size);
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    run_blocks(1, 2 * warpgroup_size, shared_bytes, seed, [&](HostThread t) {
      factors.store(t, 2 * warpgroup_size);
      t.show_operands();
      t.sync();
      int sums[64];
      multiply(t, factors, sums);
      t.wait_for_products<0>(sums);
      // And further, from what they are.
      unsigned fragment[4];
      factors.fragment(t, 0, fragment);
      t.begin_products();
      t.add_product(sums, fragment, t.operand(t.shared(), column_bytes, half_bytes));
      t.close_products();
      t.wait_for_products<0>(sums);
      for (int i = 0; i < 64; ++i) {
        int sum = factors.product(row_of(t, i), column_of(t, i));
        for (int k = 0; k < 32; ++k)
          sum += factors.a[row_of(t, i)][k] * factors.b[k][column_of(t, i)];
        wrong[static_cast<std::size_t>(t.index())] += sums[i] != sum;
      }
    });
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

// Of two groups the first may be waited for while the second is under way, whose sums are not
// there.
TEST(Warpgroup, SumsAreThereWhenTheyAreWaitedFor) {
  const Factors factors(4);
  std::vector<int> wrong(warpgroup_size), early(warpgroup_size);
  run_blocks(1, warpgroup_size, shared_bytes, 1, [&](HostThread t) {
    factors.store(t, warpgroup_size);
    t.show_operands();
    t.sync();
    int first[64], second[64];
    multiply(t, factors, first);
    multiply(t, factors, second);
    const auto here = [&](const int(&sums)[64]) {
      int count = 0;
      for (int i = 0; i < 64; ++i)
        count += sums[i] == factors.product(row_of(t, i), column_of(t, i));
      return count;
    };
    int& too_early = early[static_cast<std::size_t>(t.index())];
    too_early += here(first);
    t.wait_for_products<1>(first);
    wrong[static_cast<std::size_t>(t.index())] += here(first) != 64;
    too_early += here(second);
    t.wait_for_products<0>(second);
    wrong[static_cast<std::size_t>(t.index())] += here(second) != 64;
  });
  for (int i = 0; i < warpgroup_size; ++i) {
    EXPECT_EQ(wrong[static_cast<std::size_t>(i)], 0);
    EXPECT_EQ(early[static_cast<std::size_t>(i)], 0);
  }
}

TEST(Warpgroup, NoticesWrongProducts) {
  const Factors factors(5);
  const auto with = [&](const Body& store, const Body& multiply_all) {
    return [=](HostThread t) {
      store(t);
      t.sync();
      multiply_all(t);
    };
  };
  const Body stored = [&](HostThread t) { factors.store(t, warpgroup_size), t.show_operands(); };
  const Body usual = [&](HostThread t) {
    int sums[64];
    multiply(t, factors, sums);
    t.wait_for_products<0>(sums);
  };
  const auto product = [&](auto b_of) {
    return [=, &factors](HostThread t) {
      int sums[64];
      unsigned a[4];
      factors.fragment(t, 0, a);
      t.begin_products();
      t.begin_product(sums, a, b_of(t));
      t.close_products();
      t.wait_for_products<0>(sums);
    };
  };
  EXPECT_EQ(error_of(warpgroup_size, with(stored, usual)), "");

  // Nothing was stored; not by all; not shown.
  const std::string unseen = "not copied or stored and shown";
  expect_error(unseen, warpgroup_size, with([](HostThread) {}, usual));
  expect_error(unseen, warpgroup_size,
               with(
                   [&](HostThread t) {
                     factors.store(t, warpgroup_size);
                     if (t.index() < 64) t.show_operands();
                   },
                   usual));
  expect_error(unseen, warpgroup_size,
               with([&](HostThread t) { factors.store(t, warpgroup_size); }, usual));
  // Plain stores are none that products may read.
  expect_error(unseen, warpgroup_size,
               with(
                   [](HostThread t) {
                     for (std::size_t i = 0; i < operand_bytes / warpgroup_size; ++i)
                       t.shared()[static_cast<std::size_t>(t.index()) + i * warpgroup_size] = 1;
                     t.show_operands();
                   },
                   usual));
  // A layout that is not the one that was stored: it comes to bytes that nobody stored, or its
  // products are wrong.
  expect_error(unseen, warpgroup_size, with(stored, product([](HostThread t) {
                                              return t.operand(t.shared(), 4 * column_bytes,
                                                               half_bytes);
                                            })));
  int right = 0;
  EXPECT_EQ(error_of(warpgroup_size,
                     with(stored,
                          [&](HostThread t) {
                            int sums[64], others[64];
                            unsigned a[4];
                            factors.fragment(t, 0, a);
                            t.begin_products();
                            t.begin_product(sums, a,
                                            t.operand(t.shared(), column_bytes, half_bytes));
                            t.begin_product(others, a,
                                            t.operand(t.shared(), 2 * column_bytes, step_bytes));
                            t.close_products();
                            t.wait_for_products<0>(sums);
                            for (int i = 0; i < 64; ++i)
                              t.atomic_add(&right, int{sums[i] == others[i]});
                          })),
            "");
  EXPECT_LT(right, warpgroup_size * 64 / 10);
  expect_error("outside of shared memory", warpgroup_size,
               with(stored, product([](HostThread t) {
                      return t.operand(t.shared(), shared_bytes / 16 * 16, half_bytes);
                    })));
  expect_error("multiples of 16", warpgroup_size, with(stored, product([](HostThread t) {
                                                         return t.operand(t.shared() + 8,
                                                                          column_bytes, half_bytes);
                                                       })));
  // The warps of the group do not agree, or some do not come.
  expect_error("different operands", warpgroup_size,
               with(stored, product([](HostThread t) {
                      const auto b = t.operand(t.shared(), column_bytes, half_bytes);
                      return t.index() < 64 ? b : t.further(b, step_bytes);
                    })));
  expect_error("unequal products", warpgroup_size, with(stored, [&](HostThread t) {
                 if (t.index() < 96) usual(t);
               }));
  expect_error("less than four warps", 96, [&](HostThread t) {
    factors.store(t, 96);
    t.show_operands(), t.sync(), usual(t);
  });
}

TEST(Warpgroup, NoticesSumsAndOperandsThatAreTouchedTooEarly) {
  const Factors factors(6);
  const auto after = [&](const std::function<void(HostThread, int(&)[64])>& touch) {
    return [&factors, touch](HostThread t) {
      factors.store(t, warpgroup_size);
      t.show_operands();
      t.sync();
      int sums[64];
      multiply(t, factors, sums);
      touch(t, sums);
    };
  };
  expect_error("written before they were waited for", warpgroup_size,
               after([](HostThread t, int(&sums)[64]) {
                 sums[7] = 1;
                 t.wait_for_products<0>(sums);
               }));
  expect_error("written before they were waited for", warpgroup_size,
               after([&](HostThread t, int(&sums)[64]) {
                 sums[63] = 1;
                 multiply(t, factors, sums);
               }));
  expect_error("before it has waited for its products", warpgroup_size,
               after([](HostThread, int(&)[64]) {}));
  // The registers of one that is under way get the rows of the next.
  expect_error("registers of a product were written", warpgroup_size,
               after([&](HostThread t, int(&sums)[64]) {
                 t.wait_for_products<0>(sums);
                 unsigned a[4];
                 const auto b = t.operand(t.shared(), column_bytes, half_bytes);
                 t.begin_products();
                 for (const int k : {0, 32}) {
                   factors.fragment(t, k, a);
                   t.add_product(sums, a, t.further(b, static_cast<unsigned>(k) / 32 * step_bytes));
                   t.close_products();
                 }
                 t.wait_for_products<0>(sums);
               }));
  // A group that is still under way.
  expect_error("before it has waited for its products", warpgroup_size,
               after([](HostThread t, int(&sums)[64]) { t.wait_for_products<1>(sums); }));
  // One that was never closed.
  expect_error("before it has waited for its products", warpgroup_size,
               after([&](HostThread t, int(&sums)[64]) {
                 t.wait_for_products<0>(sums);
                 t.begin_products();
                 unsigned a[4] = {};
                 t.add_product(sums, a, t.operand(t.shared(), column_bytes, half_bytes));
                 t.wait_for_products<0>(sums);
               }));
  // New registers without begin_products().
  expect_error("without begin_products()", warpgroup_size, after([&](HostThread t, int(&sums)[64]) {
                 t.wait_for_products<0>(sums);
                 unsigned a[4] = {};
                 t.add_product(sums, a, t.operand(t.shared(), column_bytes, half_bytes));
               }));
  if (tsan::on) return;  // it sees that the operand is written while it is read
  expect_error("changed while a product was under way", warpgroup_size,
               after([](HostThread t, int(&sums)[64]) {
                 if (t.index() == 77) t.shared()[500] ^= 1;
                 t.sync();
                 t.wait_for_products<0>(sums);
               }));
}

// ---- copies that a barrier counts -----------------------------------------------------------

constexpr unsigned piece = 1024;

// One thread copies two pieces; all wait for them.
struct Copying {
  unsigned expected = 2 * piece;
  bool shown = true, waits = true;
};
int differing_bytes(HostThread t, const std::vector<unsigned char>& from, Copying how) {
  if (t.index() == 0) {
    t.begin_arrivals(word(t), 1);
    if (how.shown) t.show_barriers();
  }
  t.sync();
  if (t.index() == 32) {
    t.arrive_expecting(word(t), how.expected);
    for (unsigned i = 0; i < 2; ++i)
      t.copy_bulk(t.shared() + i * piece, from.data() + i * piece, piece, word(t));
  }
  if (how.waits) t.wait_for_arrivals(word(t), false);
  int out = 0;
  for (unsigned i = 0; i < 2 * piece; ++i) out += t.shared()[i] != from[i];
  return out;
}
std::vector<unsigned char> bytes_to_copy() {
  std::vector<unsigned char> out(2 * piece + 16);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<unsigned char>(i * 7 + i / 256);
  return out;
}

TEST(Warpgroup, CopiesAreThereForWhoWaitsForTheirBarrier) {
  const auto from = bytes_to_copy();
  for (const bool waits : {true, false}) {
    if (tsan::on && !waits) continue;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      std::vector<int> differ(64);
      run_blocks(1, 64, shared_bytes, seed, [&](HostThread t) {
        Copying how;
        how.waits = waits;
        differ[static_cast<std::size_t>(t.index())] = differing_bytes(t, from, how);
      });
      for (const int count : differ) EXPECT_EQ(count == 0, waits) << seed;
    }
  }
}

// A ring of two pieces through which 20 go, each filled again only when both warps have read it.
TEST(Warpgroup, ARingOfCopies) {
  std::vector<unsigned char> from(20 * piece);
  for (std::size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<unsigned char>(i * 5 + i / 512);
  for (const bool waits : {true, false}) {
    if (tsan::on && !waits) continue;
    int wrong = 0;
    for (std::uint64_t seed = 1; seed <= 10; ++seed)
      wrong += !error_of(
                    96,
                    [&](HostThread t) {
                      const auto full = [&](int i) { return word(t, i % 2); };
                      const auto empty = [&](int i) { return word(t, 2 + i % 2); };
                      if (t.index() == 0) {
                        for (int i = 0; i < 2; ++i)
                          t.begin_arrivals(full(i), 1), t.begin_arrivals(empty(i), 2);
                        t.show_barriers();
                      }
                      t.sync();
                      for (int i = 0; i < 20; ++i) {
                        const bool odd = i / 2 % 2 != 0;
                        unsigned char* const at = t.shared() + i % 2 * piece;
                        if (t.index() == 0) {
                          if (waits) t.wait_for_arrivals(empty(i), !odd);
                          t.arrive_expecting(full(i), piece);
                          t.copy_bulk(at, from.data() + i * piece, piece, full(i));
                        } else if (t.index() >= 32) {
                          t.wait_for_arrivals(full(i), odd);
                          t.atomic_add(&wrong,
                                       int{std::memcmp(at, from.data() + i * piece, piece) != 0});
                          t.sync_warp();
                          if (t.index() % 32 == 0 && waits) t.arrive(empty(i));
                        }
                      }
                    },
                    seed)
                    .empty();
    EXPECT_EQ(wrong == 0, waits);
  }
}

// What was copied may be multiplied as it is.
TEST(Warpgroup, ProductsOfWhatWasCopied) {
  const Factors factors(7);
  std::vector<unsigned char> from(operand_bytes);
  for (int k = 0; k < depth; k += 4)
    for (int column = 0; column < columns; ++column) {
      const unsigned four = factors.word_of(k, column);
      std::memcpy(from.data() + Factors::place_of(k, column), &four, 4);
    }
  std::vector<int> wrong(warpgroup_size);
  run_blocks(1, warpgroup_size, shared_bytes, 1, [&](HostThread t) {
    if (t.index() == 0) t.begin_arrivals(word(t), 1), t.show_barriers();
    t.sync();
    if (t.index() == 5) {
      t.copy_bulk(t.shared(), from.data(), operand_bytes, word(t));
      t.arrive_expecting(word(t), operand_bytes);
    }
    t.wait_for_arrivals(word(t), false);
    int sums[64];
    multiply(t, factors, sums);
    t.wait_for_products<0>(sums);
    for (int i = 0; i < 64; ++i)
      wrong[static_cast<std::size_t>(t.index())] +=
          sums[i] != factors.product(row_of(t, i), column_of(t, i));
  });
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

TEST(Warpgroup, NoticesWrongCopies) {
  const auto from = bytes_to_copy();
  const auto with = [&](Copying how) {
    return [&, how](HostThread t) { differing_bytes(t, from, how); };
  };
  EXPECT_EQ(error_of(64, with({})), "");
  expect_error("expects 2032 bytes, but copies bring 2048", 64, with({2 * piece - 16}));
  expect_error("expects 2064 bytes, of which 2048 are on their way", 64, with({2 * piece + 16}));
  expect_error("not shown to the copies", 64, with({2 * piece, false}));
  expect_error("less than 2^20", 64, with({1 << 20}));
  const auto copy = [&](std::size_t to, std::size_t first, unsigned bytes) {
    return [=, &from](HostThread t) {
      if (t.index() == 0) {
        t.begin_arrivals(word(t), 1);
        t.show_barriers();
        t.copy_bulk(t.shared() + to, from.data() + first, bytes, word(t));
      }
    };
  };
  expect_error("no multiples of 16", 32, copy(8, 0, 32));
  expect_error("no multiples of 16", 32, copy(0, 4, 32));
  expect_error("no multiples of 16", 32, copy(0, 0, 8));
  expect_error("outside of shared memory", 32, copy(shared_bytes - 16, 0, 32));
  // Nobody says how many bytes come: the round does not end.
  expect_error("but copies bring 32", 32, [&](HostThread t) {
    copy(0, 0, 32)(t);
    t.sync();
    if (t.index() == 0) t.arrive(word(t));
    t.wait_for_arrivals(word(t), false);
  });
}

// ---- barriers of some warps, and registers ----------------------------------------------------

TEST(Warpgroup, BarriersOfSomeWarps) {
  for (const bool waits : {true, false}) {
    if (tsan::on && !waits) continue;
    int wrong = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed)
      run_blocks(1, 128, shared_bytes, seed, [&](HostThread t) {
        int* const x = reinterpret_cast<int*>(t.shared());
        const int half = t.index() / 64;
        for (int round = 0; round < 5; ++round) {
          x[t.index()] = round;
          waits ? t.sync_some(1 + half, 64) : t.fence();
          if (x[t.index() ^ 32] != round) t.atomic_add(&wrong, 1);
          waits ? t.sync_some(1 + half, 64) : t.fence();
          if (half == 1 && round == 2) return;  // the other half does not wait for this one
        }
      });
    EXPECT_EQ(wrong == 0, waits);
  }
  expect_error("unequal numbers", 128,
               [](HostThread t) { t.sync_some(1, t.index() < 64 ? 96 : 128); });
  expect_error("whole warps", 64, [](HostThread t) { t.sync_some(1, 48); });
  expect_error("whole warps", 64, [](HostThread t) { t.sync_some(1, 96); });
  expect_error("from 1 to 15", 64, [](HostThread t) { t.sync_some(16, 64); });
  expect_error("stands still", 128, [](HostThread t) {
    if (t.index() < 96) t.sync_some(3, 128);
  });
}

// 384 threads have 168 registers each. What one warpgroup keeps is all that others may take.
TEST(Warpgroup, RegistersChangeHands) {
  const auto hand_over = [](auto kept, auto taken) {
    return [](HostThread t) {
      if (t.index() < warpgroup_size)
        t.keep_registers<decltype(kept)::value>();
      else
        t.take_registers<decltype(taken)::value>();
    };
  };
  constexpr std::integral_constant<int, 72> few;
  constexpr std::integral_constant<int, 216> many;
  constexpr std::integral_constant<int, 224> more;
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    EXPECT_EQ(error_of(3 * warpgroup_size, hand_over(few, many), seed), "");
  expect_error("stands still", 3 * warpgroup_size, hand_over(few, more));
  expect_error("registers are kept that a warp has not", 3 * warpgroup_size, hand_over(many, many));
  expect_error("or taken that it has", 3 * warpgroup_size, hand_over(few, few));
  expect_error("unequal registers", warpgroup_size, [](HostThread t) {
    if (t.index() < 64) t.keep_registers<72>();
  });
}

}  // namespace
}  // namespace knear
