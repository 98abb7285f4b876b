// knear/index/graph/row_graph.hpp -- a graph over the rows of an index, along whose edges a search
// walks to the rows nearest to a query.
//
//   std::shared_ptr<const RowGraph> graph = build_row_graph(state, shape, 32, threads, progress);
//   GraphWalk walk(*graph);
//   walk.to(query, {.ef = 64, .starts = 16});
//   for (const GraphWalk::Candidate& near : walk.candidates()) ...
//
// Each node is linked to a fixed number of others: of its nearest neighbours those of which none
// already taken is nearer to it than the node itself (the rule of relative neighbourhood graphs,
// which HNSW, NSG and Vamana have), of those that chose it the same way back, and where places are
// left the nearest of what is left. A search keeps the `ef` nearest nodes that it has seen and goes
// on from the nearest that it has not gone on from (best first; Malkov and Yashunin 2018,
// algorithm 2). It measures by codes of 8 bits, or where these cannot tell near rows apart by the
// numbers of the vectors; its caller measures what is left in float64. Which neighbours it measures
// it estimates first, where that pays (NodeRuns).
//
// Data in clusters has no short way from one to the next. So nodes are numbered in the order of
// inverted lists, each sixteenth one is a node of a coarser graph over these alone, each sixteenth
// of those again, until 256 and fewer are left, which are all looked at. A search begins there, and
// takes the nearest few of each layer as the starts of the next.
//
// The space that it walks in is always that of squared distances: of vectors of length 1 for
// cosine; for products of vectors with one column more, by which all have one length (Bachrach et
// al. 2014, as lists have it: index/quantizers/coarse_quantizer.hpp).
//
// Rows whose codes or numbers are equal are one node. Rows that were taken out stay as places to
// pass through; rows added later are not in it (GraphOfState).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/distance/exact.hpp"
#include "knear/index/graph/graph_coding.hpp"
#include "knear/index/graph/node_runs.hpp"
#include "knear/scan/kernels/levels.hpp"

namespace knear::detail {

inline constexpr std::uint32_t no_node = ~std::uint32_t{0};

class RowGraph {
 public:
  // Nodes of one graph over another: node i of a layer is node layer_step * i + layer_step / 2 of
  // the one below.
  static constexpr std::int64_t layer_step = 16, most_scanned = 256;
  static constexpr std::int64_t nodes_above(std::int64_t nodes) {
    return (nodes + layer_step / 2 - 1) / layer_step;
  }
  static constexpr std::uint32_t below(std::uint32_t node) {
    return node * static_cast<std::uint32_t>(layer_step) +
           static_cast<std::uint32_t>(layer_step / 2);
  }

  struct Layer {
    std::int64_t nodes = 0;
    AlignedArray<std::uint8_t> codes = {};   // [nodes x stride], or the numbers
    AlignedArray<std::uint32_t> links = {};  // [nodes x degree], padded with no_node
    std::optional<NodeRuns> runs = {};       // instead of codes and links
  };

  // Puts codes and links into runs, where that pays; all layers are there.
  void make_runs(int threads);

  GraphCoding coding;
  std::int64_t degree = 0;
  std::vector<Layer> layers;                   // from that of all nodes on
  std::shared_ptr<const LinkSpace> estimates;  // of the runs, if there are any
  AlignedArray<std::int64_t> begin = {};       // [nodes + 1]: the rows of each node in `ids`
  AlignedArray<Id> ids = {};

  std::int64_t nodes() const { return layers.front().nodes; }
  std::int64_t rows() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t bytes() const;
};

// How far nodes are from a query or a node, as whole numbers that ascend with the distance. Of one
// thread.
class NodeScores {
 public:
  explicit NodeScores(const GraphCoding& coding);

  void from_query(AnyMatrixView queries, std::int64_t query);
  void from_node(const std::uint8_t* codes, std::uint32_t node);
  // Scores some nodes of a layer [count]. Their codes begin `step` bytes apart.
  void of(const std::uint8_t* codes, std::int64_t step, const std::uint32_t* nodes,
          std::int64_t count, std::uint32_t* scores) const {
    if (numbers_)
      of_numbers(codes, step, nodes, count, scores);
    else
      kernel_(code_.data(), codes, stride_, step, nodes, count, scores);
  }
  // The code of the query, unless numbers are compared.
  const std::int16_t* code() const { return code_.data(); }
  // Whether it is the query itself: nothing was rounded.
  bool query_is_exact() const { return query_is_exact_; }

