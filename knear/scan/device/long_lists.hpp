// knear/scan/device/long_lists.hpp -- the kernels of list_kernels.hpp for lists that are too long
// for a warp's registers, and for comparing each entry with all others.
//
//   UpdateLongLists    UpdateThresholds for any k: the k-th of the certain ends by the digits of
//                      their bits (select/warp/radix_select_rows.hpp), then the list is compacted
//   SortLists          RankRows by a stable sort, of ids first and then of keys
//
// Memory: SortLists takes one more list for each block.
#pragma once
#include <cstring>

#include "knear/scan/device/scan_views.hpp"
#include "knear/select/sort/block_sort.hpp"
#include "knear/select/sort/float_order.hpp"
#include "knear/select/warp/radix_select_rows.hpp"
#include "knear/simt/block.hpp"

namespace knear::detail {

// One block per query. The memory of the list's keys holds floats meanwhile.
template <class Thread>
struct UpdateLongLists {
  using Block = RadixBlock<Thread>;
  static constexpr int threads = Block::threads, resident_blocks = 2;
  // Entries of a thread whose rows are looked up at the same time, since each takes several
  // accesses of device memory, one after another.
  static constexpr int ahead = 4;

  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceLists lists;
  int k;

  struct Shared {
    unsigned long long largest;
    int sums[threads / warp_size];
  };
  static constexpr std::size_t radix_bytes =
      (Block::shared_bytes + alignof(Shared) - 1) / alignof(Shared) * alignof(Shared);
  static constexpr std::size_t shared_bytes = radix_bytes + sizeof(Shared);

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t place = t.block();
    const ListedQuery query = listed_query(queries, place);
    Entry* const list = lists.entries + place * lists.room;
    float* const ends = reinterpret_cast<float*>(lists.keys + place * lists.room);
    const int found = lists.counts[place];
    const int count = found < lists.room ? found : lists.room;
    Shared& shared = *reinterpret_cast<Shared*>(t.shared() + radix_bytes);

    for (int first = t.index(); first < count; first += ahead * threads) {
      float end[ahead];
      KNEAR_UNROLL
      for (int i = 0; i < ahead; ++i) {
        end[i] = std::numeric_limits<float>::quiet_NaN();
        if (first + i * threads >= count) continue;
        const Entry entry = list[first + i * threads];
        if (base.ids[entry.slot] != DeviceBaseView::no_row)
          end[i] = certain_end(base, query, entry);
      }
      KNEAR_UNROLL
      for (int i = 0; i < ahead; ++i)
        if (first + i * threads < count) ends[first + i * threads] = end[i];
    }
    const double bound =
        better_bound(base, queries.thresholds[place], kth_of(t, shared, ends, count));

    int kept = 0;
    for (int first = 0; first < count; first += ahead * threads) {
      Entry entry[ahead] = {};
      bool keep[ahead] = {};
      int mine = 0;
      KNEAR_UNROLL
      for (int i = 0; i < ahead; ++i) {
        const int at = first + t.index() * ahead + i;  // in their order
        if (at >= count) continue;
        entry[i] = list[at];
        keep[i] = reaches(base, query, entry[i], bound);
        mine += keep[i];
      }
      int total = 0;
      int to = kept + block_prefix<threads>(t, mine, shared.sums, total);  // and all have read
      KNEAR_UNROLL
      for (int i = 0; i < ahead; ++i)
        if (keep[i]) list[to++] = entry[i];
      kept += total;
      t.sync();  // before the sums are used again
    }
    t.sync();  // of an empty list, too, all have read the threshold
    if (t.index() == 0) {
      queries.thresholds[place] = bound;
      lists.counts[place] = kept;
      if (found > lists.room) lists.lost[place] = 1;
    }
  }

 private:
  // The k-th of the numbers among ends[0 .. count), or infinity if there are fewer. A thread reads
  // what other threads wrote only after a sync().
  KNEAR_DEVICE double kth_of(Thread t, Shared& shared, const float* ends, int count) const {
    Block block(t, 0);
    const RadixBound bound = block.bound_of(ends, count, k);
    if (bound.left > 0) return number_of_key(bound.key);
    // All numbers below the bound are among the k; the largest of them is the k-th.
    if (t.index() == 0) shared.largest = 0;
    t.sync();
    unsigned long long largest = 0;
    int below = 0;
    for (std::int64_t i = t.index(); i < count; i += threads) {
      const unsigned key = ordered_key(ends[i], 0);
      if (key >= bound.key) continue;
      ++below;
      if (key > largest) largest = key;
    }
    t.atomic_max(&shared.largest, largest);
    if (block.sum(below) < k) return std::numeric_limits<double>::infinity();
    return number_of_key(static_cast<unsigned>(shared.largest));
  }
};

// As RankRows. Block b takes the queries b, b + blocks, ... Entries hold ids instead of slots
// afterwards.
template <class Thread>
struct SortLists {
  // The digits of the id, then those of the key.
  static constexpr int id_digits = 4, key_digits = 8;
  using Sort = BlockSort<Thread, id_digits + key_digits>;
  static constexpr int threads = Sort::threads, resident_blocks = 2;
  static constexpr std::size_t shared_bytes = sizeof(typename Sort::Shared);

  DeviceBaseView base;
  DeviceLists lists;
  SpareLists spare;  // as many as there are blocks
  double* out_keys;
  std::int64_t* out_ids;
  int k;
  std::int64_t count;  // of queries

  struct Item {
    double key;
    std::uint32_t id;
  };
  struct Items {
    double* keys;
    Entry* entries;  // slot holds the id

    KNEAR_DEVICE Item load(unsigned i) const { return {keys[i], entries[i].slot}; }
    KNEAR_DEVICE void store(unsigned i, Item item) const {
      keys[i] = item.key, entries[i].slot = item.id;
    }
  };

  KNEAR_KERNEL void operator()(Thread t) const {
    auto& shared = *reinterpret_cast<typename Sort::Shared*>(t.shared());
    const auto digit_of = [](Item item, int digit) {
      return digit < id_digits ? item.id >> digit * Sort::digit_bits & (Sort::bins - 1)
                               : static_cast<unsigned>(ordered_key(item.key) >>
                                                           (digit - id_digits) * Sort::digit_bits &
                                                       (Sort::bins - 1));
    };
    for (std::int64_t place = t.block(); place < count; place += t.blocks()) {
      const auto n = static_cast<unsigned>(lists.counts[place]);
      Items items = {lists.keys + place * lists.room, lists.entries + place * lists.room};
      const Items other = {spare.keys + t.block() * lists.room,
                           spare.entries + t.block() * lists.room};
      for (auto i = unsigned(t.index()); i < n; i += threads)
        items.entries[i].slot = base.ids[items.entries[i].slot];
      t.sync();  // the entries of the previous query have been read
      if (n > 0) items = Sort::sort(t, shared, n, items, other, digit_of);
      for (auto i = unsigned(t.index()); i < unsigned(k); i += threads) {
        const Item item = i < n ? items.load(i) : Item{};
        out_keys[place * k + i] = i < n ? item.key : std::numeric_limits<double>::infinity();
        out_ids[place * k + i] = i < n ? std::int64_t{item.id} : -1;
      }
    }
  }
};

}  // namespace knear::detail
