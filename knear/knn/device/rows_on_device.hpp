// knear/knn/device/rows_on_device.hpp -- rows on a device, and how much a search takes of its
// memory and of the processor's: what searches of all rows and of inverted lists there share.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "knear/knn/search/search_request.hpp"
#include "knear/scan/device/device_scan.hpp"

namespace knear::detail {

// Rows on the device. One search at a time.
template <class Queue>
struct RowsOnDevice {
  std::shared_ptr<Queue> queue;
  Coding coding;
  std::optional<DeviceScan<Queue>> scan;
  std::mutex mutex;
};

// The coding of rows of a segment for a pass, before they are laid out.
inline Coding coding_on_device(const SearchRequest& request, PreparedRows& prepared,
                               FirstPass pass) {
  if (pass == FirstPass::integer)
    return Coding::whole_numbers(request.options.metric, request.isa, prepared.found);
  return certified_coding(prepared.on_device ? prepared.on_device->space : prepared.coding_space());
}

// In which rows and queries go to the device.
inline std::int64_t piece_of(const SearchRequest& request) {
  return request.limited()
             ? std::clamp<std::int64_t>(request.options.memory / 16, 64 << 10, usual_piece)
             : usual_piece;
}
// What a search may take of the device's memory now.
template <class Queue>
std::size_t room_on(const Queue& queue, const SearchRequest& request) {
  const std::size_t room = queue.free_bytes();
  return request.limited() ? std::min(room, static_cast<std::size_t>(request.options.memory))
                           : room;
}
// The processor's memory for `batch` queries on their way to the device and back.
template <class Queue>
std::int64_t host_bytes_of(const SearchRequest& request, std::int64_t batch) {
  const std::int64_t dim = request.queries.cols();
  return batch * DeviceScan<Queue>::host_bytes_for_query(request.k, dim, slices_of((dim + 3) / 4)) +
         request.threads * DeviceScan<Queue>::host_bytes_for_thread(dim);
}
// And for a block of them, and rows on their way, in any case.
template <class Queue>
std::int64_t least_host_bytes(const SearchRequest& request) {
  const std::int64_t queries = std::min<std::int64_t>(request.queries.rows(), block_queries);
  return host_bytes_of<Queue>(request, queries) + 4 * piece_of(request);
}
// Queries at a time, `batch` or with a memory limit as many as the processor has `left` for.
template <class Queue>
std::int64_t fitting_batch(const SearchRequest& request, std::int64_t batch, std::int64_t left) {
  while (request.limited() && batch > block_queries && host_bytes_of<Queue>(request, batch) > left)
    batch = std::max<std::int64_t>(block_queries, batch / 2);
  return batch;
}

// Whether the allowed rows are found among all of those that stay on the device, by a bit a row.
// Where they are few they are sent and coded by themselves, for one search alone, so that what it
// costs falls with their number. From where on that pays was not measured.
inline bool found_by_bits(std::int64_t allowed, std::int64_t rows) {
  constexpr std::int64_t rows_for_one = 16;
  return allowed * rows_for_one >= rows;
}

}  // namespace knear::detail
