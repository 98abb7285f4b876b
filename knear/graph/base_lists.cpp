#include "knear/graph/base_lists.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <system_error>
#include <utility>

#include "knear/cluster/k_means.hpp"
#include "knear/core/error.hpp"
#include "knear/core/sample.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/distance/reference.hpp"
#include "knear/index/file/index_file.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/impl/index_over_centroids.hpp"
#include "knear/index/impl/index_training.hpp"
#include "knear/index/lists/list_probing.hpp"
#include "knear/index/lists/recall_calibration.hpp"
#include "knear/index/usual_lists.hpp"
#include "knear/knn/lists/list_search.hpp"

namespace knear::detail {
namespace {

// Rows that are searched for together: as many as a search of lists takes at once
// (knn/lists/list_search.cpp), and at least.
constexpr std::int64_t most_rows_together = 1 << 15, least_rows_together = 256;
// Rows of a list in a part of a file, at least: shorter lists would be all padding.
constexpr std::int64_t least_rows_of_list = 4;
// Lists that a search probes where no rule promises the recall, before it looks at bounds.
constexpr std::int64_t first_probes = 8;

// Bytes of a row in lists: its vector, code, id, place, and the scalars of codes.
std::int64_t row_bytes(AnyMatrixView base) {
  return base.cols() * (size_of(base.type()) + 1) + 16 + 8 + 4;
}
// Beside that a part has, while it is made, its rows in the order of lists, and what finds it.
std::int64_t part_row_bytes(AnyMatrixView base) {
  return row_bytes(base) + base.cols() * size_of(base.type()) + 48;
}
// Of a row that is searched for: a copy, candidates, the answer, and the lists that it may probe.
std::int64_t query_bytes(AnyMatrixView base, std::int64_t k) {
  constexpr std::int64_t usual_probes = 256;
  return base.cols() * (size_of(base.type()) + 9) + 24 * (2 * k + 160) + 120 * k + 640 +
         12 * usual_probes;
}
// What the memory has to hold in any case: which list each row is in, the order by that, and while
// the centroids are learned what these are learned from.
std::int64_t fixed_bytes(AnyMatrixView base, const IndexShape& shape) {
  return 12 * base.rows() + 16 * shape.lists * shape.dim + (std::int64_t{4} << 20);
}
std::int64_t training_bytes(AnyMatrixView base, const IndexShape& shape) {
  const std::int64_t rows = std::max<std::int64_t>(131072, CoarseQuantizer::training_rows(shape));
  // All rows are not copied.
  const std::int64_t copy = rows < base.rows() ? base.cols() * size_of(base.type()) : 0;
  return std::min(rows, base.rows()) * (copy + 2 * base.cols() + 32);
}

IndexShape shape_of(AnyMatrixView base, const BaseListsOptions& options) {
  return {.dim = base.cols(), .metric = options.metric, .lists = usual_lists(base.rows())};
}

std::string part_name(const std::string& scratch, std::size_t number) {
  return fmt::format("{}.{}", scratch, number + 1);
}

// The numbers of centroids in an order in which those near each other mostly follow each other:
// clusters of them, each behind the one that is nearest to it of those left.
std::vector<std::uint32_t> near_after_near(MatrixView<float> centroids, int threads) {
  const std::int64_t count = centroids.rows();
  const auto clusters = static_cast<std::int64_t>(std::sqrt(static_cast<double>(count)));
  const KMeans found =
      k_means(AnyMatrixView(centroids), clusters, {.iterations = 10, .threads = threads});
  std::vector<std::int64_t> place(clusters, -1);
  for (std::int64_t next = 0, at = 0; at < clusters; ++at) {
    const std::int64_t from = next;
    place[from] = at;
    double nearest = std::numeric_limits<double>::infinity();
    for (std::int64_t other = 0; other < clusters; ++other) {
      if (place[other] >= 0) continue;
      const double distance = reference_distance(Metric::l2, found.centroids.row(from),
                                                 found.centroids.row(other), centroids.cols());
      if (distance < nearest) nearest = distance, next = other;
    }
  }
  const std::vector<std::int64_t> cluster_of =
      nearest_centroids(found.centroids.view(), centroids, Metric::l2, threads).ids;
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return place[cluster_of[a]] < place[cluster_of[b]];
  });
  return order;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

bool has_lists_files(const std::string& scratch) { return exists(part_name(scratch, 0)); }

void remove_lists_files(const std::string& scratch) {
  // From the last on, so that what is left after a kill is still removed by a second call.
  std::size_t count = 0;
  while (exists(part_name(scratch, count))) ++count;
  for (; count > 0; --count) {
    std::error_code error;
    const std::string path = part_name(scratch, count - 1);
    if (!std::filesystem::remove(path, error) && error)
      throw IoError(SystemError{error.value(), path}, "{}: cannot remove it: {}", path,
                    error.message());
  }
}

BaseListsSize BaseLists::size_of_lists(AnyMatrixView base, std::int64_t rows,
                                       const BaseListsOptions& options) {
  const IndexShape shape = shape_of(base, options);
  BaseListsSize out;
  const std::int64_t fixed = fixed_bytes(base, shape),
                     queries = query_bytes(base, options.neighbors);
  const std::int64_t all = rows * row_bytes(base);
  const bool begun = !options.scratch.empty() && has_lists_files(options.scratch);
  out.memory_bytes = fixed + all + least_rows_together * queries;
  if (!begun && (options.memory == 0 || out.memory_bytes <= options.memory)) return out;
  if (options.scratch.empty())
    throw MemoryBudgetError(
        "memory is {} bytes, but inverted lists of {} x {} {} take {}: a graph that is written to "
        "a "
        "file has them in files",
        options.memory, base.rows(), base.cols(), name_of(base.type()), out.memory_bytes);
  out.file_bytes = all + all / 50;
  out.memory_bytes =
      fixed + std::max(training_bytes(base, shape),
                       std::max(3 * least_rows_of_list * shape.lists * part_row_bytes(base),
                                4 * least_rows_together * queries));
  if (options.memory != 0 && options.memory < out.memory_bytes)
    throw MemoryBudgetError(
        "memory is {} bytes, but a graph by inverted lists of {} x {} {} takes at least {}",
        options.memory, base.rows(), base.cols(), name_of(base.type()), out.memory_bytes);
  return out;
}

BaseLists::BaseLists(AnyMatrixView base, std::span<const Id> which, const BaseListsOptions& options,
                     const Progress& progress)
    : base_(base), options_(options), shape_(shape_of(base, options)) {
  const std::int64_t rows = which.empty() ? base.rows() : std::ssize(which);
  const BaseListsSize size = size_of_lists(base, rows, options);
  const std::int64_t queries = query_bytes(base, options.neighbors);
  const std::int64_t room = options.memory == 0 ? most_rows_together * queries
                            : size.file_bytes == 0
                                ? options.memory - size.memory_bytes + least_rows_together * queries
                                : (options.memory - fixed_bytes(base, shape_)) / 4;
  batch_ = std::clamp(room / queries, least_rows_together, most_rows_together);
  list_of_.assign(base.rows(), 0);
  if (size.file_bytes == 0) {
    make_in_memory(which, progress);
  } else {
    if (options.memory > 0) pages_ = std::make_unique<io::MappedPages>(options.memory / 3);
    make_files(which, progress);
  }
  for (const Segment& segment : made_.segments) {
    made_.size += segment.size();
    const std::vector<std::uint32_t> lists = segment.rows->list_of();
    const RowIds ids = segment.rows->ids();
    for (std::int64_t row = 0; row < segment.rows->rows(); ++row) list_of_[ids(row)] = lists[row];
  }
  made_.recall = std::make_shared<RecallCurves>(made_.size);
  state_ = std::make_shared<const State>(std::move(made_));
  for (const Segment& segment : state_->segments)
    if (in_files()) io::read_by_page(segment.rows->order().data());
  calibrate(progress);
}

void BaseLists::train(const Progress& progress) {
  detail::train(made_, shape_, base_,
                {.hold_out = false, .threads = options_.threads, .progress = progress},
                IndexOverCentroids::trained);
  made_.coarse =
      made_.coarse->renumbered(near_after_near(made_.coarse->centroids(), options_.threads));
}

void BaseLists::make_in_memory(std::span<const Id> which, const Progress& progress) {
  train(progress);
  IndexImpl index(shape_, made_);
  const ChangeOptions changing{options_.threads, progress};
  if (which.empty())
    index.add(base_, changing);
  else
    index.add_with_any_ids(rows_at(base_, which).view(), which, changing);
  made_ = *index.state();
  made_.size = 0;
}

void BaseLists::make_files(std::span<const Id> which, const Progress& progress) {
  const std::int64_t rows = which.empty() ? base_.rows() : std::ssize(which);
  const auto id_at = [&](std::int64_t i) { return which.empty() ? i : which[i]; };
  std::int64_t done = 0;
  for (std::size_t number = 0; exists(part_name(options_.scratch, number)); ++number) {
    const std::string path = part_name(options_.scratch, number);
    take(load_index(path), path);
    const SegmentRows& last = *made_.segments.back().rows;
    const std::int64_t count = last.rows();
    if (done + count > rows || last.first_id() != id_at(done) ||
        last.last_id() != id_at(done + count - 1))
      throw CorruptFile("{} has other rows than are due: remove it to begin anew", path);
    done += count;
  }
  if (parts_.empty()) train(progress);
  const std::int64_t room = options_.memory > 0 ? (options_.memory - fixed_bytes(base_, shape_)) / 3
                                                : rows * part_row_bytes(base_);
  const std::int64_t most =
      std::max(least_rows_of_list * shape_.lists, room / part_row_bytes(base_));
  while (done < rows) {
    // Parts of about the same length.
    const std::int64_t parts = (rows - done + most - 1) / most;
    const std::int64_t count = (rows - done + parts - 1) / parts;
    const std::string path = part_name(options_.scratch, parts_.size());
    const Progress part_progress = [&, done](std::string_view, double fraction) {
      return !progress ||
             progress("lists", (static_cast<double>(done) + fraction * static_cast<double>(count)) /
                                   static_cast<double>(rows));
    };
    {
      std::vector<Id> ids(count);
      for (std::int64_t i = 0; i < count; ++i) ids[i] = id_at(done + i);
      std::vector<std::uint32_t> list;
      if (which.empty()) {
        list = made_.coarse->assign(base_.rows(done, done + count), options_.threads, part_progress)
                   .list_of;
      } else {
        const AnyMatrix some = rows_at(base_, ids);
        list = made_.coarse->assign(some.view(), options_.threads, part_progress).list_of;
      }
      std::vector<std::uint32_t> order(ids.size());
      std::iota(order.begin(), order.end(), 0U);
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return list[a] < list[b]; });
      std::vector<Id> sorted(ids.size());
      for (std::size_t i = 0; i < ids.size(); ++i) sorted[i] = ids[order[i]];
      State empty;
      empty.coarse = made_.coarse;
      IndexImpl index(shape_, std::move(empty));
      {
        const AnyMatrix copy = rows_at(base_, sorted);
        index.add_with_any_ids(copy.view(), sorted, {options_.threads, part_progress});
      }
      save_index(*index.state(), shape_, path, part_progress);
    }
    take(load_index(path), path);
    done += count;
  }
}

