#include "knear/knn/part_search.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/core/threads.hpp"
#include "knear/cost/kept_peaks.hpp"
#include "knear/cost/plan.hpp"
#include "knear/distance/reference.hpp"

namespace knear::detail {
namespace {

// What a join of a base with itself takes, of a search for its rows by the same prefix.
constexpr double joining_share = 0.65;

constexpr std::int64_t max_chunk_rows = std::int64_t{1} << 30;  // slots are 32-bit numbers

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Whether exact integer arithmetic holds both sides: 8 bits each, and every difference that the
// kernel's int32 test forms (scan/kernels.hpp) within 31 bits.
bool integer_fits(Metric metric, const DataSurvey& base, const DataSurvey& queries,
                  std::int64_t dim) {
  if (metric == Metric::cosine || !base.integer || !queries.integer) return false;
  for (const DataSurvey& side : {base, queries})
    if (side.low < 0 && side.high > 127) return false;
  const std::int64_t low = std::min(base.low, queries.low),
                     high = std::max(base.high, queries.high);
  const std::int64_t reach = std::max(std::abs(low), std::abs(high)), width = high - low;
  const std::int64_t largest = metric == Metric::l2
                                   ? dim * std::max(width * width, reach * reach) / 2 + 1
                                   : 2 * dim * reach * reach;
  return largest < (std::int64_t{1} << 31) - 65536;
}

// The ladder of first passes for data that is not whole: each is tried where the one before let
// too much through. Without the dot-product instructions all run at the rate of fp32, whose bound
// is the tightest. Where even that is useless, measuring every row in order is cheaper than
// measuring most of them as they come.
std::vector<FirstPass> ladder(Isa isa) {
  if (isa == Isa::avx512_vnni)
    return {FirstPass::int8, FirstPass::int16, FirstPass::fp32, FirstPass::direct};
  return {FirstPass::fp32, FirstPass::direct};
}

// Everything that one search decides and counts.
class Search {
 public:
  Search(std::span<const SearchPart> parts, AnyMatrixView queries, std::int64_t k,
         const KnnOptions& options, bool once, std::int64_t already = 0)
      : queries_(queries), options_(options), once_(once), k_asked_(k) {
    isa_ = active_isa();
    threads_ = resolve_threads(options.threads);
    peaks_ = planning_peaks(isa_, threads_);
    found_ = survey(queries, "queries", threads_);
    for (const SearchPart& part : parts) {
      const std::int64_t rows = part.rows->base.rows();
      const std::int64_t allowed =
          part.live ? part.live->count()
          : part.filter.everything()
              ? rows
              : part.filter.count(part.filter_offset, part.filter_offset + rows);
      rows_ += part.live ? allowed : rows, allowed_rows_ += allowed;
      if (allowed == 0) continue;
      const bool integer =
          integer_fits(options.metric, part.rows->found, found_, part.rows->base.cols());
      if (options.first_pass == FirstPass::integer && !integer)
        throw InvalidArgument(
            "first_pass is integer, but that needs l2 or ip and whole numbers of 8 bits on both "
            "sides");
      if (options.first_pass == FirstPass::prefix &&
          (options.metric == Metric::ip || queries.cols() < least_prefix_dim))
        throw InvalidArgument(
            "first_pass is prefix, but that needs l2 or cosine and {} columns, not {} and {}",
            least_prefix_dim, name_of(options.metric), queries.cols());
      parts_.push_back({part, allowed, integer});
    }
    const KnnChoices& choices = options.choices;
    if (choices.group != 0 && choices.group != 1 && choices.group != 4 && choices.group != 12)
      throw InvalidArgument("choices name a group of {}, but it must be 1, 4 or 12", choices.group);
    if (choices.parts < 0 || choices.parts > 4096)
      throw InvalidArgument("choices name {} parts, but there must be 1 to 4096", choices.parts);
    if (choices.columns < 0 || choices.columns > 128 || choices.columns % 8 != 0)
      throw InvalidArgument("choices name {} columns, but it must be a multiple of 8 up to 128",
                            choices.columns);
    if (choices.tile < 0 || choices.tile > most_tile)
      throw InvalidArgument("choices name a tile of {} KiB, but there must be 1 to {}",
                            choices.tile, most_tile);
    if (options.first_pass == FirstPass::direct &&
        (choices.group > 0 || choices.parts > 0 || choices.tile > 0 || !choices.guess))
      throw InvalidArgument(
          "choices name group, parts, tile or guess=off, but first_pass is direct, which has none "
          "of these");
    if (choices.refine.value_or(false)) {
      if (options.first_pass != FirstPass::automatic && options.first_pass != FirstPass::int8 &&
          options.first_pass != FirstPass::prefix)
        throw InvalidArgument("choices say refine=on, but first_pass is {}, not int8 or prefix",
                              name_of(options.first_pass));
      if (options.memory > 0)
        throw InvalidArgument("choices say refine=on, but memory is limited to {} bytes",
                              options.memory);
      if (options.first_pass != FirstPass::int8 && !parts_.empty() &&
          std::all_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.integer; }))
        throw InvalidArgument(
            "choices say refine=on, but whole numbers of 8 bits are exact without");
    }
    if (choices.clusters < 0)
      throw InvalidArgument("choices name {} clusters, but there must be 1 at least",
                            choices.clusters);
    if ((choices.columns > 0 || choices.clusters > 0) && options.first_pass != FirstPass::prefix)
      throw InvalidArgument(
          "choices name columns or clusters of a prefix, but first_pass is {}, not prefix",
          name_of(options.first_pass));
    if (choices.columns > queries.cols())
      throw InvalidArgument("choices name {} columns of a prefix, but there are only {}",
                            choices.columns, queries.cols());
    // From the largest, whose threshold serves the others.
    std::stable_sort(parts_.begin(), parts_.end(),
                     [](const Part& a, const Part& b) { return a.allowed > b.allowed; });
    k_ = std::min(k, already + allowed_rows_);
  }

  // All rows whose key is at most `limit`.
  RangeNeighbors run_range(double limit, KnnReport* report) {
    const auto start = Clock::now();
    if (options_.first_pass == FirstPass::prefix)
      throw InvalidArgument("first_pass is prefix, but a range search has no such pass");
    if (!options_.choices.guess)
      throw InvalidArgument("choices say guess=off, but a range search guesses no threshold");
    if (options_.choices.refine)
      throw InvalidArgument("choices say refine={}, but a range search has no such step",
                            *options_.choices.refine ? "on" : "off");
    RangeLists lists(static_cast<std::size_t>(queries_.rows()));
    for_each_chunk([&](const BaseRows& rows, std::int64_t begin, std::int64_t packing) {
      // 16 bytes a pair, in two growing lists at once for a while; in the end 12 more in the
      // answer.
      const std::int64_t memory = options_.memory > 0 ? options_.memory : machine_memory();
      const std::int64_t most = std::max<std::int64_t>(0, (memory - other_bytes() - packing) / 64);
      range_of_rows(rows, begin, limit, most, lists);
    });
    RangeNeighbors out;
    out.begin.assign(1, 0);
    for (const auto& list : lists)
      out.begin.push_back(out.begin.back() + static_cast<std::int64_t>(list.size()));
    out.ids.resize(static_cast<std::size_t>(out.begin.back()));
    out.distances.resize(out.ids.size());
    parallel_for(threads_, queries_.rows(), [&](std::int64_t i) {
      auto& list = lists[static_cast<std::size_t>(i)];
      std::sort(list.begin(), list.end());
      std::size_t place = static_cast<std::size_t>(out.begin[static_cast<std::size_t>(i)]);
      for (const auto& [key, id] : list) {
        out.ids[place] = id;
        out.distances[place++] = static_cast<float>(distance_of_key(options_.metric, key));
      }
      list = {};
    });
    if (report) {
      fill(*report, seconds_since(start));
      report->k = 0;
      report->memory_bytes += 64 * out.begin.back();
    }
    return out;
  }

