#include "knear/knn/knn.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/reference.hpp"
#include "knear/scan/scan.hpp"

namespace knear {

using detail::CodingSpace;
using detail::ExactLists;
using detail::PackedBase;
using detail::ScanJob;
using detail::ScanStats;

namespace {

constexpr std::int64_t max_dim = 65536;
constexpr std::int64_t max_k = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t max_chunk_rows = std::int64_t{1} << 30;  // slots are 32-bit numbers

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_dim(std::string_view argument, std::int64_t dim) {
  if (dim < 1 || dim > max_dim)
    throw InvalidArgument("{} must have between 1 and {} columns, but has {}", argument, max_dim,
                          dim);
}

detail::Format format_of(FirstPass pass) {
  return pass == FirstPass::int8    ? detail::format_int8
         : pass == FirstPass::int16 ? detail::format_int16
                                    : detail::format_fp32;
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

}  // namespace

std::string_view name_of(FirstPass pass) {
  switch (pass) {
    case FirstPass::automatic:
      return "auto";
    case FirstPass::integer:
      return "integer";
    case FirstPass::int8:
      return "int8";
    case FirstPass::int16:
      return "int16";
    case FirstPass::fp32:
      return "fp32";
    case FirstPass::direct:
      return "direct";
  }
  return "?";
}

FirstPass parse_first_pass(std::string_view name) {
  for (FirstPass pass : {FirstPass::automatic, FirstPass::integer, FirstPass::int8,
                         FirstPass::int16, FirstPass::fp32, FirstPass::direct})
    if (name == name_of(pass)) return pass;
  throw InvalidArgument(
      "first_pass must be one of auto, integer, int8, int16, fp32, direct, but is '{}'", name);
}

class ExactSearcher::Impl {
 public:
  Impl(AnyMatrixView base_rows, const KnnOptions& options)
      : base(base_rows), metric(options.metric) {
    DefaultFloatMode mode;
    check_dim("base", base.cols());
    found = survey(base, "base", options.threads);
  }

  // The packed form for a pass, made on first use and kept. With `rows` a part of the base, made
  // and not kept.
  std::shared_ptr<const PackedBase> packed(FirstPass pass, AnyMatrixView rows,
                                           std::span<const std::uint32_t> subset, bool keep,
                                           const KnnOptions& options, double& prepare_seconds) {
    // What is kept is made by one search while others wait for it; what is not concerns no other.
    std::unique_lock lock(mutex, std::defer_lock);
    if (keep) lock.lock();
    std::shared_ptr<const PackedBase>& kept = forms[static_cast<int>(pass)];
    if (keep && kept) return kept;
    const auto start = Clock::now();
    std::shared_ptr<const PackedBase> made;
    if (pass == FirstPass::integer) {
      made = std::make_shared<PackedBase>(PackedBase::integer(
          rows, subset, metric, active_isa(), found, options.threads, options.progress));
    } else {
      made = std::make_shared<PackedBase>(PackedBase::certified(
          rows, subset, format_of(pass), keep ? space_chosen() : coding_space(), options.threads,
          options.progress));
    }
    prepare_seconds += seconds_since(start);
    if (keep) kept = made;
    return made;
  }

  CodingSpace coding_space() {
    std::lock_guard lock(mutex);
    return space_chosen();
  }

  // What earlier searches saw on a sample: whether a pass is worth its while for the k nearest. A
  // pass worth it for some k is for every smaller one, and the other way round.
  std::optional<bool> known_worth(FirstPass pass, std::int64_t k) {
    std::lock_guard lock(mutex);
    const Worth& seen = worths[static_cast<int>(pass)];
    if (k <= seen.up_to) return true;
    if (k >= seen.not_from) return false;
    return {};
  }
  void note_worth(FirstPass pass, std::int64_t k, bool worth) {
    std::lock_guard lock(mutex);
    Worth& seen = worths[static_cast<int>(pass)];
    if (worth)
      seen.up_to = std::max(seen.up_to, k);
    else
      seen.not_from = std::min(seen.not_from, k);
  }

  bool is_kept(FirstPass pass) {
    std::lock_guard lock(mutex);
    return forms[static_cast<int>(pass)] != nullptr;
  }

