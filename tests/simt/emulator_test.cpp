// The emulated block: its operations are what a GPU's are, and it notices what it says it notices.
#include "tests/simt/emulator.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/select/warp/warp_select.hpp"
#include "knear/simt/thread_warp.hpp"
#include "tests/select/select_cases.hpp"
#include "tests/simt/thread_sanitizer.hpp"

namespace knear {
namespace {

template <class Thread>
struct Doubled {
  static constexpr int threads = 96, resident_blocks = 1;
  float* data;
  std::int64_t count;

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t i = t.block() * threads + t.index();
    if (i < count) data[i] *= 2;
  }
};

TEST(Emulator, RunsEveryThreadOfEveryBlock) {
  HostQueue queue;
  auto data = queue.allocate<float>(1000);
  std::vector<float> host(1000);
  std::iota(host.begin(), host.end(), 0.0f);
  queue.upload(data.data(), host.data(), 1000);
  launch(queue, {11, 0}, Doubled<HostThread>{data.data(), 1000});
  queue.download(host.data(), data.data(), 1000);
  EXPECT_NE(host[1], 2.0f);  // it may still be on the way
  queue.wait();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(host[i], 2.0f * static_cast<float>(i));
}

TEST(Emulator, OperationsOfAWarp) {
  std::vector<int> wrong(64);
  run_blocks(1, 64, 0, 3, [&](HostThread t) {
    const int lane = t.index() % 32, warp = t.index() / 32;
    const unsigned odd = t.ballot(lane % 2 == 1);
    bool good = odd == 0xaaaaaaaau;
    good &= t.any(lane == 17) && !t.any(false) && t.all(true) && !t.all(lane != 4);
    good &= t.shuffle(10 * warp + lane, 5) == 10 * warp + 5;
    good &= t.shuffle_xor(lane, 6) == (lane ^ 6);
    good &= t.shuffle_xor(double(lane), 31) == double(31 - lane);
    for (int i = 0; i < 50; ++i) good &= t.shuffle(i + lane, i % 32) == i + i % 32;
    wrong[t.index()] = !good;
  });
  EXPECT_EQ(std::accumulate(wrong.begin(), wrong.end(), 0), 0);
}

// Sums of 256 values by halves; without its barriers it is wrong for most seeds.
int wrong_sums(bool barriers, int probed_clusters) {
  int wrong = 0;
  for (int seed = 0; seed < probed_clusters; ++seed) {
    int sum = 0;
    run_blocks(1, 256, 256 * sizeof(int), seed, [&](HostThread t) {
      int* x = reinterpret_cast<int*>(t.shared());
      x[t.index()] = t.index();
      t.sync();
      for (int half = 128; half > 0; half /= 2) {
        if (t.index() < half) x[t.index()] += x[t.index() + half];
        barriers ? t.sync() : t.fence();
      }
      if (t.index() == 0) sum = x[0];
    });
    wrong += sum != 255 * 128;
  }
  return wrong;
}

// The thread sanitiser would end the program for what these do on purpose: races_test.cpp is for
// it.
TEST(Emulator, AMissingBarrierShows) {
  EXPECT_EQ(wrong_sums(true, 20), 0);
  if (!tsan::on) {
    EXPECT_GT(wrong_sums(false, 20), 10);
  }
}

// What the others wrote in the last round must not be overwritten before the slowest warp has read
// it: for that a warp has to be several operations behind.
TEST(Emulator, AWarpMayLagFarBehind) {
  for (bool barrier : {true, false}) {
    if (tsan::on && !barrier) continue;
    int wrong = 0;
    for (int seed = 0; seed < 20; ++seed)
      run_blocks(1, 128, 4 * sizeof(int), seed, [&](HostThread t) {
        int* x = reinterpret_cast<int*>(t.shared());
        for (int round = 0; round < 5; ++round) {
          for (int i = 0; i < 10; ++i) t.sync_warp();
          if (t.index() % 32 == 0) x[t.index() / 32] = round;
          t.sync();
          int others = 0;
          for (int i = 0; i < 4; ++i) others += x[i] != round;
          t.atomic_add(&wrong, others);
          if (barrier) t.sync();
        }
      });
    EXPECT_EQ(wrong == 0, barrier);
  }
}

TEST(Emulator, AtomicOperationsAddUpAndOrderIsByChance) {
  std::set<std::vector<int>> orders;
  for (int seed = 0; seed < 5; ++seed) {
    int count = 0;
    unsigned long long largest = 0;
    std::vector<int> order(3 * 64, -1);
    run_blocks(3, 64, 0, seed, [&](HostThread t) {
      const int number = static_cast<int>(t.block()) * 64 + t.index();
      order[t.atomic_add(&count, 1)] = number;
      t.atomic_max(&largest, static_cast<unsigned long long>(number));
    });
    EXPECT_EQ(count, 192);
    EXPECT_EQ(largest, 191u);
    EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 192u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 5u);
}

// Each warp publishes a number for a round and goes on; what it waits for is the round before. So
// warps are never more than one round apart, and with the wait left out they are.
TEST(Emulator, ABarrierInTwoHalves) {
  for (const bool waits : {true, false}) {
    if (tsan::on && !waits) continue;
    int wrong = 0, apart = 0;
    for (int seed = 0; seed < 20; ++seed)
      run_blocks(1, 128, 64, seed, [&](HostThread t) {
        auto* const word = reinterpret_cast<unsigned long long*>(t.shared());
        int* const x = reinterpret_cast<int*>(t.shared() + 16);  // [2 rounds][4 warps]
        const int warp = t.index() / 32;
        if (t.index() == 0) t.begin_arrivals(word, 4);
        if (t.index() < 8) x[t.index()] = -1;
        t.sync();
        for (int round = 0; round < 6; ++round) {
          if (t.index() % 32 == 0) x[round % 2 * 4 + warp] = round;
          t.sync_warp();
          if (t.index() % 32 == 0) t.arrive(word);
          if (!waits) continue;
          for (int i = 0; i < 5; ++i) t.sync_warp();
          t.wait_for_arrivals(word, round % 2 != 0);
          for (int i = 0; i < 4; ++i)
            if (x[round % 2 * 4 + i] != round) t.atomic_add(&wrong, 1);
        }
        if (!waits)
          for (int i = 0; i < 4; ++i)
            if (x[4 + i] != 5) t.atomic_add(&apart, 1);
      });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(apart > 0, !waits);
  }
}

TEST(Emulator, CopiesComeWhenTheyAreWaitedFor) {
  std::vector<unsigned char> from(4 * 32 * 16);
  for (std::size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<unsigned char>(i * 7 + i / 256);
  int early = 0, wrong = 0;
  run_blocks(1, 32, 4 * 32 * 16, 1, [&](HostThread t) {
    for (int stage = 0; stage < 4; ++stage) {
      const int at = (stage * 32 + t.index()) * 16;
      t.copy_16(t.shared() + at, from.data() + at, stage != 3);
      t.close_copies();
    }
    const int mine = t.index() * 16;
    t.wait_for_copies<3>();
    if (!tsan::on)  // which sees that it is too early
      early += std::memcmp(t.shared() + 512 + mine, from.data() + 512 + mine, 16) == 0;
    int bad = std::memcmp(t.shared() + mine, from.data() + mine, 16) != 0;
    t.wait_for_copies<0>();
    for (int stage = 0; stage < 3; ++stage)
      bad +=
          std::memcmp(t.shared() + stage * 512 + mine, from.data() + stage * 512 + mine, 16) != 0;
    const unsigned char zeros[16] = {};
    bad += std::memcmp(t.shared() + 3 * 512 + mine, zeros, 16) != 0;
    t.atomic_add(&wrong, bad);
  });
  EXPECT_EQ(early, 0);
  EXPECT_EQ(wrong, 0);
}

// Fragments are filled element by element as the PTX manual draws them, not as the emulator reads.
TEST(Emulator, ProductsOfBytes) {
  Random random(5);
  std::uint8_t a[16][32];
  std::int8_t b[32][8];
  for (auto& row : a)
    for (auto& x : row) x = static_cast<std::uint8_t>(random.below(256));
  for (auto& row : b)
    for (auto& x : row) x = static_cast<std::int8_t>(random.below(256));
  int c[16][8];
  run_blocks(1, 32, 0, 1, [&](HostThread t) {
    const int group = t.index() >> 2, in_group = t.index() % 4;
    unsigned fa[4] = {}, fb[2] = {};
    int fc[4] = {1, 2, 3, 4};
    for (int i = 0; i < 16; ++i) {
      const int row = (i < 4) || (i >= 8 && i < 12) ? group : group + 8;
      const int column = i < 8 ? in_group * 4 + (i & 3) : in_group * 4 + (i & 3) + 16;
      fa[i / 4] |= static_cast<unsigned>(a[row][column]) << 8 * (i % 4);
    }
    for (int i = 0; i < 8; ++i) {
      const int row = i < 4 ? in_group * 4 + (i & 3) : in_group * 4 + (i & 3) + 16;
      fb[i / 4] |= static_cast<unsigned>(static_cast<std::uint8_t>(b[row][group])) << 8 * (i % 4);
    }
    t.multiply_u8_s8(fc, fa, fb);
    for (int i = 0; i < 4; ++i)
      c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = fc[i] - (i + 1);
  });
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      int sum = 0;
      for (int k = 0; k < 32; ++k) sum += a[i][k] * b[k][j];
      ASSERT_EQ(c[i][j], sum) << i << " " << j;
    }
}

TEST(Emulator, ProductsOfBfloat16) {
  Random random(6);
  const auto bits = [](int x) { return std::bit_cast<unsigned>(static_cast<float>(x)) >> 16; };
  int a[16][16], b[16][8];  // whole numbers of 7 bits, which bfloat16 holds
  for (auto& row : a)
    for (auto& x : row) x = static_cast<int>(random.below(255)) - 127;
  for (auto& row : b)
    for (auto& x : row) x = static_cast<int>(random.below(255)) - 127;
  float c[16][8];
  run_blocks(1, 32, 0, 1, [&](HostThread t) {
    const int group = t.index() >> 2, in_group = t.index() % 4;
    unsigned fa[4] = {}, fb[2] = {};
    float fc[4] = {};
    for (int i = 0; i < 8; ++i) {
      const int row = (i < 2) || (i >= 4 && i < 6) ? group : group + 8;
      const int column = i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
      fa[i / 2] |= bits(a[row][column]) << 16 * (i % 2);
    }
    for (int i = 0; i < 4; ++i) {
      const int row = i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
      fb[i / 2] |= bits(b[row][group]) << 16 * (i % 2);
    }
    t.multiply_bf16(fc, fa, fb);
    for (int i = 0; i < 4; ++i) c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = fc[i];
  });
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      int sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
      ASSERT_EQ(c[i][j], static_cast<float>(sum)) << i << " " << j;
    }
}