  Neighbors run(KnnReport* report) {
    ExactLists all;
    run_from(all, report);
    return pad(all);
  }

  // Of each row of the one part, the k_asked - 1 nearest others; the queries are its rows.
  Neighbors run_self(KnnReport* report) {
    self_ = true;
    ExactLists all;
    run_from(all, report);
    const std::int64_t k = k_asked_ - 1;
    if (report) report->k = k;
    Neighbors out{Matrix<Id>(queries_.rows(), k), Matrix<float>(queries_.rows(), k)};
    each_query([&](std::int64_t row) {
      std::int64_t from = 0;
      for (std::int64_t j = 0; j < k; ++j, ++from) {
        if (from < all.keys.cols() && all.ids.row(row)[from] == row) ++from;
        const bool has = from < all.keys.cols() && all.ids.row(row)[from] != no_id;
        out.ids.row(row)[j] = has ? all.ids.row(row)[from] : no_id;
        out.distances.row(row)[j] =
            has ? static_cast<float>(distance_of_key(options_.metric, all.keys.row(row)[from]))
                : no_distance(options_.metric);
      }
    });
    return out;
  }

  // `all`: the best of rows elsewhere, as many columns as were announced; takes in what is found.
  void run_from(ExactLists& all, KnnReport* report) {
    const auto start = Clock::now();
    const std::int64_t q = queries_.rows();
    bool first = all.keys.cols() == 0;
    const auto set_bars = [&] {
      if (all.keys.cols() < k_ || k_ == 0) return;
      bars_.resize(static_cast<std::size_t>(q));
      for (std::int64_t i = 0; i < q; ++i)
        bars_[static_cast<std::size_t>(i)] = all.keys.row(i)[k_ - 1];
    };
    set_bars();
    for_each_chunk([&](const BaseRows& rows, std::int64_t begin, std::int64_t) {
      const std::int64_t width = std::min(k_, count_);
      ExactLists found{Matrix<double>(q, width), Matrix<Id>(q, width)};
      const RowIds ids = part_->part.ids.from(begin);
      search_rows(rows, begin, found);
      if (ids.ids || ids.first != 0)
        each_query([&](std::int64_t i) {
          for (std::int64_t j = 0; j < width; ++j)
            if (found.ids.row(i)[j] != no_id) found.ids.row(i)[j] = ids(found.ids.row(i)[j]);
        });
      if (std::exchange(first, false))
        all = std::move(found);
      else
        merge(all, found);
      set_bars();
    });
    if (report) fill(*report, seconds_since(start));
  }

  // Makes and keeps the form of the one part that searches like this one go by; none if that is to
  // measure every row.
  std::optional<FirstPass> prepare() {
    part_ = &parts_.front();
    std::vector<FirstPass> passes = ladder_of(*part_);
    skip_useless(passes, base());
    if (passes.front() == FirstPass::direct) return {};
    prepared().adopt(passes.front(), prepared().packed(passes.front(), base(), {}, true, threads_,
                                                       options_.progress, prepare_seconds_));
    return passes.front();
  }

 private:
  struct Part {
    SearchPart part;
    std::int64_t allowed;
    bool integer;  // whether exact integers hold both sides
  };
  PreparedRows& prepared() const { return *part_->part.rows; }
  const BaseRows& base() const { return part_->part.rows->base; }

  // Calls f(rows, begin, bytes of packing them) for each part, or chunks of it where memory holds
  // no more; rows none of which is allowed are passed over. part_, whole_, count_ and subset_ say
  // what is at hand.
  template <class F>
  void for_each_chunk(F f) {
    if (queries_.rows() == 0) return;
    for (const Part& part : parts_) {
      part_ = &part;
      const std::int64_t n = base().rows(), chunk = chunk_rows();
      whole_ = chunk >= n;
      for (std::int64_t begin = 0; begin < n; begin += chunk) {
        const std::int64_t end = std::min(n, begin + chunk);
        ++chunks_;
        subset_.clear();
        count_ = allowed_between(begin, end);
        if (count_ > 0) f(base().part(begin, end), begin, packing_bytes(end - begin, first_pass()));
      }
    }
  }

  // How many rows of the part at hand are allowed.
  std::int64_t allowed_between(std::int64_t begin, std::int64_t end) const {
    const SearchPart& part = part_->part;
    if (part.live) return part.live->count(begin, end);
    if (part.filter.everything()) return end - begin;
    return part.filter.count(part.filter_offset + begin, part.filter_offset + end);
  }

  // Bytes of one chunk's packed rows, with what finding equal rows takes meanwhile.
  std::int64_t packed_bytes(std::int64_t rows, FirstPass pass) const {
    if (pass == FirstPass::direct) return 0;
    if (pass == FirstPass::prefix) return prefix_bytes_for(rows, base().cols());
    if (pass == FirstPass::integer)
      return PackedBase::bytes_for(rows, base().cols(), format_int8, true);
    return PackedBase::bytes_for(rows, base().cols(), format_of(pass), false) + 25 * rows;
  }
  // Of these what a search has to pay for: nothing where an index keeps the form.
  std::int64_t packing_bytes(std::int64_t rows, FirstPass pass) const {
    return prepared().is_adopted(pass) && tile_bytes() == 0 ? 0 : packed_bytes(rows, pass);
  }
  // Bytes of everything else: lists of all queries, buffers and scratch of each thread.
  std::int64_t other_bytes() const {
    const double queries = static_cast<double>(queries_.rows()),
                 dim = static_cast<double>(queries_.cols());
    const double k = static_cast<double>(k_), threads = threads_;
    const double block = std::min(queries, static_cast<double>(queries_in_block(k_)));
    const double per_query = dim * 4 + 256 + (1.5 * static_cast<double>(most_pending()) + 24) * 24;
    // Beside the lists, the prefix of each query and the clusters nearest to it.
    const double prefix = options_.first_pass == FirstPass::prefix ? 256 + 2 * 8 * 16 + 24 : 0;
    const double lists = queries * (k * 48 + static_cast<double>(k_asked_) * 12 + 64 + prefix);
    // Queries as doubles: of a task, or where there are few of them, of each thread.
    const double doubles = std::max(64.0, std::min(queries, 4 * threads));
    // And what selecting and sorting k of them takes.
    const double scratch = threads * (doubles * dim * 8 + 208 * k + (1 << 16));
    return static_cast<std::int64_t>(
        std::min(lists + threads * block * per_query + scratch + (1 << 20), 4e18));
  }
  // Candidates of a query that may wait to be measured.
  std::int64_t most_pending() const { return 4 * k_ + (options_.memory > 0 ? 64 : 4096); }

