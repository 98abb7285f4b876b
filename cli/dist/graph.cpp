// cli/dist/graph.cpp -- `knear dist graph`: the exact graph of `knear graph`, to the bit, by many
// processes that have a part of the rows each.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>

#include "cli/arguments.hpp"
#include "cli/dist/job.hpp"
#include "cli/dist/stop_line.hpp"
#include "cli/files.hpp"
#include "cli/graph_job.hpp"
#include "cli/graph_text.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "knear/core/error.hpp"
#include "knear/core/json.hpp"
#include "knear/graph/partial_graph.hpp"
#include "knear/io/open_file.hpp"
#include "knear/mpi/part_graph.hpp"

namespace knear::cli {
namespace {

constexpr auto left_out_of_graph = {"--from", "--recall", "--distinct", "--accuracy", "--memory"};

// The blocks of a graph. Finished blocks lie in a file with their checksums.
class BlocksOfGraph : public StoppedWork {
 public:
  explicit BlocksOfGraph(const std::string& partial) : partial_(partial) {}

  void begin(std::int64_t blocks) { blocks_ = blocks; }
  // All blocks are there, and become the graph.
  void search_ended() { searched_ = true; }

  bool tell(SignalLine& line) const override {
    if (blocks_ == 0) {
      line.add(" before the first block was begun; begin again with: ");
      return false;
    }
    line.add("; of "), line.add(blocks_), line.add(" blocks in "), line.add(partial_.c_str());
    line.add(" these are finished:");
    if (searched_)
      line.add(" all");
    else
      add_finished(line);
    line.add("; go on with: ");
    return true;
  }

 private:
  // " 0-3, 5", or " none".
  void add_finished(SignalLine& line) const {
    constexpr std::int64_t at_once = 256;
    constexpr int most_ranges = 100;
    const std::int64_t blocks = blocks_;
    std::uint64_t sums[at_once];
    std::int64_t begin = -1;
    int ranges = 0;
    const auto end_range = [&](std::int64_t end) {
      if (begin < 0) return;
      if (ranges < most_ranges) {
        line.add(ranges > 0 ? ", " : " "), line.add(begin);
        if (end - begin > 1) line.add("-"), line.add(end - 1);
      } else if (ranges == most_ranges) {
        line.add(", ...");
      }
      ++ranges, begin = -1;
    };
    std::optional<io::OpenFile> file;
    try {
      file.emplace(partial_);
    } catch (const IoError&) {  // nothing is known of its blocks
    }
    for (std::int64_t first = 0; file && first < blocks; first += at_once) {
      const std::int64_t count = std::min(at_once, blocks - first);
      const auto bytes = static_cast<std::size_t>(count) * sizeof sums[0];
      if (pread(file->number(), sums, bytes,
                detail::PartialGraph::sums_at + first * std::int64_t{sizeof sums[0]}) !=
          static_cast<ssize_t>(bytes)) {
        end_range(first);  // of the others nothing is known
        break;
      }
      for (std::int64_t i = 0; i < count; ++i) {
        if (sums[i] != 0 && begin < 0) begin = first + i;
        if (sums[i] == 0) end_range(first + i);
      }
    }
    end_range(blocks);
    if (ranges == 0) line.add(" none");
  }

