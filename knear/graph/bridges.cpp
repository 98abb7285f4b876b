#include "knear/graph/bridges.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "knear/core/public_call.hpp"
#include "knear/core/sample.hpp"
#include "knear/graph/disjoint_sets.hpp"
#include "knear/knn/knn.hpp"

namespace knear {
namespace {

// Components of so many rows are searched for together: of their nearest rows and themselves one
// more than they have rows must lie elsewhere.
constexpr std::int64_t small = 64;

class BridgeSearch {
 public:
  BridgeSearch(AnyMatrixView base, const Components& parts, Metric metric, int threads,
               const Progress& progress)
      : base_(base),
        options_{.metric = metric, .threads = threads, .progress = progress},
        sets_(base.rows()),
        searcher_(base, options_) {
    std::vector<Id> first(parts.sizes.size(), no_id);
    for (Id row = 0; row < base.rows(); ++row) {
      Id& own = first[parts.of_row[row]];
      if (own == no_id) own = row;
      sets_.join(own, row);
    }
    count_ = std::ssize(parts.sizes);
  }

  std::vector<Bridge> run() {
    std::vector<Bridge> out;
    while (count_ > 1) {
      for (const Bridge& bridge : nearest_of_each()) {
        if (!sets_.join(bridge.from, bridge.to)) continue;
        out.push_back(bridge);
        --count_;
      }
    }
    std::sort(out.begin(), out.end(),
              [this](const Bridge& a, const Bridge& b) { return before(a, b); });
    return out;
  }

 private:
  // Nearest first; ties by ids, so that rounds do not depend on how components were searched.
  bool before(const Bridge& a, const Bridge& b) const {
    if (a.distance != b.distance)
      return larger_is_nearer(options_.metric) ? a.distance > b.distance : a.distance < b.distance;
    return std::pair(std::min(a.from, a.to), std::max(a.from, a.to)) <
           std::pair(std::min(b.from, b.to), std::max(b.from, b.to));
  }
  void offer(Bridge& best, const Bridge& found) const {
    if (best.from == no_id || before(found, best)) best = found;
  }

  // The nearest pair with a row elsewhere, of each component but the largest.
  std::vector<Bridge> nearest_of_each() {
    std::vector<std::vector<Id>> members = components();
    std::vector<Bridge> out(members.size());
    std::vector<Id> together;
    std::vector<std::size_t> component_of;
    std::int64_t most = 0;
    for (std::size_t c = 0; c < members.size(); ++c) {
      if (std::ssize(members[c]) > small) {
        search_large(members[c], out[c]);
        continue;
      }
      most = std::max(most, std::ssize(members[c]));
      for (const Id row : members[c]) together.push_back(row), component_of.push_back(c);
    }
    if (together.empty()) return out;
    const AnyMatrix queries = detail::rows_at(base_, together);
    const Neighbors near = searcher_.search(queries, most + 1, options_);
    for (std::size_t i = 0; i < together.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      for (std::int64_t j = 0; j <= most; ++j)
        if (const Id other = near.ids.row(row)[j];
            other != no_id && sets_.find(other) != sets_.find(together[i]))
          offer(out[component_of[i]], {together[i], other, near.distances.row(row)[j]});
    }
    return out;
  }

  void search_large(const std::vector<Id>& members, Bridge& best) {
    std::vector<Id> others;
    for (Id row = 0; row < base_.rows(); ++row)
      if (sets_.find(row) != sets_.find(members.front())) others.push_back(row);
    KnnOptions options = options_;
    options.filter = RowFilter::of_ids(others, base_.rows());
    const AnyMatrix queries = detail::rows_at(base_, members);
    const Neighbors near = searcher_.search(queries, 1, options);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      offer(best, {members[i], near.ids.row(row)[0], near.distances.row(row)[0]});
    }
  }

  // The rows of each component but the largest, of several the one with the first row.
  std::vector<std::vector<Id>> components() {
    std::vector<std::int64_t> number(base_.rows(), -1);
    std::vector<std::vector<Id>> out;
    for (Id row = 0; row < base_.rows(); ++row) {
      std::int64_t& own = number[sets_.find(row)];
      if (own < 0) own = std::ssize(out), out.emplace_back();
      out[own].push_back(row);
    }
    out.erase(std::max_element(out.begin(), out.end(),
                               [](const auto& a, const auto& b) { return a.size() < b.size(); }));
    return out;
  }

