// knear/scan/device/warpgroup_scan.hpp -- the scan for GPUs of compute capability 9.0: what
// ScanPanels does for many queries (scan_kernels.hpp), by the tensor cores' products of a
// warpgroup.
//
//   ScanByWarpgroups   the same pairs, from the same codes, to the same lists
//
// A block of three warpgroups has a multiprocessor for itself and takes one item of work after the
// other: 256 queries, two blocks of 128 with a scale each, against a range of panels. Neighbouring
// blocks of the grid have the same panels at a time, for other queries, so that these are in cache.
//
// The rows are the operand in registers and the queries that in shared memory, not the other way
// round. So codes of the base stay in the order in which mma.sync wants them (code_layout.hpp),
// which is that of the fragments here too, and one packing serves both kernels; shared memory holds
// 256 queries of up to 640 columns, where registers would hold those of 128. The queries are put
// into the order of the operand once an item.
//
// Warpgroup 0, with few registers, has a warp that copies, two that make the limits of the tiles,
// each for a block of queries, and one that makes the rows' terms; warpgroups 1 and 2 multiply and
// compare, each two of a tile's four panels. A tile takes these steps, each handed on by a barrier:
//
//   `recorded`  what the test needs of the panels is there        (copies -> limits, terms)
//   `full`      codes of a stage of the ring are there            (copies -> products)
//   `empty`     they are in registers                             (products -> copies)
//   `ready`     limits and terms are there                        (limits, terms -> comparison;
//                                                                  records may be copied again)
//   `compared`  nobody needs them any more                        (comparison -> limits, terms)
//
// A thread has two rows of a tile, 8 apart, and 64 queries. With sums a and b, terms s and t of the
// rows and a limit l of each query, one passes if max(a + s, b + t) >= l. That is two operations
// for two scores: the largest over the queries of max(b + (t - s), a) - l is held against -s.
#pragma once
#include <cstdint>

#include "knear/scan/device/scan_kernels.hpp"
#include "knear/simt/warpgroup_thread.hpp"

namespace knear::detail {

// row_slices: the slices of a row where these fit a stage of the ring, so that no product depends
// on a condition; 0: there are more.
template <class Thread, bool whole, int row_slices>
struct ScanByWarpgroups {
  static constexpr int threads = 3 * warpgroup_size, resident_blocks = 1;
  // Of the 168 that 384 threads have each; together no more.
  static constexpr int registers_of_helpers = 56, registers_of_products = 224;
  static_assert(registers_of_helpers + 2 * registers_of_products <= 3 * 168);
  static constexpr int tile_panels = 4, tile_rows = tile_panels * panel_rows;
  static constexpr int item_queries = 2 * block_queries;
  // A stage of the ring: up to so many slices of each panel of a tile.
  static constexpr int stage_slices = 4, stage_panel_bytes = stage_slices * panel_slice_bytes;
  static constexpr int stage_bytes = tile_panels * stage_panel_bytes;
  static constexpr int fewest_stages = 2, most_stages = 6;
  // The operand: of each slice the first 16 bytes of all queries, then the others.
  static constexpr int half_bytes = item_queries * 16, operand_slice_bytes = 2 * half_bytes;
  static constexpr int records = 4;  // as many tiles may be on their way
  static constexpr std::size_t most_shared_bytes = 227 << 10;
  // Limits are held between these: no sum of products and term is beyond, as of 640 columns a sum
  // of products is below 2^25 and a term between -2^29, or -2^26 of whole numbers, and 2^25.
  static constexpr int most_slices = 20, largest_limit = 1 << 30;

  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceLists lists;
  int begin, end;  // places in base.order
  int splits;      // of these panels
  int stages;

