// knear/cluster/device/k_means_kernels.hpp -- what k-means does on a GPU beside the scan, as
// kernels of knear/simt/thread.hpp.
//
//   MeasureLengths    the length of each row, as the processor adds it up; cosine
//   StartFromLast     of each row the key of the centroid that was nearest before, and so the
//                     threshold that others have to reach
//   ChooseNearest     the nearest of what a scan has left of each row's centroids, by the float64
//                     reference
//   MeasureAll        the same of rows whose lists were full: of all centroids
//   MoveRows          takes rows that have another centroid than before out of the sums that they
//                     were in, and adds them to the others
//
// The scan is that of scan/device/scan_kernels.hpp: rows are its queries, centroids its base. Each
// key has the bits of the reference, and sums are of whole numbers, so that the order in which
// threads come to them changes nothing.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "knear/scan/device/list_kernels.hpp"
#include "knear/scan/device/packing_kernels.hpp"
#include "knear/scan/device/scan_kernels.hpp"
#include "knear/scan/kernels/key_scale.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

// The rows of a block and their centroids, in device memory. A row has a number in the block, and
// as a query of the scan a place.
struct DeviceClusterRows {
  static constexpr std::uint32_t no_centroid = 0xffffffffu;

  const void* rows;  // [count x dim], of any element type, by number
  std::int64_t count, dim;
  const std::int32_t* order;  // [count] the number of the row at each place
  const double* squares;      // [count], by place, as the reference adds them up; cosine
  const float* centroids;     // [centroids x dim]
  std::int64_t centroid_count;
  std::uint32_t* nearest;  // [count], by number: the centroid whose sums the row is in
  std::uint32_t* found;    // [count], by number: the centroid that is nearest now
  double* keys;            // [count], by number: and the key of the pair
  Metric metric;
  // Places whose lists were full, and how many there are.
  int* full_count;
  std::int32_t* full;  // [count]
};

// Sums in units, modulo 2^64; weights of rows.
struct DeviceClusterSums {
  unsigned long long* coordinates;  // [centroids x dim]
  unsigned long long* weights;      // [centroids]
  unsigned long long* moved;        // rows that were moved
  const float* row_weights;         // [count], by number; nullptr: all 1
  const double* lengths;            // [count], by number; cosine
  double coordinate_unit, weight_unit;
};

// One thread per row, which adds its squares in their order.
template <class Thread, class Element>
struct MeasureLengths {
  static constexpr int threads = 128, resident_blocks = 8;
  const Element* rows;  // [count x dim]
  std::int64_t count, dim;
  double* lengths;  // [count]

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t row = t.block() * threads + t.index();
    if (row >= count) return;
    double squares = 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      const double x = to_double(rows[row * dim + i]);
      squares = rounded_sum(squares, rounded_product(x, x));
    }
    lengths[row] = sqrt(squares);
  }
};

// Half a warp per row.
template <class Thread, class Element>
struct StartFromLast {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int halves = threads / 16;
  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceClusterRows p;

  // The number of blocks of a grid.
  static std::int64_t blocks(std::int64_t count) { return (count + halves - 1) / halves; }

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t mine = t.block() * halves + t.index() / 16;
    const bool real = mine < p.count;
    const std::int64_t place = real ? mine : p.count - 1;
    const std::int64_t row = p.order[place];
    const std::uint32_t last = p.nearest[row];
    const bool known = last != DeviceClusterRows::no_centroid;
    const double key = reference_key(t, base, static_cast<const Element*>(p.rows) + row * p.dim,
                                     base.cosine ? p.squares + place : nullptr,
                                     p.centroids + (known ? last : 0) * p.dim, p.dim);
    if (!real || t.index() % 16 != 0) return;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const DeviceQuery& head = queries.heads[place];
    p.keys[row] = known ? key : infinity;
    queries.thresholds[place] =
        known ? KeyScale{p.metric, head.squares, head.constant}.threshold_for(key) : -infinity;
  }
};

// A centroid that was measured.
struct MeasuredCentroid {
  double key;
  std::uint32_t id;

  KNEAR_DEVICE void take(double other_key, std::uint32_t other) {
    if (other_key < key || (other_key == key && other < id)) key = other_key, id = other;
  }
  // The nearer of both halves of the warp, in all of its lanes.
  template <class Thread>
  KNEAR_DEVICE void take_other_half(Thread t) {
    const double other_key = t.shuffle_xor(key, 16);
    const std::uint32_t other = t.shuffle_xor(id, 16);
    take(other_key, other);
  }
};

// One warp per row.
template <class Thread, class Element>
struct ChooseNearest {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size;
  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceLists lists;
  DeviceClusterRows p;