  // Lets go of the forms kept but this one; searches that use them hold them until they end.
  void release_all_but(FirstPass pass) {
    std::lock_guard lock(mutex);
    for (int i = 0; i < static_cast<int>(std::size(forms)); ++i)
      if (i != static_cast<int>(pass)) forms[i] = nullptr;
  }

  // Bytes of the forms kept, `except` left out.
  std::int64_t kept_bytes(const PackedBase* except) {
    std::lock_guard lock(mutex);
    std::int64_t bytes = 0;
    for (const auto& form : forms)
      if (form && form.get() != except) bytes += form->bytes();
    return bytes;
  }

  AnyMatrixView base;
  Metric metric;
  DataSurvey found;
  std::mutex mutex;
  std::shared_ptr<const PackedBase> forms[6];

 private:
  const CodingSpace& space_chosen() {
    if (!space) space = CodingSpace::choose(base, metric, active_isa());
    return *space;
  }

  struct Worth {
    std::int64_t up_to = 0, not_from = max_k + 1;
  };
  Worth worths[6];
  std::optional<CodingSpace> space;
};

ExactSearcher::ExactSearcher(AnyMatrixView base, const KnnOptions& options)
    : impl_(std::make_unique<Impl>(base, options)) {}
ExactSearcher::~ExactSearcher() = default;
ExactSearcher::ExactSearcher(ExactSearcher&&) noexcept = default;
ExactSearcher& ExactSearcher::operator=(ExactSearcher&&) noexcept = default;

namespace {

// Everything that one search decides and counts.
class Search {
 public:
  Search(ExactSearcher::Impl& owner, AnyMatrixView queries, std::int64_t k,
         const KnnOptions& options, bool once)
      : impl_(owner), queries_(queries), options_(options), once_(once), k_asked_(k) {
    isa_ = active_isa();
    threads_ = resolve_threads(options.threads);
    found_ = survey(queries, "queries", threads_);
    if (!options.filter.everything() && options.filter.rows() != impl_.base.rows())
      throw ShapeMismatch("filter is for {} rows, base has {}", options.filter.rows(),
                          impl_.base.rows());
    k_ = std::min(k, allowed_rows());
    integer_ = integer_fits(impl_.metric, impl_.found, found_, impl_.base.cols());
    if (options.first_pass == FirstPass::integer && !integer_)
      throw InvalidArgument(
          "first_pass is integer, but that needs l2 or ip and whole numbers of 8 bits on both "
          "sides");
  }

  // All rows whose key is at most `limit`.
  RangeNeighbors run_range(double limit, KnnReport* report) {
    const auto start = Clock::now();
    const std::int64_t q = queries_.rows(), n = impl_.base.rows();
    const std::int64_t chunk = chunk_rows();
    detail::RangeLists lists(static_cast<std::size_t>(q));
    // 16 bytes a pair, in two growing lists at once for a while; in the end 12 more in the answer.
    const std::int64_t memory = options_.memory > 0 ? options_.memory : machine_memory();
    const std::int64_t most = std::max<std::int64_t>(
        0, (memory - other_bytes() - packed_bytes(std::min(n, chunk), first_pass())) / 64);
    for (std::int64_t begin = 0; begin < n && q > 0; begin += chunk) {
      const std::int64_t end = std::min(n, begin + chunk);
      if (set_subset(begin, end) == 0) continue;
      range_of_rows(impl_.base.rows(begin, end), begin, chunk >= n, limit, most, lists);
    }
    RangeNeighbors out;
    out.begin.assign(1, 0);
    for (const auto& list : lists)
      out.begin.push_back(out.begin.back() + static_cast<std::int64_t>(list.size()));
    out.ids.resize(static_cast<std::size_t>(out.begin.back()));
    out.distances.resize(out.ids.size());
    parallel_for(threads_, q, [&](std::int64_t i) {
      auto& list = lists[static_cast<std::size_t>(i)];
      std::sort(list.begin(), list.end());
      std::size_t place = static_cast<std::size_t>(out.begin[static_cast<std::size_t>(i)]);
      for (const auto& [key, row] : list) {
        out.ids[place] = row;
        out.distances[place++] = static_cast<float>(distance_of_key(impl_.metric, key));
      }
      list = {};
    });
    if (report) {
      fill(*report, seconds_since(start), chunk);
      report->k = 0;
      report->memory_bytes += 64 * out.begin.back();
    }
    return out;
  }

