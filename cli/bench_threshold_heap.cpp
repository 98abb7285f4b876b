// cli/bench_threshold_heap.cpp -- `knear bench threshold-heap`: the figures of the TH-heap paper,
// drawn on this machine.
//
// Matsumoto and Yiu, "Accelerating Exact Similarity Search on CPU-GPU Systems" (2015), section VI:
// what a threshold from a sample saves, and how the selection compares with others. There are two
// parts: selection alone, from precomputed distances, which the paper times; and whole searches.
// The candidates take turns, medians count, and every answer is compared with the others, bit by
// bit.
#include "cli/bench_threshold_heap.hpp"

#include <algorithm>
#include <cmath>
#include "cli/arguments.hpp"
#include "cli/demo_report.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/svg.hpp"
#include "knear/core/cpu.hpp"
#include "knear/core/json.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/version.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/distance/exact.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {
namespace {

// The vectors and options of the figures.
struct Setting {
  std::int64_t rows = 0, dim = 0, searched = 0, most = 0, matrix = 0;
  ElementType type = ElementType::f32;
  Metric metric = Metric::l2;
  int threads = 0;
  SearchedBy by;
  bool made = false;
};

void check(const ThresholdHeapBench& bench) {
  check_positive("-k", bench.k);
  check_positive("--repeat", bench.repeat);
  check_positive("--count", bench.count);
  check_positive("--most", bench.most);
  check_positive("--matrix", bench.matrix);
  check(bench.vectors);
  check_one_device(bench.device);
  check_output("--out", bench.out, {".html", ".svg"}, {bench.vectors.base, bench.vectors.queries});
}

void check_shapes(const ThresholdHeapBench& bench, AnyMatrixView queries, AnyMatrixView base) {
  if (base.cols() != queries.cols())
    throw ShapeMismatch("queries have {} columns, base has {}", queries.cols(), base.cols());
  if (queries.rows() == 0) throw InvalidArgument("{} has no queries", bench.vectors.queries);
  // Compared by division, since 8 k may overflow.
  if (bench.k > (base.rows() - 1) / ThresholdHeapBench::samples_for(1))
    throw InvalidArgument(
        "-k must be so small that 8 k rows are less than the base's {}, but is {}", base.rows(),
        bench.k);
}

// Exact keys of the first queries [queries x n], rounded once: smaller is nearer.
Matrix<float> distances_of(AnyMatrixView queries, AnyMatrixView base, Metric metric, int threads) {
  Matrix<float> out = Matrix<float>::unset(queries.rows(), base.rows());
  const std::int64_t groups = (queries.rows() + ExactGroup::size - 1) / ExactGroup::size;
  parallel_for(threads, groups, [&](std::int64_t g) {
    ExactGroup group(metric, base.type());
    std::int64_t which[ExactGroup::size];
    int count = 0;
    for (std::int64_t q = g * ExactGroup::size; q < queries.rows() && count < ExactGroup::size; ++q)
      which[count++] = q;
    group.set_queries(queries, which, count);
    double keys[ExactGroup::size];
    for (std::int64_t row = 0; row < base.rows(); ++row) {
      if (row % 4096 == 0) check_interrupt();
      group.keys(base.row(row), keys);
      for (int i = 0; i < count; ++i) out.row(which[i])[row] = static_cast<float>(keys[i]);
    }
  });
  return out;
}

std::string title(const Figure& figure) {
  return fmt::format("Figure {}, {}: {}", figure.number,
                     figure.searches ? "whole searches" : "selection alone", figure.question);
}

// Three digits; times in microseconds.
std::string cell(const Curve& curve, std::size_t point) {
  const double value = curve.value(point) * (curve.unit == Unit::seconds ? 1e6 : 1);
  if (!std::isfinite(value)) return std::isnan(value) ? "-" : "inf";
  if (curve.unit == Unit::closeness) return fmt::format("{:.3f}", value);
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

bool has(const Figure& figure, Unit unit) {
  return std::any_of(figure.curves.begin(), figure.curves.end(),
                     [unit](const Curve& curve) { return curve.unit == unit; });
}

void print_tables(const std::vector<Figure>& figures) {
  for (const Figure& figure : figures) {
    std::vector<std::vector<std::string>> table{{figure.axis}};
    for (const Curve& curve : figure.curves) table[0].push_back(curve.name);
    for (std::size_t point = 0; point < figure.at.size(); ++point) {
      table.push_back({fmt::format("{}", figure.at[point])});
      for (const Curve& curve : figure.curves) table.back().push_back(cell(curve, point));
    }
    print("\n{}{}\n{}", title(figure), has(figure, Unit::seconds) ? " Microseconds per query." : "",
          format_table(table));
  }
}

void print_text_output(const std::vector<Figure>& figures, const Setting& setting,
                       const ThresholdHeapBench& bench) {
  print("selection alone: {} queries, one thread; whole searches: {} queries, {} threads, {}\n",
        setting.matrix, setting.searched, setting.threads, setting.by.first_pass);
  print_tables(figures);
  print(
      "\nSame answers from all, bit by bit. Medians. Compression: Eq. 4, columns before over "
      "after; "
      "k-th / threshold: Eq. 3. Exact: the scan with its own thresholds, its rows scored as the "
      "heap's or first by a prefix. Partial-reduce: with a recall of 1. Sorting is a sum over "
      "threads, divided by them.\n");
  if (bench.device != "cpu")
    print(
        "On {}: the heap with distances and compression there and sorting here, and the exact "
        "search "
        "all there; of a search it left {} queries to the processor at most.\n",
        bench.device, setting.by.left_by_the_device);
}

nlohmann::ordered_json json_of(const Figure& figure) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (std::size_t point = 0; point < figure.at.size(); ++point) {
    nlohmann::ordered_json line{{"at", figure.at[point]}}, rounds;
    for (const Curve& curve : figure.curves) {
      line[curve.key] = curve.value(point);
      rounds[curve.key] = curve.rounds[point];
    }
    line["rounds"] = std::move(rounds);
    points.push_back(std::move(line));
  }
  return {{"figure", figure.number},
          {"of", figure.searches ? "searches" : "selection"},
          {"question", figure.question},
          {"axis", figure.axis},
          {"points", std::move(points)}};
}

void print_json(const std::vector<Figure>& figures, const Setting& setting,
                const ThresholdHeapBench& bench) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Figure& figure : figures) list.push_back(json_of(figure));
  print("{}\n", nlohmann::ordered_json{{"bench", "threshold-heap"},
                                       {"rows", setting.rows},
                                       {"dim", setting.dim},
                                       {"type", name_of(setting.type)},
                                       {"metric", name_of(setting.metric)},
                                       {"k", bench.k},
                                       {"queries", setting.searched},
                                       {"most_queries", setting.most},
                                       {"matrix_queries", setting.matrix},
                                       {"threads", setting.threads},
                                       {"isa", name_of(active_isa())},
                                       {"first_pass", setting.by.first_pass},
                                       {"device", bench.device},
                                       {"left_by_the_device", setting.by.left_by_the_device},
                                       {"repeat", bench.repeat},
                                       {"figures", std::move(list)}}
                    .dump(2));
}

