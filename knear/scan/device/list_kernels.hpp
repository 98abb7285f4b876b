// knear/scan/device/list_kernels.hpp -- the kernels of the lists that a scan on a GPU fills:
//
//   UpdateThresholds   brings each query's threshold to the k-th best of its list, and drops from
//                      the list what cannot be among the k
//   MeasureRows        the float64 reference of what is left; IntegerKeys, of whole numbers
//   RankRows           the k best in the order (key, id)
//
// long_lists.hpp has two of them for many neighbours.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/scan_views.hpp"
#include "knear/select/warp/warp_select.hpp"
#include "knear/simt/thread.hpp"
#include "knear/simt/thread_warp.hpp"

namespace knear::detail {

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

// Exact keys of whole numbers. One block per query, of so many threads.
template <class Thread, int block_threads = 128>
struct IntegerKeys {
  static constexpr int threads = block_threads, resident_blocks = 8;
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
  if (xx == 0 || squares == 0) return 1.0;
  const double key = rounded_sum(1.0, -(sum / sqrt(rounded_product(xx, squares))));
  return key < 0 ? 0.0 : key > 2 ? 2.0 : key;
}

// Keys by the reference, each by half a warp. `parts` blocks per query, as many as keep the device
// busy where queries are few. Row: the type of the rows; queries are doubles, which hold all types.
template <class Thread, class Row, int block_threads = 128>
struct MeasureRows {
  static constexpr int threads = block_threads, resident_blocks = 8;
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
template <class Thread, int block_threads = 128>
struct RankRows {
  static constexpr int threads = block_threads, resident_blocks = 8, together = 4 * threads;
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
