// python/bindings/graphs.cpp -- k-NN graphs, what is known of them, and paths in them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "knear/distance/reference.hpp"
#include "knear/graph/bridges.hpp"
#include "knear/graph/knn_graph.hpp"
#include "knear/graph/nn_descent.hpp"
#include "knear/graph/paths.hpp"
#include "knear/graph/statistics.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"

namespace knear::python {
namespace {

using IdMatrix = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T, class Array>
MatrixView<T> matrix_of(const Array& array) {
  return {array.data(), static_cast<std::int64_t>(array.shape(0)),
          static_cast<std::int64_t>(array.shape(1))};
}

SparseGraphView graph_of(const IdArray& begin, const IdArray& ids, const FloatList& distances) {
  return {span_of(begin), span_of(ids), {distances.data(), distances.size()}};
}

nb::tuple tuple_of(SparseGraph&& graph) {
  return nb::make_tuple(array_of(std::move(graph.begin)), array_of(std::move(graph.ids)),
                        array_of(std::move(graph.distances)));
}

KnnGraphOptions options_of(const std::string& metric, double recall, bool distinct,
                           std::int64_t threads, std::int64_t memory) {
  return {.metric = parse_metric(metric),
          .recall = recall,
          .distinct = distinct,
          .threads = thread_count(threads),
          .memory = memory};
}

nb::dict dict_of(const KnnGraphReport& report) {
  nb::dict out;
  out["method"] = report.method;
  out["seconds"] = report.seconds;
  out["promised_recall"] = report.promised_recall;
  out["recall_argument"] = report.recall_argument;
  out["rows"] = report.rows;
  out["searched_rows"] = report.searched_rows;
  out["distinct_rows"] = report.distinct_rows;
  if (report.predicted_seconds > 0) out["predicted_seconds"] = report.predicted_seconds;
  if (report.lists > 0) out["lists"] = report.lists, out["probes"] = report.probes;
  return out;
}

nb::dict dict_of(const RefineReport& report, std::int64_t rows, bool sampled) {
  nb::dict out;
  out["method"] = "nn-descent";
  out["seconds"] = report.seconds;
  out["rows"] = rows;
  out["rounds"] = report.rounds;
  if (sampled) {
    out["reached"] = report.reached;
    out["found_before"] = report.found_before;
    out["found"] = report.found;
    out["promised"] = report.promised;
  }
  out["measured"] = report.measured;
  out["changed"] = report.changed;
  return out;
}

// Whether the distances of a graph are roots of the squared ones of its base, as SciPy and others
// have them: some of its edges are measured. Throws InvalidArgument for those of another base.
bool are_roots(SparseGraphView graph, AnyMatrixView base, Metric metric) {
  if (graph.rows() != base.rows())
    throw ShapeMismatch("base has {} rows, but the graph has {}", base.rows(), graph.rows());
  constexpr std::int64_t tried = 256;
  bool squares = true, roots = traits_of(metric).squared;
  double off_as_squares = 0, off_as_roots = 0;
  for (std::int64_t i = 0; i < std::min(tried, graph.edges()); ++i) {
    const std::int64_t edge = i * graph.edges() / std::min(tried, graph.edges());
    const auto next = std::upper_bound(graph.begin.begin(), graph.begin.end(), edge);
    const std::int64_t a = next - graph.begin.begin() - 1;
    const Id b = graph.ids[edge];
    if (a < 0 || b < 0 || b >= base.rows()) throw InvalidArgument("graph: an edge ends at {}", b);
    const double said = static_cast<double>(graph.distances[edge]);
    double measured = 0, scale = 1;
    visit(base, [&](auto rows) {
      measured = reference_distance(metric, rows.row(a), rows.row(b), rows.cols());
      if (!traits_of(metric).unit_rows)
        scale = reference_distance(Metric::ip, rows.row(a), rows.row(a), rows.cols()) +
                reference_distance(Metric::ip, rows.row(b), rows.row(b), rows.cols());
    });
    // What other libraries round, and no more.
    off_as_squares += std::abs(said - measured), off_as_roots += std::abs(said * said - measured);
    squares = squares && std::abs(said - measured) <= 1e-4 * std::abs(measured) + 1e-5 * scale;
    roots = roots && std::abs(said * said - measured) <= 2e-4 * measured + 1e-5 * scale;
    if (!squares && !roots)
      throw InvalidArgument(
          "graph: the distance of rows {} and {} is {}, but in base {}: it is of another base, or "
          "of another metric than {}",
          a, b, said, measured, name_of(metric));
  }
  // Far from the origin rounding allows for both.
  return roots && (!squares || off_as_roots < off_as_squares);
}

RefineOptions refine_options(std::optional<double> recall, std::uint64_t seed, std::int64_t threads,
                             std::int64_t memory) {
  return {.recall = recall, .seed = seed, .threads = thread_count(threads), .memory = memory};
}

// Arrays of a graph's memory, which lives as long as they do.
template <class T>
nb::object borrowed(MatrixView<T> view, const std::shared_ptr<const NeighborGraph>& graph) {
  auto* keeper = new std::shared_ptr<const NeighborGraph>(graph);
  nb::capsule owner(keeper, [](void* p) noexcept {
    delete static_cast<std::shared_ptr<const NeighborGraph>*>(p);
  });
  const std::size_t shape[] = {static_cast<std::size_t>(view.rows()),
                               static_cast<std::size_t>(view.cols())};
  return as_int64(
      nb::cast(nb::ndarray<nb::numpy, const T, nb::ndim<2>>(view.data(), 2, shape, owner)), T());
}

class Graph {
 public:
  explicit Graph(NeighborGraph graph)
      : graph_(std::make_shared<const NeighborGraph>(std::move(graph))) {}

