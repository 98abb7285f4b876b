// knear/cluster/centroid_scan.hpp -- the nearest of some centroids for many rows.
//
//   CentroidScan scan(centroids, Metric::l2, threads);
//   scan.assign(rows, false, nearest, keys, progress);
//
// The same rows again and again, while the centroids move:
//
//   RowCodes codes(room);
//   CentroidScan(centroids, Metric::l2, threads, &codes).assign(rows, false, nearest, keys, {});
//   CentroidScan(moved, Metric::l2, threads, &codes).assign(rows, true, nearest, keys, {});
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/progress.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/scan/methods/few_rows_scan.hpp"
#include "knear/scan/packing/kept_queries.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

// The space in which centroids and the rows around them are coded: `last`, in which the rows are
// coded already, unless it is nullptr or centroids have moved away from its middle. They and the
// rows among them would be long in it, and their codes coarse.
CodingSpace space_of_centroids(const BaseRows& centroids, Metric metric, Isa isa,
                               const CodingSpace* last);

// What scans of the same rows by centroids that move leave for the next one.
class RowCodes {
 public:
  // room: bytes that may be kept, by all that share it.
  explicit RowCodes(std::atomic<std::int64_t>& room) : room_(room) {}

 private:
  friend class CentroidScan;
  std::atomic<std::int64_t>& room_;
  std::optional<CodingSpace> space_;            // once centroids have been coded
  std::map<std::int64_t, KeptQueries> blocks_;  // of rows from a number on
};

class CentroidScan {
 public:
  // Keeps references to the centroids [c x dim], c >= 1, finite, and to `codes`, of scans of the
  // same rows, in the same blocks, by as many centroids, the same metric and as many threads;
  // nullptr: nothing is kept.
  CentroidScan(MatrixView<float> centroids, Metric metric, int threads, RowCodes* codes = nullptr);

  // nearest, keys [rows]: of each row the nearest centroid, ties to the smaller number, and the
  // order key of the pair; no keys where they are not wanted. With `start` nearest holds centroids
  // to begin with. Codes that leave too much to be measured are changed for wider ones. `number`:
  // that of the first of these rows among all whose codes are kept.
  void assign(AnyMatrixView rows, bool start, std::span<std::uint32_t> nearest,
              std::span<double> keys, const Progress& progress, std::int64_t number = 0);
  // The keys of rows and the centroids `nearest`, without a scan.
  void measure(AnyMatrixView rows, std::span<const std::uint32_t> nearest,
               std::span<double> keys) const;

 private:
  CodingSpace choose_space();
  void pack(Format format);
  void assign_few(AnyMatrixView rows, std::span<std::uint32_t> nearest, std::span<double> keys,
                  const Progress& progress) const;

  BaseRows centroids_;
  Metric metric_;
  int threads_;
  Isa isa_;
  const MachinePeaks* peaks_;
  RowCodes* codes_;
  std::optional<FewRowsScan> few_;  // instead of codes
  CodingSpace space_;
  PackedBase packed_;
};

}  // namespace knear::detail
