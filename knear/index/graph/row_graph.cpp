#include "knear/index/graph/row_graph.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "knear/core/cpu.hpp"
#include "knear/distance/exact.hpp"

namespace knear::detail {

NodeScores::NodeScores(const GraphCoding& coding)
    : coding_(coding),
      stride_(coding.stride()),
      kernel_(row_code_kernel(active_isa())),
      code_(coding.numbers ? 0 : coding.stride()),
      scratch_(coding.columns()) {
  if (coding.numbers) numbers_.emplace(Metric::l2, *coding.numbers);
}

void NodeScores::from_query(AnyMatrixView queries, std::int64_t query) {
  if (!numbers_) {
    query_is_exact_ = coding_.code_query(queries, query, scratch_.data(), code_.data());
    return;
  }
  coding_.to_space(queries, query, true, scratch_.data());
  const std::int64_t columns = coding_.columns();
  numbers_->set_query({ElementType::f64, scratch_.data(), 1, columns, columns}, 0);
}

void NodeScores::from_node(const std::uint8_t* codes, std::uint32_t node) {
  const std::uint8_t* const code = codes + std::int64_t{node} * stride_;
  if (numbers_)
    numbers_->set_query({*coding_.numbers, code, 1, coding_.columns(), coding_.columns()}, 0);
  else
    code_.assign(code, code + stride_);
}

void NodeScores::of_numbers(const std::uint8_t* codes, std::int64_t step,
                            const std::uint32_t* nodes, std::int64_t count,
                            std::uint32_t* scores) const {
  constexpr int together = ExactDistance::most_rows;
  for (std::int64_t begin = 0; begin < count; begin += together) {
    const int some = static_cast<int>(std::min<std::int64_t>(together, count - begin));
    const void* rows[together];
    double keys[together];
    for (int i = 0; i < some; ++i) rows[i] = codes + std::int64_t{nodes[begin + i]} * step;
    numbers_->keys(rows, some, keys);
    // Bits of floats that are not negative are in the order of the numbers.
    for (int i = 0; i < some; ++i)
      scores[begin + i] = std::bit_cast<std::uint32_t>(static_cast<float>(
          std::min<double>(keys[i] * coding_.scale, std::numeric_limits<float>::max())));
  }
}

std::int64_t RowGraph::bytes() const {
  auto sum = static_cast<std::int64_t>(begin.bytes() + ids.bytes());
  for (const Layer& layer : layers)
    sum += static_cast<std::int64_t>(layer.codes.bytes() + layer.links.bytes()) +
           (layer.runs ? layer.runs->bytes() : 0);
  return sum;
}

void RowGraph::make_runs(int threads) {
  if (!NodeRuns::pay(coding, degree)) return;
  for (Layer& layer : layers)
    if (layer.links.size() > 0) {
      if (!estimates) estimates = std::make_shared<LinkSpace>(coding, layer.codes);
      layer.runs.emplace(estimates, coding.stride(), degree, layer.codes, layer.links, threads);
      layer.codes = {}, layer.links = {};
    }
}

GraphEffort usual_effort(std::int64_t ef) { return {ef, std::clamp<std::int64_t>(ef / 4, 4, 64)}; }

std::int64_t GraphWalk::Pool::insert(std::uint64_t key) {
  std::uint64_t* const keys = keys_.data();
  if (size_ == most() && (size_ == 0 || key >= keys[size_ - 1])) return size_;
  // The first key that is not below it, without branches: none could be predicted.
  std::int64_t at = 0;
  for (std::int64_t left = size_; left > 0; left /= 2) {
    const std::int64_t half = (left + 1) / 2;
    at += keys[at + half - 1] < key ? half : 0;
  }
  size_ = std::min(size_ + 1, most());
  std::copy_backward(keys + at, keys + size_ - 1, keys + size_);
  keys[at] = key;
  return at;
}

GraphWalk::GraphWalk(const RowGraph& graph)
    : graph_(graph),
      distances_(graph.coding),
      seen_(static_cast<std::size_t>(graph.nodes() + 63) / 64) {}

void GraphWalk::forget() {
  for (const std::uint32_t node : touched_) seen_[node / 64] = 0;
  touched_.clear();
}

void GraphWalk::walk(AnyMatrixView queries, std::int64_t query, const GraphEffort& effort,
                     std::uint32_t left_out, const std::function<bool(std::uint32_t)>* wanted) {
  distances_.from_query(queries, query);
  if (graph_.estimates) estimates_.set_query(*graph_.estimates, distances_.code());
  const auto layers = std::ssize(graph_.layers);
  // The number of the node that is left out in each layer that has it.
  without_.assign(layers, no_node);
  without_[0] = left_out;
  for (std::size_t l = 1; l < without_.size(); ++l)
    if (without_[l - 1] != no_node && without_[l - 1] % RowGraph::layer_step ==
                                          static_cast<std::uint32_t>(RowGraph::layer_step / 2))
      without_[l] = without_[l - 1] / static_cast<std::uint32_t>(RowGraph::layer_step);

  // Of the coarsest layer all are looked at.
  const RowGraph::Layer& top = graph_.layers.back();
  const bool one_layer = layers == 1;
  pool_.reset(one_layer ? effort.ef : effort.starts);
  rows_.resize(std::max(top.nodes, graph_.degree));
  scores_.resize(rows_.size());
  for (std::int64_t i = 0; i < top.nodes; ++i) rows_[i] = static_cast<std::uint32_t>(i);
  distances_.of(top.codes.data(), graph_.coding.stride(), rows_.data(), top.nodes, scores_.data());
  scored_ += top.nodes;
  wanted_.reset(effort.ef);
  for (std::int64_t i = 0; i < top.nodes; ++i) {
    const std::uint64_t key = key_of(scores_[i], static_cast<std::uint32_t>(i));
    if (static_cast<std::uint32_t>(i) == without_.back()) continue;
    pool_.insert(key);
    if (one_layer && wanted && (*wanted)(static_cast<std::uint32_t>(i))) wanted_.insert(key);
  }
  nearest_start_ = pool_.size() > 0 ? static_cast<std::uint32_t>(pool_[0] >> 32) : 0;
  for (std::int64_t l = layers - 2; l >= 0; --l) {
    nearest_start_ = pool_.size() > 0 ? static_cast<std::uint32_t>(pool_[0] >> 32) : 0;
    next_.reset(l == 0 ? effort.ef : effort.starts);
    if (without_[l] != no_node) see(without_[l]);
    for (std::int64_t i = 0; i < std::min(pool_.size(), next_.most()); ++i) {
      const std::uint32_t node = RowGraph::below(node_of(pool_[i]));
      const std::uint64_t key = key_of(static_cast<std::uint32_t>(pool_[i] >> 32), node);
      if (!see(node)) continue;
      next_.insert(key);
      if (l == 0 && wanted && (*wanted)(node)) wanted_.insert(key);
    }
    std::swap(pool_, next_);
    walk_layer(graph_.layers[l], pool_, l == 0 ? wanted : nullptr);
    forget();
  }
  Pool& found = wanted ? wanted_ : pool_;
  candidates_.clear();
  for (std::int64_t i = 0; i < found.size(); ++i)
    candidates_.push_back({static_cast<std::uint32_t>(found[i] >> 32), node_of(found[i])});
}

void GraphWalk::walk_layer(const RowGraph::Layer& layer, Pool& pool,
                           const std::function<bool(std::uint32_t)>* wanted) {
  if (layer.runs) return walk_runs(*layer.runs, pool, wanted);
  const std::int64_t stride = graph_.coding.stride(), degree = graph_.degree;
  const std::uint8_t* const codes = layer.codes.data();
  for (std::int64_t at = 0; at < pool.size();) {
    if (pool[at] & gone_on) {
      ++at;
      continue;
    }
    const std::uint32_t* const links =
        layer.links.data() + std::int64_t{node_of(pool[at])} * degree;
    pool[at] |= gone_on;
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < degree && links[j] != no_node; ++j) {
      if (!see(links[j])) continue;
      const std::uint8_t* const code = codes + static_cast<std::int64_t>(links[j]) * stride;
      for (std::int64_t b = 0; b < stride; b += 64) __builtin_prefetch(code + b);
      rows_[count++] = links[j];
    }
    distances_.of(codes, stride, rows_.data(), count, scores_.data());
    scored_ += count;
    std::int64_t first = at + 1;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t node = rows_[i];
      const std::uint64_t key = key_of(scores_[i], node);
      first = std::min(first, pool.insert(key));
      if (wanted && (*wanted)(node)) wanted_.insert(key);
    }
    at = first;
    // What comes next is known before its links are needed.
    for (std::int64_t next = at; next < pool.size(); ++next)
      if (!(pool[next] & gone_on)) {
        const char* const p = reinterpret_cast<const char*>(
            layer.links.data() + std::int64_t{node_of(pool[next])} * degree);
        for (std::int64_t b = 0; b < degree * 4; b += 64) __builtin_prefetch(p + b);
        break;
      }
  }
}