  // How many rows to prepare at a time: all, or as many as the memory allows.
  std::int64_t chunk_rows() const {
    const std::int64_t n = base().rows();
    std::int64_t rows = std::clamp<std::int64_t>(n, 1, max_chunk_rows);
    if (options_.memory <= 0 || n == 0) return rows;
    const std::int64_t left = options_.memory - other_bytes();
    const FirstPass pass = first_pass();
    if (packing_bytes(rows, pass) <= left) return rows;
    const std::int64_t least = std::min<std::int64_t>(n, 4096);
    const std::int64_t per_thousand = packed_bytes(1024, pass);
    rows = std::min<std::int64_t>(rows, left > 0 ? left / per_thousand * 1024 : 0);
    if (rows < least)
      throw MemoryBudgetError(
          "memory is {} bytes, but this search needs at least {} ({} queries, k = {}, {} columns)",
          options_.memory,
          other_bytes() + std::min(packed_bytes(n, pass), (least + 1023) / 1024 * per_thousand),
          queries_.rows(), k_asked_ - self_, base().cols());
    return rows;
  }

  FirstPass first_pass() const {
    if (options_.first_pass == FirstPass::prefix) return FirstPass::prefix;
    return ladder_of(*part_).front();
  }

  // The first passes that may be tried on a part, in this order, on all coordinates.
  std::vector<FirstPass> ladder_of(const Part& part) const {
    if (options_.first_pass != FirstPass::automatic && options_.first_pass != FirstPass::prefix)
      return {options_.first_pass};
    if (part.integer) return {FirstPass::integer};
    std::vector<FirstPass> passes = ladder(isa_);
    if (options_.choices.refine.value_or(false)) {  // what it refines is 8 bits
      std::erase(passes, FirstPass::int8);
      passes.insert(passes.begin(), FirstPass::int8);
      return passes;
    }
    // A form that an index keeps, from a machine with other instructions say, costs no packing; and
    // those before it were found useless when it was made.
    for (FirstPass pass : {FirstPass::int16, FirstPass::int8})
      if (part.part.rows->is_adopted(pass)) {
        const auto at = std::find(passes.begin(), passes.end(), pass);
        if (at == passes.end())
          passes.insert(passes.begin(), pass);
        else
          passes.erase(passes.begin(), at);
      }
    return passes;
  }

  // Packing costs about as much as measuring a few queries in float64; a k of the size of the base
  // leaves nothing to prune.
  bool direct_pays(std::int64_t rows) const {
    if (options_.first_pass == FirstPass::direct) return true;
    if (options_.first_pass != FirstPass::automatic || kernel_chosen()) return false;
    if (rows < least_packed_rows) return true;
    const bool packed = !once_ || prepared().is_kept(ladder_of(*part_).front());
    return measuring_seconds(rows) < scanning_seconds(rows, 0, packed ? 0 : 1);
  }

  // What to expect of a search of so many rows (cost/plan.hpp), of which `allowed` may be found, 0
  // for all: by the first of the passes, with a part of packing them; and by measuring them all.
  double scanning_seconds(std::int64_t rows, std::int64_t allowed, double packing) const {
    ScanShape shape = scan_shape(rows, queries_.cols(), queries_.rows(), k_, part_->integer,
                                 format_of(ladder_of(*part_).front()));
    shape.allowed = allowed, shape.packing = true;
    const ScanCost cost = predict_scan(shape, peaks_);
    return cost.seconds - (1 - packing) * cost.packing_seconds;
  }
  double measuring_seconds(std::int64_t rows) const {
    ScanShape shape =
        scan_shape(rows, queries_.cols(), queries_.rows(), k_, part_->integer, format_fp32);
    shape.bytes_per_element = static_cast<double>(size_of(base().type()));
    return predict_direct(shape, peaks_).seconds;
  }

  // Choices that measuring every row would leave without effect.
  bool kernel_chosen() const {
    const KnnChoices& choices = options_.choices;
    return choices.group > 0 || choices.parts > 0 || choices.tile > 0 ||
           choices.refine.value_or(false);
  }
  std::int64_t tile_bytes() const { return options_.choices.tile * 1024; }

  // How to search the allowed rows of a chunk.
  enum class Way {
    whole,   // the packed form of all rows; what the filter forbids falls when it is hit
    subset,  // pack the allowed rows for this search
    direct   // measure them
  };

  // The way that is expected to take the least time. A form that later searches find packed counts
  // a twentieth.
  Way way_for(std::int64_t rows, bool kept, bool will_be_kept) const {
    const double whole = scanning_seconds(rows, count_, kept ? 0 : will_be_kept ? 0.05 : 1);
    const double subset = scanning_seconds(count_, 0, 1);
    if (options_.first_pass == FirstPass::automatic && !kernel_chosen() &&
        measuring_seconds(count_) <= std::min(whole, subset))
      return Way::direct;
    return whole <= subset ? Way::whole : Way::subset;
  }

  // What a chunk is searched by.
  struct Choice {
    std::vector<FirstPass> passes;               // in this order, while queries are left
    std::span<const std::uint32_t> packed_rows;  // what is packed, if that is not all
    bool keep = false;                           // the packed form, for later searches
  };

  // Says in `job` which rows are allowed, if not all, or lists them in subset_ if they are packed
  // alone.
  Choice choose(const BaseRows& rows, std::int64_t begin, ScanJob& job) {
    Choice choice;
    const SearchPart& part = part_->part;
    bool directly = direct_pays(count_);
    if (count_ < rows.rows()) {
      if (part.live) {
        job.allowed.live = part.live, job.allowed.live_offset = begin;
      } else {
        job.allowed.filter = &part.filter, job.allowed.offset = part.filter_offset + begin;
      }
      bool packed_alone = false;
      if (!part.live && !directly && options_.first_pass != FirstPass::prefix &&
          !options_.choices.refine.value_or(false)) {
        const bool keep = whole_ && !once_;
        const Way way = way_for(rows.rows(), keep && prepared().is_kept(first_pass()), keep);
        directly = way == Way::direct, packed_alone = way == Way::subset;
      }
      if (packed_alone) {
        list_allowed(job);
        choice.packed_rows = subset_, job.allowed = {};
      }
    }
    choice.keep = whole_ && !once_ && choice.packed_rows.empty() &&
                  (options_.memory <= 0 || parts_.size() == 1);
    std::vector<FirstPass>& passes = choice.passes;
    passes = directly ? std::vector{FirstPass::direct} : ladder_of(*part_);
    const FirstPass first = passes.front();
    if (options_.memory > 0)  // wider codes only where they fit; the first is what chunks fit
      std::erase_if(passes, [&](FirstPass pass) {
        return pass != first && packing_bytes(rows.rows(), pass) + other_bytes() > options_.memory;
      });
    else if (!options_.choices.refine.value_or(false))
      skip_useless(passes, rows);
    return choice;
  }

