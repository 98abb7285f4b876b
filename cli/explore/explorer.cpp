#include "cli/explore/explorer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/explore/lower.hpp"
#include "cli/graph_text.hpp"
#include "cli/interrupt.hpp"
#include "knear/core/error.hpp"
#include "knear/core/version.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/cost/plan.hpp"
#include "knear/graph/statistics.hpp"

namespace knear::cli {
namespace {

constexpr std::int64_t most_found = 50, shown_hubs = 24, shown_components = 24;
// Numbers of a vector that the page draws.
constexpr std::int64_t most_numbers = 4096;

std::vector<std::int32_t> count_in_degrees(MatrixView<Id> ids) {
  std::vector<std::int32_t> out(ids.rows(), 0);
  for (Id i = 0; i < ids.rows(); ++i)
    for (std::int64_t j = 0; j < ids.cols(); ++j)
      if (ids.row(i)[j] != no_id) ++out[ids.row(i)[j]];
  return out;
}

}  // namespace

Explorer::Explorer(Items items, NeighborGraph graph, const Options& options)
    : items_(std::move(items)),
      graph_(std::move(graph)),
      options_(options),
      finder_(graph_.ids(), graph_.distances(), graph_.metric(), options.threads),
      components_(knear::components(graph_.ids())),
      in_degrees_(count_in_degrees(graph_.ids())),
      statistics_(json_of(statistics_of(graph_, shown_hubs))) {
  if (!items_.index)
    searcher_.emplace(items_.rows,
                      KnnOptions{.metric = graph_.metric(), .threads = options.threads});
}

void Explorer::check_item(const char* name, Id id) const {
  if (id < 0 || id >= graph_.rows())
    throw InvalidArgument("{} is row {}, but the base has {} rows", name, id, graph_.rows());
}

nlohmann::ordered_json Explorer::info() const {
  nlohmann::ordered_json out = describe_graph(graph_);
  out["name"] = items_.name;
  out["kind"] = name_of(items_.kind);
  out["width"] = items_.width, out["height"] = items_.height;
  out["classes"] = items_.class_names;
  out["labelled"] = !items_.labels.empty() || !items_.classes.empty();
  out["version"] = KNEAR_VERSION;
  out["statistics"] = statistics_;
  // The largest components, with the first row of each.
  std::vector<Id> first(components_.sizes.size(), no_id);
  for (Id i = graph_.rows(); i-- > 0;) first[components_.of_row[i]] = i;
  std::vector<std::size_t> order(first.size());
  for (std::size_t c = 0; c < order.size(); ++c) order[c] = c;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return components_.sizes[a] > components_.sizes[b];
  });
  auto parts = nlohmann::ordered_json::array();
  for (std::size_t c = 0; c < std::min<std::size_t>(order.size(), shown_components); ++c)
    parts.push_back({{"component", order[c]},
                     {"rows", components_.sizes[order[c]]},
                     {"first", first[order[c]]}});
  out["largest_components"] = parts;
  // Where to begin: between the first row of the largest component and its first of another class,
  // or its last row.
  Id from = options_.from, to = options_.to;
  if (from == no_id) from = first[order[0]];
  for (Id i = 0; to == no_id && i < graph_.rows() && !items_.classes.empty(); ++i)
    if (components_.of_row[i] == components_.of_row[from] &&
        items_.classes[i] != items_.classes[from])
      to = i;
  for (Id i = graph_.rows(); to == no_id && i-- > 0;)
    if (components_.of_row[i] == components_.of_row[from]) to = i;
  out["from"] = from, out["to"] = to;
  return out;
}

nlohmann::ordered_json Explorer::item(Id id) const {
  check_item("item", id);
  const std::size_t place = id;
  auto neighbors = nlohmann::ordered_json::array();
  for (std::int64_t j = 0; j < graph_.k(); ++j)
    if (const Id other = graph_.ids().row(id)[j]; other != no_id)
      neighbors.push_back({{"id", other},
                           {"distance", graph_.distances().row(id)[j]},
                           {"label", items_.label(other)}});
  nlohmann::ordered_json out = {{"id", id},
                                {"label", items_.label(id)},
                                {"component", components_.of_row[place]},
                                {"in_degree", in_degrees_[place]},
                                {"neighbors", neighbors}};
  if (items_.kind == Items::Kind::images) out["file"] = items_.images.names[place];
  if (items_.kind == Items::Kind::vectors) {
    std::vector<float> numbers = items_.numbers(id);
    numbers.resize(std::min<std::size_t>(numbers.size(), most_numbers));
    out["numbers"] = numbers;
  }
  return out;
}

// The length of an edge as the graph has it: of both directions the nearer.
double Explorer::step(Id a, Id b) const {
  double out = 0;
  bool found = false;
  for (const auto& [row, other] : {std::pair(a, b), std::pair(b, a)})
    for (std::int64_t j = 0; j < graph_.k(); ++j)
      if (graph_.ids().row(row)[j] == other) {
        const double distance = graph_.distances().row(row)[j];
        if (!found) out = distance;
        out = larger_is_nearer(graph_.metric()) ? std::max(out, distance) : std::min(out, distance);
        found = true;
      }
  return out;
}

