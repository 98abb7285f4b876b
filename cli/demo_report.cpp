#include "cli/demo_report.hpp"

#include <algorithm>
#include <cmath>

#include "cli/output.hpp"
#include "cli/png.hpp"
#include "cli/svg.hpp"
#include "knear/core/random.hpp"
#include "knear/core/version.hpp"

namespace knear::cli {
namespace {

// The colours of a line chart's curves; the first curve is what the chart is about.
constexpr const char* curves = R"(
:root { --curve-1: #2563c9; --curve-2: #c2571a; --curve-3: #1b7f4d; --curve-4: #8a3fb5;
  --curve-5: #667080; --curve-6: #9a7400; --curve-7: #0b7f8f; --curve-8: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --curve-1: #6ea0ff; --curve-2: #f0995c;
  --curve-3: #5cc78e; --curve-4: #c792ea; --curve-5: #98a2b0; --curve-6: #d9b341;
  --curve-7: #4fc1d1; --curve-8: #ff8f87; } }
.curve-1 { stroke: var(--curve-1); } .curve-2 { stroke: var(--curve-2); }
.curve-3 { stroke: var(--curve-3); } .curve-4 { stroke: var(--curve-4); }
.curve-5 { stroke: var(--curve-5); } .curve-6 { stroke: var(--curve-6); }
.curve-7 { stroke: var(--curve-7); } .curve-8 { stroke: var(--curve-8); }
[class^=curve] { fill: none; stroke-width: 1.6; } .curve-1 { stroke-width: 2.4; }
.mark { fill: var(--panel); } .panel { fill: var(--panel); }
)";

constexpr const char* style = R"(
:root { color-scheme: light dark; --page: #f6f5f1; --panel: #ffffff; --ink: #1c2128;
  --quiet: #667080; --line: #dcdad3; --accent: #2563c9; --soft: #2563c955; --other: #c2571a;
  --wrong: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #13161b; --panel: #1c2027; --ink: #e7e9ec;
  --quiet: #98a2b0; --line: #323843; --accent: #6ea0ff; --soft: #6ea0ff55; --other: #f0995c;
  --wrong: #ff8f87; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em;
  text-wrap: balance; }
h2 { font-size: 19px; margin: 0 0 4px; }
p { margin: 0 0 14px; color: var(--quiet); max-width: 78ch; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: 12px;
  padding: 22px 24px; margin-top: 20px; overflow-x: auto; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px;
  margin-top: 22px; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 12px;
  padding: 14px 16px; }
.card b { display: block; font-size: 25px; line-height: 1.25; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.card span { color: var(--quiet); font-size: 13px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: 20px; }
.pair > div > section + section { margin-top: 20px; }
dl { margin: 0; } dt { font-weight: 600; } dd { margin: 0 0 10px; color: var(--quiet); }
.row { display: grid; grid-template-columns: 96px repeat(10, minmax(58px, 1fr)); gap: 8px;
  align-items: end; padding: 12px 0; border-top: 1px solid var(--line); min-width: 800px; }
.row:first-of-type { border-top: 0; }
figure { margin: 0; text-align: center; }
figure img, figure svg { display: block; width: 100%; height: auto; aspect-ratio: 1;
  border-radius: 6px; border: 1px solid var(--line); image-rendering: pixelated; background: #000; }
.film { display: flex; gap: 8px; overflow-x: auto; padding: 10px 0 6px; }
.frame { flex: none; width: 92px; text-align: center; font-size: 11.5px; line-height: 1.35; }
.frame img, .frame svg { display: block; width: 100%; height: auto; aspect-ratio: 1;
  border-radius: 6px; border: 1px solid var(--line); image-rendering: pixelated; background: #000; }
.frame svg { background: var(--page); }
.frame b { display: block; font-weight: 550; margin-top: 5px; }
.frame i { font-style: normal; color: var(--quiet); display: block; }
.frame .largest { color: var(--other); font-weight: 650; }
.words { padding: 12px 0; border-top: 1px solid var(--line); }
.words:first-of-type { border-top: 0; }
.words b { font-weight: 650; } .words ol { list-style: none; margin: 4px 0 0; padding: 0; }
.words li { display: grid; grid-template-columns: 52px 1fr; overflow-wrap: anywhere; }
.words i { font-style: normal; color: var(--quiet); font-variant-numeric: tabular-nums; }
.frame.text { width: 176px; text-align: left; overflow-wrap: anywhere; }
figure.query { padding-right: 12px; }
figure.query img, figure.query svg { border: 2px solid var(--accent); }
figure.wrong img { outline: 2px dashed var(--wrong); outline-offset: 1px; }
figcaption { font-size: 11.5px; line-height: 1.35; margin-top: 5px; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
figcaption i { display: block; font-style: normal; color: var(--quiet); }
.wrong figcaption b { color: var(--wrong); } figcaption b { font-weight: 550; }
figure svg.sift { background: var(--page); }
.sift .grid { stroke: var(--line); fill: none; stroke-width: 1; }
.sift .star { stroke: var(--accent); fill: none; stroke-width: 1.3; stroke-linecap: round; }
.pair svg { width: 100%; height: auto; display: block; font-size: 13px; }
.bar { fill: var(--accent); } .ink { fill: var(--ink); } .quiet { fill: var(--quiet); }
.line { stroke: var(--line); fill: none; }
.roof { stroke: var(--other); fill: none; stroke-width: 2; }
.area-1 { fill: var(--soft); stroke: var(--accent); stroke-width: 1.2; }
.area-2 { fill: none; stroke: var(--other); stroke-width: 1.6; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 4px 12px; text-align: right; font-weight: 400;
  border-top: 1px solid var(--line); }
td:first-child, th:first-child { text-align: left; padding-left: 0; }
tr:first-child th { border-top: 0; color: var(--quiet); }
td.sub { padding-left: 18px !important; color: var(--quiet); }
table.confusion { font-size: 12.5px; }
.confusion td, .confusion th { padding: 4px 8px; border-top: 0; }
.confusion td { min-width: 52px; border-radius: 4px;
  background: color-mix(in srgb, var(--tone) var(--share), transparent); }
.confusion tr:first-child th { font-size: 11.5px; vertical-align: bottom; }
.confusion td:first-child { text-align: right; }
footer { margin-top: 26px; color: var(--quiet); font-size: 13px; }
code { font: 13px/1.4 ui-monospace, "SF Mono", Consolas, monospace; }
)";

std::string card(const std::string& figure, const std::string& meaning) {
  return fmt::format("<div class='card'><b>{}</b><span>{}</span></div>\n", escaped(figure),
                     escaped(meaning));
}

std::string section(const std::string& title, const std::string& text, const std::string& body) {
  const std::string paragraph = text.empty() ? "" : fmt::format("<p>{}</p>\n", escaped(text));
  return fmt::format("<section><h2>{}</h2>\n{}{}\n</section>\n", escaped(title), paragraph, body);
}

// Draws a row as a picture, image or descriptor.
std::string picture(const DemoData& data, AnyMatrixView vectors, std::int64_t row,
                    const std::string& name) {
  std::vector<float> values(vectors.cols());
  visit(vectors, [&](auto typed) {
    for (std::int64_t i = 0; i < typed.cols(); ++i)
      values[i] = static_cast<float>(to_double(typed.row(row)[i]));
  });
  if (data.picture == Picture::sift) return sift_star(values);
  std::vector<std::uint8_t> pixels;
  for (float value : values)
    pixels.push_back(static_cast<std::uint8_t>(std::lround(std::clamp(value, 0.0f, 255.0f))));
  const int side = static_cast<int>(std::lround(std::sqrt(double(values.size()))));
  return fmt::format("<img src='{}' width='{}' height='{}' alt='{}'>",
                     grey_png_uri(pixels, side, side), side, side, escaped(name));
}

std::string label_name(const DemoData& data, std::uint8_t label) {
  return label < data.class_names.size() ? data.class_names[label] : fmt::format("{}", label);
}

// A query and its neighbours in words.
std::string text_row(const DemoResult& result, std::int64_t q) {
  const DemoData& data = result.data;
  std::string out =
      fmt::format("<div class='words'><b>{}</b><ol>\n", escaped(data.query_texts[std::size_t(q)]));
  for (std::int64_t j = 0; j < result.near.ids.cols(); ++j) {
    const Id id = result.near.ids.row(q)[j];
    if (id == no_id) continue;
    out += fmt::format("<li><i>{}</i><span>{}</span></li>\n",
                       shown_distance(data, result.near.distances.row(q)[j]),
                       escaped(data.base_texts[std::size_t(id)]));
  }
  return out + "</ol></div>\n";
}

std::string gallery_row(const DemoResult& result, std::int64_t q) {
  const DemoData& data = result.data;
  if (data.picture == Picture::text) return text_row(result, q);
  const bool labelled = !data.query_labels.empty();
  const std::string query_name = labelled ? label_name(data, data.query_labels[q]) : "";
  std::string out = "<div class='row'>";
  out += fmt::format(
      "<figure class='query'>{}<figcaption><b>{}</b><i>query {}</i></figcaption></figure>",
      picture(data, data.queries.view(), q, "query"), escaped(query_name), q);
  for (std::int64_t j = 0; j < result.near.ids.cols(); ++j) {
    const Id id = result.near.ids.row(q)[j];
    if (id == no_id) continue;
    const std::string name = labelled ? label_name(data, data.base_labels[id]) : "";
    out += fmt::format(
        "<figure{}>{}<figcaption><b>{}</b><i>{}</i></figcaption></figure>",
        labelled && data.base_labels[id] != data.query_labels[q] ? " class='wrong'" : "",
        picture(data, data.base.view(), id, fmt::format("row {}", id)), escaped(name),
        shown_distance(data, result.near.distances.row(q)[j]));
  }
  return out + "</div>\n";
}

std::string gallery_legend(const DemoData& data) {
  if (!data.query_labels.empty())
    return " A dashed frame marks a neighbour of another class: the search knows pixels, not "
           "labels.";
  if (data.picture == Picture::sift)
    return " Each star shows the gradients of one cell of a patch of a photograph, by direction.";
  return "";
}

std::string gallery(const DemoResult& result) {
  std::string rows;
  for (std::int64_t q : queries_to_show(result.data)) rows += gallery_row(result, q);
  const bool labelled = !result.data.query_labels.empty();
  return section(
      "Queries and their neighbours",
      fmt::format("{}, drawn at random with a fixed seed, each with its {} nearest neighbours, "
                  "nearest first, and their Euclidean distances.{}",
                  labelled ? "One query of each class" : "Queries", result.report.k,
                  gallery_legend(result.data)),
      rows);
}

std::string walk(const DemoResult& result) {
  const DemoWalk& walk = result.walk;
  if (walk.from == no_id) return "";
  const DemoData& data = result.data;
  const bool texts = data.picture == Picture::text;
  const auto name = [&](Id row) -> std::string {
    if (texts) return data.base_texts[std::size_t(row)];
    if (data.base_labels.empty()) return "";
    return label_name(data, data.base_labels[std::size_t(row)]);
  };
  const auto named = [&](Id row) {
    return texts || data.base_labels.empty() ? fmt::format("row {}", row)
                                             : fmt::format("{} ({})", name(row), row);
  };
  const std::string title =
      fmt::format("The smoothest path, from {} to {}", named(walk.from), named(walk.to));
  if (!walk.path.found())
    return section(title,
                   "There is none: the two lie in different components of the graph that connects "
                   "each row with its 10 nearest others.",
                   "");
  std::string film = "<div class='film'>";
  for (std::size_t i = 0; i < walk.path.ids.size(); ++i) {
    const Id row = walk.path.ids[i];
    const bool largest = i > 0 && walk.steps[i - 1] == walk.path.largest_step;
    film +=
        fmt::format("<div class='frame{}'>{}<b>{}</b><i>row {}</i>{}</div>", texts ? " text" : "",
                    texts ? "" : picture(data, data.base.view(), row, fmt::format("row {}", row)),
                    escaped(name(row)), row,
                    i == 0 ? ""
                           : fmt::format("<i{}>step of {}{}</i>", largest ? " class='largest'" : "",
                                         shown_distance(data, walk.steps[i - 1]),
                                         largest ? ", the largest" : ""));
  }
  return section(
      title,
      fmt::format(
          "In the graph of the 10 nearest others of each row (made in {}{}), the path whose "
          "largest step is as small as can be (found in {}). Steps are Euclidean "
          "distances.",
          readable_seconds(walk.graph_seconds),
          walk.recall < 1 ? fmt::format(", with a recall of {}", walk.recall) : "",
          readable_seconds(walk.path_seconds)),
      film + "</div>");
}

std::string timing(const DemoResult& result) {
  std::vector<Bar> stages, rates;
  for (const Stage& stage : result.stages)
    stages.push_back({stage.name, stage.seconds, readable_seconds(stage.seconds)});
  for (const BatchRate& batch : result.batches) {
    const double rate = double(batch.queries) / batch.seconds;
    rates.push_back({batch.queries == 1 ? "1 at a time" : grouped(batch.queries) + " at a time",
                     rate, readable_count(rate) + "/s, " + readable_seconds(batch.seconds)});
  }
  return "<div class='pair'>" +
         section("Where the time went", "Wall-clock seconds of each stage, in order.",
                 bar_chart(stages)) +
         section("Queries per second, by batch",
                 "The same search with the base kept packed and fewer queries per call; beside the "
                 "rate, the time of one call (median).",
                 bar_chart(rates)) +
         "</div>\n";
}

// Figure 2 of Chern et al. 2022 for this machine: the rates that the search could reach by the
// bytes that it reads and by its coefficient-wise operations, and the rate that it reached.
std::string roofline(const DemoResult& result) {
  const KnnReport& report = result.report;
  const Prediction& prediction = result.prediction;
  std::vector<RoofPoint> by_bytes, by_operations;
  for (const BatchRate& batch : result.batches) {
    const ScanCost cost =
        predict_scan({.rows = report.rows,
                      .dim = batch.columns,
                      .queries = batch.queries,
                      .k = report.k,
                      .bytes_per_element = report.scan.first_pass == "fp32"    ? 4.0
                                           : report.scan.first_pass == "int16" ? 2.0
                                                                               : 1.0,
                      .threads = report.threads},
                     prediction.peaks);
    const double operations =
        2 * double(report.rows) * double(batch.columns) * double(batch.queries);
    const double rate = operations / batch.seconds;
    const std::string name = fmt::format("{} at a time", grouped(batch.queries));
    by_bytes.push_back({name, operations / cost.bytes, rate});
    by_operations.push_back({name, operations / cost.cops, rate});
  }
  const std::string roof = prediction.peak_name + " of this machine, per second";
  return "<div class='pair'>" +
         section("The roof of memory",
                 "Operations of the search per second, by batch, under what the machine reaches: "
                 "its peak, and the bytes that it reads per second times the operations per byte. "
                 "A base that fits a cache may lie above the slope. Of a search by a prefix only "
                 "the prefix counts.",
                 roofline_plot(prediction.peak, prediction.peaks.memory_bytes_per_second, roof,
                               "operations per byte read", by_bytes)) +
         section("The roof of other operations",
                 "The same with what each score takes besides its multiply-adds: limits, the test "
                 "against them.",
                 roofline_plot(prediction.peak, prediction.peaks.cop_per_second, roof,
                               "operations per coefficient-wise operation", by_operations)) +
         "</div>\n";
}

std::string plan(const DemoResult& result) {
  std::string table = "<table>\n";
  bool header = true;
  for (const auto& line : explain_lines(result.report, result.prediction)) {
    const char* cell = header ? "th" : "td";
    const bool sub = line[0].starts_with("  ");
    table += fmt::format("<tr><{0}{1}>{2}</{0}><{0}>{3}</{0}><{0}>{4}</{0}></tr>\n", cell,
                         sub ? " class='sub'" : "", escaped(line[0]), escaped(line[1]),
                         escaped(line[2]));
    header = false;
  }
  return section("The plan, and what happened",
                 fmt::format("Planned from the shape of the data and the {} peaks of this machine "
                             "({}, {} kernels, {} threads).",
                             result.prediction.measured_peaks ? "measured" : "estimated",
                             processor_name(), result.report.scan.isa, result.report.threads),
                 table + "</table>");
}

// The exact search is a point of this chart too.
std::string recall(const DemoResult& result) {
  if (result.recall.empty()) return "";
  std::vector<RecallCurveOf> shown = result.recall;
  shown.insert(shown.begin(), RecallCurveOf{"every vector compared", 0, 0, {}});
  RecallCurvePoint exact;
  exact.recall = 1, exact.seconds = result.report.seconds;
  shown.front().points.push_back(exact);
  std::string table = "<table><tr><th>index</th><th>built in</th><th>bytes a vector</th></tr>\n";
  for (const RecallCurveOf& curve : result.recall)
    table += fmt::format("<tr><td>{}</td><td>{}</td><td>{:.0f}</td></tr>\n", escaped(curve.factory),
                         readable_seconds(curve.build_seconds),
                         double(curve.memory_bytes) / double(result.report.rows));
  return section("If not all have to be found",
                 "An index of inverted lists compares a query with the vectors of a few lists, or "
                 "with codes of them. Each point is a number of lists: 1, 2, 4, ... Recall is the "
                 "share of the true nearest that are found.",
                 "<div class='pair'><div>" +
                     recall_chart(shown, result.report.queries, result.report.k, false) +
                     "</div><div>" + table + "</table></div></div>");
}

std::string distances(const DemoResult& result) {
  Series nearest{"nearest neighbour", {}},
      farthest{fmt::format("neighbour {}", result.near.distances.cols()), {}};
  for (std::int64_t q = 0; q < result.near.distances.rows(); ++q) {
    const float* row = result.near.distances.row(q);
    const double first = std::sqrt(row[0]), last = std::sqrt(row[result.near.distances.cols() - 1]);
    if (std::isfinite(first)) nearest.values.push_back(first);
    if (std::isfinite(last)) farthest.values.push_back(last);
  }
  return section("How near is near",
                 fmt::format("Euclidean distances of all {} queries to their first and their last "
                             "neighbour found.",
                             grouped(result.near.distances.rows())),
                 histogram(nearest, farthest, "distance"));
}

std::string glossary() {
  const auto term = [](const char* name, const char* meaning) {
    return fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, meaning);
  };
  return section(
      "Words in the plan", "",
      "<dl>" +
          term("first pass",
               "how every pair is scored, in registers: exactly where both sides are whole numbers "
               "of 8 bits (integer), else in a short code with a proven error bound (int8, int16, "
               "fp32)") +
          term("hits", "pairs whose score passed the threshold, the k-th best so far") +
          term("survivors",
               "hits that the bound could not exclude in the end: measured in float64 from the "
               "original vectors; none are left where the first pass is exact") +
          term("certified", "queries whose answer is proven to be that of a full float64 scan") +
          term("limit", "what the machine runs out of first, by the model of the plan") + "</dl>");
}

std::string labels(const DemoResult& result) {
  const LabelVote& vote = result.vote;
  std::string table = "<table class='confusion'><tr><th></th>";
  for (const std::string& name : result.data.class_names)
    table += fmt::format("<th>{}</th>", escaped(name));
  table += "</tr>\n";
  for (std::size_t truth = 0; truth < vote.confusion.size(); ++truth) {
    const auto& row = vote.confusion[truth];
    std::int64_t total = 0;
    for (std::int64_t count : row) total += count;
    table += fmt::format("<tr><th>{}</th>", escaped(label_name(result.data, std::uint8_t(truth))));
    for (std::size_t voted = 0; voted < row.size(); ++voted)
      table +=
          fmt::format("<td style='--share:{:.0f}%;--tone:var(--{})'>{}</td>",
                      total ? 80.0 * double(row[voted]) / double(total) : 0.0,
                      voted == truth ? "accent" : "wrong", row[voted] ? grouped(row[voted]) : "");
    table += "</tr>\n";
  }
  return section(
      "A sanity figure: do neighbours share a label?",
      fmt::format("A vote of the {} neighbours gives {} of {} queries their own label, {:.2f} %. "
                  "Rows: the label; columns: the vote. Nothing was trained; this says that the "
                  "neighbours make sense, not how fast they were found.",
                  result.report.k, grouped(vote.right), grouped(vote.total),
                  100.0 * double(vote.right) / double(vote.total)),
      table + "</table>");
}

}  // namespace

std::string grouped(std::int64_t number) {
  const std::string digits = fmt::format("{}", number);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool group_starts = i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0;
    if (group_starts) out += ',';
    out += digits[i];
  }
  return out;
}

std::string shown_distance(const DemoData& data, double squared) {
  return data.picture == Picture::text ? fmt::format("{:.2f}", std::sqrt(squared))
                                       : fmt::format("{:.0f}", std::sqrt(squared));
}

std::vector<std::int64_t> queries_to_show(const DemoData& data) {
  const std::int64_t count = data.queries.view().rows();
  Random random(7);
  std::vector<std::int64_t> out;
  if (data.query_labels.empty()) {
    for (std::int64_t i = 0; i < std::min<std::int64_t>(8, count); ++i)
      out.push_back(static_cast<std::int64_t>(random.below(count)));
    return out;
  }
  for (std::size_t label = 0; label < data.class_names.size(); ++label) {
    std::vector<std::int64_t> members;
    for (std::int64_t q = 0; q < count; ++q)
      if (data.query_labels[q] == label) members.push_back(q);
    if (!members.empty()) out.push_back(members[random.below(members.size())]);
  }
  return out;
}

double times_plain_loop(const DemoResult& result) {
  const double per_query =
      result.seconds / double(std::max<std::int64_t>(result.report.queries, 1));
  const double loop = result.loop.seconds / double(std::max<std::int64_t>(result.loop.queries, 1));
  return loop / std::max(per_query, 1e-12);
}

std::string rounded(double number) {
  return number < 100 ? fmt::format("{:.3g}", number) : grouped(std::llround(number));
}

std::string page_style() { return std::string(style) + curves; }

std::string demo_report(const DemoResult& result) {
  const KnnReport& report = result.report;
  const char* const things = result.data.picture == Picture::image  ? "images"
                             : result.data.picture == Picture::sift ? "SIFT descriptors"
                                                                    : "texts";
  const std::string title =
      fmt::format("The {} nearest of {} {}, for {} queries, exactly", report.k,
                  grouped(report.rows), things, grouped(report.queries));
  std::string html = fmt::format(
      "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<meta name='viewport' "
      "content='width=device-width, initial-scale=1'>\n<title>knear: {0}</title>\n<style>{1}"
      "</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n<p>{2}: {3} numbers per vector, compared "
      "by "
      "Euclidean distance.</p>\n",
      escaped(title), page_style(), escaped(result.data.name), report.dim);
  html += "<div class='cards'>\n";
  html += card(readable_seconds(result.seconds), "to pack the base and search");
  html += card(grouped(std::llround(double(report.queries) / std::max(result.seconds, 1e-9))),
               "queries per second");
  html += card(rounded(times_plain_loop(result)) + " x",
               "the speed of a plain loop over all rows on as many threads");
  html += card(fmt::format("{:.0f} %", 100 * result.prediction.peak_fraction),
               fmt::format("of this machine's peak in {}", result.prediction.peak_name));
  html += card(
      fmt::format("{:.4g} %", report.queries ? 100.0 * double(report.promise.certified_queries) /
                                                   double(report.queries)
                                             : 100.0),
      "of the answers certified exact");
  html += card(fmt::format("{} of {}", result.verified, result.verified),
               "random queries equal brute force in float64");
  if (result.vote.total > 0)
    html +=
        card(fmt::format("{:.1f} %", 100.0 * double(result.vote.right) / double(result.vote.total)),
             "labels right by a vote of the neighbours");
  html += "</div>\n";
  html += gallery(result);
  html += timing(result);
  html += roofline(result);
  html += recall(result);
  html += "<div class='pair'><div>" + plan(result) + "</div><div>" + distances(result) +
          glossary() + "</div></div>\n";
  if (result.vote.total > 0) html += labels(result);
  html += walk(result);
  html += fmt::format(
      "<footer>Made by <code>knear demo</code>, version {}, from {}. Every answer is the one of a "
      "full scan in float64, ties by row number; candidates are scored in {} first and only those "
      "that a proven bound can't exclude are measured.</footer>\n</main>\n</body>\n</html>\n",
      KNEAR_VERSION, escaped(result.data.source), escaped(report.scan.first_pass));
  return html;
}

}  // namespace knear::cli
