// Packed queries that are kept: which sets are packed anew, what room they take, and that a scan's
// thresholds do not stay in them.
#include "knear/scan/packing/kept_queries.hpp"

#include <gtest/gtest.h>

#include "knear/core/random.hpp"

namespace knear::detail {
namespace {

struct Problem {
  Problem() : base(90, 16), queries(48, 16) {
    Random random(1);
    for (auto* matrix : {&base, &queries})
      for (std::int64_t i = 0; i < matrix->rows() * 16; ++i)
        matrix->data()[i] = static_cast<float>(random.uniform());
    packed =
        PackedBase::certified(base.view(), {}, format_int8,
                              CodingSpace::choose(base.view(), Metric::l2, active_isa()), 1, {});
  }
  // Set s of four, each of twelve queries.
  PackedQueries pack(std::size_t s) {
    ++packings;
    std::int64_t which[12];
    for (int q = 0; q < 12; ++q) which[q] = static_cast<std::int64_t>(s) * 12 + q;
    return pack_queries(packed, queries.view(), which, 12, 12, {});
  }
  PackedQueries get(KeptQueries& kept, std::size_t s) {
    return kept.get(s, [&] { return pack(s); });
  }

  Matrix<float> base, queries;
  PackedBase packed;
  int packings = 0;
};

TEST(KeptQueries, PacksEachSetOnceAndKeepsNoThresholds) {
  Problem p;
  std::atomic<std::int64_t> room = 1 << 20;
  KeptQueries kept(room);
  for (int scan = 0; scan < 3; ++scan) {
    kept.begin_scan(format_int8, 12, 4);
    for (std::size_t s = 0; s < 4; ++s) {
      PackedQueries got = p.get(kept, s);
      const PackedQueries wanted = p.pack(s);
      --p.packings;
      ASSERT_EQ(got.heads[0].threshold[3], wanted.heads[0].threshold[3]);
      ASSERT_EQ(got.heads[0].error[3], wanted.heads[0].error[3]);
      for (std::int64_t i = 0; i < 16 * 12; ++i)
        ASSERT_EQ(got.group_codes(0)[i], wanted.group_codes(0)[i]);
      got.heads[0].threshold[3] = 7;  // as a scan does
    }
  }
  EXPECT_EQ(p.packings, 4);
}

TEST(KeptQueries, TakesTheRoomThereIsAndGivesItBack) {
  Problem p;
  std::atomic<std::int64_t> room = 1 << 20;
  std::int64_t each = 0;
  {
    KeptQueries one(room);
    one.begin_scan(format_int8, 12, 4);
    p.get(one, 0);
    each = (1 << 20) - room;
    ASSERT_GT(each, 12 * 16);
  }
  room = 2 * each + each / 2, p.packings = 0;
  KeptQueries kept(room), other(room);
  kept.begin_scan(format_int8, 12, 4);
  for (int scan = 0; scan < 2; ++scan)
    for (std::size_t s = 0; s < 4; ++s) p.get(kept, s);
  EXPECT_EQ(p.packings, 4 + 2);
  EXPECT_EQ(room, each / 2);
  // Other codes, or another division, are no longer those of these sets.
  kept.begin_scan(format_int16, 12, 4);
  EXPECT_EQ(room, 2 * each + each / 2);
  p.get(kept, 1);
  kept.begin_scan(format_int16, 12, 3);
  EXPECT_EQ(room, 2 * each + each / 2);
  p.packings = 0;
  other.begin_scan(format_int8, 12, 4);
  for (std::size_t s = 0; s < 4; ++s) p.get(other, s), p.get(other, s);
  EXPECT_EQ(p.packings, 4 + 2);
}

}  // namespace
}  // namespace knear::detail