void BaseLists::take(SavedIndex part, const std::string& path) {
  const State& state = part.state;
  if (part.shape != shape_ || state.segments.size() != 1 || !state.coarse ||
      (made_.coarse && !made_.coarse->equals(*state.coarse)) ||
      (made_.type && made_.type != state.type) || !state.segments[0].live.all())
    throw CorruptFile("{} holds no part of this graph's lists: remove it to begin anew", path);
  if (!made_.coarse) made_.coarse = state.coarse;
  made_.type = state.type;
  made_.next_id = state.segments[0].rows->last_id() + 1;
  made_.segments.push_back(state.segments[0]);
  if (pages_) pages_->add(state.segments[0].rows->order().data());
  Part taken{path, made_.next_id,
             std::vector<std::int64_t>(static_cast<std::size_t>(made_.coarse->lists()) + 1)};
  for (const std::uint32_t list : state.segments[0].rows->list_of()) ++taken.begin[list + 1];
  std::partial_sum(taken.begin.begin(), taken.begin.end(), taken.begin.begin());
  parts_.push_back(std::move(taken));
}

void BaseLists::calibrate(const Progress& progress) {
  // For as many nearest others as are searched for: of the fewer that a row keeps without itself
  // more are found.
  const RecallCurve curve =
      calibrate_by_rows(*state_, options_.metric, options_.neighbors, options_.threads, progress);
  if (const RecallPoint* point = curve.find(options_.recall))
    point_ = *point;
  else
    certify_ = true;
}