  // `begin`: the row of the part that is the first of `rows`.
  void search_rows(const BaseRows& rows, std::int64_t begin, ExactLists& out) {
    ScanJob job{queries_, rows,   options_.metric, out.keys.cols(), threads_,
                isa_,     found_, false,           most_pending()};
    job.bars = bars_.empty() ? nullptr : bars_.data();
    apply_choices(job);
    std::vector<std::int64_t> todo(queries_.rows());
    std::iota(todo.begin(), todo.end(), 0);
    const Choice choice = choose(rows, begin, job);
    if (options_.metric != Metric::l2) answer_zero_queries(todo, job.allowed, out);
    const std::vector<FirstPass>& passes = choice.passes;
    if (self_) join(rows, choice, job, todo, out);
    if (const auto plan = prefix_for(rows, choice, job, todo, out))
      search_with_prefix(*plan, rows, choice, job, todo, out);
    if (todo.empty()) return;
    for (std::size_t p = 0; p < passes.size() && !todo.empty(); ++p) {
      if (passes[p] == FirstPass::direct) {
        note_pass(FirstPass::direct, todo.size() * static_cast<std::size_t>(count_));
        list_allowed(job);
        scan_directly(job, subset_, todo, out, stats_, options_.progress);
        return;
      }
      const bool last = p + 1 == passes.size();
      job.may_give_up = !last;
      if (options_.memory > 0 &&
          packing_bytes(rows.rows(), passes[p]) + other_bytes() + prepared().kept_bytes(nullptr) >
              options_.memory)
        prepared().release_all_but(tile_bytes() > 0 ? FirstPass::direct : passes[p]);
      const auto packed = packed_form(passes[p], rows, choice);
      const std::size_t before = todo.size();
      const bool few = std::ssize(todo) < std::int64_t{48} * threads_;
      const double survivors = prepared().seen(FirstPass::int8, k_, few).survivors;
      const auto codes = codes_for(*packed, rows, choice, std::ssize(todo), survivors);
      job.row_codes = codes.get();
      todo = last ? scan(*packed, job, todo, out, stats_, options_.progress)
                  : try_pass(*packed, rows, choice, survivors > 0, job, todo, out);
      job.row_codes = nullptr;
      note_form(*packed, passes[p]);
      note_pass(passes[p], (before - todo.size()) * static_cast<std::size_t>(count_));
      multiply_adds_ += static_cast<double>(before) * static_cast<double>(packed->rows) *
                        static_cast<double>(rows.cols());
      bytes_read_ += static_cast<double>(packed->codes.bytes());
      if (p == 0 && prefix_columns_ == 0)
        fallback_queries_ = std::max(fallback_queries_, std::ssize(todo));
    }
  }

  // Codes of rows for what an 8-bit pass leaves to be measured: those kept, or where so many rows
  // survived it (a query of searches before) that they would have paid for themselves by now,
  // new ones.
  std::shared_ptr<const RowCodes> codes_for(const PackedBase& packed, const BaseRows& rows,
                                            const Choice& choice, std::int64_t queries,
                                            double survivors) {
    const std::optional<bool>& asked = options_.choices.refine;
    if (packed.is_integer || packed.format != format_int8 || !choice.packed_rows.empty() ||
        options_.memory > 0 || !asked.value_or(whole_))
      return nullptr;
    if (whole_)
      if (const auto kept = prepared().kept_row_codes(packed.space)) return kept;
    const std::int64_t dim = base().cols();
    if (!asked) {
      const double spared =
          survivors > 0 ? spared_by_refining(survivors, static_cast<double>(k_), dim, peaks_) *
                              static_cast<double>(queries) / threads_
                        : 0;
      if (!(spared > 0)) return nullptr;
      const double all = once_ ? spared : prepared().spared_by_row_codes(spared);
      if (all < (once_ ? 1.5 : 1.0) * row_codes_seconds(base().rows(), dim, peaks_)) return nullptr;
    }
    const auto codes = prepared().row_codes(packed.space, rows, choice.keep, threads_,
                                            options_.progress, prepare_seconds_);
    if (prepared().kept_row_codes(packed.space) != codes)
      code_bytes_ = std::max(code_bytes_, codes->bytes());
    return codes;
  }

  void apply_choices(ScanJob& job) const {
    job.group = options_.choices.group, job.parts = options_.choices.parts;
    job.may_hope = options_.choices.guess;
    job.may_refine = options_.choices.refine.value_or(true);
    job.must_refine = options_.choices.refine.value_or(false);
    job.by_rows = options_.memory <= 0;
  }
  // A plan as it was asked for.
  PrefixPlan chosen(PrefixPlan plan) const {
    plan.tile_bytes = tile_bytes();
    if (options_.choices.columns > 0) plan.columns = options_.choices.columns;
    if (options_.choices.clusters > 0)
      plan.clusters = std::min(options_.choices.clusters, base().rows());
    return plan;
  }

  SearchShape shape_of(const BaseRows& rows, FirstPass pass, std::int64_t queries) const {
    SearchShape shape{rows.rows(),    rows.cols(),     k_,     queries,
                      part_->integer, format_of(pass), &peaks_};
    const PreparedRows::Seen seen =
        prepared().seen(pass, k_, queries < std::int64_t{48} * threads_);
    shape.hits = seen.hits, shape.survivors = seen.survivors;
    return shape;
  }

