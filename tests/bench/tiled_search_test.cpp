// The search by tiles of products that bench/gpu measures, on the emulated device with products of
// plain loops: its answers against a sort of all keys, two streams in random orders, and that
// answers are exact where is_certain() says so.
#include "bench/gpu/tiled_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/tiled_codes.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear::bench {
namespace {

// Two streams whose work is done later, in a random order that respects who waits for whom.
class LateStreams {
 public:
  void give(int stream, std::function<void()> work) {
    given_[stream].push_back({std::move(work), 0});
    ++counts_[stream];
  }
  void wait(int stream, int other) {
    given_[stream].push_back({{}, counts_[other]});
    ++counts_[stream];
  }
  void run_all(Random& random) {
    std::int64_t done[2] = {0, 0};
    while (!given_[0].empty() || !given_[1].empty()) {
      int s = static_cast<int>(random.below(2));
      if (!ready(s, done)) s = 1 - s;
      if (!ready(s, done)) throw std::logic_error("two streams wait for one another");
      const Work work = std::move(given_[s].front());
      given_[s].pop_front();
      if (work.what) work.what();
      ++done[s];
    }
  }

 private:
  struct Work {
    std::function<void()> what;
    std::int64_t after;  // number of the other stream's operations to wait for
  };
  bool ready(int s, const std::int64_t (&done)[2]) const {
    return !given_[s].empty() && done[1 - s] >= given_[s].front().after;
  }
  std::deque<Work> given_[2];
  std::int64_t counts_[2] = {0, 0};
};

// A queue whose kernels run when LateStreams reaches them.
class LateQueue {
 public:
  using Thread = HostThread;
  template <class T>
  using Array = HostQueue::Array<T>;

  LateQueue(LateStreams& streams, int number, std::uint64_t seed)
      : streams_(streams), number_(number), host_(seed) {}

  template <class T>
  Array<T> allocate(std::size_t size) {
    return host_.allocate<T>(size);
  }
  template <class T>
  void upload(T* to, const T* from, std::size_t count) {
    give([=, this] {
      host_.upload(to, from, count);
      host_.wait();
    });
  }
  void give(std::function<void()> work) { streams_.give(number_, std::move(work)); }
  void wait_for(const LateQueue& other) { streams_.wait(number_, other.number_); }
  HostQueue& host() { return host_; }

 private:
  LateStreams& streams_;
  int number_;
  HostQueue host_;
};

template <class Kernel>
void launch(LateQueue& queue, Grid grid, const Kernel& kernel) {
  queue.give([&queue, grid, kernel] { launch(queue.host(), grid, kernel); });
}

template <class C>
struct PlainLane {
  using Queue = LateQueue;
  using Code = C;
  using Product = std::conditional_t<std::is_same_v<C, std::int8_t>, std::int32_t, float>;

  LateQueue& queue() { return queue_; }
  void multiply(const Code* queries, std::int64_t count, const Code* rows, std::int64_t n,
                std::int64_t dim, Product* out, std::int64_t stride) {
    ASSERT_LE(n, stride);
    queue_.give([=] {
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          Product sum = 0;
          for (std::int64_t c = 0; c < dim; ++c)
            sum += static_cast<Product>(to_float(queries[i * dim + c])) *
                   static_cast<Product>(to_float(rows[j * dim + c]));
          out[i * stride + j] = sum;
        }
    });
  }
  void wait_for(PlainLane& other) { queue_.wait_for(other.queue_); }

  LateQueue queue_;
};

struct Kept {
  std::vector<float> values;  // [queries x kept]
  std::vector<int> places;
};