// Of lists in files from there, where rows that follow each other here lie side by side.
AnyMatrix BaseLists::vectors_of(std::span<const Id> rows) const {
  if (!in_files()) return rows_at(base_, rows);
  AnyMatrix out(base_.type(), std::ssize(rows), base_.cols());
  std::vector<std::byte> scratch;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto part = std::upper_bound(parts_.begin(), parts_.end(), rows[i],
                                       [](Id row, const Part& one) { return row < one.end; });
    const SegmentRows& segment = *state_->segments[part - parts_.begin()].rows;
    scratch.resize(segment.base().scratch_bytes());
    copy_exactly(segment.base().row_view(segment.find(rows[i]), scratch.data()), out.type(),
                 out.row(static_cast<std::int64_t>(i)));
  }
  return out;
}

void BaseLists::read_ahead(const std::vector<char>& wanted) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const SegmentRows& rows = *state_->segments[i].rows;
    const auto packed = rows.lists()->numbers() ? nullptr : rows.lists()->first_form();
    for (auto from = wanted.begin(); from != wanted.end();) {
      from = std::find(from, wanted.end(), 1);
      const auto to = std::find(from, wanted.end(), 0);
      const std::int64_t first = from - wanted.begin(), last = to - wanted.begin();
      from = to;
      if (packed) {
        const std::int64_t panel_bytes = packed->packed.steps * panel_step_bytes;
        const std::int64_t begin = packed->first_panel[first] * panel_bytes;
        const std::int64_t end = packed->first_panel[last] * panel_bytes;
        io::read_ahead(packed->packed.codes.data() + begin, end - begin);
      }
      if (rows.is_panels()) continue;  // the codes are the vectors
      const std::int64_t begin = parts_[i].begin[first];
      const std::int64_t count = parts_[i].begin[last] - begin;
      if (count > 0) io::read_ahead(rows.matrix().row(begin), count * rows.base().row_bytes());
    }
  }
}