struct Drawing {
  std::string title, svg;
};

// One drawing for each unit of a figure: its parts (a) and (b).
std::vector<Drawing> drawings_of(const Figure& figure) {
  std::vector<Drawing> out;
  const std::vector<double> places(figure.at.begin(), figure.at.end());
  for (const Unit unit : {Unit::seconds, Unit::compression, Unit::closeness}) {
    std::vector<ChartLine> lines;
    for (const Curve& curve : figure.curves) {
      if (curve.unit != unit) continue;
      lines.push_back({curve.name, {}});
      for (std::size_t point = 0; point < figure.at.size(); ++point)
        lines.back().values.push_back(curve.value(point) * (unit == Unit::seconds ? 1e6 : 1));
    }
    if (lines.empty()) continue;
    const std::string name = unit == Unit::seconds       ? "microseconds per query"
                             : unit == Unit::compression ? "compression ratio (Eq. 4)"
                                                         : "k-th distance over threshold (Eq. 3)";
    out.push_back({title(figure), line_chart(places, lines, {.name = figure.axis},
                                             {name, unit != Unit::closeness})});
  }
  return out;
}

std::string heading(const Setting& setting, const ThresholdHeapBench& bench) {
  return fmt::format("The TH-heap's figures: {} rows x {} {}{}, {}, k = {}", grouped(setting.rows),
                     setting.dim, name_of(setting.type), setting.made ? " (made)" : "",
                     name_of(setting.metric), bench.k);
}
std::string subheading(const Setting& setting, const ThresholdHeapBench& bench) {
  return fmt::format(
      "{}, {}; selection alone on one thread, {} queries; searches on {} threads, "
      "{} queries, first pass {}{}; medians of {} rounds; knear {}.",
      processor_name(), name_of(active_isa()), setting.matrix, setting.threads,
      grouped(setting.searched), setting.by.first_pass,
      bench.device == "cpu" ? "" : fmt::format("; and on {}", bench.device), bench.repeat,
      KNEAR_VERSION);
}

