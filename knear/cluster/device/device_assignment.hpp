// knear/cluster/device/device_assignment.hpp -- a device beside the processor that assigns rows to
// centroids and adds them up.
//
// k-means is written once (k_means.cpp), for both: of each iteration a device does the blocks of
// rows that it has memory for, and the processor the others. Both have the same answers to the bit,
// and sums of whole numbers, of which each keeps a part: those of all rows are the sums of both.
// What a device does lies behind this interface (assignment_on_device.hpp).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/cluster/k_means.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/peers.hpp"

namespace knear::detail {

// What is the same in all iterations.
struct AssignmentJob {
  std::int64_t rows, dim, centroids;  // rows: of this process
  Metric metric;
  std::span<const float> weights;  // [rows]; empty: all 1
  double coordinate_unit, weight_unit;
  int threads;
  // Called for each block, in the order in which they were given: the nearest centroid of each row
  // from `first` on, ties to the smaller number, and the order key of the pair.
  std::function<void(std::int64_t first, std::span<const std::uint32_t> nearest,
                     std::span<const double> keys)>
      done;
  // How devices of all processes add up their sums; nullptr where they do not.
  DeviceSums* between_devices = nullptr;
};

class DeviceAssignment {
 public:
  virtual ~DeviceAssignment() = default;

  // The most rows of a block.
  virtual std::int64_t block_rows() const = 0;
  // An iteration begins, with these centroids. False where the device has no memory for it: then
  // none of the following is called before the next begin(), but add_sums().
  virtual bool begin(MatrixView<float> centroids) = 0;
  // Blocks of rows that stay on the device: their first row and their number of rows, in order.
  virtual std::vector<std::pair<std::int64_t, std::int64_t>> held() const = 0;
  // Assigns the rows from `first` on, and moves them to the sums of their centroids. `nearest`:
  // those of the iteration before, or no_centroid in all rows. False where the device has no memory
  // for the rows, and then nothing is done. job.done is called now or later.
  virtual bool assign(std::int64_t first, AnyMatrixView rows,
                      std::span<const std::uint32_t> nearest) = 0;
  // The same of a block that is held.
  virtual void assign_held(std::int64_t first, std::span<const std::uint32_t> nearest) = 0;
  // Calls job.done for all blocks for which that is to be done.
  virtual void collect() = 0;
  // The end of an iteration: collects, and returns how many rows were moved. fetch: sums too.
  virtual std::int64_t finish(bool fetch) = 0;
  // Fetches the sums of this device, or those of the devices of all processes, which all call then.
  virtual void fetch_sums(bool of_all) = 0;
  // Adds what was fetched last, by finish() or fetch_sums(), of the sums of rows [count x dim] and
  // weights [count], in units, of the centroids from `first` on. Any number of threads.
  virtual void add_sums(std::int64_t first, std::int64_t count, std::int64_t* coordinates,
                        std::int64_t* weights) const = 0;

  static constexpr std::uint32_t no_centroid = 0xffffffffu;
};

// Makes a device's part of a k-means. Throws MemoryBudgetError where it has no memory for sums.
using OpenAssignment = std::function<std::unique_ptr<DeviceAssignment>(const AssignmentJob& job)>;

// For KMeansOptions::device; empty for the processor. Throws InvalidArgument for a word that names
// no device, DeviceUnavailable for a GPU that is not there, or without CUDA.
OpenAssignment open_assignment(std::string_view device);

// k_means() on a device, or on the processor where `open` is empty; peers: nullptr for one process.
KMeans k_means_on(const OpenAssignment& open, AnyMatrixView rows, std::int64_t k,
                  const KMeansOptions& options);
KMeans k_means_on(const OpenAssignment& open, const RowBlocks& rows, std::int64_t k,
                  const KMeansOptions& options);
KMeans k_means_on(const OpenAssignment& open, const RowBlocks& own_rows, Peers& peers,
                  std::int64_t k, const KMeansOptions& options,
                  DeviceSums* between_devices = nullptr);

}  // namespace knear::detail
