// python/bindings/searches.cpp -- searches of arrays and selection from them.
#include "knear/knn/knn.hpp"
#include "knear/select/select_k.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"

namespace knear::python {

void bind_searches(nb::module_& m) {
  m.def(
      "knn",
      [](const Array& queries, const std::string& queries_type, const Array& base,
         const std::string& base_type, std::int64_t k, const std::string& metric,
         std::int64_t threads, std::int64_t memory, const std::string& first_pass,
         const std::string& choices, const MethodTuple& method_options, const std::string& device,
         const Ids& ids, const Bits& bits, const nb::object& out, nb::object progress_to) {
        const AnyMatrixView q = view_of(queries, queries_type), b = view_of(base, base_type);
        KnnOptions options{.metric = parse_metric(metric),
                           .threads = narrow(threads),
                           .memory = memory,
                           .first_pass = parse_first_pass(first_pass),
                           .filter = filter_of(ids, bits, b.rows()),
                           .tuning = parse_tuning(choices),
                           .method = method_options_of(method_options),
                           .device = device};
        return run(
            progress_to,
            [&](Progress progress, KnnReport* filled) {
              options.progress = std::move(progress);
              return knn(q, b, k, options, filled);
            },
            out);
      },
      nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("base").noconvert(),
      nb::arg("base_type"), nb::arg("k"), nb::arg("metric"), nb::arg("threads"), nb::arg("memory"),
      nb::arg("first_pass"), nb::arg("choices"), nb::arg("method_options"), nb::arg("device"),
      nb::arg("filter_ids").none(), nb::arg("filter_bits").none(), nb::arg("out").none(),
      nb::arg("progress").none());

  m.def(
      "self_join",
      [](const Array& base, const std::string& base_type, std::int64_t k, const std::string& metric,
         std::int64_t threads, std::int64_t memory, const std::string& first_pass,
         const std::string& choices, const std::string& device, const Ids& ids, const Bits& bits,
         const nb::object& out, nb::object progress_to) {
        const AnyMatrixView b = view_of(base, base_type);
        KnnOptions options{.metric = parse_metric(metric),
                           .threads = narrow(threads),
                           .memory = memory,
                           .first_pass = parse_first_pass(first_pass),
                           .filter = filter_of(ids, bits, b.rows()),
                           .tuning = parse_tuning(choices),
                           .device = device};
        return run(
            progress_to,
            [&](Progress progress, KnnReport* filled) {
              options.progress = std::move(progress);
              return self_join(b, k, options, filled);
            },
            out);
      },
      nb::arg("base").noconvert(), nb::arg("base_type"), nb::arg("k"), nb::arg("metric"),
      nb::arg("threads"), nb::arg("memory"), nb::arg("first_pass"), nb::arg("choices"),
      nb::arg("device"), nb::arg("filter_ids").none(), nb::arg("filter_bits").none(),
      nb::arg("out").none(), nb::arg("progress").none());

  m.def(
      "range_search",
      [](const Array& queries, const std::string& queries_type, const Array& base,
         const std::string& base_type, double radius, const std::string& metric,
         std::int64_t threads, std::int64_t memory, const std::string& first_pass,
         const std::string& device, const Ids& ids, const Bits& bits, nb::object progress_to) {
        const AnyMatrixView q = view_of(queries, queries_type), b = view_of(base, base_type);
        KnnOptions options{.metric = parse_metric(metric),
                           .threads = narrow(threads),
                           .memory = memory,
                           .first_pass = parse_first_pass(first_pass),
                           .filter = filter_of(ids, bits, b.rows()),
                           .device = device};
        return run(progress_to, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return range_search(q, b, radius, options, filled);
        });
      },
      nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("base").noconvert(),
      nb::arg("base_type"), nb::arg("radius"), nb::arg("metric"), nb::arg("threads"),
      nb::arg("memory"), nb::arg("first_pass"), nb::arg("device"), nb::arg("filter_ids").none(),
      nb::arg("filter_bits").none(), nb::arg("progress").none());
}

void bind_selection(nb::module_& m) {
  m.def(
      "select_k",
      [](const Array& x, const std::string& type, std::int64_t k, bool largest, bool sorted,
         const Ids& lengths, std::int64_t threads, const std::string& method) {
        SelectOptions options{.extreme = largest ? Extreme::largest : Extreme::smallest,
                              .sorted = sorted,
                              .threads = narrow(threads),
                              .method = parse_select_method(method)};
        const AnyMatrixView rows = view_of(x, type);
        options.lengths = lengths_of(lengths, rows.rows());
        Selection found;
        without_interpreter([&](Progress progress) {
          options.progress = std::move(progress);
          found = select_k(rows, k, options);
        });
        return nb::make_tuple(array_of(std::move(found.values)), array_of(std::move(found.places)));
      },
      nb::arg("x").noconvert(), nb::arg("x_type"), nb::arg("k"), nb::arg("largest"),
      nb::arg("sorted"), nb::arg("lengths").none(), nb::arg("threads"), nb::arg("method"));
}

}  // namespace knear::python