  const NeighborGraph& get() const { return *graph_; }
  nb::object ids() const { return borrowed(graph_->ids(), graph_); }
  nb::object distances() const { return borrowed(graph_->distances(), graph_); }

 private:
  std::shared_ptr<const NeighborGraph> graph_;
};

}  // namespace

void bind_graphs(nb::module_& m) {
  // A graph from knn_graph() or a file. Arrays are views of its memory.
  nb::class_<Graph>(m, "Graph")
      .def_prop_ro("ids", &Graph::ids)
      .def_prop_ro("distances", &Graph::distances)
      .def_prop_ro("metric", [](const Graph& g) { return std::string(name_of(g.get().metric())); })
      .def_prop_ro("dim", [](const Graph& g) { return g.get().properties().base.dim; })
      .def_prop_ro("promised_recall",
                   [](const Graph& g) { return g.get().properties().promised_recall; })
      .def_prop_ro("recall_argument",
                   [](const Graph& g) { return g.get().properties().recall_argument; })
      .def_prop_ro("distinct", [](const Graph& g) { return g.get().properties().distinct; })
      // (rows, dim, type, checksum) of the base.
      .def_prop_ro("base",
                   [](const Graph& g) {
                     const BaseMark& mark = g.get().properties().base;
                     return nb::make_tuple(mark.rows, mark.dim, std::string(name_of(mark.type)),
                                           mark.checksum);
                   })
      .def(
          "refine",
          [](const Graph& g, const Array& base, const std::string& type,
             std::optional<double> recall, std::uint64_t seed, std::int64_t threads,
             std::int64_t memory, nb::object progress_to) {
            const AnyMatrixView rows = view_of(base, type);
            RefineOptions options = refine_options(recall, seed, threads, memory);
            RefineReport report;
            NeighborGraph graph;
            without_interpreter(progress_to, [&](Progress progress) {
              options.progress = std::move(progress);
              graph = refine(g.get(), rows, options, &report);
            });
            return nb::make_tuple(Graph(std::move(graph)),
                                  dict_of(report, rows.rows(), recall.has_value()));
          },
          nb::arg("base").noconvert(), nb::arg("type"), nb::arg("recall").none(), nb::arg("seed"),
          nb::arg("threads"), nb::arg("memory"), nb::arg("progress").none() = nb::none())
      .def(
          "save",
          [](const Graph& g, const nb::bytes& path, nb::object progress_to) {
            const std::string to = path_of(path);
            without_interpreter(progress_to,
                                [&](Progress progress) { g.get().save(to, progress); });
          },
          nb::arg("path"), nb::arg("progress").none() = nb::none())
      .def(
          "check_base",
          [](const Graph& g, const Array& base, const std::string& type) {
            const AnyMatrixView rows = view_of(base, type);
            without_interpreter(nb::none(), [&](Progress progress) {
              g.get().check_base(rows, "graph", progress);
            });
          },
          nb::arg("base").noconvert(), nb::arg("type"))
      .def(
          "statistics",
          [](const Graph& g, std::int64_t hubs) {
            GraphStatistics found;
            without_interpreter(nb::none(),
                                [&](Progress) { found = statistics_of(g.get(), hubs); });
            nb::dict out;
            out["edges"] = found.edges;
            out["mutual_edges"] = found.mutual;
            out["components"] = found.components;
            out["largest_component"] = found.largest_component;
            out["most_in_degree"] = found.most_in_degree;
            nb::list degrees, most;
            for (const std::int64_t rows : found.in_degrees) degrees.append(rows);
            for (const GraphStatistics::Hub& hub : found.hubs)
              most.append(nb::make_tuple(hub.id, hub.in_degree));
            out["in_degrees"] = degrees;
            out["hubs"] = most;
            return out;
          },
          nb::arg("hubs"))
      .def(
          "accuracy",
          [](const Graph& g, const Array& base, const std::string& type, std::int64_t sample,
             std::uint64_t seed, std::int64_t threads, nb::object progress_to) {
            const AnyMatrixView rows = view_of(base, type);
            SampledAccuracy found;
            without_interpreter(progress_to, [&](Progress progress) {
              found =
                  sampled_accuracy(g.get(), rows, sample, seed, thread_count(threads), progress);
            });
            return nb::make_tuple(found.mean, found.interval.low, found.interval.high);
          },
          nb::arg("base").noconvert(), nb::arg("type"), nb::arg("sample"), nb::arg("seed"),
          nb::arg("threads"), nb::arg("progress").none() = nb::none());

  // (graph, what was done)
  m.def(
      "knn_graph",
      [](const Array& base, const std::string& type, std::int64_t k, const std::string& metric,
         double recall, bool distinct, std::int64_t threads, std::int64_t memory,
         nb::object progress_to) {
        const AnyMatrixView rows = view_of(base, type);
        KnnGraphOptions options = options_of(metric, recall, distinct, threads, memory);
        KnnGraphReport report;
        NeighborGraph graph;
        without_interpreter(progress_to, [&](Progress progress) {
          options.progress = std::move(progress);
          graph = knn_graph(rows, k, options, &report);
        });
        return nb::make_tuple(Graph(std::move(graph)), dict_of(report));
      },
      nb::arg("base").noconvert(), nb::arg("type"), nb::arg("k"), nb::arg("metric"),
      nb::arg("recall"), nb::arg("distinct"), nb::arg("threads"), nb::arg("memory"),
      nb::arg("progress").none() = nb::none());
  m.def(
      "build_graph_file",
      [](const Array& base, const std::string& type, std::int64_t k, const nb::bytes& path,
         const std::string& metric, double recall, bool distinct, std::int64_t threads,
         std::int64_t memory, bool resume, nb::object progress_to) {
        const AnyMatrixView rows = view_of(base, type);
        const std::string to = path_of(path);
        KnnGraphOptions options = options_of(metric, recall, distinct, threads, memory);
        KnnGraphReport report;
        without_interpreter(progress_to, [&](Progress progress) {
          options.progress = std::move(progress);
          build_graph_file(rows, k, to, options, resume ? Resume::yes : Resume::no, &report);
        });
        return dict_of(report);
      },
      nb::arg("base").noconvert(), nb::arg("type"), nb::arg("k"), nb::arg("path"),
      nb::arg("metric"), nb::arg("recall"), nb::arg("distinct"), nb::arg("threads"),
      nb::arg("memory"), nb::arg("resume"), nb::arg("progress").none() = nb::none());
  m.def(
      "load_graph",
      [](const nb::bytes& path, nb::object progress_to) {
        const std::string from = path_of(path);
        NeighborGraph graph;
        without_interpreter(
            progress_to, [&](Progress progress) { graph = NeighborGraph::load(from, progress); });
        return Graph(std::move(graph));
      },
      nb::arg("path"), nb::arg("progress").none() = nb::none());

  // A graph of ids that something else found.
  m.def(
      "refined_graph",
      [](const IdMatrix& ids, const Array& base, const std::string& type, const std::string& metric,
         std::optional<double> recall, std::uint64_t seed, std::int64_t threads,
         std::int64_t memory, nb::object progress_to) {
        const auto from = matrix_of<Id>(ids);
        const AnyMatrixView rows = view_of(base, type);
        const Metric by = parse_metric(metric);
        RefineOptions options = refine_options(recall, seed, threads, memory);
        RefineReport report;
        NeighborGraph graph;
        without_interpreter(progress_to, [&](Progress progress) {
          options.progress = std::move(progress);
          graph = refined_graph(from, rows, by, options, &report);
        });
        return nb::make_tuple(Graph(std::move(graph)),
                              dict_of(report, rows.rows(), recall.has_value()));
      },
      nb::arg("ids").noconvert(), nb::arg("base").noconvert(), nb::arg("type"), nb::arg("metric"),
      nb::arg("recall").none(), nb::arg("seed"), nb::arg("threads"), nb::arg("memory"),
      nb::arg("progress").none() = nb::none());
  // What was pickled: copies of the arrays, and what is known of them.
  m.def(
      "restored_graph",
      [](const IdMatrix& ids, const FloatMatrix& distances, const std::string& metric,
         double promised_recall, const std::string& recall_argument, bool distinct,
         const std::tuple<std::int64_t, std::int64_t, std::string, std::uint64_t>& base) {
        const auto from = matrix_of<Id>(ids);
        const auto far = matrix_of<float>(distances);
        if (from.rows() != far.rows() || from.cols() != far.cols())
          throw ShapeMismatch("graph: ids are {} x {}, but distances {} x {}", from.rows(),
                              from.cols(), far.rows(), far.cols());
        Neighbors near{Matrix<Id>::unset(from.rows(), from.cols()),
                       Matrix<float>::unset(far.rows(), far.cols())};
        for (std::int64_t i = 0; i < from.rows(); ++i)
          for (std::int64_t j = 0; j < from.cols(); ++j) {
            const Id id = from.row(i)[j];
            if (id < no_id || id >= from.rows())
              throw InvalidArgument("graph: row {} has the neighbour {}, but there are {} rows", i,
                                    id, from.rows());
            near.ids.row(i)[j] = id, near.distances.row(i)[j] = far.row(i)[j];
          }
        const auto& [rows, dim, type, checksum] = base;
        return Graph(
            NeighborGraph(std::move(near), {parse_metric(metric),
                                            {rows, dim, parse_element_type(type), checksum},
                                            promised_recall,
                                            recall_argument,
                                            distinct}));
      },
      nb::arg("ids").noconvert(), nb::arg("distances").noconvert(), nb::arg("metric"),
      nb::arg("promised_recall"), nb::arg("recall_argument"), nb::arg("distinct"), nb::arg("base"));

  // (begin, ids, distances) of compressed sparse rows.
  m.def(
      "symmetric",
      [](const IdMatrix& ids, const FloatMatrix& distances, const std::string& metric,
         const std::string& closure, std::int64_t threads) {
        const auto from = matrix_of<Id>(ids);
        const auto far = matrix_of<float>(distances);
        const Metric by = parse_metric(metric);
        const Closure kind = parse_closure(closure);
        SparseGraph graph;
        without_interpreter(nb::none(), [&](Progress) {
          graph = symmetric(from, far, by, kind, thread_count(threads));
        });
        return tuple_of(std::move(graph));
      },
      nb::arg("ids").noconvert(), nb::arg("distances").noconvert(), nb::arg("metric"),
      nb::arg("closure"), nb::arg("threads"));
  // A symmetric graph and the bridges between its components, if it has several.
  m.def(
      "bridged",
      [](const Array& base, const std::string& type, const IdArray& begin, const IdArray& ids,
         const FloatList& distances, const std::string& metric, std::int64_t threads,
         nb::object progress_to) {
        const AnyMatrixView rows = view_of(base, type);
        const SparseGraphView graph = graph_of(begin, ids, distances);
        const Metric by = parse_metric(metric);
        SparseGraph out;
        without_interpreter(progress_to, [&](Progress progress) {
          std::vector<Bridge> found =
              bridges(rows, components(graph), by, thread_count(threads), progress);
          if (are_roots(graph, rows, by))
            for (Bridge& bridge : found) bridge.distance = std::sqrt(bridge.distance);
          out = with_bridges(graph, found);
        });
        return tuple_of(std::move(out));
      },
      nb::arg("base").noconvert(), nb::arg("type"), nb::arg("begin").noconvert(),
      nb::arg("ids").noconvert(), nb::arg("distances").noconvert(), nb::arg("metric"),
      nb::arg("threads"), nb::arg("progress").none() = nb::none());

  nb::class_<PathFinder>(m, "PathFinder")
      .def(
          "__init__",
          [](PathFinder* self, const IdArray& begin, const IdArray& ids, const FloatList& distances,
             const std::string& metric, std::int64_t threads) {
            const SparseGraphView graph = graph_of(begin, ids, distances);
            const Metric by = parse_metric(metric);
            without_interpreter(nb::none(), [&](Progress) {
              new (self) PathFinder(graph, by, thread_count(threads));
            });
          },
          nb::arg("begin").noconvert(), nb::arg("ids").noconvert(),
          nb::arg("distances").noconvert(), nb::arg("metric"), nb::arg("threads"))
      .def_prop_ro("rows", &PathFinder::rows)
      .def_prop_ro("component_count", &PathFinder::component_count)
      .def("connected", &PathFinder::connected, nb::arg("start"), nb::arg("end"))
      .def("largest_step", &PathFinder::largest_step, nb::arg("start"), nb::arg("end"))
      .def(
          "path",
          [](const PathFinder& self, Id start, Id end) {
            SmoothPath found;
            without_interpreter(nb::none(), [&](Progress) { found = self.path(start, end); });
            return nb::make_tuple(array_of(std::move(found.ids)), found.largest_step,
                                  found.sum_of_steps);
          },
          nb::arg("start"), nb::arg("end"));
}

}  // namespace knear::python
