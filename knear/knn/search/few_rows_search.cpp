#include "knear/knn/search/few_rows_search.hpp"

#include <algorithm>
#include <bit>

#include "knear/core/cpu.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/search/report_builder.hpp"

namespace knear::detail {
namespace {

// Up to this many neighbours are kept in order while rows are measured, as TopK does.
constexpr std::int64_t longest_sorted = 32;

}  // namespace

bool FewRowsSearch::serves(AnyMatrixView queries, Metric metric) {
  if (queries.rows() != 1 || queries.type() != ElementType::f32 || traits_of(metric).bits)
    return false;
  const float* const query = queries.as<float>().data();
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < queries.cols(); ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(query[i]) & 0x7fffffffu);
  return largest != 0 && largest < 0x7f800000u;  // the bits of infinity
}

void FewRowsSearch::begin(AnyMatrixView queries, Metric metric, std::int64_t k, int threads) {
  if (timed) start_ = std::chrono::steady_clock::now();
  query_.set(metric, queries, 0);
  facts.dim = queries.cols(), facts.k = k, facts.metric = metric, facts.threads = threads;
}

void FewRowsSearch::insert(Row row) {
  const std::int64_t k = facts.k;
  if (k <= longest_sorted) {
    if (count_ == k) {
      if (!(row < list_[k - 1])) return;
      --count_;
    }
    std::int64_t place = count_;
    for (; place > 0 && row < list_[place - 1]; --place) list_[place] = list_[place - 1];
    list_[place] = row;
  } else {
    list_[count_] = row;
  }
  ++count_;
}

void FewRowsSearch::add(const BaseRows& rows, const RowIds& ids, const RowSet* live) {
  constexpr std::int64_t together = 16;
  const void* addresses[together];
  double keys[together];
  Id found[together];
  // Rows that lie in panels are written here one after another.
  alignas(64) std::byte scratch[together * (ShortQuery::most_dim + 3)];
  const std::size_t room = rows.scratch_bytes();
  const ElementType type = rows.type();
  std::int64_t count = 0;
  const auto measure = [&] {
    if (count == 0) return;
    query_.keys(type, addresses, count, keys);
    for (std::int64_t i = 0; i < count; ++i) insert({keys[i], found[i]});
    facts.measured += count;
    count = 0;
  };
  for (std::int64_t row = 0; row < rows.rows(); ++row) {
    if (live && !live->contains(row)) continue;
    addresses[count] = rows.row(row, scratch + static_cast<std::size_t>(count) * room);
    found[count++] = ids(row);
    if (count == together) measure();
  }
  measure();
  ++facts.segments;
}

void FewRowsSearch::write(Id* ids, float* distances) {
  const std::int64_t k = facts.k, has = std::min(k, count_);
  if (k > longest_sorted) std::sort(list_, list_ + count_);
  for (std::int64_t j = 0; j < has; ++j) {
    ids[j] = list_[j].id;
    distances[j] = static_cast<float>(distance_of_key(facts.metric, list_[j].key));
  }
  std::fill(ids + has, ids + k, no_id);
  std::fill(distances + has, distances + k, no_distance(facts.metric));
  if (timed)
    facts.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

KnnReport FewRowsFacts::report() const {
  KnnReport out;
  out.rows = rows, out.dim = dim, out.version = version, out.seconds = seconds;
  out.queries = 1, out.k = k, out.allowed_rows = measured;
  out.metric = metric, out.threads = resolve_threads(threads);
  // The answer before and after it is rounded, and the list of the nearest, which grows by doubling
  // (select/top_k.hpp).
  const std::int64_t found = std::min(k, measured);
  const std::int64_t list = k > longest_sorted ? std::min(measured, 2 * k + 24) : found;
  out.memory_bytes =
      found * 16 + k * 12 +
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(list))) * 16;
  out.scan.isa = name_of(active_isa());
  out.scan.first_pass = name_of(FirstPass::direct);
  out.scan.rescore_seconds = seconds;
  out.scan.survivors_per_query = static_cast<double>(measured);
  out.scan.chunks = segments;
  out.promise = all_exact(1);
  return out;
}

}  // namespace knear::detail
