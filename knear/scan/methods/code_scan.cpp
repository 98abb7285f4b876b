// Tables of bytes for blocks of queries, lists in order, and the candidates of each query.
#include "knear/scan/methods/code_scan.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "knear/core/seconds.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/cost/list_plan.hpp"
#include "knear/scan/kernels/code_kernels.hpp"
#include "knear/scan/kernels/code_key.hpp"
#include "knear/scan/methods/code_candidates.hpp"
#include "knear/scan/methods/code_products.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scores.hpp"
#include "knear/scan/work_table.hpp"

namespace knear::detail {
namespace {

constexpr double epsilon = 0x1p-22;      // four roundings of a float32
constexpr double most_byte_sum = 65000;  // of the bytes of a row

// Codes that queries go over together: they stay in the second cache.
constexpr std::int64_t chunk_bytes = 1 << 17;
// Tables of no more bytes are kept for every query, beside their bytes.
constexpr std::int64_t most_kept_bytes = 4096;
// Queries of a task at most, and the bytes of their tables.
constexpr std::int64_t most_queries = 1024, most_table_bytes = 16 << 20;
// By products, where they have no tables.
constexpr std::int64_t most_queries_of_products = 8192;
// Rows that a query scores between two looks at its threshold, and groups of these.
constexpr std::int64_t most_step = 1024, step_groups = most_step / code_group_rows;
// Groups of rows that are decoded together: they stay in the second cache, too.
std::int64_t groups_of_products(std::int64_t dim) {
  return std::clamp<std::int64_t>(chunk_bytes / dim / code_group_rows, 1, step_groups);
}
// Where a filter leaves fewer than one row in so many of these, only its rows are looked at: with
// tables of floats at hand, without, and by products.
constexpr std::int64_t few_allowed = 16, few_allowed_without = 256, few_allowed_of_products = 64;

// The tables of a query, rounded down to bytes. A step of a byte stands for `unit`. Larger entries
// are cut off at the largest byte, so a sum of bytes never exceeds the sum that it stands for.
struct ByteTables {
  AlignedArray<double> query;         // [dim]
  AlignedArray<std::uint8_t> tables;  // as CodeScanArgs has them
  std::vector<float> kept;            // as they were and their ranges, where they are small
  double base = 0;                    // what a sum of bytes of 0 stands for
  double unit = 1;
  double magnitude = 0;  // of the entries of all tables, the largest of each, added up
  double widest = 0;     // the largest range of a table
  bool rounded = false;  // whether bytes are more than 0

  // width: bytes of a code. Tables of bytes behind those of the book are empty.
  void make(const CodeScanJob& job, std::int64_t q, std::int64_t width,
            std::vector<float>& scratch) {
    const CodeBook& book = *job.book;
    const std::int64_t parts = book.parts(), count = book.count();
    if (query.size() == 0) {
      query = AlignedArray<double>(book.dim());
      // Of 4 bits, an odd last part is followed by an empty one.
      tables = AlignedArray<std::uint8_t>(width * (book.bits() == 8 ? 256 : 32));
    }
    job.prepare(q, query.data());
    scratch.resize(parts * (count + 2));
    float* const entries = scratch.data();
    float* const ranges = entries + parts * count;
    book.fill_tables(query.data(), job.squared, job.isa, entries, ranges);
    base = magnitude = 0;
    widest = 0;
    double sum = 0;
    for (std::int64_t m = 0; m < parts; ++m) {
      const double least = ranges[2 * m], largest = ranges[2 * m + 1];
      base += least;
      magnitude += std::max(std::abs(least), std::abs(largest));
      widest = std::max(widest, largest - least), sum += largest - least;
    }
    if (keeps(book)) kept.assign(entries, entries + parts * (count + 2));
    round(job, std::max(widest / most_table_entry, sum / most_byte_sum), most_table_entry, entries);
  }
  // Makes bytes of the tables [parts * count] and their ranges, with a unit of about `wanted` and
  // entries of at most `most`.
  void round(const CodeScanJob& job, double wanted, float most, const float* entries) {
    const std::int64_t parts = job.book->parts(), count = job.book->count();
    const float* const ranges = entries + parts * count;
    float scale = static_cast<float>(1 / wanted * (1 - 1e-6));
    if (!(scale > 0 && scale < float_infinity)) scale = 0;  // then every byte is 0
    rounded = scale > 0;
    unit = rounded ? 1 / static_cast<double>(scale) : 1;
    const CodeKernels& kernels = code_kernels(job.isa);
    for (std::int64_t m = 0; m < parts; ++m) {
      const RoundDownArgs args{entries + m * count,      count, ranges[2 * m], scale, most,
                               tables.data() + m * count};
      kernels.round_down(&args);
    }
  }
  // Makes finer bytes where only sums of up to base + reach are wanted, so that rows that are near
  // beside the range of the tables can be told apart. Returns false if they would be hardly finer.
  bool sharpen(const CodeScanJob& job, double reach, const float* entries) {
    const std::int64_t parts = job.book->parts();
    const double most =
        std::min<double>(most_table_entry, std::floor(most_byte_sum / double(parts)));
    // A row of `parts` entries loses half a unit for each: that is an eighth of what is wanted.
    const double units = std::min(most_byte_sum, std::max<double>(most, 4 * double(parts)));
    const double wanted = std::max(reach / units, widest * 0x1p-30);
    if (!rounded || !(most >= 1) || !(2 * wanted < unit)) return false;
    round(job, wanted, static_cast<float>(most), entries);
    return true;
  }
  static bool keeps(const CodeBook& book) {
    return book.parts() * book.count() * 4 <= most_kept_bytes;
  }
  void prefetch() const {
    const auto bytes = std::min<std::size_t>(tables.size(), 1024);
    for (std::size_t b = 0; b < bytes; b += 64) __builtin_prefetch(tables.data() + b);
  }
};

// Bytes of a code. A codec may have more than those that the book describes.
std::int64_t width_of(std::span<const CodeSegment> segments, const CodeBook& book) {
  return segments.empty() ? book.code_size() : segments.front().lists->width();
}

// A query and one of its lists.
struct Pair {
  std::uint32_t list, query;  // query: in its block
  float term;
};

// Rows of a list in one segment, from the first of a group on: groups [group, ...) of a step.
struct Run {
  std::uint32_t segment;
  std::int32_t rows;
  std::int64_t row, group;

  std::int64_t groups() const { return (rows + code_group_rows - 1) / code_group_rows; }
};

// Rows of a list that are scored together, of all segments: as many as of a single one, so that
// what a query and a list take whatever their number is not taken for each segment.
struct Step {
  std::size_t first, last;  // runs
  std::int64_t groups = 0, rows = 0;
  std::int64_t left = 0;  // rows that filters let through
  // Which these are, a bit for each row of a group, from this word on; no_filter: all.
  std::size_t allowed = no_filter;

