// knear/cluster/device/assignment_on_device.hpp -- the part of k-means that a GPU does: runs the
// kernels of the scan and of k_means_kernels.hpp in order.
//
// Rows go to the device as they are, are coded there as queries of the scan, and stay as long as
// there is memory; codes are made anew when centroids have moved away from the middle of the coding
// space (space_of_centroids()). Blocks for which there is no memory go there in each iteration.
// Centroids are the base of the scan: they are coded in each iteration.
//
// A row has the key of the centroid that was nearest before as its threshold, so one scan of all
// centroids leaves a few for each row, which are measured. In the first iteration thresholds are
// found as DeviceScan finds them: from some of the centroids, then from four times as many. A row
// whose list is full is measured against all centroids: 8 bits do not tell them apart.
//
// While the device is at work on one block the processor takes what it found of the block before.
//
// Queue: cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "knear/cluster/centroid_scan.hpp"
#include "knear/cluster/device/device_assignment.hpp"
#include "knear/cluster/device/k_means_launches.hpp"
#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/scan/device/device_scan.hpp"

namespace knear::detail {

template <class Queue>
class AssignmentOnDevice final : public DeviceAssignment {
  template <class T>
  using Array = typename Queue::template Array<T>;
  template <class T>
  using HostArray = typename Queue::template HostArray<T>;

 public:
  // Rows of a block that take a launch long enough, beside what it costs to launch (a guess); and
  // the entries of a row's list, which thresholds from 128 centroids rarely fill.
  static constexpr std::int64_t usual_rows = 1 << 18, usual_room = 256;

  AssignmentOnDevice(Queue queue, const AssignmentJob& job)
      : queue_(std::move(queue)), job_(job), isa_(active_isa()), waits_at_exit_{queue_} {
    const std::int64_t slots =
        (job.centroids + 2 * panel_rows - 1) / panel_rows * panel_rows;  // at least
    room_ = static_cast<int>(std::min(usual_room, slots));
    // A quarter of what is free for the work on a block, and at most two that come and go.
    const std::int64_t each = work_bytes() + 2 * row_bytes(size_of(ElementType::f64));
    const auto fit = static_cast<std::int64_t>(queue_.free_bytes() / 4) / each;
    const std::int64_t all = (job.rows + block_queries - 1) / block_queries * block_queries;
    block_rows_ = std::clamp<std::int64_t>(std::min(fit / block_queries * block_queries, all),
                                           block_queries, usual_rows);
    const std::size_t count = job.centroids * job.dim + job.centroids + 1;
    sums_ = queue_.template allocate<unsigned long long>(count);
    if (job.between_devices) sums_of_all_ = queue_.template allocate<unsigned long long>(count - 1);
    sums_here_ = queue_.template allocate_host<unsigned long long>(count);
    queue_.fill_bytes(sums_.data(), 0, count);
    std::fill_n(sums_here_.data(), count, 0);
  }

  std::int64_t block_rows() const override { return block_rows_; }

  bool begin(MatrixView<float> centroids) override {
    ++iteration_;
    try {
      if (!work_) make_work();
      scan_.reset();  // before there is a new one
      choose_space(centroids);
      const Coding coding =
          device_coding(certified_coding(*space_), centroids.rows(), centroids.cols());
      scan_.emplace(queue_, coding, upload_rows(queue_, centroids, {}, job_.threads), job_.threads);
    } catch (const MemoryBudgetError&) {
      scan_.reset();
      return false;
    }
    return true;
  }

  std::vector<std::pair<std::int64_t, std::int64_t>> held() const override {
    std::vector<std::pair<std::int64_t, std::int64_t>> out;
    for (const auto& [first, block] : held_) out.emplace_back(first, block.count);
    return out;
  }

  bool assign(std::int64_t first, AnyMatrixView rows,
              std::span<const std::uint32_t> nearest) override {
    const auto found = held_.find(first);
    if (found != held_.end() && found->second.count == rows.rows() &&
        found->second.type == rows.type()) {
      run(found->second, nearest);
      return true;
    }
    held_.erase(first);
    Visit& visit = free_visit();
    try {
      visit.block = sent(first, rows, visit);
    } catch (const MemoryBudgetError&) {
      const StreamSyncGuard waits_for_pieces{queue_};
      return false;
    }
    if (may_stay(*visit.block)) {
      run(held_.emplace(first, std::move(*visit.block)).first->second, nearest);
      visit.block.reset();
    } else {
      run(*visit.block, nearest);
    }
    return true;
  }
  void assign_held(std::int64_t first, std::span<const std::uint32_t> nearest) override {
    run(held_.at(first), nearest);
  }

