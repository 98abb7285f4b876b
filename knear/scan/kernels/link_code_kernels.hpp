// knear/scan/kernels/link_code_kernels.hpp -- which links of a node of a graph may lead nearer to a
// query than a limit: the boundary of the kernels, one function per level.
//
// A node keeps codes of 1 bit a column of the vectors that lead to its neighbours (RaBitQ: Gao and
// Long 2024; beside the links, as in SymphonyQG: Gou, Gao, Xu and Long 2025). For a query q, a node
// v and its neighbour u, after a rotation
//   |q - u|^2 = |q - v|^2 + |u - v|^2 - 2 <q - v, u - v>,
// and <q, u - v> is nearly |u - v|^2 / |u - v|_1 times the sum of the columns of q with the signs
// of u - v. What does not depend on q is the `base` of the link, and the factor of the sum its
// `slope`: the estimate is |q - v|^2 + base - slope * sum. The sum is one of whole numbers, looked
// up for four columns at a time (Andre, Kermarrec and Le Scouarnec 2015), so that each level finds
// the same links.
#pragma once
#include <cstdint>

namespace knear::detail {

inline constexpr std::int64_t links_together = 32;
// The number of columns is padded to a multiple of this.
inline constexpr std::int64_t link_code_step = 16;

// 32 links of a node; a link that is not there has an infinite base. It is followed by the signs,
// 64 bytes for each 16 columns: byte 16 c + i has, in its lower half, four bits for columns 4 c to
// 4 c + 3 of link i, in its upper half those of link 16 + i. A bit is 1 where the column is not
// negative. Bases and slopes are the upper halves of float32.
struct alignas(64) LinkBlock {
  std::uint32_t nodes[links_together];
  std::uint16_t bases[links_together], slopes[links_together];

  const std::uint8_t* signs() const { return reinterpret_cast<const std::uint8_t*>(this + 1); }
  std::uint8_t* signs() { return reinterpret_cast<std::uint8_t*>(this + 1); }
};

// The bytes of a block, signs included.
inline constexpr std::int64_t link_block_bytes(std::int64_t columns) {
  return static_cast<std::int64_t>(sizeof(LinkBlock)) +
         (columns + link_code_step - 1) / link_code_step * 64;
}

// A query as the kernels want it. Four columns share a table of 16 sums, one for each choice of
// columns; the smallest of these sums is subtracted from all. If the bits of a link look up s in
// all tables together, the sum of the query's columns with the signs of the link is scale * (2 * s
// + offset).
struct LinkQuery {
  const std::uint8_t* tables;  // [columns * 4], aligned to 64 bytes
  std::int64_t columns;        // a multiple of link_code_step
  std::int32_t offset;
  float scale;
};

// Returns a bit for each link whose base - slope * sum is below the limit.
using LinkCodeKernel = std::uint32_t (*)(const LinkBlock& block, const LinkQuery& query,
                                         float limit);

std::uint32_t links_below_scalar(const LinkBlock& block, const LinkQuery& query, float limit);
std::uint32_t links_below_avx2(const LinkBlock& block, const LinkQuery& query, float limit);
std::uint32_t links_below_avx512(const LinkBlock& block, const LinkQuery& query, float limit);
std::uint32_t links_below_neon(const LinkBlock& block, const LinkQuery& query, float limit);

}  // namespace knear::detail
