// knear/index/graph/node_runs.hpp -- the nodes of a graph as a search reads them: of each, in one
// run of bytes, its own code, its links, and codes of 1 bit a column of the vectors to its
// neighbours (scan/kernels/link_code_kernels.hpp).
//
// A search that goes on from a node estimates by these how far its neighbours are, and measures by
// their own codes only those that may be among the nearest that it keeps. So it reads one run for a
// node, and one code for each of a few neighbours, instead of the codes of all of them. An estimate
// decides only what is measured, never in which order nodes are.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/index/graph/graph_coding.hpp"
#include "knear/scan/kernels/levels.hpp"
#include "knear/transform/hadamard_rotation.hpp"

namespace knear::detail {

// Where estimates are made: the space of codes about their mean, rotated so that all columns have
// the same share of the distance between any two.
class LinkSpace {
 public:
  // `codes` [nodes x stride] are those of the first layer of a graph.
  LinkSpace(const GraphCoding& coding, const AlignedArray<std::uint8_t>& codes);

  std::int64_t columns() const { return rotation_.columns(); }
  // out [columns]: a code, or the code of a query [stride], in that space.
  template <class T>
  void to_space(const T* code, float* out) const {
    for (std::size_t j = 0; j < mean_.size(); ++j) out[j] = static_cast<float>(code[j]) - mean_[j];
    rotation_.apply(out);
  }

 private:
  const HadamardRotation rotation_;
  std::vector<float> mean_;  // [columns]
};

class NodeRuns {
 public:
  // Returns whether estimates are worth the bytes that they take.
  static bool pay(const GraphCoding& coding, std::int64_t degree);

  // Takes the codes [nodes x stride] and the links [nodes x degree] of a layer.
  NodeRuns(std::shared_ptr<const LinkSpace> space, std::int64_t stride, std::int64_t degree,
           const AlignedArray<std::uint8_t>& codes, const AlignedArray<std::uint32_t>& links,
           int threads);

  // Codes begin step() bytes apart.
  const std::uint8_t* codes() const { return runs_.data(); }
  std::int64_t step() const { return step_; }
  std::int64_t blocks() const { return blocks_; }
  const LinkBlock& block(std::uint32_t node, std::int64_t b) const {
    return *reinterpret_cast<const LinkBlock*>(runs_.data() + std::int64_t{node} * step_ +
                                               own_bytes_ + b * block_bytes_);
  }
  // Fetch what is behind the code of a node, which was read when it was measured, or its code. They
  // come into the second cache: more lines can be under way to that than to the first.
  void prefetch_blocks(std::uint32_t node) const { prefetch(node, own_bytes_, step_); }
  void prefetch_code(std::uint32_t node) const { prefetch(node, 0, own_bytes_); }
  // Copies of what they were made of.
  AlignedArray<std::uint8_t> copied_codes() const;
  AlignedArray<std::uint32_t> copied_links() const;
  std::int64_t bytes() const { return static_cast<std::int64_t>(runs_.bytes()); }

 private:
  // The buffers of a thread that fills runs.
  struct Filling {
    const std::uint8_t* codes;  // [nodes x stride]
    std::vector<std::int16_t> code;
    RowCodeKernel kernel = row_code_kernel(active_isa());
  };
  void prefetch(std::uint32_t node, std::int64_t begin, std::int64_t end) const {
    const std::uint8_t* const run = runs_.data() + std::int64_t{node} * step_;
    constexpr int reading = 0, second_cache = 2;
    for (std::int64_t b = begin; b < end; b += 64)
      __builtin_prefetch(run + b, reading, second_cache);
  }
  // Writes bases, slopes and signs of a node's links, by the rotated codes of all nodes.
  void fill(std::int64_t node, const std::int16_t* rotated, Filling& filling);

  std::shared_ptr<const LinkSpace> space_;
  std::int64_t stride_, degree_, nodes_, columns_, blocks_;
  std::int64_t own_bytes_, block_bytes_, step_;
  AlignedArray<std::uint8_t> runs_;
};

// Estimates for one query at a time. Of one thread.
class LinkEstimates {
 public:
  // code [stride]: that of the query.
  void set_query(const LinkSpace& space, const std::int16_t* code);
  // Returns a bit for each link of the block that may be nearer to the query than `worst`. The node
  // itself has `score`.
  std::uint32_t below(const LinkBlock& block, std::uint32_t score, std::uint32_t worst) const {
    return kernel_(block, query_, static_cast<float>(worst) - static_cast<float>(score));
  }
  // Returns a bit for each link that the node has.
  std::uint32_t all(const LinkBlock& block) const {
    return kernel_(block, query_, std::numeric_limits<float>::max());
  }

 private:
  const LinkCodeKernel kernel_ = link_code_kernel(active_isa());
  std::vector<float> rotated_;
  AlignedArray<std::uint8_t> tables_;
  LinkQuery query_ = {};
};

}  // namespace knear::detail
