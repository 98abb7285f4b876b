// knear/scan/device/scan_kernels.hpp -- the one scan on a GPU, as kernels of knear/simt/thread.hpp.
//
//   ScanPanels         scores queries x rows on the tensor cores, compares while sums are in
//                      registers, appends the few pairs that pass to a list of their query;
//                      few_scan.hpp has its form for few queries, which waits for memory alone
//   UpdateThresholds   brings each query's threshold to the k-th best of its list, and drops from
//                      the list what cannot be among the k
//   MeasureRows        the float64 reference of what is left; IntegerKeys, of whole numbers
//   RankRows           the k best in the order (key, id)
//
// long_lists.hpp has two of them for many neighbours.
//
// The test is that of the processor's kernels (scan/kernels/tile_kernels.hpp; docs/bounds.md, 4 and
// 6): a pair is kept unless an inequality proves that it is not among the k. So answers are the
// same, whatever the order in which pairs are appended. device_scan.hpp says how the kernels follow
// one another.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/code_layout.hpp"
#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"
#include "knear/select/warp/warp_select.hpp"
#include "knear/simt/thread.hpp"
#include "knear/simt/thread_warp.hpp"

namespace knear::detail {

// Arrays in device memory; [slots] are panels * 32.
struct DeviceBaseView {
  const std::uint8_t* codes;         // as device_codes()
  const PanelHead* heads;            // [panels], certified
  const PanelTest* tests;            // [panels], certified: of the heads
  const float* row_bias;             // [slots], certified
  const std::uint32_t* row_squares;  // [slots], integer
  const std::int32_t* row_sums;      // [slots], integer
  const std::uint32_t* ids;          // [slots]; no_row: none
  const std::uint32_t* order;        // [panels] the order in which panels are scanned
  std::int64_t panels;
  int slices;
  bool integer;        // whole numbers, whose scores are exact
  bool l2, cosine;     // neither: ip
  double query_slack;  // times |u|^2: the rounding due to the query; l2, certified
  // Bit i % 32 of word i / 32 says whether row i may be found, for a search that is limited to some
  // rows; nullptr: every row.
  const std::uint32_t* allowed = nullptr;
  // How far g may be from that of the vector that was coded: of rows whose keys come from
  // elsewhere.
  double key_slack = 0;
  static constexpr std::uint32_t no_row = 0xffffffffu;

  // Whether the slot has a row, and the row may be found.
  KNEAR_HD bool counts(std::uint32_t slot) const {
    const std::uint32_t id = ids[slot];
    return id != no_row && (!allowed || (allowed[id / 32] >> id % 32 & 1));
  }
};

// The slot at a place of base.order: of a self-join that of the row that is the query there.
KNEAR_DEVICE std::uint32_t slot_at(const DeviceBaseView& base, std::int64_t place) {
  return base.order[place / panel_rows] * panel_rows +
         static_cast<std::uint32_t>(place % panel_rows);
}

struct DeviceQueryView {
  const std::uint8_t* codes;  // as DeviceQueries, all by place
  const double* scales;       // [blocks]
  const DeviceQuery* heads;   // [count]
  // [count] certified: G, which the k-th best certainly reaches; integer: a key that the k-th does
  // not exceed.
  double* thresholds;
  std::int64_t count, blocks;
  bool shifted;
};

// A pair that passed, in the list of its query: a slot and its code dot, correction included.
struct Entry {
  std::uint32_t slot;
  std::int32_t score;
};
struct DeviceLists {
  Entry* entries;  // [count x room]
  double* keys;    // [count x room], once measured
  int* counts;     // [count]; if above room, entries were lost
  int* lost;       // [count]: whether that ever happened
  int room;
};

// Memory for lists while they are sorted.
struct SpareLists {
  double* keys;    // [count x room]
  Entry* entries;  // [count x room]
  std::int64_t count;
};

struct alignas(16) FourWords {
  unsigned word[4];
};

// The limit of a query in a panel: pairs whose sum of products and row term is below it do not
// pass. No higher than that of limit_of(), to which the margins of both tests lead.
KNEAR_DEVICE int certified_limit(const PanelTest& panel, const QueryTest& query, float inverse) {
  constexpr float lowest = -0x1p30f - 128, highest = 0x1p29f + 64;
  static_assert(double{lowest}<lowest_limit&& double{highest}> highest_limit);
  const float rest =
      fmaf(inverse, panel.bias_max, fmaf(query.norm, panel.error, query.error * panel.norm));
  float limit = fmaxf(fmaf(query.threshold, panel.inverse, -rest), lowest);  // NaN: keeps all
  limit = fminf(limit, highest);
  return static_cast<int>(limit) - limit_margin + query.correction;
}
// What the product of a row of the panel starts from: rounded up, and 0 at most.
KNEAR_DEVICE int certified_term(float panel_scale, float bias, float inverse) {
  const float ratio = panel_scale * inverse;
  if (!(ratio > 0)) return 0;  // NaN too
  const float factor = fminf(ratio, 1e30f) * (1.0f - 0x1p-21f);
  return static_cast<int>(fmaxf(bias * factor, lowest_term));
}
// Of a pair of a self-join that is scored for its query what its row makes of it: `number` and
// `lowered` of code_layout.hpp.
KNEAR_DEVICE int pair_number(const PanelTest& panel, float reach, float most, float inverse) {
  const float number = fmaf(inverse, reach, fmaf(inverse, panel.bias_max, -(most * panel.inverse)));
  // NaN: keeps all, since no sum is below -2^30 and no limit above 0.
  return static_cast<int>(number < 0x1p30f ? fmaxf(number, -0x1p29f) : 0x1p30f) + 1;
}
KNEAR_DEVICE int pair_limit(const PanelTest& panel, const QueryTest& query, float top) {
  const float lowered =
      fmaf(top, panel.inverse, -fmaf(query.norm, panel.error, query.error * panel.norm));
  if (!(lowered > -0x1p30f)) return std::numeric_limits<int>::min();
  // Above all sums: of a place without a query, whose top is infinite.
  return static_cast<int>(fminf(lowered, 0x1.fp30f)) - limit_margin + query.correction;
}
// The limit for key <= bound; for l2 it is rounded down to a whole number, for odd squared lengths.
KNEAR_DEVICE int integer_limit(const DeviceQuery& query, double bound, bool l2) {
  constexpr double most = 9e15;  // beyond all keys
  if (!(bound < most)) return std::numeric_limits<int>::min();
  const auto key = static_cast<std::int64_t>(floor(bound > -most ? bound : -most));
  const std::int64_t limit =
      integer_limit_of(l2, static_cast<std::int64_t>(query.squares), key) + query.correction;
  if (limit <= std::numeric_limits<int>::min()) return std::numeric_limits<int>::min();
  return limit < std::numeric_limits<int>::max() ? static_cast<int>(limit)
                                                 : std::numeric_limits<int>::max() - 1;
}

// What is not certain of the g of a query and any row, beside the errors of codes.
KNEAR_DEVICE double slack_of(const DeviceBaseView& base, const DeviceQuery& query) {
  return base.query_slack * query.squares + base.key_slack;
}
// The ends of the interval that holds a pair's g.
KNEAR_DEVICE GInterval interval_of(const DeviceBaseView& base, const DeviceQuery& query,
                                   double scale, Entry entry) {
  const double dot = static_cast<double>(static_cast<std::int64_t>(entry.score) - query.correction);
  return panel_interval(base.heads[entry.slot / panel_rows], base.row_bias[entry.slot], dot, scale,
                        query.norm, query.error, slack_of(base, query));
}
KNEAR_DEVICE double integer_key(const DeviceBaseView& base, const DeviceQuery& query, bool shifted,
                                Entry entry) {
  const std::int32_t sum = shifted ? base.row_sums[entry.slot] : 0;
  return integer_key(base.l2, integer_product(entry.score, query.correction, shifted, sum),
                     query.squares, base.l2 ? base.row_squares[entry.slot] : 0);
}

// A float that is not below x.
KNEAR_DEVICE float float_not_below(double x) {
  const float near = static_cast<float>(x);
  return static_cast<double>(near) < x ? nextafterf(near, std::numeric_limits<float>::infinity())
                                       : near;
}

// What the kernels that process lists know of the query at a place.
struct ListedQuery {
  DeviceQuery query;
  double scale;
  bool shifted;
};
KNEAR_DEVICE ListedQuery listed_query(const DeviceQueryView& queries, std::int64_t place) {
  return {queries.heads[place], queries.scales[place / block_queries], queries.shifted};
}
// An upper bound by which the k-th best is found: a pair's key, or minus the lower end of its
// interval.
KNEAR_DEVICE float certain_end(const DeviceBaseView& base, const ListedQuery& of, Entry entry) {
  return float_not_below(base.integer ? integer_key(base, of.query, of.shifted, entry)
                                      : -interval_of(base, of.query, of.scale, entry).lower);
}
// The threshold of a query whose k-th certain end is known.
KNEAR_DEVICE double better_bound(const DeviceBaseView& base, double bound, double kth) {
  if (base.integer) return kth < bound ? kth : bound;
  return -kth > bound ? -kth : bound;
}
// Whether an entry is a row that may be among the k.
KNEAR_DEVICE bool reaches(const DeviceBaseView& base, const ListedQuery& of, Entry entry,
                          double bound) {
  return base.ids[entry.slot] != DeviceBaseView::no_row &&
         (base.integer ? integer_key(base, of.query, of.shifted, entry) <= bound
                       : interval_of(base, of.query, of.scale, entry).upper >= bound);
}

// What one block of a scan does: a block of queries against the panels at places [begin, end) of
// base.order.
struct DeviceTask {
  int query_block, begin, end;
};
// Tasks for a scan, in device memory. A query may be in many blocks, beside other queries each
// time, and has one list and one threshold for all of them.
struct DeviceTaskTable {
  const DeviceTask* tasks;  // [count]
  std::int64_t count;
  // [blocks x 128] the query at each place of the blocks, by its place among heads, thresholds and
  // lists; -1: none.
  const std::int32_t* places;
  std::int64_t most_queries;  // that a block has
};

// What the test needs of a panel: PanelTest and the bias of each row; or, of whole numbers, the
// squares and sums of each.
struct CertifiedRecord {
  PanelTest test;
  float bias[panel_rows];
};
struct WholeRecord {
  std::uint32_t squares[panel_rows];
  std::int32_t sums[panel_rows];
};
// And of pairs of a self-join.
template <bool whole>
struct PairRecord : std::conditional_t<whole, WholeRecord, CertifiedRecord> {
  std::int32_t reach[panel_rows];
};
template <bool whole, bool pairs = false>
using PanelRecord = std::conditional_t<pairs, PairRecord<whole>,
                                       std::conditional_t<whole, WholeRecord, CertifiedRecord>>;

// A self-join in which each pair is scored once, and appended to the list of its query, of its row,
// or of both. Queries are the rows in the order of `ring`: four panels of it are a block. Places
// are those of DeviceBaseView::order, which here is the ring three times, so that what lies before
// and behind a block can be named. The block b has those from begin + 4 b to end + 4 b.
struct SelfJoinPairs {
  int ring;             // panels of it, 4 for each block of queries
  bool both;            // false: pairs are appended to the lists of their queries alone
  std::int32_t* reach;  // [slots] of rows, floats; of whole numbers what is added to a sum
  float* tops;          // [queries]; not of whole numbers, as `most`
  float* most;          // [blocks]

