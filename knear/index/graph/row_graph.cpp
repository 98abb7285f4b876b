#include "knear/index/graph/row_graph.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "knear/core/cpu.hpp"
#include "knear/core/unit_length.hpp"
#include "knear/distance/exact.hpp"

namespace knear::detail {

void GraphCoding::to_space(AnyMatrixView vectors, std::int64_t row, bool query, double* out) const {
  row_as_doubles(vectors, row, out);
  if (traits_of(metric).squared) return;
  const double length = safe_length(out, dim).value();
  if (traits_of(metric).lifted) out[dim] = 0;
  if (traits_of(metric).unit_rows || query) {
    const double to = traits_of(metric).unit_rows ? 1 : query_length;
    for (std::int64_t j = 0; length > 0 && j < dim; ++j) out[j] = out[j] / length * to;
  } else {
    const double share = longest > 0 ? std::min(1.0, length / longest) : 1;
    out[dim] = longest * std::sqrt(1 - share * share);
  }
}

void GraphCoding::code_row(AnyMatrixView vectors, std::int64_t row, double* scratch,
                           std::uint8_t* out) const {
  to_space(vectors, row, false, scratch);
  if (numbers) {
    std::fill(out, out + stride(), std::uint8_t{0});
    // A zero has one sign, so that equal rows have equal bytes.
    for (std::int64_t j = 0; j < columns(); ++j)
      if (const double x = scratch[j] + 0.0; *numbers == ElementType::f64) {
        reinterpret_cast<double*>(out)[j] = x;
      } else {
        constexpr double most = std::numeric_limits<float>::max();
        reinterpret_cast<float*>(out)[j] = static_cast<float>(std::clamp(x, -most, most)) + 0.0f;
      }
    return;
  }
  for (std::int64_t j = 0; j < columns(); ++j) {
    const double code = (scratch[j] - lows[static_cast<std::size_t>(j)]) * scale;
    out[j] = static_cast<std::uint8_t>(std::nearbyint(std::clamp(code, 0.0, 255.0)));
  }
  std::fill(out + columns(), out + stride(), std::uint8_t{0});
}

void GraphCoding::code_query(AnyMatrixView vectors, std::int64_t row, double* scratch,
                             std::int16_t* out) const {
  to_space(vectors, row, true, scratch);
  // As far beyond the rows as sums of 32 bits allow.
  const double beyond = stride() <= 16384 ? 255 : 0;
  for (std::int64_t j = 0; j < columns(); ++j) {
    const double code = (scratch[j] - lows[static_cast<std::size_t>(j)]) * scale;
    out[j] = static_cast<std::int16_t>(std::nearbyint(std::clamp(code, -beyond, 255 + beyond)));
  }
  std::fill(out + columns(), out + stride(), std::int16_t{0});
}

NodeScores::NodeScores(const GraphCoding& coding)
    : coding_(coding),
      stride_(coding.stride()),
      kernel_(row_code_kernel(active_isa())),
      code_(static_cast<std::size_t>(coding.numbers ? 0 : coding.stride())),
      scratch_(static_cast<std::size_t>(coding.columns())) {
  if (coding.numbers) numbers_.emplace(Metric::l2, *coding.numbers);
}

void NodeScores::from_query(AnyMatrixView queries, std::int64_t query) {
  if (!numbers_) {
    coding_.code_query(queries, query, scratch_.data(), code_.data());
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

void NodeScores::of_numbers(const std::uint8_t* codes, const std::uint32_t* nodes,
                            std::int64_t count, std::uint32_t* scores) const {
  constexpr int together = ExactDistance::most_rows;
  for (std::int64_t begin = 0; begin < count; begin += together) {
    const int some = static_cast<int>(std::min<std::int64_t>(together, count - begin));
    const void* rows[together];
    double keys[together];
    for (int i = 0; i < some; ++i) rows[i] = codes + std::int64_t{nodes[begin + i]} * stride_;
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
    sum += static_cast<std::int64_t>(layer.codes.bytes() + layer.links.bytes());
  return sum;
}

GraphEffort usual_effort(std::int64_t ef) { return {ef, std::clamp<std::int64_t>(ef / 4, 4, 64)}; }

std::int64_t GraphWalk::Pool::insert(std::uint64_t key) {
  std::uint64_t* const keys = keys_.data();
  if (size_ == most() && (size_ == 0 || key >= keys[size_ - 1])) return size_;
  const std::int64_t at = std::lower_bound(keys, keys + size_, key) - keys;
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
  const auto layers = std::ssize(graph_.layers);
  // The number of the node that is left out in each layer that has it.
  std::vector<std::uint32_t> without(static_cast<std::size_t>(layers), no_node);
  without[0] = left_out;
  for (std::size_t l = 1; l < without.size(); ++l)
    if (without[l - 1] != no_node && without[l - 1] % RowGraph::layer_step ==
                                         static_cast<std::uint32_t>(RowGraph::layer_step / 2))
      without[l] = without[l - 1] / static_cast<std::uint32_t>(RowGraph::layer_step);

  // Of the coarsest layer all are looked at.
  const RowGraph::Layer& top = graph_.layers.back();
  const bool one_layer = layers == 1;
  pool_.reset(one_layer ? effort.ef : effort.starts);
  rows_.resize(static_cast<std::size_t>(std::max(top.nodes, graph_.degree)));
  scores_.resize(rows_.size());
  for (std::int64_t i = 0; i < top.nodes; ++i)
    rows_[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(i);
  distances_.of(top.codes.data(), rows_.data(), top.nodes, scores_.data());
  scored_ += top.nodes;
  wanted_.reset(effort.ef);
  for (std::int64_t i = 0; i < top.nodes; ++i) {
    const std::uint64_t key =
        key_of(scores_[static_cast<std::size_t>(i)], static_cast<std::uint32_t>(i));
    if (static_cast<std::uint32_t>(i) == without.back()) continue;
    pool_.insert(key);
    if (one_layer && wanted && (*wanted)(static_cast<std::uint32_t>(i))) wanted_.insert(key);
  }
  nearest_start_ = pool_.size() > 0 ? static_cast<std::uint32_t>(pool_[0] >> 32) : 0;
  Pool next;
  for (std::int64_t l = layers - 2; l >= 0; --l) {
    nearest_start_ = pool_.size() > 0 ? static_cast<std::uint32_t>(pool_[0] >> 32) : 0;
    next.reset(l == 0 ? effort.ef : effort.starts);
    if (without[static_cast<std::size_t>(l)] != no_node) see(without[static_cast<std::size_t>(l)]);
    for (std::int64_t i = 0; i < std::min(pool_.size(), next.most()); ++i) {
      const std::uint32_t node = RowGraph::below(node_of(pool_[i]));
      const std::uint64_t key = key_of(static_cast<std::uint32_t>(pool_[i] >> 32), node);
      if (!see(node)) continue;
      next.insert(key);
      if (l == 0 && wanted && (*wanted)(node)) wanted_.insert(key);
    }
    std::swap(pool_, next);
    walk_layer(graph_.layers[static_cast<std::size_t>(l)], pool_, l == 0 ? wanted : nullptr);
    forget();
  }
  Pool& found = wanted ? wanted_ : pool_;
  candidates_.clear();
  for (std::int64_t i = 0; i < found.size(); ++i)
    candidates_.push_back({static_cast<std::uint32_t>(found[i] >> 32), node_of(found[i])});
}

void GraphWalk::walk_layer(const RowGraph::Layer& layer, Pool& pool,
                           const std::function<bool(std::uint32_t)>* wanted) {
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
      rows_[static_cast<std::size_t>(count++)] = links[j];
    }
    distances_.of(codes, rows_.data(), count, scores_.data());
    scored_ += count;
    std::int64_t first = at + 1;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t node = rows_[static_cast<std::size_t>(i)];
      const std::uint64_t key = key_of(scores_[static_cast<std::size_t>(i)], node);
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

}  // namespace knear::detail
