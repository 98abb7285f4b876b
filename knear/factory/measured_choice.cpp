// The choice by a sample: rows that each form scores for the recall, counted on the sample,
// extrapolated to all rows, and made seconds of by the model of costs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/sample.hpp"
#include "knear/cost/graph_plan.hpp"
#include "knear/cost/list_plan.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/cost/plan.hpp"
#include "knear/factory/factory.hpp"
#include "knear/factory/forms_to_choose.hpp"

namespace knear {
namespace {

constexpr std::int64_t neighbours = 10;
constexpr std::int64_t most_sample = 60'000, sample_share = 40, sample_queries = 200;
constexpr std::uint64_t sample_seed = 1;
constexpr std::int64_t most_lists = 1 << 24;

// The rows that a query scores grow with a power of the number of rows: the nearer to 1, the larger
// the share of the sample is that a query scores. Fitted to five sets of 20,000 to 137,770 rows at
// three recalls (docs/measurements/lists.md); a graph grows more slowly than lists, of which there
// are as many as the root of the number of rows.
double lists_growth(double share) { return std::clamp(0.38 + 0.72 * share, 0.4, 1.); }
double graph_growth(double share) { return std::clamp(1.1 * share - 0.03, 0.05, 0.45); }

// Searches for a recall promise it to batches of 1,000 queries, for which they expect this much.
double expected_for(double recall) { return std::min(1., recall + 0.0465 * std::sqrt(1 - recall)); }

// What one query for a recall takes in lists beside the model, to stop at the right list.
constexpr double single_recall_seconds = 10e-6;

// A walk that keeps the least number of nodes scores about this many.
constexpr double least_scored_nodes = 250;
// A walk that estimates looks at a node more than once, and at some that others never come to: at
// this many for each node that a walk without estimates scores (docs/measurements/graphs.md).
constexpr double estimates_of_a_node = 2.2;

// A graph takes ten times as long to make as lists, and more memory; lists are trained, and find
// all neighbours only by chance. Each has to save this much against what is simpler.
constexpr double worth_of_graph = 0.8, worth_of_lists = 0.8;
// Few links are slow for queries that are harder than those of the sample.
constexpr double worth_of_few_links = 0.96;

// A sample in two parts: rows, and queries that are none of them.
struct Sample {
  AnyMatrix rows, queries;
};

// Throws InvalidArgument for a NaN or infinity in one of these rows.
void check_finite(AnyMatrixView vectors, std::span<const std::int64_t> which) {
  visit(vectors, [&](auto typed) {
    for (const std::int64_t row : which)
      for (std::int64_t j = 0; j < typed.cols(); ++j)
        if (const auto x = to_double(typed.row(row)[j]); !std::isfinite(x))
          throw InvalidArgument("sample must be finite, but row {} column {} is {}", row, j, x);
  });
}

Sample drawn(AnyMatrixView vectors, std::int64_t rows) {
  Random random(sample_seed);
  const std::int64_t most = std::clamp(rows / sample_share, least_sample, most_sample);
  const std::vector<std::int64_t> all =
      detail::sample_of(vectors.rows(), std::min(vectors.rows(), most), random);
  check_finite(vectors, all);
  const auto count = static_cast<std::int64_t>(all.size());
  std::vector<std::int64_t> queries, others;
  const std::vector<std::int64_t> chosen = detail::sample_of(count, sample_queries, random);
  auto next = chosen.begin();
  for (std::int64_t i = 0; i < count; ++i) {
    const bool query = next != chosen.end() && *next == i;
    (query ? queries : others).push_back(all[i]);
    if (query) ++next;
  }
  return {detail::rows_at(vectors, others), detail::rows_at(vectors, queries)};
}

std::int64_t root_of(std::int64_t rows) {
  return std::int64_t{1} << static_cast<int>(
             std::round(std::log2(std::sqrt(static_cast<double>(rows)))));
}

class Measurement {
 public:
  Measurement(std::int64_t rows, const IndexNeeds& needs, const ChangeOptions& options)
      : rows_(rows),
        needs_(needs),
        options_(options),
        sample_(drawn(needs.sample, rows)),
        growth_(static_cast<double>(rows) / static_cast<double>(sample_.rows.rows())),
        peaks_(planning_peaks(active_isa(), 1)) {}

