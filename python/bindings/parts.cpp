// python/bindings/parts.cpp -- what an index that is one part of a base found, before it is
// rounded, for whoever merges it with what other parts found: float64 keys and ids.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "knear/core/public_call.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/index/impl/index_body.hpp"
#include "knear/index/index.hpp"
#include "knear/knn/search/report_builder.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"
#include "python/bindings/call.hpp"

namespace knear::python {
namespace {

using Keys = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using KeyIds = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

nb::object tuple_of(ExactNeighbors&& found) {
  return nb::make_tuple(array_of(std::move(found.keys)), array_of(std::move(found.ids)));
}

// A copy, since the library's merge needs one of its own.
ExactNeighbors neighbors_of(const Keys& keys, const KeyIds& ids) {
  if (keys.shape(0) != ids.shape(0) || keys.shape(1) != ids.shape(1))
    throw ShapeMismatch("keys are [{} x {}], ids are [{} x {}]", keys.shape(0), keys.shape(1),
                        ids.shape(0), ids.shape(1));
  ExactNeighbors out(static_cast<std::int64_t>(keys.shape(0)),
                     static_cast<std::int64_t>(keys.shape(1)));
  if (keys.size() == 0) return out;
  std::memcpy(out.keys.data(), keys.data(), keys.size() * sizeof(double));
  std::memcpy(out.ids.data(), ids.data(), ids.size() * sizeof(std::int64_t));
  return out;
}

}  // namespace

void bind_parts(nb::module_& m) {
  m.def(
      "search_part",
      [](const Index& index, const Array& queries, const std::string& type, std::int64_t k,
         const SearchSettings& settings, nb::object progress_to) {
        const AnyMatrixView q = view_of(queries, type);
        auto options = settings.options<SearchOptions>(IdFilter{});
        auto [found, report] = found_by(progress_to, [&](Progress progress, KnnReport* filled) {
          options.progress = std::move(progress);
          return detail::public_call([&] {
            const detail::Stopwatch time;
            ExactNeighbors near = index.body().nearest(q, k, options, filled);
            detail::set_seconds(*filled, time);
            return near;
          });
        });
        // There was nothing to search.
        if (found.keys.rows() != q.rows()) found = ExactNeighbors(q.rows(), 0);
        return nb::make_tuple(tuple_of(std::move(found)), std::move(report));
      },
      nb::arg("index"), nb::arg("queries").noconvert(), nb::arg("queries_type"), nb::arg("k"),
      nb::arg("settings"), nb::arg("progress").none());
  m.def(
      "merge_parts",
      [](const std::vector<std::pair<Keys, KeyIds>>& parts, std::int64_t k, std::int64_t threads) {
        std::vector<ExactNeighbors> found;
        for (const auto& [keys, ids] : parts) {
          found.push_back(neighbors_of(keys, ids));
          if (found.back().keys.rows() != found.front().keys.rows())
            throw ShapeMismatch("part {} has {} queries, part 0 has {}", found.size() - 1,
                                found.back().keys.rows(), found.front().keys.rows());
        }
        ExactNeighbors all(found.empty() ? 0 : found.front().keys.rows(), 0);
        without_interpreter([&](const Progress&) {
          for (const ExactNeighbors& one : found)
            merge(all, one, k, resolve_threads(thread_count(threads)));
        });
        return tuple_of(std::move(all));
      },
      nb::arg("parts"), nb::arg("k"), nb::arg("threads"));
  m.def(
      "round_part",
      [](const Keys& keys, const KeyIds& ids, const std::string& metric, std::int64_t k,
         std::int64_t threads) {
        const ExactNeighbors found = neighbors_of(keys, ids);
        const Metric by = parse_metric(metric);
        std::optional<Neighbors> near;
        without_interpreter([&](const Progress&) {
          near = rounded(found, by, found.keys.rows(), k, resolve_threads(thread_count(threads)));
        });
        return nb::make_tuple(array_of(std::move(near->distances)), array_of(std::move(near->ids)));
      },
      nb::arg("keys"), nb::arg("ids"), nb::arg("metric"), nb::arg("k"), nb::arg("threads"));
}

}  // namespace knear::python