template <class Code>
Kept search(const TiledCodes<Code>& base, const TiledCodes<Code>& queries, std::int64_t dim,
            TileSizes tiles, int kept, std::uint64_t seed) {
  Random random(seed);
  LateStreams streams;
  PlainLane<Code> first{LateQueue(streams, 0, seed)}, second{LateQueue(streams, 1, seed + 1)};
  LateQueue& queue = first.queue();
  const std::size_t rows = base.norms.size(), count = queries.norms.size();
  // Uploaded in the order of the first stream: what the second one reads too soon is poison.
  auto base_codes = queue.allocate<Code>(base.codes.size());
  auto norms = queue.allocate<float>(rows);
  auto query_codes = queue.allocate<Code>(queries.codes.size());
  queue.upload(base_codes.data(), base.codes.data(), base.codes.size());
  queue.upload(norms.data(), base.norms.data(), rows);
  queue.upload(query_codes.data(), queries.codes.data(), queries.codes.size());
  const std::size_t places = count * static_cast<std::size_t>(kept);
  auto out_values = queue.allocate<float>(places);
  auto out_places = queue.allocate<int>(places);

  // Values of an earlier search, which would win if they were used.
  const std::vector<float> old_values(places, -1e9f);
  const std::vector<int> old_places(places, 0);
  queue.upload(out_values.data(), old_values.data(), places);
  queue.upload(out_places.data(), old_places.data(), places);

  TiledSearch<PlainLane<Code>> tiled(first, second, tiles);
  tiled.run({base_codes.data(), norms.data(), static_cast<std::int64_t>(rows), dim},
            {query_codes.data(), nullptr, static_cast<std::int64_t>(count), dim},
            queries.factor(base), kept, out_values.data(), out_places.data());
  Kept out{std::vector<float>(places), std::vector<int>(places)};
  // Downloaded by the first stream, once it has waited for the second.
  queue.upload(out.values.data(), out_values.data(), places);
  queue.upload(out.places.data(), out_places.data(), places);
  streams.run_all(random);
  return out;
}

// Whole numbers up to 8: every product, sum and key is exact, and many are equal.
Matrix<float> whole_numbers(std::int64_t rows, std::int64_t dim, Random& random) {
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j) out.row(i)[j] = static_cast<float>(random.below(17)) - 8;
  return out;
}
// Vectors around some centres, so that near rows are near.
Matrix<float> clusters(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random centres(99), random(seed);
  std::vector<float> centre(static_cast<std::size_t>(8 * dim));
  for (float& x : centre) x = static_cast<float>(4 * centres.uniform() - 2);
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto at = static_cast<std::int64_t>(random.below(8)) * dim;
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(i)[j] =
          centre[static_cast<std::size_t>(at + j)] + static_cast<float>(random.uniform() - 0.5);
  }
  return out;
}

// Keys of all rows, sorted: (key, row).
std::vector<std::pair<double, int>> all_keys(const Matrix<float>& base, const float* query,
                                             bool with_query) {
  std::vector<std::pair<double, int>> out;
  for (std::int64_t i = 0; i < base.rows(); ++i) {
    double key = reference_distance(Metric::l2, query, base.row(i), base.cols());
    for (std::int64_t j = 0; !with_query && j < base.cols(); ++j)
      key -= double{query[j]} * query[j];
    out.emplace_back(key, static_cast<int>(i));
  }
  std::sort(out.begin(), out.end());
  return out;
}

template <class Code>
class TiledSearchTest : public testing::Test {};
using Codes = testing::Types<float, bf16, std::int8_t>;
TYPED_TEST_SUITE(TiledSearchTest, Codes);