  // Whether the queries of `todo` go by a prefix, and by which. To find out, it may answer a few of
  // them without, and takes these out of `todo`.
  std::optional<PrefixPlan> prefix_for(const BaseRows& rows, const Choice& choice, ScanJob& job,
                                       std::vector<std::int64_t>& todo, ExactLists& out) {
    const bool integer = part_->integer;
    if (prepared().no_prefix()) return {};
    const std::int64_t queries = std::ssize(todo);
    SearchShape shape = shape_of(rows, choice.passes.front(), queries);
    const auto made = whole_ ? prepared().kept_prefix(integer) : nullptr;
    const PrefixPlan kept =
        made ? PrefixPlan{made->map.columns(), made->centroids.rows()} : PrefixPlan{};
    if (options_.first_pass == FirstPass::prefix) {
      if (rows.rows() < least_prefix_rows || todo.empty()) return {};
      return chosen(made ? kept : usual_plan(shape));
    }
    if (options_.first_pass != FirstPass::automatic || options_.metric == Metric::ip || !whole_ ||
        !choice.packed_rows.empty() || choice.passes.front() == FirstPass::direct ||
        options_.memory > 0 || rows.rows() < 8192 || rows.cols() < 32 || rows.cols() > 4096 ||
        k_ > rows.rows() / 64 || count_ < rows.rows() / 4)
      return {};
    // Few queries at a time wait for memory instead, and cannot be spared to try a prefix on.
    const bool few = queries < std::int64_t{24} * threads_;
    if (few && once_) return {};
    // Only one is kept: that of the other kind of codes serves the other searches.
    if (!made && prepared().kept_prefix(!integer)) return {};
    double plain = plain_cost(shape).seconds;
    SearchShape trial = shape;
    trial.queries = 192;
    const double before = once_ ? 0 : prepared().searched_without_prefix(0);
    auto cost = prepared().prefix_forecast(integer, k_);
    if (!cost && before + plain >= 3 * study_seconds(shape) + plain_cost(trial).seconds &&
        (!once_ || plain >= making_seconds(shape)))
      cost = few ? try_prefix_on_rows(rows, shape, choice, kept)
                 : try_prefix(rows, shape, choice, job, todo, out, kept);
    if (cost && cost->possible && !cost->refused) {
      shape.go_by(cost->format), plain = plain_cost(shape).seconds;
      const double share = prefix_cost(shape, *cost).seconds / plain;
      if (share < 0.85 && made && !differs(made, chosen(kept))) return kept;
      // One in tiles that were chosen is made for this search alone.
      const double saved = (tile_bytes() > 0 ? plain : before + plain) * (1 - share);
      if (share < 0.85 && saved >= (once_ ? 1.5 : 1.0) * making_seconds(shape))
        return chosen(cost->plan);
    }
    if (!once_) prepared().searched_without_prefix(plain);
    return {};
  }

  // Reckons from the neighbours of some rows what a prefix would cost.
  PrefixForecast try_prefix_on_rows(const BaseRows& rows, const SearchShape& shape,
                                    const Choice& choice, const PrefixPlan& kept) {
    const auto packed = packed_form(choice.passes.front(), rows, choice);
    const auto start = Clock::now();
    const AnyMatrix sample = rows.sample(96);
    const std::int64_t k = k_ + 1;  // a row is the nearest to itself
    ScanJob job{sample, rows, options_.metric, k, threads_, isa_, found_, false, 4 * k + 4096};
    job.query_survey = prepared().found;
    ExactLists out{Matrix<double>(96, k), Matrix<Id>(96, k)};
    std::vector<std::int64_t> all;
    AnyMatrix queries(sample.type(), 96, sample.cols());
    std::vector<double> bars;
    for (std::int64_t q = 0; q < 96; ++q)
      if (!is_zero(sample, q)) all.push_back(q);
    static const Progress quiet;
    ScanStats stats;
    if (!part_->integer ||
        integer_fits(options_.metric, prepared().found, prepared().found, rows.cols()))
      scan(*packed, job, all, out, stats, quiet);
    else
      all.clear();
    for (const std::int64_t q : all) {
      std::memcpy(queries.row(std::ssize(bars)), sample.view().row(q),
                  static_cast<std::size_t>(rows.row_bytes()));
      bars.push_back(out.keys.row(q)[k_]);
    }
    prepare_seconds_ += seconds_since(start);
    return forecast_prefix(queries.view(), bars, shape, kept, shape.format);
  }

  PrefixForecast forecast_prefix(AnyMatrixView queries, const std::vector<double>& bars,
                                 const SearchShape& shape, const PrefixPlan& kept, Format format) {
    const auto study = prepared().prefix_study(options_.progress, prepare_seconds_);
    const auto start = Clock::now();
    PrefixForecast cost =
        forecast(*study, queries.rows(0, std::ssize(bars)), bars.data(), shape, kept);
    cost.format = format;
    prepared().note_prefix_forecast(part_->integer, k_, cost);
    prepare_seconds_ += seconds_since(start);
    return cost;
  }

  // Answers a few queries without a prefix and reckons from their distances what one would cost.
  PrefixForecast try_prefix(const BaseRows& rows, const SearchShape& shape, const Choice& choice,
                            ScanJob& job, std::vector<std::int64_t>& todo, ExactLists& out,
                            const PrefixPlan& kept) {
    const std::size_t count = std::min<std::size_t>(192, todo.size() / 4);
    std::vector<std::int64_t> few, rest;
    for (std::size_t i = 0; i < todo.size(); ++i)
      (i * count / todo.size() != (i + 1) * count / todo.size() ? few : rest).push_back(todo[i]);
    static const Progress quiet;
    std::vector<std::int64_t> again = few;
    Format format = format_int8;
    for (std::size_t p = 0; 2 * again.size() > few.size() && p < choice.passes.size(); ++p) {
      const FirstPass pass = choice.passes[p];
      if (pass == FirstPass::direct) break;
      const auto packed = packed_form(pass, rows, choice);
      job.may_give_up = p + 1 < choice.passes.size();
      const std::size_t before = again.size();
      again = scan(*packed, job, again, out, stats_, quiet);
      note_form(*packed, pass);
      note_pass(pass, (before - again.size()) * static_cast<std::size_t>(count_));
      format = format_of(pass);
    }
    std::sort(again.begin(), again.end());
    std::vector<double> bars;
    AnyMatrix sample(queries_.type(), std::ssize(few), queries_.cols());
    for (const std::int64_t q : few) {
      double bar = out.keys.row(q)[out.keys.cols() - 1];
      if (job.bars) bar = std::min(bar, job.bars[q]);
      if (!(bar < std::numeric_limits<double>::infinity()) ||
          std::binary_search(again.begin(), again.end(), q))
        continue;
      std::memcpy(sample.row(std::ssize(bars)), queries_.row(q),
                  static_cast<std::size_t>(queries_.cols() * size_of(queries_.type())));
      bars.push_back(bar);
    }
    const PrefixForecast cost = forecast_prefix(sample.view(), bars, shape, kept, format);
    todo = std::move(rest);
    todo.insert(todo.end(), again.begin(), again.end());
    std::sort(todo.begin(), todo.end());
    return cost;
  }

