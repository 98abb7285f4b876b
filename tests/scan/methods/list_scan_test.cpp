// Inverted lists: how they are packed, and that a scan of them gives the reference's nearest rows
// of the lists that each query probes, in either order of work.
#include "knear/scan/methods/list_scan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "tests/scan/random_probes.hpp"
#include "tests/scan/scan_cases.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t list_count = 23;

// Scores and measures, in one part. Returns how many places were scored.
std::int64_t scan_lists(const PackedLists& lists, const ScanJob& job, MatrixView<Id> probes,
                        ExactNeighbors& out, ScanStats& stats, const Progress& progress) {
  ScoredLists scan(lists, job, probes, stats, progress);
  scan.finish(nullptr, out, stats);
  return scan.scored();
}

// Lists of unequal sizes, list 5 empty, list 0 with half of the rows.
std::vector<std::uint32_t> lists_of(std::int64_t rows, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::uint32_t> out;
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto list = static_cast<std::uint32_t>(random.below(2 * list_count));
    out.push_back(list >= list_count || list == 5 ? 0 : list);
  }
  return out;
}

// Around what the rows of lists are coded.
enum class Around { mean_of_all, own_centre };

// Centres of lists, some of which lie among the rows and some far from them.
ListCentres centres_of_lists(std::int64_t dim) {
  AnyMatrix values = vectors(Codes::fp32, list_count, dim, 60);
  for (std::int64_t l = 0; l < list_count; l += 4)
    static_cast<float*>(values.row(l))[l % dim] += static_cast<float>(l);
  auto kept = std::make_shared<AnyMatrix>(std::move(values));
  const MatrixView<float> view(static_cast<const float*>(kept->view().data()), list_count, dim);
  return {view, std::move(kept)};
}
ListCentres centres_for(Around around, std::int64_t dim) {
  // One for each number of columns, since parts that are joined have the same.
  static std::map<std::int64_t, ListCentres> made;
  if (around == Around::mean_of_all) return {};
  const auto [at, is_new] = made.try_emplace(dim);
  if (is_new) at->second = centres_of_lists(dim);
  return at->second;
}

PackedLists packed_lists(const ScanCase& c, Codes codes, const std::vector<std::uint32_t>& of,
                         Isa isa = active_isa(), Around around = Around::mean_of_all) {
  if (codes == Codes::integer)
    return PackedLists::integer(c.base.view(), of, list_count, c.metric, isa,
                                find_value_range(c.base.view(), Metric::l2, "base", 1), 2);
  constexpr Format formats[] = {format_int8, format_int16, format_fp32};
  return PackedLists::certified(c.base.view(), of, list_count, formats[static_cast<int>(codes)],
                                CodingSpace::choose(c.base.view(), c.metric, isa), 2, {},
                                centres_for(around, c.base.view().cols()));
}

// Of `all`, the rows of the lists that a query probes.
std::vector<KeyedId> probed(std::vector<KeyedId> all, const std::vector<std::uint32_t>& of,
                            MatrixView<Id> probes) {
  const Id *begin = probes.row(0), *end = begin + probes.cols();
  std::erase_if(all, [&](const KeyedId& x) {
    return std::find(begin, end, Id{of[static_cast<std::size_t>(x.second)]}) == end;
  });
  return all;
}

class ListScan : public testing::TestWithParam<std::tuple<Codes, Metric, Around>> {
 protected:
  PackedLists packed(const ScanCase& c, const std::vector<std::uint32_t>& of,
                     Isa isa = active_isa()) const {
    return packed_lists(c, codes, of, isa, around);
  }

  const Codes codes = std::get<0>(GetParam());
  const Metric metric = std::get<1>(GetParam());
  const Around around = std::get<2>(GetParam());
};

TEST_P(ListScan, PacksEachRowOnceInPanelsOfItsList) {
  for (const std::int64_t rows : {1, 31, 33, 3000}) {
    const ScanCase part(vectors(codes, rows, 20, 1), vectors(codes, 1, 20, 2), metric);
    const std::vector<std::uint32_t> of = lists_of(rows, 3);
    const PackedLists lists = packed(part, of);
    ASSERT_EQ(lists.lists(), list_count);
    ASSERT_EQ(lists.packed.rows, rows);
    ASSERT_EQ(lists.list_of(), of);
    std::vector<int> seen(static_cast<std::size_t>(rows));
    for (std::int64_t l = 0; l < list_count; ++l) {
      const auto [from, to] = lists.panels(l);
      std::int64_t count = 0;
      for (std::int64_t slot = from * panel_rows; slot < to * panel_rows; ++slot) {
        const std::uint32_t row = lists.packed.ids[static_cast<std::size_t>(slot)];
        if (row == PackedBase::no_row) continue;
        ++seen[row], ++count;
        ASSERT_EQ(of[row], l);
        // Nothing stands behind a slot that is left empty.
        if (slot % panel_rows > 0) {
          ASSERT_NE(lists.packed.ids[static_cast<std::size_t>(slot) - 1], PackedBase::no_row);
        }
      }
      ASSERT_EQ(to - from, (count + panel_rows - 1) / panel_rows);
    }
    ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), rows);
    // What follows the last list is empty.
    for (std::int64_t slot = lists.first_panel.back() * panel_rows;
         slot < lists.packed.panels() * panel_rows; ++slot)
      ASSERT_EQ(lists.packed.ids[static_cast<std::size_t>(slot)], PackedBase::no_row);
  }
}

