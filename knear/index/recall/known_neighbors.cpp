#include "knear/index/recall/known_neighbors.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_set>

#include "knear/core/random.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/knn.hpp"

namespace knear::detail {
namespace {

// Fewer rows are measured one by one.
constexpr std::int64_t most_measured_rows = 64;

float rounded(double key) {
  constexpr double most = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(key, -most, most));
}

// Whether two matrices have the same bytes.
bool same(AnyMatrixView a, AnyMatrixView b) {
  if (a.type() != b.type() || a.rows() != b.rows() || a.cols() != b.cols()) return false;
  const std::size_t bytes = a.cols() * size_of(a.type());
  for (std::int64_t i = 0; i < a.rows(); ++i)
    if (std::memcmp(a.row(i), b.row(i), bytes) != 0) return false;
  return true;
}

}  // namespace

KnownNeighbors::Rows::Rows(std::span<const Row> rows) {
  const bool wide =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.second >> 32 != 0; });
  keys_.reserve(rows.size()), low_.reserve(rows.size());
  if (wide) high_.reserve(rows.size());
  for (const auto& [key, id] : rows) {
    keys_.push_back(key), low_.push_back(static_cast<std::uint32_t>(id));
    if (wide) high_.push_back(static_cast<std::uint32_t>(static_cast<std::uint64_t>(id) >> 32));
  }
}

std::vector<KnownNeighbors::Row> KnownNeighbors::Rows::all() const {
  std::vector<Row> out(size());
  for (std::size_t i = 0; i < size(); ++i) out[i] = (*this)[i];
  return out;
}

std::shared_ptr<const KnownNeighbors> KnownNeighbors::of(AnyMatrixView vectors, Metric metric,
                                                         std::uint64_t seed) {
  // Others than those that the centroids begin with.
  Random random(seed ^ 0x6b6e6f776eULL);
  const std::int64_t count = std::min(vectors.rows(), most_queries);
  auto queries =
      std::make_shared<const AnyMatrix>(rows_at(vectors, sample_of(vectors.rows(), count, random)));
  return std::make_shared<const KnownNeighbors>(std::move(queries), metric,
                                                std::vector<List>(count));
}

std::shared_ptr<const KnownNeighbors> KnownNeighbors::among(
    AnyMatrixView base, std::span<const Id> ids, const RowFilter& filter, AnyMatrixView queries,
    std::int64_t k, Metric metric, int threads, const Progress& progress) {
  std::shared_ptr<const AnyMatrix> own;
  Random random(0x6b6e6f776eULL);
  if (queries.rows() > 0) {
    own = std::make_shared<const AnyMatrix>(rows_at(
        queries, sample_of(queries.rows(), std::min(queries.rows(), most_queries), random)));
  } else {
    const std::vector<std::uint32_t> allowed = filter.allowed(0, base.rows());
    std::vector<std::int64_t> some =
        sample_of(std::ssize(allowed), std::min(std::ssize(allowed), most_queries), random);
    for (std::int64_t& row : some) row = allowed[row];
    own = std::make_shared<const AnyMatrix>(rows_at(base, some));
  }
  const std::int64_t count = own->rows(), most = std::max(most_neighbors, k + k / 4),
                     kept = std::min(filter.count(), most);
  Neighbors near;
  if (kept > 0)
    near = knn(own->view(), base, kept,
               {.metric = metric, .threads = threads, .filter = filter, .progress = progress});
  std::vector<List> lists(count);
  parallel_for(threads, count, [&](std::int64_t q) {
    ExactDistance distance(metric, base.type());
    distance.set_query(own->view(), q);
    std::vector<Row> rows;
    for (std::int64_t j = 0; j < kept; ++j) {
      const Id row = near.ids.row(q)[j];
      rows.emplace_back(rounded(distance.key(base.row(row))), ids[row]);
    }
    std::sort(rows.begin(), rows.end());
    lists[q] = {Rows(rows), kept == filter.count()};
  });
  return std::make_shared<const KnownNeighbors>(std::move(own), metric, std::move(lists), most);
}

