// A search of all shards for all queries: cut into parts, one for each shard and each replica's
// queries, which run at the same time; what becomes of their answers and reports; and all shards as
// one index.
#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/index/shards/shards.hpp"
#include "knear/knn/device/device_grid.hpp"
#include "knear/knn/near_queries.hpp"
#include "knear/knn/search/joined_reports.hpp"
#include "knear/knn/search/range_search.hpp"
#include "knear/knn/search/report_builder.hpp"
#include "knear/knn/search/search.hpp"
#include "knear/knn/search/search_position.hpp"
#include "knear/knn/search/search_request.hpp"

namespace knear::detail {
namespace {

// Fewer queries are not divided further: kernels score twelve side by side.
constexpr std::int64_t least_queries_of_replica = 48;

// Throws InvalidArgument where a recall cannot be told from that of each shard by itself.
void check_recall_of_parts(const Shard& like) {
  if (like.index->shape.codes && !like.index->shape.keeps_vectors())
    throw InvalidArgument(
        "recall below 1 is known of all shards of an index {} together, of which some are missing: "
        "codes of one are compared with those of others; probes says how many lists are searched",
        like.index->shape.description());
}

// Throws an error about a file again, with the name of the shard before it.
[[noreturn]] void rethrow_named(const std::string& name) {
  try {
    throw;
  } catch (const CorruptFile& error) {
    throw CorruptFile("shard {}: {}", name, error.what());
  } catch (const IoError& error) {
    throw IoError(error.cause(), "shard {}: {}", name, error.what());
  }
}

// What shards answered to the queries begin, ..., end - 1, in the order in which they were divided
// (ShardSearch::query).
template <class Found>
struct Slice {
  std::int64_t begin = 0, end = 0;
  std::vector<Found> found;  // of each shard that was searched
  KnnReport report;
};

// One search: the parts that it has, and what is left out of it.
class ShardSearch {
 public:
  ShardSearch(const Shards& shards, AnyMatrixView queries, const SearchOptions& options,
              ReplicaSpeeds& speeds)
      : shards_(shards),
        queries_(queries),
        divided_(queries),
        options_(options),
        speeds_(speeds),
        threads_(resolve_threads(options.threads)),
        devices_(parse_devices(options.device)),
        groups_(threads_ > 1 ? cpu_groups() : std::vector<CpuSet>{}) {
    // Each shard would name the GPUs that it has.
    if (devices_.several() && shards.any().index->shape.has_graph())
      check_processor(options.device, "a search of a graph");
    if (!options.method.partial_reduce.aggregate && shards.all.size() > 1)
      throw InvalidArgument(
          "aggregate is off, but what shards find is merged into the k nearest of all");
    if (const std::int64_t logical = options.method.partial_reduce.logical_rows;
        options.method.kind == Method::partial_reduce && logical != 0 &&
        (logical < shards.size || logical > (std::int64_t{1} << 40)))
      throw InvalidArgument(
          "logical_rows must be between the {} rows that there are and 2^40, but is {}",
          shards.size, logical);
    for (const Shard& shard : shards.all)
      if (shard.index && shard.rows > 0) searched_.push_back(&shard);
    if (options.method.recall.value_or(1) < 1 && searched_.size() > 1 && !shards.one)
      check_recall_of_parts(*searched_.front());
    if (searched_.empty()) searched_.push_back(&shards.any());
    divide_filter();
    failed_.resize(searched_.size());
  }

  int threads() const { return threads_; }
  // The number of the query that is the place-th of those that were divided between replicas.
  std::int64_t query(std::int64_t place) const { return order_.empty() ? place : order_[place]; }