TEST_P(ListScan, GivesTheNearestOfTheListsThatAreProbed) {
  const std::int64_t rows = test::small() ? 700 : 2500, many = test::small() ? 14 : 60;
  AnyMatrix base = vectors(codes, rows, 24, 4);
  for (std::int64_t i = 0; i < rows; i += 7) copy_row(base, i / 2, i);  // ties
  const ScanCase c(std::move(base), vectors(codes, many, 24, 5), metric);
  const std::vector<std::uint32_t> of = lists_of(rows, 6);
  RowSet live(rows);
  for (std::int64_t i = 0; i < rows; i += 3) live.remove(i);
  for (const Isa isa : test::levels()) {
    const PackedLists lists = packed(c, of, isa);
    for (const std::int64_t k : {1, 10, 40, 2000})
      for (const std::int64_t most : {0, 1, 2, 6, 23})
        for (const bool some_live : {false, true}) {
          if (k == 2000 && (some_live || most == 2)) continue;
          const Matrix<Id> probes = test::random_probes(many, most, list_count, 7);
          ScanJob job = c.job(k, isa, 1 + static_cast<int>(most) % 3);
          if (some_live) job.allowed.live = &live;
          // All at once; and a few, for which the work goes query by query.
          for (const std::int64_t few : {many, std::int64_t{3}, std::int64_t{1}}) {
            job.queries = c.queries.view().rows(0, few);
            ExactNeighbors out(few, k);
            ScanStats stats;
            scan_lists(lists, job, probes.view().rows(0, few), out, stats, {});
            ExactNeighbors measured(few, k);
            scan_lists_directly(RowLists(of, list_count), job, probes.view().rows(0, few), measured,
                                stats, {});
            for (std::int64_t q = 0; q < few; ++q) {
              const std::vector<KeyedId> expected =
                  probed(c.found(q, job.allowed), of, probes.view().rows(q, q + 1));
              for (const ExactNeighbors* each : {&out, &measured})
                ASSERT_TRUE(is_list(expected, each->keys.row(q), each->ids.row(q), k))
                    << "query " << q << " of " << few << ", k " << k << ", probes " << most
                    << (each == &out ? "" : ", measured");
            }
          }
        }
  }
}

// Keys that others have found rule out what is farther.
TEST_P(ListScan, StartsFromUpperBounds) {
  const ScanCase c(vectors(codes, 900, 16, 8), vectors(codes, 30, 16, 9), metric);
  const PackedLists lists = packed(c, lists_of(900, 10));
  std::vector<double> bounds;
  for (const auto& list : c.order) bounds.push_back(list[12].first);
  ScanJob job = c.job(20);
  job.upper_bounds = bounds.data();
  const Matrix<Id> probes = test::random_probes(30, list_count, list_count, 11);
  ExactNeighbors out(30, 20);
  ScanStats stats;
  scan_lists(lists, job, probes.view(), out, stats, {});
  for (std::int64_t q = 0; q < 30; ++q)
    ASSERT_TRUE(is_list(probed(c.found(q, {}), lists_of(900, 10), probes.view().rows(q, q + 1)),
                        out.keys.row(q), out.ids.row(q), 20, bounds[static_cast<std::size_t>(q)]));
}