  void collect() override {
    take(visits_[next_]);  // the one that has been waiting for longer
    take(visits_[next_ ^ 1]);
  }

  std::int64_t finish(bool fetch) override {
    collect();
    const StreamSyncGuard arrived{queue_};
    const std::size_t last = sums_.size() - 1, first = fetch ? 0 : last;
    const unsigned long long before = sums_here_.data()[last];
    queue_.download(sums_here_.data() + first, sums_.data() + first, sums_.size() - first);
    queue_.wait();
    return static_cast<std::int64_t>(sums_here_.data()[last] - before);
  }
  void fetch_sums(bool of_all) override {
    const StreamSyncGuard arrived{queue_};
    const std::size_t count = sums_.size() - 1;  // without the rows that were moved
    if (of_all)
      job_.between_devices->sum(sums_.data(), sums_of_all_.data(), count, queue_.stream());
    queue_.download(sums_here_.data(), of_all ? sums_of_all_.data() : sums_.data(), count);
    if (of_all) {
      const auto mark = queue_.mark();
      job_.between_devices->wait([&] { return mark.done(); });
    }
    queue_.wait();
  }

  void add_sums(std::int64_t first, std::int64_t count, std::int64_t* coordinates,
                std::int64_t* weights) const override {
    const auto add = [&](std::int64_t* to, std::int64_t from, std::int64_t some) {
      for (std::int64_t i = 0; i < some; ++i)
        to[i] += static_cast<std::int64_t>(sums_here_.data()[from + i]);
    };
    add(coordinates, first * job_.dim, count * job_.dim);
    add(weights, job_.centroids * job_.dim + first, count);
  }

 private:
  // Rows on the device.
  struct Block {
    std::int64_t first = 0, count = 0;
    ElementType type = ElementType::f32;
    Array<unsigned char> rows;
    Array<float> weights;
    Array<double> lengths;  // cosine
    // Their codes as queries, by place, once they are made in the space of that number.
    int space = -1;
    Array<std::uint8_t> codes;
    Array<double> scales, thresholds, squares;
    Array<DeviceQuery> heads;
    Array<std::int32_t> order;
    // The centroids whose sums they are in, as of the iteration.
    int iteration = -1;
    Array<std::uint32_t> nearest;
  };
  // A block on which the device is at work, or whose results wait to be taken.
  struct Visit {
    std::int64_t first = 0, count = 0;  // count 0: none
    std::optional<Block> block;         // one that goes when it is done
    std::optional<PiecewiseUpload<Queue>> pieces;
    typename Queue::Mark done;
  };
  // What the work on a block takes beside it, one block at a time; and pinned memory for results.
  struct Work {
    Array<QuerySize> sizes;
    Array<float> largest;
    Array<Entry> entries;
    Array<double> list_keys;  // of as many rows as lists are updated by blocks
    Array<int> counts;  // of entries [rows], of lists that were full [rows], and of places there
    Array<std::int32_t> full;
    Array<std::uint32_t> found;
    Array<double> keys;
    HostArray<std::uint32_t> found_on_host[2];
    HostArray<double> keys_on_host[2];
  };

  bool cosine() const { return traits_of(job_.metric).unit_rows; }
  std::int64_t slices() const { return slices_of((job_.dim + 3) / 4); }
  // Bytes of the device for each row: of Work and of a Block.
  std::int64_t work_bytes() const {
    return room_ * std::int64_t{sizeof(Entry)} + std::int64_t{sizeof(QuerySize)} + 4 + 8 + 4 + 12;
  }
  std::int64_t row_bytes(std::int64_t element_bytes) const {
    return job_.dim * element_bytes + slices() * slice_bytes + std::int64_t{sizeof(DeviceQuery)} +
           8 + 8 + 4 + 4 + (cosine() ? 16 : 0) + (job_.weights.empty() ? 0 : 4);
  }

  void make_work() {
    const std::size_t count = block_rows_;
    Work work;
    work.sizes = queue_.template allocate<QuerySize>(count);
    work.largest = queue_.template allocate<float>(count);
    work.entries = queue_.template allocate<Entry>(count * static_cast<std::size_t>(room_));
    std::int64_t few = 0;
    while (few < block_rows_ && updates_by_blocks(queue_, few + 1, 1)) ++few;
    work.list_keys = queue_.template allocate<double>(few * room_);
    work.counts = queue_.template allocate<int>(2 * count + 1);
    work.full = queue_.template allocate<std::int32_t>(count);
    work.found = queue_.template allocate<std::uint32_t>(count);
    work.keys = queue_.template allocate<double>(count);
    for (int i = 0; i < 2; ++i) {
      work.found_on_host[i] = queue_.template allocate_host<std::uint32_t>(count);
      work.keys_on_host[i] = queue_.template allocate_host<double>(count);
    }
    work_.emplace(std::move(work));
  }

