// select_k on device memory, its kernels run thread by thread, against a partial sort and against
// the CPU's select_k: every kind of row, k around every edge, ragged rows, rows in parts, gaps
// between rows, several orders of the threads. The same driver runs on a GPU in scripts/gpu_check.
#include "knear/select/warp/device_select.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/select/select_k.hpp"
#include "tests/select/misled_rows.hpp"
#include "tests/select/select_cases.hpp"
#include "tests/simt/emulator.hpp"

namespace knear {
namespace {

using detail::SelectWay;
using test::SelectKind;

constexpr float infinity = std::numeric_limits<float>::infinity();

// Rows in host memory, and the answers to one selection from them.
struct Problem {
  std::int64_t rows, cols, stride;
  std::vector<float> values;  // [rows x stride], the last row without its gap
  std::vector<int> lengths;   // [rows], or empty: all of a row

  int length(std::int64_t row) const {
    return lengths.empty() ? static_cast<int>(cols) : lengths[static_cast<std::size_t>(row)];
  }
};

struct Answer {
  std::vector<float> values;  // [rows x k]
  std::vector<int> places;    // [rows x k]
};

// Gaps hold the value that would win if it were read.
Problem make_problem(SelectKind kind, std::int64_t rows, std::int64_t cols, bool ragged,
                     Extreme extreme, std::uint64_t seed, std::int64_t gap = 5) {
  Problem p{rows, cols, cols + gap, {}, {}};
  const float winner = extreme == Extreme::smallest ? -infinity : infinity;
  p.values.assign(static_cast<std::size_t>(rows * p.stride - (rows != 0 ? gap : 0)), winner);
  Random random(seed);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto x = test::select_values(kind, cols, seed * 1000 + static_cast<std::uint64_t>(row));
    std::copy(x.begin(), x.end(), p.values.begin() + row * p.stride);
    const auto any = static_cast<int>(random.below(static_cast<std::uint64_t>(cols + 1)));
    if (ragged) p.lengths.push_back(row == 1 ? 0 : any);
  }
  return p;
}

// The reference by definition: the k smallest, of negated values where the largest are wanted.
Answer reference(const Problem& p, int k, Extreme extreme, bool sorted) {
  Answer out;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const float* x = p.values.data() + row * p.stride;
    std::vector<float> values(x, x + p.length(row)), best(static_cast<std::size_t>(k));
    std::vector<int> places(static_cast<std::size_t>(k));
    if (extreme == Extreme::largest)
      for (float& value : values) value = -value;
    test::select_reference(values.data(), p.length(row), k, best.data(), places.data());
    if (!sorted)
      std::sort(places.begin(), places.end(),
                [](int a, int b) { return static_cast<unsigned>(a) < static_cast<unsigned>(b); });
    for (int place : places)
      out.values.push_back(place >= 0                    ? x[place]
                           : extreme == Extreme::largest ? -infinity
                                                         : infinity);
    out.places.insert(out.places.end(), places.begin(), places.end());
  }
  return out;
}

// What a CUDA graph can capture of a queue, and no more: select_rows() would not compile over it if
// it copied, waited or asked what is free.
class CapturableQueue {
 public:
  using Thread = HostThread;
  explicit CapturableQueue(HostQueue& queue) : queue_(queue) {}
  template <class T>
  auto allocate(std::size_t size) {
    return queue_.allocate<T>(size);
  }
  template <class T>
  void fill_bytes(T* to, unsigned char byte, std::size_t count) {
    queue_.fill_bytes(to, byte, count);
  }
  int multiprocessors() const { return queue_.multiprocessors(); }
  template <class Kernel>
  friend void launch(CapturableQueue& queue, Grid grid, const Kernel& kernel) {
    launch(queue.queue_, grid, kernel);
  }

 private:
  HostQueue& queue_;
};

