// The choice by a sample: rows that each form scores for the recall, counted on the sample,
// extrapolated to all rows, and made seconds of by the model of costs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <string>
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
#include "knear/knn/report.hpp"

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
// The same for vectors in two lists. A row that is scored twice counts twice.
double two_lists_growth(double share) { return std::clamp(0.4 + 0.45 * share, 0.4, 1.); }
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
// all neighbours only by chance; second lists take memory and are searched by the processor only;
// codes find less of queries that are unlike the vectors. Each has to save this much against what
// is simpler.
constexpr double worth_of_graph = 0.8, worth_of_lists = 0.8, worth_of_two_lists = 0.8,
                 worth_of_codes = 0.8;
// Second lists pay where clusters overlap. Lists of vectors in clusters that lie apart find the
// recall in a smaller share of the sample than this.
constexpr double least_share_of_two_lists = 0.15;
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

  // `times` as many lists as the root of the number of rows, in the sample and in all.
  struct ListCount {
    std::int64_t of_sample, of_all;
  };
  ListCount list_count(double times) const {
    return {scaled(root_of(measured_rows()), times),
            std::min(scaled(root_of(rows_), times), most_lists)};
  }
  // Bytes of the index of vectors, of `row_bytes` bytes a row, in this many lists.
  std::int64_t list_bytes(double row_bytes, std::int64_t lists) const {
    return bytes(row_bytes) + 4 * lists * dim();
  }
  double vector_row_bytes() const { return detail::vector_row_bytes(dim(), needs_, true); }

  // Measures what a recall costs in lists of the sample. Returns no value where the sample does not
  // reach it.
  std::optional<OperatingPoint> lists_of_sample(const ListCount& lists, bool twice) const {
    Index index = make_index(fmt::format("IVF{}{},Flat", lists.of_sample, twice ? "_SOAR" : ""),
                             dim(), needs_.metric);
    index.train(sample_.rows, {.threads = options_.threads, .progress = options_.progress});
    return reached(index);
  }
  // The same in lists of all rows, which are kept as `form`.
  FormForecast lists(const ListCount& lists, const OperatingPoint& point, std::string form,
                     double row_bytes) const {
    const ListShape shape = in_all(lists, point.probes, point.rows);
    return {detail::lists_in_words(lists.of_all, needs_.batch) + std::move(form),
            list_seconds(shape), shape.probed_rows, list_bytes(row_bytes, lists.of_all)};
  }
  // The same where each vector is in two lists. Those of the sample count each of them.
  std::optional<FormForecast> two_lists(const ListCount& lists) const {
    if (lists.of_sample < 2 || lists.of_all > detail::most_lists_compared) return {};
    const double row_bytes =
        vector_row_bytes() + detail::second_list_row_bytes(rows_, dim(), lists.of_all);
    if (!fits(list_bytes(row_bytes, lists.of_all))) return {};
    const std::optional<OperatingPoint> point = lists_of_sample(lists, true);
    if (!point) return {};
    const ListShape shape = in_all(lists, point->probes, point->rows, 2);
    return FormForecast{fmt::format("IVF{}_SOAR,Flat", lists.of_all), list_seconds(shape),
                        shape.probed_rows, list_bytes(row_bytes, lists.of_all)};
  }
  // Codes in lists, by searches of the sample with more and more probes. No value where they do not
  // fit the memory, or do not reach the recall.
  std::optional<FormForecast> codes(const ListCount& lists, const detail::RowForm& form) const {
    const auto size = static_cast<std::int64_t>(
        detail::coded_index_bytes(rows_, dim(), form.row_bytes, lists.of_all));
    if (!fits(size)) return {};
    Index index =
        make_index(fmt::format("IVF{},{}", lists.of_sample, form.form), dim(), needs_.metric);
    index.train(sample_.rows,
                {.hold_out = false, .threads = options_.threads, .progress = options_.progress});
    index.add(sample_.rows, options_);
    const bool refined = form.form.find("Refine(") != std::string::npos;
    const Neighbors truth = true_neighbors();
    std::optional<FormForecast> best;
    for (const std::int64_t factor : {4, 16}) {
      for (std::int64_t probes = 1;;
           probes = std::min(lists.of_sample, probes + (probes + 1) / 2)) {
        KnnReport report;
        const Neighbors found = index.search(
            sample_.queries, neighbours,
            {.threads = options_.threads,
             .progress = options_.progress,
             .method = {.probes = probes, .codes = {.refine_factor = refined ? factor : 0}}},
            &report);
        if (mean_recall(found, truth) >= expected_for(needs_.recall)) {
          ListShape shape = in_all(lists, report.lists.probes, report.scan.probed_rows);
          shape.code_parts = report.codes.parts, shape.code_bits = report.codes.bits;
          shape.measured_rows = report.scan.refined_per_query;
          shape.decoded = report.codes.refined_by_codes;
          const double seconds = list_seconds(shape);
          if (!best || seconds < best->seconds)
            best = {detail::lists_in_words(lists.of_all, needs_.batch) + form.form, seconds,
                    shape.probed_rows, size};
          break;
        }
        if (probes == lists.of_sample) break;
      }
      if (!refined) break;
    }
    return best;
  }
  bool fits(std::int64_t size) const { return needs_.memory == 0 || size <= needs_.memory; }
  // The share of the sample that a query scores in lists.
  double share(const OperatingPoint& point) const { return share(point.rows); }

  std::optional<FormForecast> graph(std::int64_t links) const {
    const std::string name = fmt::format("Graph{}", links);
    Index index = make_index(name, dim(), needs_.metric);
    const std::optional<OperatingPoint> point = reached(index);
    if (!point) return {};
    const double looks = looks_at_a_node(links);
    const double scored = point->rows * std::pow(growth_, graph_growth(share(point->rows) / looks));
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
  double share(double scored) const { return scored / static_cast<double>(measured_rows()); }
  // A search of all rows, `places` times in lists, if one of the sample probes so many lists and
  // rows.
  ListShape in_all(const ListCount& lists, double probes, double scored, int places = 1) const {
    ListShape shape{.rows = rows_,
                    .dim = dim(),
                    .queries = needs_.batch,
                    .k = neighbours,
                    .lists = lists.of_all,
                    .whole = detail::kept_as_bytes(needs_)};
    const double growth =
        places == 2 ? two_lists_growth(share(scored)) : lists_growth(share(scored));
    shape.probed_rows =
        std::min(places * static_cast<double>(rows_), scored * std::pow(growth_, growth));
    const double more_lists =
        static_cast<double>(lists.of_all) / static_cast<double>(lists.of_sample);
    shape.probes = std::clamp(probes * (shape.probed_rows / scored) * more_lists / growth_, 1.,
                              static_cast<double>(lists.of_all));
    return shape;
  }
  // Seconds of a query.
  double list_seconds(const ListShape& shape) const {
    return each(predict_lists(shape, peaks_).seconds +
                (needs_.batch == 1 ? single_recall_seconds : 0));
  }
  static std::int64_t scaled(std::int64_t lists, double times) {
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::llround(static_cast<double>(lists) * times)));
  }

  // The nearest rows of the sample to each of its queries.
  Neighbors true_neighbors() const {
    Index exact = make_index("Flat", dim(), needs_.metric);
    exact.add(sample_.rows, options_);
    return exact.search(sample_.queries, neighbours,
                        {.threads = options_.threads, .progress = options_.progress});
  }
  static double mean_recall(const Neighbors& found, const Neighbors& truth) {
    std::int64_t hits = 0;
    for (std::int64_t q = 0; q < truth.ids.rows(); ++q) {
      const Id* const ids = found.ids.row(q);
      for (std::int64_t j = 0; j < neighbours; ++j)
        hits += std::find(ids, ids + neighbours, truth.ids.row(q)[j]) != ids + neighbours;
    }
    return static_cast<double>(hits) / static_cast<double>(truth.ids.rows() * neighbours);
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
  const auto twice = [](const FormForecast& form) {
    return form.factory.find("_SOAR,") != std::string::npos;
  };
  const auto rounded = [](const FormForecast& form) { return form.factory.ends_with(",SQfp16"); };
  if (walks(fastest) && walks(other)) return fastest.bytes < other.bytes ? worth_of_few_links : 1;
  if (walks(fastest)) return worth_of_graph;
  if (other.factory == "Flat") return worth_of_lists;
  if (twice(fastest) && !twice(other) && !walks(other)) return worth_of_two_lists;
  return rounded(other) && !rounded(fastest) ? worth_of_codes : 1;
}

