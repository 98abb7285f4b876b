// WarpSelect on the emulated warp against a partial sort: sizes around every edge, every kind of
// row, every shape in use, both rules, rows in parts. The same cases run on a GPU in
// scripts/gpu_check.
#include "knear/select/warp_select.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "knear/select/warp_select_layout.hpp"
#include "knear/simt/host_warp.hpp"
#include "tests/select/select_cases.hpp"

namespace knear {
namespace {

using test::SelectKind;

template <UpdateRule rule, class Id, class Shape>
void expect_selected_by(const std::vector<float>& row, int k) {
  std::vector<float> wanted(k), got(k, -99.0f);  // no answer holds -99
  std::vector<Id> wanted_ids(k), ids(k, Id(-99));
  test::select_reference(row.data(), Id(row.size()), k, wanted.data(), wanted_ids.data());
  WarpSelect<HostWarp, Id, Shape::R, Shape::T, rule> select(HostWarp(), k);
  select.add_row(row.data(), Id(row.size()));
  select.store(got.data(), ids.data());
  ASSERT_EQ(ids, wanted_ids);
  ASSERT_TRUE(test::same_bits(got.data(), wanted.data(), k));
}

template <class Id, class Shape>
void expect_selected(Shape, const std::vector<float>& row, int k) {
  SCOPED_TRACE(testing::Message() << "R " << Shape::R << " T " << Shape::T);
  expect_selected_by<UpdateRule::queue_counts, Id, Shape>(row, k);
  if (testing::Test::HasFatalFailure()) return;
  expect_selected_by<UpdateRule::queue_heads, Id, Shape>(row, k);
}

template <class Id>
void expect_selected(const std::vector<float>& row, int k) {
  with_warp_select_shape(k, [&](auto shape) { expect_selected<Id>(shape, row, k); });
}

class WarpSelectKinds : public testing::TestWithParam<SelectKind> {};

TEST_P(WarpSelectKinds, EqualsAPartialSort) {
  std::uint64_t seed = 1;
  for (int n : {0, 1, 31, 32, 33, 100, 255, 256, 257, 511, 513, 1000, 3000})
    for (int k : {1, 2, 31, 32, 33, 100, 127, 128, 129, 256, 257, 1000, 1023, 1024}) {
      SCOPED_TRACE(testing::Message() << "n " << n << " k " << k << " seed " << seed);
      expect_selected<int>(test::select_values(GetParam(), n, seed++), k);
      if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(AllKinds, WarpSelectKinds, testing::ValuesIn(test::all_select_kinds),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST(WarpSelect, EveryKOnOneRow) {
  const std::vector<float> row = test::select_values(SelectKind::ties, 1500, 3);
  for (int k = 1; k <= warp_select_max_k; k += k < 300 ? 1 : 37) {
    SCOPED_TRACE(k);
    expect_selected<int>(row, k);
    if (HasFatalFailure()) return;
  }
}

TEST(WarpSelect, QueuesLongerAndShorterThanTheResults) {
  const std::vector<float> row = test::select_values(SelectKind::nan, 2000, 4);
  for (int k : {1, 31, 32}) expect_selected<int>(WarpSelectShape<1, 8>{}, row, k);
  for (int k : {1, 63, 64}) expect_selected<int>(WarpSelectShape<2, 1>{}, row, k);
  for (int k : {1, 100, 512}) expect_selected<int>(WarpSelectShape<16, 1>{}, row, k);
  for (int k : {1, 64, 128}) expect_selected<int>(WarpSelectShape<4, 4>{}, row, k);
  for (int k : {1, 65, 96}) expect_selected<int>(WarpSelectShape<3, 5>{}, row, k);
  for (int k : {1, 150, 224}) expect_selected<int>(WarpSelectShape<7, 3>{}, row, k);
  for (int k : {1, 20, 32}) expect_selected<int>(WarpSelectShape<1, 1>{}, row, k);
}

TEST(WarpSelect, WideIds) {
  const std::vector<float> row = test::select_values(SelectKind::uniform, 700, 5);
  expect_selected<std::int64_t>(row, 100);
  // Ids beyond 32 bits, and two parts of a row in either order: the answer does not depend on it.
  constexpr std::int64_t first = std::int64_t{1} << 40;
  std::vector<float> d(100), e(100);
  std::vector<std::int64_t> i(100), j(100);
  WarpSelect<HostWarp, std::int64_t, 4, 3> forward(HostWarp(), 100), backward(HostWarp(), 100);
  forward.add_row(row.data(), 400, first);
  forward.add_row(row.data() + 400, 300, first + 400);
  backward.add_row(row.data() + 400, 300, first + 400);
  backward.add_row(row.data(), 400, first);
  forward.store(d.data(), i.data());
  backward.store(e.data(), j.data());
  EXPECT_EQ(i, j);
  EXPECT_EQ(d, e);
  EXPECT_GE(*std::min_element(i.begin(), i.end()), first);
}

TEST(WarpSelect, TiesGoToTheSmallerIdWhateverArrivesFirst) {
  const std::vector<float> row(600, 1.0f);
  std::vector<float> d(40);
  std::vector<int> ids(40), wanted(40);
  for (int i = 0; i < 40; ++i) wanted[i] = i;
  WarpSelect<HostWarp, int, 4, 3> select(HostWarp(), 40);
  select.add_row(row.data() + 300, 300, 300);
  select.add_row(row.data(), 300, 0);
  select.store(d.data(), ids.data());
  EXPECT_EQ(ids, wanted);
}

// The kernel's arithmetic on the host: each row has one warp, the last block at most three idle.
TEST(WarpSelectLayout, GivesEachRowOneWarp) {
  for (std::int64_t rows : {0, 1, 3, 4, 5, 37, 10000}) {
    std::vector<int> threads_of(static_cast<std::size_t>(rows));
    const std::int64_t blocks = detail::select_blocks(rows);
    int idle = 0;
    for (std::int64_t block = 0; block < blocks; ++block)
      for (int thread = 0; thread < detail::select_warps_per_block * warp_size; ++thread) {
        const std::int64_t row = detail::select_row(block, thread);
        ASSERT_GE(row, 0);
        if (row < rows)
          ++threads_of[static_cast<std::size_t>(row)];
        else
          ++idle;
      }
    for (int threads : threads_of) ASSERT_EQ(threads, warp_size);
    EXPECT_LT(idle, detail::select_warps_per_block * warp_size);
  }
  // The largest number of rows that select_smallest takes: within the grid's 2^31 - 1 blocks.
  constexpr std::int64_t most = std::int64_t{1} << 32;
  EXPECT_LT(detail::select_blocks(most), std::int64_t{1} << 31);
  EXPECT_EQ(detail::select_row(detail::select_blocks(most) - 1, 127), most - 1);
}

TEST(WarpSelect, StoresNoMoreThanK) {
  const std::vector<float> row = test::select_values(SelectKind::uniform, 500, 6);
  std::vector<float> d(50, -1.0f);
  std::vector<int> ids(50, -7);
  WarpSelect<HostWarp, int, 4, 3> select(HostWarp(), 33);
  select.add_row(row.data(), 500);
  select.store(d.data(), ids.data());
  for (int i = 33; i < 50; ++i) {
    EXPECT_EQ(d[i], -1.0f);
    EXPECT_EQ(ids[i], -7);
  }
}

}  // namespace
}  // namespace knear
