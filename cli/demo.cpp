// cli/demo.cpp -- `knear demo`: the main job on real vectors, timed, checked, and shown.
//
// The time that counts is that of packing the base and searching; reading files, the check against
// brute force and the batches of other sizes are reported separately.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/demo_report.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/random.hpp"
#include "knear/core/seconds.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/reference.hpp"
#include "knear/graph/knn_graph.hpp"
#include "knear/graph/paths.hpp"
#include "knear/index/usual_lists.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {
namespace {

struct DemoArguments {
  std::string data, base, queries, labels, query_labels, report = "knear-demo.html";
  std::int64_t threads = 0;
};

constexpr std::int64_t demo_k = 10;     // neighbours of a query
constexpr std::size_t text_width = 90;  // characters of a text that the terminal shows

using knear::detail::seconds_since;

template <class F>
double seconds_of(F&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return seconds_since(start);
}

DemoData open_data(const DemoArguments& arguments) {
  if (arguments.base.empty()) return find_demo_data(demo_directories(arguments.data));
  if (!arguments.labels.empty())
    return open_demo_texts(arguments.base, arguments.queries, arguments.labels,
                           arguments.query_labels);
  return open_demo_files(arguments.base, arguments.queries);
}

// The peaks that the plan uses: those of an earlier `knear roofline`, else measured now.
KnownPeaks peaks_for_plan(int threads) {
  const KnownPeaks known = known_peaks(active_isa(), threads);
  return known.measured ? known : measure_and_keep_peaks(threads, 2.0);
}

// Searches a few random queries by the definition, in float64, and compares every bit. Returns
// their number; throws Error if one differs.
std::int64_t verify(const DemoData& data, const Neighbors& near, int threads) {
  const AnyMatrixView base = data.base.view(), queries = data.queries.view();
  // About 2e9 terms of the definition: some seconds on any machine.
  const double terms = double(std::max<std::int64_t>(base.rows() * base.cols(), 1));
  const std::int64_t count = std::min<std::int64_t>(
      queries.rows(), std::clamp<std::int64_t>(static_cast<std::int64_t>(2e9 / terms), 3, 20));
  Random random(2);
  std::vector<std::int64_t> chosen;
  while (std::ssize(chosen) < count) {
    const auto q = static_cast<std::int64_t>(random.below(queries.rows()));
    if (std::find(chosen.begin(), chosen.end(), q) == chosen.end()) chosen.push_back(q);
  }
  parallel_for(threads, count, [&](std::int64_t i) {
    check_interrupt();
    const std::int64_t q = chosen[i];
    const Neighbors expected = reference_knn(queries.rows(q, q + 1), base, demo_k, Metric::l2);
    if (std::memcmp(expected.ids.row(0), near.ids.row(q), demo_k * sizeof(Id)) != 0 ||
        std::memcmp(expected.distances.row(0), near.distances.row(q), demo_k * sizeof(float)) != 0)
      throw Error(fmt::format("the answer to query {} is not that of brute force", q));
  });
  return count;
}

// The label that most neighbours have; on a tie that of the nearest.
std::uint8_t voted_label(const DemoData& data, const Id* ids) {
  int votes[256] = {};
  for (std::int64_t j = 0; j < demo_k; ++j)
    if (ids[j] != no_id) ++votes[data.base_labels[ids[j]]];
  std::uint8_t best = 0;
  int most = 0;
  for (std::int64_t j = 0; j < demo_k; ++j)
    if (ids[j] != no_id && votes[data.base_labels[ids[j]]] > most)
      best = data.base_labels[ids[j]], most = votes[best];
  return best;
}

LabelVote vote_of(const DemoData& data, const Neighbors& near) {
  LabelVote vote;
  if (data.query_labels.empty()) return vote;
  const std::size_t classes = data.class_names.size();
  vote.confusion.assign(classes, std::vector<std::int64_t>(classes, 0));
  for (std::int64_t q = 0; q < near.ids.rows(); ++q) {
    const std::uint8_t label = data.query_labels[q], voted = voted_label(data, near.ids.row(q));
    ++vote.confusion[label][voted];
    vote.right += label == voted;
    ++vote.total;
  }
  return vote;
}

std::int64_t columns_of(const KnnReport& report) {
  return report.scan.prefix_columns > 0 ? report.scan.prefix_columns : report.dim;
}

// Times batches of 1, 10, 100, ... queries, a second or less for each size; by `seconds_per_query`
// of the whole search it skips sizes that would take too long.
std::vector<BatchRate> time_batches(const ExactSearcher& searcher, AnyMatrixView queries,
                                    const KnnOptions& options, double seconds_per_query,
                                    ProgressBar& bar) {
  std::vector<BatchRate> out;
  for (std::int64_t batch = 1; batch < queries.rows(); batch *= 10) {
    if (double(batch) * seconds_per_query > 5) break;
    std::vector<double> times;
    double total = 0;
    KnnReport report;
    for (std::int64_t begin = 0; begin + batch <= queries.rows() && (total < 1 || begin == 0);
         begin += batch) {
      check_interrupt();
      bar.show("batches", std::min(total, 1.0));
      times.push_back(seconds_of(
          [&] { searcher.search(queries.rows(begin, begin + batch), demo_k, options, &report); }));
      total += times.back();
    }
    std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
    out.push_back({batch, times[times.size() / 2], columns_of(report)});
  }
  return out;
}

// Returns inverted lists of the vectors, and codes of one byte for 16 columns.
std::vector<RecallCurveOf> recall_curves(const DemoData& data, const Neighbors& near, int threads,
                                         double exact_seconds, const Progress& progress) {
  const AnyMatrixView base = data.base.view();
  std::vector<RecallCurveOf> out;
  if (base.rows() < 1024) return out;
  const std::string lists = fmt::format("IVF{}", usual_lists(base.rows()));
  RecallCurveJob job{.base = base, .queries = data.queries.view(), .truth = near.ids.view()};
  job.k = demo_k, job.most_probes = 64, job.repeat = 1, job.threads = threads,
  job.progress = progress;
  std::vector<std::string> indexes{lists + ",Flat"};
  if (base.cols() % 16 == 0) indexes.push_back(fmt::format("{},PQ{}", lists, base.cols() / 16));
  if (const double seconds = searching_seconds(indexes, job, exact_seconds);
      seconds > announced_seconds)
    print_now("for the report {} other indexes are built, and searched for up to {}\n",
              indexes.size(), readable_seconds(seconds));
  for (const std::string& index : indexes) out.push_back(measure_recall_curve(index, job));
  return out;
}

// From an ankle boot to a shirt, or from the first row to the last. The graph takes seconds: of
// more rows than are searched for exactly then it has nine neighbours in ten.
DemoWalk walk_of(const DemoData& data, int threads, const Progress& progress) {
  constexpr std::int64_t most_rows = 1000000, most_exact_rows = 100000;
  constexpr std::uint8_t shirt = 6, ankle_boot = 9;
  const AnyMatrixView base = data.base.view();
  DemoWalk walk;
  if (base.rows() < 2 || base.rows() > most_rows) return walk;
  walk.from = 0, walk.to = base.rows() - 1;
  const auto first_of = [&](std::uint8_t label, Id otherwise) {
    const auto at = std::find(data.base_labels.begin(), data.base_labels.end(), label);
    return at == data.base_labels.end() ? otherwise : Id(at - data.base_labels.begin());
  };
  walk.from = first_of(ankle_boot, walk.from), walk.to = first_of(shirt, walk.to);
  if (base.rows() > most_exact_rows) walk.recall = 0.9;
  NeighborGraph graph;
  walk.graph_seconds = seconds_of([&] {
    KnnGraphOptions options{.threads = threads, .progress = progress};
    if (walk.recall < 1) options.recall = walk.recall;
    graph = knn_graph(base, demo_k, options);
  });
  const PathFinder finder(graph.ids(), graph.distances(), Metric::l2, threads);
  walk.path_seconds = seconds_of([&] { walk.path = finder.path(walk.from, walk.to); });
  for (std::size_t i = 1; i < walk.path.ids.size(); ++i)
    walk.steps.push_back(finder.largest_step(walk.path.ids[i - 1], walk.path.ids[i]));
  return walk;
}

// A word of a command line, as a shell takes it.
std::string shell_word(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string graph_words(const DemoWalk& walk) {
  return walk.recall < 1 ? fmt::format(" of recall {}", walk.recall) : "";
}

// Returns the beginning of a text of UTF-8, at most this many characters. Control characters, which
// a terminal would obey, become blanks.
std::string beginning(const std::string& text, std::size_t characters) {
  std::string out;
  std::size_t count = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool begins = (byte & 0xc0) != 0x80;
    if (begins && ++count > characters) return out + " ...";
    out += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  return out;
}

void print_walk(const DemoResult& result) {
  const DemoWalk& walk = result.walk;
  if (walk.from == no_id) {
    if (result.data.base.view().rows() > 1)
      print("path     left out: a graph of {} rows takes minutes ('knear graph')\n",
            result.data.base.view().rows());
    return;
  }
  if (walk.path.found()) {
    print("path     from row {} to row {} in {} steps, graph{} made in {}\n", walk.from, walk.to,
          walk.path.ids.size() - 1, graph_words(walk), readable_seconds(walk.graph_seconds));
    if (result.data.picture == Picture::text)
      for (const Id row : walk.path.ids)
        print("           {}\n", beginning(result.data.base_texts[std::size_t(row)], text_width));
  } else {
    print("path     none: rows {} and {} lie in different components\n", walk.from, walk.to);
  }
  std::string words = fmt::format("knear explore --base {}", shell_word(result.data.base.path()));
  if (!result.data.base_texts.empty()) {
    words += fmt::format(" --labels {}", shell_word(result.data.base_labels_path));
  } else if (!result.data.base_labels_path.empty()) {
    std::string names;
    for (const std::string& name : result.data.class_names)
      names += (names.empty() ? "" : ",") + name;
    words += fmt::format(" --labels {} --names {}", shell_word(result.data.base_labels_path),
                         shell_word(names));
  }
  print("walk on  {} --from {} --to {} --port 8080\n", words, walk.from, walk.to);
}

// Some queries and their nearest in words.
void print_texts(const DemoResult& result) {
  constexpr std::int64_t most_queries = 5, most_rows = 4;
  const DemoData& data = result.data;
  if (data.picture != Picture::text) return;
  std::vector<std::int64_t> shown = queries_to_show(data);
  if (std::ssize(shown) > most_queries) shown.resize(most_queries);
  print("\nqueries drawn at random, and what was found, with Euclidean distances:\n");
  for (const std::int64_t q : shown) {
    print("\n  {}\n", beginning(data.query_texts[std::size_t(q)], text_width));
    for (std::int64_t j = 0; j < std::min(most_rows, result.near.ids.cols()); ++j) {
      const Id id = result.near.ids.row(q)[j];
      if (id == no_id) continue;
      print("    {}  {}\n", shown_distance(data, result.near.distances.row(q)[j]),
            beginning(data.base_texts[std::size_t(id)], text_width));
    }
  }
}

void print_result(const DemoResult& result) {
  const KnnReport& report = result.report;
  const double rate = double(report.queries) / std::max(result.seconds, 1e-9);
  print("{}: {} rows x {}, {} queries, k = {}, l2, from {}\n", result.data.name,
        grouped(report.rows), report.dim, grouped(report.queries), demo_k, result.data.source);
  print("time     {} ({} to pack the base, {} to search)\n", readable_seconds(result.seconds),
        readable_seconds(report.prepare_seconds), readable_seconds(report.seconds));
  print("rate     {} queries per second on {} threads\n", grouped(std::llround(rate)),
        report.threads);
  print(
      "answers  {} of {} certified exact; {} random queries checked against brute force in "
      "float64, all equal\n",
      grouped(report.promise.certified_queries), grouped(report.queries), result.verified);
  print(
      "loop     {} times as fast as a plain loop over all rows on as many threads ({} queries per "
      "second)\n",
      rounded(times_plain_loop(result)),
      rounded(double(result.loop.queries) / std::max(result.loop.seconds, 1e-9)));
  if (result.vote.total > 0)
    print("labels   {:.2f} % of the queries get their label by a vote of their {} neighbours\n",
          100.0 * double(result.vote.right) / double(result.vote.total), demo_k);
  print("\n{}", format_table(explain_lines(report, result.prediction)));
  print_texts(result);
}

void write_report(const std::string& path, const std::string& html) {
  io::AtomicFile file(path);
  file.write(html.data(), html.size());
  file.commit();
}

void run_demo(const DemoArguments& arguments) {
  const int threads = checked_threads(arguments.threads);
  if (arguments.base.empty() != arguments.queries.empty())
    unparsable("--base and --queries go together");
  if (!arguments.base.empty() && !arguments.data.empty())
    unparsable("--data and --base exclude each other");
  if (arguments.labels.empty() != arguments.query_labels.empty())
    unparsable("--labels and --query-labels go together");
  if (!arguments.labels.empty() && arguments.base.empty())
    unparsable("--labels and --query-labels are for --base and --queries");
  CatchInterrupts guard;
  check_output("--report", arguments.report, {},
               {arguments.base, arguments.queries, arguments.labels, arguments.query_labels});

  ProgressBar bar;
  KnnOptions options;
  options.threads = threads, options.progress = bar.callback();
  bar.show("read", 0);
  auto start = std::chrono::steady_clock::now();
  const DemoData data = open_data(arguments);
  const double read_seconds = seconds_since(start);
  const AnyMatrixView base = data.base.view(), queries = data.queries.view();
  if (base.cols() != queries.cols())
    throw ShapeMismatch("queries have {} columns, base has {}", queries.cols(), base.cols());
  if (base.rows() == 0 || queries.rows() == 0)
    throw InvalidArgument("{} holds {} rows and {} queries: nothing to show", data.source,
                          base.rows(), queries.rows());
  bar.show("measure machine", 0);
  const KnownPeaks machine = peaks_for_plan(threads);
  check_interrupt();

  start = std::chrono::steady_clock::now();
  const ExactSearcher searcher(base, options);
  KnnReport report;
  const Neighbors near = searcher.search(queries, demo_k, options, &report);
  const double seconds = seconds_since(start);

  bar.show("check", 0);
  std::int64_t verified = 0;
  const double check_seconds = seconds_of([&] { verified = verify(data, near, threads); });
  bar.show("plain loop", 0);
  const PlainLoop loop = plain_loop(queries, base, demo_k, threads);
  KnnOptions quiet = options;
  quiet.progress = [](std::string_view, double) { return !interrupted(); };
  std::vector<BatchRate> batches =
      time_batches(searcher, queries, quiet, report.seconds / double(queries.rows()), bar);
  batches.push_back({queries.rows(), report.seconds, columns_of(report)});
  bar.clear();

  start = std::chrono::steady_clock::now();
  std::vector<RecallCurveOf> recall =
      recall_curves(data, near, threads, report.seconds, bar.callback());
  const double recall_seconds = seconds_since(start);
  bar.clear();

  DemoWalk walk = walk_of(data, threads, bar.callback());
  bar.clear();

  const Prediction prediction = predict(report, machine);
  const DemoResult result{data,
                          near,
                          report,
                          prediction,
                          seconds,
                          {{"read files", read_seconds},
                           {"pack the base", report.prepare_seconds},
                           {"search", report.seconds},
                           {fmt::format("check {} queries", verified), check_seconds},
                           {fmt::format("plain loop, {} queries", loop.queries), loop.seconds},
                           {"recall of other indexes", recall_seconds},
                           {"graph of the base", walk.graph_seconds}},
                          std::move(batches),
                          std::move(recall),
                          vote_of(data, near),
                          verified,
                          loop,
                          std::move(walk)};
  const std::string html = demo_report(result);
  check_interrupt();
  write_report(arguments.report, html);
  print_result(result);
  print("\nreport   {} ({})\n", arguments.report, readable_bytes(double(html.size())));
  print_walk(result);
}

}  // namespace

void add_demo(CLI::App& app) {
  CLI::App* command = app.add_subcommand("demo", "Search real vectors and write a report");
  auto arguments = std::make_shared<DemoArguments>();
  command->add_option("--data", arguments->data, "directory that holds fashion-mnist/ or sift/")
      ->type_name("DIR");
  command
      ->add_option("--base", arguments->base,
                   "search these SIFT vectors or images instead, or with --labels any")
      ->type_name("FILE");
  command->add_option("--queries", arguments->queries, "vectors to search for")->type_name("FILE");
  command
      ->add_option("--labels", arguments->labels,
                   "a line of text for each row of --base: shows queries and answers in words")
      ->type_name("FILE");
  command->add_option("--query-labels", arguments->query_labels, "the same for --queries")
      ->type_name("FILE");
  command->add_option("--report", arguments->report, "HTML file to write (default knear-demo.html)")
      ->type_name("FILE");
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  command->footer(
      "Finds the 10 nearest of all Fashion-MNIST images for each test image, or of SIFT "
      "descriptors. "
      "Without --data, takes the first of $KNEAR_DATA, ../shared/data and the cache directory that "
      "holds either; of both in one, the images. Vectors of texts, which 'bench/data text' makes, "
      "are shown in "
      "words.\n\nExamples:\n  knear demo --report report.html\n"
      "  knear demo --base base.npy --queries queries.npy --labels base.txt --query-labels "
      "queries.txt");
  command->callback([=] { run_demo(*arguments); });
}

}  // namespace knear::cli
