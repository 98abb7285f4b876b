// knear/cluster/centroid_scan.hpp -- the nearest of some centroids for many rows.
//
//   CentroidScan scan(centroids, Metric::l2, threads);
//   scan.assign(rows, false, nearest, keys, progress);
#pragma once
#include <cstdint>
#include <span>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/progress.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

class CentroidScan {
 public:
  // Keeps a reference to the centroids [c x dim], c >= 1, finite. `first`: the codes to begin with;
  // those of the scan before, if there was one.
  CentroidScan(MatrixView<float> centroids, Metric metric, int threads);
  CentroidScan(MatrixView<float> centroids, Metric metric, int threads, Format first);

  // nearest, keys [rows]: of each row the nearest centroid, ties to the smaller number, and the
  // order key of the pair. With `start` nearest holds centroids to begin with. Codes that leave too
  // much to be measured are changed for wider ones.
  void assign(AnyMatrixView rows, bool start, std::span<std::uint32_t> nearest,
              std::span<double> keys, const Progress& progress);
  Format format() const { return packed_.format; }

 private:
  void pack(Format format);

  BaseRows centroids_;
  Metric metric_;
  int threads_;
  Isa isa_;
  const MachinePeaks* peaks_;
  PackedBase packed_;
};

}  // namespace knear::detail
