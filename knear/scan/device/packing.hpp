// knear/scan/device/packing.hpp -- rows copied to a device, and encoded there.
//
//   DeviceRowData<Queue> rows = upload_rows(queue, base, subset, threads);
//   DeviceCodes<Queue> codes = encode_rows(queue, coding, rows);
//
// Only the rows go over the bus, as they are: encoding them takes the device a fraction of the time
// of the copy.
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/scan/device/packing_launches.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

// Declared after host memory that copies read or write: when that goes out of scope no copy is in
// flight, whatever is thrown.
template <class Queue>
struct StreamSyncGuard {
  Queue& queue;
  ~StreamSyncGuard() {
    try {
      queue.wait();
    } catch (...) {  // the next call reports it
    }
  }
};
template <class Queue>
StreamSyncGuard(Queue&) -> StreamSyncGuard<Queue>;

// Rows [count x dim] in device memory, contiguous: our own copy, or the caller's.
template <class Queue>
struct DeviceRowData {
  typename Queue::template Array<unsigned char> own = {};
  const void* borrowed = nullptr;
  ElementType type = ElementType::f32;
  std::int64_t count = 0, dim = 0;

  const void* data() const { return borrowed ? borrowed : own.data(); }
};

// In which rows and queries are copied to a device.
inline constexpr std::int64_t usual_piece = 4 << 20;

// Copies to the device through pinned memory, in pieces: while one is being copied another is
// filled. All of it must live until the queue has done the copies.
template <class Queue>
class PiecewiseUpload {
 public:
  // piece: bytes of a buffer, unless an item has more; total: bytes that will be sent in all; item:
  // of the largest one.
  PiecewiseUpload(Queue& queue, int threads, std::int64_t piece, std::int64_t total,
                  std::int64_t item)
      : queue_(queue),
        threads_(threads),
        limit_(std::max(piece, item)),
        size_(size_of_buffer(piece, total, item)),
        used_(limit_) {}

  // Bytes of a buffer: a size that the next search will use, too.
  static std::int64_t size_of_buffer(std::int64_t piece, std::int64_t total, std::int64_t item) {
    const std::int64_t limit = std::max(piece, item);
    return std::min(limit, total) <= smallest ? smallest : limit;
  }

  // Marks the end of what is sent; wait() returns when all of it is there, whatever else the queue
  // was given after close().
  void close() {
    if (buffers_[now_].size() > 0) closed_ = queue_.mark();
  }
  void wait() { closed_.wait(); }

  // Items [0, count) of so many bytes each. fill(begin, end, out) writes some of them, from several
  // threads at once: they may be anywhere in memory. Throws Cancelled, and MemoryBudgetError where
  // the system has no pinned memory.
  template <class Fill>
  void send(unsigned char* to, std::int64_t count, std::int64_t bytes, Fill fill) {
    for (std::int64_t begin = 0, some; begin < count; begin += some) {
      if (limit_ - used_ < bytes) turn();
      some = std::min(count - begin, (limit_ - used_) / bytes);
      unsigned char* const from = buffers_[now_].data() + used_;
      // A task fills 64 KiB or one item.
      const std::int64_t each = std::clamp<std::int64_t>((64 << 10) / bytes, 1, some);
      parallel_for(threads_, (some + each - 1) / each, [&](std::int64_t task) {
        const std::int64_t first = task * each, last = std::min(some, first + each);
        fill(begin + first, begin + last, from + first * bytes);
      });
      queue_.upload(to + begin * bytes, from, some * bytes);
      used_ += some * bytes;
    }
  }

 private:
  static constexpr std::int64_t smallest = 64 << 10;

  // To the other buffer, once what was in it has been copied.
  void turn() {
    if (buffers_[now_].size() > 0) sent_[now_] = queue_.mark();
    now_ ^= 1, used_ = 0;
    sent_[now_].wait();
    if (buffers_[now_].size() == 0)
      buffers_[now_] = queue_.template allocate_host<unsigned char>(size_);
  }

  Queue& queue_;
  const int threads_;
  const std::int64_t limit_, size_;  // bytes of a buffer that are used, and that it has
  std::int64_t used_;                // of the present one
  int now_ = 1;
  typename Queue::template HostArray<unsigned char> buffers_[2];
  typename Queue::Mark sent_[2], closed_;
};