  // The number of blocks of a grid.
  static std::int64_t blocks(std::int64_t count) { return (count + warps - 1) / warps; }

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t place = t.block() * warps + t.index() / warp_size;
    if (place >= p.count) return;  // the whole warp
    const int lane = t.index() % warp_size, count = lists.counts[place];
    if (count > lists.room || lists.lost[place] != 0) {
      if (lane == 0) p.full[t.atomic_add(p.full_count, 1)] = static_cast<std::int32_t>(place);
      return;
    }
    const std::int64_t row = p.order[place];
    const Element* const x = static_cast<const Element*>(p.rows) + row * p.dim;
    const double* const square = base.cosine ? p.squares + place : nullptr;
    const ListedQuery query = listed_query(queries, place);
    const Entry* const list = lists.entries + place * lists.room;
    const std::uint32_t last = p.nearest[row];
    // What is known of the row: the centroid before, if there was one, and the lower ends of those
    // that came since thresholds were updated.
    MeasuredCentroid best = {std::numeric_limits<double>::infinity(), last};
    if (last != DeviceClusterRows::no_centroid) best.key = p.keys[row];
    double bound = queries.thresholds[place];
    for (int at = lane; at < count; at += warp_size) {
      const double lower = interval_of(base, query.query, query.scale, list[at]).lower;
      bound = lower > bound ? lower : bound;
    }
    bound = warp_max(t, bound);
    for (int first = 0; first < count; first += warp_size) {
      const int at = first + lane;
      std::uint32_t id = 0;
      bool measured = false;
      if (at < count) {
        id = base.ids[list[at].slot];
        measured = id != last && reaches(base, query, list[at], bound);
      }
      // Two at a time, each by half of the warp; of an odd number the last one twice.
      for (unsigned left = t.ballot(measured); left != 0;) {
        const int one = lowest_bit(left);
        left &= left - 1;
        const int other = left != 0 ? lowest_bit(left) : one;
        left &= left - 1;
        const std::uint32_t mine = t.shuffle(id, lane < 16 ? one : other);
        best.take(reference_key(t, base, x, square, p.centroids + mine * p.dim, p.dim), mine);
      }
    }
    best.take_other_half(t);
    t.sync_warp();  // all have read the key from before
    if (lane == 0) p.found[row] = best.id, p.keys[row] = best.key;
  }
};

// A block takes one row after another, half a warp every sixteenth centroid.
template <class Thread, class Element>
struct MeasureAll {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size, halves = threads / 16;
  struct Shared {
    double keys[warps];
    std::uint32_t ids[warps];
  };
  static constexpr std::size_t shared_bytes = sizeof(Shared);
  DeviceBaseView base;
  DeviceClusterRows p;

  KNEAR_KERNEL void operator()(Thread t) const {
    Shared& shared = *reinterpret_cast<Shared*>(t.shared());
    const int warp = t.index() / warp_size, half = t.index() / 16, count = *p.full_count;
    for (std::int64_t i = t.block(); i < count; i += t.blocks()) {
      const std::int64_t place = p.full[i], row = p.order[place];
      const Element* const x = static_cast<const Element*>(p.rows) + row * p.dim;
      MeasuredCentroid best = {std::numeric_limits<double>::infinity(),
                               DeviceClusterRows::no_centroid};
      // Beyond the last centroid that one again.
      for (std::int64_t first = 0; first < p.centroid_count; first += halves) {
        const std::int64_t mine =
            first + half < p.centroid_count ? first + half : p.centroid_count - 1;
        best.take(reference_key(t, base, x, base.cosine ? p.squares + place : nullptr,
                                p.centroids + mine * p.dim, p.dim),
                  static_cast<std::uint32_t>(mine));
      }
      best.take_other_half(t);
      if (t.index() % warp_size == 0) shared.keys[warp] = best.key, shared.ids[warp] = best.id;
      t.sync();
      if (t.index() == 0) {
        for (int other = 1; other < warps; ++other)
          best.take(shared.keys[other], shared.ids[other]);
        p.found[row] = best.id, p.keys[row] = best.key;
      }
      t.sync();  // before the next row's keys come
    }
  }
};

// One warp per row. Of most rows nothing is to be done once the first assignment is made.
template <class Thread, class Element>
struct MoveRows {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size;
  DeviceClusterRows p;
  DeviceClusterSums sums;

  KNEAR_KERNEL void operator()(Thread t) const {
    const int lane = t.index() % warp_size;
    unsigned long long moved = 0;
    for (std::int64_t row = t.block() * warps + t.index() / warp_size; row < p.count;
         row += t.blocks() * warps) {
      const std::uint32_t before = p.nearest[row], now = p.found[row];
      if (before == now) continue;  // the whole warp
      ++moved;
      const double weight = sums.row_weights ? double{sums.row_weights[row]} : 1.0;
      add_row(t, row, before, now, weight);
      t.sync_warp();  // all have read where it was
      if (lane != 0) continue;
      const auto units = static_cast<unsigned long long>(llrint(weight / sums.weight_unit));
      if (before != DeviceClusterRows::no_centroid) t.atomic_add(&sums.weights[before], 0 - units);
      t.atomic_add(&sums.weights[now], units);
      p.nearest[row] = now;
    }
    if (lane == 0 && moved > 0) t.atomic_add(sums.moved, moved);
  }

 private:
  KNEAR_DEVICE void add_row(Thread t, std::int64_t row, std::uint32_t before, std::uint32_t now,
                            double weight) const {
    const Element* const x = static_cast<const Element*>(p.rows) + row * p.dim;
    const double length = sums.lengths ? sums.lengths[row] : 0;
    const double factor = weight / sums.coordinate_unit;
    for (std::int64_t i = t.index() % warp_size; i < p.dim; i += warp_size) {
      double value = to_double(x[i]);
      if (length != 0) value /= length;
      const auto units = static_cast<unsigned long long>(llrint(rounded_product(value, factor)));
      if (units == 0) continue;
      if (before != DeviceClusterRows::no_centroid)
        t.atomic_add(&sums.coordinates[before * p.dim + i], 0 - units);
      t.atomic_add(&sums.coordinates[now * p.dim + i], units);
    }
  }
};

}  // namespace knear::detail