// The rows on the emulated device, what `select` makes of them, and back.
using Select = std::function<void(HostQueue&, const DeviceRows&, float*, int*)>;
Answer answer_of(const Problem& p, int k, std::uint64_t seed, const Select& select) {
  HostQueue queue(seed);
  auto values = queue.allocate<float>(p.values.size());
  auto lengths = queue.allocate<int>(p.lengths.size());
  queue.upload(values.data(), p.values.data(), p.values.size());
  queue.upload(lengths.data(), p.lengths.data(), p.lengths.size());
  const auto results = static_cast<std::size_t>(p.rows * k);
  auto best = queue.allocate<float>(results);
  auto places = queue.allocate<int>(results);
  select(queue,
         {values.data(), p.rows, p.cols, p.stride, p.lengths.empty() ? nullptr : lengths.data()},
         best.data(), places.data());
  Answer out{std::vector<float>(results), std::vector<int>(results)};
  queue.download(out.values.data(), best.data(), results);
  queue.download(out.places.data(), places.data(), results);
  queue.wait();
  return out;
}

void expect_same(const Answer& got, const Answer& wanted) {
  ASSERT_EQ(got.places, wanted.places);
  ASSERT_TRUE(test::same_bits(got.values.data(), wanted.values.data(), std::ssize(wanted.values)));
}

void expect_selected(const Problem& p, int k, DeviceSelectOptions options, std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << p.rows << " x " << p.cols
                                  << (p.lengths.empty() ? "" : ", ragged") << ", k " << k
                                  << (options.extreme == Extreme::largest ? ", largest" : "")
                                  << (options.sorted ? "" : ", by place") << ", seed " << seed);
  expect_same(answer_of(p, k, seed,
                        [&](HostQueue& queue, const DeviceRows& rows, float* best, int* places) {
                          CapturableQueue capturable(queue);
                          select_rows(capturable, rows, k, options, best, places);
                        }),
              reference(p, k, options.extreme, options.sorted));
}

// One way, whatever the driver would do.
void expect_selected_by(SelectWay way, const Problem& p, int k, DeviceSelectOptions options,
                        std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "way " << static_cast<int>(way) << ", " << p.rows << " x "
                                  << p.cols << " in " << p.stride << ", k " << k << ", seed "
                                  << seed << (options.sorted ? "" : ", by place"));
  const Select select = [&](HostQueue& queue, const DeviceRows& rows, float* best, int* places) {
    detail::select_rows_by(way, queue, rows, k, options, best, places);
  };
  expect_same(answer_of(p, k, seed, select), reference(p, k, options.extreme, options.sorted));
}
// In turn the ways that take the k.
SelectWay some_way(std::uint64_t seed, int k) {
  constexpr SelectWay ways[] = {SelectWay::by_digits, SelectWay::by_threshold, SelectWay::by_warps};
  return ways[seed % (k <= warp_select_max_k ? 3u : k <= detail::threshold_max_k ? 2u : 1u)];
}

class DeviceSelect : public testing::TestWithParam<SelectKind> {};

// Rows of about a thousand and of a few values; ragged and whole, smallest and largest, sorted and
// not, in turn.
TEST_P(DeviceSelect, EqualsAPartialSort) {
  std::uint64_t seed = static_cast<std::uint64_t>(GetParam());
  for (std::int64_t cols : {0, 1, 33, 1100}) {
    std::vector<int> ks = {1, 32, 33, 129, 1025};
    if (cols > 33) ks = {1, 31, 32, 33, 100, 128, 129, 256, 257, 1000, 1024, 1025, 3000};
    for (std::int64_t k : {cols - 1, cols, cols + 5})
      if (k >= 1) ks.push_back(static_cast<int>(k));
    for (int k : ks) {
      const Extreme extreme = seed % 4 < 2 ? Extreme::smallest : Extreme::largest;
      const int rows = k < 1000 ? 2 : 1;  // a sort of thousands is slow here
      const Problem p = make_problem(GetParam(), rows, cols, seed % 3 != 0, extreme, seed);
      expect_selected(p, k, {extreme, seed % 2 == 0}, seed);
      expect_selected_by(some_way(seed / 4, k), p, k, {extreme, seed % 2 == 0}, seed);
      if (HasFatalFailure()) return;
      ++seed;
    }
  }
}

// Rows that are several tiles of a block; WarpSelect serves up to k = 1024.
TEST_P(DeviceSelect, LongRows) {
  std::uint64_t seed = 1;
  for (auto [way, k] : {std::pair{SelectWay::by_warps, 10},
                        {SelectWay::by_warps, 1024},
                        {SelectWay::by_digits, 10},
                        {SelectWay::by_digits, 3000}})
    for (Extreme extreme : {Extreme::smallest, Extreme::largest}) {
      const Problem p = make_problem(GetParam(), 1, 5000, false, extreme, seed, 0);
      expect_selected_by(way, p, k, {extreme, seed % 3 != 0}, seed);
      if (HasFatalFailure()) return;
      ++seed;
    }
}

