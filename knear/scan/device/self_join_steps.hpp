// knear/scan/device/self_join_steps.hpp -- the steps of a self-join on a GPU that scores each pair
// of rows once.
//
//   SelfJoinSteps<Queue> steps(queue, base);
//   launch queries in the order of steps.base(), a list and a threshold for each ...
//   steps.scan(view, lists, first_panels, growth, step);
//
// Four panels of rows are a block of queries, and the blocks stand in a ring, in a random order. In
// the first step each block is scored with those beside it on either side, so that every row has a
// threshold. From then on it is scored with those that come next in the ring, half way round: pairs
// go to the list of their query, of their row or of both, so that each row has met as many rows
// behind itself as before, and all rows when the ring is closed. Distances in the ring grow as
// steps of other searches do.
//
// All rows have lists at once. Queue: cuda::Queue, or HostQueue of the tests.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/scan/device/packing.hpp"
#include "knear/scan/device/self_join_launches.hpp"

namespace knear::detail {

template <class Queue>
class SelfJoinSteps {
  template <class T>
  using Array = typename Queue::template Array<T>;
  static constexpr std::int64_t block_panels = block_queries / panel_rows;

 public:
  // Whether rows of so many columns make a ring in which the first step, of so many panels, is not
  // all; and a multiprocessor has two blocks of the scan, as of other scans.
  static bool fits(const Queue& queue, const DeviceBaseView& base, std::int64_t dim,
                   std::int64_t first_panels) {
    // Sums of more columns, with what is added to them, might not be in 32 bits.
    constexpr std::int64_t most_dim = 8192;
    constexpr std::size_t of_system = 1 << 10;  // that each block takes
    const std::size_t block =
        shared_bytes_of_pairs<typename Queue::Thread>(base.integer, base.slices) + of_system;
    return base.panels % block_panels == 0 && dim <= most_dim &&
           2 * block <= queue.shared_memory() &&
           distance_of(first_panels) < (base.panels / block_panels - 1) / 2;
  }
  // base: codes of panels as device_coding() lays them out; fits(). What is given has to stay.
  // Throws MemoryBudgetError.
  SelfJoinSteps(Queue& queue, const DeviceBaseView& base) : queue_(queue), base_(base) {
    const std::size_t panels = base.panels;
    std::vector<std::uint32_t> blocks(panels / block_panels), ring;
    std::iota(blocks.begin(), blocks.end(), 0u);
    Random random(0x6b6e656172);  // any seed: answers do not depend on it
    for (std::uint64_t i = blocks.size(); i > 1; --i)
      std::swap(blocks[i - 1], blocks[random.below(i)]);
    ring.reserve(3 * panels);
    for (int round = 0; round < 3; ++round)
      for (const std::uint32_t block : blocks)
        for (std::uint32_t i = 0; i < block_panels; ++i) ring.push_back(block * block_panels + i);
    const StreamSyncGuard waits_at_exit{queue};
    ring_ = queue.template allocate<std::uint32_t>(ring.size());
    queue.upload(ring_.data(), ring.data(), ring.size());
    base_.order = ring_.data();
    reach_ = queue.template allocate<std::int32_t>(panels * panel_rows);
    join_ = {static_cast<int>(base.panels), false, reach_.data(), nullptr, nullptr};
    if (!base.integer) {
      tops_ = queue.template allocate<float>(panels * panel_rows);
      most_ = queue.template allocate<float>(blocks.size());
      join_.tops = tops_.data(), join_.most = most_.data();
    }
    queue.fill_bytes(reach_.data(), 0, panels * panel_rows);
    queue.wait();
  }

  // The number of queries: of places in the ring, of which some have no row.
  std::int64_t queries() const { return base_.panels * panel_rows; }
  // The row of each place, -1 for none: rows [queries()], in device memory. Enqueued.
  void place_rows(std::int32_t* rows) { launch_place_rows(queue_, base_, queries(), rows); }

  // All steps. view: the rows, coded as queries, by place. step(work, scan): calls scan(), and
  // brings thresholds up to date; work: panels that each query has met by it.
  template <class Step>
  void scan(const DeviceQueryView& view, const DeviceLists& lists, std::int64_t first_panels,
            std::int64_t growth, Step step) {
    const std::int64_t blocks = base_.panels / block_panels, last = (blocks - 1) / 2,
                       ring = base_.panels;
    std::int64_t done = distance_of(first_panels);
    if (!base_.integer) launch_find_tops(queue_, base_, view, join_);
    step(block_panels * (2 * done + 1), [&] {
      join_.both = false;
      launch_scan_pairs(queue_, base_, view, lists, join_, ring - block_panels * done,
                        ring + block_panels * (done + 1));
    });
    join_.both = true;
    while (done < last) {
      const std::int64_t next =
          std::min(last, done + std::max<std::int64_t>(1, (growth - 1) * (2 * done + 1) / 2));
      const bool across = next == last && blocks % 2 == 0;  // half way round, from one side
      step(block_panels * (2 * (next - done) + across), [&] {
        launch_find_reach(queue_, base_, view, join_);
        launch_scan_pairs(queue_, base_, view, lists, join_, ring + block_panels * (done + 1),
                          ring + block_panels * (next + 1));
        if (across) {
          DeviceQueryView first_half = view;
          first_half.blocks = blocks / 2;
          first_half.count = first_half.blocks * block_queries;
          launch_scan_pairs(queue_, base_, first_half, lists, join_,
                            ring + block_panels * (blocks / 2),
                            ring + block_panels * (blocks / 2 + 1));
        }
        launch_score_pairs(queue_, base_, view, lists);
      });
      done = next;
    }
  }

  const DeviceBaseView& base() const { return base_; }

 private:
  // In the first step a block meets those up to so far from it.
  static std::int64_t distance_of(std::int64_t first_panels) {
    return std::max<std::int64_t>(1, (first_panels / block_panels + 1) / 2);
  }

  Queue& queue_;
  DeviceBaseView base_;
  SelfJoinPairs join_ = {};
  Array<std::uint32_t> ring_;
  Array<std::int32_t> reach_;
  Array<float> tops_, most_;
};

}  // namespace knear::detail