std::shared_ptr<const KnownNeighbors> KnownNeighbors::with(AnyMatrixView vectors,
                                                           std::span<const Id> ids,
                                                           int threads) const {
  const std::int64_t n = vectors.rows(), count = queries().rows();
  const std::int64_t k = std::min(n, kept_);
  Neighbors near;
  if (n > most_measured_rows)
    near = knn(queries(), vectors, k, {.metric = metric_, .threads = threads});
  std::vector<List> lists = lists_;
  constexpr std::int64_t together = 32;
  parallel_for(threads, (count + together - 1) / together, [&](std::int64_t task) {
    ExactDistance distance(metric_, vectors.type());
    std::vector<Row> more;
    for (std::int64_t q = task * together; q < std::min(count, (task + 1) * together); ++q) {
      distance.set_query(queries(), q);
      more.clear();
      for (std::int64_t j = 0; j < k; ++j) {
        const Id row = near.ids.rows() > 0 ? near.ids.row(q)[j] : j;
        more.emplace_back(rounded(distance.key(vectors.row(row))), ids[row]);
      }
      std::sort(more.begin(), more.end());
      List& list = lists[q];
      const std::vector<Row> before = list.rows.all();
      std::vector<Row> both;
      both.reserve(before.size() + more.size());
      std::merge(before.begin(), before.end(), more.begin(), more.end(), std::back_inserter(both));
      // Behind the last one that was known, others might have been before these.
      if (!list.all)
        both.erase(before.empty() ? both.begin()
                                  : std::upper_bound(both.begin(), both.end(), before.back()),
                   both.end());
      const std::size_t kept = kept_;
      list.all &= k == n && both.size() <= kept;
      if (both.size() > kept) both.resize(kept);
      list.rows = Rows(both);
    }
  });
  return std::make_shared<const KnownNeighbors>(queries_, metric_, std::move(lists), kept_);
}

std::shared_ptr<const KnownNeighbors> KnownNeighbors::without(std::span<const Id> ids) const {
  const std::unordered_set<Id> gone(ids.begin(), ids.end());
  std::vector<List> lists = lists_;
  for (List& list : lists) {
    std::vector<Row> rows = list.rows.all();
    if (std::erase_if(rows, [&](const Row& row) { return gone.contains(row.second); }) > 0)
      list.rows = Rows(rows);
  }
  return std::make_shared<const KnownNeighbors>(queries_, metric_, std::move(lists), kept_);
}

std::shared_ptr<const KnownNeighbors> KnownNeighbors::together(
    std::span<const std::shared_ptr<const KnownNeighbors>> parts,
    const std::function<bool(std::size_t, Id)>& holds, int threads) {
  const auto of_others = [&](const std::shared_ptr<const KnownNeighbors>& part) {
    return !part || part->metric_ != parts[0]->metric_ ||
           (part->queries_ != parts[0]->queries_ && !same(part->queries(), parts[0]->queries()));
  };
  if (std::any_of(parts.begin(), parts.end(), of_others)) return nullptr;
  std::int64_t kept = 0;
  for (const auto& part : parts) kept = std::max(kept, part->kept_);
  std::vector<List> lists(parts[0]->lists_.size());
  parallel_for(threads, std::ssize(lists), [&](std::int64_t q) {
    List& list = lists[q];
    std::vector<Row> rows;
    std::optional<Row> last;  // beyond it, a part does not know of others
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const List& some = parts[p]->lists_[q];
      const std::vector<Row> all = some.rows.all();
      std::copy_if(all.begin(), all.end(), std::back_inserter(rows),
                   [&](const Row& row) { return holds(p, row.second); });
      if (some.all) continue;
      list.all = false;
      const Row end =
          all.empty() ? Row{-std::numeric_limits<float>::infinity(), no_id} : all.back();
      last = last ? std::min(*last, end) : end;
    }
    std::sort(rows.begin(), rows.end());
    if (last) rows.erase(std::upper_bound(rows.begin(), rows.end(), *last), rows.end());
    if (std::ssize(rows) > kept) rows.resize(kept), list.all = false;
    list.rows = Rows(rows);
  });
  return std::make_shared<const KnownNeighbors>(parts[0]->queries_, parts[0]->metric_,
                                                std::move(lists), kept);
}

std::int64_t KnownNeighbors::bytes() const {
  std::int64_t sum = queries().bytes();
  for (const List& list : lists_) sum += list.rows.bytes();
  return sum;
}

KnownNeighbors::Truth KnownNeighbors::truth(std::int64_t k) const {
  Truth out;
  for (std::size_t q = 0; q < lists_.size(); ++q) {
    // A product says nothing of whether two vectors are equal.
    std::vector<Id> nearest, equal;
    for (const Row& row : lists_[q].rows.all()) {
      if (!traits_of(metric_).product && row.first <= 1e-12 && nearest.empty())
        equal.push_back(row.second);
      else if (std::ssize(nearest) < k)
        nearest.push_back(row.second);
    }
    if (std::ssize(nearest) < k && !lists_[q].all) continue;
    out.queries.push_back(static_cast<std::int64_t>(q));
    out.nearest.push_back(std::move(nearest)), out.equal.push_back(std::move(equal));
  }
  return out;
}

}  // namespace knear::detail