// Each row whole, or in 2, 3 or 7 parts, some of them empty where rows are short.
TEST_P(DeviceSelect, RowsInPartsByWarps) {
  std::uint64_t seed = 1;
  for (int k : {1, 32, 100, 250})
    for (int parts : {1, 2, 3, 7}) {
      if (parts == 7 && k == 250) continue;
      const Extreme extreme = seed % 2 ? Extreme::smallest : Extreme::largest;
      const Problem p = make_problem(GetParam(), 2, 1750, seed % 4 < 2, extreme, seed);
      SCOPED_TRACE(testing::Message() << "k " << k << " parts " << parts << " seed " << seed);
      const Select select = [&](HostQueue& queue, const DeviceRows& rows, float* best,
                                int* places) {
        detail::select_by_warps(queue, rows, k, detail::flip_of(extreme), parts, best, places);
      };
      expect_same(answer_of(p, k, seed, select), reference(p, k, extreme, true));
      if (HasFatalFailure()) return;
      ++seed;
    }
}

TEST_P(DeviceSelect, RowsInPartsByDigits) {
  std::uint64_t seed = 1;
  for (int k : {1, 1025, 4999, 5005})
    for (int parts : {1, 2, 3, 7}) {
      const Extreme extreme = seed % 2 ? Extreme::smallest : Extreme::largest;
      const Problem p = make_problem(GetParam(), 2, 5000, seed % 4 < 2, extreme, seed);
      SCOPED_TRACE(testing::Message() << "k " << k << " parts " << parts << " seed " << seed);
      const Select select = [&](HostQueue& queue, const DeviceRows& rows, float* best,
                                int* places) {
        detail::select_by_digits(queue, rows, k, detail::flip_of(extreme), parts, best, places);
      };
      expect_same(answer_of(p, k, seed, select), reference(p, k, extreme, false));
      if (HasFatalFailure()) return;
      ++seed;
    }
}

// A block for each row, from rows that have no threshold, that begin and end anywhere between
// boundaries of 16 bytes, and whose lengths are around those of a block's tile.
TEST_P(DeviceSelect, ByThresholdFromShortRows) {
  std::uint64_t seed = static_cast<std::uint64_t>(GetParam()) * 3;
  for (std::int64_t cols : {0, 1, 2, 3, 5, 130, 4093, 4096})
    for (int k : {1, 33, 127, 129, 1000}) {
      if ((k == 1000) != (cols > 130)) continue;
      const Extreme extreme = seed % 4 < 2 ? Extreme::smallest : Extreme::largest;
      const Problem p = make_problem(GetParam(), cols > 130 ? 2 : 5, cols, seed % 3 == 0, extreme,
                                     seed, static_cast<std::int64_t>(seed % 4));
      expect_selected_by(SelectWay::by_threshold, p, k, {extreme, seed % 2 == 0}, seed);
      if (HasFatalFailure()) return;
      ++seed;
    }
}

// Longer ones have a threshold; more may pass than there is room for.
TEST_P(DeviceSelect, ByThresholdFromLongRows) {
  std::uint64_t seed = static_cast<std::uint64_t>(GetParam());
  for (auto [k, cols] : {std::pair{40, 9001}, {300, 17000}, {1025, 4099}, {2100, 13000}}) {
    const Extreme extreme = seed % 3 ? Extreme::smallest : Extreme::largest;
    const Problem p = make_problem(GetParam(), k == 300 ? 2 : 1, cols, k == 300, extreme, seed);
    expect_selected_by(SelectWay::by_threshold, p, k, {extreme, seed % 2 == 0}, seed);
    if (HasFatalFailure()) return;
    ++seed;
  }
}