  std::int64_t measured_rows() const { return sample_.rows.rows(); }

  FormForecast flat() const {
    const bool whole = detail::kept_as_bytes(needs_);
    const ScanCost cost = predict_scan({.rows = rows_,
                                        .dim = dim(),
                                        .queries = needs_.batch,
                                        .k = neighbours,
                                        .bytes_per_element = 1,
                                        .op = ScanOp::int8,
                                        .whole = whole},
                                       peaks_);
    return {"Flat", each(cost.seconds), static_cast<double>(rows_),
            bytes(detail::vector_row_bytes(dim(), needs_, false))};
  }

  // `times` as many lists as the root of the number of rows. No value where the sample does not
  // reach the recall.
  std::optional<FormForecast> lists(double times) const {
    const std::int64_t lists = std::min(scaled(root_of(rows_), times), most_lists);
    const auto of_sample = scaled(root_of(measured_rows()), times);
    Index index = make_index(fmt::format("IVF{},Flat", of_sample), dim(), needs_.metric);
    index.train(sample_.rows, {.threads = options_.threads, .progress = options_.progress});
    const std::optional<OperatingPoint> point = reached(index);
    if (!point) return {};
    const double scored = std::min(static_cast<double>(rows_),
                                   point->rows * std::pow(growth_, lists_growth(share(*point))));
    const double probes = point->probes * (scored / point->rows) *
                          (static_cast<double>(lists) / static_cast<double>(of_sample)) / growth_;
    const ListCost cost =
        predict_lists({.rows = rows_,
                       .dim = dim(),
                       .queries = needs_.batch,
                       .k = neighbours,
                       .lists = lists,
                       .probes = std::clamp(probes, 1., static_cast<double>(lists)),
                       .probed_rows = scored,
                       .whole = detail::kept_as_bytes(needs_)},
                      peaks_);
    return FormForecast{detail::lists_in_words(lists, needs_.batch) + "Flat",
                        each(cost.seconds + (needs_.batch == 1 ? single_recall_seconds : 0)),
                        scored,
                        bytes(detail::vector_row_bytes(dim(), needs_, true)) + 4 * lists * dim()};
  }

  std::optional<FormForecast> graph(std::int64_t links) const {
    const std::string name = fmt::format("Graph{}", links);
    Index index = make_index(name, dim(), needs_.metric);
    const std::optional<OperatingPoint> point = reached(index);
    if (!point) return {};
    const double looks = looks_at_a_node(links);
    const double scored = point->rows * std::pow(growth_, graph_growth(share(*point) / looks));
    const double seconds = predict_graph({.rows = rows_,
                                          .dim = dim(),
                                          .links = links,
                                          .queries = needs_.batch,
                                          .scored_rows = scored},
                                         peaks_);
    return FormForecast{name, each(seconds), scored, graph_bytes(links)};
  }

  // A graph that scores next to nothing.
  double least_graph_seconds() const {
    return each(
        predict_graph({.rows = rows_,
                       .dim = dim(),
                       .queries = needs_.batch,
                       .scored_rows = looks_at_a_node(detail::guessed_links) * least_scored_nodes},
                      peaks_));
  }

  std::int64_t graph_bytes(std::int64_t links) const {
    return bytes(detail::graph_row_bytes(dim(), links, needs_));
  }

 private:
  std::int64_t dim() const { return sample_.rows.cols(); }
  double each(double seconds) const { return seconds / static_cast<double>(needs_.batch); }
  std::int64_t bytes(double of_row) const {
    return static_cast<std::int64_t>(static_cast<double>(rows_) * of_row);
  }
  double looks_at_a_node(std::int64_t links) const {
    return GraphShape{.dim = dim(), .links = links}.estimates() ? estimates_of_a_node : 1;
  }
  double share(const OperatingPoint& point) const {
    return point.rows / static_cast<double>(measured_rows());
  }
  static std::int64_t scaled(std::int64_t lists, double times) {
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::llround(static_cast<double>(lists) * times)));
  }

