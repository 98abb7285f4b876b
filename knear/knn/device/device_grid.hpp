// knear/knn/device/device_grid.hpp -- one search by several GPUs: which of them has which rows and
// which queries, and what becomes of their answers.
//
//   DeviceGrid grid({{0, 1, 2, 3}}, 2);   // cuda:0 and cuda:2 have shard 0, cuda:1 and cuda:3
//   shard 1
//
// Johnson, Douze and Jégou (2017), section 5.4. Rows of an index in shards go to the GPUs in the
// order in which these are named, in turn where there are fewer; where there are several times as
// many, each time they make a replica of all rows, and the queries of a batch are divided between
// replicas by the speed that these had before (knn/device/replica_speeds.hpp). Rows that are in no
// shards are one. What GPUs with other rows find is merged on float64 keys, so that the answer does
// not depend on how many there are. Each GPU is one thread's, of the caller's; with fewer threads
// some GPUs wait for others.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "knear/knn/device/device_code_search.hpp"
#include "knear/knn/device/replica_speeds.hpp"
#include "knear/knn/lists/list_search.hpp"
#include "knear/knn/report.hpp"
#include "knear/knn/search/joined_reports.hpp"
#include "knear/scan/device_choice.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear::detail {

class DeviceGrid {
 public:
  // Throws InvalidArgument where some of the GPUs would have nothing to do: more than there are
  // shards, but no multiple of them.
  DeviceGrid(Devices devices, std::int64_t shards);

  // Into which the queries are divided.
  std::int64_t replicas() const { return replicas_; }
  // GPUs of a replica, and which of them has a shard.
  std::int64_t columns() const { return columns_; }
  std::int64_t column_of(std::int64_t shard) const { return shard % columns_; }
  int gpu(std::int64_t replica, std::int64_t column) const {
    return devices_.gpus[replica * columns_ + column];
  }
  std::int64_t size() const { return replicas_ * columns_; }

  // Where the queries of each replica begin, and where the last ends. So few that they would leave
  // a block of the scan half empty are fewer replicas', in turn from one call to the next; a
  // replica that has none begins where the next one does.
  std::vector<std::int64_t> split(std::int64_t queries) const;
  // How long each replica took for them.
  void note(const std::vector<std::int64_t>& begin, const std::vector<double>& seconds) const;

 private:
  const Devices devices_;
  const std::int64_t columns_, replicas_;
  ReplicaSpeeds& speeds_;  // of these replicas, in this process
};

// Calls body(part) for each of so many parts of a search, which go on at the same time, on at most
// so many threads of their own. Throws what the first one that fails does, once all have ended.
void run_parts(int threads, std::int64_t parts, const std::function<void(std::int64_t)>& body);

// As nearest_in_segments() and within_segments(), by several GPUs. found: the best of rows
// elsewhere, as many columns as were announced.
ExactNeighbors nearest_on_several(const Devices& devices, const SearchRequest& request,
                                  ExactNeighbors found, KnnReport* report);
RangeLists within_on_several(const Devices& devices, const SearchRequest& request, double radius,
                             KnnReport* report);

// Inverted lists on several GPUs.
class DividedListSearch final : public ProbedSearch {
 public:
  DividedListSearch(const SearchRequest& request, const Devices& devices, std::int64_t more_bytes);
  ~DividedListSearch() override;

  void nearest(MatrixView<Id> probes, ExactNeighbors& found,
               std::span<const std::int64_t> which = {}) override;
  void within(MatrixView<Id> probes, double limit, RangeLists& found) override;
  KnnReport report() override;

 private:
  struct Part;

  const SearchRequest& request_;
  const DeviceGrid grid_;
  std::unique_ptr<SharedProgress> progress_;
  std::vector<std::unique_ptr<Part>> parts_;  // replica by replica
  // Of each column what was found among its rows [queries x k of these]; unused where there is one.
  std::vector<ExactNeighbors> found_;
};

// Codes on several GPUs.
class DividedCodeSearch final : public DeviceCodeSearch {
 public:
  explicit DividedCodeSearch(const Devices& devices) : devices_(devices) {}

  void scan(std::span<const Segment> segments, const CodeScanJob& job, const CodeProbes& probes,
            CodedNeighbors& out, const Progress& progress) override;
  std::size_t most_bytes() const override { return most_bytes_; }
  std::int64_t replicas() const override { return replicas_; }

 private:
  const Devices devices_;
  std::size_t most_bytes_ = 0;
  std::int64_t replicas_ = 1;
};

}  // namespace knear::detail