  Neighbors run(KnnReport* report) {
    const auto start = Clock::now();
    const std::int64_t q = queries_.rows(), n = impl_.base.rows();
    const std::int64_t chunk = chunk_rows();
    ExactLists all;
    bool first = true;
    for (std::int64_t begin = 0; begin < n && q > 0; begin += chunk) {
      const std::int64_t end = std::min(n, begin + chunk);
      const std::int64_t count = set_subset(begin, end);
      if (count == 0) continue;
      ExactLists part{Matrix<double>(q, std::min(k_, count)), Matrix<Id>(q, std::min(k_, count))};
      search_rows(impl_.base.rows(begin, end), begin, chunk >= n, part);
      for (std::int64_t i = 0; i < q * part.ids.cols(); ++i)
        if (part.ids.data()[i] != no_id) part.ids.data()[i] += begin;
      if (std::exchange(first, false))
        all = std::move(part);
      else
        merge(all, part);
    }
    Neighbors out = pad(all);
    if (report) fill(*report, seconds_since(start), chunk);
    return out;
  }

 private:
  std::int64_t allowed_rows() const {
    return options_.filter.everything() ? impl_.base.rows() : options_.filter.count();
  }

  // Makes subset_ the allowed rows of a chunk, counted from its first; returns their number. Left
  // empty where that is all of them.
  std::int64_t set_subset(std::int64_t begin, std::int64_t end) {
    subset_.clear();
    if (options_.filter.everything()) return end - begin;
    const auto allowed = options_.filter.allowed(begin, end);
    const std::int64_t count = static_cast<std::int64_t>(allowed.size());
    if (count == end - begin) return count;
    subset_.assign(allowed.begin(), allowed.end());
    for (std::uint32_t& row : subset_) row -= static_cast<std::uint32_t>(begin);
    return count;
  }

  // Bytes of one chunk's packed rows, with what finding equal rows takes meanwhile.
  std::int64_t packed_bytes(std::int64_t rows, FirstPass pass) const {
    if (pass == FirstPass::direct) return 0;
    if (pass == FirstPass::integer)
      return PackedBase::bytes_for(rows, impl_.base.cols(), detail::format_int8, true);
    return PackedBase::bytes_for(rows, impl_.base.cols(), format_of(pass), false) + 25 * rows;
  }
  // Bytes of everything else: lists of all queries, buffers and scratch of each thread.
  std::int64_t other_bytes() const {
    const double queries = static_cast<double>(queries_.rows()),
                 dim = static_cast<double>(impl_.base.cols());
    const double k = static_cast<double>(k_), threads = threads_;
    const double block = std::min(queries, static_cast<double>(detail::queries_in_block(k_)));
    const double per_query = dim * 4 + 256 + (1.5 * static_cast<double>(most_pending()) + 24) * 24;
    const double lists = queries * (k * 48 + static_cast<double>(k_asked_) * 12 + 64);
    // Queries as doubles: of a task, or where there are few of them, of each thread.
    const double doubles = std::max(64.0, std::min(queries, 4 * threads));
    const double scratch = threads * (doubles * dim * 8 + (1 << 16));
    return static_cast<std::int64_t>(
        std::min(lists + threads * block * per_query + scratch + (1 << 20), 4e18));
  }
  // Candidates of a query that may wait to be measured.
  std::int64_t most_pending() const { return 4 * k_ + (options_.memory > 0 ? 64 : 4096); }

  // How many rows to prepare at a time: all, or as many as the memory allows.
  std::int64_t chunk_rows() const {
    const std::int64_t n = impl_.base.rows();
    std::int64_t rows = std::clamp<std::int64_t>(n, 1, max_chunk_rows);
    if (options_.memory <= 0 || n == 0) return rows;
    const std::int64_t left = options_.memory - other_bytes();
    const FirstPass pass = first_pass();
    if (packed_bytes(rows, pass) <= left) return rows;
    const std::int64_t least = std::min<std::int64_t>(n, 4096);
    const std::int64_t per_thousand = packed_bytes(1024, pass);
    rows = std::min<std::int64_t>(rows, left > 0 ? left / per_thousand * 1024 : 0);
    if (rows < least)
      throw MemoryBudgetError(
          "memory is {} bytes, but this search needs at least {} ({} queries, k = {}, {} columns)",
          options_.memory, other_bytes() + packed_bytes(least, pass), queries_.rows(), k_asked_,
          impl_.base.cols());
    return rows;
  }