// Vectors, halves and codes in lists, where the memory has no room for vectors as they are.
void consider_smaller(const Measurement& measurement, const std::vector<detail::RowForm>& smaller,
                      double times, const std::function<void(std::optional<FormForecast>)>& add) {
  const Measurement::ListCount lists = measurement.list_count(times);
  for (const detail::RowForm& form : smaller) {
    if (form.form != "SQfp16") {
      add(measurement.codes(lists, form));
      continue;
    }
    // Halves are scored by the same codes of 8 bits as vectors.
    if (!measurement.fits(measurement.list_bytes(form.row_bytes, lists.of_all))) continue;
    if (const auto point = measurement.lists_of_sample(lists, false))
      add(measurement.lists(lists, *point, form.form, form.row_bytes));
  }
}

}  // namespace

IndexChoice detail::measured_choice(std::int64_t rows, const IndexNeeds& needs,
                                    const std::vector<RowForm>& smaller,
                                    const ChangeOptions& options) {
  const Measurement measurement(rows, needs, options);
  std::vector<FormForecast> forms;
  const auto consider = [&](std::optional<FormForecast> form) {
    if (form && measurement.fits(form->bytes)) forms.push_back(std::move(*form));
  };
  consider(measurement.flat());
  // Queries that share lists are fastest in few long ones.
  const double least = needs.batch < detail::few_queries ? 1 : 0.25;
  for (const double times : {1., 2., 4.}) {
    const Measurement::ListCount lists = measurement.list_count(times * least);
    const double row_bytes = measurement.vector_row_bytes();
    if (!measurement.fits(measurement.list_bytes(row_bytes, lists.of_all))) continue;
    const std::optional<OperatingPoint> point = measurement.lists_of_sample(lists, false);
    if (!point) continue;
    consider(measurement.lists(lists, *point, "Flat", row_bytes));
    if (times > 1 && measurement.share(*point) >= least_share_of_two_lists)
      consider(measurement.two_lists(lists));
  }
  if (forms.empty())
    for (const double times : {1., 2.}) consider_smaller(measurement, smaller, times, consider);
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