TYPED_TEST(TiledSearchTest, KeepsTheSmallestKeysInOrder) {
  using Code = TypeParam;
  constexpr std::int64_t dim = 5;
  const struct {
    std::int64_t queries, rows;
    TileSizes tiles;
    int kept;
  } cases[] = {{1, 1, {1, 64}, 1},     {2, 63, {1, 64}, 10},   {7, 64, {3, 64}, 32},
               {9, 65, {2, 64}, 33},   {13, 300, {4, 64}, 10}, {13, 300, {7, 128}, 100},
               {13, 700, {5, 320}, 3}, {6, 50, {3, 64}, 60},   {3, 400, {2, 64}, 130}};
  std::uint64_t seed = 1;
  for (const auto& c : cases) {
    Random random(seed);
    Matrix<float> base = whole_numbers(c.rows, dim, random);
    Matrix<float> queries = whole_numbers(c.queries, dim, random);
    base.row(0)[0] = 127, queries.row(0)[0] = 127;  // a scale of 1 for int8
    const auto base_codes = tiled_codes<Code>(base.view());
    const auto query_codes = tiled_codes<Code>(queries.view());
    const Kept got = search(base_codes, query_codes, dim, c.tiles, c.kept, ++seed);
    for (std::int64_t q = 0; q < c.queries; ++q) {
      const auto wanted = all_keys(base, queries.row(q), false);
      for (int i = 0; i < c.kept; ++i) {
        const auto at = static_cast<std::size_t>(q * c.kept + i);
        const bool there = i < c.rows;
        const auto place = static_cast<std::size_t>(i);
        ASSERT_EQ(got.places[at], there ? wanted[place].second : -1)
            << c.queries << " x " << c.rows << ", kept " << c.kept << ", query " << q << ", place "
            << i;
        ASSERT_EQ(got.values[at], there ? static_cast<float>(wanted[place].first)
                                        : std::numeric_limits<float>::infinity());
      }
    }
  }
}

// The answer is the same whatever the tiles, and whichever stream is first.
TYPED_TEST(TiledSearchTest, DoesNotDependOnTilesOrStreams) {
  constexpr std::int64_t dim = 6;
  Random random(5);
  const auto base = tiled_codes<TypeParam>(whole_numbers(500, dim, random).view());
  const auto queries = tiled_codes<TypeParam>(whole_numbers(11, dim, random).view());
  const Kept wanted = search(base, queries, dim, {11, 512}, 20, 1);
  for (std::uint64_t seed = 2; seed < 12; ++seed) {
    const TileSizes tiles{1 + static_cast<std::int64_t>(random.below(11)),
                          64 * (1 + static_cast<std::int64_t>(random.below(8)))};
    const Kept got = search(base, queries, dim, tiles, 20, seed);
    EXPECT_EQ(got.places, wanted.places) << tiles.queries << " x " << tiles.rows;
    EXPECT_EQ(got.values, wanted.values);
  }
}

// Every key is within its slack, which is not so wide that it says nothing.
TYPED_TEST(TiledSearchTest, SlackHoldsTheErrorOfKeys) {
  constexpr std::int64_t dim = 48, rows = 100;
  const Matrix<float> base = clusters(rows, dim, 6), queries = clusters(20, dim, 7);
  const auto base_codes = tiled_codes<TypeParam>(base.view());
  const auto query_codes = tiled_codes<TypeParam>(queries.view());
  const Kept got = search(base_codes, query_codes, dim, {10, 64}, rows, 8);
  double nearest = 1e9;
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    const double slack = slack_of(query_codes, q, base_codes, dim);
    double most = 0, square = 0;
    for (std::int64_t j = 0; j < dim; ++j) square += double{queries.row(q)[j]} * queries.row(q)[j];
    for (int i = 0; i < rows; ++i) {
      const auto at = static_cast<std::size_t>(q * rows + i);
      const double key =
          reference_distance(Metric::l2, queries.row(q), base.row(got.places[at]), dim) - square;
      most = std::max(most, std::fabs(key - double{got.values[at]}));
    }
    ASSERT_LE(most, slack) << q;
    nearest = std::min(nearest, slack / most);
  }
  const double most_ratio = std::is_same_v<TypeParam, float> ? 500 : 30;
  EXPECT_LT(nearest, most_ratio);
}

