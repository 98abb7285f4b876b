// cli/demo_report.hpp -- the demo's report: one self-contained HTML file.
//
// Pictures are data URIs and plots inline SVG; no script, no font, no network. Colours follow the
// reader's light or dark setting.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/demo_data.hpp"
#include "cli/plain_loop.hpp"
#include "cli/prediction.hpp"
#include "cli/recall_curve.hpp"
#include "knear/graph/paths.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {

struct Stage {
  std::string name;
  double seconds = 0;
};

// The same search in batches of this many queries.
struct BatchRate {
  std::int64_t queries = 0;
  double seconds = 0;        // of one batch, the median
  std::int64_t columns = 0;  // those that its first pass scored
};

// How often a vote of the neighbours' labels gives the label of a query.
struct LabelVote {
  std::int64_t right = 0, total = 0;
  std::vector<std::vector<std::int64_t>> confusion;  // [true label][voted label]
};

// The smoothest path between two rows of the base, in the graph of its 10 nearest others.
struct DemoWalk {
  Id from = no_id, to = no_id;  // no_id where there was no graph
  SmoothPath path;
  std::vector<double> steps;  // squared distances, one fewer than rows on the path
  double recall = 1;          // that the graph promises
  double graph_seconds = 0, path_seconds = 0;
};

struct DemoResult {
  const DemoData& data;
  const Neighbors& near;
  const KnnReport& report;
  const Prediction& prediction;
  double seconds = 0;         // packing the base and searching
  std::vector<Stage> stages;  // in the order in which they ran
  std::vector<BatchRate> batches;
  std::vector<RecallCurveOf> recall;  // of indexes that do not find everything
  LabelVote vote;                     // total 0 where there are no labels
  std::int64_t verified = 0;          // random queries whose answers equal brute force
  PlainLoop loop;
  DemoWalk walk;
};

// The style sheet of the demo, and the colours of line charts: for other pages with plots too.
std::string page_style();

// A number with separators: "60,000".
std::string grouped(std::int64_t number);

// A factor or rate, to three digits below 100 and to a whole number above: "42.1", "8,353".
std::string rounded(double number);

// The squared distance of a search as people read it: not squared, with two decimals for texts.
std::string shown_distance(const DemoData& data, double squared);

// The queries that terminal and report show: one of each class where there are labels, else eight.
// Drawn at random with a fixed seed, so that they are not picked for their looks.
std::vector<std::int64_t> queries_to_show(const DemoData& data);

// How many times the search, packing included, was faster than the plain loop.
double times_plain_loop(const DemoResult& result);

// The whole HTML document.
std::string demo_report(const DemoResult& result);

}  // namespace knear::cli