TEST_P(DeviceSelect, EqualsTheCpu) {
  for (Extreme extreme : {Extreme::smallest, Extreme::largest})
    for (bool sorted : {true, false})
      for (int k : {200, 1100}) {
        const Problem p = make_problem(GetParam(), 2, 2000, true, extreme, 77, 0);
        const std::vector<std::int64_t> lengths(p.lengths.begin(), p.lengths.end());
        const Selection cpu =
            select_k(MatrixView<float>(p.values.data(), p.rows, p.cols), k,
                     {.extreme = extreme, .sorted = sorted, .lengths = lengths, .threads = 1});
        const Answer got = answer_of(
            p, k, 3, [&](HostQueue& queue, const DeviceRows& rows, float* best, int* places) {
              select_rows(queue, rows, k, {extreme, sorted}, best, places);
            });
        for (std::int64_t row = 0; row < p.rows; ++row) {
          ASSERT_TRUE(std::equal(cpu.places.row(row), cpu.places.row(row) + k,
                                 got.places.begin() + row * k));
          ASSERT_TRUE(test::same_bits(cpu.values.row(row), got.values.data() + row * k, k));
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceSelect, testing::ValuesIn(test::all_select_kinds),
                         [](const auto& of) { return std::string(name_of(of.param)); });

// More rows than blocks, so that a block continues with its shared memory as the last row left it.
TEST(DeviceSelectBlocks, TakeRowAfterRow) {
  for (SelectKind kind : {SelectKind::ties, SelectKind::nan}) {
    const Problem p = make_problem(kind, 26, 150, true, Extreme::smallest, 5);
    expect_selected_by(SelectWay::by_digits, p, 140, {Extreme::smallest, true}, 1);
    const Problem other = make_problem(kind, 9, 5000, true, Extreme::smallest, 3, 2);
    const Select in_two_blocks = [](HostQueue& queue, const DeviceRows& rows, float* best,
                                    int* places) {
      using Kernel = detail::SelectByThreshold<HostThread>;
      const int room = detail::threshold_room(40);
      launch(queue, Grid{2, Kernel::Items::shared_bytes(room)},
             Kernel{rows, 40, room, detail::RowOrder::by_value, 0, best, places});
    };
    expect_same(answer_of(other, 40, 1, in_two_blocks),
                reference(other, 40, Extreme::smallest, true));
  }
}

// The bits are the same whatever the order of the threads.
TEST(DeviceSelectOrder, DoesNotMatter) {
  const Problem p = make_problem(SelectKind::ties, 1, 4100, false, Extreme::smallest, 9);
  for (std::uint64_t seed = 100; seed < 106; ++seed) {
    expect_selected_by(SelectWay::by_digits, p, 2000, {Extreme::smallest, seed % 2 == 0}, seed);
    expect_selected_by(SelectWay::by_threshold, p, 2000, {Extreme::smallest, seed % 2 == 0}, seed);
    expect_selected_by(SelectWay::by_warps, p, 20, {Extreme::smallest, true}, seed);
    if (HasFatalFailure()) return;
  }
}

// The driver cuts rows into parts by itself where they are few for the machine, and long.
TEST(DeviceSelectParts, AreTakenWhereRowsAreFewAndLong) {
  const Problem p = make_problem(SelectKind::nan, 1, 40000, false, Extreme::largest, 4);
  ASSERT_GT(detail::select_parts(1, 40000, 20, 3 * 4 * 8), 1);
  ASSERT_EQ(detail::radix_parts(1, 40000, 6), 2);
  expect_selected(p, 20, {Extreme::largest, true}, 1);
  ASSERT_EQ(detail::select_way(1, 40000, 600, 3), SelectWay::by_warps);
  expect_selected(p, 600, {Extreme::largest, true}, 1);
  expect_selected(p, 5000, {Extreme::largest, true}, 2);
  expect_selected(p, 5000, {Extreme::largest, false}, 3);
}

// Rows whose sample says what is not so: fewer than k pass, or more than there is room for. The
// driver takes this way by itself.
TEST(DeviceSelectThreshold, MayBeWrong) {
  constexpr int n = 16384, k = 300, rows = static_cast<int>(std::size(test::all_misled));
  ASSERT_EQ(detail::select_way(rows, n, k, 3), SelectWay::by_threshold);
  ASSERT_GT(detail::threshold_sample(k, n).rank, 0);
  Problem p = make_problem(SelectKind::uniform, rows, n, false, Extreme::smallest, 6, 4);
  for (int row = 0; row < rows; ++row) {
    const auto x = test::misled_row(test::all_misled[row], k, n, static_cast<std::uint64_t>(row));
    std::copy(x.begin(), x.end(), p.values.begin() + row * p.stride);
  }
  for (std::uint64_t seed = 1; seed < 4; ++seed)
    expect_selected(p, k, {Extreme::smallest, seed == 1}, seed);
  for (float& x : p.values) x = -x;
  expect_selected(p, k, {Extreme::largest, true}, 4);
  expect_selected(p, 1500, {Extreme::largest, false}, 5);
}

// Values that equal the last that is kept, to its left and to its right, when room is made: those
// to its left in the same tile are kept instead, and none to its right.
TEST(DeviceSelectThreshold, KeepsTheFirstOfEqualValues) {
  constexpr int n = 12000;
  Problem p = make_problem(SelectKind::equal, 5, n, false, Extreme::smallest, 1, 1);
  Random random(8);
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const auto stride = static_cast<std::size_t>(p.stride);
    p.values[stride + at] = random.below(2) == 0 ? 1.0f : 2.0f;  // two values
    // The better ones come last, and there is no number between them and the others.
    p.values[2 * stride + at] = i < n - 700 ? 0.0f : -std::numeric_limits<float>::denorm_min();
    p.values[3 * stride + at] = random.below(2) == 0 ? -0.0f : 0.0f;  // equal, of different bits
    p.values[4 * stride + at] = random.below(50) == 0 ? -infinity : infinity;
  }
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    expect_selected_by(SelectWay::by_threshold, p, 500, {Extreme::smallest, true}, seed);
    expect_selected_by(SelectWay::by_threshold, p, 500, {Extreme::largest, seed == 1}, seed);
  }
  expect_selected_by(SelectWay::by_threshold, p, 2047, {Extreme::smallest, false}, 4);
}