  static constexpr std::size_t no_filter = -1;
};

// How far pairs in the order of lists were scanned. Pair number `pair` is the first one of its
// list. `groups` groups of this list are done, and for the first `ahead` pairs `more_groups` more.
struct ScanPlace {
  std::size_t pair;
  std::int64_t groups = 0;
  std::size_t ahead = 0;
  std::int64_t more_groups = 0;
};

// Goes over the codes of some lists for a block of queries.
class BlockScan {
 public:
  // k: how many rows each query wants; 0: all that do not exceed a bound.
  BlockScan(std::span<const CodeSegment> segments, const CodeScanJob& job, std::int64_t k)
      : segments_(segments),
        job_(job),
        k_(k),
        width_(width_of(segments, *job.book)),
        kernels_(code_kernels(job.isa)),
        scan_kernels_(scan_kernels(job.isa)) {}

  // Makes the tables of a query, which is number `q` of the block. They are at hand for its scans
  // until those of the next one are made.
  void begin(std::int64_t query, std::uint32_t q) {
    tables_.resize(std::max<std::size_t>(tables_.size(), q + 1));
    tables_[q].make(job_, query, width_, entries_);
    at_hand_ = q;
  }

  // Makes finer bytes of the current query's tables for its other lists, where rows up to `bound`
  // are wanted. `term` is the least term of these lists.
  void sharpen_at_hand(float term, float bound) {
    float scalar = 0;
    for (const CodeSegment& segment : segments_)
      if (segment.lists->has_scalars()) scalar = std::max(scalar, segment.lists->largest_scalar());
    sharpen(at_hand_, scalar, term, bound);
  }

  // Calls bound(query), the key that is still wanted, and take(query, key, segment, row) for the
  // rows of all lists that do not exceed it; settle(query, limit) after some rows, of which k do
  // not exceed the limit. Of `parts` of the rows takes the one with number `part`. done: groups of
  // the first list that are left out.
  template <class Bound, class Take, class Settle>
  void scan(std::vector<Pair>& pairs, std::int64_t parts, std::int64_t part, Bound bound, Take take,
            Settle settle, std::int64_t done = 0) {
    // Few queries are shared by threads in smaller steps, so that all have some of a list. Those of
    // many go over as many rows as a near cache holds.
    const std::int64_t groups = parts > 1 ? step_groups / 2 : step_groups;
    const std::size_t fit = chunk_bytes / width_ / most_step;
    each_steps(pairs, groups, parts > 1 ? 1 : std::max<std::size_t>(1, fit), parts, part, done,
               [&](std::span<const Pair> some, std::span<const Step> steps) {
                 for (std::size_t i = 0; i < some.size(); ++i) {
                   // A block of thousands of queries takes seconds where many neighbours are
                   // wanted.
                   if (i % 16 == 0) stop_if_asked();
                   if (i + 1 < some.size()) tables_[some[i + 1].query].prefetch();
                   for (const Step& step : steps)
                     if (step.left > 0) scan_step(some[i], step, bound, take, settle);
                 }
                 return some.size() + 1;
               });
  }

  // The same by products (code_products.hpp): codes the queries of a block, in their order.
  void begin_products(Matrix<double> queries) {
    if (!products_)
      products_ = std::make_unique<CodeProducts>(*job_.book, job_.metric, job_.squared, job_.isa);
    products_->set_queries(std::move(queries));
  }
  // Then scans their lists. pays(share, rows) says whether a scan that lets this share of the rows
  // through should go on with `rows` more pairs of rows and queries. Returns where it stopped.
  template <class Bound, class Take, class Settle, class Pays>
  ScanPlace scan_products(std::vector<Pair>& pairs, std::int64_t parts, std::int64_t part,
                          Bound bound, Take take, Settle settle, Pays pays) {
    double scored = 0, passed = 0;
    return each_steps(
        pairs, groups_of_products(job_.book->dim()), 1, parts, part, 0,
        [&](std::span<const Pair> some, std::span<const Step> steps) {
          const Step& step = steps.front();
          const bool few = few_allowed_of_products * step.left < step.rows;
          products_->set_rows(decoded_runs(step), !few);
          set_barred(step);
          if (few) {
            taken_.clear();
            const std::int64_t count = find_others(step);
            for (const Pair& pair : some) {
              take_places(pair, step, count, take);
              settle(pair.query, float_infinity);
            }
            return some.size() + 1;
          }
          // The rest of the list, and the lists of other pairs, which are as long.
          double list_rows = 0, rest = 0;
          for (const Step& each : steps_) {
            list_rows += double(each.rows);
            if (&each > &step) rest += double(each.rows);
          }
          const auto behind = double(pairs.data() + pairs.size() - (some.data() + some.size()));
          for (std::size_t i = 0; i < some.size(); i += max_group) {
            stop_if_asked();
            const auto group = some.subspan(i, std::min<std::size_t>(max_group, some.size() - i));
            std::uint32_t queries[max_group];
            for (std::size_t j = 0; j < group.size(); ++j) queries[j] = group[j].query;
            products_->multiply({queries, group.size()});
            for (std::size_t j = 0; j < group.size(); ++j)
              passed += take_products(group[j], static_cast<int>(j), step, bound, take, settle);
            scored += double(group.size()) * double(step.rows);
            const std::size_t done = i + group.size();
            const double left = rest * double(some.size()) + behind * list_rows +
                                double(some.size() - done) * double(step.rows);
            if (!pays(passed / scored, left)) return done;
          }
          return some.size() + 1;
        });
  }

  ScanStats stats;

