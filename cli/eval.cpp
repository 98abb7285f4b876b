// cli/eval.cpp -- `knear eval`: how many of the true neighbours an answer has.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/output.hpp"
#include "cli/recall.hpp"
#include "knear/core/json.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/reference.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {
namespace {

struct EvalArguments {
  std::string ids, truth, base, queries, metric;
  std::int64_t k = 0;
  bool json = false;
  // An empty word is not an absent one.
  bool k_given = false, base_given = false, queries_given = false, metric_given = false;
};

// A mean over queries and its 95 % interval.
struct Figure {
  double mean = 1;
  Interval interval = {};
};

struct EvalFigures {
  std::optional<Figure> by_distance = {};  // needs the vectors
  Figure by_id = {};
};

struct Evaluation {
  std::int64_t queries = 0, k = 0;
  EvalFigures recall = {};
  std::vector<std::pair<std::int64_t, EvalFigures>> first_within = {};  // r and R@r
};

Figure figure_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / double(values.size()), mean_interval(values)};
}

// The vectors that the ids refer to, if the caller has them.
struct Vectors {
  AnyMatrixView base, queries;
  Metric metric;
};

void check_ids(MatrixView<Id> ids, const std::string& path, std::int64_t rows) {
  for (std::int64_t q = 0; q < ids.rows(); ++q) {
    for (std::int64_t j = 0; j < ids.cols(); ++j) {
      const Id id = ids.row(q)[j];
      if (id < no_id)
        throw InvalidArgument("'{}': row {}, column {} is {}, which is no id and no padding (-1)",
                              path, q, j, id);
      if (id >= rows)
        throw InvalidArgument("'{}': row {}, column {} is {}, but the base has {} rows", path, q, j,
                              id, rows);
    }
  }
}

void check_row(AnyMatrixView vectors, std::int64_t row, const char* argument) {
  visit(vectors, [&](auto typed) {
    for (std::int64_t j = 0; j < typed.cols(); ++j)
      if (!std::isfinite(to_double(typed.row(row)[j])))
        throw InvalidArgument("{}: row {}, column {} is {}", argument, row, j,
                              to_double(typed.row(row)[j]));
  });
}

// Checks the vectors that will be measured, and no others: a base may be far larger.
void check_finite(const Vectors& vectors, MatrixView<Id> ids) {
  for (std::int64_t q = 0; q < ids.rows(); ++q)
    for (std::int64_t j = 0; j < ids.cols(); ++j)
      if (ids.row(q)[j] != no_id) check_row(vectors.base, ids.row(q)[j], "--base");
}

double key_of(const Vectors& vectors, std::int64_t query, Id id) {
  return visit(vectors.queries, [&](auto queries) {
    return visit(vectors.base, [&](auto base) {
      return order_key(vectors.metric, reference_distance(vectors.metric, queries.row(query),
                                                          base.row(id), base.cols()));
    });
  });
}

// Which of the first k true ids are among the first k found, per query; each id counts once, and a
// query without neighbours has them all.
std::vector<double> recall_by_id(MatrixView<Id> found, MatrixView<Id> truth, std::int64_t k) {
  std::vector<double> values(size_t(found.rows()), 1.0);
  const auto distinct = [k](const Id* ids) {
    std::vector<Id> out(ids, ids + k);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    if (!out.empty() && out.front() == no_id) out.erase(out.begin());
    return out;
  };
  for (std::int64_t q = 0; q < found.rows(); ++q) {
    const std::vector<Id> wanted = distinct(truth.row(q)), answer = distinct(found.row(q));
    if (wanted.empty()) continue;
    std::vector<Id> same;
    std::set_intersection(wanted.begin(), wanted.end(), answer.begin(), answer.end(),
                          std::back_inserter(same));
    values[size_t(q)] = double(same.size()) / double(wanted.size());
  }
  return values;
}

