// knear/scan/device/code_scan_kernels.hpp -- kernels that search codes in the lists that queries
// probe.
//
//   ScanCodes         the k nearest rows of a query that a warp has seen (the fused scan)
//   MergeCodeLists    of several such lists of a query, one
//   LocateRows        the segments and rows of ids that were found
//   MakeCodeTables    the tables of a query, where shared memory does not hold them
//   WriteCodeKeys     the key of every row, for select_k (the form in several passes)
//   ResolveTies       of rows that have the k-th key, those with the smallest ids
//
// Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs" (2017), section 5: a block
// makes the tables of a query in shared memory, warps look entries up for a row in each lane, and
// keep the k best in registers; a second pass merges these. What depends on query and list is one
// term and what depends on the row one scalar (methods/code_scan.hpp), so that tables are the
// query's alone, and a block makes them once for all lists.
//
// Keys are the processor's, to the bit: entries are sums in float64, rounded once, and added up in
// float32 from the first part on, products and sums rounded by themselves. Order: (key, id).
//
// The rows of a query are cut into groups of 64, as codes lie in memory, which the warps of all its
// blocks take in turn: short lists and long ones keep them equally busy.
//
// What bounds it is looking entries up: a warp's 32 addresses in a table of 256 entries fall on 32
// banks by chance, of which the fullest is asked some 3.2 times, so that shared memory is busy for
// so many cycles with each code byte of 32 rows, and for one more with reading the codes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>

#include "knear/core/metric.hpp"
#include "knear/scan/kernels/code_key.hpp"
#include "knear/select/warp/warp_select.hpp"
#include "knear/simt/block.hpp"
#include "knear/simt/thread_warp.hpp"

namespace knear::detail {

// A CodeBook in device memory.
struct DeviceCodeBookView {
  const float* by_column;  // [dim x 2^bits]: a column of the centroids of its part
  int parts, bits, width;  // width: columns of a part

  KNEAR_HD constexpr int dim() const { return parts * width; }
  KNEAR_HD constexpr int entries() const { return parts << bits; }  // of all tables
  KNEAR_HD constexpr int code_size() const { return (parts * bits + 7) / 8; }
};

// CodedLists in device memory, with ids and what may be found of them.
struct DeviceCodedView {
  const std::uint8_t* codes;     // as CodedLists has them
  const float* scalars;          // [rows]; nullptr: rows have none
  const std::int64_t* ids;       // [rows]
  const std::int64_t* begins;    // [lists + 1]; lists beyond are empty
  std::int64_t lists;            // those up to the last one that has rows
  const std::uint32_t* allowed;  // a bit for each row; nullptr: all
};

KNEAR_DEVICE bool may_be_found(const DeviceCodedView& segment, std::int64_t row) {
  return !segment.allowed || (segment.allowed[row >> 5] >> (row & 31) & 1) != 0;
}

// Queries, what they probe and where; all pointers are to device memory.
struct DeviceCodeJob {
  DeviceCodeBookView book;
  const DeviceCodedView* segments;  // [segment_count]
  int segment_count, probes;        // probes: of a query at most
  const double* queries;            // [count x dim]: what tables are made with
  const std::int32_t* lists;        // [count x probes]; -1: none
  const float* terms;               // [count x probes]
  std::int64_t count;               // of queries
  int splits;                       // blocks that share a query
  Metric metric;
  bool squared;