  // The query that a row is.
  KNEAR_DEVICE std::int64_t query_of(int place, unsigned row) const {
    const int in_ring = place - (place >= 2 * ring ? 2 * ring : place >= ring ? ring : 0);
    return std::int64_t{in_ring} * panel_rows + row;
  }
};
// Marks an entry whose row was the query of a pair, and which has no score yet.
inline constexpr std::uint32_t unscored = 0x80000000u;
struct NoPairs {};

struct alignas(16) Quad {
  int of[4];
};
struct alignas(8) Two {
  int of[2];
};
// Sums that a lane has of a query and a panel, which are those of up to four rows, 8 apart, where
// one of them passes.
template <int most>
struct PassedSums {
  static constexpr int room = most;
  Quad sums[room];
  int place[room];      // of the panel, in base.order
  int query_row[room];  // the query in its block, + 256 times the first row in the panel
  int count;            // beyond `room`: these were not kept
};

KNEAR_DEVICE int larger(int a, int b) { return a > b ? a : b; }

KNEAR_DEVICE int whole_term(const DeviceQueryView& queries, std::uint32_t squares,
                            std::int32_t sum) {
  return integer_term(squares, sum, queries.shifted ? 0xffffffffu : 0u);
}
// What the test needs of the query at a place, which is coded by the scale of a block.
template <bool whole>
KNEAR_DEVICE QueryTest test_of_query(const DeviceBaseView& base, const DeviceQueryView& queries,
                                     std::int64_t place, int block) {
  const DeviceQuery query = queries.heads[place];
  const double bound = queries.thresholds[place];
  if constexpr (whole) return {0, 0, 0, integer_limit(query, bound, base.l2)};
  return query_test(query, queries.scales[block], bound - slack_of(base, query));
}

// Appends the rows first, first + 8, ... (`rows` of them) that may be found and whose sums reach
// the limit to the list of a query. terms: what the sums began with.
template <int rows, class Thread>
KNEAR_DEVICE void append_passing(Thread t, const DeviceBaseView& base, const DeviceLists& lists,
                                 std::int64_t query, std::uint32_t first, const int (&sums)[4],
                                 const int (&terms)[rows], int limit) {
  bool passes[rows];
  int count = 0;
  KNEAR_UNROLL
  for (int i = 0; i < rows; ++i) {
    passes[i] = sums[i] >= limit && base.counts(first + static_cast<unsigned>(8 * i));
    count += passes[i];
  }
  if (count == 0) return;
  int at = t.atomic_add(&lists.counts[query], count);
  KNEAR_UNROLL
  for (int i = 0; i < rows; ++i) {
    if (!passes[i]) continue;
    if (at < lists.room)
      lists.entries[query * lists.room + at] = {first + static_cast<unsigned>(8 * i),
                                                sums[i] - terms[i]};
    ++at;
  }
}
// The same of a quad, of which `rows` from `row` of the panel on are there.
template <bool whole, int rows, class Thread>
KNEAR_DEVICE void append_rows(Thread t, const DeviceBaseView& base, const DeviceQueryView& queries,
                              const DeviceLists& lists, std::int64_t query, const QueryTest& of,
                              float inverse, std::uint32_t panel, unsigned row, const Quad& sums) {
  const std::uint32_t first = panel * panel_rows + row;
  int limit = of.correction, terms[rows];
  PanelTest test = {};
  if constexpr (!whole) {
    test = base.tests[panel];
    limit = certified_limit(test, of, inverse);
  }
  KNEAR_UNROLL
  for (int i = 0; i < rows; ++i) {
    const std::uint32_t slot = first + static_cast<unsigned>(8 * i);
    if constexpr (whole)
      terms[i] = whole_term(queries, base.row_squares[slot], base.row_sums[slot]);
    else
      terms[i] = certified_term(test.scale, base.row_bias[slot], inverse);
  }
  append_passing<rows>(t, base, lists, query, first, sums.of, terms, limit);
}

// What a scan is given, and what its forms for many and for few queries have in common. `tabled`:
// what the blocks do stands in a table, as WorkTable is on the processor (scan/work_table.hpp), so
// that one launch serves many inverted lists; otherwise all queries are scored against the same
// panels, which are cut into splits. `whole`: codes are whole numbers, of which a limit is the same
// in all panels.
template <class Thread, bool whole, bool tabled>
struct ScanArguments {
  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceLists lists;
  int begin, end;         // places in base.order; not tabled
  int splits;             // of these panels, each scanned by queries.blocks blocks
  DeviceTaskTable table;  // whose tasks the blocks of the grid do; tabled

