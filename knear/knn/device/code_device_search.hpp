// knear/knn/device/code_device_search.hpp -- codes on a GPU: where they stay, and searches of them
// (scan/device/device_code_scan.hpp).
//
// Codes, scalars and ids of a segment go to the device when it is first searched there, and stay as
// long as the segment. Searches that begin with the same segment take turns.
//
// Queue: cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "knear/knn/device/code_device.hpp"
#include "knear/scan/device/device_code_scan.hpp"

namespace knear::detail {

template <class Queue>
class CodeDeviceSearch final : public CodeDevice {
 public:
  // name: of the device, by which it knows what it keeps. open: makes a queue.
  CodeDeviceSearch(std::string name, std::function<Queue()> open)
      : name_(std::move(name)), open_(std::move(open)) {}

  void scan(std::span<const Segment> segments, const CodeScanJob& job, const CodeProbes& probes,
            CodedNeighbors& out, const Progress& progress) override {
    if (segments.empty()) {
      std::fill(out.rows.begin(), out.rows.end(), CodedNeighbors::Row{});
      return;
    }
    std::vector<std::shared_ptr<CodesThere>> held;
    for (const Segment& segment : segments) held.push_back(there(segment, job));
    CodesThere& first = *held.front();
    std::vector<DeviceCodeSegment<Queue>> scanned;
    for (std::size_t s = 0; s < held.size(); ++s)
      scanned.push_back({&*held[s]->lists, segments[s].codes});
    const std::lock_guard lock(first.mutex);
    DeviceCodeScan<Queue>(*first.queue, *first.book, scanned, job).run(probes, out, progress);
    most_bytes_ = std::max(most_bytes_, first.queue->most_bytes_in_use());
  }
  std::size_t most_bytes() const override { return most_bytes_; }

 private:
  struct CodesThere {
    std::shared_ptr<Queue> queue;
    std::optional<DeviceCodeBook<Queue>> book;
    std::optional<DeviceCodedLists<Queue>> lists;
    std::mutex mutex;  // of the queue
  };

  std::shared_ptr<CodesThere> there(const Segment& segment, const CodeScanJob& job) const {
    const auto make = [&] {
      auto out = std::make_shared<CodesThere>();
      out->queue = std::make_shared<Queue>(open_());
      out->book.emplace(*out->queue, *job.book);
      out->lists.emplace(*out->queue, *segment.codes.lists, segment.codes.ids, job.threads);
      return out;
    };
    if (!segment.forms) return make();
    return std::static_pointer_cast<CodesThere>(segment.forms->form(name_, make));
  }

  const std::string name_;
  const std::function<Queue()> open_;
  std::size_t most_bytes_ = 0;
};

}  // namespace knear::detail