  using Record = PanelRecord<whole>;
  using Passed = PassedSums<256>;  // of a warpgroup
  struct Tests {
    QueryTest queries[item_queries];
    float inverse[2];                                 // of the scale of each block of queries
    alignas(16) Record panels[records][tile_panels];  // of tile i at i % 4
    // Of tile i at i % 2: minus the limit of each query, in the order of place_of_limit(), in each
    // panel; of whole numbers the same in all. And the term of each row, by the scale of each block
    // of queries; of whole numbers by none.
    alignas(16) int limits[2][whole ? 1 : tile_panels][item_queries];
    int terms[2][whole ? 1 : 2][tile_rows];
    Passed passed[2];
    int append[records][2];  // whether a warpgroup is to append what is kept: in tile i at i % 4
    unsigned long long full[most_stages], empty[most_stages];
    unsigned long long recorded[records], ready[records], compared[2];
  };
  // Four queries in a row are what a lane compares with the sums of two products of 8 queries.
  static KNEAR_DEVICE int place_of_limit(int query) {
    return query / 16 * 16 + query % 8 / 2 * 4 + query % 16 / 8 * 2 + query % 2;
  }

  static constexpr std::size_t shared_bytes(int slices, int stages) {
    return static_cast<std::size_t>(stages) * stage_bytes +
           static_cast<std::size_t>(slices) * operand_slice_bytes + sizeof(Tests);
  }
  // As many as there is room for; 0: too few, or the row is too long.
  static constexpr int stages_for(int slices) {
    if (slices > most_slices) return 0;
    int stages = most_stages;
    while (stages >= fewest_stages && shared_bytes(slices, stages) > most_shared_bytes) --stages;
    return stages < fewest_stages ? 0 : stages;
  }

  // A grid has any number of blocks.
  KNEAR_KERNEL void operator()(Thread t) const {
    static_assert(row_slices >= 0 && row_slices <= stage_slices);
    if constexpr (Thread::here) {
      Tests& tests = tests_of(t);
      if (t.index() == 0) {
        for (int i = 0; i < stages; ++i) {
          t.begin_arrivals(&tests.full[i], 1);
          t.begin_arrivals(&tests.empty[i], comparing_warps);
        }
        for (int i = 0; i < records; ++i) {
          t.begin_arrivals(&tests.recorded[i], 1);
          t.begin_arrivals(&tests.ready[i], preparing_warps);
        }
        for (int i = 0; i < 2; ++i) {
          t.begin_arrivals(&tests.compared[i], comparing_warps);
          tests.passed[i].count = 0;
        }
        t.show_barriers();
      }
      t.sync();
      const int warp = t.index() / warp_size;
      if (warp < 4) {
        t.template keep_registers<registers_of_helpers>();
        if (warp == 0)
          copy(t, tests);
        else if (warp < 3)
          prepare_limits(t, tests, warp - 1);
        else
          prepare_terms(t, tests);
      } else {
        t.template take_registers<registers_of_products>();
        multiply(t, tests);
      }
    }
  }

 private:
  static constexpr int preparing_warps = 3, comparing_warps = 8;
  static constexpr int comparing_threads = comparing_warps * warp_size;
  static_assert(comparing_threads == item_queries && block_slice_bytes == comparing_threads * 16);

  // Shared memory: the ring, the operand, and this.
  KNEAR_DEVICE unsigned char* operand_of(Thread t) const {
    return t.shared() + stages * stage_bytes;
  }
  KNEAR_DEVICE Tests& tests_of(Thread t) const {
    return *reinterpret_cast<Tests*>(operand_of(t) + base.slices * operand_slice_bytes);
  }