// Two bases, of which both are scored before one is measured: bounds of both hold, what is within
// them is found, and less is measured.
TEST_P(ListScan, RowsOfSeveralBasesWaitForEachOther) {
  const std::int64_t rows = test::small() ? 700 : 2000, others = test::small() ? 900 : 2500,
                     many = test::small() ? 14 : 60;
  const ScanCase first(vectors(codes, rows, 24, 30), vectors(codes, many, 24, 32), metric),
      second(vectors(codes, others, 24, 31), vectors(codes, many, 24, 32), metric);
  const std::vector<std::uint32_t> of_first = lists_of(rows, 33), of_second = lists_of(others, 34);
  RowSet live(others);
  for (std::int64_t i = 0; i < others; i += 3) live.remove(i);
  for (const Isa isa : test::levels()) {
    const PackedLists firsts = packed(first, of_first, isa),
                      seconds = packed(second, of_second, isa);
    for (const std::int64_t k : {1, 10, 40})
      for (const std::int64_t most : {2, 9, 23}) {
        const Matrix<Id> probes = test::random_probes(many, most, list_count, 35);
        ScanJob job = first.job(k, isa, 2), other = second.job(k, isa, 2);
        other.allowed.live = &live;
        ScanStats alone, together;
        ExactNeighbors out(many, k), more(many, k);
        scan_lists(firsts, job, probes.view(), out, alone, {});
        scan_lists(seconds, other, probes.view(), more, alone, {});
        ScoredLists one(firsts, job, probes.view(), together, {}),
            two(seconds, other, probes.view(), together, {});
        std::vector<double> bounds;
        std::vector<std::vector<KeyedId>> found[2];
        for (std::int64_t q = 0; q < many; ++q) {
          const auto theirs = probes.view().rows(q, q + 1);
          found[0].push_back(probed(first.found(q, {}), of_first, theirs));
          found[1].push_back(probed(second.found(q, other.allowed), of_second, theirs));
          std::vector<double> all, keys;
          for (const auto& list : {found[0].back(), found[1].back()})
            for (const KeyedId& x : list) all.push_back(x.first);
          std::sort(all.begin(), all.end());
          one.add_keys(q, keys), two.add_keys(q, keys);
          std::sort(keys.begin(), keys.end());
          ASSERT_GE(std::ssize(keys), std::min<std::int64_t>(k, std::ssize(all)));
          for (std::size_t i = 0; i < keys.size(); ++i) ASSERT_GE(keys[i], all[i]);
          bounds.push_back(std::ssize(keys) < k ? std::numeric_limits<double>::infinity()
                                                : keys[static_cast<std::size_t>(k) - 1]);
        }
        one.finish(bounds.data(), out, together), two.finish(bounds.data(), more, together);
        for (std::int64_t q = 0; q < many; ++q) {
          const auto at = static_cast<std::size_t>(q);
          ASSERT_TRUE(is_list(found[0][at], out.keys.row(q), out.ids.row(q), k, bounds[at])) << q;
          ASSERT_TRUE(is_list(found[1][at], more.keys.row(q), more.ids.row(q), k, bounds[at])) << q;
        }
        if (codes != Codes::integer && around == Around::mean_of_all && most == 23) {
          EXPECT_LT(together.survivors, alone.survivors * 4 / 5) << "k " << k;
        }
      }
  }
}

// The rows of a case in several bases, with ids that go to and fro between them: row i under id i.
struct InParts {
  InParts(const ScanCase& c, Codes codes, const std::vector<std::uint32_t>& of, Isa isa,
          const std::vector<int>& part_of, Around around) {
    const std::int64_t count = *std::max_element(part_of.begin(), part_of.end()) + 1;
    ids.resize(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < part_of.size(); ++i)
      ids[static_cast<std::size_t>(part_of[i])].push_back(static_cast<Id>(i));
    const CodingSpace space = CodingSpace::choose(c.base.view(), c.metric, isa);
    for (const std::vector<Id>& some : ids) {
      AnyMatrix& base = bases.emplace_back(c.base.type(), std::ssize(some), c.base.view().cols());
      std::vector<std::uint32_t> theirs;
      for (std::size_t i = 0; i < some.size(); ++i) {
        std::memcpy(base.row(static_cast<std::int64_t>(i)), c.base.view().row(some[i]),
                    static_cast<std::size_t>(c.base.view().cols() * size_of(c.base.type())));
        theirs.push_back(of[static_cast<std::size_t>(some[i])]);
      }
      constexpr Format formats[] = {format_int8, format_int16, format_fp32};
      packed.push_back(
          codes == Codes::integer
              ? PackedLists::integer(base.view(), theirs, list_count, c.metric, isa,
                                     find_value_range(base.view(), Metric::l2, "base", 1), 2)
              : PackedLists::certified(base.view(), theirs, list_count,
                                       formats[static_cast<int>(codes)], space, 2, {},
                                       centres_for(around, c.base.view().cols())));
    }
    for (std::size_t p = 0; p < packed.size(); ++p) {
      rows.add(bases[p].view(), {.ids = ids[p].data()});
      lists.add(packed[p]);
    }
  }

  std::vector<std::vector<Id>> ids;
  std::vector<AnyMatrix> bases;
  std::vector<PackedLists> packed;
  JoinedRows rows;
  ListParts lists;
};

