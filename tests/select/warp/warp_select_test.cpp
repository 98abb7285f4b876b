// WarpSelect on the emulated warp against a partial sort: sizes around every edge, every kind of
// row, every shape in use, both rules, rows in parts. The same cases run on a GPU in
// scripts/gpu_check.
#include "knear/select/warp/warp_select.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "knear/select/warp/warp_select_layout.hpp"
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

// Up to the last id but one, where the next group would begin beyond the type.
TEST(WarpSelect, RowsMayBeAsLongAsIdsGo) {
  for (short length : {32766, 32750, 32512, 32511}) {
    const std::vector<float> row = test::select_values(SelectKind::descending, length, 1);
    std::vector<float> d(3);
    std::vector<short> ids(3);
    WarpSelect<HostWarp, short, 1, 2> select(HostWarp(), 3);
    select.add_row(row.data(), length);
    select.store(d.data(), ids.data());
    const short last = static_cast<short>(length - 1);
    EXPECT_EQ(ids, (std::vector<short>{last, static_cast<short>(last - 1),
                                       static_cast<short>(last - 2)}));
  }
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
  // The largest number of rows that select_rows takes: within the grid's 2^31 - 1 blocks.
  constexpr std::int64_t most = std::int64_t{1} << 32;
  EXPECT_LT(detail::select_blocks(most), std::int64_t{1} << 31);
  EXPECT_EQ(detail::select_row(detail::select_blocks(most) - 1, 127), most - 1);
}

// Every part of every row has one warp, parts follow each other without a gap, and they begin at
// multiples of 32 and are about equally long.
TEST(WarpSelectLayout, PartsCoverARow) {
  for (std::int64_t length :
       {0, 1, 31, 32, 33, 64, 1000, 4096, 99999, std::numeric_limits<int>::max()})
    for (int parts : {1, 2, 3, 7, 32, 100}) {
      SCOPED_TRACE(testing::Message() << length << " in " << parts);
      EXPECT_EQ(detail::select_part_begin(0, parts, length), 0);
      EXPECT_EQ(detail::select_part_begin(parts, parts, length), length);
      std::int64_t shortest = length, longest = 0;
      for (int part = 0; part < parts; ++part) {
        const std::int64_t begin = detail::select_part_begin(part, parts, length),
                           end = detail::select_part_begin(part + 1, parts, length);
        ASSERT_LE(begin, end);
        ASSERT_TRUE(begin % 32 == 0 || begin == length);
        shortest = std::min(shortest, end - begin);
        longest = std::max(longest, end - begin);
      }
      EXPECT_LE(longest - shortest, 63);  // one group, and what the last one lacks
    }
  for (int parts : {1, 3, 8}) {
    std::vector<int> warps_of(std::size_t(5 * parts));
    for (std::int64_t warp = 0; warp < 5 * parts; ++warp) {
      const detail::SelectPart at = detail::select_part(warp, parts);
      ASSERT_TRUE(0 <= at.row && at.row < 5 && 0 <= at.part && at.part < parts);
      ++warps_of[std::size_t(at.row * parts + at.part)];
    }
    for (int warps : warps_of) EXPECT_EQ(warps, 1);
  }
}

TEST(WarpSelectLayout, PartsFillTheMachineAsFarAsTheyPay) {
  EXPECT_EQ(detail::select_parts(10000, 128000, 100, 4000), 1);  // rows enough
  EXPECT_EQ(detail::select_parts(4000, 128000, 100, 4000), 1);
  EXPECT_EQ(detail::select_parts(1000, 128000, 100, 4000), 4);
  EXPECT_EQ(detail::select_parts(1001, 128000, 100, 4000), 4);
  EXPECT_EQ(detail::select_parts(1, 1000000, 100, 4000), 100);  // 10,000 values each, then 10,000
  EXPECT_EQ(detail::select_parts(1, 999999, 100, 4000), 99);
  EXPECT_EQ(detail::select_parts(1, 399, 100, 4000), 1);  // too short
  EXPECT_EQ(detail::select_parts(1, 400, 100, 4000), 2);
  EXPECT_EQ(detail::select_parts(1, 0, 1, 4000), 1);
  EXPECT_EQ(detail::select_parts(1, 1000000, 100, 0), 1);
  for (std::int64_t rows : {1, 3, 70})
    for (std::int64_t cols : {1000, 50000, 2000000000})
      for (int k : {1, 32, 1000})
        for (std::int64_t warps : {1, 100, 6336}) {
          const std::int64_t parts = detail::select_parts(rows, cols, k, warps);
          EXPECT_GE(parts, 1);
          EXPECT_LT(rows * (parts - 1), warps);
          EXPECT_TRUE(parts == 1 || parts * k <= cols / parts);
        }
}

// Both passes as the kernels run them (warp_select_rows.hpp): one warp for each part, which leaves
// NaN in empty places, then one for the candidates of all parts.
template <class Id>
void expect_selected_in_parts(const std::vector<float>& row, int k, int parts) {
  SCOPED_TRACE(testing::Message() << "k " << k << " parts " << parts << " n " << row.size());
  const auto all = std::size_t(parts) * std::size_t(k);
  std::vector<float> wanted(k), got(k, -99.0f), distances(all, -99.0f);
  std::vector<Id> wanted_ids(k), got_ids(k, Id(-99)), ids(all, Id(-99));
  test::select_reference(row.data(), Id(row.size()), k, wanted.data(), wanted_ids.data());
  with_warp_select_shape(k, [&](auto shape) {
    using Select = WarpSelect<HostWarp, Id, decltype(shape)::R, decltype(shape)::T>;
    const auto length = std::int64_t(row.size());
    for (int warp = parts - 1; warp >= 0; --warp) {  // in whatever order they come
      const int part = detail::select_part(warp, parts).part;
      const std::int64_t begin = detail::select_part_begin(part, parts, length),
                         end = detail::select_part_begin(part + 1, parts, length);
      Select select(HostWarp(), k);
      select.add_row(row.data() + begin, Id(end - begin), Id(begin));
      select.store(&distances[std::size_t(part * k)], &ids[std::size_t(part * k)]);
    }
    for (std::size_t i = 0; i < all; ++i)
      if (ids[i] < 0) distances[i] = std::numeric_limits<float>::quiet_NaN();
    Select select(HostWarp(), k);
    select.add_row(distances.data(), Id(all));
    select.store(got.data(), got_ids.data());
    for (Id& id : got_ids) id = id < 0 ? id : ids[std::size_t(id)];
  });
  ASSERT_EQ(got_ids, wanted_ids);
  ASSERT_TRUE(test::same_bits(got.data(), wanted.data(), k));
}

TEST(WarpSelect, AnySplitOfARowGivesTheSameAnswer) {
  std::uint64_t seed = 90;
  for (SelectKind kind : test::all_select_kinds)
    for (int n : {0, 1, 33, 700, 3000})
      for (int k : {1, 32, 33, 100, 257})
        for (int parts : {1, 2, 3, 5, 32}) {
          SCOPED_TRACE(name_of(kind));
          expect_selected_in_parts<int>(test::select_values(kind, n, seed++), k, parts);
          if (HasFatalFailure()) return;
        }
  expect_selected_in_parts<std::int64_t>(test::select_values(SelectKind::ties, 2000, 5), 200, 4);
  expect_selected_in_parts<int>(test::select_values(SelectKind::signed_zero, 5000, 6), 1000, 3);
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