 private:
  // Calls f(pairs of a list, steps) for the rows of all lists, in steps of so many groups at most,
  // `together` of them at a time, of which filters let any through. It stops where it returns no
  // more than the number of these pairs, which are then done. Leaves out the first `done` groups of
  // the first list. Returns up to where it went.
  template <class F>
  ScanPlace each_steps(std::vector<Pair>& pairs, std::int64_t groups, std::size_t together,
                       std::int64_t parts, std::int64_t part, std::int64_t done, F f) {
    sort_by_list(pairs);
    std::int64_t counter = 0;
    for (std::size_t p = 0; p < pairs.size();) {
      std::size_t end = p;
      while (end < pairs.size() && pairs[end].list == pairs[p].list) ++end;
      cut(pairs[p].list, groups, done);
      for (std::size_t first = 0; first < steps_.size(); first += together) {
        if (counter++ % parts != part) continue;
        const std::span<Step> steps =
            std::span(steps_).subspan(first, std::min(together, steps_.size() - first));
        if (!take_up(steps)) continue;
        const std::size_t pairs_done =
            f(std::span<const Pair>(pairs).subspan(p, end - p), std::span<const Step>(steps));
        if (pairs_done > end - p) continue;
        for (std::size_t s = 0; s < first; ++s) done += steps_[s].groups;
        std::int64_t groups_of_steps = 0;
        for (const Step& step : steps) groups_of_steps += step.groups;
        return {p, done, pairs_done, groups_of_steps};
      }
      p = end, done = 0;
    }
    return {pairs.size()};
  }
  // Those of a list in the order of queries, in which they come.
  void sort_by_list(std::vector<Pair>& pairs) {
    std::uint32_t lists = 0;
    for (const Pair& pair : pairs) lists = std::max(lists, pair.list + 1);
    if (lists > 8 * pairs.size() + 64) {
      std::stable_sort(pairs.begin(), pairs.end(),
                       [](const Pair& a, const Pair& b) { return a.list < b.list; });
      return;
    }
    next_.assign(lists + 1, 0);
    for (const Pair& pair : pairs) ++next_[pair.list + 1];
    std::partial_sum(next_.begin(), next_.end(), next_.begin());
    sorted_.resize(pairs.size());
    for (const Pair& pair : pairs) sorted_[next_[pair.list]++] = pair;
    pairs.swap(sorted_);
  }

  // The rows of a list in all segments, without the first `done` groups, in steps of so many groups
  // at most.
  void cut(std::int64_t list, std::int64_t most_groups, std::int64_t done) {
    runs_.clear(), steps_.clear();
    for (std::uint32_t s = 0; s < segments_.size(); ++s) {
      const auto [begin, last] = segments_[s].lists->rows_of(list);
      const std::int64_t all = (last - begin + code_group_rows - 1) / code_group_rows,
                         left_out = std::min(done, all);
      done -= left_out;
      const std::int64_t first = std::min(last, begin + left_out * code_group_rows);
      for (std::int64_t row = first; row < last; row += runs_.back().rows) {
        if (steps_.empty() || steps_.back().groups == most_groups)
          steps_.push_back({runs_.size(), runs_.size()});
        Step& step = steps_.back();
        const std::int64_t room = (most_groups - step.groups) * code_group_rows;
        const auto rows = static_cast<std::int32_t>(std::min(room, last - row));
        runs_.push_back({s, rows, row, step.groups});
        step.last = runs_.size();
        step.groups += runs_.back().groups(), step.rows += rows;
      }
    }
  }
  std::span<const Run> runs_of(const Step& step) const {
    return std::span(runs_).subspan(step.first, step.last - step.first);
  }

  // The runs of a step for CodeProducts.
  std::span<const DecodedRun> decoded_runs(const Step& step) {
    decoded_.clear();
    for (const Run& run : runs_of(step))
      decoded_.push_back(
          {segments_[run.segment].lists, run.row, run.rows, run.group * code_group_rows});
    return decoded_;
  }
  // Notes which rows of a step may not be found, by their places.
  void set_barred(const Step& step) {
    barred_.clear();
    for (const Run& run : runs_of(step)) {
      const AllowedRows& there = segments_[run.segment].allowed;
      if (step.allowed == Step::no_filter && !there.live) continue;
      for (std::int64_t i = 0; i < run.rows; ++i) {
        const bool filtered =
            step.allowed != Step::no_filter &&
            (allowed_[step.allowed + static_cast<std::size_t>(run.group + i / 64)] >> i % 64 & 1) ==
                0;
        if (filtered || (there.live && !there.live->contains(run.row + i + there.live_offset)))
          barred_.push_back(static_cast<std::uint32_t>(run.group * code_group_rows + i));
      }
    }
  }

  // Takes the rows in the first `count` of places_; returns the largest key of these.
  template <class Take>
  float take_places(const Pair& pair, const Step& step, std::int64_t count, Take take) {
    products_->sums(pair.query, places_.data(), count, sums_);
    float most = -float_infinity;
    const Run* run = &runs_[step.first];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t at = places_[i];
      while (at >= run->group * code_group_rows + run->rows) ++run;
      const float key = code_key(job_.metric, pair.term, sums_[i], products_->scalar(at));
      most = std::max(most, key);
      take(pair.query, key, run->segment, run->row + at - run->group * code_group_rows);
    }
    stats.survivors += count;
    return most;
  }
  // Finds the places of all rows of a step that may be found and were not taken; how many.
  std::int64_t find_others(const Step& step) {
    places_.clear();
    auto barred = barred_.begin(), taken = taken_.begin();
    for (const Run& run : runs_of(step)) {
      const auto first = static_cast<std::uint32_t>(run.group * code_group_rows);
      for (std::uint32_t at = first; at < first + static_cast<std::uint32_t>(run.rows); ++at)
        if (barred != barred_.end() && *barred == at)
          ++barred;
        else if (taken != taken_.end() && *taken == at)
          ++taken;
        else
          places_.push_back(at);
    }
    return std::ssize(places_);
  }

  // Takes the rows of a step whose products with a query are known. Returns how many passed, beside
  // those that show how near the nearest are.
  template <class Bound, class Take, class Settle>
  double take_products(const Pair& pair, int lane, const Step& step, Bound bound, Take take,
                       Settle settle) {
    const std::int64_t places = products_->places();
    places_.resize(static_cast<std::size_t>(places) + 1);
    taken_.clear();
    float limit = bound(pair.query);
    if (limit == float_infinity) {
      // Nothing is known yet of how near the k nearest are: some k rows say it. For cosine they say
      // what scalars count for, too, and then others say it better.
      const int rounds = traits_of(job_.metric).unit_rows ? 2 : 1;
      for (int round = 0; round < rounds && wants_likely(step.rows); ++round) {
        const float* const bounds = bounds_of_others(lane, limit);
        if (!bounds) break;
        const std::int64_t count = scan_kernels_.places_at_least(
            bounds, places, scan_kernels_.largest_value(bounds, places, k_), places_.data());
        if (count < k_ || count >= step.rows) break;
        limit = std::min(limit, take_places(pair, step, count, take));
        settle(pair.query, limit);
        taken_.insert(taken_.end(), places_.begin(), places_.begin() + count);
      }
      std::sort(taken_.begin(), taken_.end());
    }
    const float* const bounds = bounds_of_others(lane, limit);
    const std::int64_t count =
        bounds ? scan_kernels_.places_at_least(
                     bounds, places, products_->least_of(pair.term, limit), places_.data())
               : find_others(step);  // numbers of which floats are none
    take_places(pair, step, count, take);
    settle(pair.query, float_infinity);
    return double(std::max<std::int64_t>(0, count - 2 * k_));
  }
  // Whether k of the rows that are left are few of them.
  bool wants_likely(std::int64_t rows) const {
    return k_ > 0 && rows - std::ssize(barred_) - std::ssize(taken_) >= 2 * k_;
  }
  // CodeProducts::bounds_of() of rows that may be found and were not taken.
  const float* bounds_of_others(int lane, float limit) {
    float* const bounds = products_->bounds_of(lane, limit);
    if (!bounds) return nullptr;
    for (const std::uint32_t at : barred_) bounds[at] = -float_infinity;
    for (const std::uint32_t at : taken_) bounds[at] = -float_infinity;
    return bounds;
  }