// Bases that are joined: ties go by id, wherever the rows lie, and parts may lack lists that others
// have, or have rows of another range.
TEST_P(ListScan, PartsThatAreJoinedAnswerAsOneBase) {
  const std::int64_t count = test::small() ? 1200 : 2500, many = test::small() ? 14 : 60;
  AnyMatrix base = vectors(codes, count, 24, 40);
  std::vector<int> part_of;
  for (std::int64_t i = 0; i < count; ++i) {
    part_of.push_back(i % 50 == 7 ? 3 : i % 5 < 3 ? 0 : i % 5 - 2);
    if (i % 7 == 0) copy_row(base, i / 2, i);
    if (codes == Codes::integer && part_of.back() == 1)  // not from 0 to 255
      for (std::int64_t j = 0; j < 24; ++j) {
        auto& x = static_cast<std::uint8_t*>(base.row(i))[j];
        x = static_cast<std::uint8_t>(51 + x % 102);
      }
  }
  const ScanCase c(std::move(base), vectors(codes, many, 24, 41), metric);
  const std::vector<std::uint32_t> of = lists_of(count, 42);
  for (const Isa isa : test::levels()) {
    const InParts parts(c, codes, of, isa, part_of, around);
    ASSERT_EQ(parts.lists.parts.size(), 4u);
    for (const std::int64_t k : {1, 10, 40, 2000})
      for (const std::int64_t most : {0, 1, 2, 6, 23})
        for (const bool bounded : {false, true}) {
          if (k == 2000 && (bounded || most == 2)) continue;
          const Matrix<Id> probes = test::random_probes(many, most, list_count, 43);
          std::vector<double> bounds;
          for (const auto& list : c.order) bounds.push_back(list[30].first);
          for (const std::int64_t few : {many, std::int64_t{3}, std::int64_t{1}}) {
            ScanJob job = c.job(k, isa, most % 2 == 0 ? 1 : 3);
            job.base = BaseRows(parts.rows);
            job.queries = c.queries.view().rows(0, few);
            if (bounded) job.upper_bounds = bounds.data();
            ExactNeighbors out(few, k);
            ScanStats stats;
            const auto some = probes.view().rows(0, few);
            ScoredLists scan(parts.lists, job, some, stats, {});
            scan.finish(bounded ? bounds.data() : nullptr, out, stats);
            for (std::int64_t q = 0; q < few; ++q)
              ASSERT_TRUE(is_list(probed(c.found(q, {}), of, some.rows(q, q + 1)), out.keys.row(q),
                                  out.ids.row(q), k,
                                  bounded ? bounds[static_cast<std::size_t>(q)] : infinity))
                  << "query " << q << " of " << few << ", k " << k << ", probes " << most;
          }
        }
  }
}

// Most rows of list 0 are copies of one row. Of these only as many panels are scanned as have k
// rows, unless a filter or removed rows leave some out.
TEST_P(ListScan, FurtherCopiesOfARowAreNotScanned) {
  const std::int64_t count = 2600, many = 14;
  const std::vector<std::uint32_t> of = lists_of(count, 61);
  AnyMatrix base = vectors(codes, count, 24, 62);
  std::int64_t copied = -1, copies = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (of[static_cast<std::size_t>(i)] != 0 || i % 9 == 0) continue;
    if (copied < 0)
      copied = i;
    else
      copy_row(base, copied, i);
    ++copies;
  }
  ASSERT_GT(copies, 1000);
  AnyMatrix queries = vectors(codes, many, 24, 63);
  std::memcpy(queries.row(3), base.row(copied),
              static_cast<std::size_t>(24 * size_of(base.type())));
  const ScanCase c(std::move(base), std::move(queries), metric);
  std::vector<int> part_of;
  for (std::int64_t i = 0; i < count; ++i) part_of.push_back(i % 4 == 1);
  RowSet live(count);
  for (std::int64_t i = 0; i < count; i += 3) live.remove(i);
  const PackedLists lists = packed(c, of);
  const InParts parts(c, codes, of, active_isa(), part_of, around);
  for (const std::int64_t k : {1, 10, 33, 300, 2000})
    for (const std::int64_t most : {1, 23}) {
      const Matrix<Id> probes = test::random_probes(many, most, list_count, 64);
      for (const int way : {0, 1, 2}) {
        ScanJob job = c.job(k, active_isa(), 2);
        if (way == 1) job.allowed.live = &live;
        if (way == 2) job.base = BaseRows(parts.rows);
        ExactNeighbors out(many, k);
        ScanStats stats;
        ScoredLists scan(way == 2 ? parts.lists : ListParts(lists), job, probes.view(), stats, {});
        scan.finish(nullptr, out, stats);
        for (std::int64_t q = 0; q < many; ++q)
          ASSERT_TRUE(is_list(probed(c.found(q, job.allowed), of, probes.view().rows(q, q + 1)),
                              out.keys.row(q), out.ids.row(q), k))
              << "query " << q << ", k " << k << ", probes " << most << ", way " << way;
        if (way == 0 && codes != Codes::integer && most == 23 && k == 10) {
          EXPECT_LT(stats.survivors, many * (count - copies + 100));
          EXPECT_LT(stats.hits, many * (count - copies + 100));
          EXPECT_LT(scan.scored(), many * (count - copies + 100 + list_count * panel_rows));
        }
      }
    }
  if (codes != Codes::integer) {
    const auto& runs = lists.copy_runs->of(lists.packed, lists.first_panel, c.base.view(), 0);
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_GE(runs[0].end - runs[0].begin, copies / panel_rows - 2);
  }
}

