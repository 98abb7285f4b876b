// All rows within a radius: a search whose threshold is given, so it guesses none, and which has no
// k but the one that plans take. What it finds lies in lists that grow, and memory limits those.
#include <algorithm>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/search.hpp"

namespace knear::detail {
namespace {

// The largest key within a radius.
double limit_of(Metric metric, double radius) {
  return metric == Metric::ip ? 0.0 - radius : radius;
}

class RangeSearch : public Search {
 public:
  using Search::Search;

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

 private:
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
    note_scan(*packed, pass, queries_.rows());
  }
};

}  // namespace

RangeNeighbors range_search_parts(std::span<const SearchPart> parts, AnyMatrixView queries,
                                  double radius, const KnnOptions& options, bool once,
                                  KnnReport* report) {
  check_exact(options, "a range search");
  check_processor(options, "a range search");
  return RangeSearch(parts, queries, usual_k, options, once)
      .run_range(limit_of(options.metric, radius), report);
}

}  // namespace knear::detail