void GraphWalk::walk_runs(const NodeRuns& runs, Pool& pool,
                          const std::function<bool(std::uint32_t)>* wanted) {
  // Nodes that may be among the nearest are measured one step later, when their codes are there.
  waiting_.clear();
  scores_.resize(runs.blocks() * links_together);
  const auto measure_waiting = [&] {
    distances_.of(runs.codes(), runs.step(), waiting_.data(), std::ssize(waiting_), scores_.data());
    scored_ += std::ssize(waiting_);
    std::int64_t first = pool.size();
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      const std::uint64_t key = key_of(scores_[i], waiting_[i]);
      first = std::min(first, pool.insert(key));
      if (wanted && (*wanted)(waiting_[i])) wanted_.insert(key);
    }
    waiting_.clear();
    return first;
  };
  // Every link is measured while there is room for more candidates. After that, a link is left out
  // if it seems to be no nearer than the worst candidate.
  const auto full = [](const Pool& of) { return of.size() == of.most(); };
  const auto worst = [](Pool& of) { return static_cast<std::uint32_t>(of[of.size() - 1] >> 32); };
  std::uint32_t fetched[2] = {no_node, no_node};  // the last nodes that were fetched from memory
  for (std::int64_t at = 0;;) {
    while (at < pool.size() && (pool[at] & gone_on)) ++at;
    if (at == pool.size()) {
      if (waiting_.empty()) break;
      at = std::min(at, measure_waiting());
      continue;
    }
    const auto score = static_cast<std::uint32_t>(pool[at] >> 32);
    const std::uint32_t node = node_of(pool[at]);
    pool[at] |= gone_on;
    scored_ += graph_.degree;
    const bool room = !full(pool) || (wanted && !full(wanted_));
    const std::uint32_t limit =
        room ? 0 : std::max(worst(pool), wanted ? worst(wanted_) : std::uint32_t{0});
    rows_.clear();
    for (std::int64_t b = 0; b < runs.blocks(); ++b) {
      const LinkBlock& block = runs.block(node, b);
      std::uint32_t some = room ? estimates_.all(block) : estimates_.below(block, score, limit);
      for (; some != 0; some &= some - 1) {
        const std::uint32_t link = block.nodes[std::countr_zero(some)];
        if (!see(link)) continue;
        runs.prefetch_code(link);
        rows_.push_back(link);
      }
    }
    at = std::min(at + 1, measure_waiting());
    std::swap(waiting_, rows_);
    // The nodes from which the search goes on next.
    std::uint32_t coming[2] = {no_node, no_node};
    int ahead = 0;
    for (std::int64_t next = at; next < pool.size() && ahead < 2; ++next) {
      if (pool[next] & gone_on) continue;
      const std::uint32_t one = node_of(pool[next]);
      if (one != fetched[0] && one != fetched[1]) runs.prefetch_blocks(one);
      coming[ahead++] = one;
    }
    std::copy(coming, coming + 2, fetched);
  }
}

}  // namespace knear::detail