// The largest k and its neighbours, of rows of about as many values and of more than fit.
TEST(DeviceSelectThreshold, TakesTheLargestK) {
  for (int k : {4095, 4096})
    for (std::int64_t cols : {4000, 9000}) {
      const Problem p = make_problem(cols == 4000 ? SelectKind::nan : SelectKind::descending, 1,
                                     cols, false, Extreme::smallest, 3);
      expect_selected_by(SelectWay::by_threshold, p, k, {Extreme::smallest, k == 4096}, 5);
    }
}

// Each size of sort, with all sizes of k around it.
TEST(DeviceSelectThreshold, SortsAnySize) {
  for (int k : {2, 31, 64, 127, 128, 129, 255, 256, 257, 511, 512, 513, 700, 1023, 1024}) {
    const Problem p = make_problem(SelectKind::ties, 1, 1030, false, Extreme::largest, 3, 0);
    expect_selected_by(SelectWay::by_threshold, p, k, {Extreme::largest, k % 2 == 0},
                       static_cast<std::uint64_t>(k));
    if (testing::Test::HasFatalFailure()) return;
  }
}

// The values that pass a threshold, on the host: seldom too few or too many.
TEST(DeviceSelectThreshold, LetsSomewhatMoreThanEnoughPass) {
  for (auto [k, n] :
       {std::pair{33, 4096}, {257, 16384}, {1000, 8000}, {1000, 128000}, {4000, 128000}}) {
    const detail::ThresholdSample sample = detail::threshold_sample(k, n);
    const int room = detail::threshold_room(k);
    ASSERT_GT(sample.rank, 0);
    ASSERT_LE(sample.size, room);
    int failures = 0;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<float> row = test::select_values(SelectKind::uniform, n, seed);
      std::vector<float> values;
      test::for_sample(k, n, [&](unsigned i) { values.push_back(row[i]); });
      ASSERT_EQ(std::ssize(values), sample.size);
      std::nth_element(values.begin(), values.begin() + sample.rank - 1, values.end());
      const float threshold = values[static_cast<std::size_t>(sample.rank - 1)];
      const auto pass =
          std::count_if(row.begin(), row.end(), [&](float x) { return x <= threshold; });
      failures += pass < k || pass > room;
    }
    EXPECT_LE(failures, 1) << k << " of " << n;
  }
  EXPECT_EQ(detail::threshold_sample(10, 4095).rank, 0);    // short
  EXPECT_EQ(detail::threshold_sample(4000, 5000).rank, 0);  // wanted for the greater part
  for (int k : {1, 256, 257, 1024, 1025, 4096}) {
    EXPECT_GE(detail::threshold_room(k), k + 1024);
    EXPECT_GE(detail::threshold_room(k), detail::sort_size(k));
  }
}