// All rows, or those of `subset` (ascending) if that is not empty. Returns when they are there.
// piece: bytes copied at a time, through pinned memory. Throws MemoryBudgetError if they do not fit
// the queue's budget, Cancelled.
template <class Queue>
DeviceRowData<Queue> upload_rows(Queue& queue, const BaseRows& rows,
                                 std::span<const std::uint32_t> subset, int threads,
                                 std::int64_t piece = usual_piece) {
  const std::int64_t count = subset.empty() ? rows.rows() : std::ssize(subset);
  const std::int64_t bytes = rows.row_bytes();
  DeviceRowData<Queue> out;
  out.type = rows.type(), out.count = count, out.dim = rows.cols();
  out.own = queue.template allocate<unsigned char>(count * bytes);
  PiecewiseUpload<Queue> pieces(queue, threads, piece, count * bytes, bytes);
  const StreamSyncGuard waits_at_exit{queue};
  pieces.send(out.own.data(), count, bytes,
              [&](std::int64_t begin, std::int64_t end, unsigned char* to) {
                std::vector<std::byte> scratch(rows.scratch_bytes());
                for (std::int64_t i = begin; i < end; ++i, to += bytes) {
                  const std::int64_t row = subset.empty() ? i : std::int64_t{subset[i]};
                  std::memcpy(to, rows.row(row, scratch.data()), bytes);
                }
              });
  queue.wait();
  return out;
}

// Copies of `count` rows, evenly spaced, in the memory of the processor. Requires
// 1 <= count <= rows.count.
template <class Queue>
AnyMatrix sample_rows(Queue& queue, const DeviceRowData<Queue>& rows, std::int64_t count) {
  AnyMatrix out(rows.type, count, rows.dim);
  const std::int64_t row_bytes = rows.dim * size_of(rows.type);
  // Copied in pieces: a search within little memory has little for this.
  const std::int64_t together = std::clamp<std::int64_t>((64 << 10) / row_bytes, 1, count);
  auto taken = queue.template allocate<unsigned char>(together * row_bytes);
  for (std::int64_t first = 0; first < count; first += together) {
    const std::int64_t some = std::min(together, count - first);
    launch_sample(queue, rows.data(), rows.count, row_bytes, count, first, some, taken.data());
    queue.download(static_cast<unsigned char*>(out.row(first)), taken.data(), some * row_bytes);
  }
  queue.wait();
  return out;
}
// Rows [begin, begin + count).
template <class Queue>
AnyMatrix download_rows(Queue& queue, const DeviceRowData<Queue>& rows, std::int64_t begin,
                        std::int64_t count) {
  AnyMatrix out(rows.type, count, rows.dim);
  const std::int64_t row_bytes = rows.dim * size_of(rows.type);
  if (count == 0) return out;
  queue.download(static_cast<unsigned char*>(out.row(0)),
                 static_cast<const unsigned char*>(rows.data()) + begin * row_bytes,
                 count * row_bytes);
  queue.wait();
  return out;
}

// As find_value_range() of value_range.hpp, for rows that are on the device. Throws InvalidArgument
// likewise.
template <class Queue>
ValueRange value_range_of_rows(Queue& queue, const DeviceRowData<Queue>& rows, Metric metric,
                               std::string_view argument) {
  ValueRange out;
  if (rows.count == 0) return out;
  const auto check_on_host = [&](std::int64_t begin, std::int64_t count) {
    const AnyMatrix some = download_rows(queue, rows, begin, count);
    find_value_range(some.view(), metric, argument, 1, begin);
  };
  // The kernel looks at elements, and rows of f64 may be too short for cosine as a whole.
  if (traits_of(metric).unit_rows && rows.type == ElementType::f64) {
    const std::int64_t together = std::max<std::int64_t>(1, (8 << 20) / rows.dim);
    for (std::int64_t row = 0; row < rows.count; row += together)
      check_on_host(row, std::min(together, rows.count - row));
  }
  RowsFound found = {};
  auto on_device = queue.template allocate<RowsFound>(1);
  queue.fill_bytes(on_device.data(), 0, 1);
  launch_find_value_range(queue, rows.data(), rows.type, rows.count * rows.dim, on_device.data());
  queue.download(&found, on_device.data(), 1);
  queue.wait();
  if (found.not_finite > 0)
    check_on_host((rows.count * rows.dim - static_cast<std::int64_t>(found.not_finite)) / rows.dim,
                  1);
  out.integer = found.not_whole == 0;
  if (out.integer)
    out.low = 512 - static_cast<int>(found.below), out.high = static_cast<int>(found.high) - 512;
  return out;
}