  struct Item {
    int queries;  // of the pairs of blocks of queries
    int first_tile, last_tile;
  };
  // Calls f(item) for all items of the block; all threads have the same.
  template <class F>
  KNEAR_DEVICE void for_each_item(Thread t, F f) const {
    const std::int64_t pairs = (queries.blocks + 1) / 2;
    const std::int64_t tiles = (end - begin + tile_panels - 1) / tile_panels;
    KNEAR_NO_UNROLL
    for (std::int64_t i = t.block(); i < pairs * splits; i += t.blocks()) {
      const std::int64_t split = i / pairs;
      f(Item{static_cast<int>(i % pairs), static_cast<int>(tiles * split / splits),
             static_cast<int>(tiles * (split + 1) / splits)});
    }
  }
  KNEAR_DEVICE int block_of(const Item& item, int half) const { return item.queries * 2 + half; }
  // The place of query `query` of a block among heads and thresholds; -1: there is none.
  KNEAR_DEVICE std::int64_t query_of(int block, int query) const {
    const std::int64_t at = std::int64_t{block} * block_queries + query;
    return at < queries.count ? at : -1;
  }
  // By the scale of a block of queries; of one that is not there anything.
  KNEAR_DEVICE float inverse_of(int block) const {
    return whole || block >= queries.blocks ? 1.0f : query_inverse(queries.scales[block]);
  }
  // Whether tile i is in an odd round of places that come again after `count` tiles.
  static KNEAR_DEVICE bool odd_round(unsigned tile, unsigned count) {
    return tile / count % 2 != 0;
  }

  // A stage of the ring, and whether it is the turn of an odd round.
  struct Turn {
    int stage = 0;
    bool odd = false;
    KNEAR_DEVICE void next(int stages) {
      if (++stage < stages) return;
      stage = 0, odd = !odd;
    }
  };

  // Lane p copies of panel p of each tile. Beyond the last panel it is the last again, of which
  // nothing passes.
  KNEAR_DEVICE void copy(Thread t, Tests& tests) const {
    const int lane = t.index();
    if (lane >= tile_panels) return;
    unsigned char* const to = t.shared() + lane * stage_panel_bytes;
    unsigned tile = 0;
    Turn turn;
    for_each_item(t, [&](const Item& item) {
      const auto panel_of = [&](int in_base) {
        const int place = begin + in_base * tile_panels + lane;
        return base.order[place < end ? place : end - 1];
      };
      unsigned ahead = item.first_tile < item.last_tile ? panel_of(item.first_tile) : 0;
      KNEAR_NO_UNROLL
      for (int in_base = item.first_tile; in_base < item.last_tile; ++in_base, ++tile) {
        const std::size_t panel = ahead;
        ahead = panel_of(in_base + 1);
        const unsigned at = tile % records;
        unsigned long long* const recorded = &tests.recorded[at];
        t.wait_for_arrivals(&tests.ready[at], !odd_round(tile, records));
        if (lane == 0) t.arrive_expecting(recorded, tile_panels * sizeof(Record));
        Record& record = tests.panels[at][lane];
        if constexpr (whole) {
          t.copy_bulk(record.squares, base.row_squares + panel * panel_rows, panel_rows * 4,
                      recorded);
          t.copy_bulk(record.sums, base.row_sums + panel * panel_rows, panel_rows * 4, recorded);
        } else {
          t.copy_bulk(&record.test, base.tests + panel, sizeof(PanelTest), recorded);
          t.copy_bulk(record.bias, base.row_bias + panel * panel_rows, panel_rows * 4, recorded);
        }
        const std::uint8_t* from =
            base.codes + panel * static_cast<unsigned>(base.slices * panel_slice_bytes);
        KNEAR_NO_UNROLL
        for (int slice = 0; slice < base.slices; slice += stage_slices) {
          const int slices =
              base.slices - slice < stage_slices ? base.slices - slice : stage_slices;
          const auto bytes = static_cast<unsigned>(slices * panel_slice_bytes);
          unsigned long long* const full = &tests.full[turn.stage];
          t.wait_for_arrivals(&tests.empty[turn.stage], !turn.odd);
          if (lane == 0) t.arrive_expecting(full, tile_panels * bytes);
          t.copy_bulk(to + turn.stage * stage_bytes, from, bytes, full);
          from += bytes;
          turn.next(stages);
        }
      }
    });
  }