  // Scores each pair of rows once and answers all of `todo`, where that is expected to pay.
  void join(const BaseRows& rows, const Choice& choice, ScanJob& job,
            std::vector<std::int64_t>& todo, ExactLists& out) {
    const bool forced = options_.first_pass == FirstPass::prefix, integer = part_->integer;
    const KnnChoices& choices = options_.choices;
    if ((choices.group > 0 && choices.group != 12) || choices.parts > 0) return;
    if (todo.empty() || !whole_ || !job.allowed.all() || options_.metric == Metric::ip ||
        choice.passes.front() == FirstPass::direct || prepared().no_prefix() ||
        rows.rows() < least_prefix_rows)
      return;
    if (options_.memory > 0 &&
        (!forced || packing_bytes(rows.rows(), FirstPass::prefix) + other_bytes() +
                            join_bytes(rows.rows(), rows.cols(), k_, threads_) >
                        options_.memory))
      return;
    SearchShape shape = shape_of(rows, choice.passes.front(), std::ssize(todo));
    const auto kept = prepared().kept_prefix(integer);
    PrefixPlan plan =
        chosen(kept ? PrefixPlan{kept->map.columns(), kept->centroids.rows()} : usual_plan(shape));
    if (!forced) {
      if (options_.first_pass != FirstPass::automatic || rows.rows() < 8192 || rows.cols() < 32 ||
          rows.cols() > 4096 || k_ > rows.rows() / 64)
        return;
      auto cost = prepared().prefix_forecast(integer, k_);
      if (!cost) {
        const std::vector<std::int64_t> all = todo;  // some are answered on the way
        cost = try_prefix(rows, shape, choice, job, todo, out, kept ? plan : PrefixPlan{});
        todo = all;
      }
      if (!cost->possible) return;
      shape.go_by(cost->format);
      const double joined = joining_share * prefix_cost(shape, *cost).seconds;
      const double making = kept && !differs(kept, plan) ? 0 : making_seconds(shape);
      if (!(joined + making < 0.9 * plain_cost(shape).seconds)) return;
      if (!kept) plan = chosen(cost->plan);
    }
    const auto form =
        prepared().prefix(integer, plan, rows, choice.keep && !made_for_once(kept, plan), true,
                          threads_, options_.progress, prepare_seconds_);
    if (!form || !join_with_prefix(*form, job, todo, out, stats_, options_.progress)) return;
    note_pass(FirstPass::prefix, todo.size() * static_cast<std::size_t>(count_));
    note_prefix(*form, choice.keep, 0.5 * static_cast<double>(todo.size()));
    joined_ = true;
    todo.clear();
  }

  // Whether a prefix is not the one to keep, which is of the usual tiles and as it was first made.
  bool made_for_once(const std::shared_ptr<const PrefixBase>& kept, const PrefixPlan& plan) const {
    return plan.tile_bytes > 0 || differs(kept, plan);
  }
  // Whether one that is kept is not the one that was asked for.
  bool differs(const std::shared_ptr<const PrefixBase>& kept, const PrefixPlan& plan) const {
    return kept && ((plan.tile_bytes > 0 && kept->panels.tile_bytes != plan.tile_bytes) ||
                    (options_.choices.columns > 0 && kept->map.columns() != plan.columns) ||
                    (options_.choices.clusters > 0 && kept->centroids.rows() != plan.clusters));
  }

  // queries: for which all rows were scored.
  void note_prefix(const PrefixBase& form, bool keep, double queries) {
    prefix_columns_ = std::max(prefix_columns_, form.map.columns());
    clusters_ = std::max(clusters_, form.centroids.rows());
    tile_rows_ = form.panels.panels_per_tile * panel_rows;
    packed_bytes_ =
        std::max(packed_bytes_, prepared().kept_bytes(nullptr) + (keep ? 0 : form.bytes()));
    multiply_adds_ +=
        queries * static_cast<double>(form.panels.rows) * static_cast<double>(form.map.columns());
    bytes_read_ += static_cast<double>(form.panels.codes.bytes());
  }

  void search_with_prefix(const PrefixPlan& plan, const BaseRows& rows, const Choice& choice,
                          const ScanJob& job, std::vector<std::int64_t>& todo, ExactLists& out) {
    const bool forced = options_.first_pass == FirstPass::prefix;
    if (options_.memory > 0 && (tile_bytes() > 0 || !prepared().kept_prefix(part_->integer)))
      prepared().release_all_but(tile_bytes() > 0 ? FirstPass::direct : FirstPass::prefix);
    const auto kept = prepared().kept_prefix(part_->integer);
    const auto form =
        prepared().prefix(part_->integer, plan, rows, choice.keep && !made_for_once(kept, plan),
                          forced, threads_, options_.progress, prepare_seconds_);
    if (!form) return;
    const std::size_t before = todo.size();
    todo = scan_with_prefix(*form, job, todo, out, stats_, options_.progress);
    note_pass(FirstPass::prefix, (before - todo.size()) * static_cast<std::size_t>(count_));
    fallback_queries_ = std::max(fallback_queries_, std::ssize(todo));
    prepared().note_prefix_served(part_->integer, k_, before, todo.size());
    note_prefix(*form, choice.keep, static_cast<double>(before));
  }

  // Makes subset_, which takes time in a large base, unless every row is allowed or it is there.
  void list_allowed(const ScanJob& job) {
    const AllowedRows& allowed = job.allowed;
    if (allowed.all() || !subset_.empty()) return;
    const std::int64_t rows = job.base.rows();
    if (!allowed.live) {
      subset_ = allowed.filter->allowed(allowed.offset, allowed.offset + rows);
      return;
    }
    for (std::int64_t row = 0; row < rows; ++row)
      if (allowed(row)) subset_.push_back(static_cast<std::uint32_t>(row));
  }

  // The form of the chunk for a pass: the one kept, or one made now.
  std::shared_ptr<const PackedBase> packed_form(FirstPass pass, const BaseRows& rows,
                                                const Choice& choice) {
    if (whole_ && choice.packed_rows.empty() && prepared().is_adopted(pass) && tile_bytes() == 0)
      return prepared().kept(pass);
    return prepared().packed(pass, rows, choice.packed_rows, choice.keep, threads_,
                             options_.progress, prepare_seconds_, tile_bytes());
  }

  // Adds to `lists` what lies within the limit among the rows of a chunk.
  void range_of_rows(const BaseRows& rows, std::int64_t begin, double limit, std::int64_t most,
                     RangeLists& lists) {
    ScanJob job{queries_, rows, options_.metric, k_, threads_, isa_, found_, false, 0};
    apply_choices(job);
    const Choice choice = choose(rows, begin, job);
    const FirstPass pass = choice.passes.front();
    const RowIds ids = part_->part.ids.from(begin);
    note_pass(pass, static_cast<std::size_t>(queries_.rows() * count_));
    if (pass == FirstPass::direct) {
      list_allowed(job);
      scan_range_directly(job, subset_, limit, ids, most, lists, stats_, options_.progress);
      return;
    }
    const auto packed = packed_form(pass, rows, choice);
    scan_range(*packed, job, limit, ids, most, lists, stats_, options_.progress);
    note_form(*packed, pass);
    multiply_adds_ += static_cast<double>(queries_.rows()) * static_cast<double>(packed->rows) *
                      static_cast<double>(rows.cols());
    bytes_read_ += static_cast<double>(packed->codes.bytes());
  }