  KNEAR_HD std::int64_t query_of(std::int64_t block) const { return block / splits; }
  KNEAR_HD int split_of(std::int64_t block) const { return static_cast<int>(block % splits); }
};

// The entry number e of the tables of a query: over the columns of its part in float64, in their
// order, rounded once.
KNEAR_DEVICE float code_table_entry(const DeviceCodeBookView& book, const double* query,
                                    bool squared, int e) {
  const int part = e >> book.bits, centroid = e & ((1 << book.bits) - 1);
  const float* column = book.by_column + ((part * book.width) << book.bits) + centroid;
  query += part * book.width;
  double sum = 0;
  for (int j = 0; j < book.width; ++j, column += 1 << book.bits) {
    const double x = *column, difference = rounded_sum(query[j], -x);
    sum = rounded_sum(
        sum, squared ? rounded_product(difference, difference) : rounded_product(query[j], x));
  }
  return static_cast<float>(sum);
}

// What tables give the codes of two rows, whose bytes begin at a and b and lie `stride` apart: the
// look-ups of one row are a chain, those of two go on side by side. whole_group: they are of a
// group of 64, the second row half a group behind the first, so that addresses are constants.
template <int bits, bool whole_group>
KNEAR_DEVICE void code_sums(const DeviceCodeBookView& book, const float* tables,
                            const std::uint8_t* a, const std::uint8_t* b, int stride,
                            float (&sums)[2]) {
  // Bytes that are under way at once.
  constexpr int together = 4, entries = 1 << bits, parts_of_byte = 8 / bits;
  const int whole = book.parts / parts_of_byte;  // bytes that are full
  if (whole_group) stride = 2 * warp_size, b = a + warp_size;
  float first = 0, second = 0;
  const auto add = [&](int byte, int x, int y) {
    const float* const table = tables + byte * (parts_of_byte * entries);
    if constexpr (bits == 8) {
      first += table[x], second += table[y];
    } else {
      first += table[x & 15], second += table[y & 15];
      first += table[16 + (x >> 4)], second += table[16 + (y >> 4)];
    }
  };
  int byte = 0;
  KNEAR_NO_UNROLL
  for (; byte + together <= whole; byte += together) {
    int x[together], y[together];
    KNEAR_UNROLL
    for (int i = 0; i < together; ++i, a += stride, b += stride) x[i] = *a, y[i] = *b;
    KNEAR_UNROLL
    for (int i = 0; i < together; ++i) add(byte + i, x[i], y[i]);
  }
  KNEAR_NO_UNROLL
  for (; byte < whole; ++byte, a += stride, b += stride) add(byte, *a, *b);
  if (bits == 4 && book.parts % 2 == 1) {  // half a byte is left
    const float* const table = tables + byte * (2 * entries);
    first += table[*a & 15], second += table[*b & 15];
  }
  sums[0] = first, sums[1] = second;
}

// What the threads of a block do with the rows that its query looks at.
template <class Thread, int threads>
class CodeRows {
 public:
  static constexpr int warps = threads / warp_size, group_rows = 64;

  // A list of a segment, and the term of the query for it.
  struct Range {
    std::int64_t begin, end;
    float term;
    int segment;
  };
  // The tables come first where shared memory holds them.
  static constexpr std::size_t shared_bytes(std::int64_t table_entries) {
    return static_cast<std::size_t>(table_entries) * sizeof(float) + threads * sizeof(Range);
  }

  // table_entries: those in shared memory, an even number.
  KNEAR_DEVICE CodeRows(Thread t, const DeviceCodeJob& job, int table_entries)
      : t_(t),
        job_(job),
        tables_(reinterpret_cast<float*>(t.shared())),
        ranges_(reinterpret_cast<Range*>(t.shared() + table_entries * sizeof(float))) {}

  // In shared memory; each_range() begins with a sync().
  KNEAR_DEVICE void make_tables(std::int64_t query) const {
    const double* const vector = job_.queries + query * job_.book.dim();
    for (int e = t_.index(); e < job_.book.entries(); e += threads)
      tables_[e] = code_table_entry(job_.book, vector, job_.squared, e);
  }
  KNEAR_DEVICE const float* tables() const { return tables_; }