  // Waits until limits and terms of a tile may be made, and says that they are.
  KNEAR_DEVICE void begin_preparing(Thread t, Tests& tests, unsigned tile) const {
    t.wait_for_arrivals(&tests.recorded[tile % records], odd_round(tile, records));
    t.wait_for_arrivals(&tests.compared[tile % 2], !odd_round(tile, 2));
  }
  KNEAR_DEVICE void end_preparing(Thread t, Tests& tests, unsigned tile) const {
    t.sync_warp();
    if (t.index() % warp_size == 0) t.arrive(&tests.ready[tile % records]);
  }

  // A warp, for block `half` of an item's queries: each lane for four of them.
  KNEAR_DEVICE void prepare_limits(Thread t, Tests& tests, int half) const {
    constexpr int each = block_queries / warp_size;
    const int lane = t.index() % warp_size;
    int place[each];
    KNEAR_UNROLL
    for (int i = 0; i < each; ++i) place[i] = place_of_limit(half * block_queries + i * 32 + lane);
    unsigned tile = 0;
    for_each_item(t, [&](const Item& item) {
      const int block = block_of(item, half);
      const float inverse = inverse_of(block);
      QueryTest mine[each] = {};
      bool real[each];
      KNEAR_UNROLL
      for (int i = 0; i < each; ++i) {
        const std::int64_t query = query_of(block, i * 32 + lane);
        real[i] = query >= 0;
        if (real[i]) mine[i] = test_of_query<whole>(base, queries, query, block);
      }
      const auto held = [](int limit) {
        return -smaller(larger(limit, -largest_limit), largest_limit);
      };
      KNEAR_NO_UNROLL
      for (int in_base = item.first_tile; in_base < item.last_tile; ++in_base, ++tile) {
        begin_preparing(t, tests, tile);
        auto& limits = tests.limits[tile % 2];
        if constexpr (whole) {
          KNEAR_UNROLL
          for (int i = 0; i < each; ++i)
            limits[0][place[i]] = real[i] ? held(mine[i].correction) : -largest_limit;
        } else {
          KNEAR_UNROLL
          for (int p = 0; p < tile_panels; ++p) {
            const PanelTest test = tests.panels[tile % records][p].test;
            const bool panel_is_real = begin + in_base * tile_panels + p < end;
            KNEAR_UNROLL
            for (int i = 0; i < each; ++i) {
              const int limit = held(certified_limit(test, mine[i], inverse));
              limits[p][place[i]] = real[i] && panel_is_real ? limit : -largest_limit;
            }
          }
        }
        end_preparing(t, tests, tile);
      }
    });
  }

  // A warp: lane r for row r of each panel.
  KNEAR_DEVICE void prepare_terms(Thread t, Tests& tests) const {
    const int lane = t.index() % warp_size;
    unsigned tile = 0;
    for_each_item(t, [&](const Item& item) {
      const float inverse[2] = {inverse_of(block_of(item, 0)), inverse_of(block_of(item, 1))};
      KNEAR_NO_UNROLL
      for (int in_base = item.first_tile; in_base < item.last_tile; ++in_base, ++tile) {
        begin_preparing(t, tests, tile);
        KNEAR_UNROLL
        for (int p = 0; p < tile_panels; ++p) {
          const Record& panel = tests.panels[tile % records][p];
          const int row = p * panel_rows + lane;
          if constexpr (whole) {
            tests.terms[tile % 2][0][row] =
                whole_term(queries, panel.squares[lane], panel.sums[lane]);
          } else {
            KNEAR_UNROLL
            for (int half = 0; half < 2; ++half)
              tests.terms[tile % 2][half][row] =
                  certified_term(panel.test.scale, panel.bias[lane], inverse[half]);
          }
        }
        if (lane < 2)
          tests.append[tile % records][lane] =
              t.atomic_read(&tests.passed[lane].count) >= Passed::room / 2;
        end_preparing(t, tests, tile);
      }
    });
  }