// Certain answers have the reference's bits; some of the others are wrong.
TYPED_TEST(TiledSearchTest, WhatIsCertainIsExact) {
  constexpr std::int64_t dim = 24, rows = 700, count = 30;
  constexpr int k = 10;
  const Matrix<float> base = clusters(rows, dim, 9), queries = clusters(count, dim, 10);
  const auto base_codes = tiled_codes<TypeParam>(base.view());
  const auto query_codes = tiled_codes<TypeParam>(queries.view());
  std::vector<std::uint32_t> numbers(rows);
  std::iota(numbers.begin(), numbers.end(), 0u);
  int certain_of[2] = {0, 0}, wrong_of[2] = {0, 0};
  for (const int kept : {k, 64}) {
    const Kept got = search(base_codes, query_codes, dim, {16, 256}, kept, 11);
    HostQueue queue(12);
    const std::vector<double> doubles(queries.row(0), queries.row(0) + count * dim);
    std::vector<double> keys(count * k);
    std::vector<std::int64_t> ids(count * k);
    rescore_kept(queue, base.row(0), numbers.data(), doubles.data(), count, dim, got.places.data(),
                 kept, k, keys.data(), ids.data());
    for (std::int64_t q = 0; q < count; ++q) {
      const auto wanted = all_keys(base, queries.row(q), true);
      bool right = true;
      for (int i = 0; i < k; ++i) {
        const auto at = static_cast<std::size_t>(q * k + i), place = static_cast<std::size_t>(i);
        right = right && ids[at] == wanted[place].second && keys[at] == wanted[place].first;
      }
      const auto last = static_cast<std::size_t>((q + 1) * kept - 1);
      const bool certain = is_certain(query_codes, q, base_codes, dim,
                                      keys[static_cast<std::size_t>((q + 1) * k - 1)],
                                      got.values[last], got.places[last]);
      ASSERT_TRUE(right || !certain) << "query " << q << ", kept " << kept;
      certain_of[kept != k] += certain;
      wrong_of[kept != k] += !right;
    }
  }
  // With k rows kept none can be certain: the k-th is itself the last.
  EXPECT_EQ(certain_of[0], 0);
  const bool narrow = std::is_same_v<TypeParam, std::int8_t>;
  EXPECT_GE(certain_of[1], narrow ? count / 2 : count);
  const bool rounded = !std::is_same_v<TypeParam, float>;
  EXPECT_GE(wrong_of[0], rounded ? 1 : 0);
}

TEST(TiledCodes, NothingIsCertainWhereCodesAreZero) {
  // One row a thousand times as long as the others: int8 codes of these are zero.
  Matrix<float> base = clusters(400, 8, 13);
  for (int j = 0; j < 8; ++j) base.row(7)[j] = 2000;
  const Matrix<float> queries = clusters(5, 8, 14);
  const auto base_codes = tiled_codes<std::int8_t>(base.view());
  const auto query_codes = tiled_codes<std::int8_t>(queries.view());
  const Kept got = search(base_codes, query_codes, 8, {3, 64}, 32, 15);
  for (std::int64_t q = 0; q < 5; ++q) {
    const auto last = static_cast<std::size_t>((q + 1) * 32 - 1);
    const double kth = all_keys(base, queries.row(q), true)[9].first;
    EXPECT_FALSE(
        is_certain(query_codes, q, base_codes, 8, kth, got.values[last], got.places[last]));
  }
}

TEST(ChooseTiles, FillWhatTheyMay) {
  for (const std::int64_t queries : {1, 2, 3, 32, 4095, 4096, 4097, 10000, 1000000})
    for (const std::int64_t rows : {1, 64, 65, 1000, 1000000, 10000000})
      for (const std::size_t bytes : {std::size_t{1} << 12, std::size_t{4} << 20,
                                      std::size_t{25} << 20, std::size_t{1} << 30}) {
        const TileSizes tile = choose_tiles(queries, rows, bytes);
        ASSERT_GE(tile.queries, 1);
        ASSERT_LE(tile.queries, std::min<std::int64_t>(queries, 2048));
        ASSERT_EQ(tile.rows % 64, 0);
        ASSERT_LT(tile.rows, rows + 64);
        const auto both = static_cast<std::size_t>(2 * 4 * tile.queries * tile.rows);
        EXPECT_TRUE(both <= bytes || tile.rows == 64);
        EXPECT_TRUE(2 * both > bytes || tile.rows >= rows)
            << queries << " " << rows << " " << bytes;
        const std::int64_t blocks = (queries + tile.queries - 1) / tile.queries;
        EXPECT_TRUE(queries == 1 || blocks % 2 == 0) << queries;
      }
}

}  // namespace
}  // namespace knear::bench