  // What the recall costs in an index of the sample.
  std::optional<OperatingPoint> reached(Index& index) const {
    index.add(sample_.rows, options_);
    for (const OperatingPoint& point : index.tune(neighbours, sample_.queries, options_))
      if (point.expected_recall >= expected_for(needs_.recall)) return point;
    return {};
  }

  std::int64_t rows_;
  IndexNeeds needs_;
  ChangeOptions options_;
  Sample sample_;
  double growth_;  // of the number of rows, from the sample to all
  const MachinePeaks& peaks_;
};

std::string readable_time(double seconds) {
  const double us = 1e6 * seconds;
  return us < 1000 ? fmt::format("{:.3g} us", us) : fmt::format("{:.3g} ms", us / 1000);
}

std::string reason_of(const std::vector<FormForecast>& forms, std::size_t chosen,
                      std::int64_t measured, std::int64_t rows, std::int64_t dim,
                      const IndexNeeds& needs) {
  std::string out = fmt::format(
      "{}: measured on {} vectors for {} x {}, a recall of {} and {} quer{} a call, a query takes "
      "about ",
      forms[chosen].factory, measured, rows, dim, needs.recall, needs.batch,
      needs.batch == 1 ? "y" : "ies");
  for (std::size_t i = 0; i < forms.size(); ++i)
    out += fmt::format("{}{} in {} ({:.0f} rows, {})", i == 0 ? "" : ", ",
                       readable_time(forms[i].seconds), forms[i].factory, forms[i].scored_rows,
                       detail::readable_size(static_cast<double>(forms[i].bytes)));
  if (chosen != 0)
    out += fmt::format("; {} takes little longer and is preferred", forms[chosen].factory);
  return out;
}

// The share of the time of `other` that `fastest` may take at most to be chosen before it.
double worth(const FormForecast& fastest, const FormForecast& other) {
  const auto walks = [](const FormForecast& form) { return form.factory.starts_with("Graph"); };
  if (walks(fastest) && walks(other)) return fastest.bytes < other.bytes ? worth_of_few_links : 1;
  if (walks(fastest)) return worth_of_graph;
  return other.factory == "Flat" ? worth_of_lists : 1;
}

}  // namespace

IndexChoice detail::measured_choice(std::int64_t rows, const IndexNeeds& needs,
                                    const ChangeOptions& options) {
  const Measurement measurement(rows, needs, options);
  const auto fits = [&](const FormForecast& form) {
    return needs.memory == 0 || form.bytes <= needs.memory;
  };
  std::vector<FormForecast> forms;
  const auto consider = [&](std::optional<FormForecast> form) {
    if (form && fits(*form)) forms.push_back(std::move(*form));
  };
  consider(measurement.flat());
  // Queries that share lists are fastest in few long ones.
  const double least = needs.batch < detail::few_queries ? 1 : 0.25;
  for (const double times : {1., 2., 4.}) consider(measurement.lists(times * least));
  const auto faster = [](const FormForecast& a, const FormForecast& b) {
    return a.seconds < b.seconds;
  };
  // A graph is not made where the least walk would save too little, and none with fewer links,
  // which suit lower recalls, where one with many saves too little.
  const auto saves_enough = [&](double seconds) {
    const auto best = std::min_element(forms.begin(), forms.end(), faster);
    return best == forms.end() || seconds < worth_of_graph * best->seconds;
  };
  std::optional<FormForecast> graph;
  if (saves_enough(measurement.least_graph_seconds()) &&
      (needs.memory == 0 || measurement.graph_bytes(detail::few_links) <= needs.memory))
    graph = measurement.graph(detail::guessed_links);
  if (graph && saves_enough(graph->seconds)) consider(measurement.graph(detail::few_links));
  consider(std::move(graph));
  if (forms.empty()) return {};
  std::stable_sort(forms.begin(), forms.end(), faster);
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < forms.size(); ++i)
    if (forms[chosen].seconds > worth(forms[chosen], forms[i]) * forms[i].seconds) chosen = i;
  return {.factory = forms[chosen].factory,
          .reason = reason_of(forms, chosen, measurement.measured_rows(), rows, needs.sample.cols(),
                              needs),
          .bytes = forms[chosen].bytes,
          .forecasts = std::move(forms)};
}

}  // namespace knear
