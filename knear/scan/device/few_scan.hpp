// knear/scan/device/few_scan.hpp -- the scan of scan_kernels.hpp for few queries, 8 or 32 at most.
//
//   launch(queue, Grid{splits, Kernel::shared_bytes(slices)},
//          ScanFew<Thread, 8, keep, whole>{{base, queries, lists, begin, end, splits, {}}, false});
//
// With few queries the scan takes as long as it takes to read the codes, if enough of them are on
// their way at any time: as many bytes as memory brings in the time that one of them takes, on an
// H100 25 KB for each multiprocessor if that is a microsecond. So a warp reads for itself, panels
// one after another and all of a panel's rows: it waits for no other warp, and while it waits for
// memory, or appends a pair, its next copies are on their way and the other warps are at work. A
// lane copies the bytes that it will read itself, so that nothing but its own copies has to be
// waited for. What the test needs of a panel a lane computes for one query and one row, and the
// warp exchanges it.
//
// Bytes on their way for each multiprocessor: resident_blocks * 4 warps * ring_bytes (6 KiB), 120
// or 144 KiB where a multiprocessor has that much shared memory. docs/measurements/gpu.md counts.
#pragma once
#include <cstdint>
#include <limits>
#include <type_traits>

#include "knear/scan/device/scan_kernels.hpp"

namespace knear::detail {

// columns: 8 or 32, the most queries of a block, which are the columns of its products. keep,
// whole, tabled: as ScanPanels has them; where codes of queries are not kept in shared memory they
// are read again for each panel, from the cache. block_warps, ahead: the warps of a block, and the
// slices of a panel that each has on their way.
template <class Thread, int columns, bool keep, bool whole, bool tabled = false,
          int block_warps = 4, int ahead = 6>
struct ScanFew : ScanArguments<Thread, whole, tabled> {
  static_assert(columns == 8 || columns == 32);
  static constexpr int warps = block_warps, threads = warps * warp_size;
  static constexpr int resident_blocks = columns == 8 ? 6 : keep ? 5 : 4;
  static constexpr int most_queries = columns, products = columns / 8;  // of 16 rows and a slice
  static constexpr int stages = ahead;
  static constexpr int ring_bytes = stages * panel_slice_bytes;  // of a warp

  // Every pair is stored, and its list is counted: in the order of panels, so that no list is
  // waited for. Of slots without a row too. Lists must be empty, have room, and all of a base's
  // rows may be found; not tabled.
  bool everything;

  using Arguments = ScanArguments<Thread, whole, tabled>;
  using Arguments::base, Arguments::queries, Arguments::lists, Arguments::begin, Arguments::end,
      Arguments::splits, Arguments::table;

  // Codes of a slice of the queries, as a lane reads them: of 8 queries, or twice those of 16.
  struct alignas(columns == 8 ? 8 : 16) Words {
    unsigned word[columns == 8 ? 2 : 4];
  };
  static constexpr int words_of_slice = columns == 8 ? 32 : 64;

  // A grid has `splits` blocks, or as many as there are tasks.
  static constexpr std::size_t shared_bytes(int slices) {
    return warps * ring_bytes +
           (keep ? static_cast<std::size_t>(slices) * words_of_slice * sizeof(Words) : 0);
  }

