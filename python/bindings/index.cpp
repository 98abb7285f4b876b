// python/bindings/index.cpp -- indexes, and which one suits.
#include <nanobind/stl/vector.h>

#include "knear/factory/choose_index.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/index/given_lists.hpp"
#include "knear/index/index.hpp"
#include "knear/index/plain_search.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"

namespace knear::python {

namespace {

// The rows of an index: how they come in, are changed and read, and its file.
void bind_index_contents(nb::class_<Index>& index) {
  index
      .def(
          "train",
          [](Index& self, const Array& vectors, const std::string& type, std::int64_t iterations,
             std::int64_t rows, bool hold_out, std::uint64_t seed, std::int64_t threads,
             nb::object progress_to) {
            const AnyMatrixView view = view_of(vectors, type);
            without_interpreter(progress_to, [&](Progress progress) {
              self.train(view, {.iterations = narrow(iterations),
                                .rows = rows,
                                .hold_out = hold_out,
                                .seed = seed,
                                .threads = thread_count(threads),
                                .progress = std::move(progress)});
            });
          },
          nb::arg("vectors").noconvert(), nb::arg("type"), nb::arg("iterations"), nb::arg("rows"),
          nb::arg("hold_out"), nb::arg("seed"), nb::arg("threads"), nb::arg("progress").none())
      .def(
          "add",
          [](Index& self, const Array& vectors, const std::string& type, const Ids& ids,
             std::int64_t threads, nb::object progress_to) {
            const AnyMatrixView view = view_of(vectors, type);
            without_interpreter(progress_to, [&](Progress progress) {
              const ChangeOptions options{.threads = thread_count(threads),
                                          .progress = std::move(progress)};
              ids ? self.add(view, span_of(*ids), options) : self.add(view, options);
            });
          },
          nb::arg("vectors").noconvert(), nb::arg("type"), nb::arg("ids").none(),
          nb::arg("threads"), nb::arg("progress").none())
      .def(
          "remove",
          [](Index& self, const IdArray& ids) {
            without_interpreter([&](Progress progress) {
              self.remove(span_of(ids), {.progress = std::move(progress)});
            });
          },
          nb::arg("ids"))
      .def(
          "replace",
          [](Index& self, const IdArray& ids, const Array& vectors, const std::string& type,
             nb::object progress_to) {
            const AnyMatrixView view = view_of(vectors, type);
            without_interpreter(progress_to, [&](Progress progress) {
              self.replace(span_of(ids), view, {.progress = std::move(progress)});
            });
          },
          nb::arg("ids"), nb::arg("vectors").noconvert(), nb::arg("type"),
          nb::arg("progress").none() = nb::none())
      .def("compact",
           [](Index& self) {
             without_interpreter(
                 [&](Progress progress) { self.compact({.progress = std::move(progress)}); });
           })
      .def(
          "optimize",
          [](Index& self, std::int64_t threads, nb::object progress_to) {
            std::int64_t rows = 0;
            without_interpreter(progress_to, [&](Progress progress) {
              rows = self.optimize(
                  {.threads = thread_count(threads), .progress = std::move(progress)});
            });
            return rows;
          },
          nb::arg("threads"), nb::arg("progress").none())
      .def(
          "tune",
          [](Index& self, std::int64_t k, const std::optional<Array>& queries,
             const std::string& type, const std::optional<Array>& base,
             const std::string& base_type, const std::optional<IdArray>& ids, std::int64_t threads,
             nb::object progress_to) {
            AnyMatrixView view, base_view;
            if (queries) view = view_of(*queries, type);
            if (base) base_view = view_of(*base, base_type);
            std::vector<OperatingPoint> points;
            without_interpreter(progress_to, [&](Progress progress) {
              const ChangeOptions options{.threads = thread_count(threads),
                                          .progress = std::move(progress)};
              points = base ? self.tune(k, view, base_view,
                                        ids ? span_of(*ids) : std::span<const Id>(), options)
                            : self.tune(k, view, options);
            });
            nb::list out;
            for (const OperatingPoint& point : points)
              out.append(nb::make_tuple(point.promised_recall, point.expected_recall, point.probes,
                                        point.rows));
            return out;
          },
          nb::arg("k"), nb::arg("queries").noconvert().none(), nb::arg("type"),
          nb::arg("base").noconvert().none(), nb::arg("base_type"), nb::arg("ids").none(),
          nb::arg("threads"), nb::arg("progress").none())
      .def(
          "reserve",
          [](Index& self, std::int64_t rows) {
            without_interpreter([&](const Progress&) { self.reserve(rows); });
          },
          nb::arg("rows"))
      .def(
          "reconstruct",
          [](const Index& self, const IdArray& ids) {  // rows as bytes, and their type
            AnyMatrix rows;
            without_interpreter([&](const Progress&) { rows = self.reconstruct(span_of(ids)); });
            std::vector<std::uint8_t> bytes(rows.view().bytes());
            if (!bytes.empty()) std::memcpy(bytes.data(), rows.row(0), bytes.size());
            return nb::make_tuple(array_of(std::move(bytes)), std::string(name_of(rows.type())));
          },
          nb::arg("ids"))
      .def("ids",
           [](const Index& self) {
             std::vector<Id> ids;
             {
               const nb::gil_scoped_release released;
               ids = self.ids();
             }
             return array_of(std::move(ids));
           })
      .def("list_sizes",
           [](const Index& self) {
             std::vector<std::int64_t> sizes;
             {
               const nb::gil_scoped_release released;
               sizes = self.list_sizes();
             }
             return array_of(std::move(sizes));
           })
      .def(
          "lists_of",
          [](const Index& self, const IdArray& ids) {
            std::vector<std::int64_t> lists;
            {
              const nb::gil_scoped_release released;
              lists = self.lists_of(span_of(ids));
            }
            return array_of(std::move(lists));
          },
          nb::arg("ids"))
      .def("contains", &Index::contains, nb::arg("id"))
      .def(
          "save",
          [](const Index& self, const nb::bytes& file, nb::object progress_to) {
            const std::string path = path_of(file);
            without_interpreter(progress_to, [&](Progress progress) { self.save(path, progress); });
          },
          nb::arg("path"), nb::arg("progress").none());
}

void bind_index_searches(nb::class_<Index>& index) {
  index
      .def(
          "search",
          [](const Index& self, const Array& queries, const std::string& type, std::int64_t k,
             const SearchSettings& settings, const Ids& ids, const Bits& bits,
             std::int64_t bit_count, const nb::object& out, nb::object progress_to) {
            const AnyMatrixView q = view_of(queries, type);
            auto options = settings.options<SearchOptions>(id_filter_of(ids, bits, bit_count));
            auto [near, report] = found_by(progress_to, [&](Progress progress, KnnReport* filled) {
              options.progress = std::move(progress);
              return self.search(q, k, options, filled);
            });
            return result_of(std::move(near), std::move(report), out);
          },
          nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("k"),
          nb::arg("settings"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
          nb::arg("bit_count"), nb::arg("out").none(), nb::arg("progress").none())
      .def(
          "range_search",
          [](const Index& self, const Array& queries, const std::string& type, double radius,
             const SearchSettings& settings, const Ids& ids, const Bits& bits,
             std::int64_t bit_count, nb::object progress_to) {
            const AnyMatrixView q = view_of(queries, type);
            auto options = settings.options<SearchOptions>(id_filter_of(ids, bits, bit_count));
            return run(progress_to, [&](Progress progress, KnnReport* filled) {
              options.progress = std::move(progress);
              return self.range_search(q, radius, options, filled);
            });
          },
          nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("radius"),
          nb::arg("settings"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
          nb::arg("bit_count"), nb::arg("progress").none());
}

// Properties that every index has.
void bind_index_properties(nb::class_<Index>& index) {
  index.def_prop_ro("dim", &Index::dim)
      .def_prop_ro("factory", &Index::description)
      .def_prop_ro("is_trained", &Index::is_trained)
      .def_prop_ro("lists", &Index::lists)
      .def_prop_ro("shards", &Index::shards)
      .def_prop_ro("replicas", &Index::replicas)
      .def_prop_ro("audit", &Index::audit)
      .def("set_audit", &Index::set_audit, nb::arg("share"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("audits",
           [](const Index& self) {
             std::vector<AuditReport> reports;
             {
               const nb::gil_scoped_release released;
               reports = self.audits();
             }
             nb::list out;
             for (const AuditReport& one : reports) {
               nb::dict d;
               d["traffic"] = one.traffic, d["k"] = one.k;
               d["served_queries"] = one.served_queries;
               d["audited_queries"] = one.audited_queries;
               d["recall"] = one.recall, d["measured_recall"] = one.measured_recall;
               d["interval"] = nb::make_tuple(one.low, one.high);
               out.append(std::move(d));
             }
             return out;
           })
      .def("shard_sizes", [](const Index& self) { return array_of(self.shard_sizes()); })
      .def("missing_shards", &Index::missing_shards)
      .def_prop_ro("keeps_vectors", &Index::keeps_vectors)
      .def("centroids", [](const Index& self) { return array_of(self.centroids()); })
      .def_prop_ro("next_id", &Index::next_id)
      .def_prop_ro("version", &Index::version)
      .def("memory_bytes", &Index::memory_bytes, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("metric", [](const Index& self) { return std::string(name_of(self.metric())); })
      .def_prop_ro("size",
                   [](const Index& self) {
                     const nb::gil_scoped_release released;  // an add may be running
                     return self.size();
                   })
      .def_prop_ro("element_type", [](const Index& self) {
        const nb::gil_scoped_release released;
        return std::string(name_of(self.element_type()));
      });
}

// knear.faiss makes its indexes by this. kind says how rows are kept: "vectors", "f16", "bf16", or
// "codes" with a number of parts, 0 for a byte or half a byte a column.
void bind_trained_index(nb::module_& m) {
  m.def(
      "trained_index",
      [](std::int64_t dim, const std::string& metric, const std::optional<Array>& centroids,
         const std::string& kind, std::int64_t parts, int bits, bool residual,
         const FloatList& numbers) {
        detail::TrainedForm form{.dim = dim, .metric = parse_metric(metric)};
        if (centroids) form.centroids = view_of(*centroids, "f32").as<float>();
        if (kind == "codes") {
          form.codes =
              detail::CodeShape{parts > 0 ? detail::CodeKind::product : detail::CodeKind::scalar,
                                parts, bits, residual};
          form.numbers = {numbers.data(), numbers.size()};
        } else if (kind != "vectors") {
          form.rounded = parse_element_type(kind);
        }
        return detail::trained_index(form);
      },
      nb::arg("dim"), nb::arg("metric"), nb::arg("centroids").noconvert().none(), nb::arg("kind"),
      nb::arg("parts"), nb::arg("bits"), nb::arg("residual"), nb::arg("numbers").noconvert());
}

void bind_plain_search(nb::module_& m) {
  using detail::PlainSearch;
  using FewFlags =
      std::optional<nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;
  nb::class_<PlainSearch>(m, "PlainSearch")
      .def(
          "__init__",
          [](PlainSearch* self, const std::string& kind, const std::string& metric,
             std::int64_t dim, const Index* like, const FloatList& low, const FloatList& span,
             const std::optional<Array>& centroids, const std::optional<Array>& coarse) {
            PlainSearch::Options options{.kind = PlainSearch::kind_of(kind),
                                         .metric = parse_metric(metric),
                                         .dim = dim,
                                         .like = like,
                                         .low = {low.data(), low.size()},
                                         .span = {span.data(), span.size()}};
            if (centroids) options.centroids = view_of(*centroids, "f32").as<float>();
            if (coarse) options.coarse = view_of(*coarse, "f32").as<float>();
            new (self) PlainSearch(options);
          },
          nb::arg("kind"), nb::arg("metric"), nb::arg("dim"), nb::arg("like").none(),
          nb::arg("low").noconvert(), nb::arg("span").noconvert(),
          nb::arg("centroids").noconvert().none(), nb::arg("coarse").noconvert().none())
      // (distances, rows, pairs), or None. nearest_lists: how many of them, where none are given.
      .def(
          "nearest",
          [](const PlainSearch& self, const Codes& rows, const Ids& list_of, const Ids& by_list,
             const Ids& begin, const FewFlags& allowed, const Array& queries,
             const std::optional<IdMatrix>& probes, std::int64_t nearest_lists, std::int64_t k,
             std::int64_t threads) -> nb::object {
            const auto n = static_cast<std::int64_t>(rows.shape(0));
            if (static_cast<std::int64_t>(rows.shape(1)) != self.row_bytes())
              throw ShapeMismatch("rows have {} bytes, but {} are due", rows.shape(1),
                                  self.row_bytes());
            PlainSearch::Rows of{.bytes = rows.data(), .n = n};
            if (list_of) of.list_of = span_of(*list_of);
            if (by_list) of.by_list = span_of(*by_list);
            if (begin) of.begin = span_of(*begin);
            if (allowed)
              of.allowed = {reinterpret_cast<const std::uint8_t*>(allowed->data()),
                            allowed->size()};
            if ((list_of && std::ssize(of.list_of) != n) ||
                (allowed && std::ssize(of.allowed) != n) ||
                ((probes || nearest_lists > 0) && !list_of && !begin))
              throw ShapeMismatch("lists and allowed rows must be {}", n);
            const MatrixView<float> asked = view_of(queries, "f32").as<float>();
            MatrixView<Id> lists;
            if (probes) {
              lists = {probes->data(), static_cast<std::int64_t>(probes->shape(0)),
                       static_cast<std::int64_t>(probes->shape(1))};
              if (lists.rows() != asked.rows())
                throw ShapeMismatch("probes are {} rows, queries are {}", lists.rows(),
                                    asked.rows());
            }
            std::optional<PlainSearch::Answer> found;
            without_interpreter([&](const Progress&) {
              found = nearest_lists > 0
                          ? self.nearest(of, asked, nearest_lists, k, thread_count(threads))
                          : self.nearest(of, asked, lists, k, thread_count(threads));
            });
            if (!found) return nb::none();
            return nb::make_tuple(array_of(std::move(found->neighbors.distances)),
                                  array_of(std::move(found->neighbors.ids)), found->probed);
          },
          nb::arg("rows").noconvert(), nb::arg("list_of").none(), nb::arg("by_list").none(),
          nb::arg("begin").none(), nb::arg("allowed").noconvert().none(),
          nb::arg("queries").noconvert(), nb::arg("probes").none(), nb::arg("nearest_lists"),
          nb::arg("k"), nb::arg("threads"));
  // (rows, begin).
  m.def(
      "rows_by_list",
      [](const IdArray& list_of, std::int64_t lists) {
        for (const Id list : span_of(list_of))
          if (list < 0 || list >= lists)
            throw InvalidArgument("lists hold {}, but there are {}", list, lists);
        auto [rows, begin] = detail::rows_by_list(span_of(list_of), lists);
        return nb::make_tuple(array_of(std::move(rows)), array_of(std::move(begin)));
      },
      nb::arg("list_of"), nb::arg("lists"));
}

}  // namespace

void bind_choose_index(nb::module_& m) {
  m.def(
      "choose_index",
      [](std::int64_t rows, std::int64_t dim, const std::string& metric, const std::string& type,
         std::int64_t memory, double recall, std::int64_t batch, const std::optional<Array>& sample,
         std::int64_t threads, nb::object progress_to) {
        IndexNeeds needs{.metric = parse_metric(metric),
                         .type = parse_element_type(type),
                         .memory = memory,
                         .recall = recall,
                         .batch = batch};
        if (sample) needs.sample = view_of(*sample, type);
        IndexChoice choice;
        without_interpreter(progress_to, [&](Progress progress) {
          choice =
              choose_index(rows, dim, needs,
                           {.threads = thread_count(threads), .progress = std::move(progress)});
        });
        nb::list forecasts;
        for (const FormForecast& form : choice.forecasts)
          forecasts.append(
              nb::make_tuple(form.factory, form.seconds, form.scored_rows, form.bytes));
        return nb::make_tuple(choice.factory, choice.reason, choice.bytes, choice.guessed,
                              forecasts);
      },
      nb::arg("rows"), nb::arg("dim"), nb::arg("metric"), nb::arg("type"), nb::arg("memory"),
      nb::arg("recall"), nb::arg("batch"), nb::arg("sample").noconvert().none(), nb::arg("threads"),
      nb::arg("progress").none());
}

void bind_index(nb::module_& m) {
  bind_trained_index(m);
  bind_plain_search(m);
  nb::class_<Index> index(m, "Index");
  bind_index_properties(index);
  bind_index_contents(index);
  bind_index_searches(index);
  index
      .def(
          "__init__",
          [](Index* self, const std::string& factory, std::int64_t dim, const std::string& metric,
             std::int64_t shards, std::int64_t replicas) {
            Index made = make_index(factory, dim, parse_metric(metric));
            if (shards != 1 || replicas != 1)
              made = made.divided({.shards = narrow(shards), .replicas = narrow(replicas)});
            new (self) Index(std::move(made));
          },
          nb::arg("factory"), nb::arg("dim"), nb::arg("metric"), nb::arg("shards") = 1,
          nb::arg("replicas") = 1)
      .def(
          "merge",
          [](Index& self, const Index& other, bool keep_ids) {
            without_interpreter([&](const Progress&) {
              self.merge(other, keep_ids ? MergeIds::keep : MergeIds::shifted);
            });
          },
          nb::arg("other"), nb::arg("keep_ids"))
      .def(
          "add_to_lists",
          [](Index& self, const Array& rows, const std::string& type, const Ids& lists,
             std::int64_t threads) {
            const AnyMatrixView view = view_of(rows, type);
            without_interpreter([&](Progress progress) {
              detail::add_to_lists(
                  self, view, lists ? span_of(*lists) : std::span<const Id>(),
                  {.threads = thread_count(threads), .progress = std::move(progress)});
            });
          },
          nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("lists").none(), nb::arg("threads"))
      .def(
          "search_lists",
          [](const Index& self, const Array& queries, const std::string& type,
             const IdMatrix& lists, std::int64_t k, const SearchSettings& settings, const Ids& ids,
             const Bits& bits, std::int64_t bit_count, nb::object progress_to) {
            const AnyMatrixView q = view_of(queries, type);
            const MatrixView<Id> probes(lists.data(), static_cast<std::int64_t>(lists.shape(0)),
                                        static_cast<std::int64_t>(lists.shape(1)));
            auto options = settings.options<SearchOptions>(id_filter_of(ids, bits, bit_count));
            return run(
                progress_to,
                [&](Progress progress, KnnReport* filled) {
                  options.progress = std::move(progress);
                  return detail::search_lists(self, q, probes, k, options, filled);
                },
                nb::none());
          },
          nb::arg("queries").noconvert(), nb::arg("type"), nb::arg("lists"), nb::arg("k"),
          nb::arg("settings"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
          nb::arg("bit_count"), nb::arg("progress").none())
      .def(
          "write_faiss",
          [](const Index& self, const nb::bytes& file, const nb::object& progress_to) {
            const std::string path = path_of(file);
            without_interpreter(progress_to,
                                [&](Progress progress) { write_faiss(self, path, progress); });
          },
          nb::arg("path"), nb::arg("progress").none())
      .def_static(
          "load",
          [](const nb::bytes& file, std::int64_t replicas, bool allow_partial,
             nb::object progress_to) {
            const std::string path = path_of(file);
            std::optional<Index> loaded;
            without_interpreter(progress_to, [&](Progress progress) {
              loaded = Index::load(path, {.replicas = narrow(replicas),
                                          .allow_partial = allow_partial,
                                          .progress = std::move(progress)});
            });
            return std::move(*loaded);
          },
          nb::arg("path"), nb::arg("replicas") = 0, nb::arg("allow_partial") = false,
          nb::arg("progress").none() = nb::none());
}

}  // namespace knear::python
