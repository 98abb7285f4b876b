#include "knear/graph/neighbor_graph.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "knear/core/public_call.hpp"
#include "knear/io/archive.hpp"
#include "knear/io/statistics.hpp"

namespace knear {
namespace {

constexpr const char* graph_kind = "Graph";
constexpr std::array arguments = {"none", "exact", "calibrated"};

// Section "graph" of the file; docs/knear-files.md.
struct GraphFields {
  std::uint64_t rows, columns, metric, dim, type, checksum, argument, distinct;
  double promised_recall;
};

[[noreturn]] void refuse(const std::string& path, const char* section, std::string_view what) {
  throw CorruptFile("{}: section '{}' is wrong: {}", path, section, what);
}

GraphFields read_fields(const io::Archive& file) {
  const io::Section section = file.read("graph");
  GraphFields fields;
  if (section.bytes != sizeof fields) refuse(file.path(), "graph", "it has another length");
  std::memcpy(&fields, section.data, sizeof fields);
  const auto wrong = [&](std::string_view what) { refuse(file.path(), "graph", what); };
  constexpr std::uint64_t most_rows = std::uint64_t{1} << 40, most_columns = std::uint64_t{1} << 31;
  if (fields.rows > most_rows || fields.columns >= most_columns) wrong("it has too many rows");
  if (fields.metric >= std::size(all_metrics)) wrong("there is no such metric");
  if (fields.type > 5) wrong("there is no such element type");
  if (fields.dim < 1 || fields.dim > 65536) wrong("the base has no such dimension");
  if (fields.argument >= arguments.size()) wrong("there is no such argument for a recall");
  if (fields.distinct > 1) wrong("the mark of copies is neither 0 nor 1");
  if (!(fields.promised_recall >= 0 && fields.promised_recall <= 1))
    wrong("the recall is not between 0 and 1");
  return fields;
}

template <class T>
MatrixView<T> read_matrix(const io::Archive& file, const char* name, const GraphFields& fields) {
  const io::Section section = file.read(name);
  const auto rows = static_cast<std::int64_t>(fields.rows);
  const auto columns = static_cast<std::int64_t>(fields.columns);
  if (section.bytes != checked_size(rows, columns, sizeof(T)))
    refuse(file.path(), name, "it has another length");
  return {reinterpret_cast<const T*>(section.data), rows, columns};
}

void check_edges(const std::string& path, MatrixView<Id> ids, MatrixView<float> distances) {
  for (std::int64_t i = 0; i < ids.rows(); ++i)
    for (std::int64_t j = 0; j < ids.cols(); ++j) {
      const Id id = ids.row(i)[j];
      if (id < no_id || id >= ids.rows() || id == i)
        refuse(path, "ids", fmt::format("row {} cannot have the neighbour {}", i, id));
      if (std::isnan(distances.row(i)[j]) || (id != no_id && std::isinf(distances.row(i)[j])))
        refuse(path, "distances", fmt::format("one of row {} is not a finite number", i));
    }
}

}  // namespace

BaseMark mark_of(AnyMatrixView base, const Progress& progress) {
  return {base.rows(), base.cols(), base.type(), io::checksum_of(base, progress)};
}

NeighborGraph::NeighborGraph(Neighbors neighbors, GraphProperties properties)
    : properties_(std::move(properties)) {
  const auto kept = std::make_shared<const Neighbors>(std::move(neighbors));
  ids_ = kept->ids.view(), distances_ = kept->distances.view();
  keeper_ = kept;
}

void NeighborGraph::check_base(AnyMatrixView base, const std::string& name,
                               const Progress& progress) const {
  const BaseMark& own = properties_.base;
  if (base.rows() != own.rows || base.cols() != own.dim || base.type() != own.type)
    throw InvalidArgument("{} is the graph of {} x {} {}, but the base is {} x {} {}", name,
                          own.rows, own.dim, name_of(own.type), base.rows(), base.cols(),
                          name_of(base.type()));
  if (const std::uint64_t checksum = io::checksum_of(base, progress); checksum != own.checksum)
    throw InvalidArgument(
        "{} is the graph of another base: its checksum is {:016x}, that of this "
        "base {:016x}",
        name, own.checksum, checksum);
}

void NeighborGraph::save(const std::string& path, const Progress& progress) const {
  detail::public_call([&] { detail::save_graph(path, ids_, distances_, properties_, progress); });
}

NeighborGraph NeighborGraph::load(const std::string& path, const Progress& progress) {
  return detail::public_call([&] {
    const auto file = io::Archive::open(path);
    if (file->kind() != graph_kind)
      throw CorruptFile("{} is no graph, but holds '{}'", path, file->kind());
    for (const io::Section& section : file->sections())
      if (section.name != "graph" && section.name != "ids" && section.name != "distances" &&
          !section.optional)
        throw CorruptFile("{} has a section '{}' that this version does not know", path,
                          section.name);
    file->verify(progress);
    const GraphFields fields = read_fields(*file);
    NeighborGraph graph;
    graph.ids_ = read_matrix<Id>(*file, "ids", fields);
    graph.distances_ = read_matrix<float>(*file, "distances", fields);
    check_edges(path, graph.ids_, graph.distances_);
    graph.properties_ = {
        static_cast<Metric>(fields.metric),
        {static_cast<std::int64_t>(fields.rows), static_cast<std::int64_t>(fields.dim),
         static_cast<ElementType>(fields.type), fields.checksum},
        fields.promised_recall,
        arguments[fields.argument],
        fields.distinct == 1};
    graph.keeper_ = file;
    return graph;
  });
}

bool is_graph_file(const std::string& path) { return io::kind_of_archive(path) == graph_kind; }

void detail::check_distances(const std::string& path, std::span<const Id> rows, MatrixView<Id> ids,
                             MatrixView<float> distances) {
  for (std::int64_t i = 0; i < ids.rows(); ++i)
    for (std::int64_t j = 0; j < ids.cols(); ++j)
      if (ids.row(i)[j] != no_id && std::isinf(distances.row(i)[j]))
        throw InvalidArgument(
            "{}: a graph keeps distances as float32, but that of rows {} and {} is {}", path,
            rows.empty() ? i : rows[i], ids.row(i)[j], distances.row(i)[j]);
}

void detail::save_graph(const std::string& path, MatrixView<Id> ids, MatrixView<float> distances,
                        const GraphProperties& properties, const Progress& progress) {
  const auto argument = std::find(arguments.begin(), arguments.end(), properties.recall_argument);
  if (argument == arguments.end())
    throw InvalidArgument("a graph's recall_argument cannot be '{}'", properties.recall_argument);
  check_distances(path, {}, ids, distances);
  const BaseMark& base = properties.base;
  const GraphFields fields{static_cast<std::uint64_t>(ids.rows()),
                           static_cast<std::uint64_t>(ids.cols()),
                           static_cast<std::uint64_t>(properties.metric),
                           static_cast<std::uint64_t>(base.dim),
                           static_cast<std::uint64_t>(base.type),
                           base.checksum,
                           static_cast<std::uint64_t>(argument - arguments.begin()),
                           properties.distinct,
                           properties.promised_recall};
  io::ArchiveWriter writer(graph_kind);
  writer.add("graph", &fields, sizeof fields);
  writer.add("ids", ids.data(), checked_size(ids.rows(), ids.cols(), sizeof(Id)));
  writer.add("distances", distances.data(),
             checked_size(distances.rows(), distances.cols(), sizeof(float)));
  writer.write(path, progress);
}

}  // namespace knear