// Accesses of which it is known what they take.
TEST(Emulator, CountsWavefrontsOfSharedMemory) {
  struct alignas(8) Two {
    int of[2];
  };
  struct alignas(16) Four {
    int of[4];
  };
  const auto taken = [](auto access) {
    const CountSharedAccesses counted;
    run_blocks(1, 32, 32 << 10, 1, access);
    return counted.all();
  };
  const auto ints = [](HostThread t) { return reinterpret_cast<int*>(t.shared()); };
  EXPECT_EQ(taken([&](HostThread t) { t.read_shared(ints(t) + t.index()); }), 1);
  EXPECT_EQ(taken([&](HostThread t) { t.read_shared(ints(t) + 7); }), 1);
  EXPECT_EQ(taken([&](HostThread t) { t.write_shared(ints(t) + 2 * t.index(), 1); }), 2);
  EXPECT_EQ(taken([&](HostThread t) { t.read_shared(ints(t) + 32 * t.index()); }), 32);
  EXPECT_EQ(taken([&](HostThread t) { t.read_shared(ints(t) + 33 * t.index()); }), 1);
  // Only some lanes, and those twice.
  EXPECT_EQ(taken([&](HostThread t) {
              for (int i = 0; i < 2 && t.index() < 5; ++i) t.read_shared(ints(t) + 32 * t.index());
            }),
            10);
  EXPECT_EQ(taken([&](HostThread t) {
              t.read_shared(reinterpret_cast<const Two*>(t.shared()) + t.index());
            }),
            2);
  EXPECT_EQ(taken([&](HostThread t) {
              t.read_shared(reinterpret_cast<const Two*>(t.shared()) + 2 * t.index());
            }),
            4);
  EXPECT_EQ(taken([&](HostThread t) {
              t.read_shared(reinterpret_cast<const Four*>(t.shared()) + t.index());
            }),
            4);
  EXPECT_EQ(taken([&](HostThread t) {
              t.read_shared(reinterpret_cast<const Four*>(t.shared()) + t.index() / 4);
            }),
            1);
  EXPECT_EQ(taken([&](HostThread t) {
              t.read_shared(reinterpret_cast<const Four*>(t.shared()) + 2 * t.index());
            }),
            8);
  // Those between two meetings of the warp are told apart from those after.
  const CountSharedAccesses counted;
  std::vector<unsigned char> from(512);
  const auto* const aligned = reinterpret_cast<const unsigned char*>(
      (reinterpret_cast<std::uintptr_t>(from.data()) + 15) / 16 * 16);
  run_blocks(3, 64, 1024, 1, [&](HostThread t) {
    if (t.index() % 32 < 16) t.write_shared(ints(t) + t.index(), 1);
    t.any(true);
    t.write_shared(ints(t) + t.index(), 1);
    t.sync();
    t.copy_16(t.shared() + t.index() * 16, aligned, true);
    t.close_copies();
    t.wait_for_copies<0>();
  });
  EXPECT_EQ(counted.instructions[CountSharedAccesses::write], 3 * 2 * 2);
  EXPECT_EQ(counted.wavefronts[CountSharedAccesses::write], 3 * 2 * 2);
  EXPECT_EQ(counted.instructions[CountSharedAccesses::copy], 3 * 2);
  EXPECT_EQ(counted.wavefronts[CountSharedAccesses::copy], 3 * 2 * 4);
  EXPECT_EQ(counted.instructions[CountSharedAccesses::read], 0);
}