  // Puts the codes of an item's queries into the order of the operand, and what the test needs of
  // them beside it. All comparing threads call it, `thread` of 256.
  KNEAR_DEVICE void load_queries(Thread t, Tests& tests, const Item& item, int thread) const {
    const int lane = thread % warp_size, pair = thread / warp_size;
    t.sync_some(1, comparing_threads);  // nobody needs those of before
    KNEAR_NO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int block = block_of(item, half);
      const std::uint8_t* const from =
          queries.codes + std::int64_t{block} * base.slices * block_slice_bytes + thread * 16;
      // block_place(): of query 16 pair + lane / 4 step lane % 4 of both halves of a slice, then
      // those of the query 8 further.
      unsigned char* const to =
          operand_of(t) + lane % 4 * 4 + (half * block_queries + pair * 16 + lane / 4) * 16;
      KNEAR_NO_UNROLL
      for (int slice = 0; slice < base.slices; ++slice) {
        const FourWords words =
            block < queries.blocks
                ? *reinterpret_cast<const FourWords*>(from + slice * block_slice_bytes)
                : FourWords{};
        KNEAR_UNROLL
        for (int i = 0; i < 4; ++i)
          t.store_operand(reinterpret_cast<unsigned*>(to + slice * operand_slice_bytes +
                                                      i / 2 * 8 * 16 + i % 2 * half_bytes),
                          words.word[i]);
      }
    }
    const int block = block_of(item, thread / block_queries);
    const std::int64_t query = query_of(block, thread % block_queries);
    tests.queries[thread] =
        query >= 0 ? test_of_query<whole>(base, queries, query, block) : QueryTest{};
    if (thread % block_queries == 0) tests.inverse[thread / block_queries] = inverse_of(block);
    t.show_operands();
    t.sync_some(1, comparing_threads);
  }

  KNEAR_DEVICE void multiply(Thread t, Tests& tests) const {
    const int thread = t.index() - warpgroup_size, group = thread / warpgroup_size;
    const int warp = thread / warp_size % 4, lane = thread % warp_size;
    // Its rows of a tile: `row` and 8 further, of one panel.
    const int panel = 2 * group + warp / 2, row = warp % 2 * 16 + lane / 4;
    const unsigned char* const rows =
        t.shared() + panel * stage_panel_bytes + warp % 2 * 512 + lane * 16;
    const auto operand = t.operand(operand_of(t), 128, half_bytes);
    Passed& passed = tests.passed[group];
    unsigned tile = 0;
    Turn turn;
    for_each_item(t, [&](const Item& item) {
      load_queries(t, tests, item, thread);
      KNEAR_NO_UNROLL
      for (int in_base = item.first_tile; in_base < item.last_tile; ++in_base, ++tile) {
        int first[64], second[64];  // for each block of queries
        // The products of a stage; those of a tile's first stage begin its sums. slices.value: how
        // many it has; 0: `left`, up to four.
        const auto multiply_stage = [&](auto begins, auto slices, int slice, int left) {
          constexpr int most = slices.value ? slices.value : stage_slices;
          t.wait_for_arrivals(&tests.full[turn.stage], turn.odd);
          unsigned a[most][4];  // beyond the last slice anything
          KNEAR_UNROLL
          for (int s = 0; s < most; ++s) {
            const FourWords words = *reinterpret_cast<const FourWords*>(
                rows + turn.stage * stage_bytes + s * panel_slice_bytes);
            KNEAR_UNROLL
            for (int i = 0; i < 4; ++i) a[s][i] = words.word[i];
          }
          t.sync_warp();
          if (lane == 0) t.arrive(&tests.empty[turn.stage]);
          turn.next(stages);
          t.begin_products();
          const auto b = t.further(operand, static_cast<unsigned>(slice * operand_slice_bytes));
          KNEAR_UNROLL
          for (int half = 0; half < 2; ++half) {
            auto& sums = half == 0 ? first : second;
            KNEAR_UNROLL
            for (int s = 0; s < most; ++s) {
              const auto of_slice = t.further(
                  b, static_cast<unsigned>(s * operand_slice_bytes + half * block_queries * 16));
              if (begins.value && s == 0)
                t.begin_product(sums, a[s], of_slice);
              else if (slices.value || s < left)
                t.add_product(sums, a[s], of_slice);
            }
            t.close_products();
          }
        };
        if constexpr (row_slices) {
          multiply_stage(std::true_type{}, std::integral_constant<int, row_slices>{}, 0, 0);
        } else {
          multiply_stage(std::true_type{}, std::integral_constant<int, stage_slices>{}, 0, 0);
          KNEAR_NO_UNROLL
          for (int slice = stage_slices; slice < base.slices; slice += stage_slices) {
            // Their registers are loaded anew.
            t.template wait_for_products<0>(first);
            t.template wait_for_products<0>(second);
            multiply_stage(std::false_type{}, std::integral_constant<int, 0>{}, slice,
                           base.slices - slice);
          }
        }
        t.wait_for_arrivals(&tests.ready[tile % records], odd_round(tile, records));
        const int place = begin + in_base * tile_panels + panel;
        const auto keep = [&](int half, const int(&sums)[64], const Share& share) {
          keep_passed(t, tests, passed, item, half, tile, place, panel, row, sums, share);
        };
        Share firsts, seconds;
        t.template wait_for_products<1>(first);
        compare(t, tests, 0, tile, panel, row, first, firsts);
        if constexpr (row_slices) {
          // While the second are under way: the assembler moves the comparison behind the wait for
          // them, but not a jump.
          if (t.any(firsts.passes())) keep(0, first, firsts);
          t.template wait_for_products<0>(second);
          compare(t, tests, 1, tile, panel, row, second, seconds);
          if (t.any(seconds.passes())) keep(1, second, seconds);
        } else {  // the other way would take more registers than there are
          t.template wait_for_products<0>(second);
          compare(t, tests, 1, tile, panel, row, second, seconds);
          if (t.any(firsts.passes() || seconds.passes()))
            keep(0, first, firsts), keep(1, second, seconds);
        }
        t.sync_warp();
        if (lane == 0) t.arrive(&tests.compared[tile % 2]);
        if (tests.append[tile % records][group])
          append_passed(t, tests, passed, item, group, Passed::room / 4);
      }
      append_passed(t, tests, passed, item, group, 1);
    });
  }

