// cli/convert_command.cpp -- `knear convert`: vectors or ids from one file format and type to
// another; and indexes from those of FAISS and to them.
#include "knear/io/convert.hpp"

#include <memory>
#include <string>
#include <utility>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/npz.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/graph/neighbor_graph.hpp"
#include "knear/graph/sparse_graph.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"

namespace knear::cli {
namespace {

struct ConvertArguments {
  std::string in, out, rows, type, closure;
  bool rows_given = false, type_given = false;  // an empty word is not an absent one
};

// "A:B", "A:" or ":B"; the rows A to B - 1.
io::RowRange parse_rows(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || text.size() == 1)
    unparsable(fmt::format("--rows must be A:B, A: or :B, but is '{}'", text));
  io::RowRange rows;
  if (colon > 0) rows.begin = parse_whole("--rows", text.substr(0, colon));
  if (colon + 1 < text.size()) rows.end = parse_whole("--rows", text.substr(colon + 1));
  return rows;
}

// An index, from whatever file it is in.
void convert_index(const ConvertArguments& arguments) {
  if (arguments.rows_given)
    throw InvalidArgument("--rows is {}, but {} is an index, converted as a whole", arguments.rows,
                          arguments.in);
  if (arguments.type_given)
    throw InvalidArgument("--type is {}, but {} is an index, whose vectors stay as they are",
                          arguments.type, arguments.in);
  check_output("OUT", arguments.out, {".knear", ".faiss"}, {arguments.in});
  const CatchInterrupts guard;
  ProgressBar bar;
  const Index index = Index::load(arguments.in).as_one();
  if (arguments.out.ends_with(".knear"))
    index.save(arguments.out, bar.callback());
  else
    write_faiss(index, arguments.out, bar.callback());
  bar.clear();
  print("{}: {}, {} x {} {}, {}\n", arguments.out, index.description(), index.size(), index.dim(),
        name_of(index.element_type()), name_of(index.metric()));
}

// The ids of a graph [rows x k], or the sparse matrix of its distances.
void convert_graph(const ConvertArguments& arguments) {
  for (const auto& [option, given] :
       {std::pair("--rows", arguments.rows_given), std::pair("--type", arguments.type_given)})
    if (given)
      throw InvalidArgument("{} is given, but {} is a graph, converted as it is", option,
                            arguments.in);
  check_output("OUT", arguments.out, {".ivecs", ".ibin", ".npy", ".npz"}, {arguments.in});
  const bool sparse = arguments.out.ends_with(".npz");
  if (!sparse && !arguments.closure.empty())
    throw InvalidArgument("--closure is {}, but is for a .npz, and OUT is {}", arguments.closure,
                          arguments.out);
  const Closure closure =
      arguments.closure.empty() ? Closure::either : parse_closure(arguments.closure);
  const CatchInterrupts guard;
  ProgressBar bar;
  const NeighborGraph graph = NeighborGraph::load(arguments.in, bar.callback());
  if (sparse) {
    const SparseGraph made = symmetric(graph.ids(), graph.distances(), graph.metric(), closure);
    check_interrupt();
    write_npz(arguments.out, made);
    bar.clear();
    print("{}: {} x {}, {} distances\n", arguments.out, made.rows(), made.rows(), made.ids.size());
    return;
  }
  io::write_ids(arguments.out, graph.ids(), bar.callback());
  bar.clear();
  print("{}: the {} nearest others of {} rows\n", arguments.out, graph.k(), graph.rows());
}

void run_convert(const ConvertArguments& arguments) {
  const std::string& in = arguments.in;
  if (is_graph_file(in)) return convert_graph(arguments);
  if (!arguments.closure.empty())
    throw InvalidArgument("--closure is {}, but {} is no graph", arguments.closure, in);
  if (io::is_archive(in) || is_faiss_file(in) || in.ends_with(".knear") || in.ends_with(".faiss"))
    return convert_index(arguments);
  check_output("OUT", arguments.out, {}, {in});  // the library refuses endings that it cannot write
  io::ConvertOptions options;
  if (arguments.rows_given) options.rows = parse_rows(arguments.rows);
  if (arguments.type_given) options.type = parse_element_type(arguments.type);
  const CatchInterrupts guard;
  ProgressBar bar;
  options.progress = bar.callback();
  const io::Converted made = io::convert_file(arguments.in, arguments.out, options);
  bar.clear();
  print("{}: {} x {} {}\n", arguments.out, made.rows, made.dim, made.type);
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("convert", "Convert files of vectors or ids, indexes and graphs");
  auto arguments = std::make_shared<ConvertArguments>();
  command
      ->add_option(
          "IN", arguments->in,
          ".fvecs .bvecs .ivecs .fbin .u8bin .i8bin .ibin .npy or MNIST idx, also gzipped; "
          "or an index, .knear or of FAISS; or a graph, .knear")
      ->required();
  command
      ->add_option("OUT", arguments->out,
                   ".fvecs .bvecs .ivecs .fbin .u8bin .i8bin .ibin or .npy; of an index .knear or "
                   ".faiss; of a "
                   "graph .ivecs .ibin or .npy of its ids, or .npz, the sparse matrix of SciPy")
      ->required();
  CLI::Option* rows =
      command->add_option("--rows", arguments->rows, "rows A to B - 1 only; A: and :B are fine too")
          ->type_name("A:B");
  CLI::Option* type =
      command->add_option("--type", arguments->type, "store f64, f32, f16, u8 or i8")
          ->type_name("TYPE");
  command
      ->add_option("--closure", arguments->closure,
                   "of a graph, for .npz: the edges that one of two rows has (union, the default), "
                   "or both (mutual)")
      ->type_name("C");
  command->footer(
      "Without --type the output stores what its format does: .fvecs .fbin f32, .bvecs .u8bin u8, "
      ".i8bin i8, .ivecs .ibin i32, .npy the type of the input (i64 for whole numbers of 16 bits "
      "and more, such as ids).\n"
      "Values are never scaled. --type f64, f32 and f16 round to nearest; what does not fit is an "
      "error: "
      "300 or 0.5 as u8, 70000 as f16, and without --type anything inexact.\n\nExample:\n"
      "  knear convert base.bvecs part.npy --rows 0:100000 --type f16\n"
      "  knear convert old.faiss new.knear\n"
      "  knear convert graph.knear graph.npz");
  command->callback([=] {
    arguments->rows_given = rows->count() > 0;
    arguments->type_given = type->count() > 0;
    run_convert(*arguments);
  });
}

}  // namespace knear::cli