  // Calls one(index, queries, options, report) for each shard and each replica's queries.
  template <class Found, class One>
  std::vector<Slice<Found>> run(bool wants_report, One one) {
    const std::int64_t count = std::ssize(searched_), replicas = replicas_used();
    if (replicas > 1) {  // a query that is wrong has the number that the caller knows
      const IndexImpl& like = *searched_.front()->index;
      like.check_columns("queries", queries_);
      find_value_range(queries_, like.shape.metric, "queries", threads_);
      if (like.shape.lists > 0 && options_.memory == 0) put_near_together();
    }
    const std::vector<std::int64_t> begin = speeds_.split(queries_.rows(), replicas);
    std::vector<Slice<Found>> slices(replicas);
    std::vector<std::vector<KnnReport>> reports(slices.size());
    for (std::size_t r = 0; r < slices.size(); ++r) {
      slices[r].begin = begin[r], slices[r].end = begin[r + 1];
      slices[r].found.resize(searched_.size()), reports[r].resize(searched_.size());
    }
    const std::int64_t parts = count * replicas;
    const int workers = static_cast<int>(std::min<std::int64_t>(threads_, parts));
    std::vector<double> ends(parts);
    if (are_placed()) get_ready_for_run_on();
    SharedProgress progress(options_.progress, parts);
    const Stopwatch time;
    parallel_for(workers, parts, [&](std::int64_t part) {
      const auto r = static_cast<std::size_t>(part / count),
                 s = static_cast<std::size_t>(part % count);
      SearchOptions options = options_of(s, workers, part);
      options.progress = progress.of(part);
      const auto search = [&] {
        slices[r].found[s] = one(*searched_[s]->index, divided_.rows(begin[r], begin[r + 1]),
                                 options, wants_report ? &reports[r][s] : nullptr);
      };
      try {
        // Next to where append() has put the rows of the shard.
        const std::int64_t all = std::ssize(shards_.all), shard = searched_[s] - shards_.all.data();
        if (are_placed() && workers > 1)
          run_on(cpus_of_part(groups_, shard * replicas + part / count, all * replicas), search);
        else
          search();
      } catch (const CorruptFile& error) {
        leave_out(s, error.what());
      } catch (const IoError& error) {
        leave_out(s, error.what());
      }
      ends[part] = time.seconds();
    });
    // All of them at work from the begin on.
    if (workers == parts && replicas > 1 && replicas == speeds_.replicas()) {
      std::vector<double> seconds;
      for (std::int64_t r = 0; r < replicas; ++r)
        seconds.push_back(
            *std::max_element(ends.begin() + r * count, ends.begin() + (r + 1) * count));
      speeds_.note(begin, seconds);
    }
    drop_failed(slices, reports);
    if (wants_report)
      for (std::size_t r = 0; r < slices.size(); ++r) {
        slices[r].report = std::move(reports[r].front());
        for (std::size_t s = 1; s < reports[r].size(); ++s)
          add_shard(slices[r].report, reports[r][s]);
      }
    return slices;
  }

  // The report of all slices, but for the time. merge_seconds and merge_bytes: what putting their
  // answers together took.
  template <class Found>
  KnnReport report(const std::vector<Slice<Found>>& slices, double merge_seconds,
                   std::int64_t merge_bytes) const {
    const std::int64_t queries = queries_.rows();
    KnnReport out =
        slices.size() == 1 ? slices[0].report : begin_queries(slices[0].report, queries);
    bool told = tells_certified(slices[0].report);
    for (std::size_t r = 1; r < slices.size(); ++r) {
      told &= tells_certified(slices[r].report);
      add_queries(out, slices[r].report, slices[r].begin, queries);
    }
    out.threads = threads_, out.version = shards_.version;
    out.memory_bytes += together_.rows() * together_.cols() * size_of(together_.type()) +
                        std::ssize(order_) * std::int64_t{sizeof(std::int64_t)} + merge_bytes;
    if (devices_.several()) out.device.name = options_.device;
    out.shards = {
        .count = parts_of(slices),
        .replicas = std::max<std::int64_t>(out.shards.replicas, std::ssize(slices)),
        .merge_seconds = slices.size() > 1 || slices[0].found.size() > 1 ? merge_seconds : 0};
    std::int64_t rows = 0;
    for (std::size_t s = 0; s < searched_.size(); ++s)
      if (failed_[s].empty()) rows += searched_[s]->rows;
    set_rows(out, rows, queries_.cols());
    const bool whole = !note_unsearched(out);
    PromiseReport promise = whole ? std::move(out.promise) : no_promise();
    if (!told) promise.certified_queries = 0, promise.uncertified.clear();
    for (std::int64_t& q : promise.uncertified) q = query(q);
    std::sort(promise.uncertified.begin(), promise.uncertified.end());
    out.promise = std::move(promise);
    return out;
  }