// No row is measured that one base would not measure, but for other bounds of the codes.
TEST_P(ListScan, PartsThatAreJoinedMeasureNoMoreRows) {
  const ScanCase c(vectors(codes, 6000, 24, 44), vectors(codes, 60, 24, 45), metric);
  const std::vector<std::uint32_t> of = lists_of(6000, 46);
  std::vector<int> part_of;
  for (int i = 0; i < 6000; ++i) part_of.push_back(i % 2);
  const InParts parts(c, codes, of, active_isa(), part_of, around);
  const PackedLists whole = packed(c, of);
  const Matrix<Id> probes = test::random_probes(60, 16, list_count, 47);
  ScanJob job = c.job(10, active_isa(), 2);
  ScanStats one, joined;
  ExactNeighbors out(60, 10);
  scan_lists(whole, job, probes.view(), out, one, {});
  job.base = BaseRows(parts.rows);
  ScoredLists scan(parts.lists, job, probes.view(), joined, {});
  scan.finish(nullptr, out, joined);
  EXPECT_LE(joined.survivors, one.survivors + one.survivors / 20);
  EXPECT_EQ(scan.scored() / panel_rows >= 6000 / panel_rows, true);
}

TEST(JoinedRows, FindsTheBaseOfARow) {
  for (const int count : {1, 2, 16, 17, 40}) {
    std::vector<AnyMatrix> bases;
    std::vector<std::vector<Id>> ids;
    JoinedRows rows;
    std::int64_t all = 0;
    for (int p = 0; p < count; ++p) {
      const std::int64_t n = p % 5;  // some have none
      AnyMatrix& base = bases.emplace_back(ElementType::f32, n, 3);
      ids.emplace_back();
      for (std::int64_t i = 0; i < n; ++i, ++all) {
        static_cast<float*>(base.row(i))[0] = static_cast<float>(all);
        ids.back().push_back(1000 - 3 * all);
      }
    }
    for (std::size_t p = 0; p < bases.size(); ++p)
      rows.add(bases[p].view(), {.ids = ids[p].data()});
    ASSERT_EQ(rows.rows(), all);
    const BaseRows joined(rows);
    ASSERT_EQ(joined.rows(), all);
    for (std::int64_t i = 0; i < all; ++i) {
      ASSERT_EQ(*static_cast<const float*>(joined.row(i, nullptr)), static_cast<float>(i));
      ASSERT_EQ(joined.number(i), 1000 - 3 * i);
    }
  }
}

TEST_P(ListScan, FindsAllRowsWithinARadiusInTheListsThatAreProbed) {
  AnyMatrix base = vectors(codes, 1500, 12, 12);
  for (std::int64_t i = 0; i < 1500; i += 7) copy_row(base, i / 2, i);
  const ScanCase c(std::move(base), vectors(codes, 50, 12, 13), metric);
  const std::vector<std::uint32_t> of = lists_of(1500, 14);
  RowSet live(1500);
  for (std::int64_t i = 0; i < 1500; i += 3) live.remove(i);
  const PackedLists lists = packed(c, of);
  const RowLists numbers(of, list_count);
  for (const std::int64_t most : {0, 1, 7, 23})
    for (const std::int64_t few : {50, 2})
      for (const bool some_live : {false, true}) {
        const Matrix<Id> probes = test::random_probes(few, most, list_count, 15);
        ScanJob job = c.job(10, active_isa(), 2);
        if (some_live) job.allowed.live = &live;
        job.queries = c.queries.view().rows(0, few);
        const double limit = c.order[1][200].first;
        const RowIds ids{.first = 100};
        for (const bool directly : {false, true}) {
          RangeLists found(static_cast<std::size_t>(few));
          RangeSink sink(found, ids, 1 << 20);
          ScanStats stats;
          if (directly)
            scan_lists_range_directly(numbers, job, probes.view(), limit, sink, stats, {});
          else
            scan_lists_range(lists, job, probes.view(), limit, sink, stats, {});
          for (std::int64_t q = 0; q < few; ++q) {
            std::vector<KeyedId> expected =
                probed(c.found(q, job.allowed), of, probes.view().rows(q, q + 1));
            std::erase_if(expected, [&](const KeyedId& x) { return x.first > limit; });
            auto& got = found[static_cast<std::size_t>(q)];
            std::sort(got.begin(), got.end());
            ASSERT_EQ(got.size(), expected.size());
            for (std::size_t j = 0; j < got.size(); ++j) {
              ASSERT_EQ(got[j].first, expected[j].first);
              ASSERT_EQ(got[j].second, ids(expected[j].second));
            }
          }
        }
      }
}