  // Calls f(range) for all ranges of the query that have rows, in all threads, in one order. Ranges
  // are read by all threads at once, before any is looked at: each takes several readings one after
  // another.
  template <class F>
  KNEAR_DEVICE void each_range(std::int64_t query, F f) const {
    const std::int64_t ranges = std::int64_t{job_.probes} * job_.segment_count;
    KNEAR_NO_UNROLL
    for (std::int64_t first = 0; first < ranges; first += threads) {
      t_.sync();  // the ranges before these have been used
      if (first + t_.index() < ranges) ranges_[t_.index()] = range_of(query, first + t_.index());
      t_.sync();
      const int count = static_cast<int>(ranges - first < threads ? ranges - first : threads);
      KNEAR_NO_UNROLL
      for (int i = 0; i < count; ++i)
        if (ranges_[i].begin < ranges_[i].end) f(ranges_[i]);
    }
  }

  // The same for the groups of 64 rows that this warp has to look at: of the query's groups each of
  // its blocks' warps takes one in turn. Calls f(range, segment, first, rows, before), `before`
  // being the rows in the ranges before this one.
  template <class F>
  KNEAR_DEVICE void each_group(std::int64_t query, int split, F f) const {
    const int all = job_.splits * warps;
    std::int64_t next = split * warps + t_.index() / warp_size, before = 0;
    each_range(query, [&](const Range& range) {
      const std::int64_t rows = range.end - range.begin,
                         groups = (rows + group_rows - 1) / group_rows;
      if (next < groups) {
        const DeviceCodedView segment = job_.segments[range.segment];
        KNEAR_NO_UNROLL
        for (; next < groups; next += all) {
          const std::int64_t first = range.begin + next * group_rows;
          f(range, segment, first,
            static_cast<int>(range.end - first < group_rows ? range.end - first : group_rows),
            before);
        }
      }
      next -= groups, before += rows;
    });
  }

  // The keys of the rows first + lane and first + 32 + lane of a group of so many, NaN of one that
  // is not there or may not be found. tables: those of the query, wherever they are.
  KNEAR_DEVICE void keys_of(const Range& range, const DeviceCodedView& segment, std::int64_t first,
                            int rows, const float* tables, float (&keys)[2]) const {
    const int lane = t_.index() % warp_size;
    const bool two = lane + warp_size < rows;
    // Lanes without a row do as others do, with the last one.
    const int a = lane < rows ? lane : rows - 1, b = two ? lane + warp_size : rows - 1;
    const bool found[2] = {lane < rows && may_be_found(segment, first + a),
                           two && may_be_found(segment, first + b)};
    keys[0] = keys[1] = std::numeric_limits<float>::quiet_NaN();
    if (segment.allowed && !t_.any(found[0] || found[1])) return;
    const std::uint8_t* const codes = segment.codes + first * job_.book.code_size();
    float sums[2];
    const std::uint8_t *const first_code = codes + a, *const second_code = codes + b;
    if (job_.book.bits == 8 && rows == group_rows)
      code_sums<8, true>(job_.book, tables, first_code, second_code, rows, sums);
    else if (job_.book.bits == 8)
      code_sums<8, false>(job_.book, tables, first_code, second_code, rows, sums);
    else if (rows == group_rows)
      code_sums<4, true>(job_.book, tables, first_code, second_code, rows, sums);
    else
      code_sums<4, false>(job_.book, tables, first_code, second_code, rows, sums);
    const float scalars[2] = {segment.scalars ? segment.scalars[first + a] : 0,
                              segment.scalars ? segment.scalars[first + b] : 0};
    KNEAR_UNROLL
    for (int i = 0; i < 2; ++i)
      if (found[i]) keys[i] = code_key(job_.metric, range.term, sums[i], scalars[i]);
  }

 private:
  KNEAR_DEVICE Range range_of(std::int64_t query, std::int64_t number) const {
    const std::int64_t at = query * job_.probes + number / job_.segment_count;
    const int s = static_cast<int>(number % job_.segment_count);
    const std::int32_t list = job_.lists[at];
    const DeviceCodedView& segment = job_.segments[s];
    if (list < 0 || list >= segment.lists) return {0, 0, 0, s};
    return {segment.begins[list], segment.begins[list + 1], job_.terms[at], s};
  }