// Keeps the first of some items.
struct Cut {
  static constexpr int threads = detail::BlockItems<HostThread>::threads, resident_blocks = 1;
  const detail::Item* from;
  detail::Item* to;
  int count, rank;
  void operator()(HostThread t) const {
    const detail::BlockItems<HostThread> items(t, count);
    for (int i = t.index(); i < count; i += threads) items[i] = from[i];
    t.sync();
    items.keep(count, items.bound_of(count, rank));
    for (int i = t.index(); i < rank; i += threads) to[i] = items[i];
  }
};

// The bound of a rank, of items that differ in their highest bits, in their lowest, or in both;
// what is kept is what std::sort puts first.
TEST(DeviceSelectItems, AreBoundedAndKept) {
  Random random(2);
  for (int count : {2, 255, 257, 2049, 4100})
    for (int kind : {0, 1, 2, 3}) {
      HostQueue queue(static_cast<std::uint64_t>(count + kind));
      const auto size = static_cast<std::size_t>(count);
      auto from = queue.allocate<detail::Item>(size), to = queue.allocate<detail::Item>(size);
      for (int i = 0; i < count; ++i) {
        const auto any = static_cast<unsigned>(random.below(std::uint64_t{1} << 32));
        const unsigned key = kind == 0   ? any
                             : kind == 1 ? 0x80000000u
                             : kind == 2 ? any % 2 * 0x80000000u
                                         : 0xff000000u + any % 300;
        from.data()[i] = detail::item_of(key, i);
      }
      for (int rank : {1, count / 2 + 1, count - 1, count}) {
        launch(queue, Grid{1, detail::BlockItems<HostThread>::shared_bytes(count)},
               Cut{from.data(), to.data(), count, rank});
        std::vector<detail::Item> wanted(from.data(), from.data() + count);
        std::sort(wanted.begin(), wanted.end());
        wanted.resize(static_cast<std::size_t>(rank));
        std::vector<detail::Item> got(to.data(), to.data() + rank);
        std::sort(got.begin(), got.end());
        ASSERT_EQ(got, wanted) << count << ", rank " << rank << ", kind " << kind;
      }
    }
}

// The method that the driver chooses.
TEST(DeviceSelectLayout, ChoosesByKAndLength) {
  using detail::select_way;
  EXPECT_EQ(select_way(10000, 100, 32, 132), SelectWay::by_warps);
  EXPECT_EQ(select_way(10000, 100, 33, 132), SelectWay::by_threshold);
  EXPECT_EQ(select_way(10000, 65537, 128, 132), SelectWay::by_warps);
  EXPECT_EQ(select_way(10000, 65537, 129, 132), SelectWay::by_threshold);
  EXPECT_EQ(select_way(10000, 128000, 4096, 132), SelectWay::by_threshold);
  EXPECT_EQ(select_way(10000, 128000, 4097, 132), SelectWay::by_digits);
  // Few rows: by a block if they are short, or else in parts.
  EXPECT_EQ(select_way(263, 16384, 1000, 132), SelectWay::by_threshold);
  EXPECT_EQ(select_way(264, 16385, 1000, 132), SelectWay::by_threshold);
  EXPECT_EQ(select_way(263, 16385, 1000, 132), SelectWay::by_warps);
  EXPECT_EQ(select_way(263, 16385, 1025, 132), SelectWay::by_digits);
}