  template <class Bound, class Take, class Settle>
  void scan_step(const Pair& pair, const Step& step, Bound bound, Take take, Settle settle) {
    const ByteTables& tables = tables_[pair.query];
    const std::span<const Run> runs = runs_of(step);
    const std::uint64_t* const allowed =
        step.allowed == Step::no_filter ? nullptr : allowed_.data() + step.allowed;
    // Takes the rows whose bits are set; returns the largest key of these.
    const auto take_rows = [&](const std::uint64_t* near) {
      float most = -float_infinity;
      for (const Run& run : runs) {
        const CodedLists& lists = *segments_[run.segment].lists;
        const float* const scalars = lists.has_scalars() ? lists.scalars() + run.row : nullptr;
        const std::int64_t count =
            sums_of(lists, tables, pair.query == at_hand_, run.row, run.rows, near + run.group);
        for (std::int64_t i = 0; i < count; ++i) {
          sums_[i] = code_key(job_.metric, pair.term, sums_[i], scalars ? scalars[at_[i]] : 0);
          most = std::max(most, sums_[i]);
        }
        for (std::int64_t i = 0; i < count; ++i)
          take(pair.query, sums_[i], run.segment, run.row + at_[i]);
        stats.survivors += count;
      }
      return most;
    };
    float limit = bound(pair.query);
    const bool summed = pair.query == at_hand_ || !tables.kept.empty();
    if ((summed ? few_allowed : few_allowed_without) * step.left < step.rows) {
      std::copy_n(allowed, step.groups, near_);
    } else if (limit == float_infinity && likely_nearest(step, tables, allowed)) {
      // The k rows with the smallest sums show how far the others may be. Where many sums are
      // equal, the first rows are taken.
      std::uint64_t likely[step_groups];
      move_first(step, most_unsettled(), likely);
      limit = take_rows(likely);
      settle(pair.query, limit);
      limit = std::min(limit, bound(pair.query));
      if (!up_to_values(step, tables, pair.term, limit, near_)) return;
      for (std::int64_t g = 0; g < step.groups; ++g) near_[g] &= ~likely[g];
    } else if (!nearest_groups(step, tables, pair.term, limit)) {
      return;
    }
    for (std::int64_t g = 0; allowed && g < step.groups; ++g) near_[g] &= allowed[g];
    for (const Run& run : runs) {
      const AllowedRows& there = segments_[run.segment].allowed;
      if (there.live) leave_live(there, run.row, run.groups(), near_ + run.group);
    }
    // Many rows have sums of bytes that look near: the nearest of the first ones leave fewer.
    while (k_ > 0 && summed && number_of(step, near_) > 2 * most_unsettled()) {
      std::uint64_t first[step_groups];
      move_first(step, most_unsettled(), first);
      take_rows(first);
      settle(pair.query, float_infinity);
      limit = bound(pair.query);
      if (!sharpen(pair.query, largest_scalar(step), pair.term, limit)) break;
      std::uint64_t others[step_groups];
      std::copy_n(near_, step.groups, others);
      if (!nearest_groups(step, tables, pair.term, limit)) return;
      for (std::int64_t g = 0; g < step.groups; ++g) near_[g] &= others[g];
    }
    take_rows(near_);
    settle(pair.query, float_infinity);
  }
  // Rows that are taken before it is seen whether they leave fewer others.
  std::int64_t most_unsettled() const { return 4 * k_ + 64; }
  static std::int64_t number_of(const Step& step, const std::uint64_t* near) {
    std::int64_t count = 0;
    for (std::int64_t g = 0; g < step.groups; ++g) count += std::popcount(near[g]);
    return count;
  }
  // Moves the bits of the first rows of near_, of about `most`, to `first`.
  void move_first(const Step& step, std::int64_t most, std::uint64_t* first) {
    for (std::int64_t g = 0; g < step.groups; ++g) {
      first[g] = most > 0 ? near_[g] : 0;
      near_[g] &= ~first[g];
      most -= std::popcount(first[g]);
    }
  }

  // Finds out which rows of some steps filters let through, and where these are; false if there are
  // none.
  bool take_up(std::span<Step> steps) {
    allowed_.clear();
    scans_.resize(runs_.size());
    bool any = false;
    for (Step& step : steps) {
      step.left = step.rows;
      const std::span<const Run> runs = runs_of(step);
      if (std::any_of(runs.begin(), runs.end(),
                      [&](const Run& run) { return segments_[run.segment].filtered(); })) {
        step.allowed = allowed_.size(), step.left = 0;
        for (const Run& run : runs) step.left += add_allowed(run);
      }
      any = any || step.left > 0;
      for (std::size_t r = step.first; r < step.last && step.left > 0; ++r) {
        const Run& run = runs_[r];
        const CodedLists& lists = *segments_[run.segment].lists;
        scans_[r] = {lists.groups(run.row, run.rows), run.rows,
                     lists.has_scalars() ? lists.scalars() + run.row : nullptr, near_ + run.group,
                     values_ + run.group * code_group_rows};
      }
    }
    return any;
  }
  // Adds the bits of a run, and returns how many are set.
  std::int64_t add_allowed(const Run& run) {
    const CodeSegment& segment = segments_[run.segment];
    const AllowedRows& allowed = segment.allowed;
    std::int64_t left = 0;
    for (std::int64_t at = 0; at < run.rows; at += 64) {
      const std::int64_t row = run.row + at, rows = std::min<std::int64_t>(64, run.rows - at);
      std::uint64_t bits = ~std::uint64_t{0};
      if (rows < 64) bits = (std::uint64_t{1} << rows) - 1;
      if (allowed.filter) bits &= allowed.filter->bits_from(row + allowed.offset);
      if (segment.allowed_ids) {
        std::uint64_t welcome = 0;
        for (std::int64_t i = 0; i < rows; ++i)
          welcome |= std::uint64_t{segment.allowed_ids->holds(segment.ids(row + i))} << i;
        bits &= welcome;
      }
      allowed_.push_back(bits);
      left += std::popcount(bits);
    }
    return left;
  }
  // Clears the bits of rows that are no longer there.
  static void leave_live(const AllowedRows& allowed, std::int64_t row, std::int64_t groups,
                         std::uint64_t* near) {
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::uint64_t bits = near[g]; bits != 0; bits &= bits - 1)
        if (!allowed(row + 64 * g + std::countr_zero(bits))) near[g] &= ~(bits & (0 - bits));
  }