  // The place of a query of a block among heads, thresholds and lists.
  KNEAR_DEVICE std::int64_t place_of(int block, int query) const {
    const std::int64_t at = std::int64_t{block} * block_queries + query;
    if constexpr (tabled) return table.places[at];
    return at;
  }
  KNEAR_DEVICE QueryTest test_of_query(std::int64_t place, int block) const {
    return detail::test_of_query<whole>(base, queries, place, block);
  }
  KNEAR_DEVICE int whole_term(std::uint32_t squares, std::int32_t sum) const {
    return detail::whole_term(queries, squares, sum);
  }
  // Appends the rows first, first + 8, ... that may be found and whose sums reach the limit to the
  // list of a query. terms: what the sums began with.
  KNEAR_DEVICE void append_rows(Thread t, std::int64_t query, std::uint32_t first,
                                const int (&sums)[4], const int (&terms)[4], int limit) const {
    append_passing<4>(t, base, lists, query, first, sums, terms, limit);
  }
};

// A block takes 128 queries and tiles of 4 panels, warp w the panels 2 (w / 4), + 1 and the queries
// from 32 (w % 4) on: sums of 64 x 32 pairs, 64 in each thread. Codes of the base pass through a
// ring in shared memory, several slices between two barriers; those of the queries stay there
// (`keep`), or pass through the ring too where they have too many columns. What the test needs of
// rows and panels comes a tile ahead, what it needs of queries stays. Forms are compiled apart,
// since all in one would cost the usual one registers.
//
// `pairs`: of a self-join, as SelfJoinPairs says.
//
// `held`: a warp holds its queries' codes in registers, and for that the sums of 32 rows at a time
// instead of 64. So it takes 102 wavefronts of shared memory for a tile of 128 columns instead of
// 146, with no more registers. No GPU has run it: it is there for knear_gpu to measure.
//
// With tight thresholds one pair in some thousands passes, so that a warp has one in two tiles of
// five, and to append it to its list takes three accesses of device memory, each after another: the
// seven other warps would wait for that at the next barrier. So sums that pass are kept in shared
// memory until there are many, and then the block appends them at once.
template <class Thread, bool keep, bool whole, bool tabled = false, bool held = false,
          bool pairs = false>
struct ScanPanels : ScanArguments<Thread, whole, tabled> {
  static constexpr int threads = 256, resident_blocks = 2;
  static_assert(keep || !held);
  static_assert(!pairs || (!held && !tabled));
  std::conditional_t<pairs, SelfJoinPairs, NoPairs> join;

  // Groups of 16 rows that a warp has of a tile, and that it scores at a time.
  static constexpr int row_groups = 4, groups = held ? 2 : 4;
  static constexpr int tile_panels = 4, tile_rows = tile_panels * panel_rows;
  static constexpr int tile_slice_bytes = tile_panels * panel_slice_bytes;
  // The ring holds so many slices; a stage of it those that are copied and scored between two
  // barriers.
  static constexpr int stage_slices = keep ? 4 : 2;
  static constexpr int stages = 3, ring_slices = stages * stage_slices;
  static constexpr int ring_slice_bytes = tile_slice_bytes + (keep ? 0 : block_slice_bytes);
  static constexpr int ring_bytes = ring_slices * ring_slice_bytes;
  static constexpr int record_stages = 4;  // as many tiles may be on their way
  static_assert(tile_slice_bytes == threads * 16 && block_slice_bytes == threads * 16);
  static_assert(block_queries * 2 == threads && panel_slice_bytes == 64 * 16);
  static_assert(stages <= record_stages);

  using Arguments = ScanArguments<Thread, whole, tabled>;
  using Arguments::base, Arguments::queries, Arguments::lists, Arguments::begin, Arguments::end,
      Arguments::splits, Arguments::table;

  using Record = PanelRecord<whole, pairs>;
  using Passed = PassedSums<128>;
  static_assert(Passed::room <= threads && threads == 2 * block_queries);
  // What pairs need beside the rest: `lowered` and `number` as limits and terms are kept, and the
  // tops of queries.
  struct PairTests {
    int limits[whole ? 1 : 3][whole ? 1 : tile_panels][block_queries];
    Two numbers[3][tile_rows / 2];  // of rows g and g + 8 of 16
    float tops[whole ? 1 : block_queries], most;
  };
  // Shared memory: the ring, this, and the codes of queries that are kept.
  struct Tests {
    QueryTest queries[block_queries];
    Record panels[record_stages][tile_panels];  // of tile i at i % record_stages
    // Of tile i at i % 3; of whole numbers once.
    int limits[whole ? 1 : 3][whole ? 1 : tile_panels][block_queries];
    // Of tile i at i % 2: of rows g and g + 8 of 16, twice each, as their sums begin.
    Quad terms[2][tile_rows / 2];
    Passed passed;
    // Whether sums are to be appended: after tile i at i % 2.
    int nearly_full[2];
    unsigned long long arrivals;  // of the warps
    std::conditional_t<pairs, PairTests, NoPairs> pair;
  };
  // The place of a row of the tile among the terms, and of its first number there.
  static KNEAR_DEVICE unsigned quad_of(unsigned row) { return row / 16 * 8 + row % 8; }
  static KNEAR_DEVICE unsigned half_of(unsigned row) { return row / 8 % 2 * 2; }
  // The place of a tile's limits: of three tiles, since a warp may still compare the sums of one
  // while another stores the limits of the tile after the next.
  static KNEAR_DEVICE unsigned limits_of(int tile) {
    return whole ? 0 : static_cast<unsigned>(tile) % 3;
  }

  // The place of a query's limit. Those that a lane wants are side by side if it wants all of them
  // at once.
  static KNEAR_DEVICE unsigned limit_place(unsigned query) {
    return held || pairs ? query / 32 * 32 + query % 8 / 2 * 8 + query % 32 / 8 * 2 + query % 2
                         : query;
  }

  // A grid has queries.blocks * splits blocks, or as many as there are tasks.
  static constexpr std::size_t shared_bytes(int slices) {
    return ring_bytes + sizeof(Tests) +
           static_cast<std::size_t>(keep ? slices : 0) * block_slice_bytes;
  }