// Bytes of codes of a tile on a device: those of 4,096 rows, which one block sorts.
inline std::int64_t device_tile_bytes(std::int64_t dim) {
  return 128 * ((dim + 3) / 4) * panel_step_bytes;
}
// The coding of rows on a device: whole numbers, or int8 codes with certified errors in `space`.
inline Coding device_coding(Coding coding, std::int64_t rows, std::int64_t dim) {
  const bool usual = coding.tile_bytes == 0;
  if (usual) coding.tile_bytes = device_tile_bytes(dim);
  coding.lay_out(rows, dim);
  // Tiles of whole blocks of queries, as a self-join wants them (self_join_steps.hpp): as many as
  // leave the fewest slots without a row. Of fewer rows a search takes as long as its launches.
  constexpr std::int64_t least_rows = 1024;
  if (!usual || rows < least_rows) return coding;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  const std::int64_t fewest = coding.tiles;
  for (std::int64_t tiles = fewest; tiles < fewest + 16; ++tiles) {
    const std::int64_t tile_rows = (rows + tiles - 1) / tiles,
                       blocks = (tile_rows + block_queries - 1) / block_queries;
    if (tiles * blocks >= least) continue;
    least = tiles * blocks;
    coding.tiles = tiles, coding.panels_per_tile = blocks * (block_queries / panel_rows);
  }
  return coding;
}
// The same of rows whose slots are laid out by somebody else.
inline Coding device_coding_of_panels(Coding coding, std::int64_t rows, std::int64_t dim,
                                      std::int64_t panels) {
  coding.lay_out(rows, dim);
  coding.tiles = panels, coding.panels_per_tile = 1;
  return coding;
}
inline Coding certified_coding(CodingSpace space) {
  Coding out;
  out.space = std::move(space);
  return out;
}

// The codes of a base in device memory. [slots] are panels * 32.
template <class Queue>
struct DeviceCodes {
  template <class T>
  using Array = typename Queue::template Array<T>;
  Array<std::uint8_t> codes;     // as code_layout.hpp
  Array<PanelHead> heads;        // [panels], certified
  Array<PanelTest> tests;        // [panels], certified
  Array<float> bias;             // [slots], certified
  Array<std::uint32_t> squares;  // [slots], whole numbers
  Array<std::int32_t> sums;      // [slots], whole numbers
  Array<int> ids;                // [slots], -1: no row
};
// Bytes of device memory per row: those of its codes, and of what making them takes.
inline std::int64_t device_code_bytes(std::int64_t dim) {
  return slices_of((dim + 3) / 4) * slice_bytes + 17;
}

// What a coding says of certified codes; `mean` must live until they are made.
template <class Queue>
DevicePacking certified_packing(Queue& queue, const Coding& coding, DeviceCodes<Queue>& out,
                                typename Queue::template Array<double>& mean) {
  const auto panels = static_cast<std::size_t>(coding.panels()), slots = panels * panel_rows;
  const CodingSpace& space = coding.space;
  out.heads = queue.template allocate<PanelHead>(panels);
  out.bias = queue.template allocate<float>(slots);
  out.tests = queue.template allocate<PanelTest>(panels);
  DevicePacking packing = {};
  packing.count = coding.rows, packing.dim = coding.dim;
  packing.tiles = coding.tiles, packing.panels_per_tile = coding.panels_per_tile;
  packing.l2 = traits_of(space.metric).squared, packing.cosine = traits_of(space.metric).unit_rows;
  packing.ids = out.ids.data(), packing.codes = out.codes.data();
  packing.heads = out.heads.data(), packing.tests = out.tests.data();
  packing.bias = out.bias.data();
  packing.slack = space.slack, packing.mean_norm = space.mean_norm;
  if (!space.mean.empty()) {
    mean = queue.template allocate<double>(space.mean.size());
    queue.upload(mean.data(), space.mean.data(), space.mean.size());
    packing.mean = mean.data();
  }
  return packing;
}
// Memory for the codes of all panels, and the row of each slot.
template <class Queue>
DeviceCodes<Queue> allocate_codes(Queue& queue, const Coding& coding) {
  const std::size_t panels = coding.panels();
  DeviceCodes<Queue> out;
  out.codes = queue.template allocate<std::uint8_t>(
      panels * static_cast<std::size_t>(slices_of(coding.steps) * panel_slice_bytes));
  out.ids = queue.template allocate<int>(panels * panel_rows);
  return out;
}