// Filters of all shares, even and uneven ones: lists are passed over, measured or scanned.
std::vector<std::vector<Id>> filters_of(const std::vector<std::uint32_t>& of, std::uint64_t seed) {
  Random random(seed);
  const auto rows = static_cast<Id>(of.size());
  std::vector<std::vector<Id>> out = {{}, {rows / 2}};
  for (const double share : {0.001, 0.01, 0.05, 0.3, 0.99}) {
    out.emplace_back();
    for (Id row = 0; row < rows; ++row)
      if (random.uniform() < share) out.back().push_back(row);
  }
  out.emplace_back();  // all of list 3, a few of list 0
  for (Id row = 0; row < rows; ++row)
    if (const auto list = of[static_cast<std::size_t>(row)];
        list == 3 || (list == 0 && row % 50 == 0))
      out.back().push_back(row);
  return out;
}

TEST_P(ListScan, GivesWhatAFilterLeavesOfTheListsThatAreProbed) {
  constexpr std::int64_t offset = 37;
  const std::int64_t rows = test::small() ? 900 : 4000, many = test::small() ? 14 : 60;
  AnyMatrix base = vectors(codes, rows, 24, 21);
  for (std::int64_t i = 0; i < rows; i += 7) copy_row(base, i / 2, i);  // ties
  const ScanCase c(std::move(base), vectors(codes, many, 24, 22), metric);
  const std::vector<std::uint32_t> of = lists_of(rows, 23);
  RowSet live(rows + 5);
  for (std::int64_t i = 0; i < rows; i += 11) live.remove(i);
  const RowLists numbers(of, list_count);
  const Matrix<Id> probes = test::random_probes(many, 12, list_count, 24);
  for (const Isa isa : test::levels()) {
    const PackedLists lists = packed(c, of, isa);
    for (const std::vector<Id>& ids : filters_of(of, 25)) {
      std::vector<Id> moved;
      for (const Id id : ids) moved.push_back(id + offset);
      const RowFilter filter = RowFilter::of_ids(moved, rows + offset);
      for (const bool some_live : {false, true}) {
        AllowedRows allowed{.filter = &filter, .offset = offset};
        if (some_live) allowed.live = &live, allowed.live_offset = 5;
        for (const std::int64_t few : {many, std::int64_t{3}, std::int64_t{1}}) {
          const MatrixView<Id> theirs = probes.view().rows(0, few);
          std::vector<std::vector<KeyedId>> expected;
          for (std::int64_t q = 0; q < few; ++q)
            expected.push_back(probed(c.found(q, allowed), of, theirs.rows(q, q + 1)));
          for (const std::int64_t k : {1, 10, 40}) {
            ScanJob job = c.job(k, isa, 2);
            job.allowed = allowed, job.queries = c.queries.view().rows(0, few);
            ExactNeighbors out(few, k), measured(few, k);
            ScanStats stats;
            scan_lists(lists, job, theirs, out, stats, {});
            scan_lists_directly(numbers, job, theirs, measured, stats, {});
            for (std::int64_t q = 0; q < few; ++q)
              for (const ExactNeighbors* each : {&out, &measured})
                ASSERT_TRUE(is_list(expected[static_cast<std::size_t>(q)], each->keys.row(q),
                                    each->ids.row(q), k))
                    << "query " << q << " of " << few << ", k " << k << ", " << ids.size()
                    << " rows allowed" << (each == &out ? "" : ", measured");
          }
          ScanJob job = c.job(10, isa, 2);
          job.allowed = allowed, job.queries = c.queries.view().rows(0, few);
          const double limit = c.order[0][rows / 3].first;
          for (const bool directly : {false, true}) {
            RangeLists found(static_cast<std::size_t>(few));
            RangeSink sink(found, RowIds{}, 1 << 20);
            ScanStats stats;
            if (directly)
              scan_lists_range_directly(numbers, job, theirs, limit, sink, stats, {});
            else
              scan_lists_range(lists, job, theirs, limit, sink, stats, {});
            for (std::size_t q = 0; q < found.size(); ++q) {
              std::vector<std::pair<double, Id>> within;
              for (const KeyedId& x : expected[q])
                if (x.first <= limit) within.emplace_back(x.first, x.second);
              std::sort(found[q].begin(), found[q].end());
              ASSERT_EQ(found[q], within) << "query " << q << " of " << few << ", " << ids.size()
                                          << " rows allowed" << (directly ? ", measured" : "");
            }
          }
        }
      }
    }
  }
}