  const Thread t_;
  const DeviceCodeJob& job_;
  float* tables_;
  Range* ranges_;
};

// Blocks of a multiprocessor at once, as many as leave WarpSelect with ids of 64 bits its
// registers: 96, 128 and 255 of a thread. Tables of 32 KiB allow no more than four to six.
KNEAR_HD constexpr int code_resident_blocks(int R) { return R <= 4 ? 5 : R <= 8 ? 4 : 2; }

// A block for each query and split; a list of k places for each of its warps, ascending.
template <class Thread, int R, int T>
struct ScanCodes {
  static constexpr int threads = 128, resident_blocks = code_resident_blocks(R);
  using Rows = CodeRows<Thread, threads>;

  DeviceCodeJob job;
  int k;
  float* keys;        // [count x splits * warps x k]; infinity where there is none
  std::int64_t* ids;  // the same; -1

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t query = job.query_of(t.block());
    const Rows rows(t, job, (job.book.entries() + 1) / 2 * 2);
    rows.make_tables(query);
    WarpSelect<ThreadWarp<Thread>, std::int64_t, R, T> best(ThreadWarp<Thread>(t), k);
    rows.each_group(
        query, job.split_of(t.block()),
        [&](const typename Rows::Range& range, const DeviceCodedView& segment, std::int64_t first,
            int count, std::int64_t) {
          float found[2];
          rows.keys_of(range, segment, first, count, rows.tables(), found);
          // The code of a merge stands here once.
          KNEAR_NO_UNROLL
          for (int half = 0; half < 2; ++half) {
            const float key = half == 0 ? found[0] : found[1];
            const bool wanted = key <= best.limit();
            if (!t.any(wanted)) continue;
            const std::int64_t row = first + half * warp_size + t.index() % warp_size;
            best.add({wanted ? key : std::numeric_limits<float>::infinity(),
                      wanted ? segment.ids[row] : std::numeric_limits<std::int64_t>::max()});
          }
        });
    const std::int64_t list = t.block() * Rows::warps + t.index() / warp_size;
    best.store(keys + list * k, ids + list * k);
  }
};

// Of `lists` lists of k places for each query, one for each `together` of them. A warp for each.
template <class Thread, int R, int T>
struct MergeCodeLists {
  static constexpr int threads = 128, resident_blocks = code_resident_blocks(R);
  static constexpr int warps = threads / warp_size;

  std::int64_t count;  // of queries
  int lists, together, k;
  const float* keys;        // [count x lists x k]
  const std::int64_t* ids;  // -1: an empty place, behind all others of its list
  float* out_keys;          // [count x merged() x k]
  std::int64_t* out_ids;

  KNEAR_HD int merged() const { return (lists + together - 1) / together; }

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t out = t.block() * warps + t.index() / warp_size;
    if (out >= count * merged()) return;  // a whole warp
    const std::int64_t query = out / merged();
    const int first = static_cast<int>(out % merged()) * together,
              last = first + together < lists ? first + together : lists;
    const std::int64_t begin = (query * lists + first) * k, places = std::int64_t{last - first} * k;
    WarpSelect<ThreadWarp<Thread>, std::int64_t, R, T> best(ThreadWarp<Thread>(t), k);
    KNEAR_NO_UNROLL
    for (std::int64_t i = 0; i < places; i += warp_size) {
      const std::int64_t at = i + t.index() % warp_size;
      float key = std::numeric_limits<float>::infinity();
      std::int64_t id = std::numeric_limits<std::int64_t>::max();
      if (at < places && ids[begin + at] >= 0) key = keys[begin + at], id = ids[begin + at];
      best.add({key, id});
    }
    best.store(out_keys + out * k, out_ids + out * k);
  }
};