// Codes of `rows` as `coding` lays them out (device_coding()); with row_at [coding.panels() * 32]
// that is the row of each slot, -1 for none, which the last ones of a panel may be. Returns when
// the work is enqueued, for certified codes when it is done; row_at must live until then, and until
// the queue has done the copy.
template <class Queue>
DeviceCodes<Queue> encode_rows(Queue& queue, const Coding& coding, const DeviceRowData<Queue>& rows,
                               std::span<const int> row_at = {}) {
  const std::size_t slots = static_cast<std::size_t>(coding.panels()) * panel_rows;
  DeviceCodes<Queue> out = allocate_codes(queue, coding);
  if (coding.is_integer) {
    DevicePacking packing = {};
    packing.rows = rows.data(), packing.count = coding.rows, packing.dim = coding.dim;
    packing.tiles = coding.tiles, packing.panels_per_tile = coding.panels_per_tile;
    packing.l2 = traits_of(coding.space.metric).squared;
    packing.ids = out.ids.data(), packing.codes = out.codes.data();
    out.squares = queue.template allocate<std::uint32_t>(slots);
    out.sums = queue.template allocate<std::int32_t>(slots);
    packing.squares = out.squares.data(), packing.sums = out.sums.data();
    packing.row_offset = coding.row_offset;
    if (row_at.empty())
      launch_interleave_slots(queue, packing);
    else
      queue.upload(out.ids.data(), row_at.data(), slots);
    launch_encode_whole_rows(queue, packing, rows.type);
    return out;
  }
  typename Queue::template Array<double> mean;
  typename Queue::template Array<float> sizes;
  const StreamSyncGuard waits_at_exit{queue};
  DevicePacking packing = certified_packing(queue, coding, out, mean);
  packing.rows = rows.data();
  if (row_at.empty()) {
    sizes = queue.template allocate<float>(slots);
    packing.sizes = sizes.data();
    launch_interleave_rows(queue, packing, rows.type);
    // Rows of similar size share a panel, and so a scale; rows of equal size are in order of id.
    sort_rows(queue, coding.tiles, static_cast<int>(coding.panels_per_tile * panel_rows),
              RowOrder::by_value, flip_of(Extreme::smallest), sizes.data(), out.ids.data());
  } else {
    queue.upload(out.ids.data(), row_at.data(), slots);
  }
  launch_encode_panels(queue, packing, rows.type);
  return out;
}

// Certified codes of rows that are made some panels at a time: make(first, panels, rows, places)
// enqueues what writes the row of each slot of these panels [slots x dim], and its place there, -1
// for a slot without one, which the last ones of a panel may be. row_at: as above. Returns when it
// is done.
template <class Queue, class Make>
DeviceCodes<Queue> encode_made_rows(Queue& queue, const Coding& coding, std::span<const int> row_at,
                                    std::int64_t together, Make make) {
  DeviceCodes<Queue> out = allocate_codes(queue, coding);
  typename Queue::template Array<double> mean;
  together = std::min(together, coding.panels());
  const std::size_t slots = together * panel_rows;
  auto rows = queue.template allocate<float>(slots * static_cast<std::size_t>(coding.dim));
  auto places = queue.template allocate<int>(slots);
  const StreamSyncGuard waits_at_exit{queue};
  queue.upload(out.ids.data(), row_at.data(), row_at.size());
  DevicePacking packing = certified_packing(queue, coding, out, mean);
  packing.rows = rows.data(), packing.ids = places.data(), packing.panels_per_tile = 1;
  for (std::int64_t first = 0; first < coding.panels(); first += together) {
    DevicePacking some = packing;
    some.tiles = std::min(together, coding.panels() - first);
    some.codes += first * packing.slices() * panel_slice_bytes;
    some.heads += first, some.tests += first, some.bias += first * panel_rows;
    make(first, some.tiles, rows.data(), places.data());
    launch_encode_panels(queue, some, ElementType::f32);
  }
  return out;
}

}  // namespace knear::detail