// The page is also well-formed XML, so that any tool can extract the plots.
std::string as_html(const std::vector<Drawing>& drawings, const Setting& setting,
                    const ThresholdHeapBench& bench) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'/>\n<meta name='viewport' "
      "content='width=device-width, initial-scale=1'/>\n<title>{0}</title>\n<style>{1}</style>\n"
      "</head>\n<body>\n<main>\n<h1>{0}</h1>\n<p>{2}</p>\n<div class='pair'>\n",
      escaped(heading(setting, bench)), page_style(), escaped(subheading(setting, bench)));
  for (const Drawing& drawing : drawings)
    out += fmt::format("<section><p>{}</p>\n{}\n</section>\n", escaped(drawing.title), drawing.svg);
  return out +
         "</div>\n<footer>After Matsumoto and Yiu, \"Accelerating Exact Similarity Search on "
         "CPU-GPU Systems\" (2015). Made by <code>knear bench threshold-heap</code>.</footer>\n"
         "</main>\n</body>\n</html>\n";
}

// Replaces the names of colours by values: only browsers know names, which follow the reader's
// light or dark setting, and a picture of its own is for other programs too. The first value of a
// name is the light one.
std::string with_fixed_colours(const std::string& style) {
  std::string out;
  for (std::size_t at = 0; at < style.size();) {
    const std::size_t use = style.find("var(", at), end = style.find(')', use);
    out += style.substr(at, use - at);
    if (use == std::string::npos) break;
    const std::string name = style.substr(use + 4, end - use - 4) + ": ";
    const std::size_t value = style.find(name);
    if (value != std::string::npos)
      out += style.substr(value + name.size(), style.find(';', value) - value - name.size());
    at = end + 1;
  }
  return out;
}

// All plots in one picture, two in a row.
std::string as_svg(const std::vector<Drawing>& drawings, const Setting& setting,
                   const ThresholdHeapBench& bench) {
  constexpr int gap = 24, top = 70, title_height = 40;
  constexpr int width = 2 * line_chart_width + 3 * gap,
                row = line_chart_height + title_height + gap;
  const int height = top + static_cast<int>((drawings.size() + 1) / 2) * row;
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' width='{0}' height='{1}' "
      "font-family='system-ui, sans-serif' font-size='13'>\n<style>{2}</style>\n<rect "
      "class='panel' "
      "width='{0}' height='{1}'/>\n<text class='ink' x='{3}' y='32' font-size='20'>{4}</text>\n"
      "<text class='quiet' x='{3}' y='54'>{5}</text>\n",
      width, height, with_fixed_colours(page_style()), gap, escaped(heading(setting, bench)),
      escaped(subheading(setting, bench)));
  for (std::size_t i = 0; i < drawings.size(); ++i) {
    const int x = gap + static_cast<int>(i % 2) * (line_chart_width + gap);
    const int y = top + static_cast<int>(i / 2) * row;
    // The number on one line and the question on the next, as lines do not break by themselves.
    const std::string& title = drawings[i].title;
    const std::size_t end = title.find(": ");
    out += fmt::format(
        "<text class='ink' x='{0}' y='{1}'>{2}</text><text class='quiet' x='{0}' y='{3}'>{4}</text>"
        "<svg x='{0}' y='{5}' width='{6}' height='{7}'>{8}</svg>\n",
        x, y + 14, escaped(title.substr(0, end)), y + 30, escaped(title.substr(end + 2)),
        y + title_height, line_chart_width, line_chart_height, drawings[i].svg);
  }
  return out + "</svg>\n";
}

