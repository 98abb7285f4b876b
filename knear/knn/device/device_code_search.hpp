// knear/knn/device/device_code_search.hpp -- a device beside the processor that scans codes.
//
// An index searches codes by this interface where it is asked for a device, so that it depends on
// no kind of device (queue_code_search.hpp has what lies behind it).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "knear/knn/rows/device_copies.hpp"
#include "knear/scan/methods/code_scan.hpp"

namespace knear::detail {

class DeviceCodeSearch {
 public:
  struct Segment {
    CodeSegment codes;
    // Where the device keeps codes and ids for searches to come; nullptr: they go there for this
    // search alone.
    DeviceCopies* forms;
    std::int64_t shard = 0, shards = 1;  // as SearchSegment has them
  };

  virtual ~DeviceCodeSearch() = default;
  // As scan_codes(), to the bit. Throws MemoryBudgetError where the device has no memory for the
  // codes, or for a query.
  virtual void scan(std::span<const Segment> segments, const CodeScanJob& job,
                    const CodeProbes& probes, CodedNeighbors& out, const Progress& progress) = 0;
  // The most memory of the device that its searches had at once.
  virtual std::size_t most_bytes() const = 0;
  // Between how many replicas of the codes it divides queries; 0: it is one device.
  virtual std::int64_t replicas() const { return 0; }
};

}  // namespace knear::detail