  // The sums of the rows whose bits are set, and their numbers from the first one on; returns how
  // many there are.
  std::int64_t sums_of(const CodedLists& lists, const ByteTables& tables, bool at_hand,
                       std::int64_t row, std::int64_t rows, const std::uint64_t* near) {
    const CodeBook& book = *job_.book;
    const std::uint8_t* const codes = lists.groups(row, rows);
    if (at_hand || !tables.kept.empty()) {
      const CodeSumArgs args{codes,
                             rows,
                             lists.width(),
                             book.parts(),
                             at_hand ? entries_.data() : tables.kept.data(),
                             near,
                             sums_,
                             at_};
      return (book.bits() == 8 ? kernels_.sums8 : kernels_.sums4)(&args);
    }
    std::int64_t count = 0;
    if (book.bits() == 8 && lists.width() == book.parts()) {
      wanted_.clear();
      for (std::int64_t first = 0; first < rows; first += 64)
        for (std::uint64_t bits = near[first / 64]; bits != 0; bits &= bits - 1) {
          wanted_.push_back(static_cast<std::uint32_t>(first + std::countr_zero(bits)));
          at_[count++] = static_cast<std::uint16_t>(wanted_.back());
        }
      if (count == 0) return 0;
      const DirectSumArgs args{codes,
                               rows,
                               book.parts(),
                               book.width(),
                               book.centroids().data(),
                               tables.query.data(),
                               job_.squared,
                               wanted_.data(),
                               count,
                               sums_};
      kernels_.direct_sums8(&args);
      return count;
    }
    for (std::int64_t first = 0; first < rows; first += 64) {
      const std::int64_t stride = std::min<std::int64_t>(64, rows - first);
      for (std::uint64_t bits = near[first / 64]; bits != 0; bits &= bits - 1) {
        const std::int64_t at = first + std::countr_zero(bits);
        sums_[count] = book.sum(codes + first * lists.width() + (at - first), stride,
                                tables.query.data(), job_.squared);
        at_[count++] = static_cast<std::uint16_t>(at);
      }
    }
    return count;
  }

  // Makes finer bytes of the tables of a query that wants rows up to `bound`, in lists with this
  // term. Returns false where that is not possible or would help little.
  bool sharpen(std::uint32_t q, double scalar, float term, float bound) {
    ByteTables& tables = tables_[q];
    if (!(bound < float_infinity) || !std::isfinite(term) || (q != at_hand_ && tables.kept.empty()))
      return false;
    const bool cosine = traits_of(job_.metric).unit_rows;
    const double keys = cosine ? std::max(0.0, (double{bound} - 1) * scalar)
                               : double{bound} + (traits_of(job_.metric).squared ? scalar : 0);
    const double reach =
        keys - double{term} - tables.base +
        rounding_of(tables, term, scalar * (cosine ? std::abs(double{bound} - 1) + 1 : 1.0),
                    cosine ? 0 : double{bound});
    return tables.sharpen(job_, std::max(0.0, reach),
                          q == at_hand_ ? entries_.data() : tables.kept.data());
  }

  // How far float32 roundings of a key may take it, of rows with such scalars.
  double rounding_of(const ByteTables& tables, float term, double scalar, double bound) const {
    // Sums may overflow on the way: then everything passes.
    if (!(tables.magnitude < 1e38)) return std::numeric_limits<double>::infinity();
    const double rest = std::abs(term) + scalar + std::abs(bound);
    // Squares add up to no more than what they may be, on the way too.
    const double sums = job_.squared ? std::min(tables.magnitude, 2 * rest) : tables.magnitude;
    const double size = sums + std::abs(tables.base) + rest;
    return static_cast<double>(job_.book->parts() + 8) * epsilon * size;
  }

  bool has_scalars(const Step& step) const {
    return segments_[runs_[step.first].segment].lists->has_scalars();
  }
  float largest_scalar(const Step& step) const {
    float largest = 0;
    for (const Run& run : runs_of(step))
      largest = std::max(largest, segments_[run.segment].lists->largest_scalar());
    return largest;
  }

  // Where nothing is known of how near the k nearest are: sets the bits of the rows of a step with
  // the k smallest sums of bytes, or of a few more, and keeps these sums. Returns false where that
  // helps nothing. allowed: the rows that a filter lets through, or nullptr.
  bool likely_nearest(const Step& step, const ByteTables& tables, const std::uint64_t* allowed) {
    const double slope = has_scalars(step) ? -1 / tables.unit : 0;
    // For cosine scalars divide, by which sums of bytes go too only if they are scaled.
    if (k_ == 0 || step.left < 2 * k_ || !tables.rounded || !(std::abs(slope) < 1e30) ||
        (traits_of(job_.metric).unit_rows && has_scalars(step)))
      return false;
    const auto may_be_found = [&](const Run& run, std::int64_t i) {
      const AllowedRows& there = segments_[run.segment].allowed;
      return (!allowed || (allowed[run.group + i / 64] >> i % 64 & 1) != 0) &&
             (!there.live || there(run.row + i));
    };
    const bool some_gone =
        allowed || std::any_of(runs_of(step).begin(), runs_of(step).end(),
                               [&](const Run& run) { return segments_[run.segment].allowed.live; });
    if (some_gone) {
      std::int64_t count = 0;
      for (const Run& run : runs_of(step))
        for (std::int64_t i = 0; i < run.rows; ++i) count += may_be_found(run, i);
      if (count < 2 * k_) return false;
    }
    constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
    const std::span<const Run> runs = runs_of(step);
    CodeScanArgs args = scan_args(step, tables);
    args.slope = static_cast<float>(slope), args.values = true;
    scan_bytes(args);
    for (const Run& run : runs)
      for (std::int64_t i = 0; some_gone && i < run.rows; ++i)
        if (!may_be_found(run, i)) values_[run.group * code_group_rows + i] = none;
    // Places between runs are no rows. A number beyond k of them, which the k-th does not reach, is
    // found among others in fewer rounds than the largest of all.
    std::int32_t beyond = none;
    if (!some_gone && runs.size() > 1 && runs[0].rows >= k_)
      beyond = *std::max_element(values_, values_ + k_) + 1;
    fill_between(runs, beyond);
    const std::int32_t kth = kernels_.kth_value(values_, places_of(runs), k_);
    kernels_.values_up_to(values_, places_of(runs), kth, near_);
    fill_between(runs, none);
    return true;
  }
  // Places of a step up to its last row.
  static std::int64_t places_of(std::span<const Run> runs) {
    return runs.back().group * code_group_rows + runs.back().rows;
  }
  void fill_between(std::span<const Run> runs, std::int32_t value) {
    for (const Run& run : runs.first(runs.size() - 1))
      std::fill(values_ + run.group * code_group_rows + run.rows,
                values_ + (run.group + run.groups()) * code_group_rows, value);
  }
  // Sets the bits of rows whose key may be up to `bound`, by the sums of likely_nearest().
  bool up_to_values(const Step& step, const ByteTables& tables, float term, float bound,
                    std::uint64_t* near) const {
    const double room = rounding_of(tables, term, largest_scalar(step), double{bound}),
                 limit = (double{bound} - (tables.base + double{term}) + room) / tables.unit + 1;
    if (!(std::abs(limit) < 1 << 29)) {
      set_all(step, near);
      return true;
    }
    kernels_.values_up_to(values_, places_of(runs_of(step)),
                          static_cast<std::int32_t>(std::floor(limit)), near);
    return any(step, near);
  }
  static bool any(const Step& step, const std::uint64_t* near) {
    return std::any_of(near, near + step.groups, [](std::uint64_t bits) { return bits != 0; });
  }
  void set_all(const Step& step, std::uint64_t* near) const {
    for (const Run& run : runs_of(step)) {
      std::fill_n(near + run.group, run.groups(), ~std::uint64_t{0});
      if (run.rows % 64 != 0)
        near[run.group + run.groups() - 1] = (std::uint64_t{1} << run.rows % 64) - 1;
    }
  }
  CodeScanArgs scan_args(const Step& step, const ByteTables& tables) const {
    CodeScanArgs args{};
    args.runs = scans_.data() + step.first;
    args.run_count = static_cast<std::int64_t>(step.last - step.first);
    args.width = width_, args.tables = tables.tables.data();
    return args;
  }
  void scan_bytes(const CodeScanArgs& args) const {
    (job_.book->bits() == 8 ? kernels_.bits8 : kernels_.bits4)(&args);
  }

