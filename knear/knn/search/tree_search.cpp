#include "knear/knn/search/tree_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

#include "knear/core/threads.hpp"
#include "knear/cost/plan.hpp"
#include "knear/scan/methods/list_scan.hpp"
#include "knear/scan/row_measurer.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

constexpr double no_bound = std::numeric_limits<double>::infinity();
constexpr std::int64_t least_rows = 4096, most_neighbors = 1024;
// Where a filter or removals leave out more than one row in so many, too many leaves are looked at.
constexpr std::int64_t most_left_out = 4;
// A query that looks at more leaves is left to a scan of all rows; and queries that are answered
// together.
constexpr std::size_t most_leaves = 128;
constexpr std::int64_t together = 1 << 14;
// The share of the machine's memory that making a tree may take: rows are doubles meanwhile.
constexpr std::int64_t share_of_memory = 8;

// Times that were measured, in times that measuring a row takes: making a tree, for each row; a
// query, and each leaf that it looks at.
constexpr double making_a_row = 1, query_alone = 16, query_of_leaf = 4;
// Scoring a row of a cluster and taking what passes, in times that scoring alone takes.
constexpr double scoring_of_cluster = 3;

// Where the boxes of a tree have a query.
struct PointOfQuery {
  PointOfQuery(const LeafPoints::Query& query, const ScanJob& job, std::int64_t q) : at(query.x) {
    if (!traits_of(job.metric).unit_rows) return;
    of_length_one = tree_points(job.queries.rows(q, q + 1), job.metric, 1);
    at = of_length_one.data();
  }
  Matrix<double> of_length_one;
  const double* at;
};

}  // namespace

bool TreeSearch::is_possible(const ChunkSearch& chunk) const {
  const SearchRequest& request = at_.request;
  const TuningOverrides& tuning = request.options.tuning;
  const bool is_tuned = tuning.group || tuning.parts || tuning.columns || tuning.clusters ||
                        tuning.tile || !tuning.guess || tuning.refine;
  const std::int64_t making = at_.rows.rows() * at_.rows.cols() * std::int64_t{sizeof(double)};
  const bool by_points = at_.rows.cols() <= LeafPoints::most_columns;
  return (at_.rows.cols() <= RowTree::few_columns || may_have_clusters(chunk)) &&
         at_.rows.rows() >= least_rows && making <= machine_memory() / share_of_memory &&
         !chunk.todo.empty() && chunk.job.k >= 1 && chunk.job.k <= most_neighbors &&
         request.options.first_pass == FirstPass::automatic && !is_tuned && !at_.device &&
         !request.limited() && at_.whole && !at_.packs_always &&
         traits_of(request.options.metric).by_products &&
         (by_points ? most_left_out * (at_.rows.rows() - at_.count) <= at_.rows.rows()
                    : at_.count == at_.rows.rows());
}

bool TreeSearch::may_have_clusters(const ChunkSearch& chunk) const {
  if (chunk.choice.passes.empty()) return false;
  const FirstPass pass = chunk.choice.passes.front();
  return pass != FirstPass::integer && pass != FirstPass::int8;
}

double TreeSearch::cost_of_query(const TreeVisit& visit) const {
  if (!visit.pays || visit.leaves > static_cast<double>(most_leaves) / 2) return no_bound;
  const double leaves = query_alone + query_of_leaf * visit.leaves;
  if (at_.rows.cols() <= RowTree::few_columns) return leaves;
  const double rows = visit.share * static_cast<double>(at_.rows.rows()),
               scored = pair_seconds(ScanOp::int8, at_.rows.cols(), at_.request.peaks) /
                        measured_row_seconds(at_.rows.cols(), at_.request.peaks);
  return leaves + scoring_of_cluster * rows * scored;
}