  // Neighbouring blocks in the grid scan the same rows for other queries, so that these are in
  // cache.
  KNEAR_KERNEL void operator()(Thread t) const {
    DeviceTask task = tabled ? table.tasks[t.block()]
                             : DeviceTask{static_cast<int>(t.block() % queries.blocks), begin, end};
    if constexpr (pairs) {
      const int shift = task.query_block * (block_queries / panel_rows);
      task.begin += shift, task.end += shift;
    }
    const int block = task.query_block;
    const std::int64_t split = tabled ? 0 : t.block() / queries.blocks;
    const std::int64_t tiles = (task.end - task.begin + tile_panels - 1) / tile_panels;
    const int first_tile = tabled ? 0 : static_cast<int>(tiles * split / splits);
    const int last_tile = static_cast<int>(tabled ? tiles : tiles * (split + 1) / splits);
    if (first_tile >= last_tile) return;  // the whole block

    unsigned char* const ring = t.shared();
    Tests& tests = *reinterpret_cast<Tests*>(ring + ring_bytes);
    unsigned char* const kept = ring + ring_bytes + sizeof(Tests);

    // Without a sign, so that parts of it take one instruction.
    const auto thread = static_cast<unsigned>(t.index());
    const unsigned lane = thread % warp_size, warp = thread / warp_size;
    const unsigned first_group = warp / 4 * row_groups, query_warp = warp % 4;
    const auto codes_of_block = [&](int of_block, unsigned of_thread) {
      return queries.codes + std::int64_t{of_block} * base.slices * block_slice_bytes +
             of_thread * 16;
    };
    const std::uint8_t* const block_codes = codes_of_block(block, thread);

    // The panel of a tile of which this thread copies. Beyond the last one it is the last again, of
    // which nothing passes.
    const auto panel_at = [&](int tile) {
      const int place = task.begin + tile * tile_panels + static_cast<int>(thread / 64);
      return base.order[place < task.end ? place : task.end - 1];
    };
    // Where this thread finds its 16 bytes of a panel's record.
    const RecordSource its_source = source_of_record(thread % 64);
    const auto fetch_record = [&](int tile, unsigned panel) {
      // Of pairs it is computed again for each tile: three registers less.
      const RecordSource source =
          pairs ? source_of_record(t.computed_here(thread) % 64) : its_source;
      if (source.stride == 0) return;
      auto* const to = reinterpret_cast<unsigned char*>(
          &tests.panels[static_cast<unsigned>(tile) % record_stages][thread / 64]);
      t.copy_16(to + thread % 64 * 16, source.first + std::size_t{panel} * source.stride, true);
    };

    // What this thread computes of the limits and terms of a tile. Without jumps and stores, so
    // that it is done while products are on their way. Of the tile after the last one it is done
    // too, in vain.
    const float inverse = whole ? 0 : query_inverse(queries.scales[block]);
    const unsigned my_query = thread % block_queries;
    const std::int64_t place = this->place_of(block, static_cast<int>(my_query));
    bool real = tabled ? place >= 0 : place < queries.count;
    if constexpr (pairs) real = base.ids[slot_at(base, place)] != DeviceBaseView::no_row;
    constexpr int nothing_passes = std::numeric_limits<int>::max();
    constexpr int limits_each = whole ? 0 : tile_panels * block_queries / threads;
    struct Share {
      int limits[limits_each + 1];
      int term;
    };
    const unsigned my_row = thread / 2;  // two threads for each, since its term stands there twice
    const unsigned my_term = t.computed_here(quad_of(my_row) * 4 + half_of(my_row) +
                                             thread % 2);  // of the quads' numbers
    const auto prepare = [&](int tile) {
      const Record* const panels = tests.panels[static_cast<unsigned>(tile) % record_stages];
      Share out;
      if constexpr (!whole) {
        const QueryTest query = t.read_shared(&tests.queries[my_query]);
        KNEAR_UNROLL
        for (int i = 0; i < limits_each; ++i) {
          const int p = 2 * i + static_cast<int>(thread / block_queries);
          const int limit = certified_limit(limit_numbers(t, panels[p].test), query, inverse);
          out.limits[i] =
              (tabled || pairs || real) && task.begin + tile * tile_panels + p < task.end
                  ? limit
                  : nothing_passes;
        }
      }
      const Record& panel = panels[my_row / panel_rows];
      const unsigned in_panel = my_row % panel_rows;
      if constexpr (whole)
        out.term = this->whole_term(t.read_shared(&panel.squares[in_panel]),
                                    t.read_shared(&panel.sums[in_panel]));
      else
        out.term = certified_term(t.read_shared(&panel.test.scale),
                                  t.read_shared(&panel.bias[in_panel]), inverse);
      return out;
    };
    // The share of what pairs need beside it, stored as it is computed, which keeps registers free.
    [[maybe_unused]] const auto store_pairs = [&](int tile) {
      if constexpr (pairs) {
        const Record* const panels = tests.panels[static_cast<unsigned>(tile) % record_stages];
        if constexpr (!whole) {
          KNEAR_UNROLL
          for (int i = 0; i < limits_each; ++i) {
            const unsigned p = 2 * i + thread / block_queries;
            const int lowered = pair_limit(limit_numbers(t, panels[p].test),
                                           t.read_shared(&tests.queries[my_query]),
                                           t.read_shared(&tests.pair.tops[my_query]));
            t.write_shared(&tests.pair.limits[limits_of(tile)][p][limit_place(my_query)],
                           task.begin + tile * tile_panels + static_cast<int>(p) < task.end
                               ? lowered
                               : nothing_passes);
          }
        }
        const Record& panel = panels[my_row / panel_rows];
        int number = t.read_shared(&panel.reach[my_row % panel_rows]);
        if constexpr (!whole)
          number = pair_number(limit_numbers(t, panel.test), std::bit_cast<float>(number),
                               t.read_shared(&tests.pair.most), inverse);
        if (thread % 2 == 0)
          t.write_shared(
              &tests.pair.numbers[static_cast<unsigned>(tile) % 3][my_term / 4].of[my_term / 2 % 2],
              number);
      }
    };
    // Visible to all from the next stage on.
    const auto store = [&](int tile, const Share& share) {
      KNEAR_UNROLL
      for (int i = 0; i < limits_each; ++i)
        t.write_shared(
            &tests.limits[limits_of(tile)][2 * i + thread / block_queries][limit_place(my_query)],
            share.limits[i]);
      t.write_shared(&tests.terms[tile & 1][my_term / 4].of[my_term % 4], share.term);
      if constexpr (pairs) store_pairs(tile);
    };

    // The next bytes to be copied, 16 of each slice by each thread.
    constexpr int stage_bytes = stage_slices * ring_slice_bytes;
    int next_tile = first_tile, left_of_tile = 0, next_stage = 0;
    unsigned panel = panel_at(first_tile), panel_ahead = panel_at(first_tile + 1);
    const std::uint8_t* next_rows = nullptr;
    const std::uint8_t* next_queries = nullptr;
    const auto stage_after = [&](int stage) {
      return stage + stage_bytes == ring_bytes ? 0 : stage + stage_bytes;
    };
    const auto next_panel = [&] {
      next_rows = base.codes +
                  std::size_t{panel} * static_cast<unsigned>(base.slices * panel_slice_bytes) +
                  thread % 64 * 16;
      panel = panel_ahead;
      fetch_record(++next_tile, panel);
      panel_ahead = panel_at(next_tile + 1);
    };
    const auto fetch_slice = [&](int slice) {
      unsigned char* const to = ring + next_stage + thread * 16 + slice * ring_slice_bytes;
      t.copy_16(to, next_rows + slice * panel_slice_bytes, true);
      if (!keep) t.copy_16(to + tile_slice_bytes, next_queries + slice * block_slice_bytes, true);
    };
    // As many slices of a row as a stage has; of a tile's first stage `slices`, unless it is 0.
    const auto fetch = [&](auto slices) {
      if constexpr (keep) {
        if (next_tile < last_tile) {
          next_panel();
          KNEAR_UNROLL
          for (int slice = 0; slice < stage_slices; ++slice)
            if (slice < (slices.value ? slices.value : base.slices)) fetch_slice(slice);
        }
      } else {
        if (left_of_tile == 0 && next_tile < last_tile) {
          left_of_tile = base.slices;
          next_queries =
              pairs ? codes_of_block(t.computed_here(block), t.computed_here(thread)) : block_codes;
          next_panel();
        }
        KNEAR_UNROLL
        for (int slice = 0; slice < stage_slices; ++slice)
          if (slice < left_of_tile) fetch_slice(slice);
        next_rows += stage_slices * panel_slice_bytes;
        next_queries += stage_slices * block_slice_bytes;
        left_of_tile = left_of_tile > stage_slices ? left_of_tile - stage_slices : 0;
      }
      next_stage = stage_after(next_stage);
      t.close_copies();
    };
    constexpr std::integral_constant<int, 0> all_slices;
    // A stage is scored between these two. At the end this thread's part of the next stage is there
    // and the ring's place of this one may be filled anew; all warps have come to that at the
    // beginning of the next stage. What a warp does between an end and a beginning the others need
    // not wait for.
    bool odd = false;
    const auto begin_stage = [&] {
      t.wait_for_arrivals(&tests.arrivals, odd);
      odd = !odd;
      t.sync_warp();  // mma.sync is for a whole warp, and keep_passed() parts the lanes
    };
    const auto end_stage = [&] {
      t.template wait_for_copies<stages - 2>();
      t.sync_warp();
      if (lane == 0) t.arrive(&tests.arrivals);
    };

    fetch_record(first_tile, panel);
    for (int slice = 0; keep && slice < base.slices; ++slice)
      t.copy_16(kept + slice * block_slice_bytes + thread * 16,
                block_codes + slice * block_slice_bytes, true);
    for (int i = 1; i < stages; ++i) fetch(all_slices);
    if (thread < block_queries) {
      const QueryTest query = real ? this->test_of_query(place, block) : test_of_nobody();
      tests.queries[thread] = query;
      if constexpr (whole)
        tests.limits[0][0][limit_place(thread)] = real ? query.correction : nothing_passes;
      if constexpr (pairs && whole)
        tests.pair.limits[0][0][limit_place(thread)] =
            real ? whole_pair_limit(base.l2, queries.heads[place]) : nothing_passes;
      if constexpr (pairs && !whole) {
        tests.pair.tops[thread] = join.tops[place];
        if (thread == 0) tests.pair.most = join.most[block];
      }
    }
    if (thread == 0) {
      tests.passed.count = tests.nearly_full[0] = tests.nearly_full[1] = 0;
      t.begin_arrivals(&tests.arrivals, threads / warp_size);
    }
    t.template wait_for_copies<stages - 2>();  // the first record is among it
    t.sync();
    store(first_tile, prepare(first_tile));
    end_stage();

    int stage = 0;  // bytes
    const unsigned char* const my_rows = ring + t.computed_here(first_group * 512 + lane * 16);
    const unsigned char* const my_queries =
        (keep ? kept : ring + tile_slice_bytes) + t.computed_here(query_warp * 1024 + lane * 16);
    // Calls multiply(m, a, b) for the groups of 16 rows of slice `in_stage` of the stage, which is
    // `slice` of the row.
    const auto score_slice = [&](int in_stage, int slice, auto multiply) {
      const unsigned char* const rows = my_rows + stage + in_stage * ring_slice_bytes;
      const unsigned char* const columns =
          my_queries + (keep ? slice * block_slice_bytes : stage + in_stage * ring_slice_bytes);
      unsigned b[4][2];
      KNEAR_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        const FourWords words =
            t.read_shared(reinterpret_cast<const FourWords*>(columns + pair * 512));
        b[2 * pair][0] = words.word[0], b[2 * pair][1] = words.word[1];
        b[2 * pair + 1][0] = words.word[2], b[2 * pair + 1][1] = words.word[3];
      }
      KNEAR_UNROLL
      for (int m = 0; m < groups; ++m) {
        const FourWords a = t.read_shared(reinterpret_cast<const FourWords*>(rows + m * 512));
        multiply(m, a.word, b);
      }
    };
    // As what follows, if the warp's queries are held: 32 rows after one another.
    const auto scan_held = [&](auto slices) {
      unsigned columns[slices.value][4][2];
      KNEAR_UNROLL
      for (int slice = 0; slice < slices.value; ++slice) KNEAR_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        const FourWords words = t.read_shared(reinterpret_cast<const FourWords*>(
            my_queries + slice * block_slice_bytes + pair * 512));
        columns[slice][2 * pair][0] = words.word[0], columns[slice][2 * pair][1] = words.word[1];
        columns[slice][2 * pair + 1][0] = words.word[2];
        columns[slice][2 * pair + 1][1] = words.word[3];
      }
      KNEAR_NO_UNROLL
      for (int tile = first_tile; tile < last_tile; ++tile) {
        begin_stage();
        if (t.read_shared(&tests.nearly_full[(tile + 1) & 1]))
          append_passed(t, task, inverse, tests);
        fetch(slices);
        KNEAR_UNROLL
        for (int done = 0; done < row_groups; done += groups) {
          int sums[groups][4][4];
          const Quad* const terms = tests.terms[tile & 1] + (first_group + done) * 8 + lane / 4;
          const unsigned char* const rows = my_rows + stage + done * 512;
          Share share;
          KNEAR_UNROLL
          for (int slice = 0; slice < slices.value; ++slice) {
            KNEAR_UNROLL
            for (int m = 0; m < groups; ++m) {
              const FourWords a = t.read_shared(
                  reinterpret_cast<const FourWords*>(rows + m * 512 + slice * ring_slice_bytes));
              Quad start = {};
              if (slice == 0) start = t.read_shared(&terms[m * 8]);
              KNEAR_UNROLL
              for (int n = 0; n < 4; ++n) {
                if (slice == 0)
                  t.multiply_u8_s8(sums[m][n], a.word, columns[slice][n], start.of);
                else
                  t.multiply_u8_s8(sums[m][n], a.word, columns[slice][n]);
              }
            }
            if (slice == 0 && done + groups == row_groups) share = prepare(tile + 1);
          }
          if (done + groups == row_groups) {
            store(tile + 1, share);
            if (thread == 0)
              tests.nearly_full[tile & 1] = t.atomic_read(&tests.passed.count) >= Passed::room / 2;
            end_stage();
          }
          keep_passed(t, task, tile, sums, inverse, tests,
                      first_group + static_cast<unsigned>(done), query_warp);
        }
        stage = stage_after(stage);
      }
    };
    if constexpr (held) {
      if (base.slices >= 4)
        scan_held(std::integral_constant<int, 4>{});
      else if (base.slices == 3)
        scan_held(std::integral_constant<int, 3>{});
      else if (base.slices == 2)
        scan_held(std::integral_constant<int, 2>{});
      else
        scan_held(std::integral_constant<int, 1>{});
    }
    for (int tile = first_tile; !held && tile < last_tile; ++tile) {
      int sums[groups][4][4];  // 16 rows, 8 queries, the fragment's four
      begin_stage();
      if (t.read_shared(&tests.nearly_full[(tile + 1) & 1])) append_passed(t, task, inverse, tests);
      const Quad* const terms = tests.terms[tile & 1] + first_group * 8 + lane / 4;
      const auto add_slice = [&](int in_stage, int slice) {
        score_slice(in_stage, slice, [&](int m, const unsigned(&a)[4], const unsigned(&b)[4][2]) {
          KNEAR_UNROLL
          for (int n = 0; n < 4; ++n) t.multiply_u8_s8(sums[m][n], a, b[n]);
        });
      };
      // The first stage of a tile, in which its sums begin. So many slices in a row, without a
      // jump, are loaded while others are multiplied.
      Share share;
      const auto begin_sums = [&](auto slices) {
        fetch(slices);
        score_slice(0, 0, [&](int m, const unsigned(&a)[4], const unsigned(&b)[4][2]) {
          const Quad start = t.read_shared(&terms[m * 8]);
          KNEAR_UNROLL
          for (int n = 0; n < 4; ++n) t.multiply_u8_s8(sums[m][n], a, b[n], start.of);
        });
        share = prepare(tile + 1);
        KNEAR_UNROLL
        for (int slice = 1; slice < slices.value; ++slice) add_slice(slice, slice);
      };
      if (stage_slices == 4 && base.slices >= 4)
        begin_sums(std::integral_constant<int, 4>{});
      else if (stage_slices == 4 && base.slices == 3)
        begin_sums(std::integral_constant<int, 3>{});
      else if (stage_slices >= 2 && base.slices >= 2)
        begin_sums(std::integral_constant<int, 2>{});
      else
        begin_sums(std::integral_constant<int, 1>{});
      store(tile + 1, share);
      if (thread == 0)
        tests.nearly_full[tile & 1] = t.atomic_read(&tests.passed.count) >= Passed::room / 2;
      end_stage();
      stage = stage_after(stage);
      KNEAR_NO_UNROLL
      for (int first = stage_slices; !keep && first < base.slices; first += stage_slices) {
        begin_stage();
        fetch(all_slices);
        if (first + stage_slices <= base.slices) {
          KNEAR_UNROLL
          for (int slice = 0; slice < stage_slices; ++slice) add_slice(slice, first + slice);
        } else {
          KNEAR_NO_UNROLL
          for (int slice = 0; first + slice < base.slices; ++slice) add_slice(slice, first + slice);
        }
        end_stage();
        stage = stage_after(stage);
      }
      keep_passed(t, task, tile, sums, inverse, tests, first_group, query_warp);
    }
    t.template wait_for_copies<0>();
    append_passed(t, task, inverse, tests);
  }

 private:
  // What a limit needs of a panel's test.
  static KNEAR_DEVICE PanelTest limit_numbers(Thread t, const PanelTest& test) {
    struct alignas(16) Numbers {
      float of[4];
    };
    static_assert(offsetof(PanelTest, norm) == 12);
    const Numbers all = t.read_shared(reinterpret_cast<const Numbers*>(&test));
    return {all.of[0], all.of[1], all.of[2], all.of[3], 0, {}};
  }
  // The first of the 16 bytes that a thread copies of each panel's record, and the bytes from one
  // panel to the next; 0: it copies nothing.
  struct RecordSource {
    const unsigned char* first;
    unsigned stride;
  };
  KNEAR_DEVICE RecordSource source_of_record(unsigned chunk) const {
    constexpr unsigned of_rows = panel_rows * 4 / 16, of_test = sizeof(PanelTest) / 16;
    const auto bytes = [](const auto* from, unsigned first) {
      return reinterpret_cast<const unsigned char*>(from) + first * 16;
    };
    const auto rows = [&](const auto* from, unsigned first) -> RecordSource {
      return {bytes(from, first), panel_rows * 4};
    };
    // Of pairs behind the others.
    const auto of_pairs = [&](unsigned first) -> RecordSource {
      if constexpr (pairs)
        if (chunk < first + of_rows) return rows(join.reach, chunk - first);
      return {};
    };
    if constexpr (whole)
      return chunk < of_rows       ? rows(base.row_squares, chunk)
             : chunk < 2 * of_rows ? rows(base.row_sums, chunk - of_rows)
                                   : of_pairs(2 * of_rows);
    return chunk < of_test             ? RecordSource{bytes(base.tests, chunk), sizeof(PanelTest)}
           : chunk < of_test + of_rows ? rows(base.row_bias, chunk - of_test)
                                       : of_pairs(of_test + of_rows);
  }

  // Of a place without a query. Of a table or of pairs nothing reaches it, but for panels of which
  // every pair is kept: one register less than to remember that there is none.
  static KNEAR_DEVICE QueryTest test_of_nobody() {
    if constexpr (tabled || pairs) return {std::numeric_limits<float>::infinity(), 0, 0, 0};
    return {};
  }

  // Keeps the sums of which one passes.
  KNEAR_DEVICE void keep_passed(Thread t, const DeviceTask& task, int tile,
                                const int (&sums)[groups][4][4], float inverse, Tests& tests,
                                unsigned first_group, unsigned query_warp) const {
    const int* const limits = &tests.limits[limits_of(tile)][0][0];
    const unsigned lane = static_cast<unsigned>(t.index()) % warp_size,
                   column = query_warp * 32 + lane % 4 * 2;
    const int* const mine = limits + (whole ? 0 : first_group / 2 * block_queries) + column;
    Quad at_once[2] = {};
    if constexpr (held) {
      const int* const side_by_side =
          limits + (whole ? 0 : first_group / 2 * block_queries) + query_warp * 32 + lane % 4 * 8;
      KNEAR_UNROLL
      for (int i = 0; i < 2; ++i)
        at_once[i] = t.read_shared(reinterpret_cast<const Quad*>(side_by_side + 4 * i));
    }
    const auto limit_of = [&](int m, int n, int i) {
      if constexpr (held) return at_once[n / 2].of[n % 2 * 2 + i];
      return t.read_shared(&mine[(whole ? 0 : m / 2 * block_queries) + n * 8 + i]);
    };
    // The largest of a query's sums in a panel decides: two operations for four sums.
    const auto largest = [&](int m, int n, int i) {
      const int of_rows = larger(sums[m][n][i], sums[m][n][i + 2]);
      return larger(larger(of_rows, sums[m + 1][n][i]), sums[m + 1][n][i + 2]);
    };
    // Of pairs: limits of the queries n = 2 h and 2 h + 1 in the panel of group m, for the queries
    // and for the rows, and what is added to the sums of rows for these.
    struct PairLimits {
      Quad own, lowered;
    };
    [[maybe_unused]] const auto pair_limits = [&](int m, int h) -> PairLimits {
      if constexpr (pairs) {
        const unsigned at =
            (whole ? 0 : (first_group + static_cast<unsigned>(m)) / 2 * block_queries) +
            query_warp * 32 + lane % 4 * 8 + static_cast<unsigned>(h) * 4;
        const int* const lowered = &tests.pair.limits[limits_of(tile)][0][0];
        return {t.read_shared(reinterpret_cast<const Quad*>(&limits[at])),
                t.read_shared(reinterpret_cast<const Quad*>(&lowered[at]))};
      }
      return {};
    };
    [[maybe_unused]] const auto numbers_of = [&](int m) -> Two {
      if constexpr (pairs)
        return t.read_shared(
            &tests.pair.numbers[static_cast<unsigned>(tile) % 3]
                               [(first_group + static_cast<unsigned>(m)) * 8 + lane / 4]);
      return {};
    };
    struct Numbers {
      Two first, second;
    };
    [[maybe_unused]] const auto pair_passes = [&](const PairLimits& of, const Numbers& numbers,
                                                  int m, int n, int i) {
      int of_rows = sums[m][n][i] + numbers.first.of[0];
      of_rows = larger(of_rows, sums[m][n][i + 2] + numbers.first.of[1]);
      of_rows = larger(of_rows, sums[m + 1][n][i] + numbers.second.of[0]);
      of_rows = larger(of_rows, sums[m + 1][n][i + 2] + numbers.second.of[1]);
      const int place = n % 2 * 2 + i;
      return largest(m, n, i) >= of.own.of[place] || of_rows >= of.lowered.of[place];
    };
    const auto passes = [&](int m, int n, int i) {
      if constexpr (pairs)
        return pair_passes(pair_limits(m, n / 2), {numbers_of(m), numbers_of(m + 1)}, m, n, i);
      else
        return largest(m, n, i) >= limit_of(m, n, i);
    };
    bool some[4] = {};
    KNEAR_UNROLL
    for (int m = 0; pairs && m < groups; m += 2) {
      const Numbers numbers = {numbers_of(m), numbers_of(m + 1)};
      KNEAR_UNROLL
      for (int h = 0; h < 2; ++h) {
        const PairLimits of = pair_limits(m, h);
        KNEAR_UNROLL
        for (int which = 0; which < 4; ++which)
          some[2 * h + which / 2] |= pair_passes(of, numbers, m, 2 * h + which / 2, which % 2);
      }
    }
    KNEAR_UNROLL
    for (int n = 0; !pairs && n < 4; ++n) KNEAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      int of_panels = largest(0, n, i);
      KNEAR_UNROLL
      for (int m = 2; m < groups; m += 2) {
        if (whole)
          of_panels = larger(of_panels, largest(m, n, i));
        else
          some[n] |= largest(m, n, i) >= limit_of(m, n, i);
      }
      some[n] |= of_panels >= limit_of(0, n, i);
    }
    if (!t.any(some[0] || some[1] || some[2] || some[3])) return;

    const auto quad = [&](int m, int n, int i) -> Quad {
      return {{sums[m][n][i], sums[m][n][i + 2], sums[m + 1][n][i], sums[m + 1][n][i + 2]}};
    };
    const int query_row = t.computed_here(static_cast<int>(column + 256 * (lane / 4)));
    const int panel_place =
        t.computed_here(task.begin + tile * tile_panels + static_cast<int>(first_group / 2));
    unsigned beyond = 0;  // those for which there is no room
    KNEAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      if (!some[n]) continue;
      KNEAR_UNROLL
      for (int m = 0; m < groups; m += 2) {
        KNEAR_UNROLL
        for (int i = 0; i < 2; ++i) {
          if (!passes(m, n, i)) continue;
          const int at = t.atomic_add(&tests.passed.count, 1);
          if (at < Passed::room) {
            tests.passed.sums[at] = quad(m, n, i);
            tests.passed.place[at] = panel_place + m / 2;
            tests.passed.query_row[at] = query_row + n * 8 + i;
          } else {
            beyond |= 1u << (m * 4 + n * 2 + i);
          }
        }
      }
    }
    // The first step of a search, in which nearly all pass. One place of the code for all sums.
    KNEAR_NO_UNROLL
    for (; beyond != 0; beyond &= beyond - 1) {
      const int which = lowest_bit(beyond);  // each lane its own, so that all append at once
      Quad of = {};
      KNEAR_UNROLL
      for (int m = 0; m < groups; m += 2) KNEAR_UNROLL
      for (int n = 0; n < 4; ++n) KNEAR_UNROLL
      for (int i = 0; i < 2; ++i)
        if (which == m * 4 + n * 2 + i) of = quad(m, n, i);
      append_quad(t, task, inverse, tests, of, panel_place + which / 8,
                  query_row + which / 2 % 4 * 8 + which % 2);
    }
  }

  // Appends what is kept to the lists of its queries. All threads of the block call it.
  KNEAR_DEVICE void append_passed(Thread t, const DeviceTask& task, float inverse,
                                  Tests& tests) const {
    Passed& passed = tests.passed;
    t.sync();  // nobody keeps more
    const int count = t.atomic_read(&passed.count);
    if (t.index() < (count < Passed::room ? count : Passed::room))
      append_quad(t, task, inverse, tests, passed.sums[t.index()], passed.place[t.index()],
                  passed.query_row[t.index()]);
    t.sync();
    if (t.index() == 0) passed.count = 0;
    t.sync();
  }

  // Appends the rows of a quad that pass and may be found.
  KNEAR_DEVICE void append_quad(Thread t, const DeviceTask& task, float inverse, const Tests& tests,
                                const Quad& sums, int place, int query_row) const {
    const int my_query = query_row % 256;
    if (place >= task.end) return;
    const std::int64_t query = this->place_of(task.query_block, my_query);
    if (tabled && query < 0) return;
    if constexpr (pairs)  // see test_of_nobody()
      if (base.ids[slot_at(base, query)] == DeviceBaseView::no_row) return;
    const auto row = static_cast<unsigned>(query_row / 256);
    append_rows<whole, 4>(t, base, queries, lists, query, tests.queries[my_query], inverse,
                          base.order[place], row, sums);
    if constexpr (pairs)
      if (join.both) append_query(t, task, inverse, tests, sums, place, row, my_query);
  }

  // Appends the query of a quad to the lists of the rows for which it passes.
  KNEAR_DEVICE void append_query(Thread t, const DeviceTask& task, float inverse,
                                 const Tests& tests, const Quad& sums, int place, unsigned row,
                                 int my_query) const {
    const std::uint32_t panel = base.order[place];
    int limit = 0;
    PanelTest test = {};
    if constexpr (whole) {
      limit = tests.pair.limits[0][0][limit_place(static_cast<unsigned>(my_query))];
    } else {
      test = base.tests[panel];
      limit = pair_limit(test, tests.queries[my_query], tests.pair.tops[my_query]);
    }
    const std::uint32_t slot = slot_at(base, this->place_of(task.query_block, my_query));
    KNEAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const unsigned in_panel = row + static_cast<unsigned>(8 * i);
      const std::uint32_t its_slot = panel * panel_rows + in_panel;
      int number = join.reach[its_slot];
      if constexpr (!whole)
        number =
            pair_number(test, std::bit_cast<float>(number), join.most[task.query_block], inverse);
      if (sums.of[i] + number < limit || base.ids[its_slot] == DeviceBaseView::no_row) continue;
      const std::int64_t list = join.query_of(place, in_panel);
      const int at = t.atomic_add(&lists.counts[list], 1);
      if (at < lists.room) lists.entries[list * lists.room + at] = {slot | unscored, 0};
    }
  }
};