// A warp for each place of an answer finds the row of its id, one that may be found: rows that were
// removed have theirs still, which others may have got. Requires that the ids of each list ascend,
// and that those that are there lie in lists that the query probes.
template <class Thread>
struct LocateRows {
  static constexpr int threads = 128, resident_blocks = 8, warps = threads / warp_size;

  DeviceCodeJob job;
  int k;
  const std::int64_t* ids;  // [count x k]; -1: none
  std::int32_t* segments;   // [count x k]; 0 where there is none
  std::int64_t* rows;       // [count x k]; -1

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t place = t.block() * warps + t.index() / warp_size;
    if (place >= job.count * k) return;  // a whole warp
    if (ids[place] < 0) {
      if (t.index() % warp_size == 0) segments[place] = 0, rows[place] = -1;
      return;
    }
    const std::int64_t query = place / k, id = ids[place];
    const std::int64_t ranges = std::int64_t{job.probes} * job.segment_count;
    KNEAR_NO_UNROLL
    for (std::int64_t first = 0; first < ranges; first += warp_size) {
      const std::int64_t number = first + t.index() % warp_size;
      const bool found = number < ranges && look(query, number, id, place);
      if (t.any(found)) return;
    }
  }

 private:
  KNEAR_DEVICE bool look(std::int64_t query, std::int64_t number, std::int64_t id,
                         std::int64_t place) const {
    const std::int32_t list = job.lists[query * job.probes + number / job.segment_count];
    const int s = static_cast<int>(number % job.segment_count);
    const DeviceCodedView& segment = job.segments[s];
    if (list < 0 || list >= segment.lists) return false;
    std::int64_t low = segment.begins[list], high = segment.begins[list + 1];
    const std::int64_t end = high;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (segment.ids[middle] < id)
        low = middle + 1;
      else
        high = middle;
    }
    if (low == end || segment.ids[low] != id || !may_be_found(segment, low)) return false;
    segments[place] = s, rows[place] = low;
    return true;
  }
};

// Blocks of `threads` entries each.
template <class Thread>
struct MakeCodeTables {
  static constexpr int threads = 256, resident_blocks = 4;

  DeviceCodeJob job;
  float* tables;  // [count x entries]

  KNEAR_HD std::int64_t blocks_of_query() const {
    return (job.book.entries() + threads - 1) / threads;
  }

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t query = t.block() / blocks_of_query();
    const int e = static_cast<int>(t.block() % blocks_of_query()) * threads + t.index();
    if (e >= job.book.entries()) return;
    tables[query * job.book.entries() + e] =
        code_table_entry(job.book, job.queries + query * job.book.dim(), job.squared, e);
  }
};

// A block for each query and split writes the keys of all rows that the query looks at, range after
// range; NaN for those that may not be found.
template <class Thread>
struct WriteCodeKeys {
  static constexpr int threads = 128, resident_blocks = 6;
  using Rows = CodeRows<Thread, threads>;

  DeviceCodeJob job;
  const float* tables;  // [count x entries]; nullptr: they are made in shared memory
  float* keys;          // [count x stride]
  std::int64_t stride;

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t query = job.query_of(t.block());
    if (tables) {
      write(t, Rows(t, job, 0), query, tables + query * job.book.entries());
      return;
    }
    const Rows rows(t, job, (job.book.entries() + 1) / 2 * 2);
    rows.make_tables(query);
    write(t, rows, query, rows.tables());
  }

 private:
  KNEAR_DEVICE void write(Thread t, const Rows& rows, std::int64_t query,
                          const float* entries) const {
    float* const out = keys + query * stride;
    const int lane = t.index() % warp_size;
    rows.each_group(query, job.split_of(t.block()),
                    [&](const typename Rows::Range& range, const DeviceCodedView& segment,
                        std::int64_t first, int count, std::int64_t before) {
                      float found[2];
                      rows.keys_of(range, segment, first, count, entries, found);
                      float* const to = out + before + (first - range.begin);
                      if (lane < count) to[lane] = found[0];
                      if (lane + warp_size < count) to[lane + warp_size] = found[1];
                    });
  }
};