  AnyMatrixView base_;
  KnnOptions options_;
  detail::DisjointSets sets_;
  ExactSearcher searcher_;
  std::int64_t count_ = 0;
};

}  // namespace

std::vector<Bridge> bridges(AnyMatrixView base, const Components& parts, Metric metric, int threads,
                            const Progress& progress) {
  return detail::public_call([&] {
    if (std::ssize(parts.of_row) != base.rows())
      throw ShapeMismatch("components are of {} rows, but base has {}", parts.of_row.size(),
                          base.rows());
    if (parts.sizes.size() <= 1) return std::vector<Bridge>{};
    return BridgeSearch(base, parts, metric, threads, progress).run();
  });
}

std::vector<Bridge> bridges_between(std::span<const Bridge> all, const Components& parts, Id from,
                                    Id to) {
  return detail::public_call([&] {
    const auto part_of = [&](const char* name, Id row) {
      if (row < 0 || row >= std::ssize(parts.of_row))
        throw InvalidArgument("{} is row {}, but there are {} rows", name, row,
                              parts.of_row.size());
      return parts.of_row[row];
    };
    const std::size_t start = part_of("from", from), end = part_of("to", to);
    std::vector<std::vector<Bridge>> from_part(parts.sizes.size());
    for (const Bridge& bridge : all) {
      from_part[part_of("a bridge", bridge.from)].push_back(bridge);
      from_part[part_of("a bridge", bridge.to)].push_back(
          {bridge.to, bridge.from, bridge.distance});
    }
    // Looked for from its end, so that each component knows what leads on to there.
    std::vector<Bridge> leads_on(parts.sizes.size());
    std::vector<std::size_t> open{end};
    for (std::size_t i = 0; i < open.size() && open[i] != start; ++i)
      for (const Bridge& bridge : from_part[open[i]]) {
        const std::size_t part = part_of("a bridge", bridge.to);
        if (part == end || leads_on[part].from != no_id) continue;
        leads_on[part] = {bridge.to, bridge.from, bridge.distance};
        open.push_back(part);
      }
    std::vector<Bridge> out;
    for (std::size_t part = start; part != end; part = part_of("a bridge", out.back().to)) {
      if (leads_on[part].from == no_id)
        throw InvalidArgument("no bridges lead from row {} to row {}", from, to);
      out.push_back(leads_on[part]);
    }
    return out;
  });
}

SparseGraph with_bridges(SparseGraphView graph, std::span<const Bridge> more) {
  return detail::public_call([&] {
    check_graph(graph);
    std::vector<std::pair<Id, std::pair<Id, float>>> ends;
    for (const Bridge& bridge : more) {
      for (const Id row : {bridge.from, bridge.to})
        if (row < 0 || row >= graph.rows())
          throw InvalidArgument("a bridge has row {}, but the graph has {} rows", row,
                                graph.rows());
      ends.push_back({bridge.from, {bridge.to, bridge.distance}});
      ends.push_back({bridge.to, {bridge.from, bridge.distance}});
    }
    std::sort(ends.begin(), ends.end());
    SparseGraph out;
    out.begin.reserve(graph.begin.size());
    auto next = ends.begin();
    for (Id row = 0; row < graph.rows(); ++row) {
      std::vector<std::pair<Id, float>> edges;
      for (auto e = static_cast<std::size_t>(graph.begin[row]);
           e < static_cast<std::size_t>(graph.begin[row + 1]); ++e)
        edges.push_back({graph.ids[e], graph.distances[e]});
      const std::size_t own = edges.size();
      for (; next != ends.end() && next->first == row; ++next) edges.push_back(next->second);
      if (edges.size() > own) std::sort(edges.begin(), edges.end());
      for (const auto& [id, distance] : edges)
        out.ids.push_back(id), out.distances.push_back(distance);
      out.begin.push_back(std::ssize(out.ids));
    }
    return out;
  });
}

}  // namespace knear