// The column in which each query's true first neighbour is found, or by distance one that is as
// near; the number of columns if it is not found; 0 for a query without neighbours.
std::vector<std::int64_t> columns_of_first(MatrixView<Id> found, MatrixView<Id> truth,
                                           const Vectors* vectors) {
  std::vector<std::int64_t> columns(size_t(found.rows()), 0);
  parallel_for(0, found.rows(), [&](std::int64_t q) {
    const Id first = truth.row(q)[0];
    if (first == no_id) return;
    const double farthest = vectors ? key_of(*vectors, q, first) : 0;
    const Id* ids = found.row(q);
    columns[size_t(q)] = std::find_if(ids, ids + found.cols(),
                                      [&](Id id) {
                                        if (!vectors || id == no_id) return id == first;
                                        return key_of(*vectors, q, id) <= farthest;
                                      }) -
                         ids;
  });
  return columns;
}

Figure within(const std::vector<std::int64_t>& columns, std::int64_t r) {
  std::vector<double> values;
  for (std::int64_t column : columns) values.push_back(column < r);
  return figure_of(values);
}

Evaluation evaluate(MatrixView<Id> found, MatrixView<Id> truth, std::int64_t k,
                    const Vectors* vectors) {
  Evaluation out{.queries = found.rows(), .k = k};
  out.recall.by_id = figure_of(recall_by_id(found, truth, k));
  std::vector<std::int64_t> by_distance;
  if (vectors) {
    const RecallFigures recall =
        measure_recall(vectors->queries, vectors->base, vectors->metric, found, truth, k, 0);
    out.recall.by_distance = Figure{*recall.by_distance, recall.distance_interval};
    by_distance = columns_of_first(found, truth, vectors);
  }
  const std::vector<std::int64_t> by_id = columns_of_first(found, truth, nullptr);
  for (std::int64_t r : {1, 10, 100}) {
    if (r > found.cols()) break;
    EvalFigures figures{.by_id = within(by_id, r)};
    if (vectors) figures.by_distance = within(by_distance, r);
    out.first_within.emplace_back(r, figures);
  }
  return out;
}

void print_evaluation(const Evaluation& evaluation) {
  const auto text = [](const Figure& figure) {
    return fmt::format("{:.6f} [{:.6f}, {:.6f}]", figure.mean, figure.interval.low,
                       figure.interval.high);
  };
  const bool distances = evaluation.recall.by_distance.has_value();
  std::vector<std::vector<std::string>> table;
  table.push_back({fmt::format("{} queries", evaluation.queries)});
  if (distances) table.back().push_back("by distance");
  table.back().push_back("by id");
  const auto add = [&](const std::string& name, const EvalFigures& figures) {
    table.push_back({name});
    if (distances) table.back().push_back(text(*figures.by_distance));
    table.back().push_back(text(figures.by_id));
  };
  add(fmt::format("recall@{}", evaluation.k), evaluation.recall);
  for (const auto& [r, figures] : evaluation.first_within) add(fmt::format("R@{}", r), figures);
  print("{}", format_table(table));
  print(
      "In brackets: 95 % intervals of the mean over queries (Wilson's, for the variance found).\n");
}

nlohmann::ordered_json json_of_figures(const EvalFigures& figures) {
  nlohmann::ordered_json out;
  if (figures.by_distance) {
    out["recall"] = figures.by_distance->mean;
    out["recall_interval"] = {figures.by_distance->interval.low,
                              figures.by_distance->interval.high};
  }
  out["recall_ids"] = figures.by_id.mean;
  out["recall_ids_interval"] = {figures.by_id.interval.low, figures.by_id.interval.high};
  return out;
}

void print_json(const Evaluation& evaluation, const Vectors* vectors) {
  nlohmann::ordered_json out;
  out["queries"] = evaluation.queries;
  out["k"] = evaluation.k;
  if (vectors) out["metric"] = name_of(vectors->metric);
  out.update(json_of_figures(evaluation.recall));
  for (const auto& [r, figures] : evaluation.first_within)
    out[fmt::format("R@{}", r)] = json_of_figures(figures);
  print("{}\n", out.dump(2));
}

std::int64_t checked_k(const EvalArguments& arguments, MatrixView<Id> found, MatrixView<Id> truth) {
  if (!arguments.k_given) return std::min(found.cols(), truth.cols());
  check_positive("-k", arguments.k);
  const auto check = [&](MatrixView<Id> ids, const std::string& path) {
    if (arguments.k > ids.cols())
      throw InvalidArgument("-k is {}, but '{}' has {} columns", arguments.k, path, ids.cols());
  };
  check(found, arguments.ids);
  check(truth, arguments.truth);
  return arguments.k;
}

