// knear/scan/device/list_rounds.hpp -- scans of inverted lists on a GPU, some ranks of the lists of
// each query at a time.
//
//   ListRounds<Queue> rounds(queue, base, coded, first_panel, probes, columns, most_bytes);
//   rounds.choose(0, 1);                // the nearest list of each query
//   rounds.scan(lists, 0, 16);          // 16 panels of each of these, and then, with thresholds
//   rounds.scan(lists, 16, 64);         // that are better, more
//
// Queries are coded once, by one scale. For the blocks of a round (list_work.hpp) their codes are
// put together anew, some blocks at a time where all would take too much memory. The processor lays
// out the next round while the device is at the one before.
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "knear/scan/device/list_work.hpp"
#include "knear/scan/device/packing.hpp"
#include "knear/scan/device/scan_launches.hpp"

namespace knear::detail {

template <class Queue>
class ListRounds {
  template <class T>
  using Array = typename Queue::template Array<T>;

 public:
  // coded: all queries, by place, of one scale. first_panel [lists + 1]: places in base.order.
  // probes[place] [columns]: the lists of the query there, nearest first; no_id for none, behind
  // the others. Codes of blocks take no more than a quarter of `most_bytes`, or of what is free.
  // What is given has to stay.
  ListRounds(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& coded,
             std::span<const std::int64_t> first_panel, std::vector<const Id*> probes,
             std::int64_t columns, std::size_t most_bytes)
      : queue_(queue),
        base_(base),
        coded_(coded),
        first_panel_(first_panel),
        probes_(std::move(probes)),
        columns_(columns),
        by_list_(goes_by_list(first_panel, probes_, columns)),
        most_bytes_(most_bytes) {}
  ListRounds(const ListRounds&) = delete;
  ListRounds& operator=(const ListRounds&) = delete;
  ~ListRounds() { const StreamSyncGuard waits{queue_}; }

  std::int64_t columns() const { return columns_; }

  // Takes the ranks [first, last) of the lists of each query; returns the panels of the longest of
  // these, 0 if all are empty. Throws MemoryBudgetError.
  std::int64_t choose(std::int64_t first, std::int64_t last) {
    work_ = by_list_ ? work_by_list(first_panel_, probes_, first, last)
                     : work_by_query(first_panel_, probes_, first, last);
    gathered_from_ = gathered_to_ = 0;
    if (work_.blocks() == 0) return 0;
    places_ = send(std::span<const std::int32_t>(work_.places));
    const std::int64_t fits = blocks_at_once(work_.blocks());
    if (fits > room_) {
      codes_ = {}, scales_ = {};
      codes_ = queue_.template allocate<std::uint8_t>(fits * block_bytes());
      scales_ = queue_.template allocate<double>(fits);
      room_ = fits;
    }
    return work_.longest;
  }

  // Enqueues the scan of the panels [from, to) of each of these lists.
  void scan(const DeviceLists& lists, std::int64_t from = 0,
            std::int64_t to = std::numeric_limits<int>::max()) {
    std::vector<DeviceTask> tasks = tasks_of(
        work_, from, to,
        panels_of_task(work_, from, to, resident_scan_tasks(queue_, base_, work_.most_queries)));
    if (tasks.empty()) return;
    // Those of blocks whose codes have room at once, numbered from the first of these blocks on.
    struct Part {
      std::int64_t first_block, begin, end;
    };
    std::vector<Part> parts;
    for (std::int64_t i = 0; i < std::ssize(tasks); ++i) {
      DeviceTask& task = tasks[i];
      const std::int64_t first = task.query_block / room_ * room_;
      if (parts.empty() || parts.back().first_block != first) parts.push_back({first, i, i});
      parts.back().end = i + 1;
      task.query_block -= static_cast<int>(first);
    }
    const Array<DeviceTask> there = send(std::span<const DeviceTask>(tasks));
    for (const Part& part : parts) {
      gather(part.first_block, std::min(part.first_block + room_, work_.blocks()));
      DeviceQueryView view = coded_;
      view.codes = codes_.data(), view.scales = scales_.data();
      launch_scan_tasks(queue_, base_, view, lists,
                        {there.data() + part.begin, part.end - part.begin,
                         places_.data() + part.first_block * block_queries, work_.most_queries});
    }
  }

 private:
  std::int64_t block_bytes() const { return std::int64_t{base_.slices} * block_slice_bytes; }
  std::int64_t blocks_at_once(std::int64_t blocks) {
    constexpr std::int64_t little = 4 << 20, most = 64 << 20;  // bytes; guesses
    std::size_t room = most_bytes_ / 4;
    if (blocks * block_bytes() > little) room = std::min(room, queue_.free_bytes() / 4);
    const auto bytes = static_cast<std::int64_t>(std::min<std::size_t>(room, most));
    return std::clamp<std::int64_t>(bytes / block_bytes(), 1, blocks);
  }

  void gather(std::int64_t from, std::int64_t to) {
    if (gathered_from_ == from && gathered_to_ == to) return;
    launch_gather_queries(
        queue_, {coded_.codes, coded_.scales, places_.data() + from * block_queries, to - from,
                 base_.slices, codes_.data(), scales_.data()});
    gathered_from_ = from, gathered_to_ = to;
  }

  // Through pinned memory, so that nothing here waits for the work before.
  template <class T>
  Array<T> send(std::span<const T> what) {
    constexpr std::size_t unit = 64 << 10;  // a size that the next one may use, too
    auto& from = sent_.emplace_back(
        queue_.template allocate_host<unsigned char>((what.size_bytes() + unit - 1) / unit * unit));
    std::memcpy(from.data(), what.data(), what.size_bytes());
    Array<T> out = queue_.template allocate<T>(what.size());
    queue_.upload(out.data(), reinterpret_cast<const T*>(from.data()), what.size());
    return out;
  }

  Queue& queue_;
  const DeviceBaseView base_;
  const DeviceQueryView coded_;
  const std::span<const std::int64_t> first_panel_;
  const std::vector<const Id*> probes_;
  const std::int64_t columns_;
  const bool by_list_;
  const std::size_t most_bytes_;
  // On its way, until the end.
  std::deque<typename Queue::template HostArray<unsigned char>> sent_;
  ListWork work_;
  Array<std::int32_t> places_;
  // Codes and scales of blocks, and of which blocks they are now.
  std::int64_t room_ = 0, gathered_from_ = 0, gathered_to_ = 0;
  Array<std::uint8_t> codes_;
  Array<double> scales_;
};

}  // namespace knear::detail