  // Sets the bits of rows whose key may be up to `bound`; false if there are none.
  bool nearest_groups(const Step& step, const ByteTables& tables, float term, float bound) {
    const bool cosine = traits_of(job_.metric).unit_rows;
    // The float32 roundings of a key, and those of the test itself.
    const double scalar = largest_scalar(step) * (cosine ? std::abs(double{bound} - 1) + 1 : 1.0),
                 room = rounding_of(tables, term, scalar, cosine ? 0 : double{bound});
    const double known = tables.base + double{term};
    double offset = ((cosine ? 0 : double{bound}) - known + room) / tables.unit;
    double slope = 0;
    if (has_scalars(step)) slope = (cosine ? double{bound} - 1 : -1) / tables.unit;
    if (bound == float_infinity || !std::isfinite(offset) || std::abs(offset) > 1e30 ||
        !(std::abs(slope) < 1e30)) {
      set_all(step, near_);
      return true;
    }
    CodeScanArgs args = scan_args(step, tables);
    args.offset = std::nextafter(static_cast<float>(offset), float_infinity);
    args.slope = static_cast<float>(slope);
    scan_bytes(args);
    return any(step, near_);
  }

  const std::span<const CodeSegment> segments_;
  const CodeScanJob& job_;
  const std::int64_t k_, width_;
  const CodeKernels& kernels_;
  const ScanKernels& scan_kernels_;
  std::vector<std::size_t> next_;  // while pairs are sorted, into:
  std::vector<Pair> sorted_;
  std::unique_ptr<CodeProducts> products_;
  std::vector<DecodedRun> decoded_;
  // Places of a step: those found, and those that may not be, ascending.
  std::vector<std::uint32_t> places_, barred_, taken_;
  std::vector<std::uint32_t> wanted_;  // rows of a run whose sums are wanted without tables
  std::vector<ByteTables> tables_;
  std::vector<float> entries_;  // the tables of the query at hand, and their ranges
  std::uint32_t at_hand_ = 0;
  // Of the rows of a step: which may be near enough, or values.
  std::uint64_t near_[step_groups];
  std::int32_t values_[most_step + code_group_rows];
  // The list at hand, and which rows of some of its steps filters let through.
  std::vector<Run> runs_;
  std::vector<CodeRun> scans_;  // of the same, where their steps are at hand
  std::vector<Step> steps_;
  std::vector<std::uint64_t> allowed_;
  // Of rows that are left of a step: sums, and then keys, and their numbers.
  float sums_[most_step + code_group_rows];
  std::uint16_t at_[most_step + code_group_rows] = {};
};

// Scans that tasks after one another use, so that the memory of their tables is used again.
class BlockScans {
 public:
  BlockScans(std::span<const CodeSegment> segments, const CodeScanJob& job, std::int64_t k)
      : segments_(segments), job_(job), k_(k) {}

  std::unique_ptr<BlockScan> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<BlockScan>(segments_, job_, k_);
    std::unique_ptr<BlockScan> out = std::move(idle_.back());
    idle_.pop_back();
    return out;
  }
  void give_back(std::unique_ptr<BlockScan> block) {
    block->stats = {};
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(block));
  }

 private:
  const std::span<const CodeSegment> segments_;
  const CodeScanJob& job_;
  const std::int64_t k_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<BlockScan>> idle_;
};

// Probes [from, to) of a query.
void add_pairs(const CodeProbes& probes, std::int64_t query, std::uint32_t q, std::int64_t from,
               std::int64_t to, std::vector<Pair>& out) {
  for (std::int64_t p = from; p < to && probes.lists.row(query)[p] != no_id; ++p)
    out.push_back(
        {static_cast<std::uint32_t>(probes.lists.row(query)[p]), q, probes.terms.row(query)[p]});
}

// The least term of the lists behind the first one of a query.
float least_term(const CodeProbes& probes, std::int64_t query) {
  float least = float_infinity;
  for (std::int64_t p = 1; p < probes.lists.cols() && probes.lists.row(query)[p] != no_id; ++p)
    least = std::min(least, probes.terms.row(query)[p]);
  return least;
}

