// python/bindings/searches.cpp -- searches of arrays and selection from them.
#include "knear/knn/knn.hpp"
#include "knear/select/select_k.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"

namespace knear::python {

void bind_search_settings(nb::module_& m) {
  nb::class_<SearchSettings>(m, "SearchSettings")
      .def(
          "__init__",
          [](SearchSettings* made, std::int64_t threads, std::int64_t memory,
             const std::string& device, const std::string& first_pass, const std::string& choices,
             const std::string& method, std::optional<double> recall, std::int64_t samples,
             std::int64_t logical_rows, bool aggregate, std::int64_t probes, bool widen,
             bool certify, std::int64_t refine_factor, std::int64_t ef,
             const std::string& traffic) {
            new (made) SearchSettings{
                .threads = thread_count(threads),
                .memory = memory,
                .first_pass = parse_first_pass(first_pass),
                .tuning = parse_tuning(choices),
                .method = {.kind = parse_method(method),
                           .recall = recall,
                           .probes = probes,
                           .ef = ef,
                           .lists = {.widen = widen, .certify = certify},
                           .codes = {.refine_factor = refine_factor},
                           .threshold_heap = {.samples = samples},
                           .partial_reduce = {.logical_rows = logical_rows, .aggregate = aggregate},
                           .traffic = traffic},
                .device = device};
          },
          nb::arg("threads"), nb::arg("memory"), nb::arg("device"), nb::arg("first_pass"),
          nb::arg("choices"), nb::arg("method"), nb::arg("recall").none(), nb::arg("samples"),
          nb::arg("logical_rows"), nb::arg("aggregate"), nb::arg("probes"), nb::arg("widen"),
          nb::arg("certify"), nb::arg("refine_factor"), nb::arg("ef"), nb::arg("traffic"));
}

void bind_searches(nb::module_& m) {
  m.def(
      "knn",
      [](const Array& queries, const std::string& queries_type, const Array& base,
         const std::string& base_type, std::int64_t k, const std::string& metric,
         const SearchSettings& settings, const Ids& ids, const Bits& bits, const nb::object& out,
         nb::object progress_to) {
        const AnyMatrixView q = view_of(queries, queries_type), b = view_of(base, base_type);
        auto options = settings.options<KnnOptions>(filter_of(ids, bits, b.rows()));
        options.metric = parse_metric(metric);
        return run(
            progress_to,
            [&](Progress progress, KnnReport* filled) {
              options.progress = std::move(progress);
              return knn(q, b, k, options, filled);
            },
            out);
      },
      nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("base").noconvert(),
      nb::arg("base_type"), nb::arg("k"), nb::arg("metric"), nb::arg("settings"),
      nb::arg("filter_ids").none(), nb::arg("filter_bits").none(), nb::arg("out").none(),
      nb::arg("progress").none());

  m.def(
      "self_join",
      [](const Array& base, const std::string& base_type, std::int64_t k, const std::string& metric,
         const SearchSettings& settings, const Ids& ids, const Bits& bits, const nb::object& out,
         nb::object progress_to) {
        const AnyMatrixView b = view_of(base, base_type);
        auto options = settings.options<KnnOptions>(filter_of(ids, bits, b.rows()));
        options.metric = parse_metric(metric);
        return run(
            progress_to,
            [&](Progress progress, KnnReport* filled) {
              options.progress = std::move(progress);
              return self_join(b, k, options, filled);
            },
            out);
      },
      nb::arg("base").noconvert(), nb::arg("base_type"), nb::arg("k"), nb::arg("metric"),
      nb::arg("settings"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
      nb::arg("out").none(), nb::arg("progress").none());

  m.def(
      "range_search",
      [](const Array& queries, const std::string& queries_type, const Array& base,
         const std::string& base_type, double radius, const std::string& metric,
         const SearchSettings& settings, const Ids& ids, const Bits& bits, nb::object progress_to) {
        const AnyMatrixView q = view_of(queries, queries_type), b = view_of(base, base_type);
        auto options = settings.options<KnnOptions>(filter_of(ids, bits, b.rows()));
        options.metric = parse_metric(metric);
        return run(progress_to, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return range_search(q, b, radius, options, filled);
        });
      },
      nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("base").noconvert(),
      nb::arg("base_type"), nb::arg("radius"), nb::arg("metric"), nb::arg("settings"),
      nb::arg("filter_ids").none(), nb::arg("filter_bits").none(), nb::arg("progress").none());
}

void bind_selection(nb::module_& m) {
  m.def(
      "select_k",
      [](const Array& x, const std::string& type, std::int64_t k, bool largest, bool sorted,
         const Ids& lengths, std::int64_t threads, const std::string& method,
         nb::object progress_to) {
        SelectOptions options{.extreme = largest ? Extreme::largest : Extreme::smallest,
                              .sorted = sorted,
                              .threads = thread_count(threads),
                              .method = parse_select_method(method)};
        const AnyMatrixView rows = view_of(x, type);
        options.lengths = lengths_of(lengths, rows.rows());
        const auto selected = [&](auto view) {
          decltype(select_k(view, k, options)) found;
          without_interpreter(progress_to, [&](Progress progress) {
            options.progress = std::move(progress);
            found = select_k(view, k, options);
          });
          return nb::make_tuple(array_of(std::move(found.values)),
                                array_of(std::move(found.places)));
        };
        return rows.type() == ElementType::f64 ? selected(rows.as<double>()) : selected(rows);
      },
      nb::arg("x").noconvert(), nb::arg("x_type"), nb::arg("k"), nb::arg("largest"),
      nb::arg("sorted"), nb::arg("lengths").none(), nb::arg("threads"), nb::arg("method"),
      nb::arg("progress").none() = nb::none());
}

}  // namespace knear::python