  // How many shards were searched.
  template <class Found>
  static std::int64_t parts_of(const std::vector<Slice<Found>>& slices) {
    return std::ssize(slices[0].found);
  }

 private:
  // Whether parts stay on groups of processors.
  bool are_placed() const { return groups_.size() > 1; }

  // Queries are divided between groups of processors, where no answer depends on the batch. In one
  // group threads share all queries: divided, 10,000 of a flat index took a seventh longer.
  std::int64_t replicas_used() const {
    const SearchMethod& method = options_.method;
    if (!are_placed() || devices_.several()) return 1;
    if (method.recall.value_or(1) < 1 || method.kind == Method::partial_reduce) return 1;
    const std::int64_t enough = queries_.rows() / least_queries_of_replica;
    return std::clamp<std::int64_t>(std::min<std::int64_t>(enough, threads_), 1,
                                    speeds_.replicas());
  }

  // Each replica gets queries that probe the same inverted lists, of which each is then gone over
  // for as many of them as if they were not divided. Takes a copy of the queries, so not where
  // memory is limited.
  void put_near_together() {
    order_ = order_of_near(queries_, threads_);
    together_ = copies_of(queries_, order_);
    divided_ = together_.view();
  }

  // Of several GPUs those that have a shard by itself, as all shards together would give them.
  Devices devices_of(std::int64_t shard) const {
    const DeviceGrid grid(devices_, std::ssize(shards_.all));
    Devices out;
    for (std::int64_t r = 0; r < grid.replicas(); ++r)
      out.gpus.push_back(grid.gpu(r, grid.column_of(shard)));
    return out;
  }

  SearchOptions options_of(std::size_t shard, int workers, std::int64_t part) const {
    SearchOptions out = options_;
    // Those that are left over go to the first parts.
    out.threads = threads_ / workers + (part < threads_ % workers);
    if (out.memory > 0) out.memory = std::max<std::int64_t>(1, out.memory / workers);
    if (!filters_.empty()) out.filter = filters_[shard];
    if (devices_.several())
      out.device = words_of(devices_of(searched_[shard] - shards_.all.data()));
    // The base is a random part of the logical rows, but a shard is no random part of the base: all
    // neighbours that are in the base may be in one shard.
    if (std::int64_t& logical = out.method.partial_reduce.logical_rows; logical > 0) {
      const std::int64_t rows = searched_[shard]->rows;
      if (shards_.size > 0)
        logical = static_cast<std::int64_t>(static_cast<double>(logical) /
                                            static_cast<double>(shards_.size) *
                                            static_cast<double>(rows));
      logical = std::max(logical, rows);
    }
    return out;
  }

  // A list of ids is one for each shard; bits mean the same everywhere.
  void divide_filter() {
    check_bits(options_.filter, shards_.next_id);
    if (!options_.filter.list()) return;
    const bool whole = shards_.size == shards_.next_id;
    const IdFilter quick =
        whole ? quick_filter(shards_.size, shards_.next_id, options_.filter) : options_.filter;
    if (!quick.list()) {
      filters_.assign(searched_.size(), quick);
      return;
    }
    std::vector<std::vector<Id>> lists(searched_.size());
    for (const Id id : *quick.list()) {
      const auto holder = std::find_if(states().begin(), states().end(),
                                       [&](const auto& state) { return state->find(id).row >= 0; });
      if (holder != states().end())
        lists[holder - states().begin()].push_back(id);
      else if (!is_partial())
        throw InvalidArgument("filter holds id {}, which the index does not hold", id);
    }
    for (const auto& list : lists) filters_.push_back(IdFilter::of_ids(list));
  }

  bool is_partial() const {
    return std::any_of(shards_.all.begin(), shards_.all.end(),
                       [](const Shard& shard) { return !shard.index; });
  }

  const std::vector<std::shared_ptr<const State>>& states() {
    if (states_.empty())
      for (const Shard* shard : searched_) states_.push_back(shard->state());
    return states_;
  }