// Scans by tables what a scan by products has left of the pairs of a block from this place on, and
// then other pairs: for up to `together` queries at a time.
template <class Query, class Bound, class Take, class Settle>
void scan_rest(BlockScan& block, std::span<const Pair> pairs, const ScanPlace& place,
               std::span<const Pair> others, std::uint32_t queries, std::int64_t together,
               Query query, Bound bound, Take take, Settle settle) {
  const std::span<const Pair> left = pairs.subspan(place.pair);
  // Pairs of a list are in the order of queries.
  const std::uint32_t begun = left.front().list, last_ahead = left[place.ahead - 1].query;
  const auto by_query = [](std::span<const Pair> some) {
    std::vector<Pair> out(some.begin(), some.end());
    std::stable_sort(out.begin(), out.end(),
                     [](const Pair& a, const Pair& b) { return a.query < b.query; });
    return out;
  };
  const std::vector<Pair> firsts = by_query(left), seconds = by_query(others);
  auto first = firsts.begin();
  auto second = seconds.begin();
  const auto some = static_cast<std::uint32_t>(std::clamp<std::int64_t>(together, 1, most_queries));
  std::vector<Pair> own, later;
  for (std::uint32_t from = 0; from < queries; from += some) {
    // Number the pairs of these queries as their tables are numbered.
    const auto bound_of = [&](std::uint32_t q) { return bound(from + q); };
    const auto take_of = [&](std::uint32_t q, float key, std::uint32_t segment, std::int64_t row) {
      take(from + q, key, segment, row);
    };
    const auto settle_of = [&](std::uint32_t q, float limit) { settle(from + q, limit); };
    later.clear();
    for (std::uint32_t q = from; q < std::min(queries, from + some); ++q) {
      float term = float_infinity;
      const auto move_pairs = [&](auto& next, auto end, std::vector<Pair>& to) {
        for (; next != end && next->query == q; ++next) {
          to.push_back({next->list, q - from, next->term});
          term = std::min(term, next->term);
        }
      };
      own.clear();
      move_pairs(first, firsts.end(), own);
      move_pairs(second, seconds.end(), later);
      if (term == float_infinity) continue;
      block.begin(query(q), q - from);
      block.sharpen_at_hand(term, bound(q));
      if (!own.empty()) {
        std::int64_t done = 0;
        if (own.front().list == begun)
          done = place.groups + (q <= last_ahead ? place.more_groups : 0);
        block.scan(own, 1, 0, bound_of, take_of, settle_of, done);
      }
      // The rows found so far lower the bound for the others.
      block.sharpen_at_hand(term, bound(q));
    }
    block.scan(later, 1, 0, bound_of, take_of, settle_of);
  }
}

std::int64_t bytes_by_products(const CodeBook& book, std::int64_t k) {
  return book.dim() * 9 + k * 60 + 2500;
}
// What rows take besides: decoded, with their scores, and the tables of their sums.
std::int64_t bytes_of_products(const CodeBook& book) {
  return groups_of_products(book.dim()) * code_group_rows * (book.dim() + 4 * max_group + 40) +
         4 * book.parts() * book.count();
}
std::int64_t room_of(const CodeScanJob& job) {
  return std::min(most_table_bytes, job.memory / job.threads);
}

ListShape shape_of(std::span<const CodeSegment> segments, const CodeScanJob& job,
                   std::int64_t queries, std::int64_t probes) {
  ListShape shape{.dim = job.book->dim(), .queries = queries};
  shape.code_parts = job.book->parts(), shape.code_bits = job.book->bits();
  shape.threads = job.threads;
  for (const CodeSegment& segment : segments) {
    shape.rows += segment.lists->rows();
    shape.lists = std::max(shape.lists, std::ssize(segment.lists->lists()));
  }
  shape.probes = static_cast<double>(std::min(probes, shape.lists));
  shape.probed_rows = static_cast<double>(shape.rows) * shape.probes /
                      static_cast<double>(std::max<std::int64_t>(1, shape.lists));
  return shape;
}

// Returns whether each list is decoded once for all of its queries.
bool goes_by_products(std::span<const CodeSegment> segments, const CodeScanJob& job,
                      std::int64_t queries, std::int64_t probes) {
  if (!job.book->tiles().usable() || job.comparison == CodeComparison::by_tables ||
      width_of(segments, *job.book) != job.book->code_size())
    return false;
  if (job.comparison == CodeComparison::by_products) return true;
  if (room_of(job) < 2 * bytes_of_products(*job.book)) return false;  // of a limited memory
  ListShape shape = shape_of(segments, job, queries, probes);
  if (!products_of_codes_pay(shape, job.isa)) return false;
  // With a sum for each row, too?
  constexpr std::int64_t most_sample = 64;
  Matrix<double> sample = Matrix<double>::unset(std::min(most_sample, queries), job.book->dim());
  for (std::int64_t i = 0; i < sample.rows(); ++i)
    job.prepare(i * queries / sample.rows(), sample.row(i));
  shape.rows_have_sums = rows_have_sums(*job.book, job.squared, sample.view());
  return products_of_codes_pay(shape, job.isa);
}

// Queries of a task: as many as keep all threads busy and fit.
std::int64_t block_size(const CodeScanJob& job, std::int64_t queries, std::int64_t probes,
                        bool by_products) {
  // With its pairs, which are sorted into another list.
  const std::int64_t each =
      (by_products ? bytes_by_products(*job.book, job.k) : bytes_of_coded_query(*job.book, job.k)) +
      probes * 2 * static_cast<std::int64_t>(sizeof(Pair));
  const std::int64_t room = room_of(job) - (by_products ? bytes_of_products(*job.book) : 0);
  const std::int64_t most = std::clamp<std::int64_t>(
      room / each, 1, by_products ? most_queries_of_products : most_queries);
  return std::clamp<std::int64_t>((queries + job.threads - 1) / job.threads, 1, most);
}

}  // namespace

std::int64_t bytes_of_coded_query(const CodeBook& book, std::int64_t k) {
  const std::int64_t entries = book.parts() * book.count();
  return entries + (ByteTables::keeps(book) ? 4 * entries + 8 * book.parts() : 0) + 16 +
         book.dim() * 8 + k * 60 + 3000;
}

CodedNeighbors::CodedNeighbors(std::int64_t queries, std::int64_t columns) : k(columns) {
  const std::size_t count = queries * columns;
  rows.reserve(count);
  // Gigabytes take seconds, most of them the system's.
  while (rows.size() < count) {
    stop_if_asked();
    rows.resize(std::min(count, rows.size() + (std::size_t{1} << 20)));
  }
}

void merge_rows(std::span<CodedNeighbors::Row> all, std::span<const CodedNeighbors::Row> more,
                bool ordered) {
  std::vector<CodedNeighbors::Row> both(all.size() + more.size());
  if (ordered) {
    std::merge(all.begin(), all.end(), more.begin(), more.end(), both.begin());
  } else if (!all.empty()) {
    std::copy(more.begin(), more.end(), std::copy(all.begin(), all.end(), both.begin()));
    std::nth_element(both.begin(), both.begin() + std::ssize(all) - 1, both.end());
  }
  std::copy_n(both.begin(), all.size(), all.begin());
}