  // That of the rows, or another one if they are to be coded anew. To look at all centroids is work
  // of the processor for which the device waits, and they move less and less: so that is not done
  // in each iteration.
  void choose_space(MatrixView<float> centroids) {
    if (space_ && !std::has_single_bit(static_cast<unsigned>(iteration_))) return;
    CodingSpace space =
        space_of_centroids(centroids, job_.metric, isa_, space_ ? &*space_ : nullptr);
    if (space_ && space.mean == space_->mean) return;
    space_.reset();
    Array<double> mean = queue_.template allocate<double>(space.mean.size());
    const StreamSyncGuard sent{queue_};
    queue_.upload(mean.data(), space.mean.data(), space.mean.size());
    queue_.wait();
    mean_ = std::move(mean);
    space_ = std::move(space);
    ++space_number_;
  }

  // A block that comes and goes leaves room for another one and for the centroids.
  bool may_stay(const Block& block) const {
    const std::int64_t centroid_bytes =
        job_.centroids * (job_.dim * 4 + device_code_bytes(job_.dim) + 16);
    return static_cast<std::int64_t>(queue_.free_bytes()) >=
           2 * block_rows_ * row_bytes(size_of(block.type)) + centroid_bytes;
  }

  // The rows on the device; enqueued. All memory is taken before.
  Block sent(std::int64_t first, AnyMatrixView rows, Visit& visit) {
    const std::size_t count = rows.rows();
    const std::int64_t bytes = job_.dim * size_of(rows.type());
    Block out;
    out.first = first, out.count = rows.rows(), out.type = rows.type();
    out.rows = queue_.template allocate<unsigned char>(count * static_cast<std::size_t>(bytes));
    out.codes =
        queue_.template allocate<std::uint8_t>(query_blocks(out) * slices() * block_slice_bytes);
    out.scales = queue_.template allocate<double>(query_blocks(out));
    out.thresholds = queue_.template allocate<double>(count);
    out.heads = queue_.template allocate<DeviceQuery>(count);
    out.order = queue_.template allocate<std::int32_t>(count);
    out.nearest = queue_.template allocate<std::uint32_t>(count);
    if (cosine()) {
      out.squares = queue_.template allocate<double>(count);
      out.lengths = queue_.template allocate<double>(count);
    }
    if (!job_.weights.empty()) out.weights = queue_.template allocate<float>(count);
    visit.pieces.emplace(queue_, job_.threads, usual_piece, out.count * (bytes + 4), bytes);
    visit.pieces->send(out.rows.data(), out.count, bytes,
                       [&](std::int64_t begin, std::int64_t end, unsigned char* to) {
                         for (std::int64_t i = begin; i < end; ++i, to += bytes)
                           std::memcpy(to, rows.row(i), bytes);
                       });
    if (!job_.weights.empty())
      visit.pieces->send(reinterpret_cast<unsigned char*>(out.weights.data()), out.count, 4,
                         [&](std::int64_t begin, std::int64_t end, unsigned char* to) {
                           std::memcpy(to, job_.weights.data() + first + begin, 4 * (end - begin));
                         });
    if (cosine())
      launch_measure_lengths(queue_, out.rows.data(), out.type, out.count, job_.dim,
                             out.lengths.data());
    return out;
  }
  static std::int64_t query_blocks(const Block& block) {
    return (block.count + block_queries - 1) / block_queries;
  }

  void code(Block& block) {
    DeviceQueryCoding coding = {};
    coding.queries = block.rows.data(), coding.count = block.count, coding.dim = job_.dim;
    coding.slices = static_cast<int>(slices()), coding.metric = job_.metric;
    if (!space_->mean.empty()) {
      coding.mean = mean_.data();
      coding.mean_squares = dot(space_->mean.data(), space_->mean.data(), job_.dim);
    }
    coding.slack = space_->slack, coding.row_offset = 128;
    coding.sizes = work_->sizes.data(), coding.largest = work_->largest.data();
    coding.order = block.order.data(), coding.codes = block.codes.data();
    coding.scales = block.scales.data(), coding.heads = block.heads.data();
    coding.thresholds = block.thresholds.data();
    if (cosine()) coding.added_square = block.squares.data();
    launch_measure_queries(queue_, coding, block.type);
    launch_order_queries(queue_, coding);
    launch_encode_queries(queue_, coding, block.type);
    block.space = space_number_;
  }

