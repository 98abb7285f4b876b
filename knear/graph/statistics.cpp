#include "knear/graph/statistics.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>

#include "knear/core/public_call.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/distance/reference.hpp"
#include "knear/graph/copies.hpp"
#include "knear/graph/sparse_graph.hpp"
#include "knear/io/mapped_pages.hpp"
#include "knear/knn/streamed_search.hpp"

namespace knear {
namespace {

// As knn(), of so many bytes of the base at a time, so that rows which are measured are those that
// were read last.
Neighbors exact_neighbors(AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
                          KnnOptions options, std::int64_t bytes, const Progress& progress) {
  const std::int64_t n = base.rows();
  const std::int64_t step =
      std::max<std::int64_t>(1024, bytes / base.cols() / size_of(base.type()));
  std::int64_t begin = 0, end = 0;
  if (progress)
    options.progress = [&](std::string_view stage, double fraction) {
      return progress(stage,
                      (static_cast<double>(begin) + fraction * static_cast<double>(end - begin)) /
                          static_cast<double>(n));
    };
  StreamedSearch search(queries, k, options, n);
  for (; begin < n; begin = end) {
    end = std::min(n, begin + step);
    search.add(base.rows(begin, end));
  }
  return search.finish();
}

}  // namespace

GraphStatistics statistics_of(const NeighborGraph& graph, std::int64_t hubs) {
  return detail::public_call([&] {
    if (hubs < 0) throw InvalidArgument("hubs must not be negative, but is {}", hubs);
    const MatrixView<Id> ids = graph.ids();
    const std::int64_t n = graph.rows(), k = graph.k();
    GraphStatistics out;
    std::vector<std::int64_t> in(n, 0);
    for (Id i = 0; i < n; ++i) {
      if (i % 4096 == 0) stop_if_asked();
      for (std::int64_t j = 0; j < k; ++j) {
        const Id other = ids.row(i)[j];
        if (other == no_id) continue;
        ++out.edges;
        ++in[other];
        out.mutual += std::find(ids.row(other), ids.row(other) + k, i) != ids.row(other) + k;
      }
    }
    for (const std::int64_t degree : in) {
      const std::size_t place = std::bit_width(static_cast<std::uint64_t>(degree));
      if (out.in_degrees.size() <= place) out.in_degrees.resize(place + 1, 0);
      ++out.in_degrees[place];
      out.most_in_degree = std::max(out.most_in_degree, degree);
    }
    std::vector<Id> order(n);
    for (Id i = 0; i < n; ++i) order[i] = i;
    const auto most = order.begin() + std::min(hubs, n);
    std::partial_sort(order.begin(), most, order.end(), [&](Id a, Id b) {
      const std::int64_t x = in[a], y = in[b];
      return x != y ? x > y : a < b;
    });
    for (auto row = order.begin(); row != most; ++row) out.hubs.push_back({*row, in[*row]});
    const Components parts = components(ids);
    out.components = std::ssize(parts.sizes);
    for (const std::int64_t size : parts.sizes)
      out.largest_component = std::max(out.largest_component, size);
    return out;
  });
}

SampledAccuracy sampled_accuracy(const NeighborGraph& graph, AnyMatrixView base,
                                 std::int64_t sample, std::uint64_t seed, int threads,
                                 const Progress& progress, std::int64_t memory) {
  return detail::public_call([&] {
    if (base.rows() != graph.rows() || base.cols() != graph.properties().base.dim)
      throw InvalidArgument("graph is of {} x {}, but the base is {} x {}", graph.rows(),
                            graph.properties().base.dim, base.rows(), base.cols());
    if (sample < 1) throw InvalidArgument("sample must be at least 1, but is {}", sample);
    if (memory < 0) throw InvalidArgument("memory must not be negative, but is {}", memory);
    const Metric metric = graph.metric();
    const std::int64_t k = graph.k();
    SampledAccuracy out;
    Random random(seed);
    out.rows = detail::sample_of(base.rows(), std::min(sample, base.rows()), random);
    std::optional<io::MappedPages> pages;
    if (memory > 0) pages.emplace(memory / 3), pages->add(base.data());
    const AnyMatrix queries = [&] {
      const io::ReadingByPage by_page(base.data());
      return detail::rows_at(base, out.rows);
    }();
    detail::Copies copies;
    if (graph.properties().distinct) copies = detail::find_copies(base);
    constexpr std::int64_t least_part = std::int64_t{1} << 24, largest_part = std::int64_t{1} << 29;
    const std::int64_t bytes =
        memory > 0 ? std::clamp(memory / 8, least_part, largest_part) : largest_part;
    const Neighbors truth = exact_neighbors(
        queries, base, k + 1, {.metric = metric, .threads = threads, .filter = copies.filter},
        bytes, progress);
    const io::ReadingByPage by_page(base.data());
    for (std::size_t i = 0; i < out.rows.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const Id row = out.rows[i];
      const Id itself = copies.first.empty() ? row : copies.first[row];
      // The farthest of the k nearest others; itself need not be among k + 1 if it has copies.
      std::int64_t others = 0;
      Id farthest = no_id;
      for (std::int64_t j = 0; j <= k && others < k; ++j)
        if (const Id id = truth.ids.row(at)[j]; id != itself && id != no_id)
          farthest = id, ++others;
      const auto key = [&](Id id) {
        return visit(base, [&](auto rows) {
          return order_key(metric,
                           reference_distance(metric, rows.row(row), rows.row(id), rows.cols()));
        });
      };
      std::int64_t found = 0;
      const double most = others > 0 ? key(farthest) : 0;
      for (std::int64_t j = 0; j < k && others > 0; ++j)
        if (const Id id = graph.ids().row(row)[j]; id != no_id) found += key(id) <= most;
      out.found.push_back(others == 0 ? 1
                                      : static_cast<double>(std::min(found, others)) /
                                            static_cast<double>(others));
    }
    if (!out.found.empty())
      out.mean = std::accumulate(out.found.begin(), out.found.end(), 0.0) /
                 static_cast<double>(out.found.size());
    out.interval = mean_interval(out.found);
    return out;
  });
}

}  // namespace knear