 private:
  void of_numbers(const std::uint8_t* codes, std::int64_t step, const std::uint32_t* nodes,
                  std::int64_t count, std::uint32_t* scores) const;

  const GraphCoding& coding_;
  const std::int64_t stride_;
  const RowCodeKernel kernel_;
  std::optional<ExactDistance> numbers_;
  std::vector<std::int16_t> code_;
  std::vector<double> scratch_;
  bool query_is_exact_ = false;
};

// How far a search goes.
struct GraphEffort {
  std::int64_t ef = 0;      // nodes that it keeps
  std::int64_t starts = 0;  // nodes that it keeps in the layers above
};
// Of an ef that somebody chose.
GraphEffort usual_effort(std::int64_t ef);

// Searches of one thread.
class GraphWalk {
 public:
  struct Candidate {
    std::uint32_t score, node;
  };

  explicit GraphWalk(const RowGraph& graph);

  // Walks to what is nearest to a row of queries [n x dim]. left_out: a node that is treated as if
  // it were not there.
  void to(AnyMatrixView queries, std::int64_t query, const GraphEffort& effort,
          std::uint32_t left_out = no_node) {
    walk(queries, query, effort, left_out, nullptr);
  }
  // The same, but only nodes of which `wanted` is true become candidates.
  void to_some(AnyMatrixView queries, std::int64_t query, const GraphEffort& effort,
               const std::function<bool(std::uint32_t node)>& wanted) {
    walk(queries, query, effort, no_node, &wanted);
  }

  // The nearest, by score and node.
  std::span<const Candidate> candidates() const { return candidates_; }
  // Whether scores are of the query itself, not of a rounded one.
  bool query_is_exact() const { return distances_.query_is_exact(); }
  // The score of the nearest start.
  std::uint32_t nearest_start() const { return nearest_start_; }
  // Nodes whose distance was estimated or measured, since the walk was made.
  std::int64_t scored() const { return scored_; }

 private:
  // Keys are the score, below it the node, and in the last bit whether the search has gone on from
  // it, which changes no order.
  class Pool {
   public:
    void reset(std::int64_t most) { size_ = 0, keys_.resize(static_cast<std::size_t>(most) + 1); }
    std::int64_t size() const { return size_; }
    std::int64_t most() const { return static_cast<std::int64_t>(keys_.size()) - 1; }
    std::uint64_t& operator[](std::int64_t i) { return keys_[i]; }
    // Returns its place, or size() where it is none of the nearest.
    std::int64_t insert(std::uint64_t key);

   private:
    std::vector<std::uint64_t> keys_;
    std::int64_t size_ = 0;
  };
  static constexpr std::uint64_t gone_on = 1;
  static std::uint64_t key_of(std::uint32_t score, std::uint32_t node) {
    return std::uint64_t{score} << 32 | std::uint64_t{node} << 1;
  }
  static std::uint32_t node_of(std::uint64_t key) { return static_cast<std::uint32_t>(key) >> 1; }

  void walk(AnyMatrixView queries, std::int64_t query, const GraphEffort& effort,
            std::uint32_t left_out, const std::function<bool(std::uint32_t)>* wanted);
  void walk_layer(const RowGraph::Layer& layer, Pool& pool,
                  const std::function<bool(std::uint32_t)>* wanted);
  // Walks in a layer that has runs.
  void walk_runs(const NodeRuns& runs, Pool& pool,
                 const std::function<bool(std::uint32_t)>* wanted);
  bool see(std::uint32_t node) {
    std::uint64_t& word = seen_[node / 64];
    const std::uint64_t bit = std::uint64_t{1} << (node % 64);
    if (word & bit) return false;
    word |= bit, touched_.push_back(node);
    return true;
  }
  void forget();

  const RowGraph& graph_;
  NodeScores distances_;
  LinkEstimates estimates_;
  std::vector<std::uint64_t> seen_;  // a bit a node
  std::vector<std::uint32_t> touched_, rows_, waiting_, scores_;
  std::vector<std::uint32_t> without_;  // of each layer the node that is left out
  Pool pool_, next_, wanted_;
  std::vector<Candidate> candidates_;
  std::uint32_t nearest_start_ = 0;
  std::int64_t scored_ = 0;
};

}  // namespace knear::detail