nlohmann::ordered_json Explorer::path(Id from, Id to) const {
  check_item("from", from), check_item("to", to);
  const auto start = std::chrono::steady_clock::now();
  const SmoothPath path = finder_.path(from, to);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  nlohmann::ordered_json out = {{"from", from},
                                {"to", to},
                                {"metric", name_of(graph_.metric())},
                                {"path", path.ids},
                                {"connected", path.found()},
                                {"largest_step", nullptr},
                                {"sum_of_steps", nullptr}};
  if (path.found())
    out["largest_step"] = path.largest_step, out["sum_of_steps"] = path.sum_of_steps;
  else
    out["gap_seconds"] = gap_seconds();
  auto steps = nlohmann::ordered_json::array(), labels = nlohmann::ordered_json::array();
  for (std::size_t i = 1; i < path.ids.size(); ++i)
    steps.push_back(step(path.ids[i - 1], path.ids[i]));
  for (const Id id : path.ids) labels.push_back(items_.label(id));
  out["steps"] = steps, out["labels"] = labels, out["seconds"] = seconds;
  return out;
}

double Explorer::gap_seconds() const {
  if (components_.sizes.size() <= 1 || gaps_known_) return 0;
  const std::int64_t outside =
      graph_.rows() - *std::max_element(components_.sizes.begin(), components_.sizes.end());
  const ScanShape shape{.rows = graph_.rows(),
                        .dim = items_.rows.cols(),
                        .queries = outside,
                        .k = 2,
                        .bytes_per_element = 1,
                        .op = ScanOp::int8,
                        .threads = options_.threads};
  // Later rounds have fewer rows outside of the largest part.
  return 2 * predict_scan(shape, planning_peaks(active_isa(), options_.threads)).seconds;
}

const std::vector<Bridge>& Explorer::gaps() const {
  std::lock_guard lock(finding_gaps_);
  if (gaps_) return *gaps_;
  if (const double seconds = gap_seconds(); seconds > longest_gap_seconds)
    throw InvalidArgument(
        "to find the gaps between {} components may take {:.0f} s, more than the {:.0f} s that a "
        "page may: knear path --graph FILE --base FILE --from ROW --to ROW names them",
        components_.sizes.size(), seconds, longest_gap_seconds);
  gaps_ = bridges(items_.rows, components_, graph_.metric(), options_.threads,
                  [](std::string_view, double) { return !interrupted(); });
  gaps_known_ = true;
  return *gaps_;
}

nlohmann::ordered_json Explorer::gap(Id from, Id to) const {
  check_item("from", from), check_item("to", to);
  auto crossed = nlohmann::ordered_json::array();
  if (components_.of_row[from] != components_.of_row[to])
    for (const Bridge& gap : bridges_between(gaps(), components_, from, to))
      crossed.push_back({{"from", gap.from},
                         {"to", gap.to},
                         {"distance", gap.distance},
                         {"labels", {items_.label(gap.from), items_.label(gap.to)}}});
  return {{"from", from}, {"to", to}, {"gaps", crossed}};
}

nlohmann::ordered_json Explorer::search(const std::vector<float>& vector, std::int64_t k) const {
  const MatrixView<float> query(vector.data(), 1, std::ssize(vector));
  const std::int64_t wanted =
      std::clamp<std::int64_t>(k, 1, std::min<std::int64_t>(100, graph_.rows()));
  const auto start = std::chrono::steady_clock::now();
  Neighbors near;
  if (searcher_) {
    near =
        searcher_->search(query, wanted, {.metric = graph_.metric(), .threads = options_.threads});
  } else {
    SearchOptions options{.threads = options_.threads};
    options.method.kind = Method::exact;
    near = items_.index->search(query, wanted, options);
  }
  auto found = nlohmann::ordered_json::array();
  for (std::int64_t j = 0; j < near.ids.cols(); ++j) {
    const Id id = near.ids.row(0)[j];
    if (id == no_id) continue;
    const float distance = near.distances.row(0)[j];
    if (!std::isfinite(distance))
      throw InvalidArgument("the distance of vector to row {} is beyond float32", id);
    found.push_back({{"id", id}, {"distance", distance}, {"label", items_.label(id)}});
  }
  return {
      {"neighbors", found},
      {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}};
}

nlohmann::ordered_json Explorer::find(const std::string& text) const {
  const std::string wanted = lower(text);
  auto found = nlohmann::ordered_json::array();
  bool more = false;
  const bool labelled = !items_.labels.empty() || !items_.classes.empty();
  for (Id i = 0; labelled && !wanted.empty() && i < graph_.rows() && !more; ++i) {
    const std::string label = items_.label(i);
    if (lower(label).find(wanted) == std::string::npos) continue;
    more = std::ssize(found) == most_found;
    if (!more) found.push_back({{"id", i}, {"label", label}});
  }
  return {{"found", found}, {"more", more}};
}

}  // namespace knear::cli