void run_eval(const EvalArguments& arguments) {
  const bool distances = arguments.base_given;
  if (distances != arguments.queries_given)
    throw InvalidArgument("--base and --queries are needed together, {} was given alone",
                          distances ? "--base" : "--queries");
  if (!distances && arguments.metric_given)
    throw InvalidArgument("--metric {} measures nothing without --base and --queries",
                          arguments.metric);
  const Metric metric = arguments.metric_given ? parse_metric(arguments.metric) : Metric::l2;

  const Matrix<Id> found = io::read_ids(arguments.ids), truth = io::read_ids(arguments.truth);
  if (found.rows() != truth.rows())
    throw ShapeMismatch("'{}' has {} rows, '{}' has {}", arguments.ids, found.rows(),
                        arguments.truth, truth.rows());
  const std::int64_t k = checked_k(arguments, found, truth);
  if (!distances) {
    constexpr std::int64_t unknown = std::numeric_limits<std::int64_t>::max();
    check_ids(found, arguments.ids, unknown);
    check_ids(truth, arguments.truth, unknown);
    const Evaluation evaluation = evaluate(found, truth, k, nullptr);
    return arguments.json ? print_json(evaluation, nullptr) : print_evaluation(evaluation);
  }

  const auto base = open_vectors(arguments.base, "", base_dataset);
  const auto queries = open_vectors(arguments.queries, "", queries_dataset);
  const Vectors vectors{base.view(), queries.view(), metric};
  if (vectors.queries.cols() != vectors.base.cols())
    throw ShapeMismatch("--queries have {} columns, --base has {}", vectors.queries.cols(),
                        vectors.base.cols());
  if (vectors.queries.rows() != found.rows())
    throw ShapeMismatch("--queries have {} rows, '{}' has {}", vectors.queries.rows(),
                        arguments.ids, found.rows());
  check_ids(found, arguments.ids, vectors.base.rows());
  check_ids(truth, arguments.truth, vectors.base.rows());
  for (std::int64_t q = 0; q < vectors.queries.rows(); ++q)
    check_row(vectors.queries, q, "--queries");
  check_finite(vectors, found);
  check_finite(vectors, truth);
  const Evaluation evaluation = evaluate(found, truth, k, &vectors);
  return arguments.json ? print_json(evaluation, &vectors) : print_evaluation(evaluation);
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Measure the recall of an answer");
  auto arguments = std::make_shared<EvalArguments>();
  command->add_option("IDS", arguments->ids, "the answer: .ivecs .ibin or .npy")->required();
  command->add_option("TRUTH", arguments->truth, "the true neighbours: .ivecs .ibin or .npy")
      ->required();
  CLI::Option* k = add_whole(*command, "-k", arguments->k,
                             "neighbours that count (default: all columns that both files have)");
  CLI::Option* base =
      command->add_option("--base", arguments->base, "the vectors that the ids stand for")
          ->type_name("FILE");
  CLI::Option* queries =
      command->add_option("--queries", arguments->queries, "the vectors that were searched for")
          ->type_name("FILE");
  CLI::Option* metric =
      command->add_option("--metric", arguments->metric, "l2 (default), ip, cosine, l1 or hamming")
          ->type_name("METRIC");
  command->add_flag("--json", arguments->json, "one JSON object");
  command->footer(
      "recall@k is the share of the k true neighbours that is among the first k; R@r tells how "
      "often the true first is among the first r. By distance, which needs --base and --queries, a "
      "neighbour counts as found if its float64 distance is no greater than the true one's, so "
      "that "
      "ties are no mistakes. Padding (-1) and repeated ids count for nothing.\n\nExample:\n"
      "  knear eval near.ivecs truth.ivecs -k 10 --base base.fvecs --queries queries.fvecs");
  command->callback([=] {
    arguments->k_given = k->count() > 0;
    arguments->base_given = base->count() > 0;
    arguments->queries_given = queries->count() > 0;
    arguments->metric_given = metric->count() > 0;
    run_eval(*arguments);
  });
}

}  // namespace knear::cli
