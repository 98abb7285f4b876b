// knear/scan/device/scan_kernels.hpp -- the one scan on a GPU, as a kernel of
// knear/simt/thread.hpp: ScanPanels scores queries x rows on the tensor cores, compares while sums
// are in registers, and appends the few pairs that pass to a list of their query. few_scan.hpp has
// its form for few queries, which waits for memory alone, list_kernels.hpp what is done with the
// lists.
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

#include "knear/scan/device/code_layout.hpp"
#include "knear/scan/device/scan_views.hpp"
#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

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
          pairs ? source_of_record(t.computed_anew(thread) % 64) : its_source;
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
    const unsigned my_term = t.computed_anew(quad_of(my_row) * 4 + half_of(my_row) +
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
              pairs ? codes_of_block(t.computed_anew(block), t.computed_anew(thread)) : block_codes;
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
    const unsigned char* const my_rows = ring + t.computed_anew(first_group * 512 + lane * 16);
    const unsigned char* const my_queries =
        (keep ? kept : ring + tile_slice_bytes) + t.computed_anew(query_warp * 1024 + lane * 16);
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
    const int query_row = t.computed_anew(static_cast<int>(column + 256 * (lane / 4)));
    const int panel_place =
        t.computed_anew(task.begin + tile * tile_panels + static_cast<int>(first_group / 2));
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

}  // namespace knear::detail