  FirstPass first_pass() const {
    if (options_.first_pass != FirstPass::automatic) return options_.first_pass;
    if (integer_) return FirstPass::integer;
    return ladder(isa_).front();
  }

  // Packing costs about as much as measuring a few queries in float64; a k of the size of the base
  // leaves nothing to prune.
  bool direct_pays(std::int64_t rows) const {
    if (options_.first_pass == FirstPass::direct) return true;
    if (options_.first_pass != FirstPass::automatic) return false;
    return k_ > rows / 4 || (once_ && queries_.rows() <= 4) || rows < 256;
  }

  // How to search the allowed rows of a chunk.
  enum class Way {
    whole,   // the packed form of all rows; what the filter forbids falls when it is hit
    subset,  // pack the allowed rows for this search
    direct   // measure them
  };

  // The way of the least cost, in ns of one core: 0.003 d for a pair scored in int8, 0.1 d + 20 for
  // one measured, 2 d + 50 for a row packed, 40 for a hit, of which there are k for each e-fold of
  // the rows, and as many more as rows are forbidden. A form that later searches find packed counts
  // a twentieth. (Measured on 1M x 96; it decides about time only.)
  Way way_for(std::int64_t rows, bool kept, bool will_be_kept) const {
    const double n = static_cast<double>(rows), d = static_cast<double>(impl_.base.cols()),
                 q = static_cast<double>(queries_.rows()),
                 allowed = static_cast<double>(subset_.size()), k = static_cast<double>(k_);
    const double packing = 2 * d + 50, scoring = 0.003 * d;
    const double hits = 40 * k * (1 + std::log(std::max(1.0, allowed / k)));
    const double whole = q * (scoring * n + hits * n / allowed) + (kept           ? 0
                                                                   : will_be_kept ? 0.05
                                                                                  : 1) *
                                                                      packing * n;
    const double subset = q * (scoring * allowed + hits) + packing * allowed;
    const double direct = q * (0.1 * d + 20) * allowed;
    if (options_.first_pass == FirstPass::automatic && direct <= std::min(whole, subset))
      return Way::direct;
    return whole <= subset ? Way::whole : Way::subset;
  }

  // What a chunk is searched by.
  struct Choice {
    std::vector<FirstPass> passes;               // in this order, while queries are left
    std::span<const std::uint32_t> packed_rows;  // what is packed, if that is not all
    bool keep = false;                           // the packed form, for later searches
  };

  // Sets job.allowed where what the filter forbids is sifted out when hit.
  Choice choose(AnyMatrixView rows, std::int64_t begin, bool whole, ScanJob& job) {
    Choice choice;
    bool directly =
        direct_pays(subset_.empty() ? rows.rows() : static_cast<std::int64_t>(subset_.size()));
    if (!subset_.empty() && !directly) {
      const bool keep = whole && !once_;
      const Way way = way_for(rows.rows(), keep && impl_.is_kept(first_pass()), keep);
      directly = way == Way::direct;
      if (way == Way::subset) choice.packed_rows = subset_;
      if (way == Way::whole) job.allowed = {&options_.filter, begin};
    }
    choice.keep = whole && !once_ && choice.packed_rows.empty();
    std::vector<FirstPass>& passes = choice.passes;
    if (directly)
      passes = {FirstPass::direct};
    else if (options_.first_pass != FirstPass::automatic)
      passes = {options_.first_pass};
    else if (integer_)
      passes = {FirstPass::integer};
    else
      passes = ladder(isa_);
    const FirstPass first = passes.front();
    if (options_.memory > 0)  // wider codes only where they fit; the first is what chunks fit
      std::erase_if(passes, [&](FirstPass pass) {
        return pass != first && packed_bytes(rows.rows(), pass) + other_bytes() > options_.memory;
      });
    else
      skip_useless(passes, rows);
    return choice;
  }