// A search that has what it probes read before.
class BaseLists::ReadingAhead final : public ProbedSearch {
 public:
  ReadingAhead(const BaseLists& lists, const SearchRequest& request)
      : lists_(lists), search_(request) {}

  void nearest(MatrixView<Id> probes, ExactNeighbors& found,
               std::span<const std::int64_t> which) override {
    std::vector<char> wanted(lists_.lists());
    for (std::int64_t q = 0; q < probes.rows(); ++q)
      for (std::int64_t i = 0; i < probes.cols() && probes.row(q)[i] != no_id; ++i)
        wanted[probes.row(q)[i]] = 1;
    lists_.read_ahead(wanted);
    search_.nearest(probes, found, which);
  }
  void within(MatrixView<Id> probes, double limit, RangeLists& found) override {
    search_.within(probes, limit, found);
  }
  KnnReport report() override { return search_.report(); }

 private:
  const BaseLists& lists_;
  ListSearch search_;
};

Neighbors BaseLists::search(std::span<const Id> rows, double& probes,
                            const Progress& progress) const {
  const std::int64_t k = options_.neighbors, count = std::ssize(rows);
  Neighbors out{Matrix<Id>::unset(count, k), Matrix<float>::unset(count, k)};
  const std::vector<SearchSegment> segments = live_segments(*state_);
  for (std::int64_t begin = 0; begin < count; begin += batch_) {
    const std::int64_t end = std::min(count, begin + batch_);
    const std::span<const Id> some = rows.subspan(begin, end - begin);
    if (in_files()) {
      std::vector<char> own(lists());
      for (const Id row : some) own[list_of(row)] = 1;
      read_ahead(own);
    }
    const AnyMatrix queries = vectors_of(some);
    const KnnOptions options{
        .metric = options_.metric,
        .threads = options_.threads,
        .progress = [&](std::string_view stage, double fraction) {
          return !progress || progress(stage, (static_cast<double>(begin) +
                                               fraction * static_cast<double>(end - begin)) /
                                                  static_cast<double>(count));
        }};
    const SearchRequest request(SearchKind::nearest, segments, queries.view(), k, options,
                                Reuse::expected);
    ReadingAhead in_lists(*this, request);
    ListProbing search(*state_, request, in_lists);
    if (certify_) {
      search.probe(std::min(first_probes, lists()));
      search.certify(true);
    } else {
      search.probe_by(point_.rule, search.lists_near(point_.rule.lists));
    }
    probes += search.report().lists.probes * static_cast<double>(end - begin);
    const Neighbors found =
        rounded(search.found(), options_.metric, end - begin, k, options_.threads);
    std::copy_n(found.ids.data(), (end - begin) * k, out.ids.row(begin));
    std::copy_n(found.distances.data(), (end - begin) * k, out.distances.row(begin));
  }
  return out;
}

}  // namespace knear::detail