  const std::string partial_;
  std::atomic<std::int64_t> blocks_ = 0;
  std::atomic<bool> searched_ = false;
};

void print_graph(const GraphArguments& arguments, const Job& job, const PartGraphReport& report,
                 int threads) {
  const NeighborGraph graph = NeighborGraph::load(arguments.out);
  const GraphStatistics statistics = statistics_of(graph);
  const double rate = static_cast<double>(report.searched_rows) / report.seconds;
  if (arguments.json) {
    nlohmann::ordered_json out = describe_graph(graph);
    out["method"] = report.was_whole ? "none" : "search";
    out["ranks"] = job.ranks();
    out["threads"] = threads;
    out["seconds"] = report.seconds;
    out["searched_rows"] = report.searched_rows;
    out["rows_per_second"] = rate;
    out["blocks"] = report.blocks;
    out["blocks_before"] = report.blocks_before;
    out["passed_bytes"] = report.passed_bytes;
    out["predicted_passed_bytes"] = report.predicted_passed_bytes;
    out["gathered_bytes"] = report.gathered_bytes;
    out.update(json_of(statistics));
    print("{}\n", out.dump(2));
    return;
  }
  print("{}: the {} nearest others of {} x {} {}, {}, in {}\n", arguments.out, graph.k(),
        graph.rows(), graph.properties().base.dim, name_of(graph.properties().base.type),
        name_of(graph.metric()), readable_seconds(report.seconds));
  if (report.was_whole) {
    print("  was whole already: nothing was searched for, exact\n");
  } else {
    print("  search by {} ranks of {} threads, {} rows a second, exact\n", job.ranks(), threads,
          readable_count(rate));
    print("  {} of {} blocks were there; {} of the base passed round\n", report.blocks_before,
          report.blocks, readable_bytes(double(report.passed_bytes)));
  }
  print_statistics(statistics);
}

void run_graph(const CLI::App& command, const GraphArguments& arguments, const Job& job) {
  check_positive("-k", arguments.k);
  check_left_out(command, left_out_of_graph);
  PartGraphOptions options{.threads = job.threads(arguments.threads),
                           .resume = arguments.resume ? Resume::yes : Resume::no};
  const CatchInterrupts guard;
  job.together([&] {
    options.metric =
        arguments.metric.empty() ? metric_of_file(arguments.base) : parse_metric(arguments.metric);
  });
  job.at_first([&] { check_output("--out", arguments.out, {".knear"}, {arguments.base}); });
  const FileShape file(job, arguments.base, arguments.type);
  BlocksOfGraph blocks(arguments.out + ".partial");
  std::optional<StopLine> line;
  line.emplace(job, arguments.out, blocks);
  ProgressBar bar;
  options.progress = job.progress(bar);
  bar.count("rows", file.rows);
  // The checksum of all rows in their order, which the first process reads for it.
  BaseMark mark{.rows = file.rows, .dim = file.dim, .type = file.type};
  job.at_first([&] {
    mark = mark_of(open_vectors(arguments.base, arguments.type, base_dataset).view(),
                   options.progress);
  });
  std::optional<io::VectorFile> part;
  const auto open_rows = [&](std::int64_t begin, std::int64_t end) -> AnyMatrixView {
    if (begin == end) return {file.type, nullptr, 0, file.dim, file.dim};
    io::OpenOptions opening = file.options;
    opening.rows = io::RowRange{begin, end};
    part = io::VectorFile::open(file.path, opening);
    return part->view();
  };
  options.begun = [&](std::int64_t number) { blocks.begin(number); };
  options.searched = [&] { blocks.search_ended(); };
  PartGraphReport report;
  build_graph_of_parts(job.peers(), mark, open_rows, arguments.k, arguments.out, options, &report);
  line.reset();
  bar.clear();
  job.at_first([&] { print_graph(arguments, job, report, options.threads); });
}

}  // namespace

void add_dist_graph(CLI::App& app, const Job& job) {
  CLI::App* command = app.add_subcommand(
      "graph", "Connect every vector to its k nearest others, exactly, as knear graph does");
  auto arguments = std::make_shared<GraphArguments>();
  add_graph_arguments(*command, *arguments);
  leave_out(*command, left_out_of_graph);
  command->footer(
      "Each process searches for the rows of its part, block by block, among all, which are passed "
      "round. Blocks that are finished lie in FILE.partial until the graph is whole; a run that is "
      "stopped, or of which a process is killed, names them and the command that goes on, which "
      "may have another number of processes, or be knear graph --resume.\n\nExample:\n"
      "  mpirun -n 8 knear dist graph --base base.fvecs -k 10 --out graph.knear");
  command->callback([=, &job] { run_graph(*command, *arguments, job); });
}

}  // namespace knear::cli
