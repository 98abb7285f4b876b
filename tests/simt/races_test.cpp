// Which memory accesses of a kernel are ordered: what the thread sanitiser says of kernels with
// their barriers and without, in orders of chance. Built without it, all are skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/simt/emulator.hpp"
#include "tests/simt/thread_sanitizer.hpp"

#ifdef __SANITIZE_THREAD__
namespace {
int races = 0;
bool expecting = false;
}  // namespace

// Called by the sanitiser, of every race: each is to be counted, though it is like another. Those
// that are expected are not printed, and the program does not fail for them.
extern "C" const char* __tsan_default_options() {
  return "suppress_equal_stacks=0:suppress_equal_addresses=0";
}
namespace __tsan {
class ReportDesc;
[[gnu::no_sanitize_thread]] bool OnReport(const ReportDesc*, bool suppressed) {
  ++races;
  return suppressed || expecting;
}
}  // namespace __tsan
#endif

namespace knear {
namespace {

constexpr int seeds = 8;

class Races : public testing::Test {
 protected:
  void SetUp() override {
    if (!tsan::on) GTEST_SKIP() << "built without the thread sanitiser";
  }

  // run(seed) has a race with each seed; with none.
  static void expect_race(const std::function<void(std::uint64_t)>& run) {
    for (int seed = 0; seed < seeds; ++seed)
      EXPECT_GT(count(true, run, seed), 0) << "not found with seed " << seed;
  }
  static void expect_none(const std::function<void(std::uint64_t)>& run) {
    for (int seed = 0; seed < seeds; ++seed)
      EXPECT_EQ(count(false, run, seed), 0) << "with seed " << seed;
  }
  // A body for one block.
  using Body = std::function<void(HostThread)>;
  static void expect_race(int threads, const Body& body) {
    expect_race([&](std::uint64_t seed) { run_blocks(1, threads, shared_bytes, seed, body); });
  }
  static void expect_none(int threads, const Body& body) {
    expect_none([&](std::uint64_t seed) { run_blocks(1, threads, shared_bytes, seed, body); });
  }
  static int* numbers(HostThread t) { return reinterpret_cast<int*>(t.shared()); }

  static constexpr std::size_t shared_bytes = 4096;

