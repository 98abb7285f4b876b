// knear/scan/device/query_codes.hpp -- codes of queries as the kernels of a GPU read them
// (code_layout.hpp), made by the processor. The device makes those of rows: packing.hpp.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/scan/device/code_layout.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

// Queries in blocks of block_queries; of a place without a query the codes are 0.
struct DeviceQueries {
  std::int64_t count = 0, blocks = 0, slices = 0;
  bool shifted = false;              // whole numbers lowered by 128
  std::vector<std::int64_t> order;   // [count]: place p holds query order[p]
  AlignedArray<std::uint8_t> codes;  // [blocks][slices][block_slice_bytes]
  std::vector<double> scales;        // [blocks]
  std::vector<DeviceQuery> heads;    // [count], by place
};

// Codes the queries `which`, those of similar length beside one another, since a block has one
// scale.
DeviceQueries device_queries(const Coding& base, AnyMatrixView queries,
                             std::span<const std::int64_t> which, const ValueRange& found,
                             int threads);

}  // namespace knear::detail
