// cli/info.cpp -- `knear info`: what files of vectors or ids hold, or without files what this knear
// is.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/graph_text.hpp"
#include "cli/info_program.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/json.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "knear/io/hdf5.hpp"
#include "knear/io/statistics.hpp"

namespace knear::cli {
namespace {

struct InfoArguments {
  std::vector<std::string> files;
  bool json = false;
};

std::string checksum_text(const io::Statistics& statistics) {
  return fmt::format("{:016x}", statistics.checksum);
}

void print_file(const io::Statistics& s) {
  const io::FileInfo& info = s.info;
  const std::int64_t bad = s.nan_count + s.infinity_count;
  print("{}\n", info.path);
  print("  {} x {} {}  ({}{}, {})\n", info.rows, info.dim, info.type, name_of(info.format),
        info.gzipped ? ", gzipped" : "", readable_bytes(double(info.file_bytes)));
  if (bad < info.rows * info.dim)
    print("  values    {}{:.9g} to {:.9g}\n", s.whole_numbers ? "whole numbers, " : "", s.least,
          s.greatest);
  if (s.finite_rows > 0) print("  norms     {:.9g} to {:.9g}\n", s.least_norm, s.greatest_norm);
  if (bad > 0)
    print("  not finite  {} NaN, {} infinite, the first in row {}: no search takes these\n",
          s.nan_count, s.infinity_count, s.first_bad_row);
  print("  memory    {} of numbers\n", readable_bytes(double(info.element_bytes)));
  print("  checksum  xxh3-64 {}\n", checksum_text(s));
}

nlohmann::ordered_json json_of(const io::Statistics& s) {
  nlohmann::ordered_json out;
  out["path"] = s.info.path;
  out["format"] = name_of(s.info.format);
  out["gzipped"] = s.info.gzipped;
  out["rows"] = s.info.rows;
  out["dim"] = s.info.dim;
  out["type"] = s.info.type;
  out["file_bytes"] = s.info.file_bytes;
  out["memory_bytes"] = s.info.element_bytes;
  out["whole_numbers"] = s.whole_numbers;
  out["least"] = s.least;
  out["greatest"] = s.greatest;
  out["least_norm"] = s.least_norm;
  out["greatest_norm"] = s.greatest_norm;
  out["nan_count"] = s.nan_count;
  out["infinity_count"] = s.infinity_count;
  out["first_bad_row"] = s.first_bad_row;
  out["xxh3_64"] = checksum_text(s);
  return out;
}

// Fields that describe both kinds of index files.
nlohmann::ordered_json describe(const Index& index, const std::string& path, bool json,
                                std::string_view format, std::string_view made_by,
                                std::int64_t file_bytes, std::string_view kept) {
  const std::string type(name_of(index.element_type())), metric(name_of(index.metric()));
  if (!json) {
    print("{}\n", path);
    print("  {} x {} {}, {}  ({} {}, {})\n", index.size(), index.dim(), type, metric, made_by,
          index.description(), readable_bytes(double(file_bytes)));
    print("  ids       below {}\n", index.next_id());
    print("  memory    {} of vectors, ids and packed forms{}\n",
          readable_bytes(double(index.memory_bytes())), kept);
    return {};
  }
  return {{"path", path},
          {"format", format},
          {"index", index.description()},
          {"rows", index.size()},
          {"dim", index.dim()},
          {"type", type},
          {"metric", metric},
          {"next_id", index.next_id()},
          {"file_bytes", file_bytes},
          {"memory_bytes", index.memory_bytes()}};
}

// The nodes of the graph over an index, 0 before it is made, and the bytes of its sections.
struct SearchGraph {
  std::int64_t nodes = 0, bytes = 0;
};
SearchGraph search_graph_of(const io::Archive& archive) {
  SearchGraph out;
  for (const io::Section& section : archive.sections())
    if (section.name.starts_with("graph/")) out.bytes += static_cast<std::int64_t>(section.bytes);
  if (archive.has("graph/begin"))
    out.nodes = static_cast<std::int64_t>(archive.read("graph/begin").bytes / 8) - 1;
  return out;
}

// Describes an index, comparing every section with its checksums.
nlohmann::ordered_json describe_index(const std::string& path, bool json, ProgressBar& bar) {
  const auto archive = io::Archive::open(path);
  archive->verify(bar.callback());
  const Index index = Index::load(path);
  bar.clear();
  auto out = describe(index, path, json, "knear", "knear index", archive->file_bytes(), ", mapped");
  if (index.has_graph()) {
    const SearchGraph graph = search_graph_of(*archive);
    if (json)
      out["graph_nodes"] = graph.nodes, out["graph_bytes"] = graph.bytes;
    else if (graph.nodes == 0)
      print("  graph     not made yet: the first search makes it\n");
    else
      print("  graph     {} nodes, {} of codes and links\n", graph.nodes,
            readable_bytes(double(graph.bytes)));
  }
  if (!json) {
    print("  checksum  {} sections as they were saved\n", archive->sections().size());
    return {};
  }
  out["sections"] = archive->sections().size(), out["verified"] = true;
  return out;
}

// Describes an index in shards, comparing every section of all its files with their checksums.
nlohmann::ordered_json describe_shards(const std::string& path, bool json, ProgressBar& bar) {
  const Index index = Index::load(path);
  const auto folder = std::filesystem::canonical(path).parent_path();
  const std::vector<std::string> names = index.shard_names();
  const std::vector<std::int64_t> sizes = index.shard_sizes();
  auto file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  nlohmann::ordered_json shards = nlohmann::ordered_json::array();
  for (std::size_t s = 0; s < names.size(); ++s) {
    const auto archive = io::Archive::open((folder / names[s]).string());
    archive->verify(bar.callback());
    file_bytes += archive->file_bytes();
    shards.push_back(
        {{"file", names[s]}, {"rows", sizes[s]}, {"file_bytes", archive->file_bytes()}});
  }
  bar.clear();
  auto out =
      describe(index, path, json, "knear", "knear index in shards of", file_bytes, ", mapped");
  if (json) {
    out["shards"] = std::move(shards), out["replicas"] = index.replicas(), out["verified"] = true;
    return out;
  }
  for (std::size_t s = 0; s < names.size(); ++s)
    print("  shard     {} rows in {}\n", sizes[s], names[s]);
  print("  checksum  all files as they were saved\n");
  return {};
}

// Describes a k-NN graph, comparing every section with its checksums.
nlohmann::ordered_json describe_graph_file(const std::string& path, bool json, ProgressBar& bar) {
  const NeighborGraph graph = NeighborGraph::load(path, bar.callback());
  const GraphStatistics statistics = statistics_of(graph);
  bar.clear();
  const auto file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  if (json) {
    nlohmann::ordered_json out = {{"path", path}, {"format", "knear"}, {"kind", "graph"}};
    out.update(describe_graph(graph));
    out["file_bytes"] = file_bytes;
    out.update(cli::json_of(statistics));
    out["verified"] = true;
    return out;
  }
  const GraphProperties& properties = graph.properties();
  print("{}\n", path);
  print("  format    knear graph, {}\n", readable_bytes(double(file_bytes)));
  print("  of        {} x {} {}, {}, checksum xxh3-64 {:016x}\n", graph.rows(), properties.base.dim,
        name_of(properties.base.type), name_of(properties.metric), properties.base.checksum);
  print("  has       the {} nearest others of each row, recall {} ({}){}\n", graph.k(),
        properties.promised_recall, properties.recall_argument,
        properties.distinct ? ", copies left out" : "");
  print_statistics(statistics);
  return {};
}

// Describes an index in a FAISS file, and reads the whole file.
nlohmann::ordered_json describe_faiss(const std::string& path, bool json) {
  const Index index = Index::load(path);
  return describe(index, path, json, "faiss", "FAISS's file of an index",
                  static_cast<std::int64_t>(std::filesystem::file_size(path)), "");
}

// Describes the datasets of an HDF5 file; `knear info FILE:DATASET` reads one of them.
void describe_hdf5(const std::string& path, bool json, nlohmann::ordered_json& files) {
  const io::Hdf5Contents contents = io::inspect_hdf5(path);
  nlohmann::ordered_json datasets = nlohmann::ordered_json::array();
  if (!json)
    print("{}{}\n", path, contents.distance.empty() ? "" : ", distance " + contents.distance);
  for (const io::Hdf5Dataset& one : contents.datasets) {
    if (!one.elsewhere.empty()) {
      if (!json) print("  {}:{}  {}, which is not read\n", path, one.name, one.elsewhere);
      datasets.push_back({{"name", one.name}, {"not_read", one.elsewhere}});
      continue;
    }
    std::string shape;
    for (const std::int64_t size : one.shape)
      shape += fmt::format("{}{}", shape.empty() ? "" : " x ", size);
    const std::string type(one.scalar ? io::name_of(*one.scalar) : "no plain numbers");
    if (!json)
      print("  {}:{}  {} {}{}\n", path, one.name, shape, type, one.offset < 0 ? ", packed" : "");
    datasets.push_back(
        {{"name", one.name}, {"shape", one.shape}, {"type", type}, {"mapped", one.offset >= 0}});
  }
  if (json)
    files.push_back({{"path", path},
                     {"format", "hdf5"},
                     {"distance", contents.distance},
                     {"datasets", datasets}});
}

void run_info(const InfoArguments& arguments) {
  if (arguments.files.empty()) return describe_program(arguments.json);
  const CatchInterrupts guard;
  ProgressBar bar;
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const std::string& file : arguments.files) {
    if (const auto hdf5 = io::hdf5_path(file); hdf5 && hdf5->dataset.empty()) {
      describe_hdf5(file, arguments.json, files);
      continue;
    }
    if (is_graph_file(file)) {
      auto described = describe_graph_file(file, arguments.json, bar);
      if (arguments.json) files.push_back(std::move(described));
      continue;
    }
    if (io::is_archive(file) || file.ends_with(".knear")) {
      auto described = is_sharded_file(file) ? describe_shards(file, arguments.json, bar)
                                             : describe_index(file, arguments.json, bar);
      if (arguments.json) files.push_back(std::move(described));
      continue;
    }
    if (is_faiss_file(file) || file.ends_with(".faiss")) {
      auto described = describe_faiss(file, arguments.json);
      if (arguments.json) files.push_back(std::move(described));
      continue;
    }
    const io::Statistics statistics = io::compute_statistics(file, bar.callback());
    bar.clear();
    if (arguments.json)
      files.push_back(json_of(statistics));
    else
      print_file(statistics);
  }
  // A path need not be UTF-8, but JSON must be.
  if (arguments.json)
    print("{}\n", nlohmann::ordered_json{{"files", files}}.dump(
                      2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "info",
      "Describe files of vectors, ids or an index; without files, this program and its GPUs");
  auto arguments = std::make_shared<InfoArguments>();
  command->add_option("FILE", arguments->files,
                      ".fvecs .bvecs .ivecs .fbin .u8bin .i8bin .ibin .npy .hdf5 .hdf5:DATASET or "
                      "MNIST idx, also gzipped; or an index, .knear");
  command->add_flag("--json", arguments->json,
                    "print one JSON object: files, or version, isa, isas, cuda, devices");
  command->footer(
      "Shape, type, range, norms and a checksum: XXH3 (64 bits) of the numbers, row by row, which "
      "is "
      "the same in every format that keeps the type.\n\nExample:\n"
      "  knear info base.fvecs queries.npy.gz\n"
      "  knear info");
  command->callback([=] { run_info(*arguments); });
}

}  // namespace knear::cli