// One warp per query, k up to warp_select_max_k. R and T are those of WarpSelect.
template <class Thread, int R, int T>
struct UpdateThresholds {
  static constexpr int threads = 128, resident_blocks = R <= 4 ? 8 : R <= 8 ? 6 : 3;
  static constexpr int warps = threads / warp_size, ahead = 4;

  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceLists lists;
  int k;

  // The number of blocks of a grid.
  static std::int64_t blocks(std::int64_t count) { return (count + warps - 1) / warps; }

  KNEAR_KERNEL void operator()(Thread t) const {
    using W = ThreadWarp<Thread>;
    const std::int64_t place = t.block() * warps + t.index() / warp_size;
    if (place >= queries.count) return;  // the whole warp
    const ListedQuery query = listed_query(queries, place);
    Entry* const list = lists.entries + place * lists.room;
    const int lane = t.index() % warp_size, found = lists.counts[place];
    const int count = found < lists.room ? found : lists.room;
    const W w(t);

    // Selects the k-th best of the certain ends. Several loads are in flight at a time: with few
    // queries there are too few warps to hide the latency.
    WarpSelect<W, int, R, T> select(w, k);
    for (int first = 0; first < count; first += ahead * warp_size) {
      typename WarpSelect<W, int, R, T>::Item c[ahead];
      KNEAR_UNROLL
      for (int i = 0; i < ahead; ++i) {
        const int at = first + i * warp_size + lane;
        c[i] = no_candidate<int>(w);
        if (at < count) {
          const Entry entry = list[at];
          if (base.ids[entry.slot] != DeviceBaseView::no_row)
            c[i] = {certain_end(base, query, entry), at};
        }
      }
      KNEAR_UNROLL
      for (int i = 0; i < ahead; ++i) select.add(c[i]);
    }
    const double bound =
        better_bound(base, queries.thresholds[place], static_cast<double>(select.kth().distance));

    int kept = 0;
    for (int first = 0; first < count; first += ahead * warp_size) {
      Entry entry[ahead] = {};
      bool keep[ahead] = {};
      KNEAR_UNROLL
      for (int i = 0; i < ahead; ++i) {
        const int at = first + i * warp_size + lane;
        if (at >= count) continue;
        entry[i] = list[at];
        keep[i] = reaches(base, query, entry[i], bound);
      }
      t.sync_warp();  // all have read what is overwritten
      KNEAR_UNROLL
      for (int i = 0; i < ahead; ++i) {
        const unsigned keeping = t.ballot(keep[i]);
        if (keep[i]) list[kept + count_bits(keeping & ((1u << lane) - 1))] = entry[i];
        kept += count_bits(keeping);
      }
    }
    t.sync_warp();  // of an empty list, too, all have read the count and the threshold
    if (lane == 0) {
      queries.thresholds[place] = bound;
      lists.counts[place] = kept;
      if (found > lists.room) lists.lost[place] = 1;
    }
  }
};