template <class F>
std::string error_of(F body) {
  try {
    run_blocks(1, 64, 64, 1, body);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

TEST(Emulator, NoticesARoundThatNobodyEnds) {
  EXPECT_THROW(run_blocks(1, 64, 16, 1,
                          [](HostThread t) {
                            auto* const word = reinterpret_cast<unsigned long long*>(t.shared());
                            if (t.index() == 0) t.begin_arrivals(word, 2);
                            t.sync();
                            if (t.index() == 0) t.arrive(word);
                            t.wait_for_arrivals(word, false);
                          }),
               std::logic_error);
  EXPECT_THROW(run_blocks(1, 32, 16, 1,
                          [](HostThread t) {
                            auto* const word = reinterpret_cast<unsigned long long*>(t.shared());
                            if (t.index() == 0) t.begin_arrivals(word, 1);
                            t.sync();
                            if (t.index() == 0) t.begin_arrivals(word, 0), t.arrive(word);
                          }),
               std::logic_error);
}

TEST(Emulator, NoticesWhatNoBlockMayDo) {
  EXPECT_NE(error_of([](HostThread t) { t.index() % 2 ? (void)t.any(true) : t.sync_warp(); }), "");
  EXPECT_NE(error_of([](HostThread t) {
              if (t.index() != 40) t.sync();
            }),
            "");
  EXPECT_NE(error_of([](HostThread t) {
              if (t.index() % 32 != 7) t.ballot(true);
            }),
            "");
  EXPECT_NE(error_of([](HostThread t) { t.copy_16(t.shared() + 4, t.shared(), true); }), "");
  EXPECT_NE(error_of([](HostThread t) { t.shuffle(1, 32); }), "");
  EXPECT_EQ(error_of([](HostThread t) { t.sync(); }), "");
}

// Each block writes its place in every round, and reads those of all others. Without the second
// barrier a block may write the next round before others have read this one.
TEST(Emulator, BlocksOfAGridWaitForOneAnother) {
  constexpr std::int64_t blocks = 4;
  for (bool second : {true, false}) {
    if (tsan::on && !second) continue;
    int wrong = 0, seen = 0;
    for (int seed = 0; seed < 20; ++seed) {
      std::vector<int> x(blocks, -1);
      run_blocks(
          blocks, 64, 0, seed,
          [&](HostThread t) {
            for (int round = 0; round < 5; ++round) {
              if (t.index() == 17) x[t.block()] = round;
              t.sync_grid();
              int others = 0;
              for (const int one : x) others += one != round;
              t.atomic_add(&wrong, others);
              t.atomic_add(&seen, 1);
              if (second) t.sync_grid();
            }
          },
          true);
    }
    EXPECT_EQ(wrong == 0, second);
    EXPECT_EQ(seen, 20 * 5 * blocks * 64);
  }
}

struct WaitsForOthers {
  static constexpr int threads = warp_size, resident_blocks = 2;
  int* sum;
  template <class T>
  void operator()(const T& t) const {
    t.atomic_add(sum, 1);
    t.sync_grid();
    if (t.block() == 0) sum[1 + t.index()] = t.atomic_read(sum);
  }
};

TEST(Emulator, NoticesBlocksThatCannotWaitForOneAnother) {
  const auto run = [](bool together, const std::function<void(HostThread)>& body) {
    run_blocks(3, 64, 0, 1, body, together);
  };
  EXPECT_THROW(run(false, [](HostThread t) { t.sync_grid(); }), std::logic_error);
  EXPECT_THROW(run(true,
                   [](HostThread t) {
                     if (t.block() != 2 || t.index() != 40) t.sync_grid();
                   }),
               std::logic_error);
  EXPECT_THROW(run(true, [](HostThread t) { t.index() % 2 ? t.sync() : t.sync_grid(); }),
               std::logic_error);
  EXPECT_NO_THROW(run(true, [](HostThread t) { t.sync_grid(); }));

  HostQueue queue;
  auto sum = queue.allocate<int>(1 + warp_size);
  queue.fill_bytes(sum.data(), 0, sum.size());
  const std::int64_t most = 2 * queue.multiprocessors();
  launch(queue, Grid{most, 0, true}, WaitsForOthers{sum.data()});
  for (int i = 0; i < 1 + warp_size; ++i) EXPECT_EQ(sum.data()[i], most * warp_size);
  EXPECT_THROW(launch(queue, Grid{most + 1, 0, true}, WaitsForOthers{sum.data()}),
               std::logic_error);
  EXPECT_THROW(launch(queue, Grid{most, 114 << 10, true}, WaitsForOthers{sum.data()}),
               std::logic_error);
}

TEST(Emulator, NoticesCopiesThatNobodyWaitsFor) {
  alignas(16) unsigned char from[16] = {};
  const auto run = [&](bool waits, bool grid) {
    run_blocks(
        1, 32, 16, 1,
        [&](HostThread t) {
          if (t.index() == 3) t.copy_16(t.shared(), from, true);
          t.close_copies();
          if (waits) t.wait_for_copies<0>();
          if (grid) t.sync_grid();
          t.wait_for_copies<0>();
        },
        true);
  };
  EXPECT_NO_THROW(run(true, true));
  EXPECT_NO_THROW(run(false, false));
  EXPECT_THROW(run(false, true), std::logic_error);
  EXPECT_THROW(run_blocks(1, 32, 16, 1,
                          [&](HostThread t) {
                            if (t.index() == 3) t.copy_16(t.shared(), from, true);
                          }),
               std::logic_error);
}

TEST(Emulator, BringsNearerWhatIsInTheMemoryOfADevice) {
  HostQueue queue;
  auto there = queue.allocate<unsigned char>(300);
  const auto prefetch = [](const unsigned char* at) {
    run_blocks(1, 32, 0, 1, [&](HostThread t) { t.prefetch(at); });
  };
  EXPECT_NO_THROW(prefetch(there.data()));
  EXPECT_NO_THROW(prefetch(there.data() + 299));
  EXPECT_THROW(prefetch(there.data() + 300), std::logic_error);
}

// Reads what another device may have.
struct Reads {
  static constexpr int threads = warp_size, resident_blocks = 1;
  const float* from;
  float* to;
  template <class T>
  void operator()(const T& t) const {
    to[t.index()] = from[t.index()];
  }
};

struct Place {
  const float* from;
};

TEST(Emulator, DevicesHaveMemoryApart) {
  const auto first = std::make_shared<HostDevice>(0), second = std::make_shared<HostDevice>(1, 200);
  HostQueue here(1, 1 << 20, first), there(2, 1 << 20, second);
  auto mine = here.allocate<float>(32), other = here.allocate<float>(32);
  auto theirs = there.allocate<float>(32);
  std::vector<float> host(32);
  here.upload(mine.data(), host.data(), 32);
  launch(here, Grid{1, 0}, Reads{mine.data(), other.data()});
  EXPECT_THROW(launch(here, Grid{1, 0}, Reads{theirs.data(), mine.data()}), std::logic_error);
  EXPECT_THROW(launch(there, Grid{1, 0}, Reads{mine.data() + 31, theirs.data()}), std::logic_error);
  EXPECT_THROW(here.upload(theirs.data(), host.data(), 32), std::logic_error);
  EXPECT_THROW(here.download(host.data(), theirs.data(), 32), std::logic_error);
  EXPECT_THROW(here.fill_bytes(theirs.data() + 1, 0, 1), std::logic_error);
  auto places = here.allocate<Place>(1);
  const Place wrong = {theirs.data() + 3};
  EXPECT_THROW(here.upload(places.data(), &wrong, 1), std::logic_error);
  // What each has is its own, also where queues have their own budgets.
  EXPECT_EQ(second->bytes_in_use(), 128u);
  EXPECT_EQ(there.free_bytes(), 72u);
  EXPECT_THROW(there.allocate<float>(19), MemoryBudgetError);
  EXPECT_EQ(first->bytes_in_use(), 256u + sizeof(Place));
  theirs = {};
  { const auto freed = std::move(theirs); }
  EXPECT_EQ(first->launches(), 1);
}

TEST(Emulator, WarpSelectRunsThreadByThread) {
  for (test::SelectKind kind : test::all_select_kinds)
    for (int k : {1, 10, 100}) {
      const int length = 700;
      const std::vector<float> row = test::select_values(kind, length, 11);
      std::vector<float> smallest(k), expected(k);
      std::vector<int> ids(k), expected_ids(k);
      with_warp_select_shape(k, [&](auto shape) {
        run_blocks(1, 32, 0, 1, [&](HostThread t) {
          using W = ThreadWarp<HostThread>;
          WarpSelect<W, int, shape.R, shape.T> select(W(t), k);
          select.add_row(row.data(), length);
          select.store(smallest.data(), ids.data());
        });
      });
      test::select_reference(row.data(), length, k, expected.data(), expected_ids.data());
      EXPECT_EQ(ids, expected_ids) << name_of(kind) << ", k " << k;
      EXPECT_TRUE(test::same_bits(smallest.data(), expected.data(), k));
    }
}

}  // namespace
}  // namespace knear