template <class Cost>
std::shared_ptr<const RowTree> TreeSearch::tree_for(const ChunkSearch& chunk, Cost cost_of) {
  PreparedRows& prepared = at_.prepared();
  const AnyMatrixView queries = at_.request.queries;
  const MachinePeaks& peaks = *chunk.job.peaks;
  const double row = measured_row_seconds(at_.rows.cols(), peaks) / at_.request.threads,
               share = static_cast<double>(chunk.todo.size()) / static_cast<double>(queries.rows()),
               scanning = share * passes_.expected_seconds(chunk.choice);
  const auto searching = [&](double cost) {
    return static_cast<double>(chunk.todo.size()) * row * cost;
  };
  constexpr double least_cost = query_alone + query_of_leaf;
  if (!(searching(least_cost) < scanning)) return nullptr;
  auto kept = prepared.kept_tree();
  const double making = kept ? 0 : static_cast<double>(at_.rows.rows()) * row * making_a_row;
  const double spent =
      chunk.choice.keep ? prepared.searched_without_tree(kept ? 0 : scanning) : scanning;
  if (!(making + searching(least_cost) < spent)) return nullptr;
  const double cost = cost_of();
  if (!(searching(cost) < scanning) || !(making + searching(cost) < spent)) return nullptr;
  at_.expect(making + searching(cost));
  if (kept) return kept;
  return prepared.tree(passes_.packing(chunk.choice));
}

void TreeSearch::answer(const RowTree& tree, const ScanJob& of_chunk,
                        std::span<const std::int64_t> which, ExactNeighbors& out,
                        std::vector<std::int64_t>& left) {
  const std::int64_t count = std::ssize(which), k = of_chunk.k;
  const BoxTree& boxes = tree.boxes();
  const AnyMatrix queries = copies_of(of_chunk.queries, which);
  const Matrix<double> points = tree_points(queries.view(), of_chunk.metric, at_.request.threads);
  std::vector<double> bounds(which.size(), no_bound);
  if (of_chunk.upper_bounds)
    for (std::size_t i = 0; i < which.size(); ++i) bounds[i] = of_chunk.upper_bounds[which[i]];
  ScanJob job = of_chunk;
  job.queries = queries.view(), job.upper_bounds = bounds.data(), job.may_give_up = false;

  // First the leaves where a query lies; what they have bounds the k-th key.
  constexpr std::int64_t block = 64;
  std::vector<BoxTree::Leaves> starts(which.size());
  parallel_for(at_.request.threads, (count + block - 1) / block, [&](std::int64_t b) {
    for (std::int64_t i = b * block; i < std::min(count, (b + 1) * block); ++i)
      starts[i] = boxes.start(points.row(i), k);
  });
  std::int64_t most = 0;
  for (const BoxTree::Leaves& leaves : starts) most = std::max(most, leaves.end - leaves.begin);
  Matrix<Id> first(count, most);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto [begin, end] = starts[i];
    for (std::int64_t j = 0; j < most; ++j) first.row(i)[j] = begin + j < end ? begin + j : no_id;
  }
  const Progress& progress = at_.request.options.progress;
  const std::vector<double> known = bounds;
  job.upper_bounds = known.data();
  ScoredLists near(tree.lists(), job, first.view(), report_.stats, progress);
  // Then all others that may have a nearer row.
  std::vector<std::vector<std::int64_t>> more(which.size());
  std::vector<char> too_many(which.size(), 0);
  parallel_for(at_.request.threads, (count + block - 1) / block, [&](std::int64_t b) {
    std::vector<double> keys;
    for (std::int64_t i = b * block; i < std::min(count, (b + 1) * block); ++i) {
      const std::size_t q = i;
      keys.clear(), near.add_keys(i, keys);
      if (std::ssize(keys) >= k) {
        std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end());
        bounds[q] = std::min(bounds[q], keys[k - 1]);
      }
      if (bounds[q] < no_bound) boxes.within(points.row(i), bounds[q], more[q]);
      std::erase_if(more[q], [&](std::int64_t leaf) {
        return leaf >= starts[q].begin && leaf < starts[q].end;
      });
      too_many[q] = !(bounds[q] < no_bound) || more[q].size() > most_leaves;
      if (too_many[q]) more[q].clear();
    }
  });
  std::size_t widest = 0;
  for (const auto& leaves : more) widest = std::max(widest, leaves.size());
  Matrix<Id> rest(count, static_cast<std::int64_t>(widest));
  std::fill_n(rest.data(), rest.rows() * rest.cols(), no_id);
  for (std::int64_t i = 0; i < count; ++i) std::copy(more[i].begin(), more[i].end(), rest.row(i));
  job.upper_bounds = bounds.data();
  ScoredLists others(tree.lists(), job, rest.view(), report_.stats, progress);
  ExactNeighbors best(count, k), part(count, k);
  near.finish(bounds.data(), best, report_.stats);
  others.finish(bounds.data(), part, report_.stats);
  merge(best, part, k, at_.request.threads);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t q = i;
    if (too_many[q]) {
      left.push_back(which[q]);
      continue;
    }
    std::copy_n(best.keys.row(i), k, out.keys.row(which[q]));
    std::copy_n(best.ids.row(i), k, out.ids.row(which[q]));
  }
  report_.note_listed(tree.lists().packed, near.scored() + others.scored());
}

