// knear/knn/search/range_search.hpp -- all rows within a radius: a search whose threshold is given,
// so it guesses none, and which has no k but the one that plans take. What it finds lies in lists
// that grow, and memory limits those. On the processor (range_search.cpp) or on a GPU
// (device_range_search.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/search/search.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear::detail {

// The largest key within a radius.
inline double range_limit(Metric metric, double radius) {
  return metric == Metric::ip ? 0.0 - radius : radius;
}

// Base: the search that the rows are taken from, Search or one derived from it.
template <class Base>
class RangeSearch : public Base {
 public:
  // The arguments are those of Base.
  template <class... Arguments>
  explicit RangeSearch(Arguments&&... arguments) : Base(std::forward<Arguments>(arguments)...) {
    if (options_.first_pass == FirstPass::prefix)
      throw InvalidArgument("first_pass is prefix, but a range search has no such pass");
    if (!options_.tuning.guess)
      throw InvalidArgument("choices say guess=off, but a range search guesses no threshold");
    if (options_.tuning.refine)
      throw InvalidArgument("choices say refine={}, but a range search has no such step",
                            *options_.tuning.refine ? "on" : "off");
  }

  // All rows whose key is at most `limit`.
  RangeNeighbors run_range(double limit, KnnReport* report) {
    const auto start = Base::Clock::now();
    RangeLists lists(static_cast<std::size_t>(queries_.rows()));
    find(limit, lists);
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
      this->fill(*report, Base::seconds_since(start));
      report->k = 0;
      report->memory_bytes += 64 * out.begin.back();
    }
    return out;
  }

  // Adds what lies within the limit to `lists`, query q to that of number which[q]; empty: to list
  // q. What the lists have already counts among the pairs that memory holds.
  void find(double limit, RangeLists& lists, std::span<const std::int64_t> which = {}) {
    this->for_each_chunk([&](const BaseRows& rows, std::int64_t begin, std::int64_t packing) {
      // 16 bytes a pair, in two growing lists at once for a while; in the end 12 more in the
      // answer.
      const std::int64_t memory = options_.memory > 0 ? options_.memory : machine_memory();
      const std::int64_t most =
          std::max<std::int64_t>(0, (memory - this->other_bytes() - packing) / 64);
      RangeSink sink(lists, this->segment_->given.ids.from(begin), most, which);
      range_of_rows(rows, begin, limit, sink);
    });
  }

 protected:
  using Base::options_, Base::queries_, Base::stats_, Base::threads_;

  // Gives to the sink what lies within the limit among the rows of a chunk.
  virtual void range_of_rows(const BaseRows& rows, std::int64_t begin, double limit,
                             RangeSink& sink) {
    range_on_processor(rows, begin, limit, queries_, sink);
  }

  // The processor's way, for these queries.
  void range_on_processor(const BaseRows& rows, std::int64_t begin, double limit,
                          AnyMatrixView queries, RangeSink& sink) {
    ScanJob job = this->job_for(queries, rows, this->k_);
    job.query_range = this->found_;
    this->apply_tuning(job);
    const typename Base::Choice choice = this->choose(rows, begin, job);
    const FirstPass pass = choice.passes.front();
    this->note_pass(pass, static_cast<std::size_t>(queries.rows() * this->count_));
    if (pass == FirstPass::direct) {
      this->list_allowed(job);
      scan_range_directly(job, this->subset_, limit, sink, stats_, options_.progress);
      return;
    }
    const auto packed = this->packed_form(pass, rows, choice);
    scan_range(*packed, job, limit, sink, stats_, options_.progress);
    this->note_scan(*packed, pass, queries.rows());
  }
};

}  // namespace knear::detail