// Places of 64 bits are those of 32: more than the threads of all blocks, and none.
TEST(DeviceSelectPlaces, AreWidened) {
  using Kernel = detail::WidenPlaces<HostQueue::Thread>;
  for (const std::int64_t rows : {0, 1, 67}) {
    constexpr int k = 100;
    const Problem p = make_problem(SelectKind::nan, rows, 90, true, Extreme::largest, 12);
    std::vector<std::int64_t> wide;
    const Answer narrow =
        answer_of(p, k, 4, [&](HostQueue& queue, const DeviceRows& from, float* best, int* places) {
          select_rows(queue, from, k, {Extreme::largest, true}, best, places);
        });
    const Answer got =
        answer_of(p, k, 5, [&](HostQueue& queue, const DeviceRows& from, float* best, int*) {
          const auto count = static_cast<std::size_t>(rows * k);
          auto places = queue.allocate<std::int64_t>(count);
          select_rows(queue, from, k, {Extreme::largest, true}, best, places.data());
          wide.resize(count);
          queue.download(wide.data(), places.data(), count);
          queue.wait();
        });
    EXPECT_EQ(wide, std::vector<std::int64_t>(narrow.places.begin(), narrow.places.end()));
    EXPECT_TRUE(test::same_bits(got.values.data(), narrow.values.data(), rows * k));
    if (rows == 67) {
      EXPECT_GT(rows * k, Kernel::threads * Kernel::resident_blocks * 3);  // multiprocessors
      EXPECT_TRUE(std::ranges::count(wide, -1) > 0);
    }
  }
}

// Values that differ in the last bits only, so that all three digits are needed; and the buckets of
// -infinity, of denormals and of +infinity.
TEST(DeviceSelectDigits, AllThreeDecide) {
  Problem p{1, 3000, 3000, {}, {}};
  constexpr SelectWay ways[] = {SelectWay::by_digits, SelectWay::by_threshold};
  Random random(8);
  for (int i = 0; i < 3000; ++i) {
    const auto bits = 0x3f800000u + static_cast<unsigned>(random.below(700));
    p.values.push_back(std::bit_cast<float>(bits));
  }
  for (int k : {1100, 1500, 2999}) {
    for (SelectWay way : ways) {
      expect_selected_by(way, p, k, {Extreme::smallest, true}, 1);
      expect_selected_by(way, p, k, {Extreme::largest, false}, 2);
    }
  }
  for (int i = 0; i < 3000; ++i)
    p.values[static_cast<std::size_t>(i)] = i % 3 == 0   ? -infinity
                                            : i % 3 == 1 ? infinity
                                                         : std::bit_cast<float>(i % 7 * 2u);
  for (int k : {1025, 1999, 2000, 2001, 2500}) {
    for (SelectWay way : ways) {
      expect_selected_by(way, p, k, {Extreme::smallest, false}, 1);
      expect_selected_by(way, p, k, {Extreme::largest, false}, 2);
    }
  }
}

TEST(DeviceSelectDigits, KeysAreInTheOrderOfNumbers) {
  const float ascending[] = {-infinity, -3e38f, -1, -1e-40f, 0, 1e-45f, 1, 3e38f, infinity};
  for (unsigned flip : {0u, 0x80000000u})
    for (std::size_t i = 0; i + 1 < std::size(ascending); ++i) {
      const unsigned a = detail::ordered_key(ascending[i], flip),
                     b = detail::ordered_key(ascending[i + 1], flip);
      EXPECT_TRUE(flip ? b < a : a < b) << ascending[i];
      EXPECT_LT(std::max(a, b), detail::key_after_numbers);
    }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (unsigned flip : {0u, 0x80000000u}) {
    EXPECT_EQ(detail::ordered_key(-0.0f, flip), detail::ordered_key(0.0f, flip));
    EXPECT_EQ(detail::ordered_key(nan, flip), detail::key_of_nan);
    EXPECT_EQ(detail::ordered_key(-nan, flip), detail::key_of_nan);
  }
  EXPECT_EQ(detail::ordered_key(infinity, 0) + 1, detail::key_after_numbers);
}

