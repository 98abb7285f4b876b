// knear/knn/search/device_engine.hpp -- a device beside the processor that scans rows.
//
// Every method is written once, for both: of the queries that a chunk is to be searched for the
// device answers what it can, and the processor the others. What a device does lies behind this
// interface (device_search.hpp), so that no search depends on a kind of device.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "knear/scan/device_choice.hpp"
#include "knear/scan/methods/range_scan.hpp"
#include "knear/scan/methods/threshold_heap_scan.hpp"

namespace knear::detail {

class ReportBuilder;
class SearchPosition;
struct SearchRequest;

// How the method threshold-heap goes over the rows at hand.
struct ThresholdHeapJob {
  const std::vector<double>& thresholds;  // of each query
  std::int64_t batch;                     // queries that share the width of their compressed rows
  ThresholdHeapStats& stats;
};

class DeviceEngine {
 public:
  virtual ~DeviceEngine() = default;

  // The processor's memory for `batch` queries on their way to the device and back, and what a
  // search with a memory limit takes in any case.
  virtual std::int64_t host_bytes(const SearchRequest& request, std::int64_t batch) const = 0;
  virtual std::int64_t reserved_bytes(const SearchRequest& request) const = 0;
  // Whether rows of the segment at hand that are packed for a pass lie on the device already.
  virtual bool holds(const SearchPosition& at) const = 0;
  // How many rows of the segment at hand it takes at a time.
  virtual std::int64_t most_chunk_rows(const SearchPosition& at) = 0;

  // Each answers what it can of the queries `todo` among the rows at hand, and returns the others:
  // the k nearest; what lies within a limit; the k nearest by thresholds.
  virtual std::vector<std::int64_t> nearest(SearchPosition& at, ReportBuilder& report,
                                            std::vector<std::int64_t> todo,
                                            ExactNeighbors& out) = 0;
  virtual std::vector<std::int64_t> range(SearchPosition& at, ReportBuilder& report, double limit,
                                          std::vector<std::int64_t> todo, RangeSink& sink) = 0;
  virtual std::vector<std::int64_t> threshold_heap(SearchPosition& at, ReportBuilder& report,
                                                   const ThresholdHeapJob& heap,
                                                   std::vector<std::int64_t> todo,
                                                   ExactNeighbors& out) = 0;
};

}  // namespace knear::detail
