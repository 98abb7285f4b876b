// knear/scan/device/few_search.hpp -- a search of few queries in one launch: what device_scan.hpp
// makes of some ten launches, of ScanFew, UpdateLongLists, MeasureRows or IntegerKeys, and
// RankRows.
//
//   using Kernel = SearchFew<Thread, 8, whole>;
//   launch(queue, Grid{blocks, Kernel::shared_bytes(slices), true}, Kernel{...});
//
// With few queries a step of the scan takes some microseconds, and so does the gap between two
// launches. Here the blocks stay where they are, one of 16 warps on each multiprocessor, and wait
// for one another between two steps. While the blocks of the first queries bring thresholds up to
// date, the others bring the codes that they will scan next into the cache that all share.
//
// No GPU has run it. cuda::Queue::one_launch() says when it runs in place of the launches.
#pragma once
#include <cstddef>
#include <cstdint>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/few_scan.hpp"
#include "knear/scan/device/list_kernels.hpp"
#include "knear/scan/device/long_lists.hpp"

namespace knear::detail {

// A thread that does the work of another block than its own: so a kernel that has a block for each
// query is called for some after others.
template <class Thread>
struct AsBlock : Thread {
  std::int64_t number;
  KNEAR_DEVICE AsBlock(Thread t, std::int64_t block) : Thread(t), number(block) {}
  KNEAR_DEVICE std::int64_t block() const { return number; }
};

// What a search in one launch is told beside rows, queries and lists.
struct FewSearch {
  // The panels of the first step, and the factor by which the scanned part of the base grows.
  // stored: the first step keeps all pairs, as ScanFew::everything says.
  std::int64_t first, growth;
  bool stored;
  int k;
  // As MeasureRows has them; not of whole numbers.
  const double *vectors, *vector_squares;
  const void* rows;
  ElementType type;
  std::int64_t dim;
  // [count x k], as RankRows has them.
  double* keys;
  std::int64_t* ids;
};

// columns, whole: as ScanFew has them. All blocks of the grid run at the same time.
template <class Thread, int columns, bool whole>
struct SearchFew {
  using Other = AsBlock<Thread>;
  using Scan = ScanFew<Thread, columns, true, whole, false, 16, 9>;
  using Update = UpdateLongLists<Other>;
  static constexpr int threads = Scan::threads, resident_blocks = 1;
  static_assert(threads == Update::threads);
  using Rank = RankRows<Other, threads>;
  // Codes that a warp brings nearer ahead of a step: 12 MB in all on an H100, a quarter of its
  // cache, which memory brings in 4 microseconds. A guess.
  static constexpr unsigned prefetched_bytes = 6 << 10;

  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceLists lists;
  FewSearch search;

  static constexpr std::size_t shared_bytes(int slices) {
    const std::size_t of_lists =
        Update::shared_bytes > Rank::shared_bytes ? Update::shared_bytes : Rank::shared_bytes;
    return Scan::shared_bytes(slices) > of_lists ? Scan::shared_bytes(slices) : of_lists;
  }

  KNEAR_KERNEL void operator()(Thread t) const {
    Scan scan{};
    scan.base = base, scan.queries = queries, scan.lists = lists;
    scan.splits = static_cast<int>(t.blocks());
    scan.end = static_cast<int>(search.first);
    KNEAR_NO_UNROLL
    for (;;) {
      scan.everything = search.stored && scan.begin == 0;
      scan(t);
      t.sync_grid();
      const Update update{base, queries, lists, search.k};
      for (std::int64_t place = t.block(); place < queries.count; place += t.blocks())
        update(Other(t, place));
      const bool last = scan.end == base.panels;
      const std::int64_t end = scan.end * search.growth;
      scan.begin = scan.end;
      scan.end = static_cast<int>(end < base.panels ? end : base.panels);
      if (!last && t.block() >= queries.count) scan.prefetch(t, prefetched_bytes);
      t.sync_grid();
      if (last) break;
    }
    measure(t);
    t.sync_grid();
    const Rank rank{base, lists, search.keys, search.ids, search.k};
    for (std::int64_t place = t.block(); place < queries.count; place += t.blocks())
      rank(Other(t, place));
  }

 private:
  KNEAR_DEVICE void measure(Thread t) const {
    if constexpr (whole) {
      const IntegerKeys<Other, threads> keys{base, queries, lists};
      for (std::int64_t place = t.block(); place < queries.count; place += t.blocks())
        keys(Other(t, place));
    } else {
      switch (search.type) {
        case ElementType::f32:
          return measure_rows<float>(t);
        case ElementType::f16:
          return measure_rows<f16>(t);
        case ElementType::bf16:
          return measure_rows<bf16>(t);
        case ElementType::u8:
          return measure_rows<std::uint8_t>(t);
        case ElementType::i8:
          return measure_rows<std::int8_t>(t);
        case ElementType::f64:
          return measure_rows<double>(t);
      }
    }
  }
  // Several blocks for each query, where there are more blocks than queries.
  template <class Row>
  KNEAR_DEVICE void measure_rows(Thread t) const {
    const std::int64_t parts = t.blocks() > queries.count ? t.blocks() / queries.count : 1;
    const MeasureRows<Other, Row, threads> rows{base,
                                                lists,
                                                search.vectors,
                                                search.vector_squares,
                                                static_cast<const Row*>(search.rows),
                                                search.dim,
                                                static_cast<int>(parts)};
    for (std::int64_t task = t.block(); task < queries.count * parts; task += t.blocks())
      rows(Other(t, task));
  }
};

}  // namespace knear::detail
