// knear/scan/device/gather_queries.hpp -- puts codes of queries together in other blocks.
//
// A query that probes 32 inverted lists is in a block of each, beside other queries each time. It
// is coded once (query_kernels.hpp), by a scale that all queries of a batch share, and its codes
// are copied to each of its places: 128 bytes for 128 columns, where coding would read 512 and
// compute.
#pragma once
#include <cstdint>

#include "knear/scan/device/code_layout.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

// All pointers are to device memory.
struct QueryGathering {
  // Queries as they were coded, by place; those of a new block have one scale.
  const std::uint8_t* codes;
  const double* scales;
  const std::int32_t* places;  // [blocks x 128], as DeviceTaskTable has them; the first is not -1
  std::int64_t blocks;
  int slices;
  // The output.
  std::uint8_t* gathered;   // as code_layout.hpp, of the new blocks
  double* gathered_scales;  // [blocks]
};

// One block of the grid for each block of queries.
template <class Thread>
struct GatherQueries {
  static constexpr int threads = 256, resident_blocks = 8;
  static_assert(threads == 2 * block_queries, "each copies 16 bytes of a slice");
  QueryGathering p;

  struct alignas(8) TwoWords {
    unsigned word[2];
  };
  struct alignas(16) Chunk {
    TwoWords of[2];  // of queries 8 apart, and of steps 4 apart each
  };

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t block = t.block();
    const std::int32_t* const places = p.places + block * block_queries;
    const int lane = t.index() % warp_size, first = t.index() / warp_size * 16 + lane / 4;
    const std::uint8_t* from[2];
    KNEAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int place = places[first + 8 * i];
      from[i] = place < 0
                    ? nullptr
                    : p.codes + std::int64_t{place / block_queries} * p.slices * block_slice_bytes +
                          block_place(lane % 4, place % block_queries);
    }
    std::uint8_t* to = p.gathered + block * p.slices * block_slice_bytes + t.index() * 16;
    for (int slice = 0; slice < p.slices; ++slice, to += block_slice_bytes) {
      Chunk chunk = {};
      KNEAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (!from[i]) continue;
        chunk.of[i] = *reinterpret_cast<const TwoWords*>(from[i]);
        from[i] += block_slice_bytes;
      }
      *reinterpret_cast<Chunk*>(to) = chunk;
    }
    if (t.index() == 0) p.gathered_scales[block] = p.scales[places[0] / block_queries];
  }
};

}  // namespace knear::detail
