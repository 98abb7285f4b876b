// python/bindings/clustering.cpp -- k-means.
#include "knear/cluster/k_means.hpp"
#include "knear/core/value_range.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"

namespace knear::python {

void bind_clustering(nb::module_& m) {
  // Returns (centroids, steps); each step is (restart, iteration, objective, moved, empty,
  // seconds, fallback_rows). step(*step), if it is not None, is called after each iteration.
  m.def(
      "k_means",
      [](const Array& rows, const std::string& type, std::int64_t count, const std::string& metric,
         std::int64_t iterations, std::uint64_t seed, const std::string& seeding,
         std::int64_t restarts, double tolerance, std::int64_t rows_per_centroid,
         std::int64_t levels, std::int64_t threads, const std::optional<Array>& initial,
         std::int64_t frozen_rows, const std::optional<FloatList>& weights, nb::object progress_to,
         nb::object step_to, const std::string& device) {
        const AnyMatrixView view = view_of(rows, type);
        KMeansOptions options{.metric = parse_metric(metric),
                              .iterations = narrow(iterations),
                              .seed = seed,
                              .seeding = parse_seeding(seeding),
                              .restarts = narrow(restarts),
                              .frozen_rows = frozen_rows,
                              .rows_per_centroid = rows_per_centroid,
                              .tolerance = tolerance,
                              .levels = narrow(levels),
                              .threads = thread_count(threads),
                              .device = device};
        if (initial) options.initial = view_of(*initial, "f32").as<float>();
        if (weights) options.weights = {weights->data(), weights->size()};
        KMeans found;
        const auto tuple_of = [](const KMeansStep& step) {
          return nb::make_tuple(step.restart, step.iteration, step.objective, step.moved,
                                step.empty, step.seconds, step.fallback_rows);
        };
        without_interpreter(progress_to, [&](Interruptible& python) {
          options.progress = python.progress();
          if (!step_to.is_none())
            options.report = [&](const KMeansStep& step) {
              python.call([&] { step_to(*tuple_of(step)); });
            };
          found = k_means(view, count, options);
        });
        nb::list steps;
        for (const KMeansStep& step : found.steps) steps.append(tuple_of(step));
        return nb::make_tuple(array_of(std::move(found.centroids)), steps);
      },
      nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("count"), nb::arg("metric"),
      nb::arg("iterations"), nb::arg("seed"), nb::arg("seeding"), nb::arg("restarts"),
      nb::arg("tolerance"), nb::arg("rows_per_centroid"), nb::arg("levels"), nb::arg("threads"),
      nb::arg("initial").none(), nb::arg("frozen_rows"), nb::arg("weights").none(),
      nb::arg("progress").none(), nb::arg("step").none() = nb::none(), nb::arg("device") = "cpu");
  // Throws InvalidArgument for f64 rows that float32 cannot tell apart.
  m.def(
      "check_float32_tells_apart",
      [](const Array& rows, const std::string& type, const std::string& argument,
         const std::string& made) {
        check_float32_tells_apart(view_of(rows, type), argument, made);
      },
      nb::arg("rows").noconvert(), nb::arg("type"), nb::arg("argument"), nb::arg("made"));
  m.def(
      "nearest_centroids",
      [](const Array& centroids, const Array& rows, const std::string& type,
         const std::string& metric, std::int64_t threads, nb::object progress_to) {
        const MatrixView<float> from = view_of(centroids, "f32").as<float>();
        const AnyMatrixView view = view_of(rows, type);
        const Metric by = parse_metric(metric);
        Assignment found;
        without_interpreter(progress_to, [&](Progress progress) {
          found = nearest_centroids(from, view, by, thread_count(threads), progress);
        });
        return nb::make_tuple(array_of(std::move(found.distances)), array_of(std::move(found.ids)));
      },
      nb::arg("centroids").noconvert(), nb::arg("rows").noconvert(), nb::arg("type"),
      nb::arg("metric"), nb::arg("threads"), nb::arg("progress").none() = nb::none());
}

}  // namespace knear::python