// Sorting by itself: many passes, few, and none; more rows than blocks.
TEST(DeviceSelectSort, IsStable) {
  Random random(3);
  for (int k : {1, 31, 2049})
    for (int kind : {0, 1, 2}) {
      const std::int64_t rows = k < 100 ? 8 : 1;
      std::vector<std::pair<float, int>> wanted;
      HostQueue queue(static_cast<std::uint64_t>(k));
      auto values = queue.allocate<float>(static_cast<std::size_t>(rows * k));
      auto places = queue.allocate<int>(static_cast<std::size_t>(rows * k));
      for (std::int64_t i = 0; i < rows * k; ++i) {
        const auto bits = static_cast<unsigned>(random.below(std::uint64_t{1} << 31));
        const float x = kind == 0   ? std::bit_cast<float>(bits % 0x7f000000u)
                        : kind == 1 ? static_cast<float>(bits % 5) - 2
                                    : 1.0f;
        values.data()[i] = x, places.data()[i] = static_cast<int>(i % k * 3);
        wanted.emplace_back(x, i % k * 3);
      }
      detail::sort_rows(queue, rows, k, detail::RowOrder::by_value, 0, values.data(),
                        places.data());
      for (std::int64_t row = 0; row < rows; ++row)
        std::sort(wanted.begin() + row * k, wanted.begin() + (row + 1) * k);
      for (std::int64_t i = 0; i < rows * k; ++i) {
        ASSERT_EQ(values.data()[i], wanted[static_cast<std::size_t>(i)].first) << k << " " << kind;
        ASSERT_EQ(places.data()[i], wanted[static_cast<std::size_t>(i)].second) << k << " " << kind;
      }
    }
}

// There is no memory behind these addresses: only the arithmetic is tested.
TEST(DeviceSelectLayout, HoldsBeyond32Bits) {
  const auto at = [](std::int64_t i) {  // an address that is never read
    return reinterpret_cast<const float*>(std::uintptr_t{1} << 44) + i;
  };
  volatile std::int64_t stride = 5000;  // unknown to the compiler, which might compute more exactly
  const DeviceRows rows{at(0), 3000000, 4000, stride, nullptr};
  EXPECT_EQ(rows.row(2999999), at(std::int64_t{2999999} * 5000));
  stride = 2147483650;
  const DeviceRows long_rows{at(0), 3, 2147483646, stride, nullptr};
  EXPECT_EQ(long_rows.row(2), at(std::int64_t{2} * 2147483650));
  EXPECT_EQ(long_rows.length(2), 2147483646);
  detail::RadixParts in{long_rows, 1000, 2000, 0, nullptr, nullptr, nullptr};
  const auto last = in.stretch(2999);
  EXPECT_EQ(last.x, at(std::int64_t{2} * 2147483650));
  EXPECT_EQ(last.row, 2);
  EXPECT_EQ(last.part, 999);
  EXPECT_EQ(last.end, 2147483646u);
  EXPECT_EQ(last.begin % 32, 0u);
  for (int part = 0; part + 1 < 1000; ++part)
    ASSERT_EQ(in.stretch(1000 + part).end, in.stretch(1001 + part).begin);
}

TEST(DeviceSelectLayout, PartsFillTheMachineAsFarAsTheyPay) {
  EXPECT_EQ(detail::radix_parts(400, 1 << 20, 396), 1);
  EXPECT_EQ(detail::radix_parts(395, 1 << 20, 396), 2);
  EXPECT_EQ(detail::radix_parts(1, 1 << 20, 396), 64);  // of 16,384 values
  EXPECT_EQ(detail::radix_parts(1, 2147483646, 396), 396);
  EXPECT_EQ(detail::radix_parts(1, 32767, 396), 1);
  EXPECT_EQ(detail::radix_parts(1, 0, 396), 1);
}

TEST(DeviceSelectLayout, RefusesWhatNoKernelTakes) {
  const auto bad = [](std::int64_t rows, std::int64_t cols, std::int64_t stride, std::int64_t k) {
    const char* name = detail::bad_argument({nullptr, rows, cols, stride, nullptr}, k).name;
    return std::string(name ? name : "");
  };
  EXPECT_EQ(bad(10, 100, 100, 1), "");
  EXPECT_EQ(bad(0, 0, 0, 2147483647), "");
  EXPECT_EQ(bad(1, 2147483646, 2147483646, 1), "");
  EXPECT_EQ(bad(1, 2147483647, 2147483647, 1), "cols");
  EXPECT_EQ(bad(1, -1, 0, 1), "cols");
  EXPECT_EQ(bad(1, 100, 99, 1), "stride");
  EXPECT_EQ(bad(1, 100, 100, 0), "k");
  EXPECT_EQ(bad(1, 100, 100, std::int64_t{1} << 31), "k");
  EXPECT_EQ(bad(-1, 100, 100, 1), "rows");
  EXPECT_EQ(bad((std::int64_t{1} << 32) + 1, 1, 1, 1), "rows");
}

}  // namespace
}  // namespace knear