  // In a handler: that a shard could not be searched.
  void leave_out(std::size_t shard, const char* why) {
    if (shards_.all.size() == 1) throw;  // of an index that is not in shards
    try {
      rethrow_named(searched_[shard]->name);
    } catch (...) {
      if (!shards_.allow_partial) throw;
      std::lock_guard lock(mutex_);
      failed_[shard] = why;
      failure_ = std::current_exception();
    }
  }

  template <class Found>
  void drop_failed(std::vector<Slice<Found>>& slices,
                   std::vector<std::vector<KnnReport>>& reports) const {
    std::size_t to = 0;
    for (std::size_t s = 0; s < failed_.size(); ++s) {
      if (!failed_[s].empty()) continue;
      for (std::size_t r = 0; r < slices.size() && to < s; ++r) {
        slices[r].found[to] = std::move(slices[r].found[s]);
        reports[r][to] = std::move(reports[r][s]);
      }
      ++to;
    }
    if (to == 0) std::rethrow_exception(failure_);
    for (std::size_t r = 0; r < slices.size(); ++r)
      slices[r].found.resize(to), reports[r].resize(to);
  }

  // Says which rows were not searched; returns whether there are any.
  bool note_unsearched(KnnReport& out) const {
    std::string why;
    const auto add = [&](const Shard& shard, const std::string& reason) {
      out.shards.unsearched_rows += shard.rows;
      out.shards.unsearched_shards.push_back(shard.name);
      if (why.empty()) why = reason;
    };
    for (const Shard& shard : shards_.all) {
      if (!shard.index) add(shard, shard.why_missing);
      for (std::size_t s = 0; s < failed_.size(); ++s)
        if (searched_[s] == &shard && !failed_[s].empty()) add(shard, failed_[s]);
    }
    const std::vector<std::string>& names = out.shards.unsearched_shards;
    if (names.empty()) return false;
    const std::int64_t rows = out.shards.unsearched_rows;
    add_note(out.note, fmt::format("{} of {} rows were not searched, those of shard{} {}: {}", rows,
                                   out.rows + rows, names.size() > 1 ? "s" : "",
                                   fmt::join(names, ", "), why));
    return true;
  }

