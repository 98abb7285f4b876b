// knear/scan/device/self_join_kernels.hpp -- kernels of a self-join that scores each pair of rows
// once, beside ScanPanels, which scores them (scan_kernels.hpp: SelfJoinPairs).
//
//   PlaceRows      the row that is the query at each place
//   FindTops       what the test for a row needs of the query with which it is scored
//   FindReach      and of the row itself: how far its threshold reaches now
//   ScorePairs     scores of pairs that were found for their rows
//
// A pair that was found for its row comes to the list of that row without a score: the one at hand
// is of the other codes of both, the row's without a sign and the query's with one. ScorePairs has
// the few that pass multiplied once more, so that lists hold what they always do.
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

#include "knear/core/metric.hpp"
#include "knear/scan/device/scan_kernels.hpp"
#include "knear/scan/kernels/key_scale.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

KNEAR_DEVICE Metric metric_of(const DeviceBaseView& base) {
  return base.l2 ? Metric::l2 : base.cosine ? Metric::cosine : Metric::ip;
}

// rows [count]: -1 where there is none.
template <class Thread>
struct PlaceRows {
  static constexpr int threads = 256, resident_blocks = 8;
  DeviceBaseView base;
  std::int64_t count;
  std::int32_t* rows;

  KNEAR_KERNEL void operator()(Thread t) const {
    for (std::int64_t place = t.block() * threads + t.index(); place < count;
         place += t.blocks() * threads)
      rows[place] = static_cast<std::int32_t>(base.ids[slot_at(base, place)]);
  }
};

// One block for each block of queries. Not of whole numbers, whose tops are their lengths.
template <class Thread>
struct FindTops {
  static constexpr int threads = block_queries, resident_blocks = 8;
  static constexpr std::size_t shared_bytes = threads * sizeof(double);
  DeviceBaseView base;
  DeviceQueryView queries;
  SelfJoinPairs join;

  KNEAR_KERNEL void operator()(Thread t) const {
    constexpr double none = -std::numeric_limits<double>::infinity();
    auto* const tops = reinterpret_cast<double*>(t.shared());
    const std::int64_t place = t.block() * threads + t.index();
    const DeviceQuery& query = queries.heads[place];
    const bool real = base.ids[slot_at(base, place)] != DeviceBaseView::no_row;
    const double top =
        KeyScale{metric_of(base), query.squares, query.constant}.top() - slack_of(base, query);
    tops[t.index()] = real ? top : none;
    t.sync();
    double most = none;
    for (int i = 0; i < threads; ++i) most = tops[i] > most ? tops[i] : most;
    const double scale = queries.scales[t.block()];
    join.tops[place] = real ? pair_top(top, most, scale) : std::numeric_limits<float>::infinity();
    if (t.index() == 0) join.most[t.block()] = most > none ? pair_most(most, scale) : 0.0f;
  }
};

// By the thresholds that the queries have now.
template <class Thread, bool whole>
struct FindReach {
  static constexpr int threads = 256, resident_blocks = 8;
  DeviceBaseView base;
  DeviceQueryView queries;
  SelfJoinPairs join;

  KNEAR_KERNEL void operator()(Thread t) const {
    for (std::int64_t place = t.block() * threads + t.index(); place < queries.count;
         place += t.blocks() * threads) {
      const std::uint32_t slot = slot_at(base, place);
      const bool real = base.ids[slot] != DeviceBaseView::no_row;
      const double bound = queries.thresholds[place];
      if constexpr (whole) {
        join.reach[slot] = real ? whole_pair_number(base.l2, bound) : 0;
      } else {
        const DeviceQuery& query = queries.heads[place];
        const Metric metric = metric_of(base);
        const double key = KeyScale{metric, query.squares, query.constant}.key_at_most(bound);
        const float reach =
            real ? pair_reach(KeyScale::reach_of(metric, key), base.heads[slot / panel_rows].scale)
                 : -std::numeric_limits<float>::infinity();
        join.reach[slot] = std::bit_cast<std::int32_t>(reach);
      }
    }
  }
};

// One warp per list.
template <class Thread>
struct ScorePairs {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size;
  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceLists lists;

  KNEAR_KERNEL void operator()(Thread t) const {
    for (std::int64_t place = t.block() * warps + t.index() / warp_size; place < queries.count;
         place += t.blocks() * warps) {
      Entry* const list = lists.entries + place * lists.room;
      const int found = lists.counts[place], count = found < lists.room ? found : lists.room;
      const auto query = static_cast<std::uint32_t>(place % block_queries);
      const std::uint8_t* const codes = queries.codes +
                                        place / block_queries * base.slices * block_slice_bytes +
                                        query / 16 * 512 + query % 8 * 64 + query % 16 / 8 * 8;
      for (int at = t.index() % warp_size; at < count; at += warp_size) {
        const std::uint32_t slot = list[at].slot;
        if (slot & unscored) list[at] = {slot & ~unscored, score(codes, slot & ~unscored)};
      }
    }
  }

 private:
  struct alignas(8) TwoWords {
    unsigned word[2];
  };
  KNEAR_DEVICE std::int32_t score(const std::uint8_t* codes, std::uint32_t slot) const {
    const std::uint32_t row = slot % panel_rows;
    const std::uint8_t* const rows =
        base.codes +
        std::size_t{slot / panel_rows} * static_cast<unsigned>(base.slices) * panel_slice_bytes +
        row / 16 * 512 + row % 8 * 64;
    const bool second = row % 16 >= 8;
    std::int32_t sum = 0;
    for (int slice = 0; slice < base.slices; ++slice) {
      KNEAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const FourWords a =
            *reinterpret_cast<const FourWords*>(rows + slice * panel_slice_bytes + i * 16);
        const TwoWords b =
            *reinterpret_cast<const TwoWords*>(codes + slice * block_slice_bytes + i * 16);
        sum = add_products_u8_s8(second ? a.word[1] : a.word[0], b.word[0], sum);
        sum = add_products_u8_s8(second ? a.word[3] : a.word[2], b.word[1], sum);
      }
    }
    return sum;
  }
};

}  // namespace knear::detail