  // Enqueues the work of a block, as the next visit. Takes no memory.
  void run(Block& block, std::span<const std::uint32_t> nearest) {
    Visit& visit = free_visit();
    Work& work = *work_;
    const std::size_t count = block.count;
    visit.first = block.first, visit.count = block.count;
    if (block.space != space_number_) code(block);
    const bool first_time = nearest.front() == no_centroid;
    if (first_time)
      queue_.fill_bytes(block.nearest.data(), 0xff, count);
    else if (block.iteration != iteration_ - 1)  // the processor may have assigned them since
      queue_.upload(block.nearest.data(), nearest.data(), count);
    block.iteration = iteration_;
    int* const counts = work.counts.data();
    queue_.fill_bytes(counts, 0, 2 * static_cast<std::size_t>(block_rows_) + 1);

    const DeviceBaseView base = scan_->base();
    const DeviceQueryView queries = {block.codes.data(),
                                     block.scales.data(),
                                     block.heads.data(),
                                     block.thresholds.data(),
                                     block.count,
                                     query_blocks(block),
                                     false};
    const DeviceLists lists = {work.entries.data(), work.list_keys.data(), counts,
                               counts + block_rows_, room_};
    const DeviceClusterRows rows = {
        block.rows.data(),  block.count,          job_.dim,
        block.order.data(), block.squares.data(), static_cast<const float*>(scan_->rows().data()),
        job_.centroids,     block.nearest.data(), work.found.data(),
        work.keys.data(),   job_.metric,          counts + 2 * block_rows_,
        work.full.data()};
    launch_start_from_last(queue_, base, queries, rows, block.type);
    constexpr std::int64_t first_panels = 4, growth = 4;
    for (std::int64_t begin = 0, end = 0; begin < base.panels; begin = end) {
      end = first_time ? std::min(begin == 0 ? first_panels : growth * begin, base.panels)
                       : base.panels;
      launch_scan(queue_, base, queries, lists, begin, end);
      if (end < base.panels) launch_update(queue_, base, queries, lists, 1);
    }
    launch_choose_nearest(queue_, base, queries, lists, rows, block.type);
    const std::int64_t coordinates = job_.centroids * job_.dim;
    const DeviceClusterSums sums = {sums_.data(),
                                    sums_.data() + coordinates,
                                    sums_.data() + coordinates + job_.centroids,
                                    block.weights.data(),
                                    block.lengths.data(),
                                    job_.coordinate_unit,
                                    job_.weight_unit};
    launch_move_rows(queue_, rows, sums, block.type);
    queue_.download(work.found_on_host[next_].data(), work.found.data(), count);
    queue_.download(work.keys_on_host[next_].data(), work.keys.data(), count);
    visit.done = queue_.mark();
    next_ ^= 1;
    take(visits_[next_]);  // while the device is at work on this one
  }

  // The visit that comes next, whose results have been taken.
  Visit& free_visit() { return visits_[next_]; }
  void take(Visit& visit) {
    if (visit.count == 0) return;
    visit.done.wait();
    const std::size_t count = visit.count, at = &visit - visits_;
    job_.done(visit.first, {work_->found_on_host[at].data(), count},
              {work_->keys_on_host[at].data(), count});
    visit.count = 0;
    visit.block.reset(), visit.pieces.reset();
  }

  Queue queue_;
  const AssignmentJob job_;
  const Isa isa_;
  int room_ = 0;  // entries of a list
  std::int64_t block_rows_ = 0;
  int iteration_ = -1, space_number_ = -1;
  std::optional<CodingSpace> space_;  // of rows and centroids
  Array<double> mean_;                // of the space
  std::optional<DeviceScan<Queue>> scan_;
  std::optional<Work> work_;
  std::map<std::int64_t, Block> held_;  // by their first row
  Visit visits_[2];
  int next_ = 0;  // of the visits
  // Of coordinates, weights, and the rows that were moved so far. Those of all processes apart:
  // rows that move are taken out of own ones.
  Array<unsigned long long> sums_, sums_of_all_;
  HostArray<unsigned long long> sums_here_;
  const StreamSyncGuard<Queue> waits_at_exit_;  // before any of the memory goes
};

// open: makes the queue, when it is first wanted.
template <class Queue>
OpenAssignment assignment_on(std::function<Queue()> open) {
  return [open = std::move(open), queue = std::make_shared<std::optional<Queue>>()](
             const AssignmentJob& job) -> std::unique_ptr<DeviceAssignment> {
    if (!*queue) queue->emplace(open());
    return std::make_unique<AssignmentOnDevice<Queue>>(**queue, job);
  };
}

}  // namespace knear::detail