  // Leaves out the passes at the front whose bound lets too much through on a sample of rows and
  // queries: packing the base for them would be lost. Small bases go without, and what a sample
  // gets wrong is put right while the scan runs (scan/scan.hpp).
  void skip_useless(std::vector<FirstPass>& passes, const BaseRows& rows) {
    // Small beside the work itself: two rungs of it are packed and measured where both are useless.
    const std::int64_t sample_queries = std::clamp<std::int64_t>(queries_.rows() / 8, 6, 48);
    const std::int64_t sample_rows = std::clamp<std::int64_t>(rows.rows() / 32, 256, 2048);
    if (rows.rows() < 8 * sample_rows || queries_.rows() == 0) return;
    AnyMatrix base;  // sampled when it is needed
    const AnyMatrixView queries = every_nth(queries_, sample_queries);
    // As near to the k-th of all rows as a rank in the sample can be.
    const std::int64_t k = std::clamp<std::int64_t>(
        k_ * sample_rows / std::max<std::int64_t>(1, allowed_rows_), 1, sample_rows);
    while (passes.size() > 1) {
      if (passes.front() == FirstPass::integer) return;
      const auto known = prepared().known_worth(passes.front(), k_);
      if (known.value_or(false)) return;
      if (!known) {
        const auto start = Clock::now();
        static const Progress quiet;
        if (base.rows() == 0) base = rows.sample(sample_rows);
        const PackedBase packed = PackedBase::certified(base.view(), {}, format_of(passes.front()),
                                                        prepared().coding_space(), threads_, quiet);
        ScanJob job{queries, base.view(), options_.metric, k,           threads_,
                    isa_,    found_,      false,           4 * k + 4096};
        ExactLists out{Matrix<double>(queries.rows(), k), Matrix<Id>(queries.rows(), k)};
        std::vector<std::int64_t> all(queries.rows());
        std::iota(all.begin(), all.end(), 0);
        ScanStats stats;
        scan(packed, job, all, out, stats, quiet);
        const double share = static_cast<double>(stats.survivors - k * queries.rows()) /
                             static_cast<double>(queries.rows() * base.rows());
        const bool worth = share <= survivors_worth(format_of(passes.front()), base.cols(), peaks_);
        prepared().note_worth(passes.front(), k_, worth);
        prepare_seconds_ += seconds_since(start);
        if (worth) return;
      }
      passes.erase(passes.begin());
    }
  }

  // `count` rows of a matrix, or all if it has no more, evenly spaced.
  static AnyMatrixView every_nth(AnyMatrixView all, std::int64_t count) {
    if (all.rows() <= count) return all;
    const std::int64_t step = all.rows() / count;
    return {all.type(), all.row(0), count, all.cols(), all.stride() * step};
  }

  // A pass that may not suit the data: a few queries go first, and if most of them are handed
  // back, so is the rest.
  // survivors_known: whether earlier searches have told how many rows survive.
  std::vector<std::int64_t> try_pass(const PackedBase& packed, const BaseRows& rows,
                                     const Choice& choice, bool survivors_known, ScanJob job,
                                     const std::vector<std::int64_t>& todo, ExactLists& out) {
    const std::size_t probe = std::min<std::size_t>(todo.size() / 120 * 12, 96);
    if (probe == 0) return scan(packed, job, todo, out, stats_, options_.progress);
    const std::size_t step = todo.size() / probe;
    std::vector<std::int64_t> first, rest;
    for (std::size_t i = 0; i < todo.size(); ++i)
      (i % step == step / 2 && first.size() < probe ? first : rest).push_back(todo[i]);
    static const Progress quiet;
    const std::int64_t before = stats_.survivors;
    std::vector<std::int64_t> again = scan(packed, job, first, out, stats_, quiet);
    if (2 * again.size() <= first.size()) {
      const std::shared_ptr<const RowCodes> codes =
          job.row_codes || survivors_known
              ? nullptr
              : codes_for(packed, rows, choice, std::ssize(rest),
                          static_cast<double>(stats_.survivors - before) /
                              static_cast<double>(first.size()));
      if (codes) job.row_codes = codes.get();
      rest = scan(packed, job, rest, out, stats_, options_.progress);
    }
    again.insert(again.end(), rest.begin(), rest.end());
    std::sort(again.begin(), again.end());
    return again;
  }

  static bool is_zero(AnyMatrixView vectors, std::int64_t row) {
    return visit(vectors, [&](auto view) {
      const auto* x = view.row(row);
      for (std::int64_t i = 0; i < view.cols(); ++i)
        if (to_float(x[i]) != 0) return false;
      return true;
    });
  }

  // A zero query is as near to every row: the first k rows, by definition of the distances.
  void answer_zero_queries(std::vector<std::int64_t>& todo, const AllowedRows& allowed,
                           ExactLists& out) {
    std::erase_if(todo, [&](std::int64_t q) {
      if (!is_zero(queries_, q)) return false;
      std::int64_t next = 0;
      for (std::int64_t j = 0; j < out.keys.cols(); ++j) {
        while (subset_.empty() && !allowed(next)) ++next;
        out.keys.row(q)[j] = options_.metric == Metric::ip ? 0.0 : 1.0;
        out.ids.row(q)[j] = subset_.empty() ? next++ : std::int64_t{subset_[j]};
      }
      return true;
    });
  }

  void merge(ExactLists& all, const ExactLists& part) const {
    const std::int64_t have = all.keys.cols(), more = part.keys.cols();
    const std::int64_t width = std::min(k_, have + more);
    ExactLists merged{Matrix<double>(queries_.rows(), width), Matrix<Id>(queries_.rows(), width)};
    for (std::int64_t q = 0; q < queries_.rows(); ++q) {
      std::int64_t a = 0, b = 0;
      for (std::int64_t j = 0; j < width; ++j) {
        const bool from_all =
            b == more || (a < have && std::pair(all.keys.row(q)[a], all.ids.row(q)[a]) <=
                                          std::pair(part.keys.row(q)[b], part.ids.row(q)[b]));
        const ExactLists& source = from_all ? all : part;
        const std::int64_t at = from_all ? a++ : b++;
        merged.keys.row(q)[j] = source.keys.row(q)[at];
        merged.ids.row(q)[j] = source.ids.row(q)[at];
      }
    }
    all = std::move(merged);
  }

  Neighbors pad(const ExactLists& all) const {
    Neighbors out{Matrix<Id>(queries_.rows(), k_asked_), Matrix<float>(queries_.rows(), k_asked_)};
    each_query([&](std::int64_t q) {
      for (std::int64_t j = 0; j < k_asked_; ++j) {
        const bool has = j < all.keys.cols() && all.ids.row(q)[j] != no_id;
        out.ids.row(q)[j] = has ? all.ids.row(q)[j] : no_id;
        out.distances.row(q)[j] =
            has ? static_cast<float>(distance_of_key(options_.metric, all.keys.row(q)[j]))
                : no_distance(options_.metric);
      }
    });
    return out;
  }

