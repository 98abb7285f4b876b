#include "knear/scan/device/query_codes.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "knear/core/threads.hpp"

namespace knear::detail {

DeviceQueries device_queries(const Coding& base, AnyMatrixView queries,
                             std::span<const std::int64_t> which, const ValueRange& found,
                             int threads) {
  DeviceQueries out;
  out.count = std::ssize(which), out.slices = slices_of(base.steps);
  out.blocks = (out.count + block_queries - 1) / block_queries;
  out.shifted = base.shifts_queries(found);
  out.order.assign(which.begin(), which.end());
  if (!base.is_integer) {
    std::vector<std::pair<double, std::int64_t>> by_size(which.size());
    parallel_for(threads, out.blocks, [&](std::int64_t block) {
      std::vector<double> u(base.dim);
      const std::int64_t end = std::min(out.count, (block + 1) * block_queries);
      for (std::int64_t i = block * block_queries; i < end; ++i) {
        base.space.load(queries, which[i], u.data());
        by_size[i] = {base.space.kernels->measure(u.data(), base.dim).largest, which[i]};
      }
    });
    std::sort(by_size.begin(), by_size.end());
    for (std::size_t i = 0; i < by_size.size(); ++i) out.order[i] = by_size[i].second;
  }
  out.codes = AlignedArray<std::uint8_t>(out.blocks * out.slices * block_slice_bytes);
  out.scales.resize(out.blocks);
  out.heads.resize(out.count);
  parallel_for(threads, out.blocks, [&](std::int64_t block) {
    const std::int64_t first = block * block_queries;
    const std::int64_t members = std::min<std::int64_t>(out.count - first, block_queries);
    std::vector<QueryCode> coded(members);
    const std::int64_t stride = members * step_bytes;
    std::vector<std::uint8_t> steps(base.steps * stride);
    out.scales[block] = code_queries(base, queries, out.order.data() + first, members, found,
                                     steps.data(), stride, coded.data());
    std::uint8_t* to = out.codes.data() + block * out.slices * block_slice_bytes;
    std::memset(to, 0, out.slices * block_slice_bytes);
    for (std::int64_t step = 0; step < base.steps; ++step)
      for (int q = 0; q < members; ++q)
        std::memcpy(to + block_place(step, q), steps.data() + step * stride + q * step_bytes,
                    step_bytes);
    for (std::int64_t q = 0; q < members; ++q) {
      const QueryCode& code = coded[q];
      out.heads[first + q] = {code.norm, code.error, code.squares, code.constant, code.correction};
    }
  });
  return out;
}

}  // namespace knear::detail