void TreeSearch::answer_by_points(const RowTree& tree, const ScanJob& job,
                                  std::span<const std::int64_t> which, ExactNeighbors& out,
                                  std::vector<std::int64_t>& left) {
  // A job for a subset of the rows has no filter.
  const AllowedRows allowed = at_.allowed();
  constexpr std::int64_t block = 64;
  const std::int64_t count = std::ssize(which), blocks = (count + block - 1) / block;
  Reporter reporter(at_.request.options.progress, "search", blocks);
  std::mutex mutex;
  parallel_for(at_.request.threads, blocks, [&](std::int64_t b) {
    const Stopwatch time;
    ScanStats stats;
    std::vector<std::int64_t> not_answered;
    TopK best;
    double keys[LeafPoints::leaf_rows];
    for (std::int64_t i = b * block; i < std::min(count, (b + 1) * block); ++i) {
      const std::int64_t q = which[i];
      const LeafPoints::Query query(job.metric, job.queries, q);
      const PointOfQuery x(query, job, q);
      const double limit = job.upper_bounds ? job.upper_bounds[q] : no_bound;
      std::size_t leaves = 0;
      best.restart(job.k);
      tree.boxes().visit(
          x.at, [&] { return std::min(limit, best.bound()); },
          [&](std::int64_t leaf) {
            if (++leaves > most_leaves) return false;
            const std::span<const std::uint32_t> rows = tree.points().rows_of(leaf);
            tree.points().measure(leaf, query, keys);
            for (std::size_t r = 0; r < rows.size(); ++r)
              if (keys[r] <= limit && keys[r] <= best.bound())
                each_copy(tree.copies(), allowed, rows[r], [&](std::uint32_t row) {
                  const bool admitted = best.admits(keys[r], row);
                  if (admitted) best.push(keys[r], row);
                  return admitted;
                });
            stats.survivors += std::ssize(rows);
            return true;
          });
      if (leaves > most_leaves) {
        not_answered.push_back(q);
        continue;
      }
      best.finish();
      for (std::int64_t j = 0; j < job.k; ++j) {
        const bool is_row = j < std::min(job.k, std::ssize(best.items()));
        const TopK::Item item = is_row ? best.items()[j] : TopK::Item(no_bound, no_id);
        out.keys.row(q)[j] = item.first, out.ids.row(q)[j] = item.second;
      }
    }
    stats.rescore_seconds = time.seconds();
    reporter.add(1);
    std::lock_guard lock(mutex);
    report_.stats.add(stats);
    left.insert(left.end(), not_answered.begin(), not_answered.end());
  });
  std::sort(left.begin(), left.end());
}