void scan_codes(std::span<const CodeSegment> segments, const CodeScanJob& job,
                const CodeProbes& probes, CodedNeighbors& out, ScanStats& stats,
                const Progress& progress) {
  const std::int64_t queries = probes.lists.rows(), most = probes.lists.cols();
  const bool by_products = goes_by_products(segments, job, queries, most);
  const std::int64_t size = block_size(job, queries, most, by_products),
                     blocks = (queries + size - 1) / size;
  const CodeBook& book = *job.book;
  const std::int64_t bytes_of_block =
      size * (by_products ? bytes_by_products(book, job.k) : bytes_of_coded_query(book, job.k)) +
      size * most * 2 * static_cast<std::int64_t>(sizeof(Pair)) +
      (by_products ? bytes_of_products(book) : 0);
  // Few queries are shared by threads, which look at parts of their rows.
  const std::int64_t parts =
      std::max<std::int64_t>(1, job.threads / std::max<std::int64_t>(1, queries));
  std::vector<CodedNeighbors> found(parts);
  for (std::int64_t part = 1; part < parts; ++part) found[part] = CodedNeighbors(queries, job.k);
  std::mutex mutex;
  const std::vector<std::int64_t> order = by_first_list(probes.lists);
  const ListShape shape = shape_of(segments, job, queries, most);
  const double rows_of_list = double(shape.rows) / double(std::max<std::int64_t>(1, shape.lists));
  BlockScans scans(segments, job, job.k);
  Reporter reporter(progress, "scan", blocks * parts);
  parallel_for(job.threads, blocks * parts, [&](std::int64_t task) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t part = task % parts, first = task / parts * size,
                       last = std::min(queries, first + size);
    std::unique_ptr<BlockScan> scan = scans.take();
    BlockScan& block = *scan;
    std::vector<Candidates> candidates(last - first);
    std::vector<float> keys;
    const auto bound = [&](std::uint32_t q) { return candidates[q].bound(); };
    const auto take = [&](std::uint32_t q, float key, std::uint32_t segment, std::int64_t row) {
      candidates[q].push(key, segment, row, segments);
    };
    const auto settle = [&](std::uint32_t q, float limit) { candidates[q].settle(limit); };
    const auto query = [&](std::uint32_t q) { return order[first + q]; };
    // The nearest list gives a threshold for the others.
    const auto count = static_cast<std::uint32_t>(last - first);
    const std::int64_t alone = std::min<std::int64_t>(1, most);
    std::vector<Pair> pairs, others;
    for (std::uint32_t q = 0; q < count; ++q) {
      add_pairs(probes, query(q), q, alone, most, others);
      candidates[q].begin(
          job.k,
          job.upper_bounds ? job.upper_bounds[query(q)] : std::numeric_limits<double>::infinity(),
          keys);
    }
    if (by_products) {
      Matrix<double> block_queries = Matrix<double>::unset(count, job.book->dim());
      for (std::uint32_t q = 0; q < count; ++q) {
        job.prepare(query(q), block_queries.row(q));
        add_pairs(probes, query(q), q, 0, alone, pairs);
      }
      block.begin_products(std::move(block_queries));
      const auto go_on = [&](std::size_t more) {
        return [&, more](double share, double rows) {
          const double each = (rows + double(more) * rows_of_list) / double(count);
          return parts > 1 || job.comparison == CodeComparison::by_products ||
                 !tables_of_codes_pay_instead(shape, share, each, job.isa);
        };
      };
      ScanPlace place =
          block.scan_products(pairs, parts, part, bound, take, settle, go_on(others.size()));
      if (place.pair == pairs.size()) {
        place = block.scan_products(others, parts, part, bound, take, settle, go_on(0));
        pairs.swap(others);
        others.clear();
      }
      if (place.pair < pairs.size())
        scan_rest(block, pairs, place, others, count,
                  room_of(job) / (2 * bytes_of_coded_query(book, job.k)), query, bound, take,
                  settle);
    } else {
      for (std::uint32_t q = 0; q < count; ++q) {
        block.begin(query(q), q);
        pairs.clear();
        add_pairs(probes, query(q), q, 0, alone, pairs);
        if (!pairs.empty()) block.scan(pairs, parts, part, bound, take, settle);
        if (most > 1) block.sharpen_at_hand(least_term(probes, query(q)), bound(q));
      }
      block.scan(others, parts, part, bound, take, settle);
    }
    CodedNeighbors& to = part == 0 ? out : found[part];
    for (std::uint32_t q = 0; q < count; ++q)
      candidates[q].finish(segments, job.ordered || parts > 1, to.of(query(q)));
    block.stats.scan_seconds = seconds_since(start);
    reporter.add(1);
    {
      const std::lock_guard lock(mutex);
      stats.add(block.stats, bytes_of_block, job.threads);
    }
    scans.give_back(std::move(scan));
  });
  for (std::int64_t part = 1; part < parts; ++part)
    for (std::int64_t q = 0; q < queries; ++q) merge_rows(out.of(q), found[part].of(q), true);
}

void scan_codes_range(std::span<const CodeSegment> segments, const CodeScanJob& job,
                      const CodeProbes& probes, double limit, RangeSink& sink, ScanStats& stats,
                      const Progress& progress) {
  const std::int64_t queries = probes.lists.rows(),
                     size = block_size(job, queries, probes.lists.cols(), false);
  // No key between it and `limit` is a float32.
  float bound =
      limit < std::numeric_limits<float>::max() ? static_cast<float>(limit) : float_infinity;
  if (bound > limit) bound = std::nextafter(bound, -float_infinity);
  std::mutex mutex;
  BlockScans scans(segments, job, 0);
  const std::int64_t blocks = (queries + size - 1) / size;
  Reporter reporter(progress, "scan", blocks);
  parallel_for(job.threads, blocks, [&](std::int64_t b) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t first = b * size, last = std::min(queries, first + size);
    std::unique_ptr<BlockScan> scan = scans.take();
    BlockScan& block = *scan;
    RangeLists found(last - first);
    std::vector<Pair> pairs;
    for (std::int64_t q = first; q < last; ++q) {
      block.begin(q, static_cast<std::uint32_t>(q - first));
      add_pairs(probes, q, static_cast<std::uint32_t>(q - first), 0, probes.lists.cols(), pairs);
    }
    block.scan(
        pairs, 1, 0, [&](std::uint32_t) { return bound; },
        [&](std::uint32_t q, float key, std::uint32_t segment, std::int64_t row) {
          if (!(key <= bound)) return;
          sink.count(1);
          found[q].emplace_back(key, segments[segment].ids(row));
        },
        [](std::uint32_t, float) {});
    std::vector<std::int64_t> which(last - first);
    std::iota(which.begin(), which.end(), first);
    sink.take(which, found);
    block.stats.scan_seconds = seconds_since(start);
    reporter.add(1);
    {
      const std::lock_guard lock(mutex);
      stats.add(block.stats);
    }
    scans.give_back(std::move(scan));
  });
}

}  // namespace knear::detail