// Exact keys of whole numbers. One block per query.
template <class Thread>
struct IntegerKeys {
  static constexpr int threads = 128, resident_blocks = 8;
  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceLists lists;

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t place = t.block();
    const DeviceQuery query = queries.heads[place];
    for (std::int64_t i = t.index(); i < lists.counts[place]; i += threads)
      lists.keys[place * lists.room + i] =
          integer_key(base, query, queries.shifted, lists.entries[place * lists.room + i]);
  }
};

// The key of a query and a row by the float64 reference (distance/reference.hpp): sixteen partial
// sums, one in each lane of half a warp. All lanes of the warp call it. square: the query's sum of
// squares, for cosine; unused otherwise.
template <class Thread, class Query, class Row>
KNEAR_DEVICE double reference_key(Thread t, const DeviceBaseView& base, const Query* x,
                                  const double* square, const Row* y, std::int64_t dim) {
  double sum = 0, squares = 0;
  for (std::int64_t i = t.index() % 16; i < dim; i += 16) {
    const double a = to_double(x[i]), b = to_double(y[i]);
    if (base.l2) {
      sum = rounded_sum(sum, rounded_product(a - b, a - b));
    } else {
      sum = rounded_sum(sum, rounded_product(a, b));
      if (base.cosine) squares = rounded_sum(squares, rounded_product(b, b));
    }
  }
  // Each step adds the same two numbers in both lanes.
  for (int step = 8; step > 0; step /= 2) {
    sum = rounded_sum(sum, t.shuffle_xor(sum, step));
    squares = rounded_sum(squares, t.shuffle_xor(squares, step));
  }
  if (!base.cosine) return base.l2 ? sum : 0.0 - sum;
  const double xx = *square;
  return xx == 0 || squares == 0 ? 1.0
                                 : rounded_sum(1.0, -(sum / sqrt(rounded_product(xx, squares))));
}