 private:
  static int count([[maybe_unused]] bool expected, const std::function<void(std::uint64_t)>& run,
                   int seed) {
#ifdef __SANITIZE_THREAD__
    races = 0, expecting = expected;
    run(static_cast<std::uint64_t>(seed));
    expecting = false;
    return races;
#else
    run(static_cast<std::uint64_t>(seed));
    return 0;
#endif
  }
};

TEST_F(Races, ASumByHalves) {
  const auto sum = [](HostThread t, bool before, bool each) {
    int* const x = numbers(t);
    x[t.index()] = t.index();
    if (before) t.sync();
    for (int half = 32; half > 0; half /= 2) {
      if (t.index() < half) x[t.index()] += x[t.index() + half];
      if (each) t.sync();
    }
  };
  expect_none(64, [&](HostThread t) { sum(t, true, true); });
  expect_race(64, [&](HostThread t) { sum(t, false, true); });
  expect_race(64, [&](HostThread t) { sum(t, true, false); });
}

// A thread that goes on writes what others have still to read, but for the second barrier.
TEST_F(Races, ReadingBeforeItIsWrittenAgain) {
  const auto rounds = [](HostThread t, auto barrier, bool second) {
    for (int round = 0; round < 3; ++round) {
      if (t.index() % 32 == round) numbers(t)[t.index() / 32] = round;
      barrier();
      [[maybe_unused]] const volatile int read = numbers(t)[t.index() / 32];
      if (second) barrier();
    }
  };
  for (bool second : {true, false}) {
    const auto expect = [&](const Body& body) {
      second ? expect_none(64, body) : expect_race(64, body);
    };
    expect([&](HostThread t) {
      rounds(
          t, [&] { t.sync(); }, second);
    });
    expect([&](HostThread t) {
      rounds(
          t, [&] { t.sync_warp(); }, second);
    });
  }
}

// Each lane reads what the one beside it wrote.
TEST_F(Races, WithinAWarpOnlySyncWarpOrders) {
  const auto exchange = [](auto between) {
    return [between](HostThread t) {
      for (int round = 0; round < 3; ++round) {
        numbers(t)[t.index()] = round;
        between(t);
        [[maybe_unused]] const volatile int read = numbers(t)[t.index() ^ 1];
        between(t);
      }
    };
  };
  expect_none(64, exchange([](HostThread t) { t.sync_warp(); }));
  expect_none(64, exchange([](HostThread t) { t.sync(); }));
  expect_race(64, exchange([](HostThread t) { t.ballot(true); }));
  expect_race(64, exchange([](HostThread t) { t.any(true); }));
  expect_race(64, exchange([](HostThread t) { t.all(true); }));
  expect_race(64, exchange([](HostThread t) { t.shuffle(1, 2); }));
  expect_race(64, exchange([](HostThread t) { t.shuffle_xor(1, 2); }));
  expect_race(64, exchange([](HostThread t) {
                int sums[4] = {};
                t.multiply_u8_s8(sums, {1, 2, 3, 4}, {5, 6});
              }));
  expect_race(64, exchange([](HostThread t) {
                float sums[4] = {};
                t.multiply_bf16(sums, {1, 2, 3, 4}, {5, 6});
              }));
}

TEST_F(Races, WarpsAreNotOrderedByTheirOwnBarriers) {
  const auto exchange = [](HostThread t, int distance) {
    numbers(t)[t.index()] = t.index();
    t.sync_warp();
    [[maybe_unused]] const volatile int read = numbers(t)[t.index() ^ distance];
  };
  expect_none(64, [&](HostThread t) { exchange(t, 31); });
  expect_race(64, [&](HostThread t) { exchange(t, 32); });
}

TEST_F(Races, AtomicOperationsOrderNothingElse) {
  expect_none([](std::uint64_t seed) {
    int count = 0;
    unsigned long long largest = 0;
    run_blocks(3, 64, 0, seed, [&](HostThread t) {
      t.atomic_add(&count, 1);
      t.atomic_max(&largest, static_cast<unsigned long long>(t.index()));
    });
    EXPECT_EQ(count, 3 * 64);
    EXPECT_EQ(largest, 63u);
  });
  expect_race([](std::uint64_t seed) {
    std::vector<int> count(1);
    run_blocks(1, 64, 0, seed, [&](HostThread) { ++count[0]; });
  });
  // The block that is the last adds up what each has left.
  const auto last_of = [](bool fences) {
    return [fences](std::uint64_t seed) {
      std::vector<int> parts(5);
      int left = 0, sum = 0;
      run_blocks(5, 32, 0, seed, [&](HostThread t) {
        if (t.index() != 0) return;
        parts[t.block()] = 1;
        if (fences) t.fence();
        if (t.atomic_add(&left, 1) + 1 != t.blocks()) return;
        if (fences) t.fence();
        for (int part : parts) sum += part;
      });
      EXPECT_EQ(sum, 5);
    };
  };
  expect_none(last_of(true));
  expect_race(last_of(false));
}

TEST_F(Races, CopiesAreForTheOneThatWaitedUntilABarrier) {
  alignas(16) static unsigned char from[64 * 16] = {};
  const auto copy = [](HostThread t) {
    t.copy_16(t.shared() + t.index() * 16, from + t.index() * 16, true);
    t.close_copies();
  };
  const auto read = [](HostThread t, int i) {
    [[maybe_unused]] const volatile int x = numbers(t)[i * 4];
  };
  expect_none(64, [&](HostThread t) {
    copy(t), t.wait_for_copies<0>(), read(t, t.index()), t.sync(), read(t, t.index() ^ 40);
  });
  // Each thread waits for its copies before it leaves, as it must.
  expect_race(64, [&](HostThread t) { copy(t), read(t, t.index()), t.wait_for_copies<0>(); });
  expect_race(64, [&](HostThread t) {
    copy(t), t.wait_for_copies<1>(), read(t, t.index()), t.wait_for_copies<0>();
  });
  expect_race(64, [&](HostThread t) { copy(t), t.wait_for_copies<0>(), read(t, t.index() ^ 40); });
  expect_race(64, [&](HostThread t) {
    copy(t), t.sync(), t.wait_for_copies<0>(), read(t, t.index() ^ 40);
  });
  expect_race(64, [&](HostThread t) {
    copy(t), t.sync(), read(t, t.index() ^ 40), t.wait_for_copies<0>();
  });
  // What others still read is copied over, and what is copied is written over.
  expect_none(64, [&](HostThread t) {
    numbers(t)[t.index() * 4] = 1, t.sync(), read(t, t.index() ^ 40), t.sync(), copy(t);
    t.wait_for_copies<0>();
  });
  expect_race(64, [&](HostThread t) {
    numbers(t)[t.index() * 4] = 1, t.sync(), read(t, t.index() ^ 40), copy(t);
    t.wait_for_copies<0>();
  });
  expect_none(64, [&](HostThread t) {
    copy(t), t.wait_for_copies<0>(), t.sync(), from[(t.index() ^ 40) * 16] = 0, t.sync();
  });
  expect_race(64, [&](HostThread t) {
    copy(t), t.sync(), from[(t.index() ^ 40) * 16] = 0, t.sync(), t.wait_for_copies<0>();
  });
  expect_none(64, [&](HostThread t) {  // zeros are not read
    t.copy_16(t.shared() + t.index() * 16, from, false), t.close_copies();
    if (t.index() == 50) from[0] = 0;
    t.wait_for_copies<0>();
  });
}

// A ring of stages, of which one is being copied while another is read.
TEST_F(Races, ARingOfCopies) {
  alignas(16) static unsigned char from[64 * 16] = {};
  const auto ring = [](HostThread t, bool barrier_first) {
    const auto copy = [&](int stage) {
      t.copy_16(t.shared() + stage % 3 * 1024 + t.index() * 16, from + t.index() * 16, true);
      t.close_copies();
    };
    copy(0), copy(1);
    for (int stage = 0; stage < 7; ++stage) {
      if (!barrier_first) copy(stage + 2);
      barrier_first ? t.wait_for_copies<1>() : t.wait_for_copies<2>();
      t.sync();
      if (barrier_first) copy(stage + 2);
      [[maybe_unused]] const volatile int read = numbers(t)[stage % 3 * 256 + (t.index() ^ 40) * 4];
    }
    t.wait_for_copies<0>();
  };
  expect_none(64, [&](HostThread t) { ring(t, true); });
  expect_race(64, [&](HostThread t) { ring(t, false); });
}

// Copies whose bytes a barrier counts, through a ring of two places: they are for who waits for the
// barrier, and a place is copied to again when its readers have arrived.
TEST_F(Races, BulkCopiesAreForThoseThatWaitForTheirBarrier) {
  alignas(16) static unsigned char from[1024] = {};
  const auto ring = [](HostThread t, bool waits, bool handed_back) {
    const auto word = [&](int i) {
      return reinterpret_cast<unsigned long long*>(t.shared() + 3072) + i;
    };
    if (t.index() == 0) {
      for (int i = 0; i < 2; ++i) t.begin_arrivals(word(i), 1), t.begin_arrivals(word(2 + i), 1);
      t.show_barriers();
    }
    t.sync();
    for (int i = 0; i < 6; ++i) {
      const int place = i % 2;
      const bool odd = i / 2 % 2 != 0;
      if (t.index() == 0) {
        if (handed_back) t.wait_for_arrivals(word(2 + place), !odd);
        t.arrive_expecting(word(place), 1024);
        t.copy_bulk(t.shared() + place * 1024, from, 1024, word(place));
        if (!handed_back) t.wait_for_arrivals(word(2 + place), odd);
      } else if (t.index() >= 32) {
        if (waits || t.index() == 32) t.wait_for_arrivals(word(place), odd);
        [[maybe_unused]] const volatile int read = numbers(t)[place * 256 + t.index() * 2];
        t.any(true);
        if (waits && handed_back) t.sync_warp();
        if (t.index() == 32) t.arrive(word(2 + place));
      }
    }
  };
  expect_none(64, [&](HostThread t) { ring(t, true, true); });
  expect_race(64, [&](HostThread t) { ring(t, false, true); });
  expect_race(64, [&](HostThread t) { ring(t, true, false); });
}

// The tensor cores read an operand until the products are waited for.
TEST_F(Races, OperandsAreReadUntilTheirProductsAreThere) {
  const auto multiply = [](bool before, bool after) {
    return [before, after](std::uint64_t seed) {
      run_blocks(1, 160, 4096, seed, [&](HostThread t) {
        const bool multiplies = t.index() < warpgroup_size;
        const auto store = [&] {
          if (!multiplies) return;
          for (int i = t.index(); i < 1024; i += warpgroup_size)
            t.store_operand(reinterpret_cast<unsigned*>(t.shared()) + i, 3);
          t.show_operands();
        };
        store();
        if (before) t.sync();
        int sums[64];
        if (multiplies) {
          if (!before) t.sync_some(1, warpgroup_size);
          t.begin_products();
          t.begin_product(sums, {1, 2, 3, 4}, t.operand(t.shared(), 128, 2048));
          t.close_products();
        }
        if (!after) t.sync();
        if (multiplies) t.wait_for_products<0>(sums);
        if (after) t.sync();
        if (t.index() == 150) reinterpret_cast<unsigned*>(t.shared())[500] = 3;  // as it was
      });
    };
  };
  expect_none(multiply(true, true));
  expect_none(multiply(false, true));
  expect_race(multiply(true, false));
}

TEST_F(Races, BarriersOfSomeWarps) {
  const auto exchange = [](HostThread t, int distance) {
    numbers(t)[t.index()] = t.index();
    t.sync_some(1 + t.index() / 64, 64);
    [[maybe_unused]] const volatile int read = numbers(t)[t.index() ^ distance];
  };
  expect_none(128, [&](HostThread t) { exchange(t, 32); });
  expect_race(128, [&](HostThread t) { exchange(t, 64); });
}

TEST_F(Races, BlocksAreNotOrderedAndLaunchesAre) {
  expect_race([](std::uint64_t seed) {
    std::vector<int> x(1);
    run_blocks(4, 32, 0, seed, [&](HostThread t) {
      if (t.index() == 0) x[0] = 1;
    });
  });
  expect_race([](std::uint64_t seed) {
    std::vector<int> x(32);
    run_blocks(2, 32, 0, seed, [&](HostThread t) {
      if (t.block() == 0) x[t.index()] = 1;
      t.sync();
      if (t.block() == 1) [[maybe_unused]]
        const volatile int read = x[t.index()];
    });
  });
  expect_none([](std::uint64_t seed) {
    std::vector<int> x(64);
    for (int round = 0; round < 3; ++round) {
      for (int& one : x) ++one;
      run_blocks(2, 32, 0, seed, [&](HostThread t) { ++x[t.block() * 32 + t.index()]; });
      run_blocks(2, 32, 0, seed, [&](HostThread t) { ++x[63 - t.block() * 32 - t.index()]; });
    }
    EXPECT_EQ(std::count(x.begin(), x.end(), 9), 64);
  });
}

// Of a grid that runs together what comes before its barrier and after it is.
TEST_F(Races, BlocksThatWaitForOneAnotherAreOrdered) {
  const auto rounds = [](bool first, bool second) {
    return [first, second](std::uint64_t seed) {
      std::vector<int> x(96);
      run_blocks(
          3, 32, 0, seed,
          [&](HostThread t) {
            for (int round = 0; round < 3; ++round) {
              x[t.block() * 32 + t.index()] = round;
              if (first) t.sync_grid();
              [[maybe_unused]] const volatile int read = x[(t.block() + 1) % 3 * 32 + t.index()];
              if (second) t.sync_grid();
            }
          },
          true);
    };
  };
  expect_none(rounds(true, true));
  expect_race(rounds(false, true));
  expect_race(rounds(true, false));
}

}  // namespace
}  // namespace knear
