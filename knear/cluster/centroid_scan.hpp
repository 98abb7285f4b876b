// knear/cluster/centroid_scan.hpp -- the nearest of some centroids for many rows.
//
//   CentroidScan scan(centroids, Metric::l2, threads);
//   scan.assign(rows, false, nearest, keys, progress);
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/progress.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/scan/methods/few_rows_scan.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

class CentroidScan {
 public:
  // Keeps a reference to the centroids [c x dim], c >= 1, finite. `first`: the codes to begin with,
  // where there are codes; those of the scan before, if there was one.
  CentroidScan(MatrixView<float> centroids, Metric metric, int threads);
  CentroidScan(MatrixView<float> centroids, Metric metric, int threads, Format first);

  // nearest, keys [rows]: of each row the nearest centroid, ties to the smaller number, and the
  // order key of the pair; no keys where they are not wanted. With `start` nearest holds centroids
  // to begin with. Codes that leave too much to be measured are changed for wider ones.
  void assign(AnyMatrixView rows, bool start, std::span<std::uint32_t> nearest,
              std::span<double> keys, const Progress& progress);
  // The keys of rows and the centroids `nearest`, without a scan.
  void measure(AnyMatrixView rows, std::span<const std::uint32_t> nearest,
               std::span<double> keys) const;
  Format format() const { return packed_.format; }

 private:
  void pack(Format format);
  void assign_few(AnyMatrixView rows, std::span<std::uint32_t> nearest, std::span<double> keys,
                  const Progress& progress) const;

  BaseRows centroids_;
  Metric metric_;
  int threads_;
  Isa isa_;
  const MachinePeaks* peaks_;
  std::optional<FewRowsScan> few_;  // instead of codes
  PackedBase packed_;
};

}  // namespace knear::detail