// Rows that a filter leaves of a list are measured where they are few, and no hit of another row
// leaves the kernel.
TEST_P(ListScan, ScoresNoListOfWhichAFilterLeavesLittle) {
  const ScanCase c(vectors(codes, 4000, 24, 26), vectors(codes, 60, 24, 27), metric);
  const std::vector<std::uint32_t> of = lists_of(4000, 28);
  const PackedLists lists = packed(c, of);
  const Matrix<Id> probes = test::random_probes(60, 12, list_count, 29);
  std::vector<std::int64_t> scored, hits;
  for (const std::vector<Id>& ids : filters_of(of, 30)) {
    const RowFilter filter = RowFilter::of_ids(ids, 4000);
    for (const std::int64_t few : {60, 1}) {
      ScanJob job = c.job(10);
      job.allowed.filter = &filter, job.queries = c.queries.view().rows(0, few);
      ExactNeighbors out(few, 10);
      ScanStats stats;
      scored.push_back(scan_lists(lists, job, probes.view().rows(0, few), out, stats, {}));
      hits.push_back(stats.hits);
    }
  }
  for (const std::size_t i : {0, 1, 2, 3, 4, 5, 6, 7}) {  // up to 1 %
    EXPECT_EQ(scored[i], 0) << i;
    EXPECT_EQ(hits[i], 0) << i;
  }
  for (const std::size_t i : {10, 12}) EXPECT_GT(scored[i], 0) << i;  // 30 % and 99 %
  // List 3 is scored, list 0 is not, of the queries that probe it.
  const auto [from, to] = lists.panels(3);
  std::int64_t probing = 0;
  for (std::int64_t q = 0; q < 60; ++q)
    probing += std::count(probes.row(q), probes.row(q) + 12, Id{3});
  EXPECT_EQ(scored[14], probing * (to - from) * panel_rows);
}

INSTANTIATE_TEST_SUITE_P(
    Codes, ListScan,
    testing::Values(std::tuple(Codes::int8, Metric::l2, Around::mean_of_all),
                    std::tuple(Codes::int8, Metric::ip, Around::mean_of_all),
                    std::tuple(Codes::int8, Metric::cosine, Around::mean_of_all),
                    std::tuple(Codes::int16, Metric::ip, Around::mean_of_all),
                    std::tuple(Codes::fp32, Metric::l2, Around::mean_of_all),
                    std::tuple(Codes::integer, Metric::l2, Around::mean_of_all),
                    std::tuple(Codes::integer, Metric::ip, Around::mean_of_all),
                    std::tuple(Codes::int8, Metric::l2, Around::own_centre),
                    std::tuple(Codes::int8, Metric::ip, Around::own_centre),
                    std::tuple(Codes::int8, Metric::cosine, Around::own_centre),
                    std::tuple(Codes::fp32, Metric::l2, Around::own_centre)),
    [](const auto& p) {
      return name_of(std::get<0>(p.param)) + "_" + std::string(name_of(std::get<1>(p.param))) +
             (std::get<2>(p.param) == Around::own_centre ? "_own_centre" : "");
    });