  KNEAR_KERNEL void operator()(Thread t) const {
    const DeviceTask task = tabled ? table.tasks[t.block()] : DeviceTask{0, begin, end};
    const auto thread = static_cast<unsigned>(t.index());
    const unsigned lane = thread % warp_size, warp = thread / warp_size;
    const auto [first, last] = panels_of_warp(t, task);

    // The next slice to be copied. Beyond the last panel nothing is.
    unsigned char* const ring = t.shared() + warp * ring_bytes + lane * 16;
    const auto panel_at = [&](int place) { return base.order[place < last ? place : last - 1]; };
    const auto codes_of = [&](unsigned panel) {
      return base.codes +
             std::size_t{panel} * static_cast<unsigned>(base.slices * panel_slice_bytes) +
             lane * 16;
    };
    int next_place = first, next_slice = 0;
    unsigned panel_ahead = 0;
    const std::uint8_t* next_rows = nullptr;
    const auto copy_slice = [&](unsigned char* to) {
      if (next_place < last) {
        t.copy_16(to, next_rows, true);
        t.copy_16(to + panel_slice_bytes / 2, next_rows + panel_slice_bytes / 2, true);
        next_rows += panel_slice_bytes;
        if (++next_slice == base.slices) {
          next_slice = 0, ++next_place;
          next_rows = codes_of(panel_ahead);
          panel_ahead = panel_at(next_place + 1);
        }
      }
      t.close_copies();
    };

    // Of the panel that is scored and the next one; its number two ahead.
    unsigned panel = 0, next_panel = 0;
    Record record = {};
    if (first < last) {
      panel = panel_at(first), next_panel = panel_ahead = panel_at(first + 1);
      next_rows = codes_of(panel);
      record = record_of(panel, lane);
      KNEAR_NO_UNROLL
      for (int i = 0; i < stages; ++i) copy_slice(ring + i * panel_slice_bytes);
    }

    const std::uint8_t* const block_codes =
        queries.codes + std::int64_t{task.query_block} * base.slices * block_slice_bytes;
    Words* const kept = reinterpret_cast<Words*>(t.shared() + warps * ring_bytes);
    if (keep) {
      for (unsigned i = thread; i < static_cast<unsigned>(base.slices) * words_of_slice;
           i += threads)
        kept[i] = *reinterpret_cast<const Words*>(
            block_codes + std::size_t{i / words_of_slice} * block_slice_bytes +
            i % words_of_slice * 16);
      t.sync();
    }
    if (everything && t.block() == 0 && thread < queries.count)
      lists.counts[thread] = (end - begin) * panel_rows;
    if (first >= last) return;  // the whole warp

    // What the test needs of one query, which the lane computes for all.
    const int column = static_cast<int>(lane % columns);
    const std::int64_t my_place = this->place_of(task.query_block, column);
    const bool real = tabled ? my_place >= 0 : my_place < queries.count;
    constexpr int nothing_passes = std::numeric_limits<int>::max();
    const float inverse = whole ? 0 : query_inverse(queries.scales[task.query_block]);
    const QueryTest query =
        real ? this->test_of_query(my_place, task.query_block) : QueryTest{0, 0, 0, 0};

    unsigned char* stage = ring;
    KNEAR_NO_UNROLL
    for (int place = first; place < last; ++place) {
      const unsigned panel_after = panel_at(place + 2);
      const Record next_record = record_of(next_panel, lane);
      // Where the sums of rows g and g + 8 of 16 begin.
      int terms[2][2], sums[2][products][4];
      const int my_term = term_of(record, inverse);
      KNEAR_UNROLL
      for (int m = 0; m < 2; ++m) KNEAR_UNROLL
      for (int half = 0; half < 2; ++half)
        terms[m][half] = t.shuffle(my_term, static_cast<int>(lane / 4) + 16 * m + 8 * half);

      // Calls multiply(m, n, a, b) for the products of a slice, whose place is filled anew.
      const auto score_slice = [&](int slice, auto multiply) {
        t.template wait_for_copies<stages - 1>();
        unsigned b[products][2];
        const Words* const words =
            keep ? kept + slice * words_of_slice + static_cast<int>(lane) : nullptr;
        KNEAR_UNROLL
        for (int pair = 0; pair < (products + 1) / 2; ++pair) {
          const Words of =
              keep ? t.read_shared(&words[pair * warp_size])
                   : *reinterpret_cast<const Words*>(block_codes + slice * block_slice_bytes +
                                                     pair * 512 + lane * 16);
          b[2 * pair][0] = of.word[0], b[2 * pair][1] = of.word[1];
          if constexpr (products > 1)
            b[2 * pair + 1][0] = of.word[2], b[2 * pair + 1][1] = of.word[3];
        }
        KNEAR_UNROLL
        for (int m = 0; m < 2; ++m) {
          const FourWords a = t.read_shared(
              reinterpret_cast<const FourWords*>(stage + m * (panel_slice_bytes / 2)));
          KNEAR_UNROLL
          for (int n = 0; n < products; ++n) multiply(m, n, a.word, b[n]);
        }
        copy_slice(stage);
        stage = stage == ring + ring_bytes - panel_slice_bytes ? ring : stage + panel_slice_bytes;
      };
      score_slice(0, [&](int m, int n, const unsigned(&a)[4], const unsigned(&b)[2]) {
        const int start[4] = {terms[m][0], terms[m][0], terms[m][1], terms[m][1]};
        t.multiply_u8_s8(sums[m][n], a, b, start);
      });
      KNEAR_NO_UNROLL
      for (int slice = 1; slice < base.slices; ++slice)
        score_slice(slice, [&](int m, int n, const unsigned(&a)[4], const unsigned(&b)[2]) {
          t.multiply_u8_s8(sums[m][n], a, b);
        });

      if (everything)
        store_all(t, place, panel, sums, terms);
      else
        append_passed(t, task, panel, sums, terms,
                      !real ? nothing_passes : limit_of(record, query, inverse));
      panel = next_panel, next_panel = panel_after, record = next_record;
    }
  }

  // Brings the first codes of the warp's panels, up to so many bytes, nearer to it: for who will
  // call the kernel, and has to wait for something else before.
  KNEAR_DEVICE void prefetch(Thread t, unsigned bytes) const {
    static_assert(!tabled);
    constexpr unsigned line = 128;
    const auto [first, last] = panels_of_warp(t, DeviceTask{0, begin, end});
    const auto panel_bytes = static_cast<unsigned>(base.slices * panel_slice_bytes);
    for (int place = first; place < last && bytes > 0; ++place) {
      const std::uint8_t* const codes = base.codes + std::size_t{base.order[place]} * panel_bytes;
      const unsigned some = bytes < panel_bytes ? bytes : panel_bytes;
      for (unsigned at = static_cast<unsigned>(t.index()) % warp_size * line; at < some;
           at += warp_size * line)
        t.prefetch(codes + at);
      bytes -= some;
    }
  }