  const Shards& shards_;
  const AnyMatrixView queries_;
  AnyMatrixView divided_;            // as they are divided between replicas
  std::vector<std::int64_t> order_;  // their numbers; empty: as they came
  AnyMatrix together_;               // copies in this order
  const SearchOptions& options_;
  ReplicaSpeeds& speeds_;
  const int threads_;
  const Devices devices_;
  const std::vector<CpuSet> groups_;
  std::vector<const Shard*> searched_;
  std::vector<std::shared_ptr<const State>> states_;
  std::vector<IdFilter> filters_;  // of each of them; empty: that of the options
  std::mutex mutex_;               // of what follows, while parts run
  std::vector<std::string> failed_;
  std::exception_ptr failure_;
};

// Whether a search goes over all shards as one index. In one group of processors that takes less
// time than searching each by itself: queries are packed and lists ordered once, and thresholds go
// on from shard to shard. What is promised of a recall is known of the whole. Several GPUs are
// given their shards beneath that (knn/device/device_grid.hpp), whatever the groups.
bool goes_as_one(const Shards& shards, const SearchOptions& options) {
  const SearchMethod& method = options.method;
  if (!shards.one || !method.partial_reduce.aggregate) return false;
  const bool recall = method.recall.value_or(1) < 1;
  const bool together = parse_devices(options.device).several() || cpu_groups().size() == 1;
  if (shards.any().index->shape.learns()) return recall || together;
  const bool exact = method.kind == Method::automatic || method.kind == Method::exact;
  return exact && !recall && together;
}

// What search(index) finds in all shards as one index, where they are searched so. Nothing
// otherwise, and after an error of a file, which is then told by shard.
template <class Found, class Search>
std::optional<Found> search_as_one(const Shards& shards, const SearchOptions& options,
                                   Search search) {
  if (!goes_as_one(shards, options)) return {};
  try {
    Found out = search(shards.one->get(resolve_threads(options.threads)));
    shards.one->share_recall();
    return out;
  } catch (const CorruptFile&) {
  } catch (const IoError&) {
  }
  return {};
}

// Completes the report of that search, but for the time.
void set_shards_as_one(KnnReport& report, const Shards& shards, std::int64_t dim) {
  set_rows(report, shards.size, dim), report.version = shards.version;
  const auto searched = std::count_if(shards.all.begin(), shards.all.end(),
                                      [](const Shard& shard) { return shard.rows > 0; });
  report.shards.count = std::max<std::int64_t>(1, searched);
  report.shards.replicas = std::max<std::int64_t>(1, report.shards.replicas);  // of several GPUs
}

}  // namespace

const IndexImpl& ShardsAsOne::get(int threads) const {
  std::lock_guard lock(making_);
  if (index_) return *index_;
  State whole = *parts_.front();
  whole.shards = std::ssize(parts_);
  for (std::size_t s = 1; s < parts_.size(); ++s) {
    const State& part = *parts_[s];
    for (Segment segment : part.segments) {
      segment.shard = static_cast<std::int64_t>(s);
      whole.segments.push_back(std::move(segment));
    }
    whole.size += part.size, whole.changed_rows += part.changed_rows;
    whole.audit_epoch += part.audit_epoch;
  }
  if (whole.known) {
    std::vector<std::shared_ptr<const KnownNeighbors>> known;
    for (const auto& part : parts_) known.push_back(part->known);
    whole.known = KnownNeighbors::together(
        known, [&](std::size_t part, Id id) { return parts_[part]->find(id).row >= 0; }, threads);
  }
  if (whole.recall) {
    known_.clear();  // what a process that was forked meanwhile has left
    for (const auto& part : parts_)
      known_.push_back(part->recall ? part->recall->all() : decltype(part->recall->all()){});
    const auto knows = [](const auto& curves, const RecallCurve& curve) {
      return std::any_of(curves.begin(), curves.end(),
                         [&](const auto& known) { return *known == curve; });
    };
    whole.recall = std::make_shared<RecallCurves>(whole.size);
    for (const auto& curve : known_.front())
      if (std::all_of(known_.begin(), known_.end(),
                      [&](const auto& curves) { return knows(curves, *curve); }))
        whole.recall->set(*curve);
    if (parts_.front()->recall) whole.recall->take_learned(*parts_.front()->recall);
  }
  const auto audits = whole.audits;
  auto made = independent_copy(shape_, std::move(whole));
  made->keep_audits(audits);  // not a copy of it
  index_ = std::move(made);
  return *index_;
}

void ShardsAsOne::share_recall() const {
  std::lock_guard lock(making_);
  if (known_.empty()) return;
  const auto recall = index_->state()->recall;
  for (const auto& curve : recall->all())
    for (std::size_t s = 0; s < parts_.size(); ++s) {
      if (!parts_[s]->recall) continue;
      // Not what it was told since, by tune().
      const auto now = parts_[s]->recall->find(curve->k);
      const auto& before = known_[s];
      if (!now || (*now != *curve && std::find(before.begin(), before.end(), now) != before.end()))
        parts_[s]->recall->set(*curve);
    }
  // The first shard keeps it for the state after the next change.
  if (parts_.front()->recall) parts_.front()->recall->take_learned(*recall);
}

void put_together(Shards& shards) {
  shards.one = nullptr;
  const auto missing = [](const Shard& shard) { return !shard.index; };
  if (shards.all.size() < 2 || std::any_of(shards.all.begin(), shards.all.end(), missing)) return;
  const IndexImpl& first = *shards.any().index;
  if (first.shape.has_graph() || !first.is_trained(*first.state())) return;
  std::vector<std::shared_ptr<const State>> parts;
  for (const Shard& shard : shards.all) parts.push_back(shard.state());
  shards.one = std::make_shared<const ShardsAsOne>(first.shape, std::move(parts));
}

const Shard& Shards::any() const {
  for (const Shard& shard : all)
    if (shard.index) return shard;
  throw CorruptFile("no shard is there");  // which load_shards() has ruled out
}

const Shard* Shards::find(Id id) const {
  for (const Shard& shard : all)
    if (shard.index && shard.state()->find(id).row >= 0) return &shard;
  return nullptr;
}

ExactNeighbors nearest(const Shards& shards, AnyMatrixView queries, std::int64_t k,
                       const SearchOptions& options, ReplicaSpeeds& speeds, KnnReport* report) {
  if (auto near = search_as_one<ExactNeighbors>(shards, options, [&](const IndexImpl& all) {
        return all.nearest(*all.state(), queries, k, options, report);
      })) {
    if (report) set_shards_as_one(*report, shards, queries.cols());
    return std::move(*near);
  }
  ShardSearch search(shards, queries, options, speeds);
  auto slices = search.run<ExactNeighbors>(
      report != nullptr, [&](const IndexImpl& index, AnyMatrixView some,
                             const SearchOptions& part_options, KnnReport* part_report) {
        return index.nearest(*index.state(), some, k, part_options, part_report);
      });
  const Stopwatch time;
  for (auto& slice : slices)
    for (std::size_t s = 1; s < slice.found.size(); ++s) {
      ExactNeighbors &first = slice.found[0], &more = slice.found[s];
      if (first.columns() == 0)  // of a shard with nothing to find, which has no rows either
        first = std::move(more);
      else if (more.columns() > 0)
        merge(first, more, k, search.threads());
    }
  ExactNeighbors all = std::move(slices[0].found[0]);
  const std::int64_t columns = all.columns(), parts = search.parts_of(slices);
  if (slices.size() > 1) {
    const ExactNeighbors first = std::exchange(all, ExactNeighbors(queries.rows(), columns));
    for (std::size_t r = 0; r < slices.size(); ++r) {
      const ExactNeighbors& from = r == 0 ? first : slices[r].found[0];
      for (std::int64_t i = 0; i < from.keys.rows(); ++i) {
        const std::int64_t q = search.query(slices[r].begin + i);
        std::copy_n(from.keys.row(i), columns, all.keys.row(q));
        std::copy_n(from.ids.row(i), columns, all.ids.row(q));
      }
    }
  }
  if (!report) return all;
  const bool merged = slices.size() > 1 || parts > 1;
  *report =
      search.report(slices, time.seconds(), merged ? queries.rows() * columns * 16 * parts : 0);
  report->short_queries = 0;
  if (report->lists.count > 0 || report->codes.parts > 0 || report->graph.ef > 0)
    for (std::int64_t q = 0; q < queries.rows(); ++q)
      report->short_queries += columns < k || all.ids.row(q)[k - 1] == no_id;
  return all;
}

RangeNeighbors within(const Shards& shards, AnyMatrixView queries, double radius,
                      const SearchOptions& options, ReplicaSpeeds& speeds, KnnReport* report) {
  const auto sorted = [&](RangeLists& found) {
    return sorted_neighbors(found, shards.any().index->shape.metric,
                            resolve_threads(options.threads));
  };
  if (auto found = search_as_one<RangeLists>(shards, options, [&](const IndexImpl& all) {
        return all.within(*all.state(), queries, radius, options, report);
      })) {
    const Stopwatch time;
    RangeNeighbors out = sorted(*found);
    if (!report) return out;
    set_shards_as_one(*report, shards, queries.cols());
    report->shards.merge_seconds = time.seconds();
    return out;
  }
  ShardSearch search(shards, queries, options, speeds);
  auto slices = search.run<RangeLists>(
      report != nullptr, [&](const IndexImpl& index, AnyMatrixView some,
                             const SearchOptions& part_options, KnnReport* part_report) {
        return index.within(*index.state(), some, radius, part_options, part_report);
      });
  const Stopwatch time;
  RangeLists all(queries.rows());
  for (auto& slice : slices)
    for (RangeLists& found : slice.found)
      for (std::size_t i = 0; i < found.size(); ++i) {
        auto& to = all[search.query(slice.begin + static_cast<std::int64_t>(i))];
        if (to.empty())
          to = std::move(found[i]);
        else
          to.insert(to.end(), found[i].begin(), found[i].end());
      }
  RangeNeighbors out = sorted(all);
  if (report) *report = search.report(slices, time.seconds(), 0);
  return out;
}

}  // namespace knear::detail