  // `begin`: the row of the base that is the first of `rows`.
  void search_rows(AnyMatrixView rows, std::int64_t begin, bool whole, ExactLists& out) {
    ScanJob job{queries_, rows,   impl_.metric, out.keys.cols(), threads_,
                isa_,     found_, false,        most_pending()};
    std::vector<std::int64_t> todo(queries_.rows());
    std::iota(todo.begin(), todo.end(), 0);
    if (impl_.metric != Metric::l2) answer_zero_queries(todo, out);
    const Choice choice = choose(rows, begin, whole, job);
    const std::vector<FirstPass>& passes = choice.passes;
    for (std::size_t p = 0; p < passes.size() && !todo.empty(); ++p) {
      if (passes[p] == FirstPass::direct) {
        note_pass(FirstPass::direct, todo.size());
        scan_directly(job, subset_, todo, out, stats_, options_.progress);
        return;
      }
      const bool last = p + 1 == passes.size();
      job.may_give_up = !last;
      if (options_.memory > 0 &&
          packed_bytes(rows.rows(), passes[p]) + other_bytes() + impl_.kept_bytes(nullptr) >
              options_.memory)
        impl_.release_all_but(passes[p]);
      const auto packed = impl_.packed(passes[p], rows, choice.packed_rows, choice.keep, options_,
                                       prepare_seconds_);
      const std::size_t before = todo.size();
      todo = last ? scan(*packed, job, todo, out, stats_, options_.progress)
                  : try_pass(*packed, job, todo, out);
      packed_bytes_ = std::max(packed_bytes_, packed->bytes() + impl_.kept_bytes(packed.get()));
      centred_ = !packed->space.mean.empty();
      note_pass(passes[p], before - todo.size());
      multiply_adds_ += static_cast<double>(before) * static_cast<double>(packed->rows) *
                        static_cast<double>(rows.cols());
      bytes_read_ += static_cast<double>(packed->codes.bytes());
      if (p == 0) fallback_queries_ += static_cast<std::int64_t>(todo.size());
    }
  }

  // Adds to `lists` what lies within the limit among the rows of a chunk.
  void range_of_rows(AnyMatrixView rows, std::int64_t begin, bool whole, double limit,
                     std::int64_t most, detail::RangeLists& lists) {
    ScanJob job{queries_, rows, impl_.metric, k_, threads_, isa_, found_, false, 0};
    const Choice choice = choose(rows, begin, whole, job);
    const FirstPass pass = choice.passes.front();
    note_pass(pass, static_cast<std::size_t>(queries_.rows()));
    if (pass == FirstPass::direct) {
      scan_range_directly(job, subset_, limit, begin, most, lists, stats_, options_.progress);
      return;
    }
    const auto packed =
        impl_.packed(pass, rows, choice.packed_rows, choice.keep, options_, prepare_seconds_);
    scan_range(*packed, job, limit, begin, most, lists, stats_, options_.progress);
    packed_bytes_ = std::max(packed_bytes_, packed->bytes() + impl_.kept_bytes(packed.get()));
    centred_ = !packed->space.mean.empty();
    multiply_adds_ += static_cast<double>(queries_.rows()) * static_cast<double>(packed->rows) *
                      static_cast<double>(rows.cols());
    bytes_read_ += static_cast<double>(packed->codes.bytes());
  }