  static KNEAR_DEVICE int smaller(int a, int b) { return a < b ? a : b; }

  // What a thread finds of its 32 queries of a block, eight in a row.
  static constexpr int share_groups = 4, share_group = 8;
  struct Share {
    int largest[share_groups];  // of the sums less the limits
    int begins, further;        // the first row's term, and by how much the second's is larger

    KNEAR_DEVICE bool passes() const {
      return larger(larger(largest[0], largest[1]), larger(largest[2], largest[3])) >= -begins;
    }
  };
  KNEAR_DEVICE const int* limits_of(Thread t, const Tests& tests, int half, unsigned tile,
                                    int panel) const {
    return tests.limits[tile % 2][whole ? 0 : panel] + half * block_queries + t.index() % 4 * 4;
  }
  // The larger sum of the two rows with a query, less the first one's term.
  static KNEAR_DEVICE int larger_of_rows(Thread t, const int (&sums)[64], int query, int further) {
    const int at = query / 2 * 4 + query % 2;
    return t.larger_sum(sums[at + 2], further, sums[at]);
  }
  KNEAR_DEVICE void compare(Thread t, const Tests& tests, int half, unsigned tile, int panel,
                            int row, const int (&sums)[64], Share& out) const {
    const int* const limits = limits_of(t, tests, half, tile, panel);
    const int* const terms = tests.terms[tile % 2][whole ? 0 : half] + panel * panel_rows + row;
    out.begins = terms[0], out.further = terms[8] - out.begins;
    KNEAR_UNROLL
    for (int g = 0; g < share_groups; ++g) {
      KNEAR_UNROLL
      for (int q = 0; q < share_group; q += 4) {
        const Quad four = *reinterpret_cast<const Quad*>(limits + (g * share_group + q) / 4 * 16);
        KNEAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int sum = larger_of_rows(t, sums, g * share_group + q + i, out.further);
          out.largest[g] =
              q + i == 0 ? sum + four.of[i] : t.larger_sum(sum, four.of[i], out.largest[g]);
        }
      }
    }
  }

  // Keeps the sums with a block of queries of which one passes. All lanes call it.
  KNEAR_DEVICE void keep_passed(Thread t, const Tests& tests, Passed& passed, const Item& item,
                                int half, unsigned tile, int place, int panel, int row,
                                const int (&sums)[64], const Share& share) const {
    const int* const limits = limits_of(t, tests, half, tile, panel);
    const int begins = share.begins, further = share.further;
    const auto quad_of = [&](int query) -> Quad {
      const int at = query / 2 * 4 + query % 2;
      return {{sums[at] + begins, sums[at + 2] + begins + further, 0, 0}};
    };
    const auto query_row_of = [&](int query) {
      return half * block_queries + query / 2 * 8 + t.index() % 4 * 2 + query % 2 + 256 * row;
    };
    unsigned beyond = 0;  // those for which there is no room
    KNEAR_UNROLL
    for (int g = 0; g < share_groups; ++g) {
      if (share.largest[g] < -begins) continue;
      KNEAR_UNROLL
      for (int q = 0; q < share_group; ++q) {
        const int query = g * share_group + q;
        if (larger_of_rows(t, sums, query, further) + limits[query / 4 * 16 + query % 4] < -begins)
          continue;
        const int at = t.atomic_add(&passed.count, 1);
        if (at < Passed::room) {
          passed.sums[at] = quad_of(query);
          passed.place[at] = place;
          passed.query_row[at] = query_row_of(query);
        } else {
          beyond |= 1u << query;
        }
      }
    }
    // The first step of a search, in which nearly all pass. One place of the code for all sums.
    KNEAR_NO_UNROLL
    for (; beyond != 0; beyond &= beyond - 1) {
      const int which = lowest_bit(beyond);  // each lane its own, so that all append at once
      Quad of = {};
      KNEAR_UNROLL
      for (int query = 0; query < share_groups * share_group; ++query)
        if (which == query) of = quad_of(query);
      append_quad(t, tests, item, of, place, query_row_of(which));
    }
    t.sync_warp();  // that parted the lanes, and what follows is for a whole warp
  }

  // Appends what a warpgroup has kept to the lists of its queries, unless that is less than
  // `fewest`. All of its threads call it.
  KNEAR_DEVICE void append_passed(Thread t, const Tests& tests, Passed& passed, const Item& item,
                                  int group, int fewest) const {
    const int thread = t.index() % warpgroup_size;
    t.sync_some(2 + group, warpgroup_size);  // nobody keeps more
    const int found = t.atomic_read(&passed.count), count = smaller(found, Passed::room);
    KNEAR_NO_UNROLL
    for (int i = thread; i < count && count >= fewest; i += warpgroup_size) {
      append_quad(t, tests, item, passed.sums[i], passed.place[i], passed.query_row[i]);
    }
    t.sync_some(2 + group, warpgroup_size);
    if (thread == 0 && count >= fewest) t.atomic_add(&passed.count, -found);
    t.sync_some(2 + group, warpgroup_size);
  }

  KNEAR_DEVICE void append_quad(Thread t, const Tests& tests, const Item& item, const Quad& sums,
                                int place, int query_row) const {
    const int mine = query_row % 256;
    const std::int64_t query = query_of(block_of(item, mine / block_queries), mine % block_queries);
    if (place >= end || query < 0) return;
    append_rows<whole, 2>(t, base, queries, lists, query, tests.queries[mine],
                          tests.inverse[mine / block_queries], base.order[place],
                          static_cast<unsigned>(query_row / 256), sums);
  }
};

}  // namespace knear::detail