  // Calls f(number) for each query, on all threads where that pays.
  template <class F>
  void each_query(F f) const {
    const std::int64_t block =
        std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, k_asked_));
    const std::int64_t tasks = (queries_.rows() + block - 1) / block;
    parallel_for(tasks > 1 ? threads_ : 1, tasks, [&](std::int64_t task) {
      for (std::int64_t q = task * block; q < std::min(queries_.rows(), (task + 1) * block); ++q)
        f(q);
    });
  }

  // pairs: queries times rows.
  void note_pass(FirstPass pass, std::size_t pairs) { done_by_[static_cast<int>(pass)] += pairs; }
  void note_form(const PackedBase& packed, FirstPass pass) {
    const std::int64_t bytes =
        (prepared().kept(pass).get() == &packed && prepared().is_adopted(pass) ? 0
                                                                               : packed.bytes()) +
        prepared().kept_bytes(&packed);
    tile_rows_ = std::max(tile_rows_, packed.panels_per_tile * panel_rows);
    packed_bytes_ = std::max(packed_bytes_, bytes + code_bytes_);
    centred_ |= !packed.space.mean.empty();
  }

  // The pass that did most of the work.
  FirstPass main_pass() const {
    return static_cast<FirstPass>(std::max_element(std::begin(done_by_), std::end(done_by_)) -
                                  std::begin(done_by_));
  }

  // Reads what earlier searches of one part saw, and leaves what this one did.
  void learn(KnnReport& r) const {
    if (parts_.size() != 1 || allowed_rows_ != rows_ || r.queries == 0) return;
    PreparedRows& rows = *parts_.front().part.rows;
    const bool few = r.queries < std::int64_t{48} * threads_;
    const PreparedRows::Seen before = rows.seen(main_pass(), k_, few);
    r.expected_hits = before.hits, r.expected_refined = before.refined;
    r.expected_survivors = before.survivors;
    rows.note_seen(main_pass(), k_, few,
                   {r.hits_per_query, r.refined_per_query, r.survivors_per_query});
    if (main_pass() == FirstPass::prefix && before.hits == 0)
      if (const auto cost = rows.prefix_forecast(parts_.front().integer, k_))
        r.expected_hits = cost->passed;
  }

  void fill(KnnReport& r, double seconds) const {
    const double per_query = std::max<double>(1, static_cast<double>(queries_.rows()));
    r = {};
    r.rows = rows_, r.allowed_rows = allowed_rows_, r.dim = queries_.cols();
    r.queries = queries_.rows(), r.k = k_asked_, r.metric = options_.metric;
    r.isa = name_of(isa_), r.threads = threads_;
    r.first_pass = name_of(main_pass());
    r.centred = centred_;
    r.prepare_seconds = prepare_seconds_, r.seconds = seconds - prepare_seconds_;
    r.scan_seconds = stats_.scan_seconds, r.rescore_seconds = stats_.rescore_seconds;
    r.query_seconds = stats_.query_seconds, r.seed_seconds = stats_.seed_seconds;
    r.score_seconds = stats_.score_seconds, r.select_seconds = stats_.select_seconds;
    r.hits_per_query = static_cast<double>(stats_.hits) / per_query;
    r.refined_per_query = static_cast<double>(stats_.refined) / per_query;
    r.survivors_per_query = static_cast<double>(stats_.survivors) / per_query;
    r.clusters = clusters_, r.group = stats_.group, r.parts = stats_.parts;
    r.guessed = stats_.guessed, r.tile_rows = tile_rows_;
    r.fallback_queries = fallback_queries_, r.repeated_queries = stats_.repeated;
    r.certified_queries = queries_.rows();
    r.memory_bytes =
        packed_bytes_ + stats_.buffer_bytes + queries_.rows() * (k_ * 16 + k_asked_ * 12);
    r.chunks = chunks_;
    r.multiply_adds = multiply_adds_, r.prefix_columns = prefix_columns_, r.joined = joined_;
    r.bytes_read = bytes_read_;
    learn(r);
  }

  AnyMatrixView queries_;
  const KnnOptions& options_;
  bool once_;
  std::int64_t k_, k_asked_;
  Isa isa_;
  int threads_;
  MachinePeaks peaks_;
  DataSurvey found_;
  std::vector<Part> parts_;  // that have a row allowed
  std::int64_t rows_ = 0, allowed_rows_ = 0;

  // The chunk at hand.
  const Part* part_ = nullptr;
  bool whole_ = true;                  // whether it is all of its part
  std::int64_t count_ = 0;             // rows allowed
  std::vector<std::uint32_t> subset_;  // these, where that takes a list; empty: see job.allowed
  std::vector<double> bars_;           // the k-th key of each query so far; empty: not k yet

  bool self_ = false, joined_ = false;  // queries are the rows; each pair was scored once
  bool centred_ = false;
  ScanStats stats_;
  double prepare_seconds_ = 0, multiply_adds_ = 0, bytes_read_ = 0;
  std::int64_t code_bytes_ = 0;  // of codes of rows that are not kept
  std::int64_t packed_bytes_ = 0, fallback_queries_ = 0, chunks_ = 0;
  std::int64_t prefix_columns_ = 0, clusters_ = 0, tile_rows_ = 0;
  std::size_t done_by_[any_pass_count] = {};
};

// The largest key within a radius.
double limit_of(Metric metric, double radius) {
  return metric == Metric::ip ? 0.0 - radius : radius;
}

// What plans take for k where there is none.
constexpr std::int64_t usual_k = 10;

}  // namespace

void check_k(std::int64_t k) {
  if (k < 1) throw InvalidArgument("k must be at least 1, but is {}", k);
  if (k > max_k) throw InvalidArgument("k must be at most {}, but is {}", max_k, k);
}

void check_radius(double radius) {
  if (!std::isfinite(radius))
    throw InvalidArgument("radius must be a finite number, but is {}", radius);
}

Neighbors search_parts(std::span<const SearchPart> parts, AnyMatrixView queries, std::int64_t k,
                       const KnnOptions& options, bool once, KnnReport* report) {
  return Search(parts, queries, k, options, once).run(report);
}

Neighbors join_part(const SearchPart& part, AnyMatrixView rows, std::int64_t k,
                    const KnnOptions& options, bool once, KnnReport* report) {
  return Search({&part, 1}, rows, k + 1, options, once).run_self(report);
}

void search_more(std::span<const SearchPart> parts, AnyMatrixView queries, std::int64_t k,
                 const KnnOptions& options, ExactLists& found, KnnReport* report) {
  Search(parts, queries, k, options, true, found.keys.cols()).run_from(found, report);
}

RangeNeighbors range_search_parts(std::span<const SearchPart> parts, AnyMatrixView queries,
                                  double radius, const KnnOptions& options, bool once,
                                  KnnReport* report) {
  return Search(parts, queries, usual_k, options, once)
      .run_range(limit_of(options.metric, radius), report);
}

std::optional<FirstPass> prepare(PreparedRows& rows, int threads, const Progress& progress) {
  const std::int64_t n = rows.base.rows();
  if (n < least_packed_rows) return {};
  const AnyMatrix queries = rows.base.sample(std::min<std::int64_t>(n, 384));
  const KnnOptions options{.metric = rows.metric, .threads = threads, .progress = progress};
  const SearchPart part{.rows = &rows};
  return Search({&part, 1}, queries.view(), usual_k, options, false).prepare();
}

}  // namespace knear::detail