// Keys by the reference, each by half a warp. `parts` blocks per query, as many as keep the device
// busy where queries are few. Row: the type of the rows; queries are doubles, which hold all types.
template <class Thread, class Row>
struct MeasureRows {
  static constexpr int threads = 128, resident_blocks = 8;
  static constexpr int halves = threads / 16;
  DeviceBaseView base;
  DeviceLists lists;
  const double* vectors;         // [count x dim], by place
  const double* vector_squares;  // [count], in the order of the reference; cosine
  const Row* rows;               // [rows x dim]
  std::int64_t dim;
  int parts;

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t place = t.block() / parts;
    const int part = static_cast<int>(t.block() % parts);
    const double* const x = vectors + place * dim;
    const int count = lists.counts[place], half = t.index() / 16, lane = t.index() % 16;
    for (int first = part * halves; first < count; first += parts * halves) {
      const bool real = first + half < count;
      const Entry entry = lists.entries[place * lists.room + (real ? first + half : 0)];
      const Row* const y = rows + base.ids[entry.slot] * dim;
      const double key =
          reference_key(t, base, x, base.cosine ? vector_squares + place : nullptr, y, dim);
      if (!real || lane != 0) continue;
      lists.keys[place * lists.room + first + half] = key;
    }
  }
};

// Row `place` of out_keys and out_ids [count x k]: the k best of the query's list in the order
// (key, id), and +infinity and -1 where there are fewer. Each entry finds its rank by comparison
// with all others, which are in shared memory, some at a time: lists are short. One block per
// query.
template <class Thread>
struct RankRows {
  static constexpr int threads = 128, resident_blocks = 8, together = 512;
  struct Shared {
    double keys[together];
    std::uint32_t ids[together];
  };
  static constexpr std::size_t shared_bytes = sizeof(Shared);
  DeviceBaseView base;
  DeviceLists lists;
  double* out_keys;
  std::int64_t* out_ids;
  int k;

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t place = t.block();
    const int count = lists.counts[place];
    if (count <= threads)
      rank<1>(t, place, count);
    else if (count <= 2 * threads)
      rank<2>(t, place, count);
    else
      rank<4>(t, place, count);
    for (int i = count + t.index(); i < k; i += threads) {
      out_keys[place * k + i] = std::numeric_limits<double>::infinity();
      out_ids[place * k + i] = -1;
    }
  }

 private:
  // Each thread counts the ranks of so many entries at once, for each that it reads.
  template <int each>
  KNEAR_DEVICE void rank(Thread t, std::int64_t place, int count) const {
    static_assert(each * threads <= together);
    const Entry* const list = lists.entries + place * lists.room;
    const double* const keys = lists.keys + place * lists.room;
    Shared& shared = *reinterpret_cast<Shared*>(t.shared());
    for (int first = 0; first < count; first += each * threads) {
      double key[each] = {};
      std::uint32_t id[each] = {};
      int ranks[each] = {};
      KNEAR_UNROLL
      for (int e = 0; e < each; ++e) {
        const int i = first + e * threads + t.index();
        if (i < count) key[e] = keys[i], id[e] = base.ids[list[i].slot];
      }
      for (int other = 0; other < count; other += together) {
        const int some = count - other < together ? count - other : together;
        t.sync();  // those of before have been read
        for (int j = t.index(); j < some; j += threads) {
          shared.keys[j] = keys[other + j];
          shared.ids[j] = base.ids[list[other + j].slot];
        }
        t.sync();
        for (int j = 0; j < some; ++j) {
          const double its_key = shared.keys[j];
          const std::uint32_t its_id = shared.ids[j];
          KNEAR_UNROLL
          for (int e = 0; e < each; ++e)
            ranks[e] += its_key < key[e] || (its_key == key[e] && its_id < id[e]);
        }
      }
      KNEAR_UNROLL
      for (int e = 0; e < each; ++e) {
        if (first + e * threads + t.index() >= count || ranks[e] >= k) continue;
        out_keys[place * k + ranks[e]] = key[e];
        out_ids[place * k + ranks[e]] = id[e];
      }
    }
  }
};

}  // namespace knear::detail
