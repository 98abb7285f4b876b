#include "knear/mpi/part_search.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "knear/core/public_call.hpp"
#include "knear/core/value_range.hpp"
#include "knear/knn/search/report_builder.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear {
namespace {

// Columns, keys, ids.
std::vector<std::byte> packed(const ExactNeighbors& found) {
  const std::int64_t columns = found.columns();
  const std::size_t cells = found.keys.rows() * columns;
  std::vector<std::byte> out(sizeof columns + cells * (sizeof(double) + sizeof(Id)));
  std::memcpy(out.data(), &columns, sizeof columns);
  if (cells == 0) return out;
  std::memcpy(out.data() + sizeof columns, found.keys.data(), cells * sizeof(double));
  std::memcpy(out.data() + sizeof columns + cells * sizeof(double), found.ids.data(),
              cells * sizeof(Id));
  return out;
}

ExactNeighbors unpacked(const std::vector<std::byte>& bytes, std::int64_t queries) {
  std::int64_t columns = 0;
  std::memcpy(&columns, bytes.data(), sizeof columns);
  ExactNeighbors out(queries, columns);
  const std::size_t cells = queries * columns;
  if (cells == 0) return out;
  std::memcpy(out.keys.data(), bytes.data() + sizeof columns, cells * sizeof(double));
  std::memcpy(out.ids.data(), bytes.data() + sizeof columns + cells * sizeof(double),
              cells * sizeof(Id));
  return out;
}

ValueRange range_of(AnyMatrixView rows, Id first, const KnnOptions& options) {
  detail::check_dim("base", rows.cols());
  return find_value_range(rows, options.metric, "base", options.threads, first);
}

}  // namespace

PartSearch::PartSearch(AnyMatrixView rows, Id first, std::int64_t all, const KnnOptions& options)
    : rows_(rows, options.metric,
            detail::public_call([&] { return range_of(rows, first, options); })),
      filter_(options.filter),
      first_(first) {
  detail::public_call([&] { detail::check_filter(filter_, all); });
}

ExactNeighbors PartSearch::search(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                                  KnnReport* report) {
  return detail::public_call([&] {
    detail::check_answer(queries.rows(), k);
    detail::check_columns(queries.cols(), rows_.base.cols());
    detail::check_metric(options.metric, rows_.metric);
    const detail::SearchSegment segment{
        .rows = &rows_, .ids = {.first = first_}, .filter = filter_, .filter_offset = first_};
    const detail::Stopwatch time;
    ExactNeighbors found = detail::nearest_in_segments(
        {detail::SearchKind::nearest, {&segment, 1}, queries, k, options, detail::Reuse::expected},
        report);
    if (report) detail::set_call(*report, rows_.base.rows(), queries.cols(), time);
    return found;
  });
}

void merge_at_first(Peers& peers, ExactNeighbors& found, std::int64_t queries, std::int64_t k,
                    int threads, Merged& merged) {
  const detail::Stopwatch time;
  const int rank = peers.rank();
  for (int step = 1; step < peers.size(); step *= 2) {
    if (rank % (2 * step) != 0) {
      const std::vector<std::byte> bytes = packed(found);
      peers.send(rank - step, bytes);
      merged.sent_bytes += std::ssize(bytes);
      found = {};
      break;
    }
    if (rank + step >= peers.size()) continue;
    ExactNeighbors more = unpacked(peers.receive(rank + step), queries);
    if (found.columns() == 0)
      found = std::move(more);
    else if (more.columns() > 0)
      merge(found, more, k, threads);
  }
  merged.seconds += time.seconds();
}

std::int64_t merge_bytes(std::span<const std::int64_t> rows, std::int64_t queries, std::int64_t k,
                         std::int64_t calls) {
  constexpr std::int64_t neighbor = sizeof(double) + sizeof(Id), call = sizeof(std::int64_t);
  std::vector<std::int64_t> columns;
  for (const std::int64_t some : rows) columns.push_back(std::min(k, some));
  std::int64_t sum = 0;
  // As merge_at_first() goes.
  for (std::size_t step = 1; step < columns.size(); step *= 2)
    for (std::size_t rank = 0; rank + step < columns.size(); rank += 2 * step) {
      sum += queries * columns[rank + step] * neighbor + calls * call;
      columns[rank] = std::min(k, columns[rank] + columns[rank + step]);
    }
  return sum;
}

}  // namespace knear