void write_drawings(const std::vector<Figure>& figures, const Setting& setting,
                    const ThresholdHeapBench& bench) {
  if (bench.out.empty()) return;
  std::vector<Drawing> drawings;
  for (const Figure& figure : figures)
    for (Drawing& drawing : drawings_of(figure)) drawings.push_back(std::move(drawing));
  const std::string text = bench.out.ends_with(".svg") ? as_svg(drawings, setting, bench)
                                                       : as_html(drawings, setting, bench);
  io::AtomicFile file(bench.out);
  file.write(text.data(), text.size());
  file.commit();
}

void run_threshold_heap(const ThresholdHeapBench& bench) {
  check(bench);
  Setting setting;
  setting.metric = parse_metric(bench.vectors.metric);
  setting.threads = checked_threads(bench.threads);
  setting.made = bench.vectors.made();
  const CatchInterrupts guard;
  const BenchVectors vectors(bench.vectors, std::max({bench.count, bench.most, bench.matrix}));
  const AnyMatrixView base = vectors.base(), queries = vectors.queries();
  check_interrupt();
  check_shapes(bench, queries, base);
  setting.rows = base.rows(), setting.dim = base.cols(), setting.type = base.type();
  setting.searched = std::min(bench.count, queries.rows());
  setting.most = std::min(bench.most, queries.rows());
  setting.matrix = std::min(bench.matrix, queries.rows());

  if (!bench.json)
    print_now("TH-heap, {} rows x {} {}{}, {}, k = {}, {}, {} rounds\n", setting.rows, setting.dim,
              name_of(setting.type), setting.made ? " (made)" : "", name_of(setting.metric),
              bench.k, name_of(active_isa()), bench.repeat);
  std::vector<Figure> figures;
  {
    ProgressBar bar;
    bar.show("distances", 0);
    // In a scope of its own: searches do not need the memory of the distances.
    const Matrix<float> distances =
        distances_of(queries.rows(0, setting.matrix), base, setting.metric, setting.threads);
    figures = measure_selection(distances, bench, bar);
  }
  {
    ProgressBar bar;
    for (Figure& figure :
         measure_searches(queries, base, bench, setting.metric, setting.threads, setting.by, bar))
      figures.push_back(std::move(figure));
  }
  // In the order of the paper; whole searches come first within a figure.
  std::stable_sort(figures.begin(), figures.end(), [](const Figure& a, const Figure& b) {
    const int first = std::stoi(a.number), second = std::stoi(b.number);
    return first != second ? first < second : a.searches > b.searches;
  });
  write_drawings(figures, setting, bench);
  if (bench.json) return print_json(figures, setting, bench);
  print_text_output(figures, setting, bench);
  if (!bench.out.empty()) print("\ndrawings {}\n", bench.out);
}

}  // namespace

void add_bench_threshold_heap(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "threshold-heap", "What does a threshold from a sample save, beside other selections?");
  auto arguments = std::make_shared<ThresholdHeapBench>();
  add_vector_options(*command, arguments->vectors);
  add_whole(*command, "-k", arguments->k, "neighbours where they do not vary (default 64)");
  add_whole(*command, "--count", arguments->count, "queries of a search (default 1000)");
  add_whole(*command, "--most", arguments->most,
            "queries at once up to which Figure 12 goes (default 8192)");
  add_whole(*command, "--matrix", arguments->matrix,
            "queries of selection alone, 4 bytes times the base's rows each (default 48)");
  add_device(*command, arguments->device);
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  add_whole(*command, "--repeat", arguments->repeat,
            "number of rounds; the median counts (default 3)");
  command->add_option("--out", arguments->out, "draw the figures into this .html or .svg")
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "Figures 5 to 12 of Matsumoto and Yiu (2015): of selection alone 6, 10 and 11, of whole "
      "searches 5 to\n10 and 12. Figure 10 searches the first n_D rows of the base, from a "
      "hundredth to all of them.\n\n"
      "Example:\n  knear bench threshold-heap --base base.bvecs --queries queries.bvecs "
      "--out figures.html");
  command->callback([=] { run_threshold_heap(*arguments); });
}

}  // namespace knear::cli
