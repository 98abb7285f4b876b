// knear/scan/device/scan_views.hpp -- what the kernels of a scan work on, in device memory: rows,
// queries, the lists of pairs that passed; and what they know of a pair: its interval or its key.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "knear/scan/device/code_layout.hpp"
#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"
#include "knear/simt/thread.hpp"

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

}  // namespace knear::detail
