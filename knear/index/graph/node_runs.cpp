#include "knear/index/graph/node_runs.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "knear/core/threads.hpp"

namespace knear::detail {
namespace {

// With fewer columns, neighbours' codes have hardly more bytes than their estimates, and estimates
// are coarse. With fewer links, much of a block would be empty.
constexpr std::int64_t least_columns = 64, least_degree_estimated = 24;
constexpr std::int64_t filled_together = 1024;
// Rotated codes are rounded to an eighth of a unit.
constexpr float steps_of_unit = 8;
// As far from the mean as differences of two have 16 bits.
constexpr float most_rotated = 16383;
constexpr std::uint32_t nobody = ~std::uint32_t{0};
constexpr std::uint64_t rotation_seed = 1;

// Vectors of eight columns.
typedef std::int16_t Eight __attribute__((vector_size(16)));
typedef std::int32_t Ints __attribute__((vector_size(32)));
typedef std::uint8_t Bytes __attribute__((vector_size(8)));

std::int64_t rounded_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// The upper half of a float32, rounded to nearest, halves to even.
std::uint16_t upper_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

LinkSpace::LinkSpace(const GraphCoding& coding, const AlignedArray<std::uint8_t>& codes)
    : rotation_(rounded_up(coding.columns(), link_code_step), rotation_seed), mean_(columns()) {
  // A sample is enough, since the mean need not be exact.
  const std::int64_t nodes = static_cast<std::int64_t>(codes.size()) / coding.stride(),
                     apart = std::max<std::int64_t>(1, nodes / 65536);
  std::vector<std::int64_t> sums(mean_.size());
  std::int64_t counted = 0;
  for (std::int64_t node = 0; node < nodes; node += apart, ++counted)
    for (std::size_t j = 0; j < sums.size(); ++j)
      sums[j] += codes[static_cast<std::size_t>(node * coding.stride()) + j];
  for (std::size_t j = 0; j < sums.size(); ++j)
    mean_[j] = static_cast<float>(static_cast<double>(sums[j]) / static_cast<double>(counted));
}

bool NodeRuns::pay(const GraphCoding& coding, std::int64_t degree) {
  return !coding.numbers && coding.columns() >= least_columns && degree >= least_degree_estimated;
}

NodeRuns::NodeRuns(std::shared_ptr<const LinkSpace> space, std::int64_t stride, std::int64_t degree,
                   const AlignedArray<std::uint8_t>& codes,
                   const AlignedArray<std::uint32_t>& links, int threads)
    : space_(std::move(space)),
      stride_(stride),
      degree_(degree),
      nodes_(static_cast<std::int64_t>(codes.size()) / stride_),
      columns_(space_->columns()),
      blocks_((degree + links_together - 1) / links_together),
      own_bytes_(rounded_up(stride_, 64)),
      block_bytes_(link_block_bytes(columns_)),
      step_(own_bytes_ + blocks_ * block_bytes_),
      runs_(nodes_ * step_) {
  AlignedArray<std::int16_t> rotated =
      AlignedArray<std::int16_t>::unset(static_cast<std::size_t>(nodes_ * columns_));
  const auto each = [&](auto f) {
    parallel_for(threads, (nodes_ + filled_together - 1) / filled_together, [&](std::int64_t task) {
      f(task * filled_together, std::min(nodes_, (task + 1) * filled_together));
    });
  };
  each([&](std::int64_t begin, std::int64_t end) {
    std::vector<float> one(columns_);
    for (std::int64_t node = begin; node < end; ++node) {
      space_->to_space(codes.data() + node * stride_, one.data());
      std::int16_t* const to = rotated.data() + node * columns_;
      for (std::size_t j = 0; j < one.size(); ++j)
        to[j] = static_cast<std::int16_t>(
            std::nearbyint(std::clamp(steps_of_unit * one[j], -most_rotated, most_rotated)));
    }
  });
  each([&](std::int64_t begin, std::int64_t end) {
    Filling filling{codes.data(), std::vector<std::int16_t>(stride_)};
    for (std::int64_t node = begin; node < end; ++node) {
      std::uint8_t* const run = runs_.data() + node * step_;
      std::memcpy(run, codes.data() + node * stride_, stride_);
      const std::uint32_t* const of = links.data() + node * degree_;
      for (std::int64_t b = 0; b < blocks_; ++b) {
        auto* const block = reinterpret_cast<LinkBlock*>(run + own_bytes_ + b * block_bytes_);
        for (std::int64_t i = 0; i < links_together; ++i) {
          const std::int64_t at = b * links_together + i;
          block->nodes[i] = at < degree_ ? of[at] : nobody;
        }
      }
      fill(node, rotated.data(), filling);
    }
  });
}

void NodeRuns::fill(std::int64_t node, const std::int16_t* rotated, Filling& filling) {
  const std::int16_t* const from = rotated + node * columns_;
  std::uint8_t* const run = runs_.data() + node * step_;
  std::copy(run, run + stride_, filling.code.begin());
  for (std::int64_t b = 0; b < blocks_; ++b) {
    auto* const block = reinterpret_cast<LinkBlock*>(run + own_bytes_ + b * block_bytes_);
    const std::int64_t count =
        std::find(block->nodes, block->nodes + links_together, nobody) - block->nodes;
    std::uint32_t squares[links_together];
    filling.kernel(filling.code.data(), filling.codes, stride_, stride_, block->nodes, count,
                   squares);
    for (std::int64_t i = 0; i < links_together; ++i) {
      if (i >= count) {
        block->bases[i] = upper_half(std::numeric_limits<float>::infinity()), block->slopes[i] = 0;
        continue;
      }
      const auto rotated_of = [&](std::int64_t link) {
        return rotated + std::int64_t{block->nodes[link]} * columns_;
      };
      if (i + 2 < count)
        for (std::int64_t j = 0; j < columns_; j += 32) __builtin_prefetch(rotated_of(i + 2) + j);
      const std::int16_t* const to = rotated_of(i);
      std::uint8_t* const signs = block->signs() + i % 16;
      const int shift = i < 16 ? 0 : 4;
      Ints lengths = {}, alongs = {};
      for (std::int64_t j = 0; j < columns_; j += 8) {
        Eight there, here;
        std::memcpy(&there, to + j, sizeof there), std::memcpy(&here, from + j, sizeof here);
        const Eight apart = there - here, sign = apart >> 15 | 1;
        lengths += __builtin_convertvector(apart * sign, Ints);
        alongs += __builtin_convertvector(here * sign, Ints);
        // Eight bytes of 0 or 1 become two times four bits.
        const Bytes positive = __builtin_convertvector(apart >= 0, Bytes) & 1;
        std::uint32_t fours[2];
        std::memcpy(fours, &positive, sizeof fours);
        for (const int four : {0, 1})
          signs[4 * j + 16 * four] |=
              static_cast<std::uint8_t>((fours[four] * 0x01020408u >> 24 & 15) << shift);
      }
      std::int64_t length = 0, along = 0;
      for (int c = 0; c < 8; ++c) length += lengths[c], along += alongs[c];
      const double square = squares[i];
      block->slopes[i] = upper_half(static_cast<float>(
          length > 0 ? 2 * steps_of_unit * square / static_cast<double>(length) : 0));
      // As the kernels will see it, so that its rounding does not count.
      const float kept = std::bit_cast<float>(std::uint32_t{block->slopes[i]} << 16);
      block->bases[i] = upper_half(static_cast<float>(
          square + static_cast<double>(kept) * static_cast<double>(along) / steps_of_unit));
    }
  }
}

AlignedArray<std::uint8_t> NodeRuns::copied_codes() const {
  auto out = AlignedArray<std::uint8_t>::unset(static_cast<std::size_t>(nodes_ * stride_));
  for (std::int64_t node = 0; node < nodes_; ++node)
    std::memcpy(out.data() + node * stride_, runs_.data() + node * step_, stride_);
  return out;
}

AlignedArray<std::uint32_t> NodeRuns::copied_links() const {
  auto out = AlignedArray<std::uint32_t>::unset(static_cast<std::size_t>(nodes_ * degree_));
  for (std::int64_t node = 0; node < nodes_; ++node)
    for (std::int64_t i = 0; i < degree_; ++i)
      out[node * degree_ + i] =
          block(static_cast<std::uint32_t>(node), i / links_together).nodes[i % links_together];
  return out;
}

void LinkEstimates::set_query(const LinkSpace& space, const std::int16_t* code) {
  const std::size_t columns = space.columns();
  if (rotated_.size() != columns)
    rotated_.resize(columns), tables_ = AlignedArray<std::uint8_t>(4 * columns);
  space.to_space(code, rotated_.data());
  // Columns become whole numbers. The largest sum of four is 253 before they are rounded, and 255
  // at most after that, which fits into a byte of a table.
  float largest = 0;
  for (std::size_t j = 0; j < columns; j += 4)
    largest = std::max(largest, std::abs(rotated_[j]) + std::abs(rotated_[j + 1]) +
                                    std::abs(rotated_[j + 2]) + std::abs(rotated_[j + 3]));
  const float scale = largest > 0 ? largest / 253 : 1;
  std::int32_t offset = 0;
  for (std::size_t j = 0; j < columns; j += 4) {
    int whole[4], least = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      whole[i] = static_cast<int>(std::nearbyint(rotated_[j + i] / scale));
      least += std::min(0, whole[i]), offset -= whole[i];
    }
    offset += 2 * least;
    int sums[16] = {-least};
    for (unsigned some = 1; some < 16; ++some)
      sums[some] = sums[some & (some - 1)] + whole[std::countr_zero(some)];
    for (std::size_t some = 0; some < 16; ++some)
      tables_[4 * j + some] = static_cast<std::uint8_t>(sums[some]);
  }
  query_ = {tables_.data(), space.columns(), offset, scale};
}

}  // namespace knear::detail