bool TreeSearch::within(const ScanJob& job, const Choice& choice, double limit, RangeSink& sink) {
  ChunkSearch chunk{job, choice, {}};
  chunk.todo.resize(job.queries.rows());
  std::iota(chunk.todo.begin(), chunk.todo.end(), 0);
  if (at_.rows.cols() > LeafPoints::most_columns || !is_possible(chunk)) return false;
  const auto tree = tree_for(chunk, [&] {
    const TreeVisit visit =
        visit_of_query(at_.rows, job.queries, at_.prepared().coding_space(), job.k, limit);
    // The leaves of the sample are longer on each side, and the radius is the same.
    const double side = 1 / static_cast<double>(at_.rows.cols()),
                 shorter = std::pow(static_cast<double>(at_.rows.rows()) / visit.rows, side),
                 more = std::pow(std::max(1.0, visit.leaves), side) - 1,
                 leaves = std::pow(1 + more * shorter, static_cast<double>(at_.rows.cols()));
    return query_alone + query_of_leaf * leaves;
  });
  if (!tree) return false;
  // A job for a subset of the rows has no filter.
  const AllowedRows allowed = at_.allowed();
  constexpr std::int64_t block = 64;
  const std::int64_t count = job.queries.rows(), blocks = (count + block - 1) / block;
  Reporter reporter(at_.request.options.progress, "search", blocks);
  std::mutex mutex;
  parallel_for(at_.request.threads, blocks, [&](std::int64_t b) {
    const Stopwatch time;
    ScanStats stats;
    double keys[LeafPoints::leaf_rows];
    for (std::int64_t q = b * block; q < std::min(count, (b + 1) * block); ++q) {
      const LeafPoints::Query query(job.metric, job.queries, q);
      const PointOfQuery x(query, job, q);
      RangeLists found(1);
      tree->boxes().visit(
          x.at, [&] { return limit; },
          [&](std::int64_t leaf) {
            const std::span<const std::uint32_t> rows = tree->points().rows_of(leaf);
            tree->points().measure(leaf, query, keys);
            const std::size_t before = found[0].size();
            for (std::size_t r = 0; r < rows.size(); ++r)
              if (keys[r] <= limit)
                each_copy(tree->copies(), allowed, rows[r], [&](std::uint32_t row) {
                  found[0].emplace_back(keys[r], row);
                  return true;
                });
            sink.count(static_cast<std::int64_t>(found[0].size() - before));
            stats.survivors += std::ssize(rows);
            return true;
          });
      sink.take({&q, 1}, found);
    }
    stats.rescore_seconds = time.seconds();
    reporter.add(1);
    std::lock_guard lock(mutex);
    report_.stats.add(stats);
  });
  report_.note_pass(FirstPass::direct, count, at_.count);
  report_.note_tree(at_.prepared(), *tree, choice.keep);
  report_.learns = false;
  return true;
}

void TreeSearch::search(ChunkSearch& chunk, ExactNeighbors& out) {
  if (!is_possible(chunk)) return;
  const auto tree = tree_for(chunk, [&] {
    return at_.prepared().cost_of_tree(chunk.job.k, [&] {
      return cost_of_query(visit_of_query(at_.rows, at_.request.queries,
                                          at_.prepared().coding_space(), chunk.job.k));
    });
  });
  if (!tree) return;
  std::vector<std::int64_t> left;
  const auto todo = std::span<const std::int64_t>(chunk.todo);
  const bool by_points = !tree->points().empty();
  if (by_points) answer_by_points(*tree, chunk.job, todo, out, left);
  for (std::size_t begin = 0; begin < todo.size() && !by_points; begin += together)
    answer(*tree, chunk.job,
           todo.subspan(begin, std::min<std::size_t>(together, todo.size() - begin)), out, left);
  report_.note_pass(by_points ? FirstPass::direct : FirstPass::int8,
                    std::ssize(chunk.todo) - std::ssize(left), at_.count);
  report_.note_tree(at_.prepared(), *tree, chunk.choice.keep);
  report_.note_fallback(std::ssize(left));
  report_.learns = false;
  chunk.todo = std::move(left);
}

}  // namespace knear::detail