 private:
  // The places of the panels that the warp scans.
  struct Places {
    int first, last;
  };
  KNEAR_DEVICE Places panels_of_warp(Thread t, const DeviceTask& task) const {
    const std::int64_t part = (tabled ? 0 : t.block()) * warps + t.index() / warp_size,
                       parts = std::int64_t{tabled ? 1 : splits} * warps;
    const std::int64_t places = task.end - task.begin;
    return {task.begin + static_cast<int>(places * part / parts),
            task.begin + static_cast<int>(places * (part + 1) / parts)};
  }

  // What a lane has of a panel: the panel's test, and of the lane's row what its sum begins with.
  struct CertifiedRecord {
    PanelTest test;
    float bias;
  };
  struct WholeRecord {
    std::uint32_t squares;
    std::int32_t sum;
  };
  using Record = std::conditional_t<whole, WholeRecord, CertifiedRecord>;
  KNEAR_DEVICE Record record_of(unsigned panel, unsigned lane) const {
    const std::size_t slot = std::size_t{panel} * panel_rows + lane;
    if constexpr (whole)
      return {base.row_squares[slot], base.row_sums[slot]};
    else
      return {base.tests[panel], base.row_bias[slot]};
  }
  KNEAR_DEVICE int term_of(const Record& record, float inverse) const {
    if constexpr (whole)
      return this->whole_term(record.squares, record.sum);
    else
      return certified_term(record.test.scale, record.bias, inverse);
  }
  KNEAR_DEVICE int limit_of(const Record& record, const QueryTest& query, float inverse) const {
    if constexpr (whole)
      return query.correction;
    else
      return certified_limit(record.test, query, inverse);
  }

  // The query of a lane's sums [m][n][i] and [m][n][i + 2], among those of the block, and the row
  // of the panel that is the first of these four.
  static KNEAR_DEVICE int query_of(unsigned lane, int n, int i) {
    return n * 8 + static_cast<int>(lane) % 4 * 2 + i;
  }
  static KNEAR_DEVICE std::uint32_t first_slot(unsigned panel, unsigned lane) {
    return panel * panel_rows + lane / 4;
  }

  // Appends the pairs that reach the limits of their queries; the lane has that of query
  // lane % columns.
  KNEAR_DEVICE void append_passed(Thread t, const DeviceTask& task, unsigned panel,
                                  const int (&sums)[2][products][4], const int (&terms)[2][2],
                                  int my_limit) const {
    const auto lane = static_cast<unsigned>(t.index()) % warp_size;
    int limits[products][2];
    unsigned passing = 0;
    KNEAR_UNROLL
    for (int n = 0; n < products; ++n) KNEAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      limits[n][i] = t.shuffle(my_limit, query_of(lane, n, i));
      const int first_rows = larger(sums[0][n][i], sums[0][n][i + 2]),
                other_rows = larger(sums[1][n][i], sums[1][n][i + 2]);
      if (larger(first_rows, other_rows) >= limits[n][i]) passing |= 1u << (2 * n + i);
    }
    // Each lane its own, so that all wait for their lists at the same time.
    KNEAR_NO_UNROLL
    for (; passing != 0; passing &= passing - 1) {
      const int which = lowest_bit(passing);
      int rows[4] = {}, limit = 0;
      KNEAR_UNROLL
      for (int n = 0; n < products; ++n) KNEAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (which != 2 * n + i) continue;
        limit = limits[n][i];
        rows[0] = sums[0][n][i], rows[1] = sums[0][n][i + 2];
        rows[2] = sums[1][n][i], rows[3] = sums[1][n][i + 2];
      }
      const std::int64_t query =
          this->place_of(task.query_block, query_of(lane, which / 2, which % 2));
      const int starts[4] = {terms[0][0], terms[0][1], terms[1][0], terms[1][1]};
      this->append_rows(t, query, first_slot(panel, lane), rows, starts, limit);
    }
    t.sync_warp();  // mma.sync and shuffles are for a whole warp
  }

  // Stores all pairs of the panel.
  KNEAR_DEVICE void store_all(Thread t, int place, unsigned panel,
                              const int (&sums)[2][products][4], const int (&terms)[2][2]) const {
    const auto lane = static_cast<unsigned>(t.index()) % warp_size;
    const std::uint32_t slot = first_slot(panel, lane);
    const int at = (place - begin) * panel_rows + static_cast<int>(lane / 4);
    KNEAR_UNROLL
    for (int n = 0; n < products; ++n) KNEAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int query = query_of(lane, n, i);
      if (query >= queries.count) continue;
      Entry* const list = lists.entries + std::int64_t{query} * lists.room + at;
      KNEAR_UNROLL
      for (int m = 0; m < 2; ++m) KNEAR_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + 8 * half;
        list[row] = {slot + static_cast<unsigned>(row), sums[m][n][i + 2 * half] - terms[m][half]};
      }
    }
  }
};

}  // namespace knear::detail