  // Leaves out the passes at the front whose bound lets too much through on a sample of rows and
  // queries: packing the base for them would be lost. Small bases go without, and what a sample
  // gets wrong is put right while the scan runs (scan/scan.hpp).
  void skip_useless(std::vector<FirstPass>& passes, AnyMatrixView rows) {
    // Small beside the work itself: two rungs of it are packed and measured where both are useless.
    const std::int64_t sample_queries = std::clamp<std::int64_t>(queries_.rows() / 8, 6, 48);
    const std::int64_t sample_rows = std::clamp<std::int64_t>(rows.rows() / 32, 256, 2048);
    if (rows.rows() < 8 * sample_rows) return;
    const AnyMatrixView base = every_nth(rows, sample_rows);
    const AnyMatrixView queries = every_nth(queries_, sample_queries);
    // As near to the k-th of all rows as a rank in the sample can be.
    const std::int64_t k = std::clamp<std::int64_t>(
        k_ * base.rows() / std::max<std::int64_t>(1, allowed_rows()), 1, base.rows());
    while (passes.size() > 1) {
      const auto known = impl_.known_worth(passes.front(), k_);
      if (known.value_or(false)) return;
      if (!known) {
        const auto start = Clock::now();
        static const Progress quiet;
        const PackedBase packed = PackedBase::certified(base, {}, format_of(passes.front()),
                                                        impl_.coding_space(), threads_, quiet);
        ScanJob job{queries, base, impl_.metric, k, threads_, isa_, found_, false, 4 * k + 4096};
        ExactLists out{Matrix<double>(queries.rows(), k), Matrix<Id>(queries.rows(), k)};
        std::vector<std::int64_t> all(queries.rows());
        std::iota(all.begin(), all.end(), 0);
        ScanStats stats;
        scan(packed, job, all, out, stats, quiet);
        const double share = static_cast<double>(stats.survivors - k * queries.rows()) /
                             static_cast<double>(queries.rows() * base.rows());
        const bool worth = share <= detail::survivors_worth(format_of(passes.front()), base.cols());
        impl_.note_worth(passes.front(), k_, worth);
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
  std::vector<std::int64_t> try_pass(const PackedBase& packed, const ScanJob& job,
                                     const std::vector<std::int64_t>& todo, ExactLists& out) {
    const std::size_t probe = std::min<std::size_t>(todo.size() / 120 * 12, 96);
    if (probe == 0) return scan(packed, job, todo, out, stats_, options_.progress);
    const std::size_t step = todo.size() / probe;
    std::vector<std::int64_t> first, rest;
    for (std::size_t i = 0; i < todo.size(); ++i)
      (i % step == step / 2 && first.size() < probe ? first : rest).push_back(todo[i]);
    static const Progress quiet;
    std::vector<std::int64_t> again = scan(packed, job, first, out, stats_, quiet);
    if (2 * again.size() <= first.size())
      rest = scan(packed, job, rest, out, stats_, options_.progress);
    again.insert(again.end(), rest.begin(), rest.end());
    std::sort(again.begin(), again.end());
    return again;
  }

  // A zero query is as near to every row: the first k rows, by definition of the distances.
  void answer_zero_queries(std::vector<std::int64_t>& todo, ExactLists& out) {
    const auto is_zero = [&](std::int64_t q) {
      return visit(queries_, [&](auto view) {
        const auto* x = view.row(q);
        for (std::int64_t i = 0; i < view.cols(); ++i)
          if (to_float(x[i]) != 0) return false;
        return true;
      });
    };
    std::erase_if(todo, [&](std::int64_t q) {
      if (!is_zero(q)) return false;
      for (std::int64_t j = 0; j < out.keys.cols(); ++j) {
        out.keys.row(q)[j] = impl_.metric == Metric::ip ? 0.0 : 1.0;
        out.ids.row(q)[j] = subset_.empty() ? j : std::int64_t{subset_[j]};
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
        // Ids of `all` are the smaller ones, so it goes first on equal keys.
        const bool from_all = b == more || (a < have && all.keys.row(q)[a] <= part.keys.row(q)[b]);
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
    for (std::int64_t q = 0; q < queries_.rows(); ++q)
      for (std::int64_t j = 0; j < k_asked_; ++j) {
        const bool has = j < all.keys.cols() && all.ids.row(q)[j] != no_id;
        out.ids.row(q)[j] = has ? all.ids.row(q)[j] : no_id;
        out.distances.row(q)[j] =
            has ? static_cast<float>(distance_of_key(impl_.metric, all.keys.row(q)[j]))
                : no_distance(impl_.metric);
      }
    return out;
  }

  void note_pass(FirstPass pass, std::size_t done) { done_by_[static_cast<int>(pass)] += done; }

  void fill(KnnReport& r, double seconds, std::int64_t chunk) const {
    const double per_query = std::max<double>(1, static_cast<double>(queries_.rows()));
    r = {};
    r.rows = impl_.base.rows(), r.allowed_rows = allowed_rows(), r.dim = impl_.base.cols();
    r.queries = queries_.rows(), r.k = k_asked_, r.metric = impl_.metric;
    r.isa = name_of(isa_), r.threads = threads_;
    r.first_pass = name_of(static_cast<FirstPass>(
        std::max_element(std::begin(done_by_), std::end(done_by_)) - std::begin(done_by_)));
    r.centred = centred_;
    r.prepare_seconds = prepare_seconds_, r.seconds = seconds - prepare_seconds_;
    r.scan_seconds = stats_.scan_seconds, r.rescore_seconds = stats_.rescore_seconds;
    r.hits_per_query = static_cast<double>(stats_.hits) / per_query;
    r.survivors_per_query = static_cast<double>(stats_.survivors) / per_query;
    r.fallback_queries = fallback_queries_;
    r.certified_queries = queries_.rows();
    r.memory_bytes =
        packed_bytes_ + stats_.buffer_bytes + queries_.rows() * (k_ * 16 + k_asked_ * 12);
    r.chunks = impl_.base.rows() == 0 ? 0 : (impl_.base.rows() + chunk - 1) / chunk;
    r.multiply_adds = multiply_adds_;
    r.bytes_read = bytes_read_;
  }

  ExactSearcher::Impl& impl_;
  AnyMatrixView queries_;
  const KnnOptions& options_;
  std::vector<std::uint32_t> subset_;  // of the chunk at hand; empty: all its rows
  bool once_;
  std::int64_t k_, k_asked_;
  Isa isa_;
  int threads_;
  DataSurvey found_;
  bool integer_ = false, centred_ = false;
  ScanStats stats_;
  double prepare_seconds_ = 0, multiply_adds_ = 0, bytes_read_ = 0;
  std::int64_t packed_bytes_ = 0, fallback_queries_ = 0;
  std::size_t done_by_[6] = {};
};

void check_search(AnyMatrixView queries, AnyMatrixView base, std::int64_t k) {
  if (k < 1) throw InvalidArgument("k must be at least 1, but is {}", k);
  if (k > max_k) throw InvalidArgument("k must be at most {}, but is {}", max_k, k);
  if (queries.cols() != base.cols())
    throw ShapeMismatch("queries have {} columns, base has {}", queries.cols(), base.cols());
}

void check_range(AnyMatrixView queries, AnyMatrixView base, double radius) {
  if (!std::isfinite(radius))
    throw InvalidArgument("radius must be a finite number, but is {}", radius);
  check_search(queries, base, 1);
}

void check_metric(Metric asked, Metric prepared) {
  if (asked != prepared)
    throw InvalidArgument("metric is {}, but the base was prepared for {}", name_of(asked),
                          name_of(prepared));
}

// The largest key within a radius.
double limit_of(Metric metric, double radius) {
  return metric == Metric::ip ? 0.0 - radius : radius;
}

// What plans of a range search take for k, which it has none of.
constexpr std::int64_t usual_k = 10;

}  // namespace

Neighbors ExactSearcher::search(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                                KnnReport* report) const {
  // Whatever the caller's mode is: with denormals off, zero queries and the distances of tiny
  // vectors would be others.
  DefaultFloatMode mode;
  check_search(queries, impl_->base, k);
  check_metric(options.metric, impl_->metric);
  return Search(*impl_, queries, k, options, false).run(report);
}

RangeNeighbors ExactSearcher::range_search(AnyMatrixView queries, double radius,
                                           const KnnOptions& options, KnnReport* report) const {
  DefaultFloatMode mode;
  check_range(queries, impl_->base, radius);
  check_metric(options.metric, impl_->metric);
  return Search(*impl_, queries, usual_k, options, false)
      .run_range(limit_of(options.metric, radius), report);
}

Neighbors knn(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, const KnnOptions& options,
              KnnReport* report) {
  DefaultFloatMode mode;
  check_search(queries, base, k);
  ExactSearcher::Impl impl(base, options);
  return Search(impl, queries, k, options, true).run(report);
}

RangeNeighbors range_search(AnyMatrixView queries, AnyMatrixView base, double radius,
                            const KnnOptions& options, KnnReport* report) {
  DefaultFloatMode mode;
  check_range(queries, base, radius);
  ExactSearcher::Impl impl(base, options);
  return Search(impl, queries, usual_k, options, true)
      .run_range(limit_of(options.metric, radius), report);
}

}  // namespace knear