// select_k takes the leftmost of equal keys, which matters for the k-th alone: where more rows have
// that key than there are places, those with the smallest ids are put there. A block for each
// query.
template <class Thread>
struct ResolveTies {
  static constexpr int threads = 256, resident_blocks = 4, digit_bits = 8;
  using Rows = CodeRows<Thread, threads>;
  static_assert(threads == 1 << digit_bits, "a thread has a bin of the histogram");

  DeviceCodeJob job;
  int k;
  const float* keys;  // [count x stride], as WriteCodeKeys left them
  std::int64_t stride;
  const float* values;  // [count x k] the k smallest, ascending
  int* places;          // [count x k] where they are in the row of keys; -1: none

  struct Shared {
    int histogram[threads];
    int sums[threads / warp_size];
    int smaller, equal, written, left;
    unsigned digit;
  };
  static constexpr std::size_t shared_bytes = Rows::shared_bytes(0) + sizeof(Shared);

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t query = t.block();
    const float* const row = keys + query * stride;
    int* const mine = places + query * k;
    if (mine[k - 1] < 0) return;  // all that there are; the whole block
    const float last = values[query * k + k - 1];
    const Rows rows(t, job, 0);
    Shared& shared = *reinterpret_cast<Shared*>(t.shared() + Rows::shared_bytes(0));
    if (t.index() == 0) shared.smaller = shared.equal = shared.written = 0;
    shared.histogram[t.index()] = 0;  // each_tie() begins with a sync()
    int smaller = 0, equal = 0;
    for (int i = t.index(); i < k; i += threads) smaller += values[query * k + i] < last;
    each_tie(t, rows, query, row, last, [&](std::int64_t, std::int64_t) { ++equal; });
    t.atomic_add(&shared.smaller, smaller);
    t.atomic_add(&shared.equal, equal);
    t.sync();
    const int kept = shared.smaller, wanted = k - kept;
    if (shared.equal == wanted) return;

    // The id of the last one that is wanted, by its digits from the highest on.
    std::int64_t bound = 0;
    int left = wanted;
    for (int shift = 64 - digit_bits; shift >= 0; shift -= digit_bits) {
      each_tie(t, rows, query, row, last, [&](std::int64_t id, std::int64_t) {
        if ((id ^ bound) >> (shift + digit_bits - 1) >> 1 == 0)
          t.atomic_add(&shared.histogram[(id >> shift) & (threads - 1)], 1);
      });
      t.sync();
      const int count = shared.histogram[t.index()];
      int total = 0;
      const int before = block_prefix<threads>(t, count, shared.sums, total);
      shared.histogram[t.index()] = 0;
      if (before < left && left <= before + count)
        shared.digit = static_cast<unsigned>(t.index()), shared.left = left - before;
      t.sync();
      bound |= std::int64_t{shared.digit} << shift, left = shared.left;
    }
    each_tie(t, rows, query, row, last, [&](std::int64_t id, std::int64_t place) {
      if (id <= bound) mine[kept + t.atomic_add(&shared.written, 1)] = static_cast<int>(place);
    });
  }

 private:
  // Calls f(id, place in the row) for the rows that have the key `last`, each in one thread.
  template <class F>
  KNEAR_DEVICE void each_tie(Thread t, const Rows& rows, std::int64_t query, const float* row,
                             float last, F f) const {
    std::int64_t before = 0;
    rows.each_range(query, [&](const typename Rows::Range& range) {
      const std::int64_t* const ids = job.segments[range.segment].ids + range.begin;
      const std::int64_t count = range.end - range.begin;
      for (std::int64_t i = t.index(); i < count; i += threads)
        if (row[before + i] == last) f(ids[i], before + i);
      before += count;
    });
  }
};

}  // namespace knear::detail