// Lists that lie far apart beside their width: around their own centres 8 bits tell the rows of a
// list from one another, around the mean of all they do not.
TEST(ListScanOfFarLists, FewRowsAreMeasured) {
  Random random(31);
  const std::int64_t rows = 4600, dim = 16;
  for (const Metric metric : {Metric::l2, Metric::cosine}) {
    AnyMatrix centres(ElementType::f32, list_count, dim), base(ElementType::f32, rows, dim),
        asked(ElementType::f32, 100, dim);
    const auto fill = [&](AnyMatrix& m, std::int64_t row, std::int64_t list, double far) {
      for (std::int64_t j = 0; j < dim; ++j)
        static_cast<float*>(m.row(row))[j] =
            (list < 0 ? 0 : static_cast<const float*>(centres.view().row(list))[j]) +
            static_cast<float>(far * (random.uniform() - 0.5));
    };
    for (std::int64_t l = 0; l < list_count; ++l) fill(centres, l, -1, 200);
    std::vector<std::uint32_t> of;
    for (std::int64_t i = 0; i < rows; ++i) {
      of.push_back(static_cast<std::uint32_t>(i % list_count));
      fill(base, i, i % list_count, 0.5);
    }
    for (std::int64_t q = 0; q < 100; ++q) fill(asked, q, q % list_count, 0.5);
    if (metric == Metric::cosine)  // centres of rows of length 1
      for (std::int64_t l = 0; l < list_count; ++l) {
        auto* const row = static_cast<float*>(centres.row(l));
        double squares = 0;
        for (std::int64_t j = 0; j < dim; ++j) squares += double{row[j]} * row[j];
        for (std::int64_t j = 0; j < dim; ++j)
          row[j] = static_cast<float>(row[j] / std::sqrt(squares));
      }
    const ScanCase c(std::move(base), std::move(asked), metric);
    const MatrixView<float> view(static_cast<const float*>(centres.view().data()), list_count, dim);
    Matrix<Id> probes(100, 1);
    for (std::int64_t q = 0; q < 100; ++q) *probes.row(q) = q % list_count;
    const auto measured = [&](const ListCentres& around) {
      const PackedLists lists = PackedLists::certified(
          c.base.view(), of, list_count, format_int8,
          CodingSpace::choose(c.base.view(), metric, active_isa()), 1, {}, around);
      ExactNeighbors out(100, 10);
      ScanStats stats;
      scan_lists(lists, c.job(10), probes.view(), out, stats, {});
      for (std::int64_t q = 0; q < 100; ++q)
        EXPECT_TRUE(is_list(probed(c.found(q, {}), of, probes.view().rows(q, q + 1)),
                            out.keys.row(q), out.ids.row(q), 10));
      return stats.survivors;
    };
    EXPECT_GT(measured({}), 100 * 100) << name_of(metric);
    EXPECT_LT(measured({view, {}}), 100 * 30) << name_of(metric);
  }
}

// Queries of very unequal lengths, zeros among them, in lists of rows of their own lengths: answers
// are the reference's, and no more rows are measured than if the long and the short ones had come
// by themselves.
TEST(ListScanOfUnequalLengths, MeasuresNoMoreRows) {
  const auto scaled = [](std::int64_t rows, std::uint64_t seed, auto is_long) {
    AnyMatrix out = vectors(Codes::int8, rows, 24, seed);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < 24; ++j)
        static_cast<float*>(out.row(i))[j] *= is_long(i) ? 1000.0f : 1.0f;
    return out;
  };
  const std::vector<std::uint32_t> of = lists_of(2500, 21);
  constexpr std::int64_t some = 210, all = 240;  // short queries, and with the long ones
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    AnyMatrix asked = scaled(all, 22, [](std::int64_t i) { return i >= some; });
    for (std::int64_t i = 0; i < all; i += 24) std::memset(asked.row(i), 0, 24 * sizeof(float));
    const ScanCase c(
        scaled(2500, 23, [&](std::int64_t i) { return of[static_cast<std::size_t>(i)] % 8 == 7; }),
        std::move(asked), metric);
    const PackedLists lists = packed_lists(c, Codes::int8, of);
    const Matrix<Id> probes = test::random_probes(all, list_count, list_count, 24);
    const auto measured = [&](std::int64_t begin, std::int64_t end) {
      ScanJob job = c.job(10);
      job.queries = c.queries.view().rows(begin, end);
      ExactNeighbors out(end - begin, 10);
      ScanStats stats;
      scan_lists(lists, job, probes.view().rows(begin, end), out, stats, {});
      for (std::int64_t q = begin; q < end; ++q)
        EXPECT_TRUE(is_list(probed(c.found(q, {}), of, probes.view().rows(q, q + 1)),
                            out.keys.row(q - begin), out.ids.row(q - begin), 10))
            << name_of(metric) << " query " << q;
      return stats.survivors;
    };
    const std::int64_t apart = measured(0, some) + measured(some, all);
    EXPECT_LE(measured(0, all), apart + apart / 4) << name_of(metric);
  }
}

TEST(ListScanStops, WhenAskedTo) {
  const ScanCase c(vectors(Codes::int8, 900, 16, 8), vectors(Codes::int8, 30, 16, 9), Metric::l2);
  const PackedLists lists = packed_lists(c, Codes::int8, lists_of(900, 10));
  ExactNeighbors out(30, 5);
  ScanStats stats;
  EXPECT_THROW(scan_lists(lists, c.job(5), test::random_probes(30, 9, list_count, 1).view(), out,
                          stats, [](std::string_view, double) { return false; }),
               Cancelled);
  EXPECT_THROW(PackedLists::certified(c.base.view(), lists_of(900, 10), list_count, format_int8,
                                      CodingSpace::choose(c.base.view(), Metric::l2, active_isa()),
                                      1, [](std::string_view, double) { return false; }),
               Cancelled);
}

}  // namespace
}  // namespace knear::detail
